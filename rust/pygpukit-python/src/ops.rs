//! Elementwise operators: from a Python call to a launch without leaving Rust.
//!
//! What an operator means (its CUDA expression, type rule and NumPy reference) is a row of the Python table. The
//! first call with new types asks Python for a plan and a compiled kernel; every later one finds them here.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use pygpukit_core::command::{Access, Launch, LaunchAttributes, UseRef};
use pygpukit_core::dtype::{DType, Kind};
use pygpukit_core::elementwise::{self, Input, MAX_INPUTS, Packed};
use pygpukit_core::error::Error;
use pygpukit_core::exec::{self, ExecCtx};
use pygpukit_core::kernel::Kernel;
use pygpukit_core::layout::{Layout, broadcast_shapes, show};
use pygpukit_core::plan::PlanCache;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyModule, PyTuple};
use smallvec::SmallVec;

use crate::array::{GPUArray, overlap};
use crate::device::context;
use crate::dtype::{self, DataType};
use crate::errors::{ToPy, raise};
use crate::host_call::{self, Part};
use crate::inside::Inside;
use crate::kernel::PyKernel;
use crate::kernel_call::launch_kernel;
use crate::numpy;
use crate::scalar::Scalar;
use crate::stream::PyStream;

const NO_OUT: u8 = 255;

/// A registered operator.
pub struct Operator {
    id: u16,
    pub name: String,
    pub arity: usize,
    /// The first operand is a condition: of a Python scalar only its truth counts, which no common type may change.
    pub condition: bool,
    /// A power of integers: a negative exponent that the host knows is an error.
    power: bool,
    /// The plan used last: most calls of an operator repeat its types.
    recent: Mutex<Option<Arc<Plan>>>,
}

/// How to run one operator on one combination of types.
struct Plan {
    key: u64,
    common: DType,
    compute: DType,
    out: DType,
    vector: usize,
    threads: u32,
    per_block: i64,
    per_block_nd: i64,
    how: How,
}

/// What runs an operator.
enum How {
    /// Dense and strided entry points.
    Kernels(Arc<Kernel>, Arc<Kernel>),
    /// Python casts and uses the kernels for equal types: there are none for these.
    Casts,
    /// On the CPU device a function of NumPy arrays, which writes into the last one. A ufunc takes scalars of the common
    /// type, other functions Python's.
    Host { function: Py<PyAny>, is_ufunc: bool },
}

/// Combinations of operator and types that keep their plans.
const PLANS_KEPT: usize = 4096;

static OPERATORS: RwLock<Vec<Arc<Operator>>> = RwLock::new(Vec::new());
static PLANS: PlanCache<u64, Arc<Plan>> = PlanCache::new(PLANS_KEPT);
static HOOKS: PyOnceLock<Hooks> = PyOnceLock::new();

/// Python's part: making plans, running a NumPy function part by part or by way of casts, operands that are neither array
/// nor scalar, the positions that `where` of a condition alone gives, and calls with more keywords.
struct Hooks {
    plan: Py<PyAny>,
    panels: Py<PyAny>,
    cast: Py<PyAny>,
    coerce: Py<PyAny>,
    places: Py<PyAny>,
    extended: Py<PyAny>,
}

/// Python's part of calls with keywords that no launch has.
pub fn extended(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    Ok(hooks(py)?.extended.bind(py))
}

