//! Admission by examples, against a brute-force model, and deadlines against a simulation.

mod cases;
mod deadlines;
mod gates;
mod lending;
mod model;
mod random;
mod turns;
mod validation;

use super::*;

/// An H200 with lanes of 8 SMs and memory in small numbers.
fn h200(memory: u64) -> Capacity {
    Capacity::divided(memory, 132, 8)
}

fn share(value: f64) -> Share {
    Share::from_f64("share", value).unwrap()
}

fn admission(capacity: Capacity) -> Admission {
    Admission::new(capacity).unwrap()
}

fn burstable(memory: u64) -> Request {
    Request { memory, ..Request::new(Class::Burstable) }
}

fn guaranteed(bandwidth: f64) -> Request {
    Request { bandwidth: share(bandwidth), ..Request::new(Class::Guaranteed) }
}

/// The text of a decision's shortage.
fn reason(decision: &Decision) -> String {
    decision.shortage.as_ref().map(ToString::to_string).unwrap_or_default()
}
