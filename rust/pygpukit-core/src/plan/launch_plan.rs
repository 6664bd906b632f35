//! `LaunchPlan`: guards, results, workspace and launches of an operator for one class of arguments.

use std::sync::Arc;

use smallvec::SmallVec;

use super::map::{MapArg, Source};
use super::product::ProductStep;
use super::program::{NodeId, Program, Values};
use crate::command::{Access, ArgBlob, ArgTag, Launch, LaunchAttributes, UseRef};
use crate::device::DevPtr;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::exec::ExecCtx;
use crate::kernel::Kernel;
use crate::launch::{check_cluster, check_cooperative, launch};
use crate::memory::Storage;

/// Where a kernel's parameter of type CUtensorMap lies if the driver does not say.
const MAP_ALIGNMENT: usize = 64;

/// One argument of a kernel.
#[derive(Clone, Debug)]
pub enum Arg {
    /// Address of an array the operator was given, by position among the arrays that are not None.
    Input {
        index: u8,
        access: Access,
    },
    /// Address of a result.
    Output {
        index: u8,
        access: Access,
    },
    /// Address of a piece of workspace.
    Scratch {
        index: u8,
        access: Access,
    },
    I64(NodeId),
    I32(NodeId),
    /// A number the operator was called with, as an element of this type.
    Number {
        index: u8,
        dtype: DType,
    },
    Bytes(SmallVec<[u8; 16]>),
    /// A tensor map of one of the arrays, and where the driver wants it in the argument block: it aligns the address that
    /// the map has there, not the offset.
    Map {
        map: Arc<MapArg>,
        offset: Option<usize>,
    },
    /// What follows begins at a multiple of this: the start of a struct.
    Align(u8),
}

/// Launch of a kernel; grid, block and shared memory are nodes of the program.
#[derive(Clone, Debug)]
pub struct KernelStep {
    pub kernel: Arc<Kernel>,
    pub grid: [NodeId; 3],
    pub block: [NodeId; 3],
    pub shared: NodeId,
    pub attributes: LaunchAttributes,
    pub args: Vec<Arg>,
}

#[derive(Debug)]
pub enum Step {
    Kernel(KernelStep),
    Product(ProductStep),
}

#[derive(Clone, Debug)]
pub struct OutputSpec {
    pub dtype: DType,
    pub shape: SmallVec<[NodeId; 8]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScratchKind {
    /// Not initialised, of the current pool, for this call.
    Buffer,
    /// Zero at the start, and made zero again by the kernels that use it; one per stream or graph.
    Counters,
}

#[derive(Clone, Copy, Debug)]
pub struct Scratch {
    pub bytes: NodeId,
    pub kind: ScratchKind,
}

/// An array of a call: where it begins, its memory, and what fault reports say of it.
#[derive(Clone, Copy)]
pub struct PlanOperand<'a> {
    pub ptr: DevPtr,
    pub storage: &'a Arc<Storage>,
    pub tag: ArgTag,
}

impl<'a> PlanOperand<'a> {
    pub(super) fn of_scratch(storage: &'a Arc<Storage>) -> PlanOperand<'a> {
        PlanOperand { ptr: storage.ptr(), storage, tag: ArgTag::default() }
    }

    pub(super) fn used(&self, access: Access) -> UseRef<'a> {
        UseRef { storage: self.storage, access, tag: self.tag }
    }
}

/// A number of a call as an element of a type.
#[derive(Clone, Copy, Debug)]
pub struct Encoded {
    pub index: u8,
    pub dtype: DType,
    pub bytes: [u8; 16],
}

#[derive(Debug)]
pub struct LaunchPlan {
    pub name: Arc<str>,
    pub program: Program,
    pub outputs: Vec<OutputSpec>,
    pub scratch: Vec<Scratch>,
    pub steps: Vec<Step>,
}

