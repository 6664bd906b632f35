//! CUDA without a toolkit: libraries opened at run time, and the device on top of them.

mod capture;
pub mod cublaslt;
pub mod cusolver;
mod deferred;
pub mod device;
pub mod driver;
mod enqueue;
mod graph;
mod lanes;
pub mod loader;
pub mod nvrtc;
mod props;
pub mod status;
pub mod table;
mod tensor_map;
pub mod types;
