//! Stream order, classes, trimming, graph pools, growable buffers and the modes, one by one.

use super::*;

fn lazy(streams: u32) -> Rig {
    rig(ArenaMode::Vmm, 64 * MIB, Some(7), streams)
}

#[test]
fn the_home_stream_gets_its_block_back_at_once_and_others_when_it_has_passed() {
    for bytes in [1000, 3 * MIB] {
        let rig = lazy(2);
        let pool = Pool::root(&rig.arena, "root");
        let first = pool.allocate(bytes, &rig.streams[0]).unwrap();
        let ptr = first.ptr();
        rig.use_on(&first, 0);
        drop(first);
        let other = pool.allocate(bytes, &rig.streams[1]).unwrap();
        assert_ne!(other.ptr(), ptr, "stream 0 has not passed");
        let again = pool.allocate(bytes, &rig.streams[0]).unwrap();
        assert_eq!(again.ptr(), ptr);
        drop(again);
        rig.finish();
        let later = pool.allocate(bytes, &rig.streams[1]).unwrap();
        assert_eq!(later.ptr(), ptr);
        assert_eq!(later.home().id(), 1);
    }
}

#[test]
fn another_stream_takes_the_large_block_that_has_passed() {
    let rig = lazy(2);
    let pool = Pool::root(&rig.arena, "root");
    let [old, new] = [(); 2].map(|()| pool.allocate(4 * MIB, &rig.streams[0]).unwrap());
    let passed = old.ptr();
    drop(old);
    rig.finish();
    rig.use_on(&new, 0);
    drop(new);
    assert_eq!(pool.allocate(4 * MIB, &rig.streams[1]).unwrap().ptr(), passed);
}

#[test]
fn one_of_two_users_having_passed_is_not_enough() {
    let mut seen = [0; 2];
    for seed in 0..64 {
        let rig = rig(ArenaMode::Vmm, 64 * MIB, Some(seed), 3);
        let pool = Pool::root(&rig.arena, "root");
        let block = pool.allocate(1000, &rig.streams[0]).unwrap();
        let ptr = block.ptr();
        rig.use_on(&block, 1);
        rig.use_on(&block, 2);
        drop(block);
        // Asking makes the streams track their progress.
        let _before = pool.allocate(1000, &rig.streams[0]).unwrap();
        rig.device.poll().unwrap();
        let after = pool.allocate(1000, &rig.streams[0]).unwrap();
        for user in [1, 2] {
            if rig.ran(user) == 1 && rig.ran(3 - user) == 0 {
                seen[user - 1] += 1;
                assert_ne!(after.ptr(), ptr);
            }
        }
    }
    assert!(seen.iter().all(|&count| count > 0), "{seen:?}");
}

#[test]
fn a_block_used_elsewhere_waits_for_each_user() {
    let rig = lazy(3);
    let pool = Pool::root(&rig.arena, "root");
    for bytes in [1000, 3 * MIB] {
        let block = pool.allocate(bytes, &rig.streams[0]).unwrap();
        let ptr = block.ptr();
        rig.use_on(&block, 1);
        rig.use_on(&block, 2);
        assert_eq!(block.segment().last_use(&rig.streams[2]), Some(rig.streams[2].seq()));
        assert_eq!(block.segment().last_use(&rig.streams[0]), None);
        drop(block);
        assert_eq!(pool.stats().used, 0, "a waiting block is not in use");
        let busy = pool.allocate(bytes, &rig.streams[0]).unwrap();
        assert_ne!(busy.ptr(), ptr);
        rig.finish();
        let free = pool.allocate(bytes, &rig.streams[0]).unwrap();
        assert_eq!(free.ptr(), ptr);
        rig.arena.trim().unwrap();
    }
}

#[test]
fn numbers_a_stream_had_at_birth_order_a_first_use_elsewhere() {
    let rig = lazy(1);
    let pool = Pool::root(&rig.arena, "root");
    let block = pool.allocate(10, &rig.streams[0]).unwrap();
    assert_eq!(block.born(), 0);
    let seq = rig.use_on(&block, 0);
    drop(block);
    assert_eq!(pool.allocate(10, &rig.streams[0]).unwrap().born(), seq);
}

#[test]
fn empty_storage_has_no_memory_and_costs_nothing() {
    let rig = lazy(1);
    let pool = Pool::root(&rig.arena, "root");
    pool.set_quota(Some(0), &mut || Ok(())).unwrap();
    let empty = pool.allocate(0, &rig.streams[0]).unwrap();
    assert_eq!((empty.ptr(), empty.bytes(), empty.capacity()), (0, 0, 0));
    empty.export();
    empty.note_use(&rig.streams[0], 1);
    assert_eq!((pool.stats().live, pool.stats().reserved), (1, 0));
    drop(empty);
    assert_eq!(pool.stats().live, 0);
    assert_eq!(rig.cpu.usage(), Default::default());
}

