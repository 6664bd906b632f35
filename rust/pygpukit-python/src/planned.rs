//! Operators of the registry: from a Python call to the launches of a plan without leaving Rust.
//!
//! Python describes an operator's parameters once (`planned_operator`). The first call of a class of arguments asks Python
//! for a plan; later ones find it here and evaluate it for their sizes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::{Mutex, RwLock};
use pygpukit_core::command::{Access, ArgTag, UseRef};
use pygpukit_core::error::Error;
use pygpukit_core::exec::{self, ExecCtx};
use pygpukit_core::layout::{Layout, MAX_NDIM, show};
use pygpukit_core::plan::{Encoded, PlanCache, PlanOperand, Values};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyFloat, PyInt, PyModule, PyString, PyTuple};
use smallvec::SmallVec;

use crate::array::{GPUArray, overlap};
use crate::device::{PyDevice, context_for};
use crate::dtype::DataType;
use crate::errors::{ToPy, check_signals, raise};
use crate::host_call::{self, Part};
use crate::host_kernel;
use crate::inside::{Inside, detached};
use crate::ops;
use crate::plan_object::{Body, Plan, PyLaunchPlan};
use crate::scalar::Scalar;
use crate::stream::PyStream;

/// Classes of arguments that keep their plans, and plans of one class (its sizes may need several).
const CLASSES: usize = 2048;
const PLANS_PER_CLASS: usize = 32;

type Key = SmallVec<[u8; 96]>;
type Plans = SmallVec<[Arc<Plan>; 1]>;

static PLANS: PlanCache<Key, Arc<RwLock<Plans>>> = PlanCache::new(CLASSES);
static HOOKS: PyOnceLock<Hooks> = PyOnceLock::new();

/// How often all plans were forgotten; a part of every key.
static EPOCH: AtomicU32 = AtomicU32::new(0);

/// Python's part: making plans, options of types not known here, and lists and numbers in place of arrays.
struct Hooks {
    plan: Py<PyAny>,
    normalise: Py<PyAny>,
    operand: Py<PyAny>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Array,
    OptionalArray,
    /// A Python number that is passed to kernels; integers are variables of plans too.
    Number,
    /// Part of the class of arguments: another value is another plan.
    Choice,
}

struct Param {
    name: Py<PyString>,
    text: String,
    takes: Takes,
    /// None for a parameter without a default.
    default: Option<Py<PyAny>>,
    keyword_only: bool,
}

/// What the built-in function of an operator carries as its self.
pub struct PlannedOperator {
    id: u32,
    pub name: String,
    params: Vec<Param>,
    /// Kernels read an element of every operand before they write that element of a result: `out` may be an operand.
    in_place: bool,
    /// The class and the plan used last: most calls repeat them.
    recent: Mutex<Option<(Key, Arc<Plan>)>>,
}

/// Arguments of a call, one per parameter.
type Given<'py> = SmallVec<[Bound<'py, PyAny>; 12]>;

