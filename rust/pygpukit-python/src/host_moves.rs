//! Host kernels that count, choose, move and make elements (`pygpukit_core::moves`), and transposed copies for NumPy's views.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pygpukit_core::command::{Access, HostResult, UseRef};
use pygpukit_core::dtype::{DType, Kind};
use pygpukit_core::error::Error;
use pygpukit_core::exec::ExecCtx;
use pygpukit_core::layout::show;
use pygpukit_core::moves::{self, Mode, Range, Transpose, Window};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyModule;

use crate::array::GPUArray;
use crate::device::context_for;
use crate::dtype::DataType;
use crate::errors::{ToPy, check_signals};
use crate::host_kernel::{HostKernel, Numbers, PyHostKernel, Task, submit};
use crate::inside::{detached, released};
use crate::stream::refuse_in_capture;

/// What is done. Results and masks are contiguous.
#[derive(Clone, Copy, Debug)]
pub enum MoveKernel {
    /// An array of any device; n, start, step, span (not used), last.
    Range { kind: RangeKind, last: bool },
    /// x, and the constants of its sides where the mode has them; before each axis, after each axis.
    Window(Mode),
    /// x of the shape of the mask, contiguous, and the mask; their number.
    Take,
    /// The mask; their number.
    Places,
}

#[derive(Clone, Copy, Debug)]
pub enum RangeKind {
    Integer,
    F32,
    F64,
}

#[derive(Clone)]
struct WriteRange {
    range: Range,
    out: u64,
    n: usize,
    item: usize,
}

impl Task for WriteRange {
    fn size(&self) -> usize {
        self.n
    }

    unsafe fn run(&self) -> HostResult {
        // SAFETY: the result has as many elements.
        unsafe { self.range.write(self.out as *mut u8, self.n, self.item) };
        Ok(())
    }
}

#[derive(Clone)]
struct WriteWindow {
    window: Window,
    x: u64,
    value: u64,
    out: u64,
}

impl Task for WriteWindow {
    fn size(&self) -> usize {
        self.window.shape.iter().product::<i64>() as usize
    }

    unsafe fn run(&self) -> HostResult {
        // SAFETY: `windowed` has compared the sizes, and a result overlaps no operand.
        unsafe { self.window.write(self.x as *const u8, self.value as *const u8, self.out as *mut u8) };
        Ok(())
    }
}

/// Elements of a mask: those of x, or their places.
#[derive(Clone)]
struct Choose {
    mask: Arc<GPUArrayParts>,
    x: Option<(u64, usize)>,
    out: u64,
    most: usize,
}

/// Address and shape of a contiguous array.
struct GPUArrayParts {
    ptr: u64,
    shape: Box<[i64]>,
}

impl Task for Choose {
    fn size(&self) -> usize {
        self.mask.shape.iter().product::<i64>() as usize
    }

    unsafe fn run(&self) -> HostResult {
        let (mask, n) = (self.mask.ptr as *const u8, self.size());
        // SAFETY: `chosen` has compared the sizes, and a result overlaps no operand.
        let found = unsafe {
            match self.x {
                Some((x, item)) => moves::take(x as *const u8, mask, n, item, self.out as *mut u8, self.most),
                None => moves::places(mask, &self.mask.shape, self.out as *mut i64, self.most),
            }
        };
        if found == self.most {
            return Ok(());
        }
        Err(format!(
            "a mask names {found} elements, and {} when they were counted: do not write to it between",
            self.most
        ))
    }
}

#[derive(Clone)]
struct Count {
    mask: u64,
    n: usize,
    found: Arc<AtomicUsize>,
    done: Arc<AtomicBool>,
}

impl Task for Count {
    fn size(&self) -> usize {
        // Counting takes a fraction of the time of moving.
        self.n / 16
    }

    unsafe fn run(&self) -> HostResult {
        // SAFETY: the mask has as many elements.
        self.found.store(unsafe { moves::count(self.mask as *const u8, self.n) }, Ordering::Relaxed);
        self.done.store(true, Ordering::Release);
        Ok(())
    }
}

fn wrong(what: &str) -> PyErr {
    PyRuntimeError::new_err(format!("a host kernel takes {what}"))
}

