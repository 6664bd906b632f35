//! `SchedulerCore` and `TaskLease`: the scheduler of a device, as the Python package uses it.

use std::collections::HashMap;
#[cfg(unix)]
use std::os::fd::BorrowedFd;
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use parking_lot::Mutex;
use pygpukit_core::exec::{self, ExecCtx};
use pygpukit_core::lane::Lane;
use pygpukit_core::sched::clock::Monotonic;
use pygpukit_core::sched::usage::Usage;
use pygpukit_core::sched::{
    Class, Mode, Options, PartitionId, PartitionSpec, Request, Row, Scheduler, Share, TaskId, Tenant, Verdict,
};
#[cfg(unix)]
use pygpukit_core::sched::{Gate, Orders};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyModule};

use crate::device::{ExecContext, PyDevice};
use crate::errors::{ToPy, check_signals};
use crate::inside::{detached, released};
use crate::pool::{PyPool, size};
use crate::qos::{Asked, Number, bytes, number, raised, usage_dict};
use crate::stream::PyStream;

/// One row of a trace: task, lane, its SMs, start and length in seconds, submissions, begin and end of submitting.
type TraceRow = (String, u32, u32, f64, f64, u32, f64, f64);

/// The scheduler of one device.
#[pyclass(frozen, weakref, module = "pygpukit", name = "SchedulerCore")]
pub struct SchedulerCore {
    core: Arc<Scheduler>,
    requests: Mutex<HashMap<TaskId, Request>>,
}

impl SchedulerCore {
    fn partition(&self, name: &str) -> PyResult<PartitionId> {
        self.core.find_partition(name).ok_or_else(|| {
            let known: Vec<String> = self.core.usage().iter().map(|part| format!("'{}'", part.name)).collect();
            PyValueError::new_err(format!("there is no partition '{name}'; there is {}", known.join(", ")))
        })
    }
}

#[pymethods]
impl SchedulerCore {
    #[new]
    #[pyo3(signature = (device, total_memory=None, fine=false, queue_limit=None, lending=false))]
    fn new(
        device: &Bound<'_, PyDevice>,
        total_memory: Option<&Bound<'_, PyAny>>,
        fine: bool,
        queue_limit: Option<usize>,
        lending: bool,
    ) -> PyResult<SchedulerCore> {
        let state = device.get().state;
        let memory = total_memory.map(size).transpose()?.map(|bytes| bytes as u64);
        let there = state.device.props().total_memory as u64;
        if memory.is_some_and(|bytes| bytes > there) {
            return Err(PyValueError::new_err(format!(
                "total_memory={} is more than the device has ({there} bytes)",
                memory.unwrap_or(0)
            )));
        }
        let options = Options { memory, fine, queue_limit, lending };
        let core = Scheduler::new(state, options, Arc::new(Monotonic)).py()?;
        Ok(SchedulerCore { core: Arc::new(core), requests: Mutex::default() })
    }

