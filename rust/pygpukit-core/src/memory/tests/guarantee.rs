//! Memory held for a pool: it is there whatever others do, and goes back when the pool ends.

use proptest::prelude::*;

use super::*;
use crate::error::Error;

fn guaranteed(parent: &Arc<Pool>, name: &str, guarantee: usize) -> crate::error::Result<Arc<Pool>> {
    let options = PoolOptions { guarantee, ..PoolOptions::default() };
    parent.child_with(name, options, &mut || Ok(()))
}

/// Everything that can be had, in arrays of these sizes.
fn hog(pool: &Arc<Pool>, stream: &Arc<Stream>) -> Vec<Arc<Storage>> {
    let sizes = [64 * MIB, 16 * MIB, 6 * MIB, 2 * MIB];
    sizes.iter().flat_map(|size| std::iter::from_fn(|| pool.allocate(*size, stream).ok())).collect()
}

#[test]
fn a_hog_cannot_touch_what_is_guaranteed() {
    let rig = rig(ArenaMode::Vmm, 512 * MIB, Some(1), 2);
    let root = Pool::root(&rig.arena, "root");
    let safe = guaranteed(&root, "safe", 200 * MIB).unwrap();
    assert_eq!((root.used(), safe.used(), safe.stats().held), (200 * MIB, 0, 200 * MIB));
    assert_eq!(rig.cpu.usage().created, 200 * MIB, "the memory is really held");
    let greedy = root.child("greedy", None).unwrap();
    let taken = hog(&greedy, &rig.streams[0]);
    assert_eq!(greedy.used(), 312 * MIB);
    let text = greedy.allocate(2 * MIB, &rig.streams[0]).unwrap_err().to_string();
    assert!(text.contains("200.0 MiB  held by the guarantee of pool 'safe'"), "{text}");
    // In every cut: whole pieces, parts of them, small arrays.
    for size in [200 * MIB, 66 * MIB, 10 * MIB, 2 * MIB, 300_000] {
        let count = if size < MIB { 100 } else { 200 * MIB / size };
        let arrays: Vec<_> = (0..count).map(|_| safe.allocate(size, &rig.streams[1]).unwrap()).collect();
        for array in &arrays {
            rig.use_on(array, 1);
        }
        assert_eq!(root.used(), 512 * MIB, "the pool around counts the guarantee, not the use");
    }
    assert!(safe.allocate(202 * MIB, &rig.streams[1]).is_err());
    drop(taken);
    rig.finish();
    // Above the guarantee it takes part like everybody else.
    let much = safe.allocate(300 * MIB, &rig.streams[1]).unwrap();
    assert_eq!((root.used(), safe.stats().held), (300 * MIB, 0));
    drop(much);
    assert_eq!(root.used(), 200 * MIB);
    rig.arena.trim().unwrap();
    assert_eq!(rig.cpu.usage().created, 200 * MIB, "what is above goes back, the guarantee stays");
    drop(safe);
    assert_eq!(root.used(), 0);
    drop((root, greedy));
    rig.assert_nothing_left();
}

#[test]
fn a_pool_is_fixed_until_it_is_loosened() {
    let rig = rig(ArenaMode::Vmm, 64 * MIB, None, 1);
    let device = rig.device.clone();
    let id = std::sync::atomic::AtomicU32::new(10);
    rig.arena.set_streams(Box::new(move || Stream::new(&Lane::whole(&device), id.fetch_add(1, Ordering::Relaxed), 0)));
    rig.arena.set_spill_limit(64 * MIB);
    let root = Pool::root(&rig.arena, "root");
    let options = PoolOptions { guarantee: 40 * MIB, quota: Some(40 * MIB), evicting: true, ..PoolOptions::default() };
    let fixed = root.child_with("fixed", PoolOptions { fixed: true, ..options }, &mut || Ok(())).unwrap();
    let graph = Pool::private(&fixed);
    let array = fixed.allocate(30 * MIB, &rig.streams[0]).unwrap();
    assert!(!fixed.is_evicting() && !graph.is_evicting());
    // Neither others nor the pool itself, when its quota is full, nor anybody who asks for it moves its arrays.
    assert!(guaranteed(&root, "other", 30 * MIB).is_err());
    assert!(fixed.allocate(12 * MIB, &rig.streams[0]).is_err());
    assert!(!array.evict(&mut || Ok(())).unwrap());
    fixed.loosen();
    assert!(fixed.is_evicting() && graph.is_evicting());
    fixed.close().unwrap();
    let other = guaranteed(&root, "other", 60 * MIB).unwrap();
    assert!(!array.is_resident());
    drop((array, graph, fixed, other, root));
    rig.assert_nothing_left();
}

