//! Instructions through PTX text, against the scalar functions and independent oracles.

mod bench;
mod float;
mod harness;
