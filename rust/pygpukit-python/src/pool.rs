//! `MemoryPool`: quotas and statistics of the allocator behind every array.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use pygpukit_core::exec;
use pygpukit_core::memory::{Pool, PoolOptions, PoolStats, Storage};
use pygpukit_core::runtime::{self, DeviceState};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyModule};

use crate::device::{PyDevice, context, context_for};
use crate::errors::{ToPy, check_signals};
use crate::inside::detached;

/// A pool of device memory with its own quota, inside the pool that was current when it was made.
///
/// Parameters
/// ----------
/// quota : int or str, optional
///     Most bytes in use at a time, as a number or a text such as "512MB"; None means as much as the pool around it allows.
/// enable_eviction : bool
///     Arrays move to the host when memory is short, those used longest ago first, and come back to the same address
///     before they are used.
/// name : str
///     Shown in out-of-memory errors and statistics.
/// reserve : int or str
///     Bytes below which other pools take no memory from this one by eviction.
/// guarantee : int or str
///     Bytes of the device that are held for this pool from now until it is closed or gone, in use or not. Arrays up to
///     this size in total find memory whatever others do. The pools around count them as used.
/// host_quota : int or str, optional
///     Most bytes of host memory that evicted arrays may use.
///
/// Raises
/// ------
/// OutOfMemoryError
///     If there is no memory for the guarantee.
///
/// Examples
/// --------
/// >>> with MemoryPool(quota=1 << 20) as pool:
/// ...     pass
#[pyclass(frozen, weakref, module = "pygpukit", name = "MemoryPool")]
pub struct PyPool {
    state: &'static DeviceState,
    pool: Arc<Pool>,
}

impl PyPool {
    pub fn of(state: &'static DeviceState, pool: &Arc<Pool>) -> PyPool {
        PyPool { state, pool: pool.clone() }
    }
}

/// A block of a pool that is no array. It goes back when it is freed or dropped.
#[pyclass(frozen, weakref, module = "pygpukit", name = "Allocation")]
struct Allocation {
    storage: Mutex<Option<Arc<Storage>>>,
    ptr: u64,
    nbytes: usize,
}

#[pymethods]
impl Allocation {
    /// Device address; meaningless after `free`.
    #[getter]
    fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Bytes that were asked for.
    #[getter]
    fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// Has it been given back?
    #[getter]
    fn is_freed(&self) -> bool {
        self.storage.lock().is_none()
    }

    /// Give the block back; a second call does nothing.
    fn free(&self) {
        let storage = self.storage.lock().take();
        drop(storage);
    }
}

#[pymethods]
impl PyPool {
    #[new]
    #[pyo3(signature = (quota=None, enable_eviction=false, name="pool", reserve=None, guarantee=None, host_quota=None))]
    fn new(
        py: Python<'_>,
        quota: Option<&Bound<'_, PyAny>>,
        enable_eviction: bool,
        name: &str,
        reserve: Option<&Bound<'_, PyAny>>,
        guarantee: Option<&Bound<'_, PyAny>>,
        host_quota: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyPool> {
        let options = PoolOptions {
            quota: quota.map(size).transpose()?,
            evicting: enable_eviction,
            floor: reserve.map_or(Ok(0), size)?,
            guarantee: guarantee.map_or(Ok(0), size)?,
            host_quota: host_quota.map(size).transpose()?,
            ..PoolOptions::default()
        };
        let ctx = context(py)?;
        ctx.state.check().py()?;
        let pool = detached(py, || ctx.pool.child_with(name, options, &mut check_signals))?;
        Ok(PyPool { state: ctx.state, pool })
    }

    /// Name in errors and statistics.
    #[getter]
    fn name(&self) -> &str {
        self.pool.name()
    }

    /// Do arrays move to the host when memory is short?
    #[getter]
    fn enable_eviction(&self) -> bool {
        self.pool.is_evicting()
    }

    /// Bytes below which other pools take no memory from this one.
    #[getter]
    fn reserve(&self) -> usize {
        self.pool.floor()
    }

    /// Bytes of the device held for this pool, in use or not.
    #[getter]
    fn guarantee(&self) -> usize {
        self.pool.guarantee()
    }

    /// Most bytes of host memory that evicted arrays may use, or None.
    #[getter]
    fn host_quota(&self) -> Option<usize> {
        self.pool.host_quota()
    }

    /// Device of the pool.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice { state: self.state }
    }

    /// Bytes handed out, rounded up to size classes; pools inside this one count too.
    #[getter]
    fn used(&self) -> PyResult<usize> {
        runtime::check_locks().py()?;
        Ok(self.pool.used())
    }