#[test]
fn steady_state_asks_the_device_for_nothing() {
    let rig = rig(ArenaMode::Vmm, 64 * MIB, None, 1);
    let pool = Pool::root(&rig.arena, "root");
    for _ in 0..100 {
        let _small = pool.allocate(5000, &rig.streams[0]).unwrap();
        let _large = pool.allocate(5 * MIB, &rig.streams[0]).unwrap();
    }
    let stats = pool.stats();
    assert_eq!((stats.misses, stats.hits, stats.allocations), (2, 198, 200));
    assert!((stats.hit_rate() - 0.99).abs() < 1e-9);
    assert_eq!(stats.cached, stats.reserved);
    assert_eq!(stats.peak, 5120 + 6 * MIB);
    assert_eq!(PoolStats::default().hit_rate(), 0.0);
}

#[test]
fn a_cached_segment_serves_a_smaller_array_only_when_little_is_wasted() {
    let rig = rig(ArenaMode::Vmm, 128 * MIB, None, 1);
    let pool = Pool::root(&rig.arena, "root");
    let ptr = pool.allocate(18 * MIB, &rig.streams[0]).unwrap().ptr();
    let close = pool.allocate(16 * MIB, &rig.streams[0]).unwrap();
    assert_eq!((close.ptr(), close.capacity()), (ptr, 18 * MIB));
    assert_eq!(pool.stats().used, 16 * MIB, "the charge does not depend on what was cached");
    drop(close);
    assert_ne!(pool.allocate(14 * MIB, &rig.streams[0]).unwrap().ptr(), ptr);
}

#[test]
fn pools_never_share_a_slab_and_slabs_carry_their_owner() {
    let rig = lazy(1);
    let root = Pool::root(&rig.arena, "root");
    let child = root.child("child", None).unwrap();
    let (a, b) = (root.allocate(100, &rig.streams[0]).unwrap(), child.allocate(100, &rig.streams[0]).unwrap());
    assert_eq!((a.segment().owner(), b.segment().owner()), (root.id(), child.id()));
    assert_ne!(a.segment().va(), b.segment().va());
    assert_eq!(a.segment().class(), SegmentClass::Slab(0));
    assert_eq!(a.segment().state(), SegmentState::Resident);
    assert_eq!(child.parent().unwrap().name(), "root");
    assert!(Arc::ptr_eq(a.pool(), &root));
    assert!(Arc::ptr_eq(root.arena(), &rig.arena));
}

#[test]
fn exports_pin_the_segment_until_the_last_ends() {
    let rig = lazy(1);
    let pool = Pool::root(&rig.arena, "root");
    let (a, b) = (pool.allocate(100, &rig.streams[0]).unwrap(), pool.allocate(100, &rig.streams[0]).unwrap());
    assert_eq!(a.segment().va(), b.segment().va());
    a.export();
    a.export();
    b.export();
    a.unexport();
    assert!(b.segment().is_exported() && b.segment().is_pinned());
    b.unexport();
    b.unexport();
    assert!(b.segment().is_exported(), "a's second export is there");
    drop(a);
    assert!(!b.segment().is_exported() && !b.segment().is_pinned());
}

#[test]
fn trim_returns_what_has_passed_and_keeps_the_rest() {
    let rig = lazy(2);
    let pool = Pool::root(&rig.arena, "root");
    let (busy, idle) =
        (pool.allocate(4 * MIB, &rig.streams[0]).unwrap(), pool.allocate(3 * MIB, &rig.streams[1]).unwrap());
    let held = pool.allocate(256, &rig.streams[1]).unwrap();
    rig.use_on(&busy, 0);
    drop((busy, idle));
    pool.trim().unwrap();
    assert_eq!(pool.stats().reserved, 6 * MIB, "the busy one and the slab of the held one");
    rig.finish();
    pool.trim().unwrap();
    assert_eq!(pool.stats().reserved, 2 * MIB);
    drop(held);
    pool.trim().unwrap();
    assert_eq!(rig.cpu.usage().created, 0);
    drop(pool);
    rig.assert_nothing_left();
}

