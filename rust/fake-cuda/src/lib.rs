//! A stand-in for libcuda in host memory, for tests.
//!
//! It exports the driver calls the runtime uses with their C signatures. Device memory is host memory, copies and
//! fills really happen, kernel launches are written to a log. It is strict where the driver is: contexts, handles,
//! granularities and stream order are checked.
//!
//! Settings come from `FAKECUDA_<NAME>` variables, read at the first call, or from `fakecuda_configure`:
//!
//! | name | meaning | default |
//! |---|---|---|
//! | DEVICES | number of devices | 1 |
//! | CAPABILITY | "9.0" | 9.0 |
//! | VERSION | CUDA version, 1000 * major + 10 * minor | 13000 |
//! | MEMORY | bytes on each device | 8 GiB |
//! | WITHHOLD | calls that are not found: "cuA,cuB" | none |
//! | FAIL | "cuMemCreate:3:2": its third call from now returns 2; "...:*" and every later one too | none |
//! | CUBLAS_VERSION | what cublasLtGetVersion says | 130100 |
//! | CUBLAS_CHECK | bytes of workspace that the check of an algorithm states at least | 0 |
//! | LANE_SMS | SMs that every green context says it has | those of its groups |
//! | LAZY | work waits in its stream until it has been asked about this many times; 0 runs it at once | 0 |
//!
//! The calls of cuBLASLt are here too: one file stands in for both libraries.
//!
//! An image is any text with lines `.entry NAME(SIZE,SIZE,...)`: kernels and the sizes of their parameters.
#![cfg(unix)]
#![allow(non_snake_case)]
// Callers are C programs: the contract of every export is the driver's.
#![allow(clippy::missing_safety_doc, clippy::not_unsafe_ptr_arg_deref)]

mod api;
mod config;
mod control;
mod cublaslt;
mod cusolver;
mod device;
mod graph;
mod green;
mod kernel;
mod memory;
mod state;
mod stream;
mod tensor_map;

pub use api::{cuGetProcAddress, cuGetProcAddress_v2};
pub use control::{configure, counter, graph_contexts, green_contexts, launches, reset};
pub use green::GreenContext;
pub use kernel::Launch;
