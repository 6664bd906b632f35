//! Devices and the current execution context.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use pygpukit_core::cpu::{CpuConfig, CpuDevice};
use pygpukit_core::cuda::device::CudaDevice;
use pygpukit_core::cuda::driver::Driver;
use pygpukit_core::device::{DeviceKind, SharedDevice};
use pygpukit_core::exec::{self, ExecCtx};
use pygpukit_core::memory::ArenaMode;
use pygpukit_core::runtime::{self, DeviceState};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyModule};

use crate::errors::{ToPy, check_signals, raise};
use crate::inside::{Inside, detached};
use crate::stream::refuse_in_capture;

static DEFAULT: OnceLock<&'static DeviceState> = OnceLock::new();
static DRIVER: Mutex<Option<Arc<Driver>>> = Mutex::new(None);

/// The driver, opened once; a failure is not remembered, so that a fixed environment can be tried again.
fn driver() -> pygpukit_core::Result<Arc<Driver>> {
    let mut slot = DRIVER.lock();
    if let Some(driver) = &*slot {
        return Ok(driver.clone());
    }
    let opened = Driver::open()?;
    *slot = Some(opened.clone());
    Ok(opened)
}

/// An open device.
#[pyclass(frozen, module = "pygpukit", name = "Device", weakref)]
pub struct PyDevice {
    pub state: &'static DeviceState,
}

#[pymethods]
impl PyDevice {
    /// "cuda", "cpu", or "emulated": the CPU device with operators run by their kernels.
    #[getter]
    fn kind(&self) -> &'static str {
        match self.state.device.props().kind {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Emulated => "emulated",
            DeviceKind::Cuda => "cuda",
        }
    }

    /// Number of the device among its kind.
    #[getter]
    fn index(&self) -> i32 {
        self.state.device.props().ordinal
    }

    /// Tells this device from every other that the process has opened.
    #[getter]
    fn _number(&self) -> u32 {
        self.state.number
    }

    /// What the driver or the operating system calls it.
    #[getter]
    fn name(&self) -> &str {
        &self.state.device.props().name
    }

    /// Compute capability, such as (9, 0); on the CPU device that of the kernels it runs.
    #[getter]
    fn capability(&self) -> (i32, i32) {
        self.state.device.props().capability
    }

    /// Everything known about the device, by name.
    fn properties<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let p = self.state.device.props();
        let d = PyDict::new(py);
        d.set_item("name", &p.name)?;
        d.set_item("kind", self.kind())?;
        d.set_item("index", p.ordinal)?;
        d.set_item("capability", p.capability)?;
        d.set_item("sm_count", p.sm_count)?;
        d.set_item("total_memory", p.total_memory)?;
        d.set_item("l2_bytes", p.l2_bytes)?;
        d.set_item("max_threads_per_block", p.max_threads_per_block)?;
        d.set_item("max_block", p.max_block)?;
        d.set_item("max_grid", p.max_grid)?;
        d.set_item("shared_per_block", p.shared_per_block)?;
        d.set_item("shared_per_block_optin", p.shared_per_block_optin)?;
        d.set_item("shared_per_sm", p.shared_per_sm)?;
        d.set_item("max_threads_per_sm", p.max_threads_per_sm)?;
        d.set_item("clock_khz", p.clock_khz)?;
        d.set_item("memory_clock_khz", p.memory_clock_khz)?;
        d.set_item("memory_bus_bits", p.memory_bus_bits)?;
        d.set_item("driver_version", p.driver_version)?;
        d.set_item("pci_bus_id", &p.pci_bus_id)?;
        d.set_item("uuid", &p.uuid)?;
        d.set_item("features", p.features.clone())?;
        Ok(d)
    }

    /// Free and total bytes on the device.
    fn memory_info(&self) -> PyResult<(usize, usize)> {
        self.state.check().py()?;
        self.state.device.memory_info().py()
    }

    /// Wait for all streams of the device.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        refuse_in_capture("synchronize a device")?;
        detached(py, || self.state.synchronize(&mut check_signals))
    }

    /// Make it the current device of this thread, until `_leave`.
    fn _enter(slf: &Bound<'_, Self>) -> PyResult<()> {
        let state = slf.get().state;
        let ctx = match exec::current() {
            // The device is current already: stream, pool and capture stay.
            Some(ctx) if std::ptr::eq(ctx.state, state) => ExecCtx::clone(&ctx),
            Some(ctx) => {
                refuse_other_device(&ctx)?;
                ExecCtx::default_for(state)
            }
            None => ExecCtx::default_for(state),
        };
        exec::enter(ctx, slf.as_ptr() as usize);
        Ok(())
    }

    fn _leave(slf: &Bound<'_, Self>) -> PyResult<()> {
        exec::leave(slf.as_ptr() as usize).py()
    }

    /// Most bytes of page-locked host memory held for it.
    fn _set_pinned_limit(&self, bytes: usize) {
        self.state.pinned.set_limit(bytes);
    }

    /// Most bytes of other host memory for evicted arrays.
    fn _set_spill_limit(&self, bytes: usize) {
        self.state.arena.set_spill_limit(bytes);
    }

    /// Make it the device of every thread that has not chosen one. The first call wins.
    fn _set_default(&self) -> bool {
        DEFAULT.set(self.state).is_ok()
    }

    fn __repr__(&self) -> String {
        match self.state.device.props().kind {
            DeviceKind::Cpu | DeviceKind::Emulated => format!("<Device {}>", self.kind()),
            DeviceKind::Cuda => format!("<Device cuda:{} {}>", self.index(), self.name()),
        }
    }
}

