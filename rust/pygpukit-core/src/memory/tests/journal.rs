//! Recordings: their events add up to what the pools use, whenever they begin, on inline and deferred streams.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::MIB;
use crate::cpu::{CpuConfig, CpuDevice};
use crate::exec::ExecCtx;
use crate::memory::{ArenaMode, EventKind, Pool, PoolOptions, Record, Recorder, Storage};
use crate::residency;
use crate::runtime::DeviceState;
use crate::stream::Stream;

struct Bench {
    state: &'static DeviceState,
    /// The second is inside the first, and moves its arrays.
    pools: [Arc<Pool>; 2],
    stream: Arc<Stream>,
}

fn bench(deferred: Option<u64>) -> Bench {
    let device = CpuDevice::new(CpuConfig { total_memory: Some(512 * MIB), deferred, ..CpuConfig::default() });
    let state = DeviceState::new(device, ArenaMode::Vmm, false).unwrap();
    state.pinned.set_limit(1 << 30);
    let outer = state.root_pool.child("outer", Some(24 * MIB)).unwrap();
    let options = PoolOptions { quota: Some(12 * MIB), evicting: true, ..PoolOptions::default() };
    let inner = outer.child_with("inner", options, &mut || Ok(())).unwrap();
    Bench { state, pools: [outer, inner], stream: state.stream(0).unwrap() }
}

impl Bench {
    fn ctx(&self) -> ExecCtx {
        ExecCtx::default_for(self.state).on_stream(&self.stream)
    }

    fn record(&self) -> Recorder {
        Recorder::start(&self.state.arena, 1 << 20).unwrap()
    }
}

/// Bytes on the device and on the host by pool, its own only.
fn replay(record: &Record) -> BTreeMap<u32, [isize; 2]> {
    let mut own: BTreeMap<u32, [isize; 2]> = BTreeMap::new();
    for event in &record.events {
        let held = own.entry(event.pool).or_default();
        let (bytes, place) = (event.bytes as isize, event.on_host as usize);
        match event.kind {
            EventKind::Held => held[place] = bytes,
            EventKind::Allocate => held[place] += bytes,
            EventKind::Free => held[place] -= bytes,
            EventKind::Evict => *held = [held[0] - bytes, held[1] + bytes],
            EventKind::Restore => *held = [held[0] + bytes, held[1] - bytes],
            EventKind::Return | EventKind::Refuse | EventKind::Quota | EventKind::Unlimit => {}
        }
    }
    own
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(usize, usize),
    Evict(usize),
    Prefetch(usize),
    Free(usize),
    Quota(usize),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = 0..12usize;
    let one = prop_oneof![
        5 => (0..2usize, prop_oneof![0usize..200_000, MIB + 1..5 * MIB]).prop_map(|(p, n)| Step::Allocate(p, n)),
        3 => which.clone().prop_map(Step::Evict),
        3 => which.clone().prop_map(Step::Prefetch),
        3 => which.prop_map(Step::Free),
        1 => (4usize..16).prop_map(Step::Quota),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(one, 1..60)
}

fn adds_up(steps: Vec<Step>, seed: Option<u64>) -> Result<(), TestCaseError> {
    let bench = bench(seed);
    let [outer, inner] = &bench.pools;
    let mut recorder = bench.record();
    let mut live: Vec<Arc<Storage>> = Vec::new();
    for step in steps {
        let pick = |i: usize| (!live.is_empty()).then(|| i % live.len());
        match step {
            Step::Allocate(pool, bytes) => live.extend(bench.pools[pool].allocate(bytes, &bench.stream).ok()),
            Step::Evict(i) => {
                if let Some(i) = pick(i).filter(|i| live[*i].is_evictable()) {
                    live[i].evict(&mut || Ok(())).unwrap();
                }
            }
            Step::Prefetch(i) => {
                if let Some(i) = pick(i) {
                    let _ = residency::prefetch(&bench.ctx(), &live[i]);
                }
            }
            Step::Free(i) => {
                if let Some(i) = pick(i) {
                    live.swap_remove(i);
                }
            }
            Step::Quota(mib) => inner.set_quota(Some(mib * MIB), &mut || Ok(())).unwrap(),
            Step::Restart => {
                drop(recorder);
                recorder = bench.record();
            }
        }
        let record = recorder.so_far();
        let own = replay(&record);
        let [of_outer, of_inner] = [outer, inner].map(|pool| own.get(&pool.id()).copied().unwrap_or_default());
        prop_assert_eq!(of_inner[0], inner.used() as isize);
        prop_assert_eq!(of_outer[0] + of_inner[0], outer.used() as isize);
        prop_assert_eq!(of_outer[1], 0);
        prop_assert_eq!(of_inner[1] == 0, inner.stats().evicted == 0);
        let last = record.events.iter().rfind(|event| event.pool == inner.id());
        prop_assert!(last.is_none_or(|e| matches!(e.kind, EventKind::Return) || e.used == inner.used()));
        prop_assert!(record.events.is_sorted_by_key(|event| event.time));
    }
    let moved = bench.state.arena.move_stats();
    let record = recorder.so_far();
    let count = |kind| record.events.iter().filter(|event| event.kind == kind).count() as u64;
    prop_assert!(count(EventKind::Evict) <= moved.evictions && count(EventKind::Restore) <= moved.restores);
    drop(live);
    bench.state.synchronize(&mut || Ok(())).unwrap();
    let record = recorder.stop();
    prop_assert!(replay(&record).values().all(|held| *held == [0, 0]));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn events_add_up_to_what_is_used(steps in steps(), seed in proptest::option::of(0..1000u64)) {
        adds_up(steps, seed)?;
    }
}

#[test]
fn threads_leave_events_that_add_up() {
    let bench = bench(None);
    let recorder = bench.record();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for i in 0..200 {
                    let stored = bench.pools[1].allocate(100 + i * 7000, &bench.stream);
                    drop(stored);
                }
            });
        }
    });
    let record = recorder.stop();
    assert!(record.events.len() > 1000, "{}", record.events.len());
    assert!(replay(&record).values().all(|held| *held == [0, 0]));
}

