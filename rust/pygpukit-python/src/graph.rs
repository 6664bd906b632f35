//! `CudaGraph`: capture and replay.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pygpukit_core::exec::{self, ExecCtx};
use pygpukit_core::graph::{CHUNK, Graph, GraphMemory, Recorder, Values};
use pygpukit_core::runtime::DeviceState;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyModule, PyString};

use crate::array::GPUArray;
use crate::device::{PyDevice, context};
use crate::dtype::DataType;
use crate::errors::{ToPy, check_signals, raise};
use crate::graph_parameters::{Parameters, Settings, number_array, write_number};
use crate::inside::detached;
use crate::scalar::Scalar;
use crate::stream::{PyStream, refuse_in_capture};

/// How often a long replay looks for signals.
const CHECK: Duration = Duration::from_millis(50);

#[derive(Default)]
struct Inner {
    state: Option<&'static DeviceState>,
    recorder: Option<Arc<Recorder>>,
    graph: Option<Arc<Graph>>,
    parameters: Arc<Parameters>,
    /// Where the last replay went, for `synchronize`.
    replayed: Option<Arc<pygpukit_core::stream::Stream>>,
}

/// A recorded sequence of operators and kernels that is launched as one.
///
/// Everything submitted by this thread between `begin_capture` and `end_capture` is recorded instead of run.
/// Numbers given as Python scalars are fixed in the recording; values that change between replays are arrays, or
/// parameters made with `parameter`.
#[pyclass(frozen, weakref, module = "pygpukit", name = "CudaGraph")]
pub struct PyGraph {
    inner: Mutex<Inner>,
    pool: Option<Py<GraphPool>>,
}

impl Inner {
    fn check_new_parameter(&self, name: &str, state: &'static DeviceState) -> Result<(), String> {
        if self.recorder.is_some() || self.graph.is_some() {
            return Err("make parameters before the capture starts".to_string());
        }
        self.parameters.check_name(name)?;
        match self.state.is_some_and(|known| !std::ptr::eq(known, state)) {
            true => Err("the graph's other parameters live on another device".to_string()),
            false => Ok(()),
        }
    }
}

/// Memory for several graphs that never run at the same time, such as one per batch size: ``CudaGraph(pool=...)``.
///
/// Their arrays overlap, so it is as large as the largest graph needs. A replay of one overwrites the results of the others,
/// and replays run one after the other, on whatever streams they are.
#[pyclass(frozen, weakref, module = "pygpukit", name = "GraphPool")]
pub struct GraphPool {
    state: &'static DeviceState,
    memory: Arc<GraphMemory>,
}

#[pymethods]
impl GraphPool {
    /// Memory comes from the current pool, as graphs need it.
    #[new]
    fn new(py: Python<'_>) -> PyResult<GraphPool> {
        let ctx = context(py)?;
        Ok(GraphPool { state: ctx.state, memory: GraphMemory::shared(&ctx).py()? })
    }

    /// Bytes of device memory that the graphs share.
    #[getter]
    fn nbytes(&self) -> usize {
        self.memory.shared_bytes()
    }

    /// Device it is on.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice { state: self.state }
    }
}

fn misuse(text: &str) -> PyErr {
    raise("GraphError", text.to_string())
}

#[pymethods]
impl PyGraph {
    #[new]
    #[pyo3(signature = (pool=None))]
    fn new(pool: Option<Py<GraphPool>>) -> PyGraph {
        PyGraph { inner: Mutex::default(), pool }
    }

    /// The memory it shares with other graphs, or None when it has its own.
    #[getter]
    fn pool(&self, py: Python<'_>) -> Option<Py<GraphPool>> {
        self.pool.as_ref().map(|pool| pool.clone_ref(py))
    }

