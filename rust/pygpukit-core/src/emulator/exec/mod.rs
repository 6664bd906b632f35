//! Handlers: what each instruction does to the lanes of a warp.

pub(crate) mod atomic;
pub(crate) mod barrier;
pub(crate) mod builtin;
pub(crate) mod bulk;
pub(crate) mod cluster;
pub(crate) mod control;
pub(crate) mod convert;
pub(crate) mod copies;
pub(crate) mod float;
pub(crate) mod fragments;
pub(crate) mod half;
pub(crate) mod integer;
pub(crate) mod lanes;
pub(crate) mod matrix;
pub(crate) mod mbarrier;
pub(crate) mod memory;
pub(crate) mod tensor_core;
pub(crate) mod warpwide;
pub(crate) mod wgmma;
pub(crate) mod wmma;

#[cfg(test)]
mod tests;
