//! Reading PTX text.

pub mod ast;
