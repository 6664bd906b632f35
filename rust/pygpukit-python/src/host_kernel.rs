//! Work of the CPU device that the core computes itself, in place of a function over NumPy's views.

use std::ptr;
use std::sync::Arc;

use pygpukit_core::command::{HostFn, HostResult, UseRef};
use pygpukit_core::dtype::DType;
use pygpukit_core::exec::ExecCtx;
use pygpukit_core::launch::run_inline;
use pygpukit_core::philox::{self, Distribution, Fill, Integers, Place};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyModule;
use smallvec::SmallVec;

use crate::array::GPUArray;
use crate::dtype::DataType;
use crate::errors::ToPy;
use crate::host_moves::{self, MoveKernel};
use crate::inside::detached;
use crate::scalar::Scalar;

/// Elements from which on other threads may have the interpreter meanwhile.
const LONG: usize = 1 << 15;

/// What is computed. Its arrays are contiguous.
#[derive(Clone, Copy, Debug)]
pub enum HostKernel {
    /// counter; n, key, offset, stream, a, b.
    Fill { distribution: Distribution, dtype: DType },
    /// counter; n, key, offset, stream, low, last, reject.
    Integers { wide: bool },
    /// Contiguous matrices, written side by side to one whose rows are contiguous.
    Join,
    /// Elements counted, chosen, moved or made.
    Move(MoveKernel),
}

/// A host kernel on its way from a variant to its plan.
#[pyclass(frozen, module = "pygpukit", name = "_HostKernel")]
pub struct PyHostKernel {
    pub kernel: HostKernel,
}

/// Numbers of a call; integers modulo 2^64.
pub struct Numbers<'a>(&'a [Option<Scalar>]);

impl Numbers<'_> {
    pub fn integer(&self, at: usize) -> PyResult<u64> {
        match self.0.get(at) {
            Some(Some(Scalar::Int(x))) => Ok(*x as u64),
            Some(Some(Scalar::Bool(x))) => Ok(u64::from(*x)),
            _ => Err(PyRuntimeError::new_err(format!("a host kernel misses its integer {at}"))),
        }
    }

    pub fn real(&self, at: usize) -> PyResult<f64> {
        match self.0.get(at) {
            Some(Some(Scalar::Float(x))) => Ok(*x),
            Some(Some(Scalar::Int(x))) => Ok(*x as f64),
            Some(Some(Scalar::Bool(x))) => Ok(f64::from(u8::from(*x))),
            _ => Err(PyRuntimeError::new_err(format!("a host kernel misses its number {at}"))),
        }
    }
}

/// What is computed in a call.
pub trait Task: Clone + Send + Sync + 'static {
    /// Elements written, about.
    fn size(&self) -> usize;
    /// # Safety
    /// The memory is there and in the order of the stream.
    unsafe fn run(&self) -> HostResult;
}

/// Rows of matrices one after another: where each matrix is and how long its rows are, in bytes.
#[derive(Clone)]
struct Rows {
    sources: SmallVec<[(u64, usize); 4]>,
    out: u64,
    rows: usize,
    stride: usize,
}

impl Rows {
    fn new(inputs: &[&Bound<'_, GPUArray>], out: &GPUArray) -> PyResult<Rows> {
        let wrong = || PyRuntimeError::new_err("a join takes contiguous matrices of one type and as many rows");
        let ([rows, width], [stride, 1]) = (out.layout.shape(), out.layout.strides()) else { return Err(wrong()) };
        let (item, mut total, mut sources) = (out.dtype.itemsize(), 0, SmallVec::new());
        for array in inputs.iter().map(|array| array.get()) {
            let [n, length] = array.layout.shape() else { return Err(wrong()) };
            if n != rows || array.dtype != out.dtype || !array.layout.is_contiguous() {
                return Err(wrong());
            }
            total += length;
            sources.push((array.ptr(), *length as usize * item));
        }
        if total != *width || (*rows > 1 && *stride < total) {
            return Err(wrong());
        }
        Ok(Rows { sources, out: out.ptr(), rows: *rows as usize, stride: *stride as usize * item })
    }
}

impl Task for Rows {
    fn size(&self) -> usize {
        self.rows * self.sources.iter().map(|source| source.1).sum::<usize>() / 4
    }

    unsafe fn run(&self) -> HostResult {
        for row in 0..self.rows {
            let mut to = self.out as usize + row * self.stride;
            for &(source, bytes) in &self.sources {
                // SAFETY: the caller's contract; `new` has compared the sizes, and a result overlaps no operand.
                unsafe { ptr::copy_nonoverlapping((source as usize + row * bytes) as *const u8, to as *mut u8, bytes) };
                to += bytes;
            }
        }
        Ok(())
    }
}

/// A vector of random numbers: what makes it, from where, and its memory.
#[derive(Clone, Copy)]
struct Draw {
    made: Made,
    place: Place,
    /// Blocks that replays have used are added to the place.
    counter: Option<u64>,
    out: u64,
    n: usize,
    itemsize: usize,
}

#[derive(Clone, Copy)]
enum Made {
    Fill(Fill),
    Integers(Integers),
}

impl Draw {
    fn new(made: Made, inputs: &[&Bound<'_, GPUArray>], numbers: &Numbers<'_>, out: &GPUArray) -> PyResult<Draw> {
        let [counter] = inputs else {
            return Err(PyRuntimeError::new_err("a host kernel that draws takes a counter"));
        };
        let stream = numbers.integer(3)? as u32;
        Ok(Draw {
            made,
            place: Place { key: numbers.integer(1)?, block: numbers.integer(2)?, attempt: 0, stream },
            counter: (stream & 1 != 0).then(|| counter.get().ptr()),
            out: out.ptr(),
            n: out.layout.size() as usize,
            itemsize: out.dtype.itemsize(),
        })
    }
}

impl Task for Draw {
    fn size(&self) -> usize {
        self.n
    }