#[test]
fn a_graph_pool_reuses_in_recorded_order_on_one_stream_and_keeps_its_memory() {
    let rig = lazy(2);
    let root = Pool::root(&rig.arena, "root");
    let graph = Pool::private(&root);
    let temporary = graph.allocate(3 * MIB, &rig.streams[0]).unwrap();
    let ptr = temporary.ptr();
    drop(temporary);
    let other = graph.allocate(3 * MIB, &rig.streams[1]).unwrap();
    assert_ne!(other.ptr(), ptr, "never across streams, though stream 0 is idle");
    let reused = graph.allocate(3 * MIB, &rig.streams[0]).unwrap();
    assert_eq!(reused.ptr(), ptr);
    assert_eq!(root.stats().used, 8 * MIB);
    reused.note_use(&rig.streams[1], 0);
    drop(reused);
    rig.finish();
    assert_ne!(graph.allocate(3 * MIB, &rig.streams[0]).unwrap().ptr(), ptr, "two streams used it in the recording");
    rig.arena.trim().unwrap();
    assert_eq!(graph.stats().reserved, 12 * MIB);
    // A replay is queued on a stream the recording never saw; the memory stays until it has run.
    let seq = rig.submit(1, move || touch(ptr));
    graph.note_use(&rig.streams[1], seq);
    drop(graph);
    assert_eq!(rig.arena.reserved(), 12 * MIB, "a storage keeps the pool");
    drop(other);
    assert_eq!(rig.arena.reserved(), 12 * MIB, "the replay has not run");
    drop(root);
    rig.assert_nothing_left();
}

#[test]
fn without_pooling_each_array_is_its_own_exact_allocation() {
    let rig = rig(ArenaMode::None, 64 * MIB, Some(3), 2);
    let pool = Pool::root(&rig.arena, "root");
    let block = pool.allocate(1001, &rig.streams[0]).unwrap();
    assert_eq!((block.capacity(), rig.cpu.usage().plain), (1001, 1001));
    rig.use_on(&block, 0);
    rig.use_on(&block, 1);
    drop(block);
    assert_eq!(rig.cpu.usage().plain, 1001, "two streams still use it");
    assert_eq!((pool.stats().reserved, pool.stats().cached), (0, 0));
    rig.finish();
    let next = pool.allocate(5, &rig.streams[0]).unwrap();
    assert_eq!(rig.cpu.usage().plain, 5);
    drop((next, pool));
    rig.assert_nothing_left();
}

#[test]
fn without_pooling_a_graph_still_keeps_what_its_recording_freed() {
    let rig = rig(ArenaMode::None, 64 * MIB, None, 1);
    let root = Pool::root(&rig.arena, "root");
    let graph = Pool::private(&root);
    let ptrs: Vec<_> = (0..2).map(|_| graph.allocate(1000, &rig.streams[0]).unwrap().ptr()).collect();
    assert_ne!(ptrs[0], ptrs[1]);
    rig.arena.trim().unwrap();
    ptrs.iter().for_each(|ptr| touch(*ptr));
    assert_eq!((rig.cpu.usage().plain, graph.used()), (2000, 0));
    drop((graph, root));
    rig.assert_nothing_left();
}

#[test]
fn vmm_is_chosen_where_the_device_has_it() {
    let rig = lazy(1);
    assert_eq!(ArenaMode::of(rig.device.as_ref()), ArenaMode::Vmm);
    assert_eq!(rig.arena.mode(), ArenaMode::Vmm);
    let plain = Arena::new(rig.device.clone(), ArenaMode::Plain);
    let pool = Pool::root(&plain, "plain");
    let _block = pool.allocate(10, &rig.streams[0]).unwrap();
    assert_eq!((rig.cpu.usage().plain, rig.cpu.usage().reserved), (2 * MIB, 0));
}

/// Prints what an allocation and its return cost. Run with `--release -- --ignored --nocapture`.
#[test]
#[ignore = "prints a measurement"]
fn cost_of_allocate_and_drop() {
    let rig = rig(ArenaMode::Vmm, 1024 * MIB, None, 1);
    let root = Pool::root(&rig.arena, "root");
    let child = root.child("child", Some(512 * MIB)).unwrap();
    // A program has other arrays too.
    let _others = [&root, &child].map(|pool| pool.allocate(100, &rig.streams[0]).unwrap());
    for (name, pool, bytes) in
        [("root, 4 KiB", &root, 4096), ("child, 4 KiB", &child, 4096), ("root, 8 MiB", &root, 8 * MIB)]
    {
        const ROUNDS: u32 = 2_000_000;
        let mut best = f64::INFINITY;
        for _ in 0..5 {
            let start = std::time::Instant::now();
            for _ in 0..ROUNDS {
                std::hint::black_box(pool.allocate(std::hint::black_box(bytes), &rig.streams[0]).unwrap());
            }
            best = best.min(start.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
        }
        println!("{name}: {best:.1} ns per allocate + drop");
    }
}