    /// Record instead of run, until `end_capture`.
    #[pyo3(signature = (stream=None))]
    fn begin_capture(&self, py: Python<'_>, stream: Option<&Bound<'_, PyStream>>) -> PyResult<()> {
        let ctx = context(py)?;
        if ctx.recorder.is_some() {
            return Err(misuse("this thread already captures a graph; end that capture first"));
        }
        let mut ctx = match stream {
            Some(stream) => stream.get().context(&ctx)?,
            None => ExecCtx::clone(&ctx),
        };
        let shared = self.pool.as_ref().map(|pool| pool.get());
        if shared.is_some_and(|pool| !std::ptr::eq(pool.state, ctx.state)) {
            return Err(misuse("the graph's pool is on another device"));
        }
        let shared = shared.map(|pool| pool.memory.clone());
        let arrays = self.inner.lock().parameters.arrays();
        let recorder = Recorder::new(&ctx, shared, arrays).py()?;
        ctx.recorder = Some(recorder.clone());
        self.change(|inner| {
            if inner.recorder.is_some() {
                return Err("the graph is already being captured".to_string());
            }
            if inner.graph.is_some() {
                return Err("the graph holds a recording; call reset() before capturing again".to_string());
            }
            if inner.state.is_some_and(|s| !std::ptr::eq(s, ctx.state)) {
                return Err("the graph's parameters live on another device".to_string());
            }
            inner.state = Some(ctx.state);
            inner.recorder = Some(recorder);
            Ok(())
        })?;
        exec::enter(ctx, std::ptr::from_ref(self) as usize);
        Ok(())
    }

    /// End the recording and make the graph ready.
    fn end_capture(&self) -> PyResult<()> {
        let (recorder, state) = self.change(|inner| match (inner.recorder.clone(), inner.state) {
            (Some(recorder), Some(state)) => {
                let here = exec::current().is_some_and(|c| c.records(&recorder) && !c.is_inside_capture());
                if !here {
                    return Err("the capture belongs to another thread, or a context entered in it is still open; \
                                reset() abandons it"
                        .to_string());
                }
                inner.recorder = None;
                Ok((recorder, state))
            }
            _ => Err("no capture has been started".to_string()),
        })?;
        exec::leave(std::ptr::from_ref(self) as usize).py()?;
        let graph = Arc::new(recorder.finish(state));
        let ctx = ExecCtx::default_for(state);
        graph.prepare(&ctx).py()?;
        self.inner.lock().graph = Some(graph);
        Ok(())
    }

    /// Drop an unfinished recording, if any, without making a graph.
    fn _abort_capture(&self) {
        let recorder = self.inner.lock().recorder.take();
        if let Some(recorder) = recorder {
            recorder.abandon();
            while exec::current().is_some_and(|c| c.records(&recorder)) {
                exec::pop();
            }
        }
    }

    /// A context manager that captures its block.
    #[pyo3(signature = (stream=None))]
    fn capture(slf: Py<Self>, stream: Option<Py<PyStream>>) -> Capture {
        Capture { graph: slf, stream }
    }

