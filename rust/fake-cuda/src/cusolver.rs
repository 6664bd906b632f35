//! A stand-in for cuSOLVER's dense part: strict about arguments and workspaces, so that a wrong one is an error.
//!
//! Cholesky and LU factors and the solution with them are computed, of real matrices. The other functions write what they
//! were asked for where their results would be, which tests compare.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};

use crate::api::{exports, put};
use crate::memory::Memory;
use crate::state::*;
use crate::stream::{Op, enqueue};

const NOT_INITIALISED: i32 = 1;
const INVALID: i32 = 3;
const EXECUTION_FAILED: i32 = 6;

/// What the library holds: the device and the stream of each handle, and parameters.
#[derive(Default)]
pub(crate) struct Solver {
    handles: HashMap<usize, (i32, usize)>,
    params: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Potrf { upper: bool },
    Getrf,
    Getrs { transposed: bool },
    Geqrf,
    Orgqr { k: i64 },
    Syevd { vectors: bool, upper: bool },
    Gesvd { jobs: [u8; 2] },
    Geev { vectors: bool },
}

/// One call on its way to a stream.
#[derive(Clone, Debug)]
pub(crate) struct Solve {
    kind: Kind,
    data: i32,
    m: i64,
    n: i64,
    /// Address and bytes; the matrix first.
    arrays: Vec<(u64, usize)>,
    info: u64,
    workspace: (u64, usize),
}

/// Bytes of an element of a `cudaDataType`.
fn item(data: i32) -> Result<usize, i32> {
    match data {
        0 => Ok(4),
        1 | 4 => Ok(8),
        5 => Ok(16),
        _ => Err(INVALID),
    }
}

fn real(data: i32) -> i32 {
    data & 1
}

impl Solve {
    pub fn reachable(&self, memory: &Memory) -> bool {
        let others = [(self.info, 4), self.workspace];
        self.arrays.iter().chain(&others).all(|(at, bytes)| *bytes == 0 || memory.reachable(*at, *bytes))
    }

    /// # Safety
    /// The arrays are reachable.
    pub unsafe fn run(&self) {
        let (m, n) = (self.m as usize, self.n as usize);
        let mut info = 0;
        // SAFETY: as the caller promised.
        unsafe {
            match self.kind {
                Kind::Potrf { upper } => info = self.potrf(n, upper),
                Kind::Getrf => info = self.getrf(n),
                Kind::Getrs { transposed } => self.getrs(m, n, transposed),
                Kind::Geqrf => (0..m.min(n)).for_each(|i| self.store(1, i, (1000 * m + 10 * n + i) as f64)),
                Kind::Orgqr { k } => self.store(0, 0, k as f64 + 1000.0 * self.load(1, 0)),
                Kind::Syevd { vectors, upper } => {
                    (0..n).for_each(|i| self.store_real(1, i, i as f64 + 1.0));
                    self.store(0, 0, f64::from(10 * u8::from(vectors) + u8::from(upper)));
                }
                Kind::Gesvd { jobs } => {
                    (0..n).for_each(|i| self.store_real(1, i, (n - i) as f64));
                    if jobs[0] != b'N' {
                        (2..4).for_each(|i| {
                            let last = self.arrays[i].1 / item(self.data).unwrap_or(1) - 1;
                            self.store(i, last, f64::from(jobs[i - 2]));
                        });
                    }
                }
                Kind::Geev { vectors } => {
                    let wide = item(real(self.data)).unwrap_or(4);
                    for i in 0..n {
                        write(self.arrays[1].0 + (2 * i * wide) as u64, wide, i as f64 + 1.0);
                        write(self.arrays[1].0 + ((2 * i + 1) * wide) as u64, wide, -(i as f64));
                    }
                    if vectors {
                        self.store(2, n * n - 1, 7.0);
                    }
                }
            }
            (self.info as *mut i32).write_unaligned(info);
            if self.workspace.1 > 0 {
                std::ptr::write_bytes(self.workspace.0 as *mut u8, 0xcd, self.workspace.1);
            }
        }
    }

