//! A PTX emulator: the CPU device runs compiled CUDA kernels with it.
//!
//! `ptx` reads the text, `lower` turns it into `code`, and `grid`, `block` and `warp` run it with the handlers of `exec`.

mod block;
mod bulk;
mod check;
mod cluster;
mod code;
mod copies;
mod counters;
mod exec;
mod fault;
pub mod float;
mod frames;
mod grid;
mod image;
mod lower;
mod memory;
#[cfg(test)]
mod mutation;
pub mod ptx;
pub mod tensor_map;
#[cfg(test)]
mod testing;
mod warp;

pub use check::{Chain, Ended, Touched};
pub use code::Class;
pub use counters::{CLASSES, Counters, Traffic};
#[cfg(target_arch = "x86_64")]
pub(crate) use exec::lanes::wide_lanes;
pub use grid::{Options, Summary};
pub use image::{Image, Launch, Running};
pub use memory::Memory;