    unsafe fn run(&self) -> HostResult {
        let mut place = self.place;
        // SAFETY: the caller's contract; a counter is an integer of 64 bits.
        unsafe {
            if let Some(counter) = self.counter {
                place.block = place.block.wrapping_add((counter as *const u64).read_unaligned());
            }
            match self.made {
                Made::Fill(fill) => fill.write(place, self.out as *mut u8, self.n),
                Made::Integers(integers) => integers.write(place, self.out as *mut u8, self.n, self.itemsize),
            }
        }
        Ok(())
    }
}

/// Submit a host kernel: it runs before this returns where the stream runs work at once.
pub fn run(
    py: Python<'_>,
    ctx: &ExecCtx,
    uses: &[UseRef<'_>],
    kernel: HostKernel,
    inputs: &[&Bound<'_, GPUArray>],
    numbers: &[Option<Scalar>],
    results: &[Bound<'_, GPUArray>],
) -> PyResult<()> {
    let [out] = results else { return Err(PyRuntimeError::new_err("a host kernel gives one result")) };
    let (numbers, out) = (Numbers(numbers), out.get());
    match kernel {
        HostKernel::Fill { distribution, dtype } => {
            let fill = Fill { distribution, dtype, a: numbers.real(4)?, b: numbers.real(5)? };
            submit(py, ctx, uses, Draw::new(Made::Fill(fill), inputs, &numbers, out)?)
        }
        HostKernel::Integers { wide } => {
            let [low, last, reject] = [numbers.integer(4)?, numbers.integer(5)?, numbers.integer(6)?];
            let integers = Integers { low, last, reject, wide };
            submit(py, ctx, uses, Draw::new(Made::Integers(integers), inputs, &numbers, out)?)
        }
        HostKernel::Join => submit(py, ctx, uses, Rows::new(inputs, out)?),
        HostKernel::Move(kernel) => host_moves::run(py, ctx, uses, kernel, inputs, &numbers, out),
    }
}

/// Submit a task: it runs before this returns where the stream runs work at once.
pub fn submit(py: Python<'_>, ctx: &ExecCtx, uses: &[UseRef<'_>], task: impl Task) -> PyResult<()> {
    let at_once = task.size() < LONG || ctx.recorder.is_some();
    let again = task.clone();
    // SAFETY: the uses of the submission keep the memory and its order.
    let mut now = move || -> HostResult { unsafe { task.run() } };
    let later = move || -> HostFn { Arc::new(move || unsafe { again.run() }) };
    if at_once {
        run_inline(ctx, uses, &mut now, later).py()
    } else {
        detached(py, || run_inline(ctx, uses, &mut now, later))
    }
}

/// Make the host kernel of random numbers of a distribution.
#[pyfunction]
fn host_fill(distribution: &str, kind: &Bound<'_, DataType>) -> PyResult<PyHostKernel> {
    let dtype = kind.get().dtype;
    match Distribution::from_name(distribution) {
        Some(distribution) if Fill::gives(dtype) => {
            Ok(PyHostKernel { kernel: HostKernel::Fill { distribution, dtype } })
        }
        _ => Err(PyValueError::new_err(format!("no host kernel draws {distribution} in {}", dtype.name()))),
    }
}

/// Make the host kernel of random integers.
#[pyfunction]
fn host_integers(wide: bool) -> PyHostKernel {
    PyHostKernel { kernel: HostKernel::Integers { wide } }
}

/// Make the host kernel that writes matrices side by side.
#[pyfunction]
fn host_join() -> PyHostKernel {
    PyHostKernel { kernel: HostKernel::Join }
}

/// Write the words of Philox blocks (uint64) to an array of twice as many uint64.
#[pyfunction]
fn philox_words(
    py: Python<'_>,
    key: u64,
    blocks: PyBuffer<u64>,
    attempt: u32,
    stream: u32,
    out: PyBuffer<u64>,
) -> PyResult<()> {
    let fits = out.item_count() == 2 * blocks.item_count() && !out.readonly();
    if !fits || !blocks.is_c_contiguous() || !out.is_c_contiguous() {
        return Err(PyValueError::new_err("philox_words() takes contiguous uint64 arrays, the result twice as long"));
    }
    let count = blocks.item_count();
    let (from, to) = (blocks.buf_ptr() as usize, out.buf_ptr() as usize);
    if count == 0 {
        return Ok(());
    }
    let write = move || {
        // SAFETY: the buffers hold as many integers for as long as they are borrowed, and are separate arrays.
        let (from, to) = unsafe {
            (
                std::slice::from_raw_parts(from as *const u64, count),
                std::slice::from_raw_parts_mut(to as *mut [u64; 2], count),
            )
        };
        philox::words(key, from, attempt, stream, to);
        Ok(())
    };
    if count < LONG { write().py() } else { detached(py, write) }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyHostKernel>()?;
    m.add_function(wrap_pyfunction!(host_fill, m)?)?;
    m.add_function(wrap_pyfunction!(host_integers, m)?)?;
    m.add_function(wrap_pyfunction!(host_join, m)?)?;
    m.add_function(wrap_pyfunction!(philox_words, m)?)?;
    host_moves::register(m)
}