impl PlannedOperator {
    /// Bind positional and named arguments, as Python does for a function with these parameters.
    #[inline]
    fn bind<'py>(
        &self,
        py: Python<'py>,
        positional: &[Bound<'py, PyAny>],
        named: &[(Bound<'py, PyAny>, Bound<'py, PyAny>)],
    ) -> PyResult<Arguments<'py>> {
        let allowed = self.params.iter().take_while(|p| !p.keyword_only).count();
        if named.is_empty() && positional.len() <= allowed {
            let mut values: Given<'py> = positional.iter().cloned().collect();
            for param in &self.params[positional.len()..] {
                values.push(param.default.as_ref().ok_or_else(|| self.missing(param))?.bind(py).clone());
            }
            return Ok(Arguments { values, out: None, stream: None });
        }
        if positional.len() > allowed {
            return Err(PyTypeError::new_err(format!(
                "{}() takes {allowed} positional arguments but {} were given",
                self.name,
                positional.len()
            )));
        }
        let mut given: SmallVec<[Option<Bound<'py, PyAny>>; 12]> = SmallVec::new();
        given.extend(positional.iter().map(|value| Some(value.clone())));
        given.resize(self.params.len(), None);
        let (mut out, mut stream) = (None, None);
        for (name, value) in named {
            let slot = self.params.iter().position(|p| p.name.as_ptr() == name.as_ptr());
            let slot = match slot {
                Some(slot) => Some(slot),
                None => {
                    let text = name.cast::<PyString>()?.to_cow()?;
                    match &*text {
                        "out" => {
                            out = (!value.is_none()).then(|| value.clone());
                            continue;
                        }
                        "stream" => {
                            stream = if value.is_none() { None } else { Some(value.cast::<PyStream>()?.clone()) };
                            continue;
                        }
                        text => self.params.iter().position(|p| p.text == text),
                    }
                }
            };
            let Some(slot) = slot else {
                return Err(PyTypeError::new_err(format!(
                    "{}() got an unexpected keyword argument '{name}'",
                    self.name
                )));
            };
            if given[slot].is_some() {
                return Err(PyTypeError::new_err(format!("{}() got multiple values for argument '{name}'", self.name)));
            }
            given[slot] = Some(value.clone());
        }
        let mut values = Given::new();
        for (value, param) in given.into_iter().zip(&self.params) {
            values.push(match (value, &param.default) {
                (Some(value), _) => value,
                (None, Some(default)) => default.bind(py).clone(),
                (None, None) => return Err(self.missing(param)),
            });
        }
        Ok(Arguments { values, out, stream })
    }

    #[cold]
    fn missing(&self, param: &Param) -> PyErr {
        PyTypeError::new_err(format!("{}() missing required argument '{}'", self.name, param.text))
    }
}

struct Arguments<'py> {
    values: Given<'py>,
    out: Option<Bound<'py, PyAny>>,
    stream: Option<Bound<'py, PyStream>>,
}

/// What a call's class and sizes are read from.
#[derive(Default)]
struct Call<'a, 'py> {
    arrays: SmallVec<[&'a Bound<'py, GPUArray>; 8]>,
    numbers: SmallVec<[Option<Scalar>; 4]>,
    key: Key,
    variables: SmallVec<[i64; 48]>,
}

/// Append what tells one option from another; false for a type that Python has to normalise.
fn push_choice(key: &mut Key, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    if value.is_none() {
        key.push(1);
    } else if let Ok(x) = value.cast_exact::<PyBool>() {
        key.push(2 + u8::from(x.is_true()));
    } else if value.cast_exact::<PyInt>().is_ok() {
        let Ok(x) = value.extract::<i64>() else { return Ok(false) };
        key.push(4);
        key.extend_from_slice(&x.to_le_bytes());
    } else if let Ok(x) = value.cast_exact::<PyFloat>() {
        key.push(5);
        key.extend_from_slice(&x.value().to_le_bytes());
    } else if let Ok(x) = value.cast_exact::<PyString>() {
        let text = x.to_cow()?;
        key.push(6);
        key.extend_from_slice(&(text.len() as u32).to_le_bytes());
        key.extend_from_slice(text.as_bytes());
    } else if let Ok(x) = value.cast_exact::<DataType>() {
        key.extend_from_slice(&[7, x.get().dtype.code()]);
    } else if let Ok(x) = value.cast_exact::<PyTuple>() {
        key.push(8);
        key.extend_from_slice(&(x.len() as u32).to_le_bytes());
        for item in x.iter_borrowed() {
            if !push_choice(key, &item)? {
                return Ok(false);
            }
        }
    } else {
        return Ok(false);
    }
    Ok(true)
}

