//! Quotas, a full device, closing, and what the errors say.

use super::*;
use crate::error::{Error, OutOfMemory, Result};

fn refusal(result: Result<Arc<Storage>>) -> Box<OutOfMemory> {
    match result {
        Err(Error::OutOfMemory(oom)) => oom,
        other => panic!("expected out of memory, got {other:?}"),
    }
}

#[test]
fn nested_quotas_bind_at_every_level_and_name_the_pool() {
    let rig = rig(ArenaMode::Vmm, 64 * MIB, Some(1), 1);
    let stream = &rig.streams[0];
    let root = Pool::root(&rig.arena, "root");
    root.set_quota(Some(10 * MIB), &mut || Ok(())).unwrap();
    let child = root.child("child", Some(6 * MIB)).unwrap();
    let held = child.allocate(4 * MIB, stream).unwrap();
    held.set_label("float32 (1024, 1024)");
    let oom = refusal(child.allocate(3 * MIB, stream));
    assert_eq!(oom.quota, Some(("child".to_string(), 4 * MIB, 6 * MIB)));
    assert_eq!(oom.holders, [(4 * MIB, "float32 (1024, 1024), pool 'child'".to_string())]);
    let other = root.allocate(6 * MIB, stream).unwrap();
    let oom = refusal(child.allocate(1, stream));
    assert_eq!(oom.quota, Some(("root".to_string(), 10 * MIB, 10 * MIB)));
    assert_eq!((child.stats().used, root.stats().used), (4 * MIB, 10 * MIB), "a refusal leaves no trace");
    assert_eq!((child.stats().available, child.stats().quota), (0, Some(6 * MIB)));
    // Freed memory that queued work still uses counts as free at once: a quota never waits for the device.
    rig.use_on(&other, 0);
    drop(other);
    assert!(child.allocate(2 * MIB, stream).is_ok());
    assert_eq!(rig.ran(0), 0);
    root.set_quota(Some(0), &mut || Ok(())).unwrap();
    let oom = refusal(child.allocate(1, stream));
    assert_eq!(oom.quota.map(|quota| quota.0), Some("root".to_string()));
    root.set_quota(None, &mut || Ok(())).unwrap();
    assert!(child.allocate(1, stream).is_ok());
    assert_eq!(root.quota(), None);
    assert_eq!(root.stats().peak, 10 * MIB);
}

#[test]
fn a_full_device_takes_cached_memory_from_every_pool() {
    let rig = rig(ArenaMode::Vmm, 32 * MIB, None, 1);
    let (a, b) = (Pool::root(&rig.arena, "a"), Pool::root(&rig.arena, "b"));
    drop(a.allocate(20 * MIB, &rig.streams[0]).unwrap());
    drop(b.allocate(6 * MIB, &rig.streams[0]).unwrap());
    assert_eq!(rig.arena.reserved(), 26 * MIB);
    let block = b.allocate(30 * MIB, &rig.streams[0]).unwrap();
    assert_eq!(rig.arena.reserved(), 30 * MIB);
    drop((block, a, b));
    rig.assert_nothing_left();
}

#[test]
fn a_full_device_is_waited_for() {
    let rig = rig(ArenaMode::Vmm, 32 * MIB, Some(11), 3);
    let pool = Pool::root(&rig.arena, "root");
    for stream in 0..2 {
        let block = pool.allocate(16 * MIB, &rig.streams[stream]).unwrap();
        rig.use_on(&block, stream);
        rig.use_on(&block, 1 - stream);
    }
    let whole = pool.allocate(32 * MIB, &rig.streams[2]).unwrap();
    assert_eq!((rig.ran(0), rig.ran(1)), (2, 2));
    drop((whole, pool));
    rig.assert_nothing_left();
}

#[test]
fn the_wait_for_a_full_device_can_be_ended() {
    let rig = rig(ArenaMode::Vmm, 32 * MIB, Some(11), 2);
    let pool = Pool::root(&rig.arena, "root");
    let block = pool.allocate(32 * MIB, &rig.streams[0]).unwrap();
    // Another thread is inside the work that uses the block, and stays there until the check has run.
    let (entered, checked) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (entering, seen) = (entered.clone(), checked.clone());
    rig.submit(0, move || {
        entering.store(1, Ordering::SeqCst);
        while seen.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
    });
    drop(block);
    let device = rig.device.clone();
    let worker = std::thread::spawn(move || device.poll().unwrap());
    while entered.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    let result = pool.allocate_with_check(2 * MIB, &rig.streams[1], &mut || {
        checked.store(1, Ordering::SeqCst);
        Err(Error::Value("interrupted".to_string()))
    });
    worker.join().unwrap();
    assert_eq!(result.unwrap_err().to_string(), "interrupted");
    assert_eq!(pool.stats().used, 0);
    drop(pool);
    rig.assert_nothing_left();
}

