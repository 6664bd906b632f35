//! Eviction over the CPU device: what is written is read back, whatever moved meanwhile, on inline and deferred streams.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use smallvec::{SmallVec, smallvec};

use super::MIB;
use crate::command::{Access, ArgTag, Command, Copy, CopyKind, Fill, Use, Work};
use crate::cpu::{CpuConfig, CpuDevice};
use crate::error::Error;
use crate::exec::ExecCtx;
use crate::launch::submit;
use crate::memory::{ArenaMode, Pool, PoolOptions, SegmentState, Storage};
use crate::residency;
use crate::runtime::DeviceState;
use crate::stream::Stream;

pub(super) struct Bench {
    pub state: &'static DeviceState,
    pub pool: Arc<Pool>,
    pub streams: Vec<Arc<Stream>>,
}

pub(super) fn bench(total: usize, quota: Option<usize>, deferred: Option<u64>) -> Bench {
    let device = CpuDevice::new(CpuConfig { total_memory: Some(total), deferred, ..CpuConfig::default() });
    let state = DeviceState::new(device, ArenaMode::Vmm, false).unwrap();
    state.pinned.set_limit(1 << 30);
    state.arena.set_spill_limit(1 << 30);
    let options = PoolOptions { quota, evicting: true, ..PoolOptions::default() };
    let pool = state.root_pool.child_with("evicting", options, &mut || Ok(())).unwrap();
    let streams = (0..3).map(|_| state.stream(0).unwrap()).collect();
    Bench { state, pool, streams }
}

impl Bench {
    pub fn ctx(&self, stream: usize) -> ExecCtx {
        ExecCtx::default_for(self.state).on_stream(&self.streams[stream])
    }

    pub fn allocate(&self, bytes: usize) -> Arc<Storage> {
        self.pool.allocate(bytes, &self.streams[0]).unwrap()
    }

    pub fn fill(&self, storage: &Arc<Storage>, value: u8, stream: usize) -> crate::error::Result<()> {
        let work = Work::Fill(Fill { dst: storage.ptr(), value: value.into(), width: 1, count: storage.bytes() });
        submit(&self.ctx(stream), Command { work, uses: smallvec![used(storage, Access::Write)], cost_key: 0 })
    }

    /// A copy to the host in stream order; the bytes are right once the stream has passed it.
    pub fn read(&self, storage: &Arc<Storage>, stream: usize) -> crate::error::Result<Arc<Vec<u8>>> {
        let mut bytes = vec![0u8; storage.bytes()];
        let dst = bytes.as_mut_ptr() as u64;
        let kept = Arc::new(bytes);
        let copy =
            Copy { kind: CopyKind::DeviceToHost, dst, src: storage.ptr(), bytes: kept.len(), keep: Some(kept.clone()) };
        let uses = smallvec![used(storage, Access::Read)];
        submit(&self.ctx(stream), Command { work: Work::Copy(copy), uses, cost_key: 0 })?;
        Ok(kept)
    }

    pub fn finish(&self) {
        self.state.synchronize(&mut || Ok(())).unwrap();
    }

    pub fn holds(&self, storage: &Arc<Storage>, value: u8) -> bool {
        let bytes = self.read(storage, 0).unwrap();
        self.finish();
        bytes.iter().all(|byte| *byte == value)
    }
}

pub(super) fn used(storage: &Arc<Storage>, access: Access) -> Use {
    Use { storage: storage.clone(), access, tag: ArgTag::default() }
}

pub(super) fn state_of(storage: &Storage) -> SegmentState {
    storage.segment().state()
}

