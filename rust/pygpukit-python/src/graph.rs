//! `CudaGraph`: capture and replay.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pygpukit_core::command::{Access, Command, Copy, CopyKind, Work};
use pygpukit_core::exec::{self, ExecCtx};
use pygpukit_core::graph::{Graph, Recorder};
use pygpukit_core::launch::submit;
use pygpukit_core::layout::Layout;
use pygpukit_core::memory::Storage;
use pygpukit_core::runtime::DeviceState;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyModule, PyString};
use smallvec::smallvec;

use crate::array::GPUArray;
use crate::device::context;
use crate::dtype::DataType;
use crate::errors::{ToPy, check_signals, raise};
use crate::inside::detached;
use crate::scalar::Scalar;
use crate::stream::{PyStream, refuse_in_capture};

/// How often a long replay looks for signals.
const CHECK: Duration = Duration::from_millis(50);

/// Bytes of one chunk of the parameter block, and of one parameter in it.
const CHUNK: usize = 4096;
const SLOT: usize = 16;

/// Values the graph reads from device memory. It grows by chunks, so addresses already recorded stay.
#[derive(Default)]
struct Parameters {
    chunks: Vec<Arc<Storage>>,
    names: Vec<(String, DataType)>,
}

#[derive(Default)]
struct Inner {
    state: Option<&'static DeviceState>,
    recorder: Option<Arc<Recorder>>,
    graph: Option<Arc<Graph>>,
    parameters: Parameters,
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
}

fn misuse(text: &str) -> PyErr {
    raise("GraphError", text.to_string())
}

#[pymethods]
impl PyGraph {
    #[new]
    fn new() -> PyGraph {
        PyGraph { inner: Mutex::default() }
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
        let recorder = Recorder::new(&ctx).py()?;
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

    /// A zero-dimensional array whose value can be set at each replay: ``g.replay(name=value)``.
    #[pyo3(signature = (name, dtype, value=None))]
    fn parameter(
        &self,
        py: Python<'_>,
        name: String,
        dtype: &Bound<'_, DataType>,
        value: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<GPUArray> {
        if name == "stream" {
            return Err(misuse("a parameter cannot be named 'stream': replay() takes a stream by that name"));
        }
        let dtype = *dtype.get();
        let ctx = context(py)?;
        // Taken before the lock, since it may wait for memory; it goes back unless a chunk is needed.
        let spare = ctx.allocate(CHUNK, &mut check_signals).py()?;
        let (index, storage) = self.change(|inner| {
            if inner.recorder.is_some() || inner.graph.is_some() {
                return Err("make parameters before the capture starts".to_string());
            }
            if inner.parameters.names.iter().any(|(n, _)| *n == name) {
                return Err(format!("the graph already has a parameter named '{name}'"));
            }
            if inner.state.is_some_and(|s| !std::ptr::eq(s, ctx.state)) {
                return Err("the graph's other parameters live on another device".to_string());
            }
            inner.state = Some(ctx.state);
            let index = inner.parameters.names.len();
            if index * SLOT / CHUNK >= inner.parameters.chunks.len() {
                inner.parameters.chunks.push(spare.clone());
            }
            inner.parameters.names.push((name, dtype));
            Ok((index, inner.parameters.chunks[index * SLOT / CHUNK].clone()))
        })?;
        let layout = Layout::contiguous(&[]).py()?;
        let array = GPUArray::of(ctx.state, storage, index * SLOT % CHUNK, layout, dtype.dtype);
        let scalar = match value {
            Some(value) => Scalar::read(value)?.ok_or_else(|| misuse("a parameter's value must be a Python number"))?,
            None => Scalar::Int(0),
        };
        write(&ctx, &array, scalar)?;
        Ok(array)
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
        if let Some(parameters) = parameters {
            for (name, value) in parameters.iter() {
                let name = name.cast_into::<PyString>()?;
                let array = self.find_parameter(&name.to_cow()?)?;
                let scalar =
                    Scalar::read(&value)?.ok_or_else(|| misuse("a parameter's value must be a Python number"))?;
                write(&ctx, &array, scalar)?;
            }
        }
        graph.replay(&ctx).py()
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

    fn find_parameter(&self, name: &str) -> PyResult<GPUArray> {
        let layout = Layout::contiguous(&[]).py()?;
        self.change(|inner| {
            let Some(index) = inner.parameters.names.iter().position(|(n, _)| n == name) else {
                let known: Vec<&str> = inner.parameters.names.iter().map(|(n, _)| n.as_str()).collect();
                return Err(format!("the graph has no parameter '{name}'; it has: {}", known.join(", ")));
            };
            let state = inner.state.ok_or("the graph has no device yet")?;
            let storage = inner.parameters.chunks[index * SLOT / CHUNK].clone();
            Ok(GPUArray::of(state, storage, index * SLOT % CHUNK, layout, inner.parameters.names[index].1.dtype))
        })
    }
}

/// Put one value into device memory, in stream order.
fn write(ctx: &ExecCtx, array: &GPUArray, value: Scalar) -> PyResult<()> {
    let size = array.dtype.itemsize();
    let kept: Arc<[u8; 16]> = Arc::new(value.element(array.dtype)?);
    let copy = Copy {
        kind: CopyKind::HostToDevice,
        dst: array.ptr(),
        src: kept.as_ptr() as u64,
        bytes: size,
        keep: Some(kept),
    };
    submit(ctx, Command { work: Work::Copy(copy), uses: smallvec![array.used(Access::Write)?], cost_key: 0 }).py()
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
    Ok(())
}
