//! Instructions against what PTX says of them, written down a second time.

mod atomic;
mod barrier;
mod copies;
mod mbarrier;
mod warpwide;
