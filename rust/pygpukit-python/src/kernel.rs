//! `Kernel`: a compiled CUDA kernel that Python calls like a function.

use std::sync::Arc;

use pygpukit_core::command::{Access, Launch, LaunchAttributes};
use pygpukit_core::dtype::DType;
use pygpukit_core::emulator::tensor_map::BYTES;
use pygpukit_core::error::Error;
use pygpukit_core::kernel::{Check, Kernel, KernelMeta, Library};
#[cfg(unix)]
use pygpukit_core::launch::time_first_blocks;
use pygpukit_core::launch::{bare_launch, resident_blocks, time_launches};
use pygpukit_core::layout::Layout;
use pygpukit_core::runtime::DeviceState;
use pygpukit_core::slices::Sliced;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyModule, PyTuple};

use crate::array::GPUArray;
use crate::device::{PyDevice, context, context_for};
use crate::errors::{ToPy, carry, check_signals};
use crate::inside::{Inside, attached, detached};
use crate::kernel_call::DEFAULT_BLOCK;
use crate::profile;
use crate::vectorcall;

/// What a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    /// A pointer; None points to anything.
    Pointer(Option<DType>, Access),
    Scalar(DType),
    /// A struct by value, given as bytes.
    Struct,
    /// A `CUtensorMap` by value.
    TensorMap,
}

#[derive(Debug)]
pub(crate) struct Param {
    pub name: String,
    /// The type as CUDA C++ writes it, for people.
    pub c_type: String,
    pub takes: Takes,
    pub offset: usize,
    pub size: usize,
}

impl Takes {
    fn parse(code: &str) -> Option<Takes> {
        if code == "struct" {
            return Some(Takes::Struct);
        }
        if code == "tensormap" {
            return Some(Takes::TensorMap);
        }
        let (access, target) = match (code.strip_prefix("const*"), code.strip_prefix('*')) {
            (Some(target), _) => (Access::Read, target),
            (None, Some(target)) => (Access::ReadWrite, target),
            (None, None) => return DType::from_name(code).map(Takes::Scalar),
        };
        match target {
            "void" => Some(Takes::Pointer(None, access)),
            _ => DType::from_name(target).map(|d| Takes::Pointer(Some(d), access)),
        }
    }

    fn c_type(self) -> String {
        let element = |dtype: DType| match dtype {
            DType::Bool => "bool",
            DType::I8 => "signed char",
            DType::I16 => "short",
            DType::I32 => "int",
            DType::I64 => "long long",
            DType::U8 => "unsigned char",
            DType::U16 => "unsigned short",
            DType::U32 => "unsigned int",
            DType::U64 => "unsigned long long",
            DType::F32 => "float",
            DType::F64 => "double",
            // The names of our own header types; CUDA's own are as good.
            other => other.tag(),
        };
        match self {
            Takes::Pointer(dtype, access) => {
                let constant = if access.is_written() { "" } else { "const " };
                format!("{constant}{}*", dtype.map_or("void", element))
            }
            Takes::Scalar(dtype) => element(dtype).to_string(),
            Takes::Struct => "struct".to_string(),
            Takes::TensorMap => "CUtensorMap".to_string(),
        }
    }

    fn size(self) -> Option<usize> {
        match self {
            Takes::Pointer(..) => Some(8),
            Takes::Scalar(dtype) => Some(dtype.itemsize()),
            Takes::Struct => None,
            Takes::TensorMap => Some(BYTES),
        }
    }

    fn alignment(self) -> usize {
        match self {
            Takes::Pointer(..) | Takes::Struct => 8,
            Takes::TensorMap => 64,
            Takes::Scalar(DType::C64) => 4,
            Takes::Scalar(DType::C128) => 8,
            Takes::Scalar(dtype) => dtype.itemsize(),
        }
    }
}

/// A compiled kernel, callable by position or by name.
///
/// ``kernel(x, 0.5, n, grid=..., block=..., shared=..., stream=...)`` launches it on the current stream. Without
/// `grid` enough blocks are launched to give every element of the first array a thread.
#[pyclass(subclass, frozen, weakref, module = "pygpukit", name = "KernelBase")]
pub struct PyKernel {
    pub kernel: Arc<Kernel>,
    pub(crate) state: &'static DeviceState,
    pub(crate) params: Option<Vec<Param>>,
    pub(crate) arg_bytes: usize,
    image: Py<PyBytes>,
    pub(crate) source: Option<String>,
    arch: String,
}

#[pymethods]
impl PyKernel {
    /// Name of the kernel.
    #[getter]
    fn name(&self) -> &str {
        self.kernel.name()
    }

    /// (name, C type) of each parameter.
    #[getter]
    fn params(&self) -> Vec<(String, String)> {
        let params = self.params.as_deref().unwrap_or_default();
        params.iter().map(|p| (p.name.clone(), p.c_type.clone())).collect()
    }