    /// Number, decision and reason of a new task.
    #[pyo3(signature = (
        *, policy=None, memory=None, memory_soft=None, memory_limit=None, bandwidth=None, bandwidth_limit=None,
        weight=None, priority=None, deadline=None, period=None, cost=None, isolation=None, on_full=None,
        partition="default"
    ))]
    #[expect(clippy::too_many_arguments, reason = "the arguments of Scheduler.submit")]
    fn submit(
        &self,
        policy: Option<&str>,
        memory: Option<&Bound<'_, PyAny>>,
        memory_soft: Option<&Bound<'_, PyAny>>,
        memory_limit: Option<&Bound<'_, PyAny>>,
        bandwidth: Option<Number<f64>>,
        bandwidth_limit: Option<Number<f64>>,
        weight: Option<Number<i64>>,
        priority: Option<Number<i32>>,
        deadline: Option<Number<f64>>,
        period: Option<Number<f64>>,
        cost: Option<Number<f64>>,
        isolation: Option<&str>,
        on_full: Option<&str>,
        partition: &str,
    ) -> PyResult<(TaskId, &'static str, Option<String>, &'static str)> {
        let asked = Asked {
            policy,
            memory,
            memory_soft,
            memory_limit,
            bandwidth,
            bandwidth_limit,
            weight,
            priority,
            deadline,
            period,
            cost,
            isolation,
            on_full,
        };
        let request = Request { partition: self.partition(partition)?, ..asked.request()? };
        let (id, decision) = self.core.submit(request).py()?;
        if decision.verdict != Verdict::Rejected {
            self.requests.lock().insert(id, request);
        }
        let reason = decision.shortage.map(|shortage| shortage.to_string());
        Ok((id, decision.verdict.name(), reason, request.class.name()))
    }

    /// Give an admitted task its lane and memory.
    #[pyo3(signature = (id, name, sandbox=false))]
    fn start(&self, py: Python<'_>, id: TaskId, name: &str, sandbox: bool) -> PyResult<TaskLease> {
        let request = self.requests.lock().get(&id).copied();
        let Some(request) = request else {
            return Err(PyValueError::new_err(format!("there is no task {id} to start")));
        };
        let core = self.core.clone();
        let tenant = detached(py, || core.start(id, name, request, sandbox, &mut check_signals))?;
        Ok(TaskLease { core: self.core.clone(), tenant })
    }

    /// End a task, wherever it is; returns the numbers of those admitted in its place.
    fn finish(&self, py: Python<'_>, id: TaskId) -> PyResult<Vec<TaskId>> {
        let admitted = detached(py, || self.core.finish(id, &mut check_signals))?;
        self.requests.lock().remove(&id);
        Ok(admitted)
    }

    /// Place of a waiting task in the queue, from 0.
    fn position(&self, id: TaskId) -> Option<usize> {
        self.core.position(id)
    }

    /// Why a task waits now.
    fn reason(&self, id: TaskId) -> Option<String> {
        self.core.reason(id).map(|shortage| shortage.to_string()).or_else(|| self.core.delay(id))
    }

    /// Make a partition; refused with the inequality that failed.
    #[pyo3(signature = (
        name, memory=None, compute=None, *, memory_limit=None, compute_limit=None, priority_band=None, isolation=None,
        classes=None, queue_limit=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "the arguments of Scheduler.create_partition")]
    fn create_partition(
        &self,
        py: Python<'_>,
        name: &str,
        memory: Option<&Bound<'_, PyAny>>,
        compute: Option<Number<f64>>,
        memory_limit: Option<&Bound<'_, PyAny>>,
        compute_limit: Option<Number<f64>>,
        priority_band: Option<(Number<i32>, Number<i32>)>,
        isolation: Option<&str>,
        classes: Option<Vec<String>>,
        queue_limit: Option<Number<usize>>,
    ) -> PyResult<()> {
        let mut spec = PartitionSpec::new(name);
        spec.memory = memory.map_or(Ok(0), bytes)?;
        spec.memory_limit = memory_limit.map(bytes).transpose()?;
        let share = |name: &str, value| number(value).map(|v| raised(Share::from_f64(name, v))).transpose();
        spec.compute = share("compute", compute)?.unwrap_or_default();
        spec.compute_limit = share("compute_limit", compute_limit)?;
        spec.priority_band = priority_band.map_or(spec.priority_band, |(lowest, highest)| (lowest.0, highest.0));
        if let Some(isolation) = isolation {
            spec.isolation = raised(isolation.parse())?;
        }
        if let Some(classes) = classes {
            let read: PyResult<Vec<Class>> = classes.iter().map(|name| raised(name.parse())).collect();
            spec.classes = read?;
        }
        spec.queue_limit = number(queue_limit);
        let core = self.core.clone();
        detached(py, move || core.create_partition(spec, &mut check_signals)).map(drop)
    }

    /// Numbers of the tasks admitted since partitions have changed.
    fn admit_waiting(&self) -> Vec<TaskId> {
        self.core.admit_waiting()
    }

    /// Remove an empty partition; returns the numbers of tasks admitted in its place.
    fn remove_partition(&self, py: Python<'_>, name: &str) -> PyResult<Vec<TaskId>> {
        let id = self.partition(name)?;
        detached(py, || self.core.remove_partition(id))
    }

    /// What is reserved and in use, by partition.
    fn partitions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let rows = PyList::empty(py);
        for usage in self.core.usage() {
            let row = usage_dict(py, &usage)?;
            row.set_item("name", &*usage.name)?;
            if let Some(pool) = self.core.pool(usage.id) {
                row.set_item("memory_used", pool.used())?;
                row.set_item("memory_limit", pool.quota())?;
            }
            if let Some(spec) = self.core.partition_spec(usage.id) {
                row.set_item("compute", spec.compute.as_f64())?;
                row.set_item("compute_limit", spec.compute_limit.map(Share::as_f64))?;
                row.set_item("isolation", spec.isolation.name())?;
            }
            rows.append(row)?;
        }
        Ok(rows)
    }

    /// What the device has to give, and how it is given.
    fn capacity<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let capacity = self.core.capacity();
        let row = PyDict::new(py);
        row.set_item("memory", capacity.memory)?;
        row.set_item("sms", capacity.sms)?;
        row.set_item("granule", capacity.granule)?;
        row.set_item("divisible", capacity.divisible)?;
        row.set_item("max_lanes", capacity.max_lanes)?;
        row.set_item("queue_limit", capacity.queue_limit)?;
        row.set_item("mechanism", self.core.mechanism())?;
        Ok(row)
    }

    /// What work that belongs to no task has used, while tasks share the device.
    fn unscheduled<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let lease = self.core.state().unscheduled();
        lease.map(|lease| used_dict(py, &lease.used(), self.core.now())).transpose()
    }

    /// Seconds on the clock of the scheduler's figures.
    fn now(&self) -> f64 {
        self.core.now() as f64 / 1e9
    }

    /// Let the process at the other end of a socket say when work of this one may run, until it ends.
    #[cfg(unix)]
    fn hold_back(&self, socket: i32) -> PyResult<TurnOrders> {
        let gate = self.core.common();
        let orders = gate.hold_back(own_socket(socket)?).py()?;
        Ok(TurnOrders { gate, orders: Mutex::new(Some(orders)) })
    }

    fn set_trace(&self, on: bool) {
        self.core.set_trace(on);
    }

    /// Rows since the trace began or was last taken.
    fn take_trace(&self) -> Vec<TraceRow> {
        let rows = self.core.take_trace().into_iter();
        let seconds = |ns: u64| ns as f64 / 1e9;
        let row = |r: Row| {
            let (begun, ended) = r.submitted_ns;
            let times = (seconds(r.start_ns), seconds(r.ns), seconds(begun), seconds(ended));
            (r.name.to_string(), r.lane, r.sms, times.0, times.1, r.submissions, times.2, times.3)
        };
        rows.map(row).collect()
    }
}