fn hooks(py: Python<'_>) -> PyResult<&'static Hooks> {
    HOOKS.get(py).ok_or_else(|| PyRuntimeError::new_err("the operator table is not loaded: import pygpukit first"))
}

/// An operand as it came from Python.
enum Operand<'a, 'py> {
    Array(&'a Bound<'py, GPUArray>),
    Scalar(Scalar),
}

pub fn find(name: &str) -> PyResult<Arc<Operator>> {
    let operators = OPERATORS.read();
    operators
        .iter()
        .find(|o| o.name == name)
        .cloned()
        .ok_or_else(|| PyRuntimeError::new_err(format!("operator '{name}' is not in the table: import pygpukit first")))
}

/// `where` of a condition alone: where it holds.
#[cold]
pub fn places(py: Python<'_>, condition: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let _inside = Inside::enter().py()?;
    Ok(hooks(py)?.places.bind(py).call1((condition,))?.unbind())
}

/// Apply an operator to `args`.
pub fn apply<'py>(
    py: Python<'py>,
    op: &Operator,
    args: &[Bound<'py, PyAny>],
    out: Option<&Bound<'py, GPUArray>>,
    stream: Option<&Bound<'py, PyStream>>,
) -> PyResult<Py<GPUArray>> {
    if args.len() != op.arity {
        return Err(PyTypeError::new_err(format!(
            "{}() takes {} operands but {} were given",
            op.name,
            op.arity,
            args.len()
        )));
    }
    let mut operands: SmallVec<[Operand<'_, 'py>; MAX_INPUTS]> = SmallVec::new();
    let mut first: Option<&GPUArray> = out.map(|o| o.get());
    for arg in args {
        if let Ok(array) = arg.cast_exact::<GPUArray>() {
            first = Some(array.get());
            operands.push(Operand::Array(array));
        } else if let Some(scalar) = Scalar::read(arg)? {
            let is_condition = op.condition && operands.is_empty();
            operands.push(Operand::Scalar(if is_condition { scalar.truth() } else { scalar }));
        } else {
            return coerced(py, op, args, out, stream);
        }
    }
    let Some(first) = first else {
        return of_numbers(py, op, args, stream);
    };
    for (i, operand) in operands.iter().enumerate() {
        if let Operand::Array(array) = operand
            && !std::ptr::eq(array.get().state, first.state)
        {
            return Err(raise(
                "DeviceError",
                format!("{}(): operand {} lives on another device than the others; copy it over first", op.name, i + 1),
            ));
        }
    }
    let mut ctx = crate::device::context_for(py, first.state)?;
    if let Some(stream) = stream {
        ctx = Arc::new(stream.get().context(&ctx)?);
    }
    let plan = plan(py, op, &operands, out, &ctx)?;
    if op.power
        && plan.common.kind() == Kind::Int
        && let Operand::Scalar(Scalar::Int(exponent)) = operands[1]
        && exponent < 0
    {
        return Err(negative_power(exponent));
    }
    let layout = result_layout(&operands, first)?;
    let result = match out {
        Some(out) => {
            check_out(op, out.get(), &layout, first)?;
            let clash = operands.iter().any(|operand| match operand {
                Operand::Array(a) => {
                    let (a, out) = (a.get(), out.get());
                    overlap(a, out) && !(a.ptr() == out.ptr() && a.layout == out.layout && a.dtype == out.dtype)
                }
                Operand::Scalar(_) => false,
            });
            if clash {
                // Part of the result would overwrite operands not read yet: go through a temporary.
                let temporary = Bound::new(py, GPUArray::allocate(&ctx, layout, plan.out).py()?)?;
                run(py, op, &plan, &ctx, &operands, &temporary)?;
                let copy = find("copy")?;
                return apply(py, &copy, &[temporary.into_any()], Some(out), stream);
            }
            out.clone()
        }
        None => Bound::new(py, GPUArray::allocate(&ctx, layout, plan.out).py()?)?,
    };
    run(py, op, &plan, &ctx, &operands, &result)?;
    Ok(result.unbind())
}

#[cold]
fn negative_power(exponent: i128) -> PyErr {
    PyValueError::new_err(format!(
        "pow(): integers to the negative power {exponent} are fractions; convert the base with astype(\"float64\"), or \
         give the exponent as a float"
    ))
}

#[inline]
fn result_layout(operands: &[Operand<'_, '_>], first: &GPUArray) -> PyResult<Layout> {
    let mut shapes: SmallVec<[&[i64]; MAX_INPUTS]> = SmallVec::new();
    for operand in operands {
        if let Operand::Array(array) = operand {
            shapes.push(array.get().layout.shape());
        }
    }
    match shapes.split_first() {
        Some((head, rest)) if rest.iter().all(|s| s == head) => {
            // The usual case: an operand has the very layout of the result.
            if first.layout.is_contiguous() && first.layout.shape() == *head {
                return Ok(first.layout);
            }
            Layout::contiguous(head).py()
        }
        Some(_) => Layout::contiguous(&broadcast_shapes(&shapes).py()?).py(),
        // Only an out= array: fill it.
        None => Layout::contiguous(first.layout.shape()).py(),
    }
}

fn check_out(op: &Operator, out: &GPUArray, layout: &Layout, first: &GPUArray) -> PyResult<()> {
    if !std::ptr::eq(out.state, first.state) {
        return Err(raise("DeviceError", format!("{}(): out lives on another device than the operands", op.name)));
    }
    if out.layout.shape() != layout.shape() {
        return Err(Error::Shape(format!(
            "{}(): the result has shape {}, but out has {}",
            op.name,
            show(layout.shape()),
            show(out.layout.shape())
        )))
        .py();
    }
    if out.layout.may_overlap_itself() {
        return Err(Error::Shape(format!(
            "{}(): out is a broadcast view whose elements share memory; copy it first",
            op.name
        )))
        .py();
    }
    Ok(())
}

#[inline]
fn plan(
    py: Python<'_>,
    op: &Operator,
    operands: &[Operand<'_, '_>],
    out: Option<&Bound<'_, GPUArray>>,
    ctx: &ExecCtx,
) -> PyResult<Arc<Plan>> {
    let mut key = u64::from(op.id) << 48 | u64::from(ctx.state.number & 0xffff) << 32;
    for (i, operand) in operands.iter().enumerate() {
        let code = match operand {
            Operand::Array(array) => array.get().dtype.code(),
            Operand::Scalar(scalar) => scalar.kind().0,
        };
        key |= u64::from(code) << (8 * i);
    }
    key |= u64::from(out.map_or(NO_OUT, |o| o.get().dtype.code())) << 24;
    let mut recent = op.recent.lock();
    if let Some(plan) = recent.as_ref().filter(|plan| plan.key == key) {
        return Ok(plan.clone());
    }
    // Python runs while a plan is made, and may apply this operator.
    drop(recent);
    let plan = match PLANS.get(&key) {
        Some(plan) => plan,
        None => {
            let made = Arc::new(make_plan(py, op, operands, out, ctx, key)?);
            PLANS.insert(key, made.clone());
            made
        }
    };
    recent = op.recent.lock();
    let before = recent.replace(plan.clone());
    drop(recent);
    drop(before);
    Ok(plan)
}

#[cold]
fn make_plan(
    py: Python<'_>,
    op: &Operator,
    operands: &[Operand<'_, '_>],
    out: Option<&Bound<'_, GPUArray>>,
    ctx: &ExecCtx,
    key: u64,
) -> PyResult<Plan> {
    let inputs = operands
        .iter()
        .map(|operand| match operand {
            Operand::Array(array) => Ok(dtype::object(py, array.get().dtype)?.into_any()),
            Operand::Scalar(scalar) => Ok(scalar.kind().1.into_pyobject(py)?.into_any().unbind()),
        })
        .collect::<PyResult<Vec<Py<PyAny>>>>()?;
    let out = out.map(|o| dtype::object(py, o.get().dtype)).transpose()?;
    let device = crate::device::PyDevice { state: ctx.state };
    let _inside = Inside::enter().py()?;
    let made = hooks(py)?.plan.bind(py).call1((&op.name, PyTuple::new(py, inputs)?, out, device))?;
    type Made<'py> = (
        Bound<'py, DataType>,
        Bound<'py, DataType>,
        Bound<'py, DataType>,
        usize,
        (u32, i64, i64),
        Option<(Bound<'py, PyKernel>, Bound<'py, PyKernel>)>,
        Option<(Py<PyAny>, bool)>,
    );
    let (common, compute, out, vector, (threads, per_block, per_block_nd), kernels, host): Made<'_> = made.extract()?;
    let how = match (kernels, host) {
        (Some((dense, nd)), _) => How::Kernels(dense.get().kernel.clone(), nd.get().kernel.clone()),
        (None, Some((function, is_ufunc))) => How::Host { function, is_ufunc },
        (None, None) => How::Casts,
    };
    Ok(Plan {
        key,
        common: common.get().dtype,
        compute: compute.get().dtype,
        out: out.get().dtype,
        vector,
        threads,
        per_block,
        per_block_nd,
        how,
    })
}

