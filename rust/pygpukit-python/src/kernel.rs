//! `Kernel`: a compiled CUDA kernel that Python calls like a function.

use std::sync::Arc;

use pygpukit_core::command::{Access, ArgBlob, Launch, LaunchAttributes, UseRef};
use pygpukit_core::device::DeviceProps;
use pygpukit_core::dtype::DType;
use pygpukit_core::error::Error;
use pygpukit_core::exec::ExecCtx;
use pygpukit_core::kernel::{Kernel, KernelMeta, Library};
use pygpukit_core::launch::{check_dimensions, launch, time_launches};
use pygpukit_core::layout::show;
use pygpukit_core::runtime::DeviceState;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyModule, PyString, PyTuple};
use smallvec::SmallVec;

use crate::array::GPUArray;
use crate::device::{PyDevice, context, context_for};
use crate::errors::{ToPy, raise};
use crate::scalar::Scalar;
use crate::stream::PyStream;

const DEFAULT_BLOCK: i64 = 256;

/// What a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    /// A pointer; None points to anything.
    Pointer(Option<DType>, Access),
    Scalar(DType),
    /// A struct by value, given as bytes.
    Struct,
}

#[derive(Debug)]
struct Param {
    name: String,
    code: String,
    takes: Takes,
    offset: usize,
    size: usize,
}

impl Takes {
    fn parse(code: &str) -> Option<Takes> {
        if code == "struct" {
            return Some(Takes::Struct);
        }
        let (access, target) = match (code.strip_prefix("const*"), code.strip_prefix('*')) {
            (Some(target), _) => (Access::Read, target),
            (None, Some(target)) => (Access::Write, target),
            (None, None) => return DType::from_name(code).map(Takes::Scalar),
        };
        match target {
            "void" => Some(Takes::Pointer(None, access)),
            _ => DType::from_name(target).map(|d| Takes::Pointer(Some(d), access)),
        }
    }

    fn size(self) -> Option<usize> {
        match self {
            Takes::Pointer(..) => Some(8),
            Takes::Scalar(dtype) => Some(dtype.itemsize()),
            Takes::Struct => None,
        }
    }

