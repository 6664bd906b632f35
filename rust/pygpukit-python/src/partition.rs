//! `PartitionManager`, `PartitionConfig` and `PartitionLimits`: admission in parts of a device.

use std::collections::HashMap;

use parking_lot::Mutex;
use pygpukit_core::sched::{Capacity, Class, PartitionSpec, Share};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyModule};

use crate::qos::{Books, DEFAULT, QosEvaluation, QosTaskMeta, bytes, capacity, raised, usage_dict};

/// What a partition is to have; every method returns a new value.
///
/// Examples
/// --------
/// >>> limits = PartitionLimits().memory("4GiB").compute(0.5).priority_band(0, 5)
#[pyclass(frozen, module = "_pygpukit_rust", name = "PartitionLimits")]
pub struct PartitionLimits {
    spec: PartitionSpec,
}

impl PartitionLimits {
    fn with(&self, change: impl FnOnce(&mut PartitionSpec)) -> PartitionLimits {
        let mut spec = self.spec.clone();
        change(&mut spec);
        PartitionLimits { spec }
    }
}

#[pymethods]
impl PartitionLimits {
    #[new]
    fn new() -> PartitionLimits {
        PartitionLimits { spec: PartitionSpec::new("partition") }
    }

    /// Bytes that only its tasks can reserve.
    fn memory(&self, size: &Bound<'_, PyAny>) -> PyResult<PartitionLimits> {
        let size = bytes(size)?;
        Ok(self.with(|spec| spec.memory = size))
    }

    /// Most bytes its tasks have together.
    fn memory_limit(&self, size: &Bound<'_, PyAny>) -> PyResult<PartitionLimits> {
        let size = bytes(size)?;
        Ok(self.with(|spec| spec.memory_limit = Some(size)))
    }

    /// Part of the device's compute that is kept for its tasks.
    fn compute(&self, share: f64) -> PyResult<PartitionLimits> {
        let share = raised(Share::from_f64("compute", share))?;
        Ok(self.with(|spec| spec.compute = share))
    }

    /// Most compute its tasks get together.
    fn compute_limit(&self, share: f64) -> PyResult<PartitionLimits> {
        let share = raised(Share::from_f64("compute_limit", share))?;
        Ok(self.with(|spec| spec.compute_limit = Some(share)))
    }

    /// The lowest and the highest priority its tasks may have.
    fn priority_band(&self, lowest: i32, highest: i32) -> PartitionLimits {
        self.with(|spec| spec.priority_band = (lowest, highest))
    }

    /// sm gives it SMs of its own, time windows of the whole GPU; auto and process share the common lane.
    fn isolation(&self, name: &str) -> PyResult<PartitionLimits> {
        let isolation = raised(name.parse())?;
        Ok(self.with(|spec| spec.isolation = isolation))
    }

    /// Classes of tasks it takes.
    fn classes(&self, names: Vec<String>) -> PyResult<PartitionLimits> {
        let classes = names.iter().map(|name| raised(name.parse())).collect::<PyResult<Vec<Class>>>()?;
        Ok(self.with(|spec| spec.classes = classes))
    }

    /// Most tasks that wait in it.
    fn queue_limit(&self, tasks: usize) -> PartitionLimits {
        self.with(|spec| spec.queue_limit = Some(tasks))
    }

    fn __repr__(&self) -> String {
        let spec = &self.spec;
        format!("<PartitionLimits memory={} compute={} isolation={}>", spec.memory, spec.compute, spec.isolation.name())
    }
}

/// The device that partitions are made of.
///
/// Parameters
/// ----------
/// total_memory : int or str
///     Bytes that can be reserved.
/// sms : int, optional
///     SMs that can be given to lanes; without them partitions share the whole device.
/// granule : int
///     SMs by which a lane grows.
/// max_lanes : int
///     Most lanes, the common one included.
/// time_margin : float
///     Part of the time that nobody can reserve.
/// queue_limit : int
///     Most tasks that wait in a partition without a bound of its own.
#[pyclass(frozen, module = "_pygpukit_rust", name = "PartitionConfig")]
pub struct PartitionConfig {
    capacity: Capacity,
}

#[pymethods]
impl PartitionConfig {
    #[new]
    #[pyo3(signature = (total_memory, *, sms=None, granule=8, max_lanes=8, time_margin=0.0, queue_limit=10_000))]
    fn new(
        total_memory: &Bound<'_, PyAny>,
        sms: Option<u32>,
        granule: u32,
        max_lanes: u32,
        time_margin: f64,
        queue_limit: usize,
    ) -> PyResult<PartitionConfig> {
        let time_margin = raised(Share::from_f64("time_margin", time_margin))?;
        let capacity = capacity(bytes(total_memory)?, sms, granule, max_lanes, queue_limit);
        let capacity = Capacity { time_margin, ..capacity };
        raised(capacity.validate())?;
        Ok(PartitionConfig { capacity })
    }

