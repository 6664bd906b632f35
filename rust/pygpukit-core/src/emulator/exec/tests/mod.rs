//! Instructions through PTX text, against scalar functions and oracles written down a second time.

mod atomic;
mod barrier;
mod copies;
mod float;
mod harness;
mod kernels;
mod mbarrier;
mod warpwide;
