//! The scheduler: who may use the device, when, and how much of it.

pub mod clock;
pub mod cost;
mod gate;
mod lease;
pub mod turns;
pub mod usage;

pub use gate::{Gate, Row};
pub use lease::Lease;

pub mod request {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Class {
        Guaranteed,
        Burstable,
        BestEffort,
    }
}

#[cfg(test)]
mod tests;