#[test]
fn twice_the_quota_fits_and_keeps_its_content_and_addresses() {
    for deferred in [None, Some(1), Some(2)] {
        let bench = bench(256 * MIB, Some(16 * MIB), deferred);
        let arrays: Vec<_> = (0..8).map(|_| bench.allocate(4 * MIB)).collect();
        let addresses: Vec<_> = arrays.iter().map(|a| a.ptr()).collect();
        for round in 0..3u8 {
            for (i, array) in arrays.iter().enumerate() {
                bench.fill(array, round * 10 + i as u8, 0).unwrap();
                assert!(bench.pool.used() <= 16 * MIB);
            }
            for (i, array) in arrays.iter().enumerate() {
                assert!(bench.holds(array, round * 10 + i as u8), "round {round}, array {i}");
            }
        }
        assert_eq!(addresses, arrays.iter().map(|a| a.ptr()).collect::<Vec<_>>());
        let moved = bench.state.arena.move_stats();
        assert!(moved.evictions > 8 && moved.restores > 8, "{moved:?}");
        // What was only read since it came back needs no second copy.
        assert!(moved.dropped > 0, "{moved:?}");
        drop(arrays);
        bench.finish();
        assert_eq!(bench.pool.used(), 0);
        bench.state.arena.trim().unwrap();
        assert_eq!(bench.state.arena.reserved(), 0);
        assert_eq!(bench.state.arena.spare_bytes(), 0);
        let host = bench.state.arena.move_stats().host;
        assert_eq!((host.pinned, host.pageable), (0, 0), "copies on the host end with their arrays");
    }
}

#[test]
fn slabs_move_whole() {
    let bench = bench(256 * MIB, Some(8 * MIB), None);
    let small: Vec<_> = (0..8).map(|_| bench.allocate(100_000)).collect();
    for (i, array) in small.iter().enumerate() {
        bench.fill(array, i as u8 + 1, 0).unwrap();
    }
    let large = bench.allocate(8 * MIB);
    assert_eq!(state_of(&small[0]), SegmentState::Evicted);
    // A block of an evicted slab is freed, and another handed out, while it is on the host.
    let mut small = small;
    drop(small.remove(3));
    let fresh = bench.allocate(100_000);
    assert!(bench.pool.used() <= 8 * MIB);
    bench.fill(&fresh, 77, 0).unwrap();
    assert_eq!(state_of(&large), SegmentState::Evicted);
    for (array, value) in small.iter().zip([1, 2, 3, 5, 6, 7, 8]) {
        assert!(bench.holds(array, value));
    }
    assert!(bench.holds(&fresh, 77));
    drop((small, fresh, large));
    bench.finish();
    assert_eq!(bench.pool.used(), 0);
}

#[test]
fn pinned_and_exported_arrays_stay_and_the_error_says_so() {
    let bench = bench(256 * MIB, Some(8 * MIB), None);
    let (a, b) = (bench.allocate(4 * MIB), bench.allocate(4 * MIB));
    let ctx = bench.ctx(0);
    residency::pin(&ctx, &a).unwrap();
    residency::export(&ctx, &b, true).unwrap();
    let refused = bench.pool.allocate(4 * MIB, &bench.streams[0]).unwrap_err();
    let Error::OutOfMemory(report) = &refused else { panic!("{refused}") };
    assert_eq!(report.quota.as_ref().unwrap().1, 8 * MIB);
    let text = refused.to_string();
    assert!(text.contains("4.0 MiB pinned") && text.contains("4.0 MiB exported"), "{text}");
    assert!(!a.evict(&mut || Ok(())).unwrap());
    assert!(a.unpin() && !a.unpin());
    let c = bench.allocate(4 * MIB);
    assert_eq!(
        [state_of(&a), state_of(&b), state_of(&c)],
        [SegmentState::Evicted, SegmentState::Resident, SegmentState::Resident]
    );
}

#[test]
fn a_full_device_evicts_too() {
    let bench = bench(16 * MIB, None, None);
    let arrays: Vec<_> = (0..6).map(|_| bench.allocate(4 * MIB)).collect();
    for (i, array) in arrays.iter().enumerate() {
        bench.fill(array, i as u8, 0).unwrap();
    }
    for (i, array) in arrays.iter().enumerate() {
        assert!(bench.holds(array, i as u8));
    }
    // Memory of a pool that does not evict stays.
    let kept = bench.state.root_pool.allocate(8 * MIB, &bench.streams[0]).unwrap();
    assert!(kept.is_resident() && !kept.is_evictable());
    let too_much = bench.state.root_pool.allocate(12 * MIB, &bench.streams[0]).unwrap_err();
    assert!(too_much.is_out_of_memory());
    drop(kept);
}

