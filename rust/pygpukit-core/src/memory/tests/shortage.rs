//! Short of memory: who gives, what the error says, and what is dropped meanwhile.

use super::MIB;
use super::eviction::{bench, state_of};
use crate::error::Error;
use crate::memory::{Pool, PoolOptions, SegmentState};
use crate::residency;

#[test]
fn an_array_dropped_while_it_is_copied_keeps_its_memory_until_then() {
    let bench = bench(64 * MIB, None, None);
    for _ in 0..20 {
        let storage = bench.allocate(8 * MIB);
        bench.fill(&storage, 7, 0).unwrap();
        let segment = storage.segment().clone();
        std::thread::scope(|scope| {
            let seen = segment.clone();
            scope.spawn(move || {
                while seen.state() == SegmentState::Resident {
                    std::hint::spin_loop();
                }
                // The copy on the other thread runs now: what is unmapped under it faults.
                drop(storage);
            });
            bench.state.arena.evict(&segment, &mut || Ok(())).unwrap();
        });
        drop(segment);
        bench.state.arena.trim().unwrap();
        assert_eq!((bench.state.arena.reserved(), bench.pool.stats().host), (0, 0));
    }
}

#[test]
fn an_old_array_that_is_too_large_for_the_reserve_keeps_no_other_here() {
    let bench = bench(64 * MIB, Some(16 * MIB), None);
    let options = PoolOptions { evicting: true, floor: 4 * MIB, ..PoolOptions::default() };
    let kept = bench.pool.child_with("kept", options, &mut || Ok(())).unwrap();
    let other = bench.pool.child_with("other", PoolOptions { floor: 0, ..options }, &mut || Ok(())).unwrap();
    let (large, small) = (kept.allocate(8 * MIB, &bench.streams[0]), kept.allocate(2 * MIB, &bench.streams[0]));
    let (large, small) = (large.unwrap(), small.unwrap());
    bench.fill(&large, 1, 0).unwrap();
    bench.fill(&small, 2, 0).unwrap();
    // 6 MiB are above the reserve: too few for the old one, enough for the new one.
    let asked = other.allocate(8 * MIB, &bench.streams[0]).unwrap();
    bench.fill(&asked, 3, 0).unwrap();
    assert!(large.is_resident() && !small.is_resident());
    let text = other.allocate(2 * MIB, &bench.streams[0]);
    assert!(text.is_ok() && !asked.is_resident(), "its own go last, but they go");
}

#[test]
fn a_closed_pool_keeps_nothing_that_was_dropped() {
    let bench = bench(64 * MIB, None, None);
    let options = PoolOptions { evicting: true, ..PoolOptions::default() };
    let pool = bench.pool.child_with("closed", options, &mut || Ok(())).unwrap();
    let [first, last, small] = [4 * MIB, 4 * MIB, 100].map(|bytes| pool.allocate(bytes, &bench.streams[0]).unwrap());
    assert!(last.evict(&mut || Ok(())).unwrap());
    pool.close().unwrap();
    drop(first);
    assert_eq!(pool.stats().reserved, 2 * MIB, "the slab of the small one");
    drop(small);
    assert_eq!(pool.stats().reserved, 0);
    drop(last);
    assert_eq!((pool.stats().reserved, pool.stats().live), (0, 0));
}

#[test]
fn an_error_names_no_holder_that_is_on_the_host() {
    let bench = bench(64 * MIB, Some(8 * MIB), None);
    let [away, here] = [4 * MIB, 6 * MIB].map(|bytes| bench.allocate(bytes));
    residency::pin(&bench.ctx(0), &here).unwrap();
    assert!(!away.is_resident());
    match bench.pool.allocate(4 * MIB, &bench.streams[0]) {
        Err(Error::OutOfMemory(oom)) => assert_eq!(oom.holders.iter().map(|(bytes, _)| *bytes).sum::<usize>(), 6 * MIB),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_request_above_the_quota_moves_nothing() {
    let bench = bench(64 * MIB, Some(16 * MIB), None);
    let arrays: Vec<_> = (0..4).map(|_| bench.allocate(4 * MIB)).collect();
    assert!(bench.pool.allocate(18 * MIB, &bench.streams[0]).unwrap_err().is_out_of_memory());
    let options = PoolOptions { guarantee: 18 * MIB, ..PoolOptions::default() };
    assert!(bench.pool.child_with("greedy", options, &mut || Ok(())).unwrap_err().is_out_of_memory());
    assert!(arrays.iter().all(|array| state_of(array) == SegmentState::Resident));
    assert!(arrays[0].evict(&mut || Ok(())).unwrap());
    bench.pool.set_quota(Some(2 * MIB), &mut || Ok(())).unwrap();
    assert!(bench.fill(&arrays[0], 1, 0).unwrap_err().is_out_of_memory());
    bench.pool.set_quota(None, &mut || Ok(())).unwrap();
    assert!(arrays.iter().all(|array| bench.fill(array, 3, 0).is_ok() && bench.holds(array, 3)));
}

#[test]
fn what_cannot_move_is_counted_as_the_quota_counts_it() {
    let bench = bench(64 * MIB, Some(MIB), None);
    let blocks: Vec<_> = (0..8).map(|i| bench.allocate(1024 << i)).collect();
    for block in &blocks {
        residency::pin(&bench.ctx(0), block).unwrap();
    }
    match bench.pool.allocate(800 << 10, &bench.streams[0]) {
        // Eight slabs of 2 MiB each.
        Err(Error::OutOfMemory(oom)) => assert_eq!(oom.stuck, [(255 << 10, "pinned")]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_graph_may_take_what_its_own_pool_reserves() {
    let bench = bench(64 * MIB, Some(8 * MIB), None);
    bench.pool.set_floor(8 * MIB);
    let arrays = [bench.allocate(4 * MIB), bench.allocate(4 * MIB)];
    let graph = Pool::private(&bench.pool);
    let made = graph.allocate(4 * MIB, &bench.streams[0]).unwrap();
    assert!(made.is_resident() && !arrays[0].is_resident());
    assert!(bench.fill(&arrays[0], 1, 0).is_ok() && bench.fill(&made, 2, 0).is_ok());
    assert!(bench.holds(&arrays[0], 1) && bench.holds(&made, 2));
}

#[test]
fn a_reserve_is_of_a_pool_and_those_inside() {
    let bench = bench(64 * MIB, Some(16 * MIB), None);
    let options = PoolOptions { evicting: true, floor: 8 * MIB, ..PoolOptions::default() };
    let kept = bench.pool.child_with("kept", options, &mut || Ok(())).unwrap();
    let without = PoolOptions { floor: 0, ..options };
    let part = kept.child_with("part", without, &mut || Ok(())).unwrap();
    let other = bench.pool.child_with("other", without, &mut || Ok(())).unwrap();
    let take = |pool: &std::sync::Arc<Pool>| pool.allocate(4 * MIB, &bench.streams[0]).unwrap();
    let arrays = [take(&part), take(&kept), take(&part)];
    let strange: Vec<_> = (0..3).map(|_| take(&other)).collect();
    let here = arrays.iter().filter(|array| array.is_resident()).count();
    assert_eq!(here, 2, "others took what was above the reserve, and no more");
    // The part takes from what its pool reserves, but first from strangers.
    let more: Vec<_> = (0..3).map(|_| take(&part)).collect();
    assert!(strange.iter().all(|array| !array.is_resident()) && more.iter().all(|array| array.is_resident()));
}
