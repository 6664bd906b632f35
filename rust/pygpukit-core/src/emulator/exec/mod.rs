//! Handlers: what each instruction does to the lanes of a warp.

pub(crate) mod builtin;
pub(crate) mod control;
pub(crate) mod fragments;
pub(crate) mod integer;
pub(crate) mod lanes;
pub(crate) mod matrix;
pub(crate) mod memory;
pub(crate) mod wmma;
