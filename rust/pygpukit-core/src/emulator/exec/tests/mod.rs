<<<<<<< HEAD
//! Instructions through PTX text, against the scalar functions and independent oracles.

mod float;
mod harness;
=======
//! Instructions against what PTX says of them, written down a second time.

mod atomic;
mod barrier;
mod warpwide;
>>>>>>> emuwarp