    /// Bytes held for reuse.
    #[getter]
    fn cached(&self) -> PyResult<usize> {
        runtime::check_locks().py()?;
        Ok(self.pool.stats().cached)
    }

    /// Bytes that may still be handed out.
    #[getter]
    fn available(&self) -> PyResult<usize> {
        runtime::check_locks().py()?;
        Ok(self.pool.stats().available)
    }

    /// Most bytes in use at a time, or None.
    #[getter]
    fn quota(&self) -> PyResult<Option<usize>> {
        runtime::check_locks().py()?;
        Ok(self.pool.quota())
    }

    /// Change the quota. What is in use above it moves to the host where the pool evicts; the rest stays until it is
    /// freed.
    fn set_quota(&self, py: Python<'_>, quota: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let quota = quota.map(|q| size(q)).transpose()?;
        self.state.check().py()?;
        detached(py, || self.pool.set_quota(quota, &mut check_signals))
    }

    /// Take a block of the pool for the current stream.
    fn allocate(&self, py: Python<'_>, nbytes: &Bound<'_, PyAny>) -> PyResult<Allocation> {
        let nbytes = size(nbytes)?;
        let ctx = context_for(py, self.state)?;
        self.state.check().py()?;
        let storage = self.pool.allocate_with_check(nbytes, &ctx.stream, &mut check_signals).py()?;
        Ok(Allocation { ptr: storage.ptr(), nbytes, storage: Mutex::new(Some(storage)) })
    }

    /// Give a block of this pool back; the same as ``allocation.free()``.
    fn free(&self, allocation: &Bound<'_, Allocation>) -> PyResult<()> {
        let allocation = allocation.get();
        if let Some(storage) = &*allocation.storage.lock()
            && storage.pool().id() != self.pool.id()
        {
            let (own, other) = (self.pool.name(), storage.pool().name());
            return Err(PyValueError::new_err(format!("the block is of pool '{other}', not of pool '{own}'")));
        }
        allocation.free();
        Ok(())
    }

    /// Make what is in use now the peak, to measure that of what comes.
    fn reset_peak(&self) -> PyResult<()> {
        runtime::check_locks().py()?;
        self.pool.reset_peak();
        Ok(())
    }

    /// Return cached memory that no stream uses to the device.
    fn trim(&self) -> PyResult<()> {
        self.state.check().py()?;
        self.pool.trim().py().map(|_| ())
    }

    /// Hand out no more; memory goes back to the device as its arrays are dropped.
    fn close(&self) -> PyResult<()> {
        runtime::check_locks().py()?;
        self.pool.close().py()
    }

    /// Bytes and counts of the pool as a dict.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        runtime::check_locks().py()?;
        stats_dict(py, &self.pool)
    }

    /// Largest live blocks: bytes and a label.
    #[pyo3(signature = (count=10))]
    fn top_holders(&self, count: usize) -> PyResult<Vec<(usize, String)>> {
        runtime::check_locks().py()?;
        Ok(self.pool.top_holders(count))
    }

    fn __enter__<'py>(slf: Bound<'py, Self>, py: Python<'py>) -> PyResult<Bound<'py, Self>> {
        let this = slf.get();
        let mut ctx = pygpukit_core::exec::ExecCtx::clone(&*context_for(py, this.state)?);
        ctx.pool = this.pool.clone();
        exec::enter(ctx, slf.as_ptr() as usize);
        Ok(slf)
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(slf: &Bound<'_, Self>, _args: &Bound<'_, PyAny>) -> PyResult<()> {
        exec::leave(slf.as_ptr() as usize).py()
    }

    fn __repr__(&self) -> String {
        if runtime::is_stranded() {
            return format!("<MemoryPool '{}'>", self.pool.name());
        }
        let quota = self.pool.quota().map_or_else(|| "None".to_string(), |bytes| bytes.to_string());
        format!("<MemoryPool '{}' used={} quota={quota}>", self.pool.name(), self.pool.used())
    }
}

/// Bytes meant by a number or a text such as "512MB". Anything but a plain number is read in the one place that reads
/// sizes.
pub fn size(value: &Bound<'_, PyAny>) -> PyResult<usize> {
    if value.is_exact_instance_of::<PyInt>()
        && let Ok(bytes) = value.extract()
    {
        return Ok(bytes);
    }
    PyModule::import(value.py(), "pygpukit.config")?.getattr("parse_size")?.call1((value,))?.extract()
}