impl LaunchPlan {
    /// Refuse references to nodes, inputs, results and workspace that do not exist.
    pub fn check(&self, inputs: usize) -> Result<()> {
        let nodes = self.program.len();
        let known = |node: &NodeId| usize::from(*node) < nodes;
        let mut sound = self.outputs.iter().all(|output| output.shape.iter().all(known));
        sound &= self.scratch.iter().all(|scratch| known(&scratch.bytes));
        for step in &self.steps {
            let step = match step {
                Step::Kernel(step) => step,
                Step::Product(step) => {
                    sound &= step.nodes().all(|node| known(&node));
                    sound &= step.is_sound(inputs, self.outputs.len(), self.scratch.len());
                    continue;
                }
            };
            sound &= step.grid.iter().chain(&step.block).all(known) && known(&step.shared);
            sound &= step.args.iter().all(|arg| match arg {
                Arg::Input { index, .. } => usize::from(*index) < inputs,
                Arg::Output { index, .. } => usize::from(*index) < self.outputs.len(),
                Arg::Scratch { index, .. } => usize::from(*index) < self.scratch.len(),
                Arg::I64(node) | Arg::I32(node) => known(node),
                Arg::Map { map, .. } => {
                    map.nodes().all(|node| known(&node))
                        && match map.source {
                            Source::Input(index) => usize::from(index) < inputs,
                            Source::Output(index) => usize::from(index) < self.outputs.len(),
                            Source::Scratch(index) => usize::from(index) < self.scratch.len(),
                        }
                }
                Arg::Number { .. } | Arg::Bytes(_) | Arg::Align(_) => true,
            });
        }
        if sound { Ok(()) } else { Err(self.wrong("its plan refers to what it does not have".to_string())) }
    }

    /// Evaluate only what launches, results and guards depend on. Called once, after `check`.
    pub fn prune(&mut self) {
        let mut roots: Vec<NodeId> = self.outputs.iter().flat_map(|output| output.shape.iter().copied()).collect();
        roots.extend(self.scratch.iter().map(|scratch| scratch.bytes));
        for step in &self.steps {
            match step {
                Step::Kernel(step) => {
                    roots.extend(step.grid.iter().chain(&step.block).copied());
                    roots.push(step.shared);
                    for arg in &step.args {
                        match arg {
                            Arg::I64(node) | Arg::I32(node) => roots.push(*node),
                            Arg::Map { map, .. } => roots.extend(map.nodes()),
                            _ => {}
                        }
                    }
                }
                Step::Product(step) => roots.extend(step.nodes()),
            }
        }
        self.program.keep(roots.into_iter());
    }

    fn kernels(&self) -> impl Iterator<Item = &KernelStep> {
        self.steps.iter().filter_map(|step| if let Step::Kernel(step) = step { Some(step) } else { None })
    }