fn hooks(py: Python<'_>) -> PyResult<&'static Hooks> {
    HOOKS.get(py).ok_or_else(|| PyRuntimeError::new_err("the registry is not loaded: import pygpukit first"))
}

/// Shape, strides and alignment as the variables of a plan.
#[inline]
fn push_array(call: &mut Call<'_, '_>, array: &GPUArray) {
    call.key.extend_from_slice(&[array.dtype.code(), array.layout.ndim() as u8]);
    call.variables.extend_from_slice(array.layout.shape());
    call.variables.extend_from_slice(array.layout.strides());
    call.variables.push(1 << array.ptr().trailing_zeros().min(8));
}

/// Run a registered operator.
pub fn call<'py>(
    py: Python<'py>,
    op: &PlannedOperator,
    positional: &[Bound<'py, PyAny>],
    named: &[(Bound<'py, PyAny>, Bound<'py, PyAny>)],
) -> PyResult<Py<PyAny>> {
    let mut arguments = op.bind(py, positional, named)?;
    if let Some(result) = run(py, op, &arguments)? {
        return Ok(result);
    }
    make_known(py, op, &mut arguments)?;
    match run(py, op, &arguments)? {
        Some(result) => Ok(result),
        None => Err(unknown(op, &arguments)),
    }
}

/// Replaces arguments that are not read here, such as lists and NumPy arrays, by arguments that are.
#[cold]
fn make_known<'py>(py: Python<'py>, op: &PlannedOperator, arguments: &mut Arguments<'py>) -> PyResult<()> {
    let mut others = false;
    for (param, value) in op.params.iter().zip(arguments.values.iter_mut()) {
        let known = match param.takes {
            Takes::Choice => push_choice(&mut Key::new(), value)?,
            Takes::Number => value.is_none() || Scalar::read(value)?.is_some(),
            Takes::Array | Takes::OptionalArray => {
                others |= value.cast_exact::<GPUArray>().is_err() && (param.takes == Takes::Array || !value.is_none());
                true
            }
        };
        if !known {
            *value = hooks(py)?.normalise.bind(py).call1((&op.name, &param.text, &*value))?;
        }
    }
    if others { make_arrays(py, op, arguments) } else { Ok(()) }
}

/// The error of an argument that nothing makes known.
#[cold]
fn unknown(op: &PlannedOperator, arguments: &Arguments<'_>) -> PyErr {
    for (param, value) in op.params.iter().zip(&arguments.values) {
        let text = match param.takes {
            Takes::Array | Takes::OptionalArray => {
                let missing = param.takes == Takes::OptionalArray && value.is_none();
                (!missing && value.cast_exact::<GPUArray>().is_err()).then(|| "must be a GPUArray".to_string())
            }
            Takes::Number => None,
            Takes::Choice => (!push_choice(&mut Key::new(), value).unwrap_or(false)).then(|| {
                let kind = value.get_type().name().map_or_else(|_| "object".into(), |name| name.to_string());
                format!("must not be of type {kind}")
            }),
        };
        if let Some(text) = text {
            return PyTypeError::new_err(format!("{}(): '{}' {text}", op.name, param.text));
        }
    }
    PyTypeError::new_err(format!("{}(): an argument has an unknown type", op.name))
}

/// Lists and numbers in place of arrays become arrays, on the device of the arrays beside them.
#[cold]
fn make_arrays<'py>(py: Python<'py>, op: &PlannedOperator, arguments: &mut Arguments<'py>) -> PyResult<()> {
    let given = arguments.values.iter().find_map(|v| v.cast_exact::<GPUArray>().ok());
    let device = given.map(|array| PyDevice { state: array.get().state });
    let device = device.map(|d| Bound::new(py, d)).transpose()?;
    for (param, value) in op.params.iter().zip(arguments.values.iter_mut()) {
        let wanted = match param.takes {
            Takes::Array => true,
            Takes::OptionalArray => !value.is_none(),
            Takes::Number | Takes::Choice => false,
        };
        if wanted && value.cast_exact::<GPUArray>().is_err() {
            *value = hooks(py)?.operand.bind(py).call1((&op.name, &param.text, &*value, &device))?;
        }
    }
    Ok(())
}