#[test]
fn one_command_cannot_use_more_than_the_quota() {
    let bench = bench(256 * MIB, Some(8 * MIB), None);
    let arrays: Vec<_> = (0..3).map(|_| bench.allocate(4 * MIB)).collect();
    let uses: SmallVec<[Use; 4]> = arrays.iter().map(|a| used(a, Access::Read)).collect();
    let work = Work::Host(Arc::new(|| Ok(())));
    let refused = submit(&bench.ctx(0), Command { work, uses, cost_key: 0 }).unwrap_err();
    assert!(refused.is_out_of_memory(), "{refused}");
    assert!(arrays.iter().all(|a| !a.segment().is_pinned()), "nothing stays held after an error");
    bench.fill(&arrays[0], 1, 0).unwrap();
    assert!(bench.holds(&arrays[0], 1));
}

#[test]
fn a_reserve_keeps_others_out_and_a_rank_decides_who_goes_first() {
    let bench = bench(64 * MIB, Some(16 * MIB), None);
    let make = |floor, rank| {
        let options = PoolOptions { evicting: true, floor, rank, ..PoolOptions::default() };
        bench.pool.child_with("part", options, &mut || Ok(())).unwrap()
    };
    let (safe, plain) = (make(8 * MIB, 0), make(0, 1));
    let guarded: Vec<_> = (0..2).map(|_| safe.allocate(4 * MIB, &bench.streams[0]).unwrap()).collect();
    let others: Vec<_> = (0..4).map(|_| plain.allocate(4 * MIB, &bench.streams[0]).unwrap()).collect();
    assert!(guarded.iter().all(|a| a.is_resident()), "below its reserve nothing is taken by others");
    assert_eq!(others.iter().filter(|a| a.is_resident()).count(), 2);
    // Above the reserve the lower rank loses, though used last.
    let third = safe.allocate(4 * MIB, &bench.streams[0]).unwrap();
    residency::prefetch(&bench.ctx(0), &others[0]).unwrap();
    assert_eq!(guarded.iter().chain([&third]).filter(|a| a.is_resident()).count(), 2);
}

#[test]
fn host_memory_that_runs_out_is_an_error_that_loses_nothing() {
    let bench = bench(256 * MIB, Some(8 * MIB), None);
    let (a, b) = (bench.allocate(4 * MIB), bench.allocate(4 * MIB));
    bench.fill(&a, 1, 0).unwrap();
    bench.fill(&b, 2, 0).unwrap();
    bench.state.pinned.set_limit(0);
    bench.state.arena.set_spill_limit(0);
    let refused = bench.pool.allocate(4 * MIB, &bench.streams[0]).unwrap_err();
    assert!(refused.to_string().contains("no host memory"), "{refused}");
    bench.state.arena.set_spill_limit(4 * MIB);
    let c = bench.allocate(4 * MIB);
    bench.fill(&c, 3, 0).unwrap();
    assert_eq!(bench.state.arena.move_stats().host.pageable, 4 * MIB);
    bench.state.arena.set_spill_limit(64 * MIB);
    assert!(bench.holds(&a, 1) && bench.holds(&b, 2) && bench.holds(&c, 3));
}

