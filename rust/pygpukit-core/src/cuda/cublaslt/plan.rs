//! `GemmPlan`: a matrix product whose descriptors are made and whose algorithm is chosen once, and kept.
//!
//! The library is column-major. A row-major matrix is the transpose of a column-major one with the same leading
//! dimension, and `(a @ b).T` is `b.T @ a.T`, so the library's first operand is our b, its second our a, and its result our
//! out, without a copy of any of them.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cuda::status::Status;
use crate::cuda::types::Handle;
use crate::device::{Device, DeviceProps};
use crate::error::{Error, Result};
use crate::launch::mix;

use super::api::{Algo, Heuristic, TRANSPOSED, config, data_type, desc, layout, preference};
use super::saved::SavedAlgorithm;
use super::shape::{GemmShape, Operand, data_type_of};
use super::{CublasLt, call, dotted, loading};

/// Algorithms that the library proposes, best first.
const PROPOSALS: usize = 16;

/// Destroys an object of the library.
type Destroy = unsafe extern "C" fn(Handle) -> Status;

/// An opaque object of the library that ends with this.
struct Object {
    raw: usize,
    destroy: Destroy,
}

impl Object {
    fn raw(&self) -> Handle {
        self.raw as Handle
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: made by the library and destroyed once; it is host memory only, so a failure leaks that and nothing else.
        unsafe { (self.destroy)(self.raw()) };
    }
}

/// What the library says about an algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Algorithm {
    pub id: i32,
    pub tile: u32,
    pub stages: u32,
    /// Parts that the sum over k is computed in.
    pub split_k: i32,
    pub reduction: u32,
    pub swizzling: u32,
    pub custom_option: u32,
    pub inner_shape: u16,
    pub cluster_shape: u16,
    /// Bytes it needs.
    pub workspace: usize,
    pub waves: f32,
}

/// See the module.
pub struct GemmPlan {
    pub(super) lt: Arc<CublasLt>,
    pub(super) handle: usize,
    desc: Object,
    a: Object,
    b: Object,
    out: Object,
    pub(super) algo: Algo,
    algorithm: Algorithm,
    /// Bytes of workspace it was allowed.
    allowed: usize,
    shape: GemmShape,
    device: String,
    ordinal: i32,
    name: Arc<str>,
    cost_key: u64,
    loaded: AtomicBool,
}

impl GemmPlan {
    /// Plan a product on a device, with the library's choice of an algorithm or one chosen before.
    ///
    /// Without a workspace each element of the result is one sum over k in ascending order: no algorithm that splits it
    /// is considered. With one, of exactly the size given, all are.
    pub fn new(
        lt: &Arc<CublasLt>,
        device: &dyn Device,
        shape: &GemmShape,
        workspace: usize,
        saved: Option<&SavedAlgorithm>,
    ) -> Result<Arc<GemmPlan>> {
        shape.check()?;
        let props = device.props();
        let machine = machine_of(props);
        if let Some(saved) = saved {
            check_saved(saved, lt, &machine, shape, workspace)?;
        }
        let [a, b, out] = shape.stored();
        let desc = make_desc(lt, shape)?;
        let (a, b) = (make_layout(lt, &shape.a, a, shape.batch)?, make_layout(lt, &shape.b, b, shape.batch)?);
        let out = make_layout(lt, &shape.out, out, shape.batch)?;
        let (handle, found) = loading(device, || {
            let handle = lt.handle(props.ordinal)?;
            let problem = [handle as Handle, desc.raw(), b.raw(), a.raw(), out.raw(), out.raw()];
            let found = match saved {
                Some(saved) => confirm(lt, problem, shape, &saved.algo, workspace)?,
                None => choose(lt, problem, shape, workspace)?,
            };
            Ok((handle, found))
        })?;
        Ok(Arc::new(GemmPlan {
            lt: lt.clone(),
            handle,
            desc,
            a,
            b,
            out,
            algo: found.algo,
            algorithm: algorithm_of(lt, &found)?,
            allowed: workspace,
            shape: *shape,
            device: machine,
            ordinal: props.ordinal,
            name: format!("cublasLtMatmul {shape}").into(),
            cost_key: cost_key(shape, &found.algo),
            loaded: AtomicBool::new(false),
        }))
    }