/// Submit such a kernel.
pub fn run(
    py: Python<'_>,
    ctx: &ExecCtx,
    uses: &[UseRef<'_>],
    kernel: MoveKernel,
    inputs: &[&Bound<'_, GPUArray>],
    numbers: &Numbers<'_>,
    out: &GPUArray,
) -> PyResult<()> {
    if !out.layout.is_contiguous() {
        return Err(wrong("a contiguous result"));
    }
    match kernel {
        MoveKernel::Range { kind, last } => submit(py, ctx, uses, range(kind, last, numbers, out)?),
        MoveKernel::Window(mode) => submit(py, ctx, uses, windowed(mode, inputs, numbers, out)?),
        MoveKernel::Take => {
            let [x, mask] = inputs else { return Err(wrong("an array and its mask")) };
            let x = x.get();
            if x.layout.shape() != mask.get().layout.shape() || x.dtype != out.dtype || !x.layout.is_contiguous() {
                return Err(wrong("a contiguous array of the shape of its mask"));
            }
            submit(py, ctx, uses, chosen(mask.get(), Some((x.ptr(), x.dtype.itemsize())), out, out.layout.size())?)
        }
        MoveKernel::Places => {
            let [mask] = inputs else { return Err(wrong("a mask")) };
            let [axes, most] = out.layout.shape() else { return Err(wrong("a result with a row per axis")) };
            if *axes as usize != mask.get().layout.ndim() || out.dtype != DType::I64 {
                return Err(wrong("a result of int64 with a row per axis"));
            }
            submit(py, ctx, uses, chosen(mask.get(), None, out, *most)?)
        }
    }
}

fn range(kind: RangeKind, last: bool, numbers: &Numbers<'_>, out: &GPUArray) -> PyResult<WriteRange> {
    let range = match kind {
        RangeKind::Integer => Range::Integer { start: numbers.integer(1)? as i64, step: numbers.integer(2)? as i64 },
        RangeKind::F32 => {
            let [start, step, end] = [numbers.real(1)?, numbers.real(2)?, numbers.real(4)?].map(|x| x as f32);
            Range::F32 { start, step, last: last.then_some(end) }
        }
        RangeKind::F64 => {
            let [start, step, end] = [numbers.real(1)?, numbers.real(2)?, numbers.real(4)?];
            Range::F64 { start, step, last: last.then_some(end) }
        }
    };
    Ok(WriteRange { range, out: out.ptr(), n: out.layout.size() as usize, item: out.dtype.itemsize() })
}

fn windowed(
    mode: Mode,
    inputs: &[&Bound<'_, GPUArray>],
    numbers: &Numbers<'_>,
    out: &GPUArray,
) -> PyResult<WriteWindow> {
    let (x, value) = match inputs {
        [x] if mode != Mode::Constant => (x.get(), None),
        [x, value] if mode == Mode::Constant => (x.get(), Some(value.get())),
        _ => return Err(wrong("an array, and constants in that mode only")),
    };
    let (d, item) = (x.layout.ndim(), x.dtype.itemsize());
    let before = (0..d).map(|axis| numbers.integer(axis).map(|n| n as i64)).collect::<PyResult<_>>()?;
    let fits = value.is_none_or(|v| v.layout.size() == 2 * d as i64 && v.layout.is_contiguous() && v.dtype == x.dtype);
    if out.layout.ndim() != d || out.dtype != x.dtype || !fits {
        return Err(wrong("arrays of one type and as many axes, and two constants for each"));
    }
    if mode != Mode::Constant && x.layout.size() == 0 {
        return Err(Error::Shape(format!("an array of shape {} has no edges", show(x.layout.shape())))).py();
    }
    let window = Window {
        mode,
        shape: out.layout.shape().into(),
        extent: x.layout.shape().into(),
        strides: x.layout.strides().iter().map(|stride| stride * item as i64).collect(),
        before,
        item,
    };
    Ok(WriteWindow { window, x: x.ptr(), value: value.map_or(0, GPUArray::ptr), out: out.ptr() })
}

fn chosen(mask: &GPUArray, x: Option<(u64, usize)>, out: &GPUArray, most: i64) -> PyResult<Choose> {
    if mask.dtype.kind() != Kind::Bool || !mask.layout.is_contiguous() {
        return Err(wrong("a contiguous mask"));
    }
    let mask = GPUArrayParts { ptr: mask.ptr(), shape: mask.layout.shape().into() };
    Ok(Choose { mask: Arc::new(mask), x, out: out.ptr(), most: most as usize })
}

/// How many elements of a contiguous mask on the CPU device are True; waits for it.
#[pyfunction]
fn count_chosen(py: Python<'_>, mask: &Bound<'_, GPUArray>) -> PyResult<usize> {
    refuse_in_capture("read how many elements a mask names")?;
    let mask = mask.get();
    if mask.dtype.kind() != Kind::Bool || !mask.layout.is_contiguous() || mask.state.uses_kernels() {
        return Err(wrong("a contiguous mask of the CPU device"));
    }
    let ctx = context_for(py, mask.state)?;
    let (found, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let n = mask.layout.size() as usize;
    if n == 0 {
        return Ok(0);
    }
    let task = Count { mask: mask.ptr(), n, found: found.clone(), done: done.clone() };
    submit(py, &ctx, &[mask.touched(Access::Read)?], task)?;
    if !done.load(Ordering::Acquire) {
        detached(py, || ctx.stream.synchronize(&mut check_signals))?;
    }
    Ok(found.load(Ordering::Relaxed))
}

/// Copy a buffer into another of the same shape, by tiles: for arrays whose neighbours in memory lie along different axes.
#[pyfunction]
fn copy_transposed(py: Python<'_>, source: &Bound<'_, PyAny>, target: &Bound<'_, PyAny>) -> PyResult<()> {
    let (from, to) = (PyUntypedBuffer::get(source)?, PyUntypedBuffer::get(target)?);
    if from.shape() != to.shape() || from.item_size() != to.item_size() || to.readonly() {
        return Err(PyValueError::new_err("copy_transposed() takes buffers of one shape, the second to be written"));
    }
    let copy = Transpose::new(from.shape(), from.strides(), to.strides(), from.item_size());
    let (source, target) = (from.buf_ptr() as usize, to.buf_ptr() as usize);
    // SAFETY: the buffers are held until the end of this function, and belong to separate arrays.
    released(py, || unsafe { copy.copy(source as *const u8, target as *mut u8) });
    Ok(())
}

fn made(kernel: MoveKernel) -> PyHostKernel {
    PyHostKernel { kernel: HostKernel::Move(kernel) }
}

/// Make the host kernel of ranges of a type; None where the core does not compute them.
#[pyfunction]
fn host_range(kind: &Bound<'_, DataType>, compute: &str, last: bool) -> Option<PyHostKernel> {
    let kind = match (kind.get().dtype, compute) {
        (dtype, "i64") if matches!(dtype.kind(), Kind::Int | Kind::UInt) && !last => RangeKind::Integer,
        (DType::F32, "f32") => RangeKind::F32,
        (DType::F64, "f64") => RangeKind::F64,
        _ => return None,
    };
    Some(made(MoveKernel::Range { kind, last }))
}

/// Make the host kernel of windows that go on by a mode.
#[pyfunction]
fn host_window(mode: &str) -> PyResult<PyHostKernel> {
    let found = Mode::from_name(mode);
    let found = found.ok_or_else(|| PyValueError::new_err(format!("a window does not go on by '{mode}'")))?;
    Ok(made(MoveKernel::Window(found)))
}

/// Make the host kernel of the elements that a mask names.
#[pyfunction]
fn host_take() -> PyHostKernel {
    made(MoveKernel::Take)
}

/// Make the host kernel of the places that a mask names.
#[pyfunction]
fn host_places() -> PyHostKernel {
    made(MoveKernel::Places)
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(count_chosen, m)?)?;
    m.add_function(wrap_pyfunction!(copy_transposed, m)?)?;
    m.add_function(wrap_pyfunction!(host_range, m)?)?;
    m.add_function(wrap_pyfunction!(host_window, m)?)?;
    m.add_function(wrap_pyfunction!(host_take, m)?)?;
    m.add_function(wrap_pyfunction!(host_places, m)?)
}