/// An admitted task's lane, stream and memory.
#[pyclass(frozen, weakref, module = "pygpukit", name = "TaskLease")]
pub struct TaskLease {
    core: Arc<Scheduler>,
    tenant: Arc<Tenant>,
}

impl TaskLease {
    /// The lane of the task's work.
    pub(crate) fn lane(&self) -> Arc<Lane> {
        self.tenant.lease.lane()
    }

    fn context(&self) -> ExecCtx {
        let mut ctx = ExecCtx::default_for(self.core.state()).on_stream(&self.tenant.stream);
        ctx.pool = self.tenant.pool.clone();
        ctx.task = Some(self.tenant.name.clone());
        ctx.lease = Some(self.tenant.lease.clone());
        ctx
    }
}

#[pymethods]
impl TaskLease {
    /// Run what follows in this thread as the task, until `_leave`.
    fn _enter(slf: &Bound<'_, Self>) {
        exec::enter(slf.get().context(), slf.as_ptr() as usize);
    }

    fn _leave(slf: &Bound<'_, Self>) -> PyResult<()> {
        let by = slf.as_ptr() as usize;
        // In the wrong order too: the thread must not stay in memory that is not the task's any more.
        exec::leave(by).inspect_err(|_| exec::remove(by)).py()
    }

    /// The context of the task's work, for coroutines.
    fn exec_context(&self) -> ExecContext {
        ExecContext::of(self.context())
    }

    /// Refuse further work of the task; what is in flight goes on.
    fn end(&self, py: Python<'_>) {
        released(py, || self.tenant.lease.end());
    }

    #[getter]
    fn is_ended(&self) -> bool {
        self.tenant.lease.is_ended()
    }

    /// Let others have the lane, if they want it.
    fn give_way(&self, py: Python<'_>) {
        released(py, || self.tenant.lease.give_way());
    }

    /// Wait for a turn, and hold it while another library submits work of this kind. Returns the handle of the stream.
    fn begin_external(&self, kind: i64) -> PyResult<usize> {
        let tenant = &self.tenant;
        self.core.state().check().py()?;
        tenant.lease.begin_external(&tenant.stream, kind as u64).map(|raw| raw.0).py()
    }

    /// Let go of the turn; with `measured` its device time is measured apart from what follows.
    fn end_external(&self, measured: bool) {
        self.tenant.lease.end_external(measured);
    }

    /// Does anything limit its memory, or keep some for it?
    #[getter]
    fn bounds_memory(&self) -> bool {
        let mut pools = std::iter::successors(Some(&self.tenant.pool), |pool| pool.parent());
        pools.any(|pool| pool.quota().is_some() || pool.guarantee() > 0)
    }

    /// Whoever holds a turn does not any more.
    fn end_all_external(&self) {
        self.tenant.lease.end_all_external();
    }