    /// Plan a product by the algorithm pinned for it in this process: loaded from a file, or chosen when the product
    /// first came.
    pub fn pinned(
        lt: &Arc<CublasLt>,
        device: &dyn Device,
        shape: &GemmShape,
        workspace: usize,
    ) -> Result<Arc<GemmPlan>> {
        let key = pin_key(&machine_of(device.props()), workspace, &shape.to_string());
        if let Some(saved) = lt.pins.lock().get(&key).cloned() {
            return GemmPlan::new(lt, device, shape, workspace, Some(&saved));
        }
        let plan = GemmPlan::new(lt, device, shape, workspace, None)?;
        let pinned = lt.pins.lock().entry(key).or_insert_with(|| plan.saved()).clone();
        // Another thread may have been faster: its choice stays.
        if pinned.algo == plan.algo { Ok(plan) } else { GemmPlan::new(lt, device, shape, workspace, Some(&pinned)) }
    }

    pub fn shape(&self) -> &GemmShape {
        &self.shape
    }

    pub fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// Bytes of the workspace that every call must be given.
    pub fn workspace(&self) -> usize {
        self.algorithm.workspace
    }

    /// The choice, for another process.
    pub fn saved(&self) -> SavedAlgorithm {
        SavedAlgorithm {
            version: self.lt.version(),
            device: self.device.clone(),
            algo: self.algo,
            workspace: self.allowed,
            shape: self.shape.to_string(),
        }
    }

    /// Has its code been loaded?
    #[inline]
    pub fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Acquire)
    }

    pub(super) fn set_loaded(&self) {
        self.loaded.store(true, Ordering::Release);
    }

    pub(super) fn is_of(&self, props: &DeviceProps) -> bool {
        props.ordinal == self.ordinal
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) fn cost_key(&self) -> u64 {
        self.cost_key
    }

    /// Addresses of alpha and beta, in the type of the product's factors.
    #[inline]
    fn factors(&self) -> [*const c_void; 2] {
        static FLOATS: [f32; 2] = [0.0, 1.0];
        static DOUBLES: [f64; 2] = [0.0, 1.0];
        static INTEGERS: [i32; 2] = [0, 1];
        let beta = usize::from(self.shape.accumulate);
        [1, beta].map(|which| match self.shape.scale_type() {
            data_type::F64 => (&raw const DOUBLES[which]).cast(),
            data_type::I32 => (&raw const INTEGERS[which]).cast(),
            _ => (&raw const FLOATS[which]).cast(),
        })
    }

    /// Put the product on a stream; the device's context is current.
    #[inline]
    pub(super) fn enqueue(&self, out: u64, a: u64, b: u64, workspace: u64, stream: usize) -> Result<()> {
        let [alpha, beta] = self.factors();
        call!(
            self.lt,
            cublasLtMatmul(
                self.handle as Handle,
                self.desc.raw(),
                alpha,
                b as *const c_void,
                self.b.raw(),
                a as *const c_void,
                self.a.raw(),
                beta,
                out as *const c_void,
                self.out.raw(),
                out as *mut c_void,
                self.out.raw(),
                &self.algo,
                workspace as *mut c_void,
                self.algorithm.workspace,
                stream as Handle,
            )
        )
    }
}

/// Products of one shape by one algorithm cost the same. Never 0.
fn cost_key(shape: &GemmShape, algo: &Algo) -> u64 {
    let sizes = [shape.m as u64, shape.n as u64, shape.k as u64, shape.batch as u64];
    let types = [shape.a, shape.b, shape.out].map(|x| u64::from(x.dtype.code()) << 1 | u64::from(x.transposed));
    sizes.iter().chain(&types).chain(algo).fold(1, |key, word| mix(key, *word)) | 1
}

/// What an algorithm is chosen for besides the product: compute capability and number of SMs.
fn machine_of(props: &DeviceProps) -> String {
    format!("{}.{}/{}", props.capability.0, props.capability.1, props.sm_count)
}

