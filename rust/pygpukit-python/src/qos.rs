//! `QosPolicyEvaluator` and `QosTaskMeta`: admission for programs that only want its answers.

use std::collections::HashMap;

use parking_lot::Mutex;
use pygpukit_core::error::Error;
use pygpukit_core::sched::{
    Admission, Capacity, Class, Decision, Given, PartitionId, PartitionUsage, Policy, Request, Share, TaskId, Verdict,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyModule};

use crate::errors::to_py;
use crate::pool::size;

/// The core's errors of admission as Python exceptions.
pub fn raised<T, E: Into<Error>>(result: Result<T, E>) -> PyResult<T> {
    result.map_err(|error| to_py(error.into()))
}

/// Bytes meant by a number or a text.
pub fn bytes(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    size(value).map(|bytes| bytes as u64)
}

/// An argument that is a number, and not a bool, which Python takes for one.
#[derive(Clone, Copy)]
pub struct Number<T>(pub T);

impl<'a, 'py, T> FromPyObject<'a, 'py> for Number<T>
where
    T: FromPyObject<'a, 'py>,
    PyErr: From<T::Error>,
{
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Number<T>> {
        if value.is_instance_of::<PyBool>() {
            return Err(PyTypeError::new_err(format!("{} is a bool, not a number", *value)));
        }
        Ok(Number(value.extract()?))
    }
}

/// The number of an argument, if it was given.
pub fn number<T>(value: Option<Number<T>>) -> Option<T> {
    value.map(|Number(number)| number)
}

/// Nanoseconds of an argument in seconds.
pub fn nanoseconds(name: &str, value: Option<Number<f64>>) -> PyResult<Option<u64>> {
    // Thirty years; more would not fit the core's numbers.
    const LONGEST: f64 = 1e9;
    let Some(Number(value)) = value else { return Ok(None) };
    if !(value > 0.0 && value <= LONGEST) {
        let text = format!("{name}={value} is not a time: give seconds above 0, up to {LONGEST:e}");
        return Err(PyValueError::new_err(text));
    }
    Ok(Some(((value * 1e9).round() as u64).max(1)))
}

/// What a user asks for, by the names of the arguments.
#[derive(Default)]
pub struct Asked<'a, 'py> {
    pub policy: Option<&'a str>,
    pub memory: Option<&'a Bound<'py, PyAny>>,
    pub memory_soft: Option<&'a Bound<'py, PyAny>>,
    pub memory_limit: Option<&'a Bound<'py, PyAny>>,
    pub bandwidth: Option<Number<f64>>,
    pub bandwidth_limit: Option<Number<f64>>,
    pub weight: Option<Number<i64>>,
    pub priority: Option<Number<i32>>,
    pub deadline: Option<Number<f64>>,
    pub period: Option<Number<f64>>,
    pub cost: Option<Number<f64>>,
    pub isolation: Option<&'a str>,
    pub on_full: Option<&'a str>,
}

impl Asked<'_, '_> {
    /// The request, checked; without a policy its class follows from what is asked for.
    pub fn request(&self) -> PyResult<Request> {
        let share = |name: &str, value| number(value).map(|v| raised(Share::from_f64(name, v))).transpose();
        let mut request = Request::new(Class::BestEffort);
        request.memory = self.memory.map_or(Ok(0), bytes)?;
        request.memory_soft = self.memory_soft.map_or(Ok(0), bytes)?;
        request.memory_limit = self.memory_limit.map(bytes).transpose()?;
        request.bandwidth = share("bandwidth", self.bandwidth)?.unwrap_or_default();
        request.bandwidth_limit = share("bandwidth_limit", self.bandwidth_limit)?;
        request.weight = match self.weight {
            None => 1,
            Some(Number(weight)) => u32::try_from(weight).map_err(|_| {
                PyValueError::new_err(format!("weight={weight} is out of range: give an int from 1 to {}", u32::MAX))
            })?,
        };
        request.priority = number(self.priority).unwrap_or(0);
        request.deadline_ns = nanoseconds("deadline", self.deadline)?;
        request.period_ns = nanoseconds("period", self.period)?;
        request.cost_ns = nanoseconds("cost", self.cost)?;
        request.isolation = self.isolation.map_or(Ok(request.isolation), |name| raised(name.parse()))?;
        request.on_full = self.on_full.map_or(Ok(request.on_full), |name| raised(name.parse()))?;
        let given = Given {
            memory: request.reserved_memory() > 0,
            bandwidth: request.bandwidth > Share::ZERO,
            deadline: request.relative_deadline().is_some(),
            cost: request.cost_ns.is_some(),
            priority: self.priority.is_some(),
        };
        let policy = self.policy.map_or_else(|| Ok(Policy::default_for(given)), |name| raised(name.parse()))?;
        request.class = raised(policy.class(given))?;
        raised(request.validate())?;
        Ok(request)
    }
}

