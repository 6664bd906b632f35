//! Instructions through PTX text, against the scalar functions and independent oracles.

mod atomic;
mod barrier;
mod copies;
mod float;
mod harness;
mod mbarrier;
mod warpwide;