pub(super) fn pin_key(machine: &str, workspace: usize, shape: &str) -> String {
    format!("{machine} {workspace} {shape}")
}

fn check_saved(
    saved: &SavedAlgorithm,
    lt: &CublasLt,
    machine: &str,
    shape: &GemmShape,
    workspace: usize,
) -> Result<()> {
    let here = |what: &str, then: String, now: String| {
        Err(Error::Value(format!(
            "this cuBLASLt algorithm was chosen for {what} {then}, and this is {now}: choose again"
        )))
    };
    if saved.version != lt.version() {
        return here("the library's version", dotted(saved.version), dotted(lt.version()));
    }
    if saved.device != machine {
        return here("a device of capability and SMs", saved.device.clone(), machine.to_string());
    }
    if saved.workspace != workspace {
        return here("a workspace of", format!("{} bytes", saved.workspace), format!("{workspace} bytes"));
    }
    if saved.shape != shape.to_string() {
        return here("the product", format!("({})", saved.shape), format!("({shape})"));
    }
    Ok(())
}

fn make_desc(lt: &CublasLt, shape: &GemmShape) -> Result<Object> {
    let mut raw: Handle = std::ptr::null_mut();
    call!(lt, cublasLtMatmulDescCreate(&mut raw, shape.compute_type(), shape.scale_type()))?;
    let made = Object { raw: raw as usize, destroy: lt.api.cublasLtMatmulDescDestroy };
    // The library's operands are ours exchanged.
    for (attribute, operand) in [(desc::TRANSPOSE_A, &shape.b), (desc::TRANSPOSE_B, &shape.a)] {
        if operand.transposed {
            let (value, bytes) = ((&raw const TRANSPOSED_VALUE).cast(), size_of::<i32>());
            call!(lt, cublasLtMatmulDescSetAttribute(made.raw(), attribute, value, bytes))?;
        }
    }
    Ok(made)
}

static TRANSPOSED_VALUE: i32 = TRANSPOSED;

/// The layout of a stored row-major matrix: column-major, its rows are columns.
fn make_layout(lt: &CublasLt, operand: &Operand, (rows, cols): (i64, i64), batch: i32) -> Result<Object> {
    let kind = data_type_of(operand.dtype).ok_or_else(|| Error::DType(format!("no {}", operand.dtype.name())))?;
    let mut raw: Handle = std::ptr::null_mut();
    call!(lt, cublasLtMatrixLayoutCreate(&mut raw, kind, cols as u64, rows as u64, operand.ld))?;
    let made = Object { raw: raw as usize, destroy: lt.api.cublasLtMatrixLayoutDestroy };
    if batch > 1 {
        let (count, offset) = (batch, operand.batch_stride);
        let value = (&raw const count).cast();
        call!(lt, cublasLtMatrixLayoutSetAttribute(made.raw(), layout::BATCH_COUNT, value, size_of::<i32>()))?;
        let value = (&raw const offset).cast();
        call!(lt, cublasLtMatrixLayoutSetAttribute(made.raw(), layout::BATCH_OFFSET, value, size_of::<i64>()))?;
    }
    Ok(made)
}

/// Handle, descriptor, and layouts of the library's a, b, c and d.
type Problem = [Handle; 6];

fn make_preference(lt: &CublasLt, shape: &GemmShape, workspace: usize) -> Result<Object> {
    let mut raw: Handle = std::ptr::null_mut();
    call!(lt, cublasLtMatmulPreferenceCreate(&mut raw))?;
    let made = Object { raw: raw as usize, destroy: lt.api.cublasLtMatmulPreferenceDestroy };
    let set = |attribute: i32, value: *const c_void, bytes: usize| {
        call!(lt, cublasLtMatmulPreferenceSetAttribute(made.raw(), attribute, value, bytes))
    };
    let bytes = workspace as u64;
    set(preference::MAX_WORKSPACE, (&raw const bytes).cast(), size_of::<u64>())?;
    if workspace == 0 {
        let none = 0u32;
        set(preference::REDUCTION_SCHEMES, (&raw const none).cast(), size_of::<u32>())?;
    }
    let alignments = [shape.b.alignment, shape.a.alignment, shape.out.alignment, shape.out.alignment];
    for (i, alignment) in alignments.iter().enumerate() {
        set(preference::ALIGNMENT_A + i as i32, std::ptr::from_ref(alignment).cast(), size_of::<u32>())?;
    }
    Ok(made)
}