/// What a task asks for, as a value.
///
/// Parameters
/// ----------
/// id : str
///     Names the task towards an evaluator or a partition manager.
/// name : str
///     For people.
/// policy : str, optional
///     guaranteed, burstable, besteffort, priority, deadline or fair. Without one it is burstable where something is
///     to be kept for the task, else besteffort.
/// memory, memory_soft, memory_limit : int or str, optional
///     Bytes that are reserved, that are never evicted, and that may be in use at most.
/// bandwidth, bandwidth_limit : float, optional
///     Part of the device's compute that is kept for the task, and that it may get at most, from 0 to 1.
/// weight : int, optional
///     How idle compute is divided.
/// priority : int, optional
///     Higher ones wait less.
/// deadline, period, cost : float, optional
///     Seconds from release to deadline, between releases, and that one run takes at most.
/// isolation : str, optional
///     auto, sm, time or process.
/// on_full : str, optional
///     queue or reject.
///
/// Raises
/// ------
/// ValueError
///     If a value makes no sense; the text says which and what to do.
///
/// Examples
/// --------
/// >>> task = QosTaskMeta("t", "a task", memory="1GB", bandwidth=0.1)
/// >>> task.qos_class
/// 'burstable'
#[pyclass(frozen, module = "_pygpukit_rust", name = "QosTaskMeta")]
pub struct QosTaskMeta {
    #[pyo3(get)]
    id: String,
    #[pyo3(get)]
    name: String,
    request: Request,
}

#[pymethods]
impl QosTaskMeta {
    #[new]
    #[pyo3(signature = (
        id, name, *, policy=None, memory=None, memory_soft=None, memory_limit=None, bandwidth=None,
        bandwidth_limit=None, weight=None, priority=None, deadline=None, period=None, cost=None, isolation=None,
        on_full=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of one Python call")]
    fn new(
        id: String,
        name: String,
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
    ) -> PyResult<QosTaskMeta> {
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
        Ok(QosTaskMeta { id, name, request: asked.request()? })
    }

    /// A task whose memory and compute are kept for it alone.
    #[staticmethod]
    #[pyo3(signature = (id, name, memory=None, bandwidth=None))]
    fn guaranteed(
        id: String,
        name: String,
        memory: Option<&Bound<'_, PyAny>>,
        bandwidth: Option<Number<f64>>,
    ) -> PyResult<QosTaskMeta> {
        let asked = Asked { policy: Some("guaranteed"), memory, bandwidth, ..Asked::default() };
        Ok(QosTaskMeta { id, name, request: asked.request()? })
    }

    /// A task with something of its own, which may have more while others leave it.
    #[staticmethod]
    #[pyo3(signature = (id, name, memory=None, bandwidth=None, bandwidth_limit=None))]
    fn burstable(
        id: String,
        name: String,
        memory: Option<&Bound<'_, PyAny>>,
        bandwidth: Option<Number<f64>>,
        bandwidth_limit: Option<Number<f64>>,
    ) -> PyResult<QosTaskMeta> {
        let asked = Asked { policy: Some("burstable"), memory, bandwidth, bandwidth_limit, ..Asked::default() };
        Ok(QosTaskMeta { id, name, request: asked.request()? })
    }

    /// A task that lives on what others leave.
    #[staticmethod]
    fn best_effort(id: String, name: String) -> QosTaskMeta {
        QosTaskMeta { id, name, request: Request::new(Class::BestEffort) }
    }

    /// guaranteed, burstable or besteffort.
    #[getter]
    fn qos_class(&self) -> &'static str {
        self.request.class.name()
    }

    /// Bytes that are reserved.
    #[getter]
    fn memory(&self) -> u64 {
        self.request.memory
    }

    /// Part of the device's compute that is kept for the task.
    #[getter]
    fn bandwidth(&self) -> f64 {
        self.request.bandwidth.as_f64()
    }

    /// Higher ones wait less.
    #[getter]
    fn priority(&self) -> i32 {
        self.request.priority
    }

    fn __repr__(&self) -> String {
        let request = &self.request;
        let (class, memory, bandwidth) = (request.class, request.memory, request.bandwidth);
        format!("<QosTaskMeta '{}' {class} memory={memory} bandwidth={bandwidth}>", self.id)
    }
}

/// The answer to a task: admitted, queued or rejected, and why.
#[pyclass(frozen, module = "_pygpukit_rust", name = "QosEvaluation")]
pub struct QosEvaluation {
    verdict: Verdict,
    reason: String,
    /// It may not use all of the device's time.
    limited: bool,
}