/// None where an argument has a type that has to be made known first.
fn run<'py>(py: Python<'py>, op: &PlannedOperator, arguments: &Arguments<'py>) -> PyResult<Option<Py<PyAny>>> {
    let mut call = Call::default();
    call.key.extend_from_slice(&(op.id | EPOCH.load(Ordering::Relaxed) << 16).to_le_bytes());
    for (param, value) in op.params.iter().zip(&arguments.values) {
        match param.takes {
            Takes::Array | Takes::OptionalArray => {
                if let Ok(array) = value.cast_exact::<GPUArray>() {
                    push_array(&mut call, array.get());
                    call.arrays.push(array);
                } else if param.takes == Takes::OptionalArray && value.is_none() {
                    call.key.push(255);
                } else {
                    return Ok(None);
                }
            }
            Takes::Number => {
                let scalar = Scalar::read(value)?;
                if scalar.is_none() && !value.is_none() {
                    return Ok(None);
                }
                call.key.push(scalar.map_or(1, |s| s.kind().0));
                call.numbers.push(scalar);
            }
            Takes::Choice => {
                if !push_choice(&mut call.key, value)? {
                    return Ok(None);
                }
            }
        }
    }
    let Some(first) = call.arrays.first().map(|a| a.get()) else {
        return Err(PyTypeError::new_err(format!("{}() needs at least one GPUArray", op.name)));
    };
    let given_outputs = read_outputs(op, arguments.out.as_ref())?;
    let others = call.arrays.iter().map(|a| a.get()).chain(given_outputs.iter().map(|a| a.get()));
    if others.clone().any(|a| !std::ptr::eq(a.state, first.state)) {
        let text = format!("{}(): the arrays live on different devices; copy one over first", op.name);
        return Err(raise("DeviceError", text));
    }
    let mut ctx = context_for(py, first.state)?;
    if let Some(stream) = &arguments.stream {
        ctx = Arc::new(stream.get().context(&ctx)?);
    }
    // Kernels write their results while they read their operands: where the two share memory, others take their place.
    let mut targets = given_outputs.clone();
    let in_place = op.in_place && ctx.state.uses_kernels();
    let clashes = |a: &GPUArray, out: &GPUArray| {
        overlap(a, out) && !(in_place && a.ptr() == out.ptr() && a.layout == out.layout && a.dtype == out.dtype)
    };
    for target in &mut targets {
        if call.arrays.iter().any(|a| clashes(a.get(), target.get())) {
            let out = target.get();
            let layout = Layout::contiguous(out.layout.shape()).py()?;
            *target = Bound::new(py, GPUArray::allocate(&ctx, layout, out.dtype).py()?)?;
        }
    }
    call.key.push(targets.len() as u8);
    for array in &targets {
        push_array(&mut call, array.get());
    }
    call.key.extend_from_slice(&ctx.state.number.to_le_bytes());
    call.key.push(ctx.determinism() as u8);
    for number in &call.numbers {
        call.variables.push(match number {
            Some(Scalar::Int(x)) => i64::try_from(*x).unwrap_or(i64::MAX),
            Some(Scalar::Bool(x)) => i64::from(*x),
            _ => 0,
        });
    }
    call.variables.push(i64::from(ctx.stream.lane().sm_count()));
    let mut values = Values::new();
    let plan = match find(op, &call, &mut values) {
        Some(plan) => plan,
        None => make(py, op, arguments, &call, &targets, &ctx, &mut values)?,
    };
    execute(py, op, arguments, &call, (&given_outputs, &targets), &ctx, &plan, &values).map(Some)
}

fn read_outputs<'py>(
    op: &PlannedOperator,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<SmallVec<[Bound<'py, GPUArray>; 2]>> {
    let wrong = |value: &Bound<'py, PyAny>| {
        let kind = value.get_type().name().map_or_else(|_| "object".into(), |n| n.to_string());
        PyTypeError::new_err(format!("{}(): out must be a GPUArray, not {kind}", op.name))
    };
    let Some(out) = out else { return Ok(SmallVec::new()) };
    if let Ok(array) = out.cast_exact::<GPUArray>() {
        return Ok(smallvec::smallvec![array.clone()]);
    }
    let Ok(tuple) = out.cast::<PyTuple>() else { return Err(wrong(out)) };
    tuple.iter().map(|item| item.cast_into_exact::<GPUArray>().map_err(|e| wrong(&e.into_inner()))).collect()
}

