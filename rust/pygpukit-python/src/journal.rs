//! Recordings of a device's memory, and the limits in force there.

use parking_lot::Mutex;
use pygpukit_core::memory::{ArenaMode, Event, Recorder};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::device::PyDevice;
use crate::errors::ToPy;

/// A recording under way; it ends when it is stopped or dropped.
#[pyclass(frozen, module = "pygpukit", name = "MemoryJournal")]
struct MemoryJournal {
    recorder: Mutex<Option<Recorder>>,
}

/// Time, kind, is it on the host, pool, address, bytes, used.
type EventRow = (u64, u8, bool, u32, u64, usize, usize);
/// Id, name, parent.
type PoolRow = (u32, String, Option<u32>);

#[pymethods]
impl MemoryJournal {
    /// End the recording: its events, its pools, the number of events beyond the limit, and its nanoseconds.
    fn stop(&self) -> PyResult<(Vec<EventRow>, Vec<PoolRow>, u64, u64)> {
        let Some(recorder) = self.recorder.lock().take() else {
            return Err(PyValueError::new_err("this recording has been stopped already"));
        };
        let record = recorder.stop();
        let row = |e: &Event| (e.time, e.kind as u8, e.on_host, e.pool, e.address, e.bytes, e.used);
        let pools = record.pools.into_iter().map(|(id, (name, parent))| (id, name, parent));
        Ok((record.events.iter().map(row).collect(), pools.collect(), record.dropped, record.nanoseconds))
    }
}

/// Note what the pools of a device do from now on, up to `limit` events.
#[pyfunction]
fn record_memory(device: &Bound<'_, PyDevice>, limit: usize) -> PyResult<MemoryJournal> {
    let recorder = Recorder::start(&device.get().state.arena, limit).py()?;
    Ok(MemoryJournal { recorder: Mutex::new(Some(recorder)) })
}

/// What bounds the memory of a device, by name.
#[pyfunction]
fn memory_limits<'py>(py: Python<'py>, device: &Bound<'py, PyDevice>) -> PyResult<Bound<'py, PyDict>> {
    let state = device.get().state;
    let d = PyDict::new(py);
    d.set_item("can_evict", state.arena.mode() == ArenaMode::Vmm)?;
    d.set_item("granularity", state.arena.granule())?;
    d.set_item("pinned_limit", state.pinned.limit())?;
    d.set_item("spill_limit", state.arena.move_stats().host.pageable_limit)?;
    d.set_item("host_memory", pygpukit_core::cpu::host_memory())?;
    Ok(d)
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<MemoryJournal>()?;
    m.add_function(wrap_pyfunction!(record_memory, m)?)?;
    m.add_function(wrap_pyfunction!(memory_limits, m)?)?;
    Ok(())
}