#[pymethods]
impl QosEvaluation {
    /// It fits now.
    #[getter]
    fn admitted(&self) -> bool {
        self.verdict == Verdict::Admitted
    }

    /// It fits an empty device, but not this one now.
    #[getter]
    fn queued(&self) -> bool {
        self.verdict == Verdict::Queued
    }

    /// It never fits, or does not want to wait.
    #[getter]
    fn rejected(&self) -> bool {
        self.verdict == Verdict::Rejected
    }

    /// It fits now.
    fn is_admitted(&self) -> bool {
        self.admitted()
    }

    /// It fits an empty device, but not this one now.
    fn is_queued(&self) -> bool {
        self.queued()
    }

    /// It never fits, or does not want to wait.
    fn is_rejected(&self) -> bool {
        self.rejected()
    }

    /// It fits now, and its compute is held below the whole device: it has a `bandwidth_limit`, or its partition one.
    fn is_throttled(&self) -> bool {
        self.admitted() && self.limited
    }

    /// admitted, queued or rejected.
    #[getter]
    fn decision(&self) -> &'static str {
        self.verdict.name()
    }

    /// The inequality that failed, in numbers; empty when admitted.
    #[getter]
    fn reason(&self) -> &str {
        &self.reason
    }

    fn __repr__(&self) -> String {
        match self.reason.as_str() {
            "" => format!("<QosEvaluation {}>", self.verdict.name()),
            reason => format!("<QosEvaluation {}: {reason}>", self.verdict.name()),
        }
    }
}

/// Admission with tasks known by their own names.
pub struct Books {
    pub admission: Admission,
    ids: HashMap<String, TaskId>,
    names: HashMap<TaskId, String>,
}

impl Books {
    pub fn new(capacity: Capacity) -> PyResult<Mutex<Books>> {
        let admission = raised(Admission::new(capacity))?;
        Ok(Mutex::new(Books { admission, ids: HashMap::new(), names: HashMap::new() }))
    }

    pub fn partition(&self, name: &str) -> PyResult<PartitionId> {
        self.admission.find_partition(name).ok_or_else(|| {
            let known: Vec<String> = self.admission.usage().iter().map(|part| part.name.to_string()).collect();
            PyValueError::new_err(format!("there is no partition '{name}': there are {}", known.join(", ")))
        })
    }

    fn request(&self, task: &QosTaskMeta, partition: &str) -> PyResult<Request> {
        Ok(Request { partition: self.partition(partition)?, ..task.request })
    }

    fn answer(&self, request: &Request, decision: Decision) -> QosEvaluation {
        let of_partition = self.admission.partition_spec(request.partition).and_then(|spec| spec.compute_limit);
        let limited = request.bandwidth_limit.into_iter().chain(of_partition).any(|limit| limit < Share::ONE);
        let reason = decision.shortage.map_or_else(String::new, |shortage| {
            let first = shortage.behind.and_then(|id| self.names.get(&id));
            first.map_or_else(|| shortage.to_string(), |name| shortage.behind_task(&format!("'{name}'")))
        });
        QosEvaluation { verdict: decision.verdict, reason, limited }
    }

    pub fn evaluate(&self, task: &QosTaskMeta, partition: &str) -> PyResult<QosEvaluation> {
        let request = self.request(task, partition)?;
        Ok(self.answer(&request, raised(self.admission.evaluate(&request))?))
    }

    pub fn reserve(&mut self, task: &QosTaskMeta, partition: &str) -> PyResult<QosEvaluation> {
        if self.ids.contains_key(&task.id) {
            let text = format!("task '{}' was admitted or waits already: release it first", task.id);
            return Err(PyValueError::new_err(text));
        }
        let request = self.request(task, partition)?;
        let (id, decision) = raised(self.admission.submit(request))?;
        if decision.verdict != Verdict::Rejected {
            self.ids.insert(task.id.clone(), id);
            self.names.insert(id, task.id.clone());
        }
        Ok(self.answer(&request, decision))
    }

    pub fn release(&mut self, name: &str) -> PyResult<Vec<String>> {
        let Some(id) = self.ids.remove(name) else {
            return Err(PyValueError::new_err(format!(
                "task '{name}' is not known: it was rejected or never reserved"
            )));
        };
        self.names.remove(&id);
        let admitted = self.admission.release(id);
        Ok(self.named(&admitted))
    }

    pub fn named(&self, ids: &[TaskId]) -> Vec<String> {
        ids.iter().filter_map(|id| self.names.get(id).cloned()).collect()
    }