    /// What `replay` sets by name: ``g.replay(name=value)``.
    ///
    /// With a type: a zero-dimensional array, whose value is set. With an array: that array, which each replay may exchange
    /// for another of the same type and shape.
    #[pyo3(signature = (name, dtype, value=None))]
    fn parameter<'py>(
        &self,
        py: Python<'py>,
        name: String,
        dtype: &Bound<'py, PyAny>,
        value: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if name == "stream" {
            return Err(misuse("a parameter cannot be named 'stream': replay() takes a stream by that name"));
        }
        if let Ok(array) = dtype.cast_exact::<GPUArray>() {
            if value.is_some() {
                return Err(misuse("a parameter that is an array has the array's values; leave 'value' out"));
            }
            let array = array.get();
            self.change(|inner| {
                inner.check_new_parameter(&name, array.state)?;
                Arc::make_mut(&mut inner.parameters).add_array(name, array)?;
                inner.state = Some(array.state);
                Ok(())
            })?;
            return Ok(dtype.clone());
        }
        let dtype = dtype
            .cast::<DataType>()
            .map_err(|_| misuse("a parameter is made with a type such as gp.float32, or with an array"))?
            .get()
            .dtype;
        let ctx = context(py)?;
        let scalar = match value {
            Some(value) => Scalar::read(value)?.ok_or_else(|| misuse("a parameter's value must be a Python number"))?,
            None => Scalar::Int(0),
        };
        // Taken before the lock, since it may wait for memory; it goes back unless a chunk is needed.
        let spare = ctx.allocate(CHUNK, &mut check_signals).py()?;
        let place = self.change(|inner| {
            inner.check_new_parameter(&name, ctx.state)?;
            inner.state = Some(ctx.state);
            Ok(Arc::make_mut(&mut inner.parameters).add_number(name, dtype, &spare))
        })?;
        let array = number_array(&ctx, place, dtype)?;
        write_number(&ctx, &array, scalar)?;
        Ok(array.into_pyobject(py)?.into_any())
    }

    /// Run the recording on the current stream, after setting parameters by name.
    #[pyo3(signature = (stream=None, **parameters))]
    fn replay(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyStream>>,
        parameters: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let (ctx, graph) = self.to_replay(py, stream)?;
        let Some(parameters) = parameters else { return graph.replay(&ctx).py() };
        let known = self.inner.lock().parameters.clone();
        let mut settings = Settings::default();
        for (name, value) in parameters.iter() {
            let name = name.cast_into::<PyString>()?;
            known.read(&name.to_cow()?, &value, &mut settings)?;
        }
        let Settings { scalars, arrays } = settings;
        graph.replay_with(&ctx, Values { scalars: Some((known.scalars(), scalars)), arrays }).py()
    }

    /// Replay so many times, one after the other, without the interpreter: other Python threads run meanwhile.
    #[pyo3(signature = (times, stream=None))]
    fn replay_many(&self, py: Python<'_>, times: u64, stream: Option<&Bound<'_, PyStream>>) -> PyResult<()> {
        let (ctx, graph) = self.to_replay(py, stream)?;
        detached(py, || {
            let mut checked = Instant::now();
            for _ in 0..times {
                graph.replay(&ctx)?;
                if checked.elapsed() > CHECK {
                    check_signals()?;
                    checked = Instant::now();
                }
            }
            Ok(())
        })
    }

    /// Wait for the last replay.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        refuse_in_capture("wait for a graph")?;
        let stream = self.inner.lock().replayed.clone();
        match stream {
            Some(stream) => detached(py, || stream.synchronize(&mut check_signals)),
            None => Ok(()),
        }
    }

    /// Forget the recording, or abandon an unfinished capture; parameters stay.
    fn reset(&self) {
        self._abort_capture();
        let old = self.inner.lock().graph.take();
        drop(old);
    }

    /// Is there a recording to replay?
    #[getter]
    fn is_ready(&self) -> bool {
        self.inner.lock().graph.is_some()
    }

    /// Commands in the recording.
    #[getter]
    fn num_nodes(&self) -> usize {
        self.inner.lock().graph.as_ref().map_or(0, |g| g.num_nodes())
    }
}

impl PyGraph {
    /// The recording, and the context it is replayed in.
    fn to_replay(&self, py: Python<'_>, stream: Option<&Bound<'_, PyStream>>) -> PyResult<(Arc<ExecCtx>, Arc<Graph>)> {
        let mut ctx = context(py)?;
        if let Some(stream) = stream {
            ctx = Arc::new(stream.get().context(&ctx)?);
        }
        let mut inner = self.inner.lock();
        inner.replayed = Some(ctx.stream.clone());
        let graph = inner.graph.clone();
        drop(inner);
        Ok((ctx, graph.ok_or_else(|| misuse("the graph is empty: capture something first"))?))
    }

    /// Read or change the graph's state under its lock. What goes wrong becomes an exception after the lock is gone,
    /// because making one runs Python code.
    fn change<T>(&self, action: impl FnOnce(&mut Inner) -> Result<T, String>) -> PyResult<T> {
        let done = action(&mut self.inner.lock());
        done.map_err(|text| misuse(&text))
    }
}

/// The context manager of `CudaGraph.capture`.
#[pyclass(frozen, module = "pygpukit", name = "_Capture")]
struct Capture {
    graph: Py<PyGraph>,
    stream: Option<Py<PyStream>>,
}

#[pymethods]
impl Capture {
    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<PyGraph>> {
        let stream = self.stream.as_ref().map(|s| s.bind(py));
        self.graph.get().begin_capture(py, stream)?;
        Ok(self.graph.clone_ref(py))
    }

    fn __exit__(
        &self,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if kind.is_none() {
            return self.graph.get().end_capture();
        }
        self.graph.get()._abort_capture();
        Ok(())
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyGraph>()?;
    m.add_class::<Capture>()?;
    m.add_class::<GraphPool>()?;
    Ok(())
}
