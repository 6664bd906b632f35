//! `SolverPlan`: a function for matrices of one shape, with its workspace on device and host.

use std::ffi::c_void;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::cuda::types::Handle;
use crate::device::{Device, DeviceProps};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::launch::mix;
use crate::sync::{SyncKind, may_sync};

use super::api::{DATA_TYPES, GeevApi, fill};
use super::shape::{Function, SolverShape};
use super::{CuSolver, DeviceHandle, call, missing};

/// Addresses of the arrays of a call, in the shape's order; 0 where there is none.
pub type Addresses = [u64; 4];

pub struct SolverPlan {
    library: Arc<CuSolver>,
    handle: Arc<DeviceHandle>,
    shape: SolverShape,
    ordinal: i32,
    name: Arc<str>,
    workspace: usize,
    /// The library's workspace on the host.
    host: Mutex<Vec<u64>>,
}

fn data_type(kind: DType) -> i32 {
    let at = match kind {
        DType::F32 => 0,
        DType::F64 => 1,
        DType::C64 => 2,
        _ => 3,
    };
    DATA_TYPES[at]
}

fn triangle(letter: u8) -> i32 {
    if letter == b'U' { fill::UPPER } else { fill::LOWER }
}

/// `cusolverEigMode_t`.
fn vectors(letter: u8) -> i32 {
    i32::from(letter == b'V')
}

/// `cublasOperation_t`.
fn operation(letter: u8) -> i32 {
    i32::from(letter == b'T')
}

fn at(address: u64) -> *mut c_void {
    address as *mut c_void
}

impl SolverPlan {
    /// Plan for arrays at these addresses and others like them: the library says what workspace they need.
    pub fn new(
        library: &Arc<CuSolver>,
        device: &dyn Device,
        shape: SolverShape,
        arrays: &Addresses,
    ) -> Result<Arc<SolverPlan>> {
        if shape.function == Function::Geev && library.geev.is_none() {
            return Err(missing(&format!("{} has no symbol cusolverDnXgeev: newer ones have it.", library.path())));
        }
        let ordinal = device.props().ordinal;
        // Making a handle may load code.
        let mut made = None;
        may_sync(SyncKind::ModuleLoad, || {
            device.in_context(&mut || {
                let handle = library.handle(ordinal)?;
                let sizes = workspace_of(library, &handle, &shape, arrays)?;
                made = Some((handle, sizes));
                Ok(())
            })
        })?;
        let (handle, (workspace, host)) =
            made.ok_or_else(|| Error::Device("the device did not run what was to run in its context".to_string()))?;
        Ok(Arc::new(SolverPlan {
            library: library.clone(),
            handle,
            shape,
            ordinal,
            name: format!("cuSOLVER {shape}").into(),
            workspace,
            host: Mutex::new(vec![0; host.div_ceil(8)]),
        }))
    }

    pub fn shape(&self) -> &SolverShape {
        &self.shape
    }

    /// Bytes of the workspace on the device that every call must be given.
    pub fn workspace(&self) -> usize {
        self.workspace
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) fn is_of(&self, props: &DeviceProps) -> bool {
        props.ordinal == self.ordinal
    }

    /// Never 0.
    pub(super) fn cost_key(&self) -> u64 {
        let shape = &self.shape;
        let words = [
            shape.function as u64,
            u64::from(shape.dtype.code()),
            shape.m as u64,
            shape.n as u64,
            shape.k as u64,
            u64::from(shape.flags[0]) << 8 | u64::from(shape.flags[1]),
        ];
        words.iter().fold(2, |key, word| mix(key, *word)) | 1
    }

    /// Put the function on a stream; the device's context is current.
    pub(super) fn enqueue(&self, arrays: &Addresses, info: u64, workspace: u64, stream: usize) -> Result<()> {
        let (library, api, shape) = (&*self.library, &self.library.api, &self.shape);
        let mut host = self.host.lock();
        let _turn = self.handle.turn.lock();
        let (handle, params) = (self.handle.handle as Handle, self.handle.params as Handle);
        call!(library, api, cusolverDnSetStream(handle, stream as Handle))?;
        let (m, n, k, kind) = (shape.m, shape.n, shape.k, data_type(shape.dtype));
        let [first, second] = shape.flags;
        let (a, work, bytes, info) = (at(arrays[0]), at(workspace), self.workspace, info as *mut i32);
        let (host, host_bytes) = (host.as_mut_ptr().cast::<c_void>(), host.len() * 8);
        let [_, b, c, d] = arrays.map(at);
        match shape.function {
            Function::Potrf => call!(
                library,
                api,
                cusolverDnXpotrf(
                    handle,
                    params,
                    triangle(first),
                    n,
                    kind,
                    a,
                    n,
                    kind,
                    work,
                    bytes,
                    host,
                    host_bytes,
                    info
                )
            ),
            Function::Getrf => call!(
                library,
                api,
                cusolverDnXgetrf(handle, params, n, n, kind, a, n, b.cast(), kind, work, bytes, host, host_bytes, info)
            ),
            Function::Getrs => call!(
                library,
                api,
                cusolverDnXgetrs(handle, params, operation(first), m, n, kind, a, m, b.cast(), kind, c, m, info)
            ),
            Function::Geqrf => call!(
                library,
                api,
                cusolverDnXgeqrf(handle, params, m, n, kind, a, m, kind, b, kind, work, bytes, host, host_bytes, info)
            ),
            Function::Orgqr => self.orgqr(handle, [m, n, k], [a, b, work], info),
            Function::Syevd => {
                let real = data_type(shape.real());
                call!(
                    library,
                    api,
                    cusolverDnXsyevd(
                        handle,
                        params,
                        vectors(first),
                        triangle(second),
                        n,
                        kind,
                        a,
                        n,
                        real,
                        b,
                        kind,
                        work,
                        bytes,
                        host,
                        host_bytes,
                        info
                    )
                )
            }
            Function::Gesvd => {
                let real = data_type(shape.real());
                call!(
                    library,
                    api,
                    cusolverDnXgesvd(
                        handle,
                        params,
                        first as _,
                        second as _,
                        m,
                        n,
                        kind,
                        a,
                        m,
                        real,
                        b,
                        kind,
                        c,
                        m,
                        kind,
                        d,
                        n,
                        kind,
                        work,
                        bytes,
                        host,
                        host_bytes,
                        info
                    )
                )
            }
            Function::Geev => {
                let (geev, complex) = (self.geev()?, data_type(shape.complex()));
                call!(
                    library,
                    geev,
                    cusolverDnXgeev(
                        handle,
                        params,
                        vectors(first),
                        vectors(second),
                        n,
                        kind,
                        a,
                        n,
                        complex,
                        b,
                        kind,
                        at(0),
                        n,
                        kind,
                        c,
                        n,
                        kind,
                        work,
                        bytes,
                        host,
                        host_bytes,
                        info
                    )
                )
            }
        }
    }