    /// Bytes that can be reserved.
    #[getter]
    fn total_memory(&self) -> u64 {
        self.capacity.memory
    }

    /// SMs that can be given to lanes, or None.
    #[getter]
    fn sms(&self) -> Option<u32> {
        self.capacity.divisible.then_some(self.capacity.sms)
    }

    fn __repr__(&self) -> String {
        format!("<PartitionConfig total_memory={}>", self.capacity.memory)
    }
}

/// Divides a device into partitions and admits tasks inside them. The partition "default" is what the others leave.
///
/// Examples
/// --------
/// >>> manager = PartitionManager(PartitionConfig(total_memory="8GiB"))
/// >>> manager.create_partition("inference", "Inference", PartitionLimits().memory("4GiB").compute(0.5))
/// >>> manager.list_partitions()
/// ['default', 'inference']
#[pyclass(frozen, module = "_pygpukit_rust", name = "PartitionManager")]
pub struct PartitionManager {
    books: Mutex<Books>,
    /// What people call the partitions, by their names.
    titles: Mutex<HashMap<String, String>>,
}

#[pymethods]
impl PartitionManager {
    #[new]
    fn new(config: &Bound<'_, PartitionConfig>) -> PyResult<PartitionManager> {
        Ok(PartitionManager { books: Books::new(config.get().capacity)?, titles: Mutex::default() })
    }

    /// Make a partition.
    ///
    /// Parameters
    /// ----------
    /// id : str
    ///     Names the partition.
    /// name : str, optional
    ///     For people.
    /// limits : PartitionLimits, optional
    ///     What it is to have; without them it reserves nothing.
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     If the limits make no sense, or there is a partition of this name.
    /// DeviceError
    ///     If the device has too little left; the text is the inequality.
    #[pyo3(signature = (id, name=None, limits=None))]
    fn create_partition(
        &self,
        id: &str,
        name: Option<String>,
        limits: Option<&Bound<'_, PartitionLimits>>,
    ) -> PyResult<()> {
        let mut spec = limits.map_or_else(|| PartitionSpec::new(id), |limits| limits.get().spec.clone());
        spec.name = id.to_string();
        raised(self.books.lock().admission.create_partition(spec))?;
        if let Some(name) = name {
            self.titles.lock().insert(id.to_string(), name);
        }
        Ok(())
    }

    /// Admit waiting tasks that a new partition lets pass: an earlier one waits for its removal now. Says which, in order.
    fn admit_waiting(&self) -> Vec<String> {
        let mut books = self.books.lock();
        let admitted = books.admission.admit_waiting();
        books.named(&admitted)
    }

    /// Remove a partition without tasks; says which tasks were admitted for it, in order.
    fn remove_partition(&self, id: &str) -> PyResult<Vec<String>> {
        let mut books = self.books.lock();
        let partition = books.partition(id)?;
        let admitted = raised(books.admission.remove_partition(partition))?;
        self.titles.lock().remove(id);
        Ok(books.named(&admitted))
    }

    /// Names of the partitions, "default" first.
    fn list_partitions(&self) -> Vec<String> {
        self.books.lock().admission.usage().iter().map(|usage| usage.name.to_string()).collect()
    }

    /// What is reserved in a partition, and of how much, as a dict.
    #[pyo3(signature = (id=DEFAULT))]
    fn usage<'py>(&self, py: Python<'py>, id: &str) -> PyResult<Bound<'py, PyDict>> {
        let usage = self.books.lock().usage(id)?;
        let d = usage_dict(py, &usage)?;
        d.set_item("id", id)?;
        d.set_item("name", self.titles.lock().get(id).map_or(id, String::as_str))?;
        Ok(d)
    }

    /// What `reserve` would answer now.
    #[pyo3(signature = (task, partition=DEFAULT))]
    fn evaluate(&self, task: &Bound<'_, QosTaskMeta>, partition: &str) -> PyResult<QosEvaluation> {
        self.books.lock().evaluate(task.get(), partition)
    }

    /// Admit the task to a partition, let it wait, or reject it.
    #[pyo3(signature = (task, partition=DEFAULT))]
    fn reserve(&self, task: &Bound<'_, QosTaskMeta>, partition: &str) -> PyResult<QosEvaluation> {
        self.books.lock().reserve(task.get(), partition)
    }

    /// A task has ended or does not wait any more; says who was admitted for it, in order.
    fn release(&self, id: &str) -> PyResult<Vec<String>> {
        self.books.lock().release(id)
    }

    fn __repr__(&self) -> String {
        format!("<PartitionManager partitions={}>", self.books.lock().admission.usage().len())
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PartitionLimits>()?;
    m.add_class::<PartitionConfig>()?;
    m.add_class::<PartitionManager>()?;
    Ok(())
}