#[inline]
fn run<'py>(
    py: Python<'py>,
    op: &Operator,
    plan: &Plan,
    ctx: &ExecCtx,
    operands: &[Operand<'_, 'py>],
    out: &Bound<'py, GPUArray>,
) -> PyResult<()> {
    let target = out.get();
    if target.layout.size() == 0 {
        return Ok(());
    }
    let (dense, nd) = match &plan.how {
        How::Kernels(dense, nd) => (dense, nd),
        How::Host { function, is_ufunc } => {
            return run_on_host(py, plan, function.bind(py), *is_ufunc, ctx, operands, target);
        }
        How::Casts => return run_by_casts(py, op, plan, ctx, operands, out),
    };
    let mut inputs: SmallVec<[Input<'_>; MAX_INPUTS]> = SmallVec::new();
    let mut uses: SmallVec<[UseRef<'_>; MAX_INPUTS + 1]> = SmallVec::new();
    uses.push(target.touched(Access::Write)?);
    for operand in operands {
        inputs.push(match operand {
            Operand::Array(array) => {
                let array = array.get();
                uses.push(array.touched(Access::Read)?);
                Input::Array { ptr: array.ptr(), layout: &array.layout, itemsize: array.dtype.itemsize() }
            }
            Operand::Scalar(scalar) => Input::Scalar(scalar.encode(plan.common, plan.compute)?),
        });
    }
    let shape = elementwise::Shape { compute_size: plan.compute.itemsize(), vector: plan.vector };
    let mut packed = Packed::default();
    elementwise::pack(&mut packed, target.ptr(), &target.layout, target.dtype.itemsize(), &inputs, shape).py()?;
    let (kernel, per_block) = if packed.dense { (dense, plan.per_block) } else { (nd, plan.per_block_nd) };
    let blocks = (packed.n as u64).div_ceil(per_block as u64);
    let work = Launch {
        kernel,
        grid: [blocks as u32, 1, 1],
        block: [plan.threads, 1, 1],
        shared: 0,
        attributes: LaunchAttributes::default(),
        args: packed.args(),
        arrays: &[],
    };
    launch_kernel(py, ctx, &work, &uses)
}

/// Run on the CPU device: the plan's function of NumPy's views.
fn run_on_host<'py>(
    py: Python<'py>,
    plan: &Plan,
    function: &Bound<'py, PyAny>,
    is_ufunc: bool,
    ctx: &ExecCtx,
    operands: &[Operand<'_, 'py>],
    target: &GPUArray,
) -> PyResult<()> {
    let mut uses: SmallVec<[UseRef<'_>; MAX_INPUTS + 1]> = SmallVec::new();
    let mut call: SmallVec<[Part<'_, 'py>; MAX_INPUTS + 3]> = SmallVec::new();
    uses.push(target.touched(Access::Write)?);
    if operands.iter().any(|operand| crosses(operand, target)) {
        call.push(Part::Object(hooks(py)?.panels.bind(py).clone()));
    }
    call.push(Part::Object(function.clone()));
    for operand in operands {
        call.push(match operand {
            Operand::Array(array) => {
                uses.push(array.get().touched(Access::Read)?);
                Part::Array(array.get())
            }
            Operand::Scalar(scalar) => {
                // Refuses what the common type cannot hold, as a kernel launch would.
                let encoded = scalar.encode(plan.common, plan.compute)?;
                Part::Object(if is_ufunc { numpy::scalar(py, encoded, plan.common)? } else { scalar.object(py)? })
            }
        });
    }
    call.push(Part::Array(target));
    host_call::run(py, ctx, &uses, &call)
}

/// Would reading an operand in the order of the result touch another cache line for every element, and more of them than
/// stay in a cache until their other elements are read?
fn crosses(operand: &Operand<'_, '_>, target: &GPUArray) -> bool {
    const LARGE: i64 = 1 << 16;
    let Operand::Array(array) = operand else { return false };
    let layout = &array.get().layout;
    if target.layout.size() < LARGE || layout.shape() != target.layout.shape() {
        return false;
    }
    let Some((last, others)) = layout.strides().split_last() else { return false };
    let (lengths, step) = (layout.shape(), last.abs());
    lengths[others.len()] > 1
        && others.iter().zip(lengths).any(|(stride, n)| *n > 1 && (1..step).contains(&stride.abs()))
}

/// Run by the kernels for equal types.
#[cold]
fn run_by_casts<'py>(
    py: Python<'py>,
    op: &Operator,
    plan: &Plan,
    ctx: &ExecCtx,
    operands: &[Operand<'_, 'py>],
    out: &Bound<'py, GPUArray>,
) -> PyResult<()> {
    let mut inputs = Vec::new();
    for operand in operands {
        inputs.push(match operand {
            Operand::Array(array) => (*array).clone().into_any(),
            Operand::Scalar(scalar) => {
                scalar.encode(plan.common, plan.compute)?;
                scalar.object(py)?
            }
        });
    }
    // The casts and their memory belong to the stream of this call.
    exec::push(ctx.clone());
    let done = hooks(py)?.cast.bind(py).call1((&op.name, PyTuple::new(py, inputs)?, out));
    exec::pop();
    done.map(|_| ())
}

/// Turn NumPy scalars into arrays and try again; anything else is an error that names the way.
#[cold]
fn coerced<'py>(
    py: Python<'py>,
    op: &Operator,
    args: &[Bound<'py, PyAny>],
    out: Option<&Bound<'py, GPUArray>>,
    stream: Option<&Bound<'py, PyStream>>,
) -> PyResult<Py<GPUArray>> {
    let mut converted = Vec::with_capacity(args.len());
    let mut device = None;
    for arg in args.iter().chain(out.map(|o| o.as_any())) {
        if let Ok(array) = arg.cast_exact::<GPUArray>() {
            device = Some(crate::device::PyDevice { state: array.get().state });
        }
    }
    let device = match device {
        Some(device) => device,
        None => crate::device::PyDevice { state: context(py)?.state },
    };
    let device = Bound::new(py, device)?;
    // NumPy's integers are known on the host as Python's are.
    if op.power
        && let [base, exponent] = args
        && let Ok(base) = base.cast_exact::<GPUArray>()
        && matches!(base.get().dtype.kind(), Kind::Int | Kind::UInt | Kind::Bool)
        && base.get().dtype != DType::U64
        && let Ok(exponent) = exponent.extract::<i64>()
        && exponent < 0
    {
        return Err(negative_power(i128::from(exponent)));
    }
    for arg in args {
        if arg.cast_exact::<GPUArray>().is_ok() || Scalar::read(arg)?.is_some() {
            converted.push(arg.clone());
        } else {
            let _inside = Inside::enter().py()?;
            converted.push(hooks(py)?.coerce.bind(py).call1((&op.name, arg, &device))?);
        }
    }
    apply(py, op, &converted, out, stream)
}

/// An operator of Python numbers alone: they become arrays without axes on the current device, as in NumPy.
#[cold]
fn of_numbers<'py>(
    py: Python<'py>,
    op: &Operator,
    args: &[Bound<'py, PyAny>],
    stream: Option<&Bound<'py, PyStream>>,
) -> PyResult<Py<GPUArray>> {
    if op.power
        && let [base, exponent] = args
        && let (Some(Scalar::Int(_) | Scalar::Bool(_)), Some(Scalar::Int(exponent))) =
            (Scalar::read(base)?, Scalar::read(exponent)?)
        && exponent < 0
    {
        return Err(negative_power(exponent));
    }
    let device = Bound::new(py, crate::device::PyDevice { state: context(py)?.state })?;
    let mut arrays = Vec::with_capacity(args.len());
    for arg in args {
        let _inside = Inside::enter().py()?;
        arrays.push(hooks(py)?.coerce.bind(py).call1((&op.name, arg, &device))?);
    }
    apply(py, op, &arrays, None, stream)
}

/// Register a row of the operator table and return its id.
pub fn intern(name: &str, arity: usize) -> PyResult<Arc<Operator>> {
    if arity == 0 || arity > MAX_INPUTS {
        return Err(PyTypeError::new_err(format!(
            "operator '{name}' has {arity} operands; 1 to {MAX_INPUTS} are allowed"
        )));
    }
    let mut operators = OPERATORS.write();
    if let Some(existing) = operators.iter().find(|o| o.name == name) {
        return Ok(existing.clone());
    }
    let operator = Arc::new(Operator {
        id: operators.len() as u16,
        name: name.to_string(),
        arity,
        condition: name == "where",
        power: name == "pow",
        recent: Mutex::new(None),
    });
    operators.push(operator.clone());
    Ok(operator)
}

/// Give Rust the Python side of the operator table.
#[pyfunction]
fn set_operator_hooks(
    py: Python<'_>,
    plan: Py<PyAny>,
    panels: Py<PyAny>,
    cast: Py<PyAny>,
    coerce: Py<PyAny>,
    places: Py<PyAny>,
    extended: Py<PyAny>,
) -> PyResult<()> {
    HOOKS
        .set(py, Hooks { plan, panels, cast, coerce, places, extended })
        .map_err(|_| PyRuntimeError::new_err("the operator hooks are already set"))
}

/// Forget all plans, so that the next call of each operator asks Python again.
#[pyfunction]
fn clear_plans() {
    crate::planned::clear();
    PLANS.clear();
    for operator in OPERATORS.read().iter() {
        let recent = operator.recent.lock().take();
        drop(recent);
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(set_operator_hooks, m)?)?;
    m.add_function(wrap_pyfunction!(clear_plans, m)?)?;
    Ok(())
}