/// The library's best proposal that keeps to the workspace, and without one to a single sum over k.
fn choose(lt: &CublasLt, problem: Problem, shape: &GemmShape, workspace: usize) -> Result<Heuristic> {
    let preference = make_preference(lt, shape, workspace)?;
    let mut found = [Heuristic::NONE; PROPOSALS];
    let mut count = 0;
    let [handle, desc, a, b, c, d] = problem;
    let (wanted, first) = (PROPOSALS as i32, found.as_mut_ptr());
    call!(lt, cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, c, d, preference.raw(), wanted, first, &mut count))
        .map_err(|error| Error::Device(format!("{error} The product is {shape}.")))?;
    let found = &found[..usize::try_from(count).unwrap_or(0).min(PROPOSALS)];
    for result in found.iter().filter(|result| result.state == 0 && result.workspace <= workspace) {
        let algorithm = algorithm_of(lt, result)?;
        if workspace > 0 || algorithm.split_k <= 1 && algorithm.reduction == 0 {
            return Ok(*result);
        }
    }
    Err(Error::Device(format!(
        "cuBLASLt {} has no algorithm for this product within {workspace} bytes of workspace ({} proposed): {shape}",
        dotted(lt.version()),
        found.len()
    )))
}

/// An algorithm from elsewhere, when the library takes it for this product.
fn confirm(lt: &CublasLt, problem: Problem, shape: &GemmShape, algo: &Algo, workspace: usize) -> Result<Heuristic> {
    let mut result = Heuristic::NONE;
    let [handle, desc, a, b, c, d] = problem;
    call!(lt, cublasLtMatmulAlgoCheck(handle, desc, a, b, c, d, algo, &mut result))?;
    if result.workspace > workspace {
        // Version 13.1 states 4 bytes here for algorithms that it proposes for none: the proposal counts.
        if let Some(proposed) = choose(lt, problem, shape, workspace).ok().filter(|found| found.algo == *algo) {
            return Ok(proposed);
        }
        return Err(Error::Value(format!(
            "this cuBLASLt algorithm needs {} bytes of workspace, and {workspace} are allowed: choose again",
            result.workspace
        )));
    }
    Ok(Heuristic { algo: *algo, ..result })
}

fn algorithm_of(lt: &CublasLt, found: &Heuristic) -> Result<Algorithm> {
    // Newer kernels do not have all of these settings; what the library does not tell is 0.
    let ask = |attribute: i32| {
        let (mut value, mut written) = ([0u8; 8], 0);
        let bytes = if attribute == config::INNER_SHAPE || attribute == config::CLUSTER_SHAPE { 2 } else { 4 };
        let buffer = value.as_mut_ptr().cast();
        call!(lt, cublasLtMatmulAlgoConfigGetAttribute(&found.algo, attribute, buffer, bytes, &mut written))?;
        Result::Ok(u64::from_le_bytes(value))
    };
    let tell = |attribute: i32| ask(attribute).unwrap_or(0);
    Ok(Algorithm {
        id: ask(config::ID)? as i32,
        tile: tell(config::TILE) as u32,
        stages: tell(config::STAGES) as u32,
        split_k: ask(config::SPLIT_K)? as i32,
        reduction: ask(config::REDUCTION_SCHEME)? as u32,
        swizzling: tell(config::SWIZZLING) as u32,
        custom_option: tell(config::CUSTOM_OPTION) as u32,
        inner_shape: tell(config::INNER_SHAPE) as u16,
        cluster_shape: tell(config::CLUSTER_SHAPE) as u16,
        workspace: found.workspace,
        waves: found.waves,
    })
}