/// The plan of this class whose guards hold for the call; `values` are then its nodes.
#[inline]
fn find(op: &PlannedOperator, call: &Call<'_, '_>, values: &mut Values) -> Option<Arc<Plan>> {
    if let Some((key, plan)) = &*op.recent.lock()
        && *key == call.key
        && plan.launch.program.run(&call.variables, values)
    {
        return Some(plan.clone());
    }
    let class = PLANS.get(&call.key[..])?;
    let plans = class.read();
    let plan = plans.iter().find(|plan| plan.launch.program.run(&call.variables, values)).cloned()?;
    drop(plans);
    let before = op.recent.lock().replace((call.key.clone(), plan.clone()));
    drop(before);
    Some(plan)
}

#[cold]
fn make<'py>(
    py: Python<'py>,
    op: &PlannedOperator,
    arguments: &Arguments<'py>,
    call: &Call<'_, 'py>,
    outputs: &[Bound<'py, GPUArray>],
    ctx: &ExecCtx,
    values: &mut Values,
) -> PyResult<Arc<Plan>> {
    let device = PyDevice { state: ctx.state };
    let sms = ctx.stream.lane().sm_count();
    let _inside = Inside::enter().py()?;
    let given = PyTuple::new(py, &arguments.values)?;
    let outputs = PyTuple::new(py, outputs)?;
    let level = ctx.determinism().name();
    let made = hooks(py)?.plan.bind(py).call1((&op.name, given, outputs, device, sms, level))?;
    let plan = made.cast_into::<PyLaunchPlan>()?.get().plan.clone();
    if !plan.launch.program.run(&call.variables, values) {
        return Err(PyRuntimeError::new_err(format!(
            "{}(): the new plan does not hold for the call it was made for; please report this",
            op.name
        )));
    }
    let class = match PLANS.get(&call.key[..]) {
        Some(class) => class,
        None => {
            let class = Arc::new(RwLock::new(Plans::new()));
            PLANS.insert(call.key.clone(), class.clone());
            class
        }
    };
    let mut plans = class.write();
    // The newest first: sizes tend to repeat.
    plans.insert(0, plan.clone());
    let gone = if plans.len() > PLANS_PER_CLASS { plans.pop() } else { None };
    drop(plans);
    drop(gone);
    Ok(plan)
}

