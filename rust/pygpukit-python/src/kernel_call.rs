//! Calling a kernel: arguments into the argument block, launch keywords, and the launch.

use std::sync::Arc;

use pygpukit_core::command::{Access, ArgBlob, ArrayArg, Launch, LaunchAttributes, UseRef};
use pygpukit_core::device::DeviceProps;
use pygpukit_core::dtype::{DType, Kind};
use pygpukit_core::emulator::Counters;
use pygpukit_core::emulator::tensor_map::BYTES;
use pygpukit_core::exec::ExecCtx;
use pygpukit_core::launch::{check_cluster, check_cooperative, check_dimensions, launch};
use pygpukit_core::layout::show;
use pygpukit_core::slices::launch_in_slices;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use smallvec::SmallVec;

use crate::array::GPUArray;
use crate::device::context_for;
use crate::errors::{ToPy, check_signals, raise};
use crate::inside::detached;
use crate::kernel::{Param, PyKernel, Takes};
use crate::scalar::Scalar;
use crate::stream::PyStream;
use crate::tensor_map::PyTensorMap;

/// Threads of a block when the caller does not say.
pub(crate) const DEFAULT_BLOCK: i64 = 256;

/// A keyword argument of a call.
type Keyword<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

/// A value on its way into the argument block.
pub(crate) struct Filled<'a> {
    pub blob: ArgBlob,
    pub uses: SmallVec<[UseRef<'a>; 4]>,
    pub first: Option<&'a GPUArray>,
    /// The arrays by name, where a checker may ask.
    pub arrays: Vec<ArrayArg>,
}

impl Filled<'_> {
    pub fn new(bytes: usize) -> Self {
        Filled { blob: ArgBlob::from_elem(0, bytes), uses: SmallVec::new(), first: None, arrays: Vec::new() }
    }
}

/// How a kernel is launched.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared: u32,
    pub cooperative: bool,
    /// Blocks per cluster; zero for the kernel's own.
    pub cluster: [u32; 3],
    /// It may be started before its predecessor has ended.
    pub programmatic: bool,
}

/// The same as the caller says it; without a grid it covers the first array.
struct Asked<'a, 'py> {
    grid: Option<[i64; 3]>,
    block: [i64; 3],
    shared: u32,
    cooperative: bool,
    cluster: [u32; 3],
    programmatic: bool,
    stream: Option<&'a Bound<'py, PyStream>>,
}

impl Default for Asked<'_, '_> {
    fn default() -> Self {
        Asked {
            grid: None,
            block: [DEFAULT_BLOCK, 1, 1],
            shared: 0,
            cooperative: false,
            cluster: [0; 3],
            programmatic: false,
            stream: None,
        }
    }
}

impl PyKernel {
    pub(crate) fn fail(&self, text: String) -> PyErr {
        raise("KernelLaunchError", format!("kernel '{}': {text}", self.kernel.name()))
    }

    pub(crate) fn show_params(&self) -> String {
        let params = self.params.as_deref().unwrap_or_default();
        params.iter().map(|p| format!("{} {}", p.c_type, p.name)).collect::<Vec<_>>().join(", ")
    }

