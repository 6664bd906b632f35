//! A step that is a matrix product by cuBLASLt.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

use super::launch_plan::PlanOperand;
use super::program::{NodeId, Values};
use crate::command::{Access, UseRef};
use crate::cuda::cublaslt::{Compute, CublasLt, GemmCall, GemmPlan, GemmShape, Operand};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::exec::ExecCtx;
use crate::launch::call_library;
use crate::memory::Storage;

/// Sizes that keep the algorithm chosen for them.
const KEPT: usize = 1024;

/// m, n, k, batch; then elements between rows, elements between matrices and alignment, each of a, b and out.
const NODES: usize = 13;

type Sizes = [i64; NODES];

/// Where a product is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProductTarget {
    /// One of the results.
    Output(u8),
    /// A piece of workspace, for a kernel that finishes it.
    Scratch(u8),
}

/// `out = a @ b` for stacks of matrices. The library's plan for given sizes is made when they first come.
pub struct ProductStep {
    pub library: Arc<CublasLt>,
    pub dtype: DType,
    pub out_dtype: DType,
    pub compute: Compute,
    pub transposed: [bool; 2],
    pub sizes: [NodeId; NODES],
    /// Positions of a and b among the inputs.
    pub inputs: [u8; 2],
    pub target: ProductTarget,
    /// A piece of workspace for the library, and its bytes: sums may then be split.
    pub workspace: Option<(u8, usize)>,
    chosen: Mutex<Chosen>,
}

#[derive(Default)]
struct Chosen {
    recent: Option<(Sizes, Arc<GemmPlan>)>,
    all: HashMap<Sizes, Arc<GemmPlan>>,
}

impl fmt::Debug for ProductStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProductStep({} to {})", self.dtype.name(), self.out_dtype.name())
    }
}

impl ProductStep {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        library: Arc<CublasLt>,
        dtype: DType,
        out_dtype: DType,
        compute: Compute,
        transposed: [bool; 2],
        sizes: [NodeId; NODES],
        inputs: [u8; 2],
        target: ProductTarget,
        workspace: Option<(u8, usize)>,
    ) -> ProductStep {
        let chosen = Mutex::default();
        ProductStep { library, dtype, out_dtype, compute, transposed, sizes, inputs, target, workspace, chosen }
    }

    /// Do its positions exist among so many inputs, results and pieces of workspace?
    pub(super) fn is_sound(&self, inputs: usize, outputs: usize, scratch: usize) -> bool {
        let target = match self.target {
            ProductTarget::Output(index) => usize::from(index) < outputs,
            ProductTarget::Scratch(index) => usize::from(index) < scratch,
        };
        let workspace = self.workspace.is_none_or(|(index, _)| usize::from(index) < scratch);
        target && workspace && self.inputs.iter().all(|index| usize::from(*index) < inputs)
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.sizes.into_iter()
    }

    fn sizes_of(&self, values: &Values) -> Sizes {
        self.sizes.map(|node| values[usize::from(node)])
    }

    fn known(&self, sizes: &Sizes) -> Option<Arc<GemmPlan>> {
        let mut chosen = self.chosen.lock();
        if let Some((recent, plan)) = &chosen.recent
            && recent == sizes
        {
            return Some(plan.clone());
        }
        let plan = chosen.all.get(sizes)?.clone();
        chosen.recent = Some((*sizes, plan.clone()));
        Some(plan)
    }

    pub(super) fn is_ready(&self, values: &Values) -> bool {
        self.known(&self.sizes_of(values)).is_some_and(|plan| plan.is_loaded())
    }

    #[cold]
    fn choose(&self, ctx: &ExecCtx, sizes: &Sizes) -> Result<Arc<GemmPlan>> {
        let [m, n, k, batch, ..] = *sizes;
        let operand = |which: usize, dtype, transposed| -> Result<Operand> {
            let alignment = u32::try_from(sizes[10 + which]).unwrap_or(0);
            Ok(Operand { dtype, transposed, ld: sizes[4 + which], batch_stride: sizes[7 + which], alignment })
        };
        let shape = GemmShape {
            m,
            n,
            k,
            batch: i32::try_from(batch).map_err(|_| Error::Shape(format!("matmul of {batch} matrices is too many")))?,
            a: operand(0, self.dtype, self.transposed[0])?,
            b: operand(1, self.dtype, self.transposed[1])?,
            out: operand(2, self.out_dtype, false)?,
            compute: self.compute,
            accumulate: false,
        };
        let workspace = self.workspace.map_or(0, |(_, bytes)| bytes);
        let plan = GemmPlan::pinned(&self.library, &*ctx.state.device, &shape, workspace)?;
        let mut chosen = self.chosen.lock();
        let gone = if chosen.all.len() >= KEPT { std::mem::take(&mut chosen.all) } else { HashMap::new() };
        // Another thread may have been faster: its choice stays, so that the bits of a shape do too.
        let plan = chosen.all.entry(*sizes).or_insert(plan).clone();
        chosen.recent = Some((*sizes, plan.clone()));
        drop(chosen);
        drop(gone);
        Ok(plan)
    }

    #[inline]
    pub(super) fn launch(
        &self,
        ctx: &ExecCtx,
        values: &Values,
        inputs: &[PlanOperand<'_>],
        outputs: &[PlanOperand<'_>],
        scratch: &[Arc<Storage>],
    ) -> Result<()> {
        let sizes = self.sizes_of(values);
        let plan = match self.known(&sizes) {
            Some(plan) => plan,
            None => self.choose(ctx, &sizes)?,
        };
        let [a, b] = self.inputs.map(|index| inputs[usize::from(index)]);
        let piece = |index: u8| PlanOperand::of_scratch(&scratch[usize::from(index)]);
        let out = match self.target {
            ProductTarget::Output(index) => outputs[usize::from(index)],
            ProductTarget::Scratch(index) => piece(index),
        };
        let mut uses: SmallVec<[UseRef<'_>; 4]> =
            smallvec![out.used(Access::Write), a.used(Access::Read), b.used(Access::Read)];
        let workspace = self.workspace.filter(|_| plan.workspace() > 0).map(|(index, bytes)| {
            let piece = piece(index);
            uses.push(piece.used(Access::Write));
            (piece.ptr, bytes)
        });
        let call = GemmCall::new(&plan, out.ptr, a.ptr, b.ptr, workspace)?;
        call_library(ctx, &call, &uses)
    }
}