#[test]
fn out_of_memory_tells_who_holds_what_and_recovers() {
    let rig = rig(ArenaMode::Vmm, 32 * MIB, Some(5), 1);
    let stream = &rig.streams[0];
    let pool = Pool::root(&rig.arena, "weights");
    let big = pool.allocate(20 * MIB, stream).unwrap();
    let small: Vec<_> = (0..3).map(|_| pool.allocate(4096, stream).unwrap()).collect();
    let _one = pool.allocate(256, stream).unwrap();
    big.set_label("bfloat16 (10, 1048576)");
    small[0].set_label("not shown");
    let oom = refusal(pool.allocate(12 * MIB, stream));
    assert_eq!((oom.requested, oom.free, oom.total, &oom.quota), (12 * MIB, 8 * MIB, 32 * MIB, &None));
    let expected = [
        (20 * MIB, "bfloat16 (10, 1048576), pool 'weights'".to_string()),
        (3 * 4096, "3 blocks of 4.0 KiB, pool 'weights'".to_string()),
        (256, "1 block of 256 B, pool 'weights'".to_string()),
    ];
    assert_eq!(oom.holders, expected);
    assert_eq!(pool.top_holders(1), expected[..1]);
    assert_eq!(pool.stats().available, 8 * MIB + pool.stats().cached);
    drop(big);
    let recovered = pool.allocate(24 * MIB, stream).unwrap();
    assert_eq!(pool.top_holders(1), [(24 * MIB, "pool 'weights'".to_string())], "labels end with their array");
    drop(recovered);
    assert_eq!(refusal(pool.allocate(usize::MAX, stream)).requested, usize::MAX);
    assert_eq!(refusal(pool.allocate(usize::MAX / 2, stream)).requested, usize::MAX / 2);
    assert!(pool.stats().reserved > 24 * MIB, "what cannot succeed does not empty the cache");
    let limited = pool.child("limited", Some(100)).unwrap();
    assert_eq!(refusal(limited.allocate(usize::MAX, stream)).quota.map(|quota| quota.0), Some("limited".to_string()));
    let buffer = GrowBuffer::new(&pool, 64 * MIB, stream, &mut || Ok(())).unwrap();
    assert!(matches!(buffer.ensure(40 * MIB, &mut || Ok(())), Err(Error::OutOfMemory(_))));
    assert_eq!(buffer.ensure(26 * MIB, &mut || Ok(())).unwrap(), 26 * MIB, "the buffer too makes room");
}

#[test]
fn a_closed_pool_refuses_and_lets_go_with_its_last_block() {
    let rig = rig(ArenaMode::Vmm, 64 * MIB, Some(2), 1);
    let root = Pool::root(&rig.arena, "root");
    let pool = root.child("short", None).unwrap();
    let child = pool.child("below", None).unwrap();
    let blocks: Vec<_> = [300, 300, 5 * MIB].map(|n| pool.allocate(n, &rig.streams[0]).unwrap()).into();
    drop(pool.allocate(3 * MIB, &rig.streams[0]).unwrap());
    pool.close().unwrap();
    assert!(pool.is_closed());
    assert_eq!(pool.stats().reserved, 8 * MIB, "the free segment went at once");
    for bytes in [0, 300, 5 * MIB] {
        for refusing in [&pool, &child] {
            let error = refusing.allocate(bytes, &rig.streams[0]).unwrap_err().to_string();
            assert!(error.contains("pool 'short' is closed"), "{error}");
        }
    }
    assert!(pool.child("more", None).is_err());
    rig.use_on(&blocks[2], 0);
    let mut blocks = blocks.into_iter();
    drop(blocks.next());
    assert!(pool.allocate(300, &rig.streams[0]).is_err(), "a block freed after the close is not handed out");
    drop(blocks);
    assert_eq!(pool.stats().reserved, 0);
    assert_eq!(rig.cpu.usage().created, 8 * MIB, "the stream has not passed them yet");
    pool.close().unwrap();
    assert_eq!(root.stats().used, 0);
    drop((child, pool, root));
    rig.assert_nothing_left();
}
