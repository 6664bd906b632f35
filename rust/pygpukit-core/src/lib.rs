//! The PyGPUkit runtime core: driver access, memory, streams, graphs and launch. It knows nothing of Python.

pub mod command;
pub mod cpu;
pub mod cuda;
pub mod device;
pub mod dtype;
pub mod error;
pub mod kernel;
pub mod memory;
pub mod stream;
pub mod sync;

pub use error::{Error, Result};