    /// Registers per thread.
    #[getter]
    fn registers(&self) -> u32 {
        self.kernel.attributes().registers
    }

    /// Static shared memory in bytes.
    #[getter]
    fn shared_bytes(&self) -> u32 {
        self.kernel.attributes().static_shared
    }

    /// Local memory per thread in bytes; registers that did not fit.
    #[getter]
    fn local_bytes(&self) -> u32 {
        self.kernel.attributes().local_bytes
    }

    /// Most threads a block may have.
    #[getter]
    fn max_threads(&self) -> u32 {
        match self.kernel.attributes().max_threads {
            0 => self.state.device.props().max_threads_per_block,
            n => n,
        }
    }

    /// Architecture it was compiled for, such as "90a".
    #[getter]
    fn arch(&self) -> &str {
        &self.arch
    }

    /// Device it is loaded on.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice { state: self.state }
    }

    /// The machine code that was loaded, or None when it was PTX.
    #[getter]
    fn cubin(&self, py: Python<'_>) -> Option<Py<PyBytes>> {
        self.is_cubin(py).then(|| self.image.clone_ref(py))
    }

    /// The PTX text that was loaded, or None when it was machine code.
    #[getter]
    fn ptx(&self, py: Python<'_>) -> Option<String> {
        let text = || String::from_utf8_lossy(self.image.as_bytes(py)).trim_end_matches('\0').to_string();
        (!self.is_cubin(py)).then(text)
    }

    /// CUDA C++ text it was compiled from, where known.
    #[getter]
    fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    /// Share of an SM's threads that blocks of this size can keep resident.
    #[pyo3(signature = (block, shared=0))]
    fn occupancy(&self, block: u32, shared: u32) -> PyResult<f64> {
        let per_sm = self.state.device.props().max_threads_per_sm;
        if block == 0 || block > self.max_threads() || per_sm == 0 {
            return Err(self.fail(format!("block must be between 1 and {}, not {block}", self.max_threads())));
        }
        let blocks = self.kernel.occupancy(block, shared).py()?;
        Ok(f64::from(blocks * block) / f64::from(per_sm))
    }

    /// Most blocks of this size that the current stream's SMs run at the same time: the largest grid of a cooperative
    /// launch.
    #[pyo3(signature = (block, shared=0))]
    fn resident_blocks(&self, py: Python<'_>, block: u32, shared: u32) -> PyResult<u64> {
        if block == 0 || block > self.max_threads() {
            return Err(self.fail(format!("block must be between 1 and {}, not {block}", self.max_threads())));
        }
        let ctx = context_for(py, self.state)?;
        resident_blocks(&ctx, &self.kernel, block, shared).py()
    }

    #[new]
    fn new() -> PyResult<PyKernel> {
        vectorcall::take_pending()
    }

    // Calls go through `vectorcall`; this is for those that hold a tuple and a dict already.
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__(&self, py: Python<'_>, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let positional: Vec<_> = args.iter().collect();
        let keywords: Vec<_> = kwargs.map(|k| k.iter().collect()).unwrap_or_default();
        self.call(py, &positional, &keywords)
    }

    /// Run it on the CPU device and count what it does: instructions by class, memory sectors, bank conflicts and
    /// divergence. Called as the kernel is.
    #[pyo3(signature = (*args, **kwargs))]
    fn profile<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let positional: Vec<_> = args.iter().collect();
        let keywords: Vec<_> = kwargs.map(|k| k.iter().collect()).unwrap_or_default();
        let counters = self.count(py, &positional, &keywords)?;
        let class = PyModule::import(py, "pygpukit.jit.profile")?.getattr("Profile")?;
        class.call1((self.name(), profile::as_dict(py, &counters)?))
    }

    /// Launch in ranges of so many blocks; called as the kernel is. For tests.
    #[pyo3(signature = (blocks, *args, **kwargs))]
    fn _call_in_slices(
        &self,
        py: Python<'_>,
        blocks: u32,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let positional: Vec<_> = args.iter().collect();
        let keywords: Vec<_> = kwargs.map(|k| k.iter().collect()).unwrap_or_default();
        self.call_in_slices(py, &positional, &keywords, blocks)
    }

    /// Seconds per launch with these arguments, of the bare driver call or with our bookkeeping, for benchmarks.
    fn _time_launches(
        &self,
        py: Python<'_>,
        args: Vec<Bound<'_, PyAny>>,
        bare: bool,
        burst: u32,
        rounds: u32,
    ) -> PyResult<f64> {
        let filled = self.fill_given(&args)?;
        let work = Launch {
            kernel: &self.kernel,
            grid: [1; 3],
            block: [DEFAULT_BLOCK as u32, 1, 1],
            shared: 0,
            attributes: LaunchAttributes::default(),
            args: &filled.blob,
            arrays: &[],
        };
        let ctx = context_for(py, self.state)?;
        detached(py, || time_launches(&ctx, &work, bare, burst, rounds))
    }

    /// Seconds from launches to their first block, which tells its time at `told`; for benchmarks.
    #[cfg(unix)]
    fn _time_first_blocks(&self, py: Python<'_>, told: u64, offset: f64, pause: f64, count: u32) -> PyResult<Vec<f64>> {
        let blob = told.to_ne_bytes();
        let work = Launch {
            kernel: &self.kernel,
            grid: [1; 3],
            block: [1; 3],
            shared: 0,
            attributes: LaunchAttributes::default(),
            args: &blob,
            arrays: &[],
        };
        let ctx = context_for(py, self.state)?;
        // SAFETY: the benchmark gives the address of a page-locked array it holds.
        detached(py, || unsafe { time_first_blocks(&ctx, &work, told as *const u64, offset, pause * 1e9, count) })
    }

    /// A callable that makes only the driver call, with these arguments fixed: what any launch from Python costs.
    fn _bare_launcher(slf: Bound<'_, Self>, args: Vec<Bound<'_, PyAny>>) -> PyResult<BareLauncher> {
        let this = slf.get();
        let filled = this.fill_given(&args)?;
        let bytes = filled.blob.to_vec();
        drop(filled);
        Ok(BareLauncher {
            kernel: this.kernel.clone(),
            state: this.state,
            args: bytes,
            _held: args.into_iter().map(Bound::unbind).collect(),
        })
    }

    fn __repr__(&self) -> String {
        format!("<Kernel {}({})>", self.kernel.name(), self.show_params())
    }
}