#[test]
fn a_lower_quota_evicts_at_once() {
    let bench = bench(256 * MIB, Some(16 * MIB), None);
    let arrays: Vec<_> = (0..4).map(|_| bench.allocate(4 * MIB)).collect();
    bench.pool.set_quota(Some(8 * MIB), &mut || Ok(())).unwrap();
    assert_eq!(bench.pool.used(), 8 * MIB);
    assert_eq!(arrays.iter().filter(|a| a.is_resident()).count(), 2);
    bench.pool.close().unwrap();
    for array in &arrays {
        bench.fill(array, 9, 0).unwrap();
        assert!(bench.holds(array, 9), "arrays of a closed pool still come back");
    }
    residency::pin(&bench.ctx(0), &arrays[0]).unwrap();
    residency::pin(&bench.ctx(0), &arrays[1]).unwrap();
    let refused = bench.fill(&arrays[2], 1, 0).unwrap_err();
    assert!(refused.is_out_of_memory(), "it does not fit; that the pool is closed is not why: {refused}");
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(usize),
    Fill(usize, u8, usize),
    Check(usize, usize),
    Evict(usize),
    Prefetch(usize),
    Pin(usize),
    Unpin(usize),
    Free(usize),
    Quota(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = 0..12usize;
    let one = prop_oneof![
        3 => prop_oneof![1usize..200_000, MIB + 1..5 * MIB].prop_map(Step::Allocate),
        5 => (which.clone(), any::<u8>(), 0..3usize).prop_map(|(i, v, s)| Step::Fill(i, v, s)),
        4 => (which.clone(), 0..3usize).prop_map(|(i, s)| Step::Check(i, s)),
        2 => which.clone().prop_map(Step::Evict),
        1 => which.clone().prop_map(Step::Prefetch),
        1 => which.clone().prop_map(Step::Pin),
        1 => which.clone().prop_map(Step::Unpin),
        2 => which.prop_map(Step::Free),
        1 => (6usize..24).prop_map(Step::Quota),
    ];
    proptest::collection::vec(one, 1..60)
}

struct Live {
    storage: Arc<Storage>,
    address: u64,
    value: Option<u8>,
    /// The stream and number of its last use, which the next use on another stream waits for.
    last: (usize, u64),
}

fn lose_nothing(steps: Vec<Step>, seed: Option<u64>) -> Result<(), TestCaseError> {
    let bench = bench(512 * MIB, Some(12 * MIB), seed);
    let mut live: Vec<Live> = Vec::new();
    let mut reads: Vec<(Arc<Vec<u8>>, u8)> = Vec::new();
    for step in steps {
        let pick = |i: usize, live: &Vec<Live>| (!live.is_empty()).then(|| i % live.len());
        let follow = |of: &Live, stream: usize| {
            bench.streams[stream].wait_for(&bench.streams[of.last.0], of.last.1).unwrap();
        };
        match step {
            Step::Allocate(bytes) => {
                if let Ok(storage) = bench.pool.allocate(bytes, &bench.streams[0]) {
                    let last = (0, bench.streams[0].seq());
                    live.push(Live { address: storage.ptr(), storage, value: None, last });
                }
            }
            Step::Fill(i, value, stream) => {
                if let Some(i) = pick(i, &live) {
                    follow(&live[i], stream);
                    if bench.fill(&live[i].storage, value, stream).is_ok() {
                        live[i].value = Some(value);
                        live[i].last = (stream, bench.streams[stream].seq());
                    }
                }
            }
            Step::Check(i, stream) => {
                if let Some(i) = pick(i, &live) {
                    follow(&live[i], stream);
                    if let (Some(value), Ok(bytes)) = (live[i].value, bench.read(&live[i].storage, stream)) {
                        reads.push((bytes, value));
                        live[i].last = (stream, bench.streams[stream].seq());
                    }
                }
            }
            Step::Evict(i) => {
                if let Some(i) = pick(i, &live) {
                    live[i].storage.evict(&mut || Ok(())).unwrap();
                }
            }
            Step::Prefetch(i) => {
                if let Some(i) = pick(i, &live) {
                    let _ = residency::prefetch(&bench.ctx(0), &live[i].storage);
                }
            }
            Step::Pin(i) => {
                if let Some(i) = pick(i, &live) {
                    let _ = residency::pin(&bench.ctx(0), &live[i].storage);
                }
            }
            Step::Unpin(i) => {
                if let Some(i) = pick(i, &live) {
                    live[i].storage.unpin();
                }
            }
            Step::Free(i) => {
                if let Some(i) = pick(i, &live) {
                    live.swap_remove(i);
                }
            }
            Step::Quota(mib) => bench.pool.set_quota(Some(mib * MIB), &mut || Ok(())).unwrap(),
        }
    }
    bench.pool.set_quota(None, &mut || Ok(())).unwrap();
    for of in &live {
        prop_assert_eq!(of.address, of.storage.ptr());
        if let Some(value) = of.value {
            bench.streams[0].wait_for(&bench.streams[of.last.0], of.last.1).unwrap();
            reads.push((bench.read(&of.storage, 0).unwrap(), value));
        }
    }
    bench.finish();
    for (bytes, value) in reads {
        prop_assert!(
            bytes.iter().all(|byte| *byte == value),
            "expected {}, found {:?}",
            value,
            &bytes[..4.min(bytes.len())]
        );
    }
    drop(live);
    bench.finish();
    prop_assert_eq!(bench.pool.used(), 0);
    bench.state.arena.trim().unwrap();
    prop_assert_eq!(bench.state.arena.reserved(), 0);
    prop_assert_eq!(bench.pool.stats().evicted, 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn random_sequences_lose_nothing(steps in steps(), seed in proptest::option::of(0..1000u64)) {
        lose_nothing(steps, seed)?;
    }
}

/// An eviction that was given up and begun anew waits for the second copy, not for the first.
#[test]
fn an_eviction_begun_twice_waits_for_the_last_use() {
    use Step::{Allocate, Evict, Fill};
    for seed in 0..50 {
        let fills = |i| [Fill(i, 1, 0), Fill(i, 2, 2)];
        let mut steps = vec![Allocate(4 * MIB + 1), Allocate(MIB + 1), Allocate(5 * MIB), Allocate(2 * MIB)];
        steps.extend((0..4).flat_map(fills).chain([Evict(1), Fill(1, 3, 1), Evict(1), Evict(0)]));
        lose_nothing(steps, Some(seed)).unwrap();
    }
}

#[test]
fn copies_that_nobody_needs_make_room_on_the_host() {
    let bench = bench(256 * MIB, Some(8 * MIB), None);
    // Slots for other memory are a part of this.
    bench.state.pinned.set_limit(14 * MIB);
    bench.state.arena.set_spill_limit(0);
    let arrays: Vec<_> = (0..4).map(|_| bench.allocate(4 * MIB)).collect();
    for round in 0..3u8 {
        for (i, array) in arrays.iter().enumerate() {
            bench.fill(array, round * 10 + i as u8, 0).unwrap();
        }
        for (i, array) in arrays.iter().enumerate() {
            assert!(bench.holds(array, round * 10 + i as u8), "round {round}, array {i}");
        }
    }
    assert_eq!(bench.state.arena.move_stats().host.pageable, 0);
}

#[test]
fn memory_that_is_not_page_locked_goes_through_slots() {
    for deferred in [None, Some(1), Some(5)] {
        let bench = bench(256 * MIB, Some(8 * MIB), deferred);
        bench.state.pinned.set_limit(32 * MIB);
        let first = bench.allocate(4 * MIB);
        assert!(first.evict(&mut || Ok(())).unwrap());
        drop(first);
        let slots = bench.state.pinned.stats().used;
        assert_eq!(slots, 4 * (512 << 10));
        // All the rest is somebody else's.
        let _others: Vec<_> = std::iter::from_fn(|| bench.state.pinned.take(2 * MIB).ok()).collect();
        let arrays: Vec<_> = (0..5).map(|_| bench.allocate(4 * MIB - 1000)).collect();
        for round in 0..3u8 {
            for (i, array) in arrays.iter().enumerate() {
                bench.fill(array, round * 10 + i as u8, i % 3).unwrap();
            }
            for (i, array) in arrays.iter().enumerate() {
                assert!(bench.holds(array, round * 10 + i as u8), "round {round}, array {i}");
            }
        }
        let host = bench.state.arena.move_stats().host;
        assert!(host.pageable >= 12 * MIB && host.pinned == 0, "{host:?}");
    }
}

#[test]
fn a_host_quota_binds_a_pool_and_those_below_it() {
    let bench = bench(256 * MIB, Some(8 * MIB), None);
    let options = PoolOptions { evicting: true, host_quota: Some(4 * MIB), ..PoolOptions::default() };
    let outer = bench.pool.child_with("outer", options, &mut || Ok(())).unwrap();
    let inner = outer.child_with("inner", PoolOptions { host_quota: None, ..options }, &mut || Ok(())).unwrap();
    let plain = bench.allocate(4 * MIB);
    let mut arrays: Vec<_> = (0..3).map(|_| inner.allocate(4 * MIB, &bench.streams[0]).unwrap()).collect();
    bench.fill(&arrays[1], 1, 0).unwrap();
    // The arrays of the pool around have no such bound.
    assert!(!plain.is_resident() && !arrays[0].is_resident());
    assert_eq!((outer.stats().host, inner.stats().host, bench.pool.stats().host), (4 * MIB, 4 * MIB, 8 * MIB));
    let text = inner.allocate(4 * MIB, &bench.streams[0]).unwrap_err().to_string();
    assert!(text.contains("pool 'outer' uses 4.0 MiB of its host quota of 4.0 MiB"), "{text}");
    arrays.pop();
    bench.fill(&arrays[0], 3, 0).unwrap();
    assert!(bench.holds(&arrays[0], 3) && bench.holds(&arrays[1], 1));
    drop(arrays);
    bench.finish();
    assert_eq!(outer.stats().host, 0);
}

#[test]
fn others_gain_nothing_below_a_guarantee() {
    let bench = bench(64 * MIB, None, None);
    let options = PoolOptions { evicting: true, guarantee: 16 * MIB, ..PoolOptions::default() };
    let safe = bench.pool.child_with("safe", options, &mut || Ok(())).unwrap();
    let guarded: Vec<_> = (0..6).map(|_| safe.allocate(4 * MIB, &bench.streams[0]).unwrap()).collect();
    let others: Vec<_> = (0..14).map(|_| bench.allocate(4 * MIB)).collect();
    for array in &others {
        bench.fill(array, 7, 0).unwrap();
    }
    let here = |arrays: &[Arc<Storage>]| arrays.iter().filter(|array| array.is_resident()).count();
    assert_eq!((here(&guarded), here(&others)), (4, 12), "16 MiB stay, though used longest ago");
    for (i, array) in guarded.iter().enumerate() {
        bench.fill(array, i as u8, 0).unwrap();
    }
    // A guarantee made now takes from those that evict.
    let late = bench.pool.child_with("late", PoolOptions { guarantee: 32 * MIB, ..options }, &mut || Ok(())).unwrap();
    assert_eq!(late.stats().held, 32 * MIB);
    for (i, array) in guarded.iter().enumerate() {
        assert!(bench.holds(array, i as u8));
    }
    assert!(others.iter().all(|array| bench.holds(array, 7)));
}

#[test]
fn pools_that_take_turns_move_no_more_than_they_must() {
    for deferred in [None, Some(1)] {
        let bench = bench(256 * MIB, Some(36 * MIB), deferred);
        let options = PoolOptions { evicting: true, ..PoolOptions::default() };
        let part = || bench.pool.child_with("part", options, &mut || Ok(())).unwrap();
        let (one, two) = (part(), part());
        let make = |pool: &Arc<Pool>| -> Vec<_> {
            (0..6).map(|_| pool.allocate(4 * MIB, &bench.streams[0]).unwrap()).collect()
        };
        let sets = [make(&one), make(&two)];
        let run = |set: &Vec<Arc<Storage>>, value| set.iter().for_each(|array| bench.fill(array, value, 0).unwrap());
        run(&sets[0], 0);
        for turn in 1..7u8 {
            let before = bench.state.arena.move_stats().restores;
            run(&sets[usize::from(turn) % 2], turn);
            // Twelve arrays, nine of which fit: three are away, and all of them are of the set whose turn it is.
            assert_eq!(bench.state.arena.move_stats().restores - before, 3, "turn {turn}");
        }
    }
}