#[allow(clippy::too_many_arguments)]
fn execute<'py>(
    py: Python<'py>,
    op: &PlannedOperator,
    arguments: &Arguments<'py>,
    call: &Call<'_, 'py>,
    (given, targets): (&[Bound<'py, GPUArray>], &[Bound<'py, GPUArray>]),
    ctx: &ExecCtx,
    plan: &Plan,
    values: &Values,
) -> PyResult<Py<PyAny>> {
    if !given.is_empty() && given.len() != plan.launch.outputs.len() {
        let text = format!("{}() gives {} results, but out has {}", op.name, plan.launch.outputs.len(), given.len());
        return Err(PyTypeError::new_err(text));
    }
    let mut results: SmallVec<[Bound<'py, GPUArray>; 2]> = SmallVec::new();
    let mut elements = 0;
    for (i, spec) in plan.launch.outputs.iter().enumerate() {
        let mut shape: SmallVec<[i64; MAX_NDIM]> = SmallVec::new();
        shape.extend(spec.shape.iter().map(|node| values[usize::from(*node)]));
        if let Some(out) = given.get(i) {
            check_out(op, out.get(), &shape)?;
        }
        let layout = Layout::contiguous(&shape).py()?;
        elements += layout.size();
        results.push(match targets.get(i) {
            Some(target) => target.clone(),
            None => Bound::new(py, GPUArray::allocate(ctx, layout, spec.dtype).py()?)?,
        });
    }
    if elements > 0 || plan.launch.outputs.is_empty() {
        perform(py, op, arguments, call, ctx, plan, values, &results)?;
    }
    for (result, out) in results.iter_mut().zip(given) {
        if !result.is(out) {
            let copy = ops::find("copy")?;
            ops::apply(py, &copy, &[result.clone().into_any()], Some(out), arguments.stream.as_ref())?;
            *result = out.clone();
        }
    }
    match results.len() {
        0 => Ok(py.None()),
        1 => Ok(results.swap_remove(0).into_any().unbind()),
        _ => Ok(PyTuple::new(py, results)?.into_any().unbind()),
    }
}

#[inline]
fn check_out(op: &PlannedOperator, out: &GPUArray, shape: &[i64]) -> PyResult<()> {
    if out.layout.shape() != shape {
        let text =
            format!("{}(): the result has shape {}, but out has {}", op.name, show(shape), show(out.layout.shape()));
        return Err(Error::Shape(text)).py();
    }
    if out.layout.may_overlap_itself() {
        let text = format!("{}(): out is a broadcast view whose elements share memory; copy it first", op.name);
        return Err(Error::Shape(text)).py();
    }
    Ok(())
}

/// Launch, call NumPy in stream order, or run a composition of other operators.
#[allow(clippy::too_many_arguments)]
fn perform<'py>(
    py: Python<'py>,
    op: &PlannedOperator,
    arguments: &Arguments<'py>,
    call: &Call<'_, 'py>,
    ctx: &ExecCtx,
    plan: &Plan,
    values: &Values,
    results: &[Bound<'py, GPUArray>],
) -> PyResult<()> {
    match &plan.body {
        Body::Launches { written, numbers } => {
            for index in written {
                call.arrays[usize::from(*index)].get().touched(Access::Write)?;
            }
            for result in results {
                result.get().touched(Access::Write)?;
            }
            let mut encoded: SmallVec<[Encoded; 4]> = SmallVec::new();
            for &(index, dtype) in numbers {
                let number = call.numbers.get(usize::from(index)).copied().flatten();
                let number =
                    number.ok_or_else(|| PyRuntimeError::new_err(format!("{}(): no number {index}", op.name)))?;
                if !number.fits(dtype) {
                    let text = format!("{}(): {number} does not fit {}", op.name, dtype.name());
                    return Err(Error::Value(text)).py();
                }
                encoded.push(Encoded { index, dtype, bytes: number.element(dtype)? });
            }
            let inputs: SmallVec<[PlanOperand<'_>; 8]> = call.arrays.iter().map(|a| operand(a.get())).collect();
            let outputs: SmallVec<[PlanOperand<'_>; 2]> = results.iter().map(|a| operand(a.get())).collect();
            let launch = || plan.launch.launch(ctx, values, &inputs, &outputs, &encoded, &mut check_signals);
            let at_once = ctx.state.is_cuda() && !plan.launch.needs_loading(values);
            if at_once || ctx.recorder.is_some() && !ctx.state.is_cuda() {
                return launch().py();
            }
            detached(py, launch)
        }
        Body::HostKernel(kernel) => {
            let uses = host_uses(call, results, &[])?;
            host_kernel::run(py, ctx, &uses, *kernel, &call.arrays, &call.numbers, results)
        }
        Body::Host { function, written, given_only } => {
            let uses = host_uses(call, results, written)?;
            let mut parts: SmallVec<[Part<'_, 'py>; 8]> = SmallVec::new();
            parts.push(Part::Object(function.bind(py).clone()));
            let mut arrays = call.arrays.iter();
            for (param, value) in op.params.iter().zip(&arguments.values) {
                match param.takes {
                    Takes::Choice => {}
                    Takes::Number => parts.push(Part::Object(value.clone())),
                    Takes::Array | Takes::OptionalArray if value.is_none() => {
                        if !given_only {
                            parts.push(Part::Object(value.clone()));
                        }
                    }
                    Takes::Array | Takes::OptionalArray => parts.extend(arrays.next().map(|a| Part::Array(a.get()))),
                }
            }
            parts.extend(results.iter().map(|result| Part::Array(result.get())));
            host_call::run(py, ctx, &uses, &parts)
        }
        Body::Compose(function) => {
            let given = PyTuple::new(py, &arguments.values)?;
            let results = PyTuple::new(py, results)?;
            // Its launches and their memory belong to the stream of this call.
            exec::push(ctx.clone());
            let done = Inside::enter().py().and_then(|_inside| function.bind(py).call1((results, given)));
            exec::pop();
            done.map(drop)
        }
    }
}

/// What a host function does to arrays: it writes results and the inputs at some positions, and reads the others.
fn host_uses<'a>(
    call: &'a Call<'_, '_>,
    results: &'a [Bound<'_, GPUArray>],
    written: &[u8],
) -> PyResult<SmallVec<[UseRef<'a>; 8]>> {
    let mut uses = SmallVec::new();
    for result in results {
        uses.push(result.get().touched(Access::Write)?);
    }
    for (at, array) in call.arrays.iter().enumerate() {
        let writes = written.iter().any(|index| usize::from(*index) == at);
        uses.push(array.get().touched(if writes { Access::ReadWrite } else { Access::Read })?);
    }
    Ok(uses)
}

#[inline]
fn operand(array: &GPUArray) -> PlanOperand<'_> {
    let tag = array.touched(Access::Read).map_or_else(|_| ArgTag::default(), |used| used.tag);
    PlanOperand { ptr: array.ptr(), storage: &array.storage, tag }
}