    unsafe fn load(&self, array: usize, index: usize) -> f64 {
        let address = self.arrays[array].0 + (index * item(self.data).unwrap_or(4)) as u64;
        // SAFETY: as the caller promised.
        unsafe {
            match real(self.data) {
                0 => f64::from((address as *const f32).read_unaligned()),
                _ => (address as *const f64).read_unaligned(),
            }
        }
    }

    unsafe fn store(&self, array: usize, index: usize, value: f64) {
        let (size, wide) = (item(self.data).unwrap_or(4), item(real(self.data)).unwrap_or(4));
        // SAFETY: as the caller promised.
        unsafe { write(self.arrays[array].0 + (index * size) as u64, wide, value) };
    }

    unsafe fn store_real(&self, array: usize, index: usize, value: f64) {
        let wide = item(real(self.data)).unwrap_or(4);
        // SAFETY: as the caller promised.
        unsafe { write(self.arrays[array].0 + (index * wide) as u64, wide, value) };
    }

    /// By columns of the lower factor; of the upper one the same with rows and columns exchanged.
    unsafe fn potrf(&self, n: usize, upper: bool) -> i32 {
        let at = |row: usize, col: usize| if upper { row * n + col } else { col * n + row };
        // SAFETY: as the caller promised.
        unsafe {
            for j in 0..n {
                for i in j..n {
                    let sum: f64 = (0..j).map(|k| self.load(0, at(i, k)) * self.load(0, at(j, k))).sum();
                    let rest = self.load(0, at(i, j)) - sum;
                    if i == j && rest <= 0.0 {
                        return j as i32 + 1;
                    }
                    self.store(0, at(i, j), if i == j { rest.sqrt() } else { rest / self.load(0, at(j, j)) });
                }
            }
        }
        0
    }

    unsafe fn getrf(&self, n: usize) -> i32 {
        let mut info = 0;
        // SAFETY: as the caller promised.
        unsafe {
            for j in 0..n {
                let size = |row: usize| self.load(0, j * n + row).abs();
                let best = (j..n).fold(j, |best, row| if size(row) > size(best) { row } else { best });
                (self.arrays[1].0 as *mut i64).add(j).write_unaligned(best as i64 + 1);
                for col in 0..n {
                    let (x, y) = (self.load(0, col * n + j), self.load(0, col * n + best));
                    self.store(0, col * n + j, y);
                    self.store(0, col * n + best, x);
                }
                let pivot = self.load(0, j * n + j);
                if pivot == 0.0 {
                    info = if info == 0 { j as i32 + 1 } else { info };
                    continue;
                }
                for row in j + 1..n {
                    let factor = self.load(0, j * n + row) / pivot;
                    self.store(0, j * n + row, factor);
                    for col in j + 1..n {
                        self.store(0, col * n + row, self.load(0, col * n + row) - factor * self.load(0, col * n + j));
                    }
                }
            }
        }
        info
    }

    /// `m` unknowns and `n` right sides.
    unsafe fn getrs(&self, m: usize, n: usize, transposed: bool) {
        // SAFETY: as the caller promised.
        unsafe {
            let lu = |row: usize, col: usize| self.load(0, col * m + row);
            let pivot = |row: usize| (self.arrays[1].0 as *const i64).add(row).read_unaligned() as usize - 1;
            for side in 0..n {
                let mut x: Vec<f64> = (0..m).map(|row| self.load(2, side * m + row)).collect();
                if transposed {
                    for i in 0..m {
                        x[i] = (x[i] - (0..i).map(|k| lu(k, i) * x[k]).sum::<f64>()) / lu(i, i);
                    }
                    for i in (0..m).rev() {
                        x[i] -= (i + 1..m).map(|k| lu(k, i) * x[k]).sum::<f64>();
                    }
                    (0..m).rev().for_each(|i| x.swap(i, pivot(i)));
                } else {
                    (0..m).for_each(|i| x.swap(i, pivot(i)));
                    for i in 0..m {
                        x[i] -= (0..i).map(|k| lu(i, k) * x[k]).sum::<f64>();
                    }
                    for i in (0..m).rev() {
                        x[i] = (x[i] - (i + 1..m).map(|k| lu(i, k) * x[k]).sum::<f64>()) / lu(i, i);
                    }
                }
                x.iter().enumerate().for_each(|(row, value)| self.store(2, side * m + row, *value));
            }
        }
    }
}

