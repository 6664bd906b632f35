//! A PTX emulator: the CPU device runs compiled CUDA kernels with it.

pub mod float;
pub mod ptx;