    fn alignment(self) -> usize {
        match self {
            Takes::Pointer(..) | Takes::Struct => 8,
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
#[pyclass(frozen, weakref, module = "pygpukit", name = "Kernel")]
pub struct PyKernel {
    pub kernel: Arc<Kernel>,
    state: Arc<DeviceState>,
    params: Option<Vec<Param>>,
    arg_bytes: usize,
    image: Py<PyBytes>,
    source: Option<String>,
    arch: String,
}

/// A value on its way into the argument block.
struct Filled<'a> {
    blob: ArgBlob,
    uses: SmallVec<[UseRef<'a>; 4]>,
    first: Option<&'a GPUArray>,
}

impl PyKernel {
    fn fail(&self, text: String) -> PyErr {
        raise("KernelLaunchError", format!("kernel '{}': {text}", self.kernel.name()))
    }

    fn show_params(&self) -> String {
        let params = self.params.as_deref().unwrap_or_default();
        params.iter().map(|p| format!("{} {}", p.code, p.name)).collect::<Vec<_>>().join(", ")
    }

    /// Write one argument at its place.
    #[inline]
    fn fill<'a>(&self, param: &Param, value: &'a Bound<'_, PyAny>, into: &mut Filled<'a>) -> PyResult<()> {
        match param.takes {
            Takes::Pointer(wanted, access) => {
                let Ok(array) = value.cast_exact::<GPUArray>() else {
                    return Err(self.not_an_array(param, value));
                };
                let array = array.get();
                if wanted.is_some_and(|w| w != array.dtype) {
                    return Err(self.wrong_dtype(param, array));
                }
                if !array.layout.is_contiguous() {
                    return Err(self.fail(format!(
                        "parameter '{}' is a raw pointer, but the array of shape {} is not contiguous; pass x.contiguous()",
                        param.name,
                        show(array.layout.shape())
                    )));
                }
                if !Arc::ptr_eq(&array.state, &self.state) {
                    return Err(self.fail(format!("the array for parameter '{}' lives on another device", param.name)));
                }
                into.blob[param.offset..param.offset + 8].copy_from_slice(&array.ptr().to_le_bytes());
                into.uses.push(array.touched(access));
                into.first = into.first.or(Some(array));
            }
            Takes::Scalar(dtype) => {
                let scalar = match Scalar::read(value)? {
                    Some(scalar) => scalar,
                    None => self.other_scalar(param, value)?,
                };
                let fits = match (dtype.kind(), scalar) {
                    (pygpukit_core::dtype::Kind::Complex, _) => true,
                    (_, Scalar::Complex(..)) => false,
                    (pygpukit_core::dtype::Kind::Float, _) => true,
                    (_, Scalar::Float(x)) => x.fract() == 0.0 && x.abs() < 9.2e18,
                    _ => true,
                };
                if !fits {
                    return Err(self.fail(format!(
                        "parameter '{}' is {}, which cannot hold {}",
                        param.name,
                        dtype.name(),
                        value.repr()?
                    )));
                }
                let bytes = scalar
                    .element(dtype)
                    .map_err(|e| self.fail(format!("parameter '{}': {}", param.name, e.value(value.py()))))?;
                into.blob[param.offset..param.offset + param.size].copy_from_slice(&bytes[..param.size]);
            }
            Takes::Struct => {
                let buffer = PyBuffer::<u8>::get(value).map_err(|_| {
                    self.fail(format!(
                        "parameter '{}' is a struct of {} bytes; pass its bytes (for example array.tobytes())",
                        param.name, param.size
                    ))
                })?;
                if buffer.item_count() != param.size || !buffer.is_c_contiguous() {
                    return Err(self.fail(format!(
                        "parameter '{}' is a struct of {} bytes, but {} were given",
                        param.name,
                        param.size,
                        buffer.item_count()
                    )));
                }
                // SAFETY: the buffer is contiguous and held; its length was just checked.
                let bytes = unsafe { std::slice::from_raw_parts(buffer.buf_ptr() as *const u8, param.size) };
                into.blob[param.offset..param.offset + param.size].copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    #[cold]
    fn not_an_array(&self, param: &Param, value: &Bound<'_, PyAny>) -> PyErr {
        let kind = value.get_type().name().map_or_else(|_| "object".into(), |n| n.to_string());
        self.fail(format!(
            "parameter '{}' ({}) takes a GPUArray, not {kind}; use pygpukit.from_numpy() for host arrays",
            param.name, param.code
        ))
    }

    #[cold]
    fn wrong_dtype(&self, param: &Param, array: &GPUArray) -> PyErr {
        self.fail(format!(
            "parameter '{}' is {}, but the array has dtype {}; convert it with astype()",
            param.name,
            param.code,
            array.dtype.name()
        ))
    }

    /// NumPy scalars and zero-dimensional host values, through Python's own conversions.
    #[cold]
    fn other_scalar(&self, param: &Param, value: &Bound<'_, PyAny>) -> PyResult<Scalar> {
        let item = value.getattr("item").and_then(|item| item.call0());
        let scalar = item.ok().filter(|_| value.cast::<GPUArray>().is_err()).map(|v| Scalar::read(&v)).transpose()?;
        scalar.flatten().ok_or_else(|| {
            let kind = value.get_type().name().map_or_else(|_| "object".into(), |n| n.to_string());
            self.fail(format!("parameter '{}' ({}) takes a number, not {kind}", param.name, param.code))
        })
    }

    fn named(&self, params: &[Param], name: &str) -> PyResult<usize> {
        params.iter().position(|p| p.name == name).ok_or_else(|| {
            self.fail(format!(
                "no parameter is named '{name}'; it has ({}), and grid, block, shared and stream set the launch",
                self.show_params()
            ))
        })
    }

    fn dimensions(&self, value: &Bound<'_, PyAny>, what: &str) -> PyResult<[i64; 3]> {
        if let Ok(n) = value.extract::<i64>() {
            return Ok([n, 1, 1]);
        }
        let dims: Vec<i64> = value
            .extract()
            .map_err(|_| self.fail(format!("{what} must be an int or up to three of them, not {value}")))?;
        if dims.is_empty() || dims.len() > 3 {
            return Err(self.fail(format!("{what} must have one to three dimensions, not {}", dims.len())));
        }
        let mut out = [1; 3];
        out[..dims.len()].copy_from_slice(&dims);
        Ok(out)
    }
}

#[pymethods]
impl PyKernel {
    #[getter]
    fn name(&self) -> &str {
        self.kernel.name()
    }

    /// (name, type code) of each parameter.
    #[getter]
    fn params(&self) -> Vec<(String, String)> {
        let params = self.params.as_deref().unwrap_or_default();
        params.iter().map(|p| (p.name.clone(), p.code.clone())).collect()
    }

    #[getter]
    fn registers(&self) -> u32 {
        self.kernel.attributes().registers
    }

    /// Static shared memory in bytes.
    #[getter]
    fn shared_bytes(&self) -> u32 {
        self.kernel.attributes().static_shared
    }

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

    #[getter]
    fn arch(&self) -> &str {
        &self.arch
    }

    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice { state: self.state.clone() }
    }

    /// The image that was loaded: a cubin, or PTX as bytes.
    #[getter]
    fn image(&self, py: Python<'_>) -> Py<PyBytes> {
        self.image.clone_ref(py)
    }

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

    #[pyo3(signature = (*args, **kwargs))]
    fn __call__(&self, py: Python<'_>, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let Some(params) = &self.params else {
            return Err(self.fail("its parameters are not known; load it with a signature".to_string()));
        };
        // Values by position of the parameter, and the launch keywords.
        let mut values: SmallVec<[Option<Bound<'_, PyAny>>; 12]> = SmallVec::new();
        values.extend(args.iter().map(Some));
        let (mut grid, mut block, mut shared, mut stream) = (None, [DEFAULT_BLOCK, 1, 1], 0u32, None);
        if let Some(kwargs) = kwargs {
            for (name, value) in kwargs.iter() {
                let name = name.cast_into::<PyString>()?;
                match &*name.to_cow()? {
                    "grid" if value.is_none() => {}
                    "grid" => grid = Some(self.dimensions(&value, "grid")?),
                    "block" if value.is_none() => {}
                    "block" => block = self.dimensions(&value, "block")?,
                    "shared" => shared = value.extract().map_err(|_| self.fail("shared must be a number of bytes".into()))?,
                    "stream" if value.is_none() => {}
                    "stream" => stream = Some(value.cast_into::<PyStream>()?),
                    other => {
                        let at = self.named(params, other)?;
                        if at < args.len() {
                            return Err(self.fail(format!("parameter '{other}' is given twice")));
                        }
                        values.resize(params.len().max(values.len()), None);
                        values[at] = Some(value);
                    }
                }
            }
        }
        if values.len() != params.len() || values.iter().any(Option::is_none) {
            let missing: Vec<&str> =
                params.iter().enumerate().filter(|(i, _)| values.get(*i).is_none_or(Option::is_none)).map(|(_, p)| &*p.name).collect();
            let what = match missing.is_empty() {
                true => format!("takes {} arguments but {} were given", params.len(), args.len()),
                false => format!("missing {}", missing.join(", ")),
            };
            return Err(self.fail(format!("{what}; its parameters are ({})", self.show_params())));
        }
        let mut filled = Filled { blob: ArgBlob::from_elem(0, self.arg_bytes), uses: SmallVec::new(), first: None };
        for (param, value) in params.iter().zip(&values) {
            if let Some(value) = value {
                self.fill(param, value, &mut filled)?;
            }
        }
        let props = self.state.device.props();
        let grid = match (grid, filled.first) {
            (Some(grid), _) => grid,
            (None, Some(array)) => covering(array.layout.size(), &block),
            (None, None) => return Err(self.fail("give grid=, since no argument is an array to cover".to_string())),
        };
        let (grid, block) = self.checked(props, grid, block)?;
        let mut ctx = context_for(py, &self.state)?;
        if let Some(stream) = stream {
            ctx = Arc::new(stream.get().context(&ctx)?);
        }
        self.launch(&ctx, grid, block, shared, filled)
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
        let params = self.params.as_deref().unwrap_or_default();
        let mut filled = Filled { blob: ArgBlob::from_elem(0, self.arg_bytes), uses: SmallVec::new(), first: None };
        for (param, value) in params.iter().zip(&args) {
            self.fill(param, value, &mut filled)?;
        }
        let work = Launch {
            kernel: &self.kernel,
            grid: [1; 3],
            block: [DEFAULT_BLOCK as u32, 1, 1],
            shared: 0,
            attributes: LaunchAttributes::default(),
            args: &filled.blob,
        };
        let ctx = context_for(py, &self.state)?;
        py.detach(|| time_launches(&ctx, &work, bare, burst, rounds)).py()
    }

    /// Launch a built-in kernel: arrays of any layout, 64-bit integers and structs as bytes, packed in order. The
    /// first argument is the output.
    #[pyo3(signature = (grid, block, args, stream=None))]
    fn _launch(
        &self,
        py: Python<'_>,
        grid: i64,
        block: i64,
        args: Vec<Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyStream>>,
    ) -> PyResult<()> {
        let mut filled = Filled { blob: ArgBlob::new(), uses: SmallVec::new(), first: None };
        for arg in &args {
            if let Ok(array) = arg.cast_exact::<GPUArray>() {
                let access = if filled.uses.is_empty() { Access::Write } else { Access::Read };
                filled.uses.push(array.get().touched(access));
                filled.blob.extend_from_slice(&array.get().ptr().to_le_bytes());
            } else if let Ok(bytes) = arg.cast_exact::<PyBytes>() {
                filled.blob.extend_from_slice(bytes.as_bytes());
            } else {
                filled.blob.extend_from_slice(&arg.extract::<i64>()?.to_le_bytes());
            }
        }
        let (grid, block) = self.checked(self.state.device.props(), [grid, 1, 1], [block, 1, 1])?;
        let mut ctx = context_for(py, &self.state)?;
        if let Some(stream) = stream {
            ctx = Arc::new(stream.get().context(&ctx)?);
        }
        self.launch(&ctx, grid, block, 0, filled)
    }

    fn __repr__(&self) -> String {
        format!("<Kernel {}({})>", self.kernel.name(), self.show_params())
    }
}

impl PyKernel {
    #[inline]
    fn checked(&self, props: &DeviceProps, grid: [i64; 3], block: [i64; 3]) -> PyResult<([u32; 3], [u32; 3])> {
        check_dimensions(props, self.kernel.name(), self.kernel.attributes().max_threads, grid, block).py()
    }

    #[inline]
    fn launch(&self, ctx: &ExecCtx, grid: [u32; 3], block: [u32; 3], shared: u32, filled: Filled<'_>) -> PyResult<()> {
        let meta = self.kernel.meta();
        let attributes = LaunchAttributes { cluster: meta.cluster, cooperative: meta.cooperative, ..Default::default() };
        let work = Launch { kernel: &self.kernel, grid, block, shared, attributes, args: &filled.blob };
        launch(ctx, &work, &filled.uses).py()
    }
}

/// Enough blocks along x to give each element a thread; at least one.
fn covering(size: i64, block: &[i64; 3]) -> [i64; 3] {
    let threads = block.iter().product::<i64>().max(1);
    [((size + threads - 1) / threads).max(1), 1, 1]
}

/// Where each parameter lies: as the driver says, or by natural alignment where it cannot.
fn place(name: &str, params: Vec<(String, String)>, known: Option<&[(usize, usize)]>) -> pygpukit_core::Result<Vec<Param>> {
    let mismatch = |text: String| Error::Launch(format!("kernel '{name}': {text}"));
    if let Some(known) = known
        && known.len() != params.len()
    {
        return Err(mismatch(format!("the signature has {} parameters, the compiled kernel {}", params.len(), known.len())));
    }
    let mut end = 0usize;
    let mut placed = Vec::with_capacity(params.len());
    for (i, (param, code)) in params.into_iter().enumerate() {
        let takes = Takes::parse(&code).ok_or_else(|| mismatch(format!("parameter '{param}' has unknown type '{code}'")))?;
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
        placed.push(Param { name: param, code, takes, offset, size });
    }
    Ok(placed)
}

/// Load a compiled image and take one kernel from it.
#[pyfunction]
#[pyo3(signature = (image, entry, name, params=None, device=None, arch="", source=None))]
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
) -> PyResult<PyKernel> {
    let meta = KernelMeta::default();
    let mut kernels = load(py, &image, &[entry.to_string()], name, params, device, arch, meta)?;
    let mut kernel = kernels.pop().ok_or_else(|| PyTypeError::new_err("an entry is needed"))?;
    kernel.source = source;
    Ok(kernel)
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
    let kernels = kernels.into_iter().map(|k| Py::new(py, k)).collect::<PyResult<Vec<_>>>()?;
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
        Some(device) => device.get().state.clone(),
        None => context(py)?.state.clone(),
    };
    state.check().py()?;
    let bytes = image.as_bytes();
    let kernels = py
        .detach(|| -> pygpukit_core::Result<Vec<Arc<Kernel>>> {
            let library = Library::load(&state.device, bytes)?;
            entries.iter().map(|entry| Kernel::new(&library, entry, name, meta.clone())).collect()
        })
        .py()?;
    kernels
        .into_iter()
        .map(|kernel| {
            let known = kernel.attributes().params.clone();
            let params = params.clone().map(|p| place(name, p, known.as_deref())).transpose().py()?;
            let arg_bytes = params.as_deref().and_then(|p| p.last()).map_or(0, |p| p.offset + p.size);
            Ok(PyKernel {
                kernel,
                state: state.clone(),
                params,
                arg_bytes,
                image: image.clone().unbind(),
                source: None,
                arch: arch.to_string(),
            })
        })
        .collect()
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyKernel>()?;
    m.add_function(wrap_pyfunction!(load_kernel, m)?)?;
    m.add_function(wrap_pyfunction!(load_kernels, m)?)?;
    Ok(())
}
