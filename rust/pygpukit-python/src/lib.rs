//! PyO3 bindings of the core: thin wrappers, one error map.

mod array;
mod determinism;
mod device;
mod dlpack;
mod dtype;
mod errors;
mod external;
mod flags;
mod foreign;
mod gemm;
mod graph;
mod graph_parameters;
mod growable;
mod host;
mod host_call;
mod indexing;
mod inside;
mod journal;
mod kernel;
mod kernel_call;
mod libraries;
mod module;
mod numpy;
mod operator;
mod ops;
mod pages;
mod partition;
mod plan_object;
mod planned;
mod pool;
mod profile;
mod qos;
mod ring_caller;
mod ring_link;
mod ring_message;
mod ring_queue;
mod rows;
mod scalar;
mod scheduler;
mod solver;
mod stream;
mod tensor_map;
mod transfer;
mod vectorcall;

use pyo3::prelude::*;

#[pymodule]
fn _pygpukit_rust(m: &Bound<'_, PyModule>) -> PyResult<()> {
    pygpukit_core::runtime::set_wait_check(errors::check_signals);
    pygpukit_core::runtime::set_blocking(inside::blocking);
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add_class::<dtype::DataType>()?;
    m.add_class::<dtype::FixedArray>()?;
    dtype::register(m)?;
    array::register(m)?;
    determinism::register(m)?;
    device::register(m)?;
    dlpack::register(m)?;
    flags::register(m)?;
    gemm::register(m)?;
    graph::register(m)?;
    growable::register(m)?;
    host::register(m)?;
    journal::register(m)?;
    kernel::register(m)?;
    module::register(m)?;
    libraries::register(m)?;
    solver::register(m)?;
    operator::register(m)?;
    ops::register(m)?;
    pages::register(m)?;
    partition::register(m)?;
    planned::register(m)?;
    pool::register(m)?;
    scheduler::register(m)?;
    qos::register(m)?;
    ring_link::register(m)?;
    ring_message::register(m)?;
    ring_queue::register(m)?;
    rows::register(m)?;
    stream::register(m)?;
    tensor_map::register(m)?;
    transfer::register(m)?;
    Ok(())
}