    /// Would a launch with these values first load what a library needs, which may wait for the device?
    pub fn needs_loading(&self, values: &Values) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Product(step) if !step.is_ready(values)))
    }

    /// Positions of the inputs that a step writes.
    pub fn written_inputs(&self) -> SmallVec<[u8; 4]> {
        let mut written = SmallVec::new();
        for step in self.kernels() {
            for arg in &step.args {
                let (index, access) = match arg {
                    Arg::Input { index, access } => (*index, *access),
                    Arg::Map { map, .. } => match map.source {
                        Source::Input(index) => (index, map.access),
                        Source::Output(_) | Source::Scratch(_) => continue,
                    },
                    _ => continue,
                };
                if access.is_written() && !written.contains(&index) {
                    written.push(index);
                }
            }
        }
        written
    }

    /// Numbers of the call that steps take, each with its type there.
    pub fn numbers(&self) -> SmallVec<[(u8, DType); 4]> {
        let mut found = SmallVec::new();
        for step in self.kernels() {
            for arg in &step.args {
                if let Arg::Number { index, dtype } = arg
                    && !found.contains(&(*index, *dtype))
                {
                    found.push((*index, *dtype));
                }
            }
        }
        found
    }

    /// Submit all steps. `values` are the program's for this call, `numbers` the encoded numbers that `numbers()` lists.
    pub fn launch(
        &self,
        ctx: &ExecCtx,
        values: &Values,
        inputs: &[PlanOperand<'_>],
        outputs: &[PlanOperand<'_>],
        numbers: &[Encoded],
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let mut workspace: SmallVec<[Arc<Storage>; 4]> = SmallVec::new();
        let mut counters = 0;
        for scratch in &self.scratch {
            let bytes = usize::try_from(values[usize::from(scratch.bytes)]).unwrap_or(0);
            workspace.push(match scratch.kind {
                ScratchKind::Buffer => ctx.scratch(bytes, check)?,
                ScratchKind::Counters => {
                    counters += 1;
                    ctx.counters(bytes, counters - 1, check)?
                }
            });
        }
        for step in &self.steps {
            match step {
                Step::Kernel(step) => self.launch_kernel(ctx, step, values, inputs, outputs, &workspace, numbers)?,
                Step::Product(step) => step.launch(ctx, values, inputs, outputs, &workspace)?,
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    #[inline]
    fn launch_kernel(
        &self,
        ctx: &ExecCtx,
        step: &KernelStep,
        values: &Values,
        inputs: &[PlanOperand<'_>],
        outputs: &[PlanOperand<'_>],
        workspace: &[Arc<Storage>],
        numbers: &[Encoded],
    ) -> Result<()> {
        let size = |node: NodeId| {
            let value = values[usize::from(node)];
            u32::try_from(value).map_err(|_| self.wrong(format!("a launch dimension of {value} is out of range")))
        };
        let grid = [size(step.grid[0])?, size(step.grid[1])?, size(step.grid[2])?];
        if grid.contains(&0) {
            return Ok(());
        }
        let block = [size(step.block[0])?, size(step.block[1])?, size(step.block[2])?];
        let mut blob = ArgBlob::new();
        let mut uses: SmallVec<[UseRef<'_>; 8]> = SmallVec::new();
        let scratch = |index: u8| PlanOperand::of_scratch(&workspace[usize::from(index)]);
        for arg in &step.args {
            match arg {
                Arg::Input { index, access } => put_array(&mut blob, &mut uses, &inputs[usize::from(*index)], *access),
                Arg::Output { index, access } => {
                    put_array(&mut blob, &mut uses, &outputs[usize::from(*index)], *access)
                }
                Arg::Scratch { index, access } => put_array(&mut blob, &mut uses, &scratch(*index), *access),
                Arg::Map { map, offset } => {
                    let operand = match map.source {
                        Source::Input(index) => inputs[usize::from(index)],
                        Source::Output(index) => outputs[usize::from(index)],
                        Source::Scratch(index) => scratch(index),
                    };
                    match offset {
                        Some(offset) => blob.resize((*offset).max(blob.len()), 0),
                        None => pad(&mut blob, MAP_ALIGNMENT),
                    }
                    blob.extend_from_slice(&map.encode(ctx, values, operand.ptr)?);
                    uses.push(operand.used(map.access));
                }
                Arg::I64(node) => put(&mut blob, &values[usize::from(*node)].to_le_bytes()),
                Arg::I32(node) => {
                    let value = values[usize::from(*node)];
                    let value = i32::try_from(value)
                        .map_err(|_| self.wrong(format!("{value} does not fit a 32-bit argument")))?;
                    put(&mut blob, &value.to_le_bytes());
                }
                Arg::Number { index, dtype } => {
                    let encoded = numbers.iter().find(|n| n.index == *index && n.dtype == *dtype);
                    let number = encoded.ok_or_else(|| self.wrong(format!("number {index} was not encoded")))?;
                    put(&mut blob, &number.bytes[..dtype.itemsize()]);
                }
                Arg::Bytes(bytes) => blob.extend_from_slice(bytes),
                Arg::Align(to) => pad(&mut blob, usize::from(*to)),
            }
        }
        let shared = size(step.shared)?;
        if step.attributes.cooperative {
            check_cooperative(ctx, &step.kernel, grid, block, shared)?;
        }
        if step.attributes.cluster != [0; 3] {
            check_cluster(ctx, &step.kernel, grid, step.attributes.cluster)?;
        }
        let work =
            Launch { kernel: &step.kernel, grid, block, shared, attributes: step.attributes, args: &blob, arrays: &[] };
        launch(ctx, &work, &uses)
    }

    #[cold]
    fn wrong(&self, text: String) -> Error {
        Error::Launch(format!("{}(): {text}", self.name))
    }
}

/// Zeros up to the next multiple of `to`.
#[inline]
fn pad(blob: &mut ArgBlob, to: usize) {
    let end = blob.len().next_multiple_of(to.max(1));
    blob.resize(end, 0);
}

/// A value of a power-of-two size, at a multiple of it.
#[inline]
fn put(blob: &mut ArgBlob, bytes: &[u8]) {
    pad(blob, bytes.len());
    blob.extend_from_slice(bytes);
}

#[inline]
fn put_array<'a>(blob: &mut ArgBlob, uses: &mut SmallVec<[UseRef<'a>; 8]>, operand: &PlanOperand<'a>, access: Access) {
    put(blob, &operand.ptr.to_le_bytes());
    uses.push(operand.used(access));
}