impl PyKernel {
    /// A kernel with its parameters where the driver says they lie.
    pub(crate) fn of(
        kernel: Arc<Kernel>,
        state: &'static DeviceState,
        params: Option<Vec<(String, String)>>,
        image: Py<PyBytes>,
        arch: &str,
    ) -> PyResult<PyKernel> {
        let known = params.as_ref().and_then(|p| kernel.params(p.len()));
        let params = params.map(|p| place(kernel.name(), p, known.as_deref())).transpose().py()?;
        let arg_bytes = params.as_deref().and_then(|p| p.last()).map_or(0, |p| p.offset + p.size);
        Ok(PyKernel { kernel, state, params, arg_bytes, image, source: None, arch: arch.to_string() })
    }

    fn is_cubin(&self, py: Python<'_>) -> bool {
        self.image.as_bytes(py).starts_with(b"\x7fELF")
    }
}

/// See `Kernel._bare_launcher`.
#[pyclass(frozen, module = "pygpukit", name = "_BareLauncher")]
struct BareLauncher {
    kernel: Arc<Kernel>,
    state: &'static DeviceState,
    args: Vec<u8>,
    /// The arrays whose addresses are among the arguments.
    _held: Vec<Py<PyAny>>,
}

#[pymethods]
impl BareLauncher {
    fn __call__(&self) -> PyResult<()> {
        bare_launch(self.state, &self.kernel, &self.args).py()
    }
}

/// Where each parameter lies: as the driver says, or by natural alignment where it cannot.
fn place(
    name: &str,
    params: Vec<(String, String)>,
    known: Option<&[(usize, usize)]>,
) -> pygpukit_core::Result<Vec<Param>> {
    let mismatch = |text: String| Error::Launch(format!("kernel '{name}': {text}"));
    if let Some(known) = known
        && known.len() != params.len()
    {
        return Err(mismatch(format!(
            "the signature has {} parameters, the compiled kernel {}",
            params.len(),
            known.len()
        )));
    }
    let mut end = 0usize;
    let mut placed = Vec::with_capacity(params.len());
    for (i, (param, code)) in params.into_iter().enumerate() {
        let takes =
            Takes::parse(&code).ok_or_else(|| mismatch(format!("parameter '{param}' has unknown type '{code}'")))?;
        let (offset, size) = match known {
            Some(known) => known[i],
            None => (end.next_multiple_of(takes.alignment()), takes.size().unwrap_or(8)),
        };
        if takes.size().is_some_and(|s| s != size) {
            return Err(mismatch(format!(
                "parameter '{param}' was read as {code}, but the compiled kernel takes {size} bytes for it"
            )));
        }
        end = offset + size;
        placed.push(Param { name: param, c_type: takes.c_type(), takes, offset, size });
    }
    Ok(placed)
}

pub(crate) fn check_of(check: bool, seed: Option<u64>) -> Check {
    match (seed, check) {
        (Some(seed), _) => Check::Fuzz(seed),
        (None, true) => Check::On,
        (None, false) => Check::AsDevice,
    }
}