unsafe fn write(address: u64, wide: usize, value: f64) {
    // SAFETY: the caller has checked the array's range.
    unsafe {
        match wide {
            4 => (address as *mut f32).write_unaligned(value as f32),
            _ => (address as *mut f64).write_unaligned(value),
        }
    }
}

/// Check handle, parameters and types, and return the stream.
fn known(state: &State, handle: usize, params: Option<usize>, data: i32, compute: i32) -> Result<usize, i32> {
    let (device, stream) = *state.solver.handles.get(&handle).ok_or(NOT_INITIALISED)?;
    let good = params.is_none_or(|known| state.solver.params.contains(&known));
    item(data)?;
    if good && compute == data && current_device() == Ok(device) { Ok(stream) } else { Err(INVALID) }
}

/// Bytes of workspace on device and host: different for every function and size.
fn workspace(number: usize, m: i64, n: i64) -> (usize, usize) {
    (1024 * number + 16 * m as usize + n as usize, 64 * number + 3)
}

fn tell(number: usize, m: i64, n: i64, device: *mut usize, host: *mut usize) -> Outcome {
    if m < 1 || n < 1 {
        return Err(INVALID);
    }
    let (on_device, on_host) = workspace(number, m, n);
    put(device, on_device).map_err(|_| INVALID)?;
    put(host, on_host).map_err(|_| INVALID)
}

/// Workspace on the device and on the host, each an address and bytes, as a call was given them.
type Given = ((u64, usize), (*mut c_void, usize));

/// Enqueue a call whose workspaces are those it was told.
fn submit(state: &mut State, stream: usize, number: usize, call: Solve, (device, host): Given) -> Outcome {
    let wanted = workspace(number, call.m, call.n);
    if device.1 != wanted.0 || device.0 % 256 != 0 || host.1 < wanted.1 || host.0.is_null() || stream == 0 {
        return Err(INVALID);
    }
    // SAFETY: the caller vouches for its workspace.
    unsafe { std::ptr::write_bytes(host.0.cast::<u8>(), 0xee, host.1) };
    enqueue(state, stream, Op::Solve(Solve { workspace: device, ..call })).map_err(|_| EXECUTION_FAILED)
}

fn call(kind: Kind, data: i32, (m, n): (i64, i64), arrays: &[(u64, i64, i32)], info: u64) -> Result<Solve, i32> {
    if m < 1 || n < 1 {
        return Err(INVALID);
    }
    let sized = |&(at, count, data): &(u64, i64, i32)| Ok((at, count as usize * item(data)?));
    let arrays = arrays.iter().map(sized).collect::<Result<Vec<_>, i32>>()?;
    Ok(Solve { kind, data, m, n, arrays, info, workspace: (0, 0) })
}

/// A letter of cuBLAS's fill modes.
fn upper(uplo: c_int) -> Result<bool, i32> {
    if matches!(uplo, 0 | 1) { Ok(uplo == 1) } else { Err(INVALID) }
}

fn flag(mode: c_int) -> Result<bool, i32> {
    upper(mode)
}

fn fits(good: bool) -> Outcome {
    if good { Ok(()) } else { Err(INVALID) }
}

