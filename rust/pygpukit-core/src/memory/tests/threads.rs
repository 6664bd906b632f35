//! Many threads on shared pools: content stays whole, quotas hold, nothing is lost.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::error::Error;

/// A cheap sequence of numbers.
struct Draw(u64);

impl Draw {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % below
    }
}

fn stress(deferred: Option<u64>, mode: ArenaMode) {
    const THREADS: usize = 4;
    const QUOTA: usize = 20 * MIB;
    let rig = Arc::new(rig(mode, 48 * MIB, deferred, THREADS as u32));
    let root = Pool::root(&rig.arena, "root");
    let shared = root.child("shared", Some(QUOTA)).unwrap();
    let (stop, torn) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let watcher = {
        let (stop, shared, root) = (stop.clone(), shared.clone(), root.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                for pool in [&shared, &root] {
                    let stats = pool.stats();
                    assert!(stats.used <= QUOTA && stats.peak <= QUOTA, "{stats:?}");
                }
                std::thread::yield_now();
            }
        })
    };
    let workers: Vec<_> = (0..THREADS)
        .map(|index| {
            let (rig, shared, torn) = (rig.clone(), shared.clone(), torn.clone());
            std::thread::spawn(move || {
                let mut draw = Draw(index as u64 + 1);
                let mut held: Vec<(Arc<Storage>, u64)> = Vec::new();
                for round in 0..600u64 {
                    match draw.next(5) {
                        0 | 1 => {
                            let bytes = [8, 256, 3000, 70_000, 2 * MIB, 5 * MIB][draw.next(6)];
                            match shared.allocate(bytes, &rig.streams[index]) {
                                Ok(storage) => {
                                    let (ptr, tag) = (storage.ptr(), round << 8 | index as u64);
                                    // SAFETY: at least eight bytes, ours in stream order until dropped.
                                    rig.submit(index, move || unsafe { (ptr as *mut u64).write_volatile(tag) });
                                    held.push((storage, tag));
                                }
                                Err(Error::OutOfMemory(oom)) => assert!(oom.quota.is_some(), "{oom}"),
                                Err(other) => panic!("{other}"),
                            }
                        }
                        2 | 3 if !held.is_empty() => {
                            let (storage, tag) = held.swap_remove(draw.next(held.len()));
                            let (ptr, torn) = (storage.ptr(), torn.clone());
                            // On another stream now and then, ordered behind the write by an event.
                            let on = if draw.next(3) == 0 { draw.next(THREADS) } else { index };
                            rig.streams[on].wait_for(&rig.streams[index], rig.streams[index].seq()).unwrap();
                            let seq = rig.submit(on, move || {
                                // SAFETY: as above.
                                if unsafe { (ptr as *const u64).read_volatile() } != tag {
                                    torn.fetch_add(1, Ordering::SeqCst);
                                }
                            });
                            storage.note_use(&rig.streams[on], seq);
                        }
                        _ if draw.next(20) == 0 => shared.trim().unwrap(),
                        _ => rig.device.poll().unwrap(),
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().unwrap();
    }
    rig.finish();
    stop.store(true, Ordering::SeqCst);
    watcher.join().unwrap();
    assert_eq!(torn.load(Ordering::SeqCst), 0, "memory was handed out while somebody used it");
    assert_eq!((shared.stats().live, root.stats().used), (0, 0));
    drop((shared, root));
    Arc::into_inner(rig).unwrap().assert_nothing_left();
}

#[test]
fn inline_streams() {
    stress(None, ArenaMode::Vmm);
}

#[test]
fn deferred_streams() {
    for seed in 0..4 {
        stress(Some(seed), ArenaMode::Vmm);
    }
}

#[test]
fn deferred_streams_without_vmm_or_pooling() {
    stress(Some(21), ArenaMode::Plain);
    stress(Some(22), ArenaMode::None);
}

#[test]
fn a_quota_is_exact_under_contention() {
    let rig = Arc::new(rig(ArenaMode::Vmm, 64 * MIB, None, 4));
    let pool = Pool::root(&rig.arena, "root");
    pool.set_quota(Some(1000 * 256), &mut || Ok(())).unwrap();
    let got: Vec<_> = (0..4)
        .map(|index| {
            let (rig, pool) = (rig.clone(), pool.clone());
            std::thread::spawn(move || {
                (0..400).filter_map(|_| pool.allocate(256, &rig.streams[index]).ok()).collect::<Vec<_>>()
            })
        })
        .flat_map(|thread| thread.join().unwrap())
        .collect();
    assert_eq!(got.len(), 1000);
    assert_eq!(pool.stats().used, 1000 * 256);
}

/// What one thread is about to give back or to take is not missing to another.
#[test]
fn threads_below_a_shared_guarantee_always_find_memory() {
    const SHARE: usize = 24 * MIB;
    let work = |rig: &Rig, pool: &Arc<Pool>, index: usize, covered: bool| {
        let (mut draw, mut live) = (Draw(index as u64 + 1), Vec::<Arc<Storage>>::new());
        for _ in 0..4000 {
            let bytes = (1 + draw.next(10)) * 2 * MIB;
            if covered && live.iter().map(|array| array.bytes()).sum::<usize>() + bytes > SHARE {
                live.swap_remove(draw.next(live.len()));
                continue;
            }
            match pool.allocate(bytes, &rig.streams[index]) {
                Ok(array) => {
                    rig.use_on(&array, index);
                    live.push(array);
                }
                Err(error) => {
                    assert!(!covered, "{error}");
                    live.truncate(draw.next(live.len() + 1));
                }
            }
        }
    };
    for deferred in [None, Some(5)] {
        let rig = rig(ArenaMode::Vmm, 128 * MIB, deferred, 4);
        let root = Pool::root(&rig.arena, "root");
        let options = PoolOptions { guarantee: 3 * SHARE, ..PoolOptions::default() };
        let safe = root.child_with("safe", options, &mut || Ok(())).unwrap();
        let greedy = root.child("greedy", None).unwrap();
        std::thread::scope(|scope| {
            for (index, pool) in [&safe, &safe, &safe, &greedy].into_iter().enumerate() {
                let (work, rig) = (&work, &rig);
                scope.spawn(move || work(rig, pool, index, index < 3));
            }
        });
        drop((safe, greedy, root));
        rig.assert_nothing_left();
    }
}