fn opened(device: SharedDevice, mode: ArenaMode, evicting: bool) -> PyResult<PyDevice> {
    let state = DeviceState::new(device, mode, evicting).py()?;
    runtime::register(state);
    Ok(PyDevice { state })
}

fn arena_mode(device: &dyn pygpukit_core::device::Device, pooled: bool) -> ArenaMode {
    match (pooled, device.vmm_granularity()) {
        (false, _) => ArenaMode::None,
        (true, Some(_)) => ArenaMode::Vmm,
        (true, None) => ArenaMode::Plain,
    }
}

/// Open a CUDA device. `pooled=False` gives every array its own allocation; with `evicting`, arrays of the default pool
/// move to the host when memory is short.
#[pyfunction]
#[pyo3(signature = (ordinal, pooled=true, evicting=false))]
fn open_cuda(py: Python<'_>, ordinal: i32, pooled: bool, evicting: bool) -> PyResult<PyDevice> {
    detached(py, || CudaDevice::open(driver()?, ordinal))
        .and_then(|device| opened(device.clone(), arena_mode(&*device, pooled), evicting))
}

/// Open a CPU device. `deferred` is the seed of the order in which queued work runs; None runs it at once.
#[pyfunction]
#[pyo3(signature = (total_memory=None, deferred=None, pooled=true, emulated=false, capability=None, check=false, kernel_timeout=None, evicting=false, sm_count=None))]
#[allow(clippy::too_many_arguments)]
fn open_cpu(
    total_memory: Option<usize>,
    deferred: Option<u64>,
    pooled: bool,
    emulated: bool,
    capability: Option<(i32, i32)>,
    check: bool,
    kernel_timeout: Option<u32>,
    evicting: bool,
    sm_count: Option<u32>,
) -> PyResult<PyDevice> {
    let config = CpuConfig { total_memory, deferred, emulated, capability, check, kernel_timeout, sm_count };
    let device = CpuDevice::new(config);
    opened(device.clone(), arena_mode(&*device, pooled), evicting)
}

/// CUDA version of the driver as 1000 * major + 10 * minor; None where no driver can be used.
#[pyfunction]
fn driver_version() -> Option<i32> {
    driver().ok().map(|d| d.version())
}

/// Path of the driver library. Raises, with what was searched, where no driver can be used.
#[pyfunction]
fn driver_path() -> PyResult<String> {
    driver().map(|d| d.path().to_string()).py()
}

/// Number of CUDA devices. Raises where there is no driver.
#[pyfunction]
fn cuda_device_count() -> PyResult<usize> {
    driver().and_then(|d| d.device_count()).py()
}

/// The current thread's context; the first use in the process picks the default device.
#[inline]
pub fn context(py: Python<'_>) -> PyResult<Arc<ExecCtx>> {
    match exec::current() {
        Some(ctx) => Ok(ctx),
        None => first_context(py),
    }
}

#[cold]
fn first_context(py: Python<'_>) -> PyResult<Arc<ExecCtx>> {
    if DEFAULT.get().is_none() {
        let _inside = Inside::enter().py()?;
        PyModule::import(py, "pygpukit.core.device")?.getattr("open_default")?.call0()?;
    }
    let state = DEFAULT.get().ok_or_else(|| PyRuntimeError::new_err("no default device was opened"))?;
    exec::push(ExecCtx::default_for(state));
    exec::current().ok_or_else(|| PyRuntimeError::new_err("no current device"))
}

