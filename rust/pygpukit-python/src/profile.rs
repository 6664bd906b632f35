//! Counters of a launch as Python sees them.

use pygpukit_core::emulator::{CLASSES, Class, Counters, Traffic};
use pyo3::prelude::*;
use pyo3::types::PyDict;

const NAMES: [(Class, &str); CLASSES] = [
    (Class::Integer, "integer"),
    (Class::Float, "float32"),
    (Class::Double, "float64"),
    (Class::Half, "float16"),
    (Class::Special, "special function"),
    (Class::Convert, "conversion"),
    (Class::Move, "move"),
    (Class::Compare, "compare and select"),
    (Class::Global, "global memory"),
    (Class::Shared, "shared memory"),
    (Class::Local, "local memory"),
    (Class::Constant, "parameter"),
    (Class::Atomic, "atomic"),
    (Class::Branch, "branch and call"),
    (Class::Barrier, "barrier and fence"),
    (Class::Warp, "warp-wide"),
    (Class::Matrix, "matrix"),
    (Class::Other, "other"),
];

fn traffic<'py>(py: Python<'py>, traffic: &Traffic) -> PyResult<Bound<'py, PyDict>> {
    let d = PyDict::new(py);
    d.set_item("accesses", traffic.accesses)?;
    d.set_item("sectors", traffic.sectors)?;
    d.set_item("bytes", traffic.bytes)?;
    Ok(d)
}

pub fn as_dict<'py>(py: Python<'py>, counters: &Counters) -> PyResult<Bound<'py, PyDict>> {
    let d = PyDict::new(py);
    let classes = PyDict::new(py);
    for (class, name) in NAMES {
        let (issued, lanes) = (counters.issued[class as usize], counters.lanes[class as usize]);
        if issued > 0 {
            classes.set_item(name, (issued, lanes))?;
        }
    }
    d.set_item("classes", classes)?;
    d.set_item("loads", traffic(py, &counters.loads)?)?;
    d.set_item("stores", traffic(py, &counters.stores)?)?;
    d.set_item("shared_accesses", counters.shared_accesses)?;
    d.set_item("shared_passes", counters.shared_passes)?;
    d.set_item("shared_conflicts", counters.shared_conflicts)?;
    d.set_item("local_accesses", counters.local_accesses)?;
    d.set_item("local_bytes", counters.local_bytes)?;
    d.set_item("branches", counters.branches)?;
    d.set_item("divergent", counters.divergent)?;
    d.set_item("blocks", counters.blocks)?;
    d.set_item("warps", counters.warps)?;
    d.set_item("threads", counters.threads)?;
    Ok(d)
}