    /// Write one argument at its place.
    #[inline]
    fn fill<'a>(
        &self,
        param: &Param,
        value: &'a Bound<'_, PyAny>,
        declared: Option<Access>,
        into: &mut Filled<'a>,
    ) -> PyResult<()> {
        match param.takes {
            Takes::Pointer(wanted, access) => {
                let access = declared.unwrap_or(access);
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
                if !std::ptr::eq(array.state, self.state) {
                    return Err(self.fail(format!("the array for parameter '{}' lives on another device", param.name)));
                }
                into.blob[param.offset..param.offset + 8].copy_from_slice(&array.ptr().to_le_bytes());
                into.uses.push(self.written(param, array, access)?);
                if !self.state.is_cuda() {
                    into.arrays.push(named(param, array));
                }
                into.first = into.first.or(Some(array));
            }
            Takes::Scalar(dtype) => {
                let scalar = match Scalar::read(value) {
                    Ok(Some(scalar)) => scalar,
                    Ok(None) => self.other_scalar(param, value)?,
                    Err(_) => self.huge(param, dtype, value)?,
                };
                if !scalar.fits(dtype) {
                    return Err(self.cannot_hold(param, dtype, value));
                }
                let bytes = scalar.element(dtype)?;
                into.blob[param.offset..param.offset + param.size].copy_from_slice(&bytes[..param.size]);
            }
            // PTX says only that it is 128 bytes.
            Takes::TensorMap | Takes::Struct if param.size == BYTES && value.is_exact_instance_of::<PyTensorMap>() => {
                self.fill_tensor_map(param, value.cast_exact::<PyTensorMap>()?.get(), into)?;
            }
            Takes::Struct => self.fill_struct(param, value, into)?,
            Takes::TensorMap => return Err(self.not_a_tensor_map(param, value)),
        }
        Ok(())
    }

    fn fill_tensor_map<'a>(&self, param: &Param, map: &'a PyTensorMap, into: &mut Filled<'a>) -> PyResult<()> {
        let array = map.array();
        if !std::ptr::eq(array.state, self.state) {
            return Err(self.fail(format!("the tensor map for '{}' is of another device", param.name)));
        }
        into.blob[param.offset..param.offset + param.size].copy_from_slice(&map.bytes);
        into.uses.push(self.written(param, array, map.access)?);
        if !self.state.is_cuda() {
            into.arrays.push(named(param, array));
        }
        Ok(())
    }

    fn fill_struct(&self, param: &Param, value: &Bound<'_, PyAny>, into: &mut Filled<'_>) -> PyResult<()> {
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
        Ok(())
    }

    /// Write all arguments, as many as there are parameters.
    #[inline]
    fn fill_all<'a, 'py: 'a>(
        &self,
        params: &[Param],
        values: impl Iterator<Item = &'a Bound<'py, PyAny>>,
        uses: &[(usize, Access)],
    ) -> PyResult<Filled<'a>> {
        let mut filled = Filled::new(self.arg_bytes);
        for (index, (param, value)) in params.iter().zip(values).enumerate() {
            let declared = uses.iter().find(|(at, _)| *at == index).map(|(_, access)| *access);
            self.fill(param, value, declared, &mut filled)?;
        }
        Ok(filled)
    }

    /// The same for benchmarks, whose arguments are not counted before.
    pub(crate) fn fill_given<'a, 'py: 'a>(&self, args: &'a [Bound<'py, PyAny>]) -> PyResult<Filled<'a>> {
        let params = self.params.as_deref().unwrap_or_default();
        if args.len() != params.len() {
            return Err(self.fail(format!("takes {} arguments but {} were given", params.len(), args.len())));
        }
        self.fill_all(params, args.iter(), &[])
    }

    fn known_params(&self) -> PyResult<&[Param]> {
        let unknown = || self.fail("its parameters are not known; load it with a signature".to_string());
        self.params.as_deref().ok_or_else(unknown)
    }

    /// The array as memory of a launch: a pointer that is not const takes no read-only array.
    #[inline]
    fn written<'a>(&self, param: &Param, array: &'a GPUArray, access: Access) -> PyResult<UseRef<'a>> {
        if access.is_written() && !array.is_writeable() {
            return Err(self.fail(format!(
                "parameter '{}' ({}) may be written, but the array of shape {} is read-only; declare the pointer const, or \
                 pass x.copy()",
                param.name,
                param.c_type,
                show(array.layout.shape())
            )));
        }
        array.touched(access)
    }

    #[cold]
    fn not_an_array(&self, param: &Param, value: &Bound<'_, PyAny>) -> PyErr {
        let kind = value.get_type().name().map_or_else(|_| "object".into(), |n| n.to_string());
        self.fail(format!(
            "parameter '{}' ({}) takes a GPUArray, not {kind}; use pygpukit.from_numpy() for host arrays",
            param.name, param.c_type
        ))
    }

    #[cold]
    fn not_a_tensor_map(&self, param: &Param, value: &Bound<'_, PyAny>) -> PyErr {
        let kind = value.get_type().name().map_or_else(|_| "object".into(), |n| n.to_string());
        self.fail(format!(
            "parameter '{}' (CUtensorMap) takes a pygpukit.TensorMap, not {kind}; use pygpukit.TensorMap(array, box=...)",
            param.name
        ))
    }

    #[cold]
    fn wrong_dtype(&self, param: &Param, array: &GPUArray) -> PyErr {
        self.fail(format!(
            "parameter '{}' is {}, but the array has dtype {}; convert it with astype()",
            param.name,
            param.c_type,
            array.dtype.name()
        ))
    }

    /// An integer beyond 128 bits, which only a float may hold.
    #[cold]
    fn huge(&self, param: &Param, dtype: DType, value: &Bound<'_, PyAny>) -> PyResult<Scalar> {
        let float = value.extract::<f64>().ok().filter(|_| matches!(dtype.kind(), Kind::Float | Kind::Complex));
        float.map(Scalar::Float).ok_or_else(|| self.cannot_hold(param, dtype, value))
    }

    #[cold]
    fn cannot_hold(&self, param: &Param, dtype: DType, value: &Bound<'_, PyAny>) -> PyErr {
        let mut shown = value.repr().map_or_else(|_| "this number".to_string(), |text| text.to_string());
        if shown.len() > 80 {
            shown = format!("{}... ({} digits)", shown.chars().take(40).collect::<String>(), shown.len());
        }
        self.fail(format!("parameter '{}' is {}, which cannot hold {shown}", param.name, dtype.name()))
    }

    /// NumPy scalars and zero-dimensional host values, through Python's own conversions.
    #[cold]
    fn other_scalar(&self, param: &Param, value: &Bound<'_, PyAny>) -> PyResult<Scalar> {
        let item = value.getattr("item").and_then(|item| item.call0());
        let scalar = item.ok().filter(|_| value.cast::<GPUArray>().is_err()).map(|v| Scalar::read(&v)).transpose()?;
        scalar.flatten().ok_or_else(|| {
            let kind = value.get_type().name().map_or_else(|_| "object".into(), |n| n.to_string());
            self.fail(format!("parameter '{}' ({}) takes a number, not {kind}", param.name, param.c_type))
        })
    }

    fn named(&self, params: &[Param], name: &str) -> PyResult<usize> {
        params.iter().position(|p| p.name == name).ok_or_else(|| {
            self.fail(format!(
                "no parameter is named '{name}'; it has ({}), and grid, block, shared, stream, cooperative, cluster, programmatic \
                 and uses set the launch",
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
            .map_err(|_| self.fail(format!("{what} must be an int or up to three of them, not {}", shown(value))))?;
        if dims.is_empty() || dims.len() > 3 {
            return Err(self.fail(format!("{what} must have one to three dimensions, not {}", dims.len())));
        }
        let mut out = [1; 3];
        out[..dims.len()].copy_from_slice(&dims);
        Ok(out)
    }

    fn cluster(&self, value: &Bound<'_, PyAny>) -> PyResult<[u32; 3]> {
        let dims = self.dimensions(value, "cluster")?;
        let fits = |n: i64| u32::try_from(n).ok().filter(|n| *n > 0);
        match dims.map(fits) {
            [Some(x), Some(y), Some(z)] => Ok([x, y, z]),
            _ => Err(self.fail(format!("cluster must be a number of blocks in each dimension, not {}", shown(value)))),
        }
    }

    /// What the caller says the kernel does with its arrays, by parameter.
    fn declared(&self, params: &[Param], value: &Bound<'_, PyAny>) -> PyResult<Vec<(usize, Access)>> {
        let table = value.cast::<PyDict>().map_err(|_| {
            self.fail(format!("uses must be a dict such as {{\"w\": \"constant\"}}, not {}", shown(value)))
        })?;
        let mut uses = Vec::with_capacity(table.len());
        for (name, access) in table.iter() {
            let name: String =
                name.extract().map_err(|_| self.fail(format!("uses has the key {name}, which is no name")))?;
            let at = params.iter().position(|param| param.name == name).ok_or_else(|| {
                self.fail(format!("uses names '{name}', but the parameters are ({})", self.show_params()))
            })?;
            let access = match access.extract::<String>().ok().as_deref() {
                Some("read") => Access::Read,
                Some("write") => Access::Write,
                Some("readwrite") => Access::ReadWrite,
                Some("constant") => Access::Constant,
                _ => {
                    return Err(self.fail(format!(
                        "uses of '{name}' must be 'read', 'write', 'readwrite' or 'constant', not {access}"
                    )));
                }
            };
            match params[at].takes {
                Takes::Pointer(_, by_type) if access.is_written() && !by_type.is_written() => {
                    return Err(self.fail(format!(
                        "uses says that '{name}' is written, but it is declared {}",
                        params[at].c_type
                    )));
                }
                Takes::Pointer(..) => uses.push((at, access)),
                _ => {
                    return Err(
                        self.fail(format!("uses names '{name}', which is {} and no pointer", params[at].c_type))
                    );
                }
            }
        }
        Ok(uses)
    }
}

impl PyKernel {
    #[inline]
    pub(crate) fn checked(
        &self,
        props: &DeviceProps,
        grid: [i64; 3],
        block: [i64; 3],
    ) -> PyResult<([u32; 3], [u32; 3])> {
        check_dimensions(props, self.kernel.name(), self.kernel.attributes().max_threads, grid, block).py()
    }

    #[inline]
    pub(crate) fn launch(&self, py: Python<'_>, ctx: &ExecCtx, shape: Shape, filled: &Filled<'_>) -> PyResult<()> {
        let meta = self.kernel.meta();
        let cooperative = meta.cooperative || shape.cooperative;
        if cooperative {
            check_cooperative(ctx, &self.kernel, shape.grid, shape.block, shape.shared).py()?;
        }
        let cluster = if shape.cluster == [0; 3] { meta.cluster } else { shape.cluster };
        if cluster != [0; 3] {
            check_cluster(ctx, &self.kernel, shape.grid, cluster).py()?;
        }
        let LaunchAttributes { priority, resident, .. } = LaunchAttributes::default();
        let attributes =
            LaunchAttributes { cluster, cooperative, programmatic: shape.programmatic, priority, resident };
        launch_kernel(py, ctx, &self.work(shape, attributes, filled), &filled.uses)
    }

    #[inline]
    fn work<'a>(&'a self, shape: Shape, attributes: LaunchAttributes, filled: &'a Filled<'_>) -> Launch<'a> {
        let (args, arrays) = (&filled.blob[..], &filled.arrays[..]);
        let Shape { grid, block, shared, .. } = shape;
        Launch { kernel: &self.kernel, grid, block, shared, attributes, args, arrays }
    }
}

/// What the checker's reports say about an argument.
#[cold]
fn named(param: &Param, array: &GPUArray) -> ArrayArg {
    ArrayArg {
        name: param.name.as_str().into(),
        address: array.ptr(),
        size: array.layout.size() as u64,
        item: array.dtype.itemsize() as u64,
        shape: array.layout.shape().iter().copied().collect(),
        memory: array.storage.extent(),
        ends_zero: false,
    }
}

/// Launch on the context's stream. A kernel that runs on this machine's cores runs without the interpreter.
#[inline]
pub(crate) fn launch_kernel(py: Python<'_>, ctx: &ExecCtx, work: &Launch<'_>, uses: &[UseRef<'_>]) -> PyResult<()> {
    if ctx.state.is_cuda() || ctx.recorder.is_some() {
        return launch(ctx, work, uses).py();
    }
    detached(py, || launch(ctx, work, uses))
}

/// Enough blocks along x to give each element a thread; at least one.
fn covering(size: i64, block: &[i64; 3]) -> [i64; 3] {
    let threads = block.iter().product::<i64>().max(1);
    [((size + threads - 1) / threads).max(1), 1, 1]
}

impl PyKernel {
    /// Launch with arguments by position and by name; the names grid, block, shared, stream, cooperative,
    /// cluster, programmatic and uses set the launch.
    #[inline]
    pub(crate) fn call<'py>(
        &self,
        py: Python<'py>,
        positional: &[Bound<'py, PyAny>],
        keywords: &[Keyword<'py>],
    ) -> PyResult<()> {
        let params = self.known_params()?;
        if !keywords.is_empty() || positional.len() != params.len() {
            return self
                .with_keywords(py, positional, keywords, |ctx, shape, filled| self.launch(py, ctx, shape, filled));
        }
        let filled = self.fill_all(params, positional.iter(), &[])?;
        self.covering(py, Asked::default(), &filled, |ctx, shape, filled| self.launch(py, ctx, shape, filled))
    }

    /// Launch in ranges of so many blocks; the arguments are those of a call.
    pub(crate) fn call_in_slices<'py>(
        &self,
        py: Python<'py>,
        positional: &[Bound<'py, PyAny>],
        keywords: &[Keyword<'py>],
        blocks: u32,
    ) -> PyResult<()> {
        self.with_keywords(py, positional, keywords, |ctx, shape, filled| {
            let work = self.work(shape, LaunchAttributes::default(), filled);
            detached(py, || launch_in_slices(ctx, &work, &filled.uses, blocks))
        })
    }

    /// Run to the end, counted; the arguments are those of a call.
    pub(crate) fn count<'py>(
        &self,
        py: Python<'py>,
        positional: &[Bound<'py, PyAny>],
        keywords: &[Keyword<'py>],
    ) -> PyResult<Counters> {
        self.with_keywords(py, positional, keywords, |ctx, shape, filled| {
            let Shape { cooperative, cluster, .. } = shape;
            let attributes = LaunchAttributes { cooperative, cluster, ..Default::default() };
            let work = self.work(shape, attributes, filled);
            detached(py, || {
                self.kernel.allow_shared(shape.shared)?;
                ctx.stream.synchronize(&mut check_signals)?;
                self.state.device.profile(&work)
            })
        })
    }

    /// Take launch keywords and named arguments apart, and go on with what they give.
    fn with_keywords<'py, T>(
        &self,
        py: Python<'py>,
        positional: &[Bound<'py, PyAny>],
        keywords: &[Keyword<'py>],
        run: impl FnOnce(&ExecCtx, Shape, &Filled<'_>) -> PyResult<T>,
    ) -> PyResult<T> {
        let params = self.known_params()?;
        let mut values: Vec<Option<&Bound<'py, PyAny>>> = positional.iter().map(Some).collect();
        let mut asked = Asked::default();
        let mut uses = Vec::new();
        for (name, value) in keywords {
            let name = name.cast::<PyString>()?;
            match &*name.to_cow()? {
                "grid" if value.is_none() => {}
                "grid" => asked.grid = Some(self.dimensions(value, "grid")?),
                "block" if value.is_none() => {}
                "block" => asked.block = self.dimensions(value, "block")?,
                "shared" => {
                    asked.shared = value
                        .extract()
                        .map_err(|_| self.fail(format!("shared must be a number of bytes, not {}", shown(value))))?;
                }
                "stream" if value.is_none() => {}
                "stream" => asked.stream = Some(value.cast::<PyStream>()?),
                "cooperative" => {
                    asked.cooperative = value
                        .extract()
                        .map_err(|_| self.fail(format!("cooperative must be True or False, not {}", shown(value))))?;
                }
                "cluster" if value.is_none() => {}
                "cluster" => asked.cluster = self.cluster(value)?,
                "programmatic" => {
                    asked.programmatic = value
                        .extract()
                        .map_err(|_| self.fail(format!("programmatic must be True or False, not {}", shown(value))))?;
                }
                "uses" if value.is_none() => {}
                "uses" => uses = self.declared(params, value)?,
                other => {
                    let at = self.named(params, other)?;
                    if at < positional.len() {
                        return Err(self.fail(format!("parameter '{other}' is given twice")));
                    }
                    values.resize(params.len().max(values.len()), None);
                    values[at] = Some(value);
                }
            }
        }
        if values.len() != params.len() || values.iter().any(Option::is_none) {
            let missing: Vec<&str> = (params.iter().enumerate())
                .filter(|(i, _)| values.get(*i).is_none_or(Option::is_none))
                .map(|(_, p)| &*p.name)
                .collect();
            let what = match missing.is_empty() {
                true => format!("takes {} arguments but {} were given", params.len(), positional.len()),
                false => format!("missing {}", missing.join(", ")),
            };
            return Err(self.fail(format!("{what}; its parameters are ({})", self.show_params())));
        }
        let filled = self.fill_all(params, values.into_iter().flatten(), &uses)?;
        self.covering(py, asked, &filled, run)
    }

    /// Run on a grid, or on enough blocks to cover the first array.
    #[inline]
    fn covering<T>(
        &self,
        py: Python<'_>,
        asked: Asked<'_, '_>,
        filled: &Filled<'_>,
        run: impl FnOnce(&ExecCtx, Shape, &Filled<'_>) -> PyResult<T>,
    ) -> PyResult<T> {
        let Asked { grid, block, shared, cooperative, cluster, programmatic, stream } = asked;
        let grid = match (grid, filled.first) {
            (Some(grid), _) => grid,
            (None, Some(array)) => covering(array.layout.size(), &block),
            (None, None) => return Err(self.fail("give grid=, since no argument is an array to cover".to_string())),
        };
        let (grid, block) = self.checked(self.state.device.props(), grid, block)?;
        let mut ctx = context_for(py, self.state)?;
        if let Some(stream) = stream {
            ctx = Arc::new(stream.get().context(&ctx)?);
        }
        run(&ctx, Shape { grid, block, shared, cooperative, cluster, programmatic }, filled)
    }
}

/// A value as Python writes it, so that a string is seen to be one.
#[cold]
fn shown(value: &Bound<'_, PyAny>) -> String {
    value.repr().map_or_else(|_| "what cannot be shown".to_string(), |text| text.to_string())
}
