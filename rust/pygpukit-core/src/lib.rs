//! The PyGPUkit runtime core: driver access, memory, streams, graphs and launch. It knows nothing of Python.

pub mod command;
mod counters;
pub mod cpu;
pub mod cuda;
pub mod device;
pub mod dtype;
mod early;
pub mod elementwise;
pub mod emulator;
pub mod error;
pub mod event;
pub mod exec;
pub mod forks;
pub mod graph;
pub mod host;
pub mod kernel;
pub mod lane;
pub mod launch;
pub mod layout;
pub mod library_call;
pub mod memory;
pub mod moves;
pub mod pages;
pub mod philox;
pub mod plan;
mod random;
pub mod residency;
pub mod ring;
pub mod rows;
pub mod runtime;
pub mod sched;
pub mod slices;
pub mod stream;
pub mod sync;
pub mod tensor_map;

pub use error::{Error, Result};
