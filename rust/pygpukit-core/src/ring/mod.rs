//! Ring kernels, the host's side.

pub mod link;
pub mod mapped;