#[test]
fn a_recording_knows_pools_that_came_and_went_and_who_refused() {
    let bench = bench(None);
    let recorder = bench.record();
    let [outer, inner] = &bench.pools;
    let late = outer.child("late", Some(MIB)).unwrap();
    let id = late.id();
    drop(late.allocate(100, &bench.stream).unwrap());
    assert!(late.allocate(4 * MIB, &bench.stream).is_err());
    assert!(bench.state.root_pool.allocate(1 << 40, &bench.stream).is_err());
    drop(late);
    inner.set_quota(None, &mut || Ok(())).unwrap();
    let record = recorder.stop();
    assert_eq!(record.pools[&id], ("late".to_string(), Some(outer.id())));
    assert_eq!(record.pools[&inner.id()].0, "inner");
    let of = |kind| record.events.iter().filter(|e| e.kind == kind).map(|e| (e.pool, e.bytes)).collect::<Vec<_>>();
    assert_eq!(of(EventKind::Refuse), [(id, 4 * MIB), (0, 1 << 40)]);
    assert!(of(EventKind::Quota).contains(&(id, MIB)) && of(EventKind::Quota).contains(&(inner.id(), 12 * MIB)));
    assert_eq!(of(EventKind::Unlimit), [(inner.id(), 0)]);
}

#[test]
fn an_eviction_given_up_is_noted() {
    let bench = bench(Some(3));
    let [_, inner] = &bench.pools;
    let arrays: Vec<_> = (0..3).map(|_| inner.allocate(4 * MIB, &bench.stream).unwrap()).collect();
    let recorder = bench.record();
    // More starts to leave than is needed, and one of those comes back.
    let more = inner.allocate(2 * MIB, &bench.stream).unwrap();
    residency::prefetch(&bench.ctx(), &arrays[1]).unwrap();
    let returned = bench.state.arena.move_stats().returned;
    let record = recorder.stop();
    assert!(returned > 0);
    assert_eq!(record.events.iter().filter(|e| e.kind == EventKind::Return).count() as u64, returned);
    drop(more);
}

#[test]
fn one_recording_at_a_time_and_none_past_its_limit() {
    let bench = bench(None);
    let recorder = Recorder::start(&bench.state.arena, 20).unwrap();
    assert!(Recorder::start(&bench.state.arena, 20).unwrap_err().to_string().contains("already"));
    for _ in 0..50 {
        drop(bench.pools[0].allocate(100, &bench.stream).unwrap());
    }
    let record = recorder.stop();
    assert_eq!((record.events.len(), record.events.len() as u64 + record.dropped > 100), (20, true));
    let again = bench.record();
    drop(again);
    drop(bench.pools[0].allocate(100, &bench.stream).unwrap());
    let last = bench.record().stop();
    assert!(last.events.iter().all(|event| matches!(event.kind, EventKind::Held | EventKind::Quota)));
    assert_eq!(last.dropped, 0);
}