fn stats_dict<'py>(py: Python<'py>, pool: &Pool) -> PyResult<Bound<'py, PyDict>> {
    let d = numbers(py, pool.name(), &pool.stats())?;
    let moved = pool.arena().move_stats();
    d.set_item("evictions", moved.evictions)?;
    d.set_item("evicted_bytes", moved.evicted_bytes)?;
    d.set_item("evictions_without_copy", moved.dropped)?;
    d.set_item("copied_out_bytes", moved.copied_bytes)?;
    d.set_item("restores", moved.restores)?;
    d.set_item("restored_bytes", moved.restored_bytes)?;
    d.set_item("host_pinned", moved.host.pinned)?;
    d.set_item("host_pageable", moved.host.pageable)?;
    Ok(d)
}

/// A pool's own numbers.
fn numbers<'py>(py: Python<'py>, name: &str, stats: &PoolStats) -> PyResult<Bound<'py, PyDict>> {
    let d = PyDict::new(py);
    d.set_item("name", name)?;
    d.set_item("used", stats.used)?;
    d.set_item("peak", stats.peak)?;
    d.set_item("cached", stats.cached)?;
    d.set_item("reserved", stats.reserved)?;
    d.set_item("quota", stats.quota)?;
    d.set_item("available", stats.available)?;
    d.set_item("allocations", stats.allocations)?;
    d.set_item("frees", stats.frees)?;
    d.set_item("live", stats.live)?;
    d.set_item("hits", stats.hits)?;
    d.set_item("misses", stats.misses)?;
    d.set_item("hit_rate", stats.hit_rate())?;
    d.set_item("evicted", stats.evicted)?;
    d.set_item("guarantee", stats.guarantee)?;
    d.set_item("held", stats.held)?;
    d.set_item("host", stats.host)?;
    Ok(d)
}

type Dicts<'py> = Vec<Bound<'py, PyDict>>;

/// Pools and segments of a device as lists of dicts.
#[pyfunction]
fn memory_snapshot<'py>(py: Python<'py>, device: &Bound<'py, PyDevice>) -> PyResult<(Dicts<'py>, Dicts<'py>)> {
    runtime::check_locks().py()?;
    let (pools, segments) = device.get().state.arena.snapshot();
    let pools = pools.iter().map(|pool| {
        let d = numbers(py, &pool.name, &pool.stats)?;
        d.set_item("id", pool.id)?;
        d.set_item("parent", pool.parent)?;
        d.set_item("evicting", pool.evicting)?;
        d.set_item("reserve", pool.reserve)?;
        Ok(d)
    });
    let segments = segments.iter().map(|segment| {
        let d = PyDict::new(py);
        d.set_item("pool", segment.pool)?;
        d.set_item("address", segment.address)?;
        d.set_item("bytes", segment.bytes)?;
        d.set_item("kind", segment.kind)?;
        d.set_item("block_bytes", segment.block_bytes)?;
        d.set_item("live", segment.live)?;
        d.set_item("place", segment.place)?;
        d.set_item("evictable", segment.evictable)?;
        d.set_item("pinned", segment.pinned)?;
        d.set_item("exported", segment.exported)?;
        d.set_item("label", &segment.label)?;
        Ok(d)
    });
    Ok((pools.collect::<PyResult<_>>()?, segments.collect::<PyResult<_>>()?))
}

/// Follow where large arrays are made, or stop it; says what was in force before.
#[pyfunction]
fn follow_arrays(on: bool) -> bool {
    crate::array::FOLLOWED.swap(on, Ordering::Relaxed)
}

/// The pool arrays come from in this thread.
#[pyfunction]
fn current_pool(py: Python<'_>) -> PyResult<PyPool> {
    let ctx = context(py)?;
    Ok(PyPool { state: ctx.state, pool: ctx.pool.clone() })
}

/// Make a pool the one arrays come from in this thread from now on.
#[pyfunction]
fn set_default_pool(py: Python<'_>, pool: &Bound<'_, PyPool>) -> PyResult<()> {
    let this = pool.get();
    let mut ctx = pygpukit_core::exec::ExecCtx::clone(&*context_for(py, this.state)?);
    ctx.pool = this.pool.clone();
    exec::swap(Some(Arc::new(ctx)));
    Ok(())
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyPool>()?;
    m.add_class::<Allocation>()?;
    m.add_function(wrap_pyfunction!(current_pool, m)?)?;
    m.add_function(wrap_pyfunction!(set_default_pool, m)?)?;
    m.add_function(wrap_pyfunction!(memory_snapshot, m)?)?;
    m.add_function(wrap_pyfunction!(follow_arrays, m)?)?;
    Ok(())
}