    fn geev(&self) -> Result<&GeevApi> {
        self.library.geev.as_ref().ok_or_else(|| missing("It has no symbol cusolverDnXgeev."))
    }

    fn orgqr(&self, handle: Handle, sizes: [i64; 3], [a, tau, work]: [*mut c_void; 3], info: *mut i32) -> Result<()> {
        let (library, api) = (&*self.library, &self.library.api);
        // `SolverShape` has checked that they fit; the workspace was told in elements as an i32.
        let [m, n, k] = sizes.map(|size| size as i32);
        let elements = (self.workspace / self.shape.dtype.itemsize()) as i32;
        match self.shape.dtype {
            DType::F32 => call!(library, api, cusolverDnSorgqr(handle, m, n, k, a, m, tau, work, elements, info)),
            DType::F64 => call!(library, api, cusolverDnDorgqr(handle, m, n, k, a, m, tau, work, elements, info)),
            DType::C64 => call!(library, api, cusolverDnCungqr(handle, m, n, k, a, m, tau, work, elements, info)),
            _ => call!(library, api, cusolverDnZungqr(handle, m, n, k, a, m, tau, work, elements, info)),
        }
    }
}

/// Bytes of workspace on the device and on the host.
fn workspace_of(
    library: &CuSolver,
    handle: &DeviceHandle,
    shape: &SolverShape,
    arrays: &Addresses,
) -> Result<(usize, usize)> {
    let _turn = handle.turn.lock();
    let (api, params, handle) = (&library.api, handle.params as Handle, handle.handle as Handle);
    let (m, n, k, kind) = (shape.m, shape.n, shape.k, data_type(shape.dtype));
    let [first, second] = shape.flags;
    let [a, b, c, d] = arrays.map(|address| at(address).cast_const());
    let (mut device, mut host) = (0, 0);
    match shape.function {
        Function::Getrs => {}
        Function::Potrf => call!(
            library,
            api,
            cusolverDnXpotrf_bufferSize(handle, params, triangle(first), n, kind, a, n, kind, &mut device, &mut host)
        )?,
        Function::Getrf => call!(
            library,
            api,
            cusolverDnXgetrf_bufferSize(handle, params, n, n, kind, a, n, kind, &mut device, &mut host)
        )?,
        Function::Geqrf => call!(
            library,
            api,
            cusolverDnXgeqrf_bufferSize(handle, params, m, n, kind, a, m, kind, b, kind, &mut device, &mut host)
        )?,
        Function::Orgqr => {
            let [m, n, k] = [m, n, k].map(|size| size as i32);
            let mut elements = 0;
            let told = &mut elements;
            match shape.dtype {
                DType::F32 => call!(library, api, cusolverDnSorgqr_bufferSize(handle, m, n, k, a, m, b, told)),
                DType::F64 => call!(library, api, cusolverDnDorgqr_bufferSize(handle, m, n, k, a, m, b, told)),
                DType::C64 => call!(library, api, cusolverDnCungqr_bufferSize(handle, m, n, k, a, m, b, told)),
                _ => call!(library, api, cusolverDnZungqr_bufferSize(handle, m, n, k, a, m, b, told)),
            }?;
            device = usize::try_from(elements).unwrap_or(0) * shape.dtype.itemsize();
        }
        Function::Syevd => call!(
            library,
            api,
            cusolverDnXsyevd_bufferSize(
                handle,
                params,
                vectors(first),
                triangle(second),
                n,
                kind,
                a,
                n,
                data_type(shape.real()),
                b,
                kind,
                &mut device,
                &mut host
            )
        )?,
        Function::Gesvd => call!(
            library,
            api,
            cusolverDnXgesvd_bufferSize(
                handle,
                params,
                first as _,
                second as _,
                m,
                n,
                kind,
                a,
                m,
                data_type(shape.real()),
                b,
                kind,
                c,
                m,
                kind,
                d,
                n,
                kind,
                &mut device,
                &mut host
            )
        )?,
        Function::Geev => {
            let geev = library.geev.as_ref().ok_or_else(|| missing("It has no symbol cusolverDnXgeev."))?;
            call!(
                library,
                geev,
                cusolverDnXgeev_bufferSize(
                    handle,
                    params,
                    vectors(first),
                    vectors(second),
                    n,
                    kind,
                    a,
                    n,
                    data_type(shape.complex()),
                    b,
                    kind,
                    at(0),
                    n,
                    kind,
                    c,
                    n,
                    kind,
                    &mut device,
                    &mut host
                )
            )?;
        }
    }
    Ok((device, host))
}
