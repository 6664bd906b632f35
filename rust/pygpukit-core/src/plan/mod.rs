//! Launch plans: how an operator runs on one class of arguments, evaluated without Python.
//!
//! Python traces an operator once per class (element types, dimensions, options). What it asked of sizes became guards and
//! what it computed from them a program (`program.rs`), so one plan serves every shape its guards hold for.

mod cache;
mod launch_plan;
mod map;
mod product;
mod program;

pub use cache::{PlanCache, WordHasher};
pub use launch_plan::{Arg, Encoded, KernelStep, LaunchPlan, OutputSpec, PlanOperand, Scratch, ScratchKind, Step};
pub use map::{MapArg, Source};
pub use product::{ProductStep, ProductTarget};
pub use program::{Guard, Node, NodeId, Program, Relation, Values};