/// The current thread's context, or the default one of the array's own device when that is another.
#[inline]
pub fn context_for(py: Python<'_>, state: &'static DeviceState) -> PyResult<Arc<ExecCtx>> {
    let ctx = context(py)?;
    if std::ptr::eq(ctx.state, state) {
        return Ok(ctx);
    }
    refuse_other_device(&ctx)?;
    Ok(Arc::new(ExecCtx::default_for(state)))
}

/// Work on another device cannot be part of a capture, and doing it at once would read what has not run yet.
fn refuse_other_device(ctx: &ExecCtx) -> PyResult<()> {
    match &ctx.recorder {
        None => Ok(()),
        Some(_) => {
            Err(raise("GraphError", "a graph is captured on one device; work on another cannot be recorded".into()))
        }
    }
}

/// The current device of this thread.
#[pyfunction]
fn current_device(py: Python<'_>) -> PyResult<PyDevice> {
    Ok(PyDevice { state: context(py)?.state })
}

/// An execution context, held across the steps of a coroutine.
#[pyclass(frozen, module = "pygpukit", name = "ExecContext")]
pub struct ExecContext {
    ctx: Option<Arc<ExecCtx>>,
}

impl ExecContext {
    pub fn of(ctx: ExecCtx) -> ExecContext {
        ExecContext { ctx: Some(Arc::new(ctx)) }
    }
}

/// Install a context in this thread and return the one it replaces.
#[pyfunction]
fn swap_context(context: Option<&Bound<'_, ExecContext>>) -> ExecContext {
    ExecContext { ctx: exec::swap(context.and_then(|c| c.get().ctx.clone())) }
}

/// In a forked child: take no turns with the parent's tasks, and wait for none of its threads.
#[pyfunction]
fn forget_tasks() {
    crate::inside::forget_threads();
    runtime::forget_tasks();
}

/// Other threads in native code, without the interpreter: a fork now leaves their locks locked in the child.
#[pyfunction]
fn busy_threads() -> usize {
    pygpukit_core::forks::others()
}

/// The context of this thread, to be installed elsewhere.
#[pyfunction]
fn current_context(py: Python<'_>) -> PyResult<ExecContext> {
    Ok(ExecContext { ctx: Some(context(py)?) })
}

/// Wait after every submission, so that a fault is reported by the launch that caused it.
#[pyfunction]
fn set_sync_every_submission(on: bool) {
    runtime::set_sync_every_submission(on);
}

/// Write errors to stderr that nobody will ask for any more.
fn report_last_errors(py: Python<'_>) {
    let mut text = String::new();
    for error in runtime::take_unreported() {
        text.push_str(&format!(
            "pygpukit: work in the background failed, and the program ended without waiting for it: {error}\n"
        ));
    }
    if !text.is_empty() {
        // Without a place to write to there is none to complain to.
        let _ = PyModule::import(py, "sys").and_then(|sys| sys.getattr("stderr")?.call_method1("write", (text,)));
    }
}

/// Make no driver call any more: the interpreter is going away.
#[pyfunction]
fn shutdown(py: Python<'_>) {
    report_last_errors(py);
    if !runtime::is_stranded() {
        py.detach(pygpukit_core::ring::resident::shutdown);
    }
    runtime::shutdown();
    py.detach(pygpukit_core::host::quiesce);
    crate::inside::wait(py);
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyDevice>()?;
    m.add_class::<ExecContext>()?;
    m.add_function(wrap_pyfunction!(open_cuda, m)?)?;
    m.add_function(wrap_pyfunction!(open_cpu, m)?)?;
    m.add_function(wrap_pyfunction!(driver_version, m)?)?;
    m.add_function(wrap_pyfunction!(driver_path, m)?)?;
    m.add_function(wrap_pyfunction!(cuda_device_count, m)?)?;
    m.add_function(wrap_pyfunction!(current_device, m)?)?;
    m.add_function(wrap_pyfunction!(swap_context, m)?)?;
    m.add_function(wrap_pyfunction!(forget_tasks, m)?)?;
    m.add_function(wrap_pyfunction!(busy_threads, m)?)?;
    m.add_function(wrap_pyfunction!(current_context, m)?)?;
    m.add_function(wrap_pyfunction!(set_sync_every_submission, m)?)?;
    m.add_function(wrap_pyfunction!(shutdown, m)?)?;
    Ok(())
}