#[test]
fn claims_leave_nothing_to_who_was_promised_nothing() {
    let rig = rig(ArenaMode::Vmm, 64 * MIB, None, 1);
    let stream = &rig.streams[0];
    let root = Pool::root(&rig.arena, "root");
    let evicting = PoolOptions { evicting: true, ..PoolOptions::default() };
    let free = root.child_with("free", evicting, &mut || Ok(())).unwrap();
    let partly = root.child_with("partly", PoolOptions { guarantee: 4 * MIB, ..evicting }, &mut || Ok(())).unwrap();
    let inside = partly.child_with("inside", evicting, &mut || Ok(())).unwrap();
    let claims = [Claim::new(&rig.arena), Claim::new(&rig.arena)];
    for claim in claims {
        let text = free.allocate(MIB, stream).unwrap_err().to_string();
        assert!(text.contains("was promised memory waits"), "{text}");
        let held = inside.allocate(4 * MIB, stream).unwrap();
        assert!(partly.allocate(2 * MIB, stream).is_err(), "it was promised no more");
        // Nobody's arrays never move, so they are not in the way of eviction.
        drop((held, root.allocate(2 * MIB, stream).unwrap(), claim));
    }
    drop((free.allocate(MIB, stream).unwrap(), free, inside, partly, root));
    rig.assert_nothing_left();
}

#[test]
fn what_cannot_be_held_is_refused() {
    let rig = rig(ArenaMode::Vmm, 64 * MIB, None, 1);
    let root = Pool::root(&rig.arena, "root");
    let held = root.allocate(20 * MIB, &rig.streams[0]).unwrap();
    assert!(matches!(guaranteed(&root, "a", 46 * MIB), Err(Error::OutOfMemory(_))));
    assert_eq!((root.used(), rig.cpu.usage().created), (20 * MIB, 20 * MIB), "a refusal leaves no trace");
    root.set_quota(Some(40 * MIB), &mut || Ok(())).unwrap();
    match guaranteed(&root, "b", 22 * MIB) {
        Err(Error::OutOfMemory(oom)) => assert_eq!(oom.quota.map(|quota| quota.0), Some("root".to_string())),
        other => panic!("{other:?}"),
    }
    let options = PoolOptions { guarantee: 4 * MIB, quota: Some(3 * MIB), ..PoolOptions::default() };
    assert!(matches!(root.child_with("c", options, &mut || Ok(())), Err(Error::Value(_))));
    let pool = guaranteed(&root, "d", 19 * MIB).unwrap();
    assert_eq!((pool.guarantee(), root.used()), (20 * MIB, 40 * MIB), "whole granules");
    assert!(pool.set_quota(Some(10 * MIB), &mut || Ok(())).is_err());
    // Closing ends it, but for what is in use.
    let array = pool.allocate(6 * MIB, &rig.streams[0]).unwrap();
    pool.close().unwrap();
    assert_eq!((root.used(), pool.guarantee()), (26 * MIB, 0));
    drop((array, held));
    assert_eq!(root.used(), 0);
    drop((root, pool));
    rig.assert_nothing_left();
    let plain = super::rig(ArenaMode::None, 64 * MIB, None, 1);
    let refused = guaranteed(&Pool::root(&plain.arena, "root"), "e", MIB).unwrap_err();
    assert!(refused.to_string().contains("PYGPUKIT_POOL=none"), "{refused}");
}

#[test]
fn a_pool_ends_before_its_memory_is_back() {
    let rig = rig(ArenaMode::Vmm, 64 * MIB, Some(3), 1);
    let root = Pool::root(&rig.arena, "root");
    let outer = guaranteed(&root, "outer", 32 * MIB).unwrap();
    let inner = guaranteed(&outer, "inner", 8 * MIB).unwrap();
    assert_eq!((root.used(), outer.used(), rig.cpu.usage().created), (32 * MIB, 8 * MIB, 32 * MIB));
    let array = inner.allocate(12 * MIB, &rig.streams[0]).unwrap();
    assert_eq!((root.used(), outer.used()), (32 * MIB, 12 * MIB));
    rig.use_on(&array, 0);
    drop((array, inner));
    assert_eq!((root.used(), outer.used()), (32 * MIB, 0));
    let whole = outer.allocate(32 * MIB, &rig.streams[0]).unwrap();
    drop((whole, outer, root));
    rig.assert_nothing_left();
}

#[test]
fn a_cached_block_of_another_size_wastes_nothing_of_a_guarantee() {
    let rig = rig(ArenaMode::Vmm, 64 * MIB, None, 1);
    let stream = &rig.streams[0];
    let root = Pool::root(&rig.arena, "root");
    let safe = guaranteed(&root, "safe", 40 * MIB).unwrap();
    let taken = hog(&root, stream);
    drop(safe.allocate(34 * MIB, stream).unwrap());
    // The 34 MiB that are cached would serve 32, and 2 MiB would be missing at the end.
    let arrays: Vec<_> = [4, 32, 4].iter().map(|size| safe.allocate(size * MIB, stream).unwrap()).collect();
    assert_eq!((safe.used(), safe.stats().held), (40 * MIB, 0));
    drop((arrays, taken, safe, root));
    rig.assert_nothing_left();
}

