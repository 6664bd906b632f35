//! Kernels launched in ranges of blocks: whoever has a better claim to the lane waits for a range, not for the kernel.
//!
//! A variant of the kernel takes four more numbers: the first block of the range, and the grid as it was asked for. It
//! is launched on a line of blocks, which stand for those of the grid in order of their number.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::command::{ArgBlob, Launch, LaunchAttributes, UseRef};
use crate::error::{Error, Result};
use crate::exec::ExecCtx;
use crate::kernel::Kernel;
use crate::launch::{mix, put_kernel};

/// Device time a range is to take: together with what a besteffort tenant has in flight when it submits more, less than
/// half a millisecond, and still a hundred times what a launch costs.
pub(crate) const SLICE_NS: i64 = 200_000;

/// What makes the variant of a kernel; None where there can be none.
pub type Slicer = Box<dyn Fn() -> Result<Option<Sliced>> + Send>;

/// The variant of a kernel that runs a range of its blocks.
#[derive(Debug)]
pub struct Sliced {
    pub kernel: Arc<Kernel>,
    /// Where the four numbers lie in its argument block.
    pub offset: usize,
}

enum State {
    Never,
    Unmade(Slicer),
    /// Somebody is at it. Others do not wait: they may hold what it needs.
    Making,
    Made(Arc<Sliced>),
}

/// A kernel's variant, made when first asked for.
pub(crate) struct Slicing(Mutex<State>);

impl Default for Slicing {
    fn default() -> Self {
        Slicing(Mutex::new(State::Never))
    }
}

impl fmt::Debug for Slicing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &*self.0.lock() {
            State::Never => "Never",
            State::Unmade(_) => "Unmade",
            State::Making => "Making",
            State::Made(_) => "Made",
        })
    }
}

impl Slicing {
    pub fn set(&self, slicer: Slicer) {
        *self.0.lock() = State::Unmade(slicer);
    }

    pub fn get(&self) -> Result<Option<Arc<Sliced>>> {
        let mut state = self.0.lock();
        match &*state {
            State::Made(sliced) => return Ok(Some(sliced.clone())),
            State::Never | State::Making => return Ok(None),
            State::Unmade(_) => {}
        }
        let State::Unmade(slicer) = std::mem::replace(&mut *state, State::Making) else { return Ok(None) };
        drop(state);
        let (next, result) = match slicer() {
            Ok(Some(sliced)) => {
                let sliced = Arc::new(sliced);
                (State::Made(sliced.clone()), Ok(Some(sliced)))
            }
            Ok(None) => (State::Never, Ok(None)),
            // Given up, by Ctrl-C for one: the next one may have more luck.
            Err(error) => (State::Unmade(slicer), Err(error)),
        };
        *self.0.lock() = next;
        result
    }
}

/// Blocks of a grid; None where a block's number would not fit.
fn blocks_of(grid: [u32; 3]) -> Option<u32> {
    let [x, y, z] = grid.map(u64::from);
    x.checked_mul(y)?.checked_mul(z)?.try_into().ok()
}

/// Blocks of each range, for a kernel of this cost. Ranges are whole waves of blocks that run at the same time: a part
/// of a wave takes as long as a whole one. None: one range would be all of it.
fn blocks_per_slice(total: u32, wave: u32, cost_ns: i64) -> Option<u32> {
    let (total, wave) = (u64::from(total), u64::from(wave.max(1)));
    let within = (u128::from(total) * SLICE_NS as u128 / cost_ns.max(1) as u128).min(u128::from(total)) as u64;
    // Two digits of a binary number behind the first: a cost that changes a little gives the same ranges, and so the same
    // kinds of work.
    let waves = (within / wave).max(1);
    let step = waves.ilog2().saturating_sub(2);
    let blocks = (waves >> step << step) * wave;
    let count = total.div_ceil(blocks);
    let even = total.div_ceil(count).next_multiple_of(wave);
    (even < total).then_some(even as u32)
}

/// The ranges of one launch.
pub(crate) struct Slices {
    sliced: Arc<Sliced>,
    kind: u64,
    blocks: u32,
    total: u32,
}

/// Should this launch, work of this kind, be made in ranges, and in which? Only long work of tenants that give way is.
pub(crate) fn plan(ctx: &ExecCtx, launch: &Launch<'_>, kind: u64) -> Result<Option<Slices>> {
    let Some(lease) = ctx.current_lease() else { return Ok(None) };
    let Some(cost) = lease.cost_to_slice(kind) else { return Ok(None) };
    if launch.attributes != LaunchAttributes::default() || ctx.state.device.checks(launch.kernel.meta().check) {
        return Ok(None);
    }
    let (Some(total), Some(sliced)) = (blocks_of(launch.grid), launch.kernel.sliced()?) else { return Ok(None) };
    sliced.kernel.allow_shared(launch.shared)?;
    let wave = sliced.kernel.occupancy(launch.block.iter().product(), launch.shared)? * lease.lane().sm_count();
    let Some(blocks) = blocks_per_slice(total, wave, cost) else { return Ok(None) };
    let slices = Slices { sliced, kind, blocks, total };
    let part = |blocks: u32| (slices.kind_of(blocks), f64::from(blocks) / f64::from(total));
    lease.relate(kind, [part(blocks), part(total % blocks)]);
    Ok(Some(slices))
}

