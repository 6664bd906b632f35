//! Instructions through PTX text, against the scalar functions and independent oracles.

mod float;
mod harness;