/// Make the built-in function of a registered operator.
///
/// `params` has name, kind ("array", "optional", "number", "choice"), whether it is by keyword only, and a tuple that holds
/// the default or is empty.
#[pyfunction]
#[pyo3(signature = (name, params, signature, doc, in_place=false))]
fn planned_operator(
    py: Python<'_>,
    name: &str,
    params: Vec<(String, String, bool, Bound<'_, PyTuple>)>,
    signature: &str,
    doc: &str,
    in_place: bool,
) -> PyResult<Py<PyAny>> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let params = params
        .into_iter()
        .map(|(text, kind, keyword_only, default)| {
            let takes = match kind.as_str() {
                "array" => Takes::Array,
                "optional" => Takes::OptionalArray,
                "number" => Takes::Number,
                "choice" => Takes::Choice,
                other => return Err(PyTypeError::new_err(format!("parameter '{text}' has unknown kind '{other}'"))),
            };
            let default = default.iter().next().map(Bound::unbind);
            Ok(Param { name: PyString::intern(py, &text).unbind(), text, takes, default, keyword_only })
        })
        .collect::<PyResult<Vec<_>>>()?;
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    crate::operator::builtin(
        py,
        PlannedOperator { id, name: name.to_string(), params, in_place, recent: Mutex::new(None) },
        name,
        signature,
        doc,
    )
}

/// Give Rust the Python side of the registry.
#[pyfunction]
fn set_planner(py: Python<'_>, plan: Py<PyAny>, normalise: Py<PyAny>, operand: Py<PyAny>) -> PyResult<()> {
    HOOKS
        .set(py, Hooks { plan, normalise, operand })
        .map_err(|_| PyRuntimeError::new_err("the planner of the registry is already set"))
}

/// Forget all plans of registered operators.
pub fn clear() {
    PLANS.clear();
    // What operators used last belongs to an earlier time.
    EPOCH.fetch_add(1, Ordering::Relaxed);
}

/// Classes of arguments that have plans now.
#[pyfunction]
fn plan_classes() -> usize {
    PLANS.len()
}

/// SMs of the current stream's lane on a device: what plans know as `sm_count`.
#[pyfunction]
fn lane_sm_count(py: Python<'_>, device: &Bound<'_, PyDevice>) -> PyResult<u32> {
    Ok(context_for(py, device.get().state)?.stream.lane().sm_count())
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(planned_operator, m)?)?;
    m.add_function(wrap_pyfunction!(set_planner, m)?)?;
    m.add_function(wrap_pyfunction!(plan_classes, m)?)?;
    m.add_function(wrap_pyfunction!(lane_sm_count, m)?)?;
    crate::plan_object::register(m)
}