impl Slices {
    /// What a range of so many blocks costs is known by this.
    fn kind_of(&self, blocks: u32) -> u64 {
        mix(mix(7, self.kind), u64::from(blocks))
    }

    /// Launch the ranges, one after the other; the lane may be another's in between.
    pub fn launch(&self, ctx: &ExecCtx, launch: &Launch<'_>, uses: &[UseRef<'_>]) -> Result<()> {
        let lease = ctx.current_lease();
        let mut args = ArgBlob::from_slice(launch.args);
        args.resize(self.sliced.offset + 16, 0);
        let mut first = 0;
        while first < self.total {
            let blocks = self.blocks.min(self.total - first);
            let words = [first, launch.grid[0], launch.grid[1], launch.grid[2]];
            for (place, word) in args[self.sliced.offset..].chunks_exact_mut(4).zip(words) {
                place.copy_from_slice(&word.to_le_bytes());
            }
            let slice = Launch { kernel: &self.sliced.kernel, grid: [blocks, 1, 1], args: &args, ..*launch };
            let kind = if ctx.is_leased() { Some(self.kind_of(blocks)) } else { None };
            put_kernel(ctx, &slice, uses, kind)?;
            if let Some(lease) = &lease {
                lease.count_slice();
            }
            first += blocks;
        }
        Ok(())
    }
}

/// Launch in ranges of so many blocks, whoever asks and whatever it costs: for tests.
pub fn launch_in_slices(ctx: &ExecCtx, launch: &Launch<'_>, uses: &[UseRef<'_>], blocks: u32) -> Result<()> {
    ctx.state.check()?;
    let name = launch.kernel.name();
    if ctx.recorder.is_some() {
        return Err(Error::Launch(format!("kernel '{name}' cannot be recorded in ranges of blocks")));
    }
    let (Some(total), Some(sliced)) = (blocks_of(launch.grid), launch.kernel.sliced()?) else {
        return Err(Error::Launch(format!("kernel '{name}' cannot be launched in ranges of blocks")));
    };
    sliced.kernel.allow_shared(launch.shared)?;
    Slices { sliced, kind: 0, blocks: blocks.max(1), total }.launch(ctx, launch, uses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn ranges_are_even_waves_that_take_about_a_slice() {
        // 100 waves of 1000 blocks in 5 ms: four waves each.
        assert_eq!(blocks_per_slice(100_000, 1000, 5_000_000), Some(4000));
        // One wave is longer than a slice.
        assert_eq!(blocks_per_slice(10_000, 1000, 50_000_000), Some(1000));
        // All blocks run at the same time: ranges would only run one after the other.
        assert_eq!(blocks_per_slice(1000, 1000, 5_000_000), None);
        assert_eq!(blocks_per_slice(528, 1056, 5_000_000), None);
        assert_eq!(blocks_per_slice(1, 0, 5_000_000), None);
        // Two ranges rather than one and a little one.
        assert_eq!(blocks_per_slice(1500, 1, 300_000), Some(750));
    }

    #[test]
    fn ranges_cover_any_grid_and_end_in_time() {
        let mut random = Random::new(5);
        for _ in 0..20_000 {
            let mut up_to = |bits: usize| {
                let bits = 1 + random.below(bits);
                random.below(1 << bits)
            };
            let (total, wave, cost) = (1 + up_to(31) as u32, up_to(12) as u32, 1 + up_to(40) as i64);
            let Some(blocks) = blocks_per_slice(total, wave, cost) else { continue };
            assert!(blocks > 0 && blocks < total && blocks % wave.max(1) == 0, "{total} {wave} {cost}: {blocks}");
            let predicted = cost as f64 * f64::from(blocks) / f64::from(total);
            assert!(blocks == wave.max(1) || predicted <= SLICE_NS as f64, "{total} {wave} {cost}: {blocks}");
        }
    }

    #[test]
    fn a_cost_that_changes_a_little_gives_the_same_ranges() {
        let sizes: std::collections::HashSet<_> =
            (0..100).map(|i| blocks_per_slice(1_000_000, 1056, 4_000_000 + i * 1000)).collect();
        assert!(sizes.len() <= 2, "{sizes:?}");
    }

    #[test]
    fn a_variant_is_asked_for_once_unless_that_was_given_up() {
        let asked = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let slicing = Slicing::default();
        assert!(matches!(slicing.get(), Ok(None)));
        let counted = asked.clone();
        slicing.set(Box::new(move || match counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => Err(Error::ShuttingDown),
            _ => Ok(None),
        }));
        assert!(matches!(slicing.get(), Err(Error::ShuttingDown)));
        assert!(matches!(slicing.get(), Ok(None)));
        assert!(matches!(slicing.get(), Ok(None)));
        assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), 2);
    }

    #[test]
    fn grids_too_large_to_number_are_left_alone() {
        assert_eq!(blocks_of([65_536, 65_535, 1]), Some(65_536 * 65_535));
        assert_eq!(blocks_of([65_536, 65_536, 1]), None);
        assert_eq!(blocks_of([u32::MAX; 3]), None);
    }
}
