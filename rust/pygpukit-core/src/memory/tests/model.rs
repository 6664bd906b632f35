//! Random programs against a model: no overlap, no leak, quotas, and stream order as it really ran.

use std::sync::Arc;

use proptest::prelude::*;

use super::super::size_class::Request;
use super::*;
use crate::error::Error;

const STREAMS: usize = 3;
const TOTAL: usize = 48 * MIB;
const QUOTAS: [Option<usize>; 3] = [None, Some(24 * MIB), Some(6 * MIB)];

#[derive(Clone, Debug)]
enum Step {
    Allocate { bytes: usize, stream: usize, pool: usize },
    Use { which: usize, stream: usize },
    Drop { which: usize },
    Poll,
    Trim,
}

fn sizes() -> impl Strategy<Value = usize> {
    let border = prop::sample::select(vec![0usize, 256, 1024, 1280, 64 << 10, 256 << 10, MIB, 2 * MIB, 4 * MIB]);
    prop_oneof![
        8 => prop::sample::select(vec![1000, 3 * MIB]),
        4 => 1usize..5000,
        2 => 1usize..SMALL_MAX,
        2 => 1usize..8 * MIB,
        3 => (border, 0usize..3).prop_map(|(border, offset)| (border + offset).saturating_sub(1)),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (sizes(), 0..STREAMS, 0..QUOTAS.len())
            .prop_map(|(bytes, stream, pool)| Step::Allocate { bytes, stream, pool }),
        5 => (any::<usize>(), 0..STREAMS).prop_map(|(which, stream)| Step::Use { which, stream }),
        4 => any::<usize>().prop_map(|which| Step::Drop { which }),
        2 => Just(Step::Poll),
        1 => Just(Step::Trim),
    ];
    prop::collection::vec(step, 1..120)
}

struct Live {
    storage: Arc<Storage>,
    pool: usize,
    charge: usize,
}

/// A use of some memory by a stream, live or long gone.
struct Used {
    start: u64,
    end: u64,
    stream: usize,
    nth: u64,
}

fn run(steps: Vec<Step>, mode: ArenaMode, deferred: Option<u64>) {
    let rig = rig(mode, TOTAL, deferred, STREAMS as u32);
    let root = Pool::root(&rig.arena, "root");
    let child = root.child("child", QUOTAS[1]).unwrap();
    let grandchild = child.child("grandchild", QUOTAS[2]).unwrap();
    let pools = [root, child, grandchild];
    let mut live: Vec<Live> = Vec::new();
    let mut past: Vec<Used> = Vec::new();
    for step in steps {
        match step {
            Step::Allocate { bytes, stream, pool } => {
                let charge = Request::new(bytes, rig.arena.granule()).unwrap().rounded;
                match pools[pool].allocate(bytes, &rig.streams[stream]) {
                    Ok(storage) => {
                        check_new(&rig, &storage, bytes, stream, &live, &past);
                        live.push(Live { storage, pool, charge });
                    }
                    Err(Error::OutOfMemory(oom)) => {
                        assert_eq!(oom.requested, bytes);
                        if let Some((_, used, quota)) = oom.quota {
                            assert!(used + charge > quota, "refused {charge} with {used} of {quota} used");
                        }
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            Step::Use { which, stream } if !live.is_empty() => {
                let storage = &live[which % live.len()].storage;
                if storage.bytes() > 0 {
                    let home = storage.home().id() as usize;
                    if home != stream {
                        rig.streams[stream].wait_for(storage.home(), storage.born()).unwrap();
                    }
                    rig.use_on(storage, stream);
                    // Waits have numbers of their own on a stream; what runs is counted without them.
                    let nth = 1 + past.iter().filter(|used| used.stream == stream).count() as u64;
                    let (start, end) = (storage.ptr(), storage.ptr() + storage.capacity() as u64);
                    past.push(Used { start, end, stream, nth });
                }
            }
            Step::Drop { which } if !live.is_empty() => {
                live.swap_remove(which % live.len());
            }
            Step::Poll => rig.device.poll().unwrap(),
            Step::Trim => rig.arena.trim().unwrap(),
            Step::Use { .. } | Step::Drop { .. } => {}
        }
        for (index, pool) in pools.iter().enumerate() {
            let stats = pool.stats();
            let expected: usize = live.iter().filter(|l| l.pool >= index).map(|l| l.charge).sum();
            assert_eq!(stats.used, expected);
            assert!(stats.peak >= stats.used);
            assert!(QUOTAS[index].is_none_or(|quota| stats.used <= quota && stats.peak <= quota));
            assert_eq!(stats.live, live.iter().filter(|l| l.pool == index).count() as u64);
            assert_eq!(stats.allocations, stats.live + stats.frees);
            assert!(stats.cached <= stats.reserved);
        }
        assert!(rig.arena.reserved() <= TOTAL);
    }
    drop(live);
    for pool in &pools {
        pool.close().unwrap();
        assert_eq!(pool.stats().reserved, 0);
    }
    drop(pools);
    rig.assert_nothing_left();
}

fn check_new(rig: &Rig, storage: &Storage, bytes: usize, stream: usize, live: &[Live], past: &[Used]) {
    assert_eq!(storage.bytes(), bytes);
    assert!(storage.capacity() >= bytes);
    assert!(storage.ptr().is_multiple_of(ALIGN as u64));
    assert_eq!(storage.ptr() == 0, bytes == 0);
    let (start, end) = (storage.ptr(), storage.ptr() + storage.capacity() as u64);
    for other in live.iter().map(|l| &l.storage).filter(|_| bytes > 0) {
        let (from, to) = (other.ptr(), other.ptr() + other.capacity() as u64);
        assert!(end <= from || to <= start, "{storage:?} overlaps {other:?}");
    }
    for used in past.iter().filter(|used| used.start < end && start < used.end && used.stream != stream) {
        assert!(
            rig.ran(used.stream) >= used.nth,
            "stream {stream} got memory that stream {} still uses (#{})",
            used.stream,
            used.nth
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn inline_streams(steps in steps()) {
        run(steps, ArenaMode::Vmm, None);
    }

    #[test]
    fn deferred_streams(steps in steps(), seed in any::<u64>()) {
        run(steps, ArenaMode::Vmm, Some(seed));
    }

    #[test]
    fn deferred_streams_without_vmm(steps in steps(), seed in any::<u64>()) {
        run(steps, ArenaMode::Plain, Some(seed));
    }

    #[test]
    fn deferred_streams_without_pooling(steps in steps(), seed in any::<u64>()) {
        run(steps, ArenaMode::None, Some(seed));
    }
}