fn orgqr(
    state: &mut State,
    handle: usize,
    data: i32,
    sizes: [c_int; 4],
    at: [u64; 3],
    elements: c_int,
    info: u64,
) -> Outcome {
    let stream = known(state, handle, None, data, data)?;
    let [m, n, k, lda] = sizes.map(i64::from);
    fits(k >= 1 && k <= n && n <= m && lda == m && elements == 5 * sizes[1] && at[2] % 256 == 0)?;
    let made = call(Kind::Orgqr { k }, data, (m, n), &[(at[0], m * n, data), (at[1], k, data)], info)?;
    let workspace = (at[2], elements as usize * item(data)?);
    enqueue(state, stream, Op::Solve(Solve { workspace, ..made })).map_err(|_| EXECUTION_FAILED)
}

/// `orgqr` of a type, and its question.
macro_rules! orgqr_of {
    ($($data:literal $ask:ident $name:ident;)*) => {
        exports! {
            $(
                needs Context fn $ask(
                    state; handle: usize, m: c_int, n: c_int, k: c_int, a: u64, lda: c_int, tau: u64, told: *mut c_int,
                ) {
                    known(state, handle, None, $data, $data)?;
                    fits(k >= 1 && k <= n && n <= m && lda == m && a != 0 && tau != 0)?;
                    put(told, 5 * n).map_err(|_| INVALID)
                }

                needs Context fn $name(
                    state; handle: usize, m: c_int, n: c_int, k: c_int, a: u64, lda: c_int, tau: u64, work: u64,
                    elements: c_int, info: u64,
                ) {
                    orgqr(state, handle, $data, [m, n, k, lda], [a, tau, work], elements, info)
                }
            )*
        }
    };
}

pub(crate) mod typed {
    //! The functions that have a name per type.
    use super::*;

    orgqr_of! {
        0 cusolverDnSorgqr_bufferSize cusolverDnSorgqr;
        1 cusolverDnDorgqr_bufferSize cusolverDnDorgqr;
        4 cusolverDnCungqr_bufferSize cusolverDnCungqr;
        5 cusolverDnZungqr_bufferSize cusolverDnZungqr;
    }
}

