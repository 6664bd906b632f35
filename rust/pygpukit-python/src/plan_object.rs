//! `LaunchPlan` objects: how Python hands a plan over.

use std::sync::Arc;

use pygpukit_core::command::{Access, LaunchAttributes};
use pygpukit_core::cuda::cublaslt::Compute;
use pygpukit_core::dtype::DType;
use pygpukit_core::kernel::Kernel;
use pygpukit_core::plan::{
    Arg, Guard, KernelStep, LaunchPlan, MapArg, Node, NodeId, OutputSpec, ProductStep, ProductTarget, Program,
    Relation, Scratch, ScratchKind, Source, Step,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyModule, PyTuple};
use smallvec::SmallVec;

use crate::dtype::DataType;
use crate::errors::ToPy;
use crate::host_kernel::{HostKernel, PyHostKernel};
use crate::kernel::PyKernel;
use crate::libraries::opened_cublaslt;
use crate::tensor_map::{promotion_of, swizzle_of};

/// What a plan does.
pub enum Body {
    /// Its steps. Positions of inputs they write, and numbers they take.
    Launches { written: SmallVec<[u8; 4]>, numbers: SmallVec<[(u8, DType); 4]> },
    /// A function over NumPy views, run in stream order: inputs and numbers, then results. Positions of inputs it writes,
    /// and whether optional arrays that were not given are left out (NumPy's own functions) and not None.
    Host { function: Py<PyAny>, written: SmallVec<[u8; 4]>, given_only: bool },
    /// The same in the core, without NumPy.
    HostKernel(HostKernel),
    /// A function of the results and the arguments that calls other operators.
    Compose(Py<PyAny>),
}

pub struct Plan {
    pub launch: LaunchPlan,
    pub body: Body,
}

/// A plan on its way from Python's planner to the operator.
#[pyclass(frozen, module = "pygpukit", name = "_LaunchPlan")]
pub struct PyLaunchPlan {
    pub plan: Arc<Plan>,
}

fn wrong(text: String) -> PyErr {
    PyValueError::new_err(format!("launch plan: {text}"))
}

fn node((op, a, b): (String, i64, i64)) -> PyResult<Node> {
    let id = |x: i64| NodeId::try_from(x).map_err(|_| wrong(format!("node {x} is out of range")));
    Ok(match op.as_str() {
        "const" => Node::Const(a),
        "var" => Node::Var(id(a)?),
        "+" => Node::Add(id(a)?, id(b)?),
        "-" => Node::Sub(id(a)?, id(b)?),
        "*" => Node::Mul(id(a)?, id(b)?),
        "//" => Node::FloorDiv(id(a)?, id(b)?),
        "%" => Node::Mod(id(a)?, id(b)?),
        "min" => Node::Min(id(a)?, id(b)?),
        "max" => Node::Max(id(a)?, id(b)?),
        other => return Err(wrong(format!("unknown operation '{other}'"))),
    })
}

fn guard((relation, left, right): (String, NodeId, NodeId)) -> PyResult<Guard> {
    let relation = match relation.as_str() {
        "==" => Relation::Equal,
        "!=" => Relation::NotEqual,
        "<" => Relation::Less,
        "<=" => Relation::LessEqual,
        other => return Err(wrong(format!("unknown relation '{other}'"))),
    };
    Ok(Guard { relation, left, right })
}

fn access(name: &str) -> PyResult<Access> {
    match name {
        "read" => Ok(Access::Read),
        "write" => Ok(Access::Write),
        "update" => Ok(Access::ReadWrite),
        "constant" => Ok(Access::Constant),
        other => Err(wrong(format!("unknown access '{other}'"))),
    }
}

fn argument(given: &Bound<'_, PyTuple>, kernel: &Kernel) -> PyResult<Arg> {
    let kind: String = given.get_item(0)?.extract()?;
    let index = |at: usize| given.get_item(at)?.extract::<u8>();
    let mode = || access(&given.get_item(2)?.extract::<String>()?);
    Ok(match kind.as_str() {
        "input" => Arg::Input { index: index(1)?, access: mode()? },
        "output" => Arg::Output { index: index(1)?, access: mode()? },
        "scratch" => Arg::Scratch { index: index(1)?, access: mode()? },
        "i64" => Arg::I64(given.get_item(1)?.extract()?),
        "i32" => Arg::I32(given.get_item(1)?.extract()?),
        "number" => Arg::Number { index: index(1)?, dtype: given.get_item(2)?.cast_into::<DataType>()?.get().dtype },
        "bytes" => Arg::Bytes(SmallVec::from_slice(given.get_item(1)?.cast_into::<PyBytes>()?.as_bytes())),
        "align" => Arg::Align(index(1)?),
        "map" => {
            let (map, parameter) = tensor_map(given)?;
            let offset = kernel.params(parameter + 1).and_then(|all| all.get(parameter).map(|at| at.0));
            Arg::Map { map: Arc::new(map), offset }
        }
        other => return Err(wrong(format!("unknown kind of argument '{other}'"))),
    })
}