#[test]
fn an_array_takes_memory_of_two_guarantees_and_of_the_device() {
    let rig = rig(ArenaMode::Vmm, 64 * MIB, None, 1);
    let stream = &rig.streams[0];
    let root = Pool::root(&rig.arena, "root");
    let outer = guaranteed(&root, "outer", 40 * MIB).unwrap();
    let inner = guaranteed(&outer, "inner", 20 * MIB).unwrap();
    let mut taken = hog(&root, stream);
    let (own, rest) = (inner.allocate(16 * MIB, stream).unwrap(), outer.allocate(16 * MIB, stream).unwrap());
    assert_eq!((inner.stats().held, outer.stats().held), (4 * MIB, 4 * MIB));
    let both = inner.allocate(8 * MIB, stream).unwrap();
    assert_eq!((root.used(), rig.cpu.usage().created), (64 * MIB, 64 * MIB));
    assert!(inner.allocate(2 * MIB, stream).is_err());
    drop(both);
    taken.pop();
    let all = inner.allocate(10 * MIB, stream).unwrap();
    assert_eq!((root.used(), rig.cpu.usage().created), (64 * MIB, 64 * MIB), "8 MiB held and 2 MiB free");
    drop((all, own, rest, taken, inner, outer, root));
    rig.assert_nothing_left();
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize, usize),
    Free(usize, usize),
    Use(usize, usize),
    Trim,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pool = 0usize..4;
    prop::collection::vec(
        prop_oneof![
            5 => (pool.clone(), 1usize..24).prop_map(|(pool, granules)| Step::Take(pool, granules)),
            4 => (pool.clone(), any::<usize>()).prop_map(|(pool, which)| Step::Free(pool, which)),
            1 => (pool, any::<usize>()).prop_map(|(pool, which)| Step::Use(pool, which)),
            1 => Just(Step::Trim),
        ],
        1..120,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Two tenants, a part of the second with a guarantee of its own, and a hog.
    #[test]
    fn below_its_guarantee_a_pool_always_finds_memory(steps in steps(), deferred in prop::option::of(0u64..4)) {
        const GUARANTEES: [usize; 4] = [40 * MIB, 60 * MIB, 20 * MIB, 0];
        let rig = rig(ArenaMode::Vmm, 160 * MIB, deferred, 1);
        let stream = &rig.streams[0];
        let root = Pool::root(&rig.arena, "root");
        let (a, b) = (guaranteed(&root, "a", GUARANTEES[0]).unwrap(), guaranteed(&root, "b", GUARANTEES[1]).unwrap());
        let part = guaranteed(&b, "part", GUARANTEES[2]).unwrap();
        let pools = [a, b, part, root.child("hog", None).unwrap()];
        let mut live: [Vec<Arc<Storage>>; 4] = Default::default();
        for step in steps {
            match step {
                Step::Take(which, granules) => {
                    let bytes = granules * 2 * MIB;
                    let covers = |i: usize, bytes| pools[i].used() + bytes <= GUARANTEES[i];
                    // What the part's own guarantee does not cover, that of the pool around may.
                    let beyond = bytes.min((pools[2].used() + bytes).saturating_sub(GUARANTEES[2]));
                    let covered = covers(which, bytes) || (which == 2 && covers(1, beyond));
                    match pools[which].allocate(bytes, stream) {
                        Ok(array) => live[which].push(array),
                        Err(error) => prop_assert!(!covered, "pool {which}: {error}"),
                    }
                }
                Step::Free(which, index) if !live[which].is_empty() => {
                    let index = index % live[which].len();
                    live[which].swap_remove(index);
                }
                Step::Use(which, index) if !live[which].is_empty() => {
                    rig.use_on(&live[which][index % live[which].len()], 0);
                }
                Step::Trim => rig.arena.trim().unwrap(),
                Step::Free(..) | Step::Use(..) => {}
            }
            let own = |i: usize| live[i].iter().map(|array| array.bytes()).sum::<usize>();
            let part = own(2).max(GUARANTEES[2]);
            let expected = [own(0), own(1) + part, own(2), own(3)];
            for (pool, used) in pools.iter().zip(expected) {
                prop_assert_eq!(pool.used(), used, "{:?}", pool);
            }
            let total = expected[0].max(GUARANTEES[0]) + expected[1].max(GUARANTEES[1]) + expected[3];
            prop_assert_eq!(root.used(), total);
            prop_assert!(rig.cpu.usage().created >= total.min(GUARANTEES[0] + GUARANTEES[1]));
        }
        drop((live, pools, root));
        rig.assert_nothing_left();
    }
}