exports! {
    needs Nothing fn cusolverGetVersion(state; version: *mut c_int) {
        let _ = state;
        put(version, 12_305)
    }

    needs Context fn cusolverDnCreate(state; handle: *mut usize) {
        let made = state.handle();
        let device = current_device()?;
        state.solver.handles.insert(made, (device, 0));
        put(handle, made)
    }

    needs Nothing fn cusolverDnSetStream(state; handle: usize, stream: usize) {
        state.solver.handles.get_mut(&handle).ok_or(NOT_INITIALISED)?.1 = stream;
        Ok(())
    }

    needs Nothing fn cusolverDnCreateParams(state; params: *mut usize) {
        let made = state.handle();
        state.solver.params.push(made);
        put(params, made)
    }

    needs Context fn cusolverDnXpotrf_bufferSize(
        state; handle: usize, params: usize, uplo: c_int, n: i64, data: c_int, a: u64, lda: i64, compute: c_int,
        device: *mut usize, host: *mut usize,
    ) {
        known(state, handle, Some(params), data, compute)?;
        upper(uplo)?;
        fits(lda == n && a != 0)?;
        tell(1, n, n, device, host)
    }

    needs Context fn cusolverDnXpotrf(
        state; handle: usize, params: usize, uplo: c_int, n: i64, data: c_int, a: u64, lda: i64, compute: c_int,
        work: u64, bytes: usize, host: *mut c_void, host_bytes: usize, info: u64,
    ) {
        let stream = known(state, handle, Some(params), data, compute)?;
        fits(lda == n)?;
        let made = call(Kind::Potrf { upper: upper(uplo)? }, data, (n, n), &[(a, n * n, data)], info)?;
        submit(state, stream, 1, made, ((work, bytes), (host, host_bytes)))
    }

    needs Context fn cusolverDnXgetrf_bufferSize(
        state; handle: usize, params: usize, m: i64, n: i64, data: c_int, a: u64, lda: i64, compute: c_int,
        device: *mut usize, host: *mut usize,
    ) {
        known(state, handle, Some(params), data, compute)?;
        fits(m == n && lda == m && a != 0)?;
        tell(2, m, n, device, host)
    }

    needs Context fn cusolverDnXgetrf(
        state; handle: usize, params: usize, m: i64, n: i64, data: c_int, a: u64, lda: i64, pivots: u64,
        compute: c_int, work: u64, bytes: usize, host: *mut c_void, host_bytes: usize, info: u64,
    ) {
        let stream = known(state, handle, Some(params), data, compute)?;
        fits(m == n && lda == m)?;
        // Pivots are integers of 8 bytes, as float64 is.
        let made = call(Kind::Getrf, data, (m, n), &[(a, m * n, data), (pivots, n, 1)], info)?;
        submit(state, stream, 2, made, ((work, bytes), (host, host_bytes)))
    }

    needs Context fn cusolverDnXgetrs(
        state; handle: usize, params: usize, trans: c_int, n: i64, sides: i64, data: c_int, a: u64, lda: i64,
        pivots: u64, data_b: c_int, b: u64, ldb: i64, info: u64,
    ) {
        let stream = known(state, handle, Some(params), data, data_b)?;
        fits(lda == n && ldb == n)?;
        let kind = Kind::Getrs { transposed: flag(trans)? };
        let made = call(kind, data, (n, sides), &[(a, n * n, data), (pivots, n, 1), (b, n * sides, data)], info)?;
        enqueue(state, stream, Op::Solve(made)).map_err(|_| EXECUTION_FAILED)
    }

    needs Context fn cusolverDnXgeqrf_bufferSize(
        state; handle: usize, params: usize, m: i64, n: i64, data: c_int, a: u64, lda: i64, data_tau: c_int, tau: u64,
        compute: c_int, device: *mut usize, host: *mut usize,
    ) {
        known(state, handle, Some(params), data, compute)?;
        fits(lda == m && data_tau == data && a != 0 && tau != 0)?;
        tell(3, m, n, device, host)
    }

    needs Context fn cusolverDnXgeqrf(
        state; handle: usize, params: usize, m: i64, n: i64, data: c_int, a: u64, lda: i64, data_tau: c_int, tau: u64,
        compute: c_int, work: u64, bytes: usize, host: *mut c_void, host_bytes: usize, info: u64,
    ) {
        let stream = known(state, handle, Some(params), data, compute)?;
        fits(lda == m && data_tau == data)?;
        let made = call(Kind::Geqrf, data, (m, n), &[(a, m * n, data), (tau, m.min(n), data)], info)?;
        submit(state, stream, 3, made, ((work, bytes), (host, host_bytes)))
    }

    needs Context fn cusolverDnXsyevd_bufferSize(
        state; handle: usize, params: usize, jobz: c_int, uplo: c_int, n: i64, data: c_int, a: u64, lda: i64,
        data_w: c_int, w: u64, compute: c_int, device: *mut usize, host: *mut usize,
    ) {
        known(state, handle, Some(params), data, compute)?;
        (flag(jobz)?, upper(uplo)?);
        fits(lda == n && data_w == real(data) && a != 0 && w != 0)?;
        tell(4, n, n, device, host)
    }

    needs Context fn cusolverDnXsyevd(
        state; handle: usize, params: usize, jobz: c_int, uplo: c_int, n: i64, data: c_int, a: u64, lda: i64,
        data_w: c_int, w: u64, compute: c_int, work: u64, bytes: usize, host: *mut c_void, host_bytes: usize,
        info: u64,
    ) {
        let stream = known(state, handle, Some(params), data, compute)?;
        fits(lda == n && data_w == real(data))?;
        let kind = Kind::Syevd { vectors: flag(jobz)?, upper: upper(uplo)? };
        let made = call(kind, data, (n, n), &[(a, n * n, data), (w, n, data_w)], info)?;
        submit(state, stream, 4, made, ((work, bytes), (host, host_bytes)))
    }

    needs Context fn cusolverDnXgesvd_bufferSize(
        state; handle: usize, params: usize, jobu: c_char, jobvt: c_char, m: i64, n: i64, data: c_int, a: u64, lda: i64,
        data_s: c_int, s: u64, data_u: c_int, u: u64, ldu: i64, data_vt: c_int, vt: u64, ldvt: i64, compute: c_int,
        device: *mut usize, host: *mut usize,
    ) {
        known(state, handle, Some(params), data, compute)?;
        let none = jobu as u8 == b'N';
        fits(m >= n && lda == m && data_s == real(data) && data_u == data && data_vt == data && a != 0 && s != 0)?;
        fits(jobu == jobvt && ldu == m && ldvt == n && (none || u != 0 && vt != 0))?;
        tell(5, m, n, device, host)
    }

    needs Context fn cusolverDnXgesvd(
        state; handle: usize, params: usize, jobu: c_char, jobvt: c_char, m: i64, n: i64, data: c_int, a: u64, lda: i64,
        data_s: c_int, s: u64, data_u: c_int, u: u64, ldu: i64, data_vt: c_int, vt: u64, ldvt: i64, compute: c_int,
        work: u64, bytes: usize, host: *mut c_void, host_bytes: usize, info: u64,
    ) {
        let stream = known(state, handle, Some(params), data, compute)?;
        fits(m >= n && lda == m && data_s == real(data) && ldu == m && ldvt == n)?;
        let left = match jobu as u8 {
            b'A' => m,
            b'S' => n,
            b'N' => 0,
            _ => return Err(INVALID),
        };
        let right = if left == 0 { 0 } else { n };
        let arrays = [(a, m * n, data), (s, n, data_s), (u, m * left, data_u), (vt, n * right, data_vt)];
        let made = call(Kind::Gesvd { jobs: [jobu as u8, jobvt as u8] }, data, (m, n), &arrays, info)?;
        submit(state, stream, 5, made, ((work, bytes), (host, host_bytes)))
    }

    needs Context fn cusolverDnXgeev_bufferSize(
        state; handle: usize, params: usize, jobvl: c_int, jobvr: c_int, n: i64, data: c_int, a: u64, lda: i64,
        data_w: c_int, w: u64, data_vl: c_int, vl: u64, ldvl: i64, data_vr: c_int, vr: u64, ldvr: i64, compute: c_int,
        device: *mut usize, host: *mut usize,
    ) {
        known(state, handle, Some(params), data, compute)?;
        fits(jobvl == 0 && vl == 0 && data_vl == data && ldvl >= 1 && data_vr == data && ldvr == n && lda == n)?;
        fits(data_w == 4 + real(data) && a != 0 && w != 0 && (vr != 0) == flag(jobvr)?)?;
        tell(6, n, n, device, host)
    }

    needs Context fn cusolverDnXgeev(
        state; handle: usize, params: usize, jobvl: c_int, jobvr: c_int, n: i64, data: c_int, a: u64, lda: i64,
        data_w: c_int, w: u64, data_vl: c_int, vl: u64, ldvl: i64, data_vr: c_int, vr: u64, ldvr: i64, compute: c_int,
        work: u64, bytes: usize, host: *mut c_void, host_bytes: usize, info: u64,
    ) {
        let stream = known(state, handle, Some(params), data, compute)?;
        fits(jobvl == 0 && vl == 0 && data_vl == data && ldvl >= 1 && data_vr == data && ldvr == n && lda == n)?;
        let vectors = flag(jobvr)?;
        let count = if vectors { n * n } else { 0 };
        let made = call(Kind::Geev { vectors }, data, (n, n), &[(a, n * n, data), (w, n, data_w), (vr, count, data)], info)?;
        submit(state, stream, 6, made, ((work, bytes), (host, host_bytes)))
    }
}