/// What follows the word "map": array and its position, access, element type, swizzle, L2 promotion, then sizes, strides and
/// box, the contiguous dimension first, and the number of the kernel's parameter.
type GivenMap<'py> =
    (String, u8, String, Bound<'py, DataType>, String, String, (Vec<NodeId>, Vec<NodeId>, Vec<u32>), usize);

fn tensor_map(given: &Bound<'_, PyTuple>) -> PyResult<(MapArg, usize)> {
    let (role, index, mode, dtype, swizzle, l2, sizes, parameter): GivenMap<'_> =
        given.get_slice(1, given.len()).extract()?;
    let source = match role.as_str() {
        "input" => Source::Input(index),
        "output" => Source::Output(index),
        "scratch" => Source::Scratch(index),
        other => return Err(wrong(format!("a tensor map of '{other}'"))),
    };
    let layout = (swizzle_of(&swizzle)?, promotion_of(&l2)?);
    Ok((MapArg::new((source, access(&mode)?, dtype.get().dtype), layout, sizes).py()?, parameter))
}

type GivenStep<'py> =
    (Bound<'py, PyKernel>, [NodeId; 3], [NodeId; 3], NodeId, ([u32; 3], bool, bool), Vec<Bound<'py, PyTuple>>);

fn step((kernel, grid, block, shared, (cluster, cooperative, programmatic), args): GivenStep<'_>) -> PyResult<Step> {
    let args = args.iter().map(|given| argument(given, &kernel.get().kernel)).collect::<PyResult<Vec<_>>>()?;
    let attributes = LaunchAttributes { cluster, cooperative, programmatic, ..LaunchAttributes::default() };
    Ok(Step::Kernel(KernelStep { kernel: kernel.get().kernel.clone(), grid, block, shared, attributes, args }))
}

/// a and b among the inputs; "output" or "scratch" and which is written; types of operands and result; whether a and b are
/// stored transposed; whether float32 is multiplied through tf32; the nodes of `ProductStep`; and the library's workspace,
/// as a piece of scratch and its bytes.
type GivenProduct<'py> = (
    [u8; 2],
    (String, u8),
    Bound<'py, DataType>,
    Bound<'py, DataType>,
    [bool; 2],
    bool,
    [NodeId; 13],
    Option<(u8, usize)>,
);

fn product(given: GivenProduct<'_>) -> PyResult<Step> {
    let (inputs, (role, index), dtype, out, transposed, tf32, sizes, workspace) = given;
    let target = match role.as_str() {
        "output" => ProductTarget::Output(index),
        "scratch" => ProductTarget::Scratch(index),
        other => return Err(wrong(format!("a product is written to a result or to workspace, not to '{other}'"))),
    };
    let library = opened_cublaslt().py()?;
    let compute = if tf32 { Compute::Tf32 } else { Compute::F32 };
    let (dtype, out) = (dtype.get().dtype, out.get().dtype);
    Ok(Step::Product(ProductStep::new(library, dtype, out, compute, transposed, sizes, inputs, target, workspace)))
}

/// Make a plan from what the planner traced; see `pygpukit.ops.planner`.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn launch_plan(
    py: Python<'_>,
    name: &str,
    inputs: usize,
    variables: usize,
    nodes: Vec<(String, i64, i64)>,
    guards: Vec<(String, NodeId, NodeId)>,
    outputs: Vec<(Bound<'_, DataType>, Vec<NodeId>)>,
    scratch: Vec<(NodeId, bool)>,
    steps: Vec<Bound<'_, PyTuple>>,
    host: Option<Py<PyAny>>,
    compose: Option<Py<PyAny>>,
    written: Vec<u8>,
) -> PyResult<PyLaunchPlan> {
    let nodes = nodes.into_iter().map(node).collect::<PyResult<Vec<_>>>()?;
    let guards = guards.into_iter().map(guard).collect::<PyResult<Vec<_>>>()?;
    let outputs: Vec<OutputSpec> = outputs
        .into_iter()
        .map(|(dtype, shape)| OutputSpec { dtype: dtype.get().dtype, shape: shape.into() })
        .collect();
    let scratch: Vec<Scratch> = scratch
        .into_iter()
        .map(|(bytes, counters)| {
            let kind = if counters { ScratchKind::Counters } else { ScratchKind::Buffer };
            Scratch { bytes, kind }
        })
        .collect();
    let steps = steps.into_iter().map(|given| match given.len() {
        8 => product(given.extract()?),
        _ => step(given.extract()?),
    });
    let steps = steps.collect::<PyResult<Vec<_>>>()?;
    let program = Program::new(nodes, guards, variables).py()?;
    let mut launch = LaunchPlan { name: name.into(), program, outputs, scratch, steps };
    launch.check(inputs).py()?;
    launch.prune();
    let body = match (host, compose) {
        (Some(function), _) if function.bind(py).cast_exact::<PyHostKernel>().is_ok() => {
            Body::HostKernel(function.bind(py).cast_exact::<PyHostKernel>()?.get().kernel)
        }
        (Some(function), _) => {
            let given_only = function.bind(py).get_type().name()? == "ufunc";
            Body::Host { function, written: written.into(), given_only }
        }
        (None, Some(function)) => Body::Compose(function),
        (None, None) => Body::Launches { written: launch.written_inputs(), numbers: launch.numbers() },
    };
    Ok(PyLaunchPlan { plan: Arc::new(Plan { launch, body }) })
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyLaunchPlan>()?;
    m.add_function(wrap_pyfunction!(launch_plan, m)?)?;
    Ok(())
}
