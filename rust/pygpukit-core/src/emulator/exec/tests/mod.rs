//! Instructions through PTX text, against scalar functions and oracles written down a second time.

mod addresses;
mod atomic;
mod barrier;
mod bulk;
mod cluster;
mod compare;
mod convert;
mod copies;
mod float;
mod half;
mod harness;
mod integer;
mod kernels;
mod mbarrier;
pub(super) mod tensor_core;
mod warpwide;
mod wgmma;