/// Load a compiled image and take one kernel from it.
#[pyfunction]
#[pyo3(signature = (
    image, entry, name, params=None, device=None, arch="", source=None, file="", check=false, seed=None, slicer=None
))]
#[allow(clippy::too_many_arguments)]
fn load_kernel(
    py: Python<'_>,
    image: Bound<'_, PyBytes>,
    entry: &str,
    name: &str,
    params: Option<Vec<(String, String)>>,
    device: Option<&Bound<'_, PyDevice>>,
    arch: &str,
    source: Option<String>,
    file: &str,
    check: bool,
    seed: Option<u64>,
    slicer: Option<Py<PyAny>>,
) -> PyResult<Py<PyKernel>> {
    let meta = KernelMeta {
        check: check_of(check, seed),
        sliceable: slicer.is_some(),
        access_from_types: true,
        ..KernelMeta::default()
    };
    let mut kernels = load(py, &image, &[entry.to_string()], name, params, device, arch, meta)?;
    let mut kernel = kernels.pop().ok_or_else(|| PyTypeError::new_err("an entry is needed"))?;
    if let Some(source) = &source {
        kernel.kernel.library().set_source(file, source);
    }
    kernel.source = source;
    if let Some(slicer) = slicer {
        kernel.kernel.set_slicer(Box::new(move || sliced(&slicer)));
    }
    vectorcall::object(py, kernel).map(Bound::unbind)
}

/// Ask Python for the variant of a kernel that runs a range of blocks.
fn sliced(slicer: &Py<PyAny>) -> pygpukit_core::Result<Option<Sliced>> {
    let _inside = Inside::enter()?;
    attached(|py| {
        let made = slicer.bind(py).call0()?;
        if made.is_none() {
            return Ok(None);
        }
        let made = made.cast_into::<PyKernel>()?;
        let kernel = made.get();
        let params = kernel.params.as_deref().unwrap_or_default();
        let first = params.len().checked_sub(4).and_then(|at| params.get(at));
        Ok(first.map(|param| Sliced { kernel: kernel.kernel.clone(), offset: param.offset }))
    })
    .map_err(carry)
}

/// Load an image and take several entries of one built-in kernel from it. `programmatic` says that they wait for
/// their predecessor on the device, so that a graph may launch them early.
#[pyfunction]
#[pyo3(signature = (image, entries, name, device=None, arch="", programmatic=false))]
fn load_kernels<'py>(
    py: Python<'py>,
    image: Bound<'py, PyBytes>,
    entries: Vec<String>,
    name: &str,
    device: Option<&Bound<'py, PyDevice>>,
    arch: &str,
    programmatic: bool,
) -> PyResult<Bound<'py, PyList>> {
    let meta = KernelMeta { programmatic, ..KernelMeta::default() };
    let kernels = load(py, &image, &entries, name, None, device, arch, meta)?;
    let kernels = kernels.into_iter().map(|k| vectorcall::object(py, k)).collect::<PyResult<Vec<_>>>()?;
    PyList::new(py, kernels)
}

#[allow(clippy::too_many_arguments)]
fn load(
    py: Python<'_>,
    image: &Bound<'_, PyBytes>,
    entries: &[String],
    name: &str,
    params: Option<Vec<(String, String)>>,
    device: Option<&Bound<'_, PyDevice>>,
    arch: &str,
    meta: KernelMeta,
) -> PyResult<Vec<PyKernel>> {
    let state = match device {
        Some(device) => device.get().state,
        None => context(py)?.state,
    };
    state.check().py()?;
    let bytes = image.as_bytes();
    let kernels = detached(py, || -> pygpukit_core::Result<Vec<Arc<Kernel>>> {
        let library = Library::load(&state.device, bytes)?;
        entries.iter().map(|entry| Kernel::new(&library, entry, name, meta.clone())).collect()
    })?;
    kernels
        .into_iter()
        .map(|kernel| PyKernel::of(kernel, state, params.clone(), image.clone().unbind(), arch))
        .collect()
}

/// The counters of the current stream, or of the graph that is captured, as an argument for a kernel; for tests.
#[pyfunction]
fn _counters(py: Python<'_>, nbytes: usize) -> PyResult<GPUArray> {
    let ctx = context(py)?;
    let storage = ctx.counters(nbytes, 0, &mut check_signals).py()?;
    let words = storage.bytes() as i64 / 4;
    Ok(GPUArray::of(ctx.state, storage, 0, Layout::contiguous(&[words]).py()?, DType::U32))
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("Kernel", vectorcall::class(m.py())?.0.bind(m.py()))?;
    m.add_function(wrap_pyfunction!(load_kernel, m)?)?;
    m.add_function(wrap_pyfunction!(load_kernels, m)?)?;
    m.add_function(wrap_pyfunction!(_counters, m)?)?;
    Ok(())
}
