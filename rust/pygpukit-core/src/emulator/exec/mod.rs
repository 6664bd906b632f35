//! Handlers: what each instruction does to the lanes of a warp.

pub(crate) mod atomic;
pub(crate) mod barrier;
pub(crate) mod builtin;
pub(crate) mod control;
pub(crate) mod copies;
pub(crate) mod integer;
pub(crate) mod lanes;
pub(crate) mod mbarrier;
pub(crate) mod memory;
pub(crate) mod warpwide;

#[cfg(test)]
mod tests;