    pub fn usage(&self, partition: &str) -> PyResult<PartitionUsage> {
        let id = self.partition(partition)?;
        let usage = self.admission.usage().into_iter().find(|usage| usage.id == id);
        usage.ok_or_else(|| PyValueError::new_err(format!("there is no partition '{partition}'")))
    }
}

pub const DEFAULT: &str = "default";

pub fn usage_dict<'py>(py: Python<'py>, usage: &PartitionUsage) -> PyResult<Bound<'py, PyDict>> {
    let of_whole = |ppm: u64| ppm as f64 / f64::from(Share::ONE.ppm());
    let d = PyDict::new(py);
    d.set_item("memory_reserved", usage.memory_reserved)?;
    d.set_item("memory_capacity", usage.memory_capacity)?;
    d.set_item("sms", usage.sms)?;
    d.set_item("lane_sms", usage.lane_sms)?;
    d.set_item("lanes", usage.lanes)?;
    d.set_item("time_reserved", of_whole(usage.time_reserved))?;
    d.set_item("time_capacity", of_whole(usage.time_capacity))?;
    d.set_item("tasks", usage.tasks)?;
    d.set_item("waiting", usage.waiting)?;
    Ok(d)
}

/// A device that is divided where its SMs are given.
pub fn capacity(memory: u64, sms: Option<u32>, granule: u32, max_lanes: u32, queue_limit: usize) -> Capacity {
    let divided = sms.map_or_else(|| Capacity::new(memory), |sms| Capacity::divided(memory, sms, granule));
    Capacity { max_lanes, queue_limit, ..divided }
}

/// Says whether tasks fit a device of these sizes, and keeps the books of those that were reserved.
///
/// Parameters
/// ----------
/// total_memory : int or str
///     Bytes that can be reserved.
/// total_bandwidth : float
///     Part of the device's time that can be reserved, from 0 to 1.
/// sms : int, optional
///     SMs that can be given to lanes; without them every task shares the whole device.
/// granule : int
///     SMs by which a lane grows.
/// max_lanes : int
///     Most lanes, the common one included.
/// queue_limit : int
///     Most tasks that wait.
///
/// Examples
/// --------
/// >>> evaluator = QosPolicyEvaluator(total_memory="8GiB")
/// >>> evaluator.evaluate(QosTaskMeta.guaranteed("t", "large", "9GiB")).reason
/// "memory: 9.0 GiB asked > 8.0 GiB of partition 'default'"
#[pyclass(frozen, module = "_pygpukit_rust", name = "QosPolicyEvaluator")]
pub struct QosPolicyEvaluator {
    books: Mutex<Books>,
}

#[pymethods]
impl QosPolicyEvaluator {
    #[new]
    #[pyo3(signature = (total_memory, total_bandwidth=1.0, *, sms=None, granule=8, max_lanes=8, queue_limit=10_000))]
    fn new(
        total_memory: &Bound<'_, PyAny>,
        total_bandwidth: f64,
        sms: Option<u32>,
        granule: u32,
        max_lanes: u32,
        queue_limit: usize,
    ) -> PyResult<QosPolicyEvaluator> {
        let sold = raised(Share::from_f64("total_bandwidth", total_bandwidth))?;
        let time_margin = Share::from_ppm(Share::ONE.ppm() - sold.ppm());
        let capacity = capacity(bytes(total_memory)?, sms, granule, max_lanes, queue_limit);
        Ok(QosPolicyEvaluator { books: Books::new(Capacity { time_margin, ..capacity })? })
    }

    /// What `reserve` would answer now.
    fn evaluate(&self, task: &Bound<'_, QosTaskMeta>) -> PyResult<QosEvaluation> {
        self.books.lock().evaluate(task.get(), DEFAULT)
    }

    /// Admit the task, let it wait, or reject it.
    fn reserve(&self, task: &Bound<'_, QosTaskMeta>) -> PyResult<QosEvaluation> {
        self.books.lock().reserve(task.get(), DEFAULT)
    }

    /// A task has ended or does not wait any more; says who was admitted for it, in order.
    fn release(&self, id: &str) -> PyResult<Vec<String>> {
        self.books.lock().release(id)
    }

    /// What is reserved, and of how much, as a dict.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let usage = self.books.lock().usage(DEFAULT)?;
        usage_dict(py, &usage)
    }

    fn __repr__(&self) -> String {
        let books = self.books.lock();
        let memory = books.admission.capacity().memory;
        format!("<QosPolicyEvaluator memory={memory} tasks={}>", books.ids.len())
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<QosTaskMeta>()?;
    m.add_class::<QosEvaluation>()?;
    m.add_class::<QosPolicyEvaluator>()?;
    Ok(())
}