    /// A job is due in so many seconds and may use this much device time first.
    fn begin_job(&self, deadline: f64, budget: f64) {
        let ns = |seconds: f64| (seconds.max(0.0) * 1e9) as u64;
        self.tenant.lease.begin_job(self.core.now() + ns(deadline), ns(budget));
    }

    fn end_job(&self) {
        self.tenant.lease.end_job();
    }

    /// Take turns for the process at the other end of a socket, until it or the task ends.
    #[cfg(unix)]
    fn lend(&self, py: Python<'_>, socket: i32) -> PyResult<()> {
        let socket = own_socket(socket)?;
        let lease = self.tenant.lease.clone();
        detached(py, move || lease.lend(socket))
    }

    /// How the process does that turns are lent to: "absent", "running", "overrunning" or "unresponsive".
    #[cfg(unix)]
    #[getter]
    fn health(&self) -> &'static str {
        self.tenant.lease.health().name()
    }

    #[getter]
    fn stream(&self) -> PyStream {
        PyStream::borrowed(self.core.state(), &self.tenant.stream)
    }

    #[getter]
    fn pool(&self) -> PyPool {
        PyPool::of(self.core.state(), &self.tenant.pool)
    }

    /// "own lane", "time share" or "process".
    #[getter]
    fn mode(&self) -> &'static str {
        match self.tenant.placement.mode {
            Mode::OwnLane(_) => "own lane",
            Mode::TimeShare => "time share",
            Mode::Process => "process",
        }
    }

    /// What was used so far.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let lease = &self.tenant.lease;
        let used = released(py, || lease.used());
        let row = used_dict(py, &used, self.core.now())?;
        let lane = lease.lane();
        row.set_item("mode", self.mode())?;
        row.set_item("lane", lane.id())?;
        row.set_item("sm_count", lane.sm_count())?;
        row.set_item("waiting", lease.waiting())?;
        let (evictions, restores) = self.tenant.pool.moves();
        row.set_item("evictions", evictions)?;
        row.set_item("restores", restores)?;
        let holder = lease.gate().holder();
        row.set_item("lane_holder", holder.as_deref())?;
        let ahead = lease.gate().busy_until().saturating_sub(self.core.now());
        row.set_item("lane_busy_seconds", ahead as f64 / 1e9)?;
        Ok(row)
    }
}

/// What another process has to say about this one's turns.
#[cfg(unix)]
#[pyclass(frozen, module = "pygpukit", name = "TurnOrders")]
pub struct TurnOrders {
    gate: Arc<Gate>,
    orders: Mutex<Option<Orders>>,
}

#[cfg(unix)]
#[pymethods]
impl TurnOrders {
    /// Do what it says, until it ends.
    fn obey(&self, py: Python<'_>) -> PyResult<()> {
        let orders = self.orders.lock().take();
        let Some(orders) = orders else { return Err(PyValueError::new_err("these orders are obeyed already")) };
        detached(py, || self.gate.obey(orders))
    }

    /// Tell it what those have used that have ended here.
    fn report(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.gate.report())
    }
}

/// The socket, under a descriptor of our own.
#[cfg(unix)]
fn own_socket(descriptor: i32) -> PyResult<UnixStream> {
    if descriptor < 0 {
        return Err(PyValueError::new_err(format!("{descriptor} is not a socket: it was closed")));
    }
    // SAFETY: it is used only here, to make another of the same; one that is closed is refused by the system.
    let theirs = unsafe { BorrowedFd::borrow_raw(descriptor) };
    Ok(theirs.try_clone_to_owned()?.into())
}

fn used_dict<'py>(py: Python<'py>, used: &Usage, now: u64) -> PyResult<Bound<'py, PyDict>> {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let row = PyDict::new(py);
    row.set_item("gpu_seconds", seconds(used.measured_ns + used.predicted_ns))?;
    row.set_item("measured_seconds", seconds(used.measured_ns))?;
    row.set_item("device_seconds", seconds(used.weighted_ns))?;
    row.set_item("share", used.share(now))?;
    row.set_item("submissions", used.submissions)?;
    row.set_item("slices", used.slices)?;
    row.set_item("turns", used.turns)?;
    row.set_item("throttled", used.waits)?;
    row.set_item("throttled_seconds", seconds(used.waited_ns))?;
    let log: Vec<(f64, f64, &str)> =
        used.log().map(|wait| (seconds(wait.at), seconds(wait.ns), wait.why.name())).collect();
    row.set_item("throttle_log", log)?;
    Ok(row)
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<SchedulerCore>()?;
    #[cfg(unix)]
    m.add_class::<TurnOrders>()?;
    m.add_class::<TaskLease>()
}
