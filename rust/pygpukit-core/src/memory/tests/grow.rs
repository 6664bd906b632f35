//! Buffers that grow in place: charged, evicted and freed as arrays are, at an address that never changes.

use smallvec::smallvec;

use super::eviction::{bench, used};
use super::*;
use crate::command::{Access, Fill};
use crate::error::Error;
use crate::launch::submit;

fn never() -> crate::error::Result<()> {
    Ok(())
}

fn new(pool: &Arc<Pool>, max_bytes: usize, stream: &Arc<Stream>) -> crate::error::Result<GrowBuffer> {
    GrowBuffer::new(pool, max_bytes, stream, &mut never)
}

#[test]
fn it_grows_in_place_and_is_charged() {
    let rig = rig(ArenaMode::Vmm, 64 * MIB, Some(1), 1);
    let pool = Pool::root(&rig.arena, "root");
    let buffer = new(&pool, 20 * MIB + 5, &rig.streams[0]).unwrap();
    let ptr = buffer.storage().ptr();
    assert_eq!((buffer.bytes(), rig.cpu.usage().created, pool.used()), (0, 0, 0));
    assert_eq!(buffer.ensure(100, &mut never).unwrap(), 2 * MIB);
    touch(ptr);
    assert_eq!(buffer.ensure(3 * MIB, &mut never).unwrap(), 4 * MIB);
    assert_eq!(buffer.ensure(1, &mut never).unwrap(), 4 * MIB);
    touch(ptr);
    // SAFETY: the first byte is mapped and nothing else touches it.
    assert_eq!(unsafe { *(ptr as *const u8) }, 2, "what was there stays");
    assert_eq!(buffer.ensure(20 * MIB + 5, &mut never).unwrap(), 20 * MIB + 5);
    touch(ptr + (20 * MIB + 4) as u64);
    assert_eq!((buffer.storage().ptr(), buffer.max_bytes()), (ptr, 20 * MIB + 5));
    let stats = pool.stats();
    assert_eq!((stats.used, stats.reserved, stats.cached, stats.live), (22 * MIB, 22 * MIB, 0, 1));
    let error = buffer.ensure(21 * MIB, &mut never).unwrap_err().to_string();
    assert!(error.contains("20.0 MiB") && error.contains("21.0 MiB"), "{error}");
    assert!(new(&pool, 0, &rig.streams[0]).is_err());
    assert!(new(&pool, usize::MAX, &rig.streams[0]).is_err());
    assert_eq!(rig.arena.top_holders(1)[0].0, 22 * MIB);
    // Freed in stream order: queued work still uses it.
    rig.use_on(&buffer.storage(), 0);
    drop(buffer);
    assert_eq!((rig.arena.reserved(), pool.used()), (22 * MIB, 0));
    drop(pool);
    rig.assert_nothing_left();
}

#[test]
fn it_is_whole_from_the_start_without_vmm() {
    for mode in [ArenaMode::Plain, ArenaMode::None] {
        let rig = rig(mode, 64 * MIB, None, 1);
        let pool = Pool::root(&rig.arena, "root");
        let buffer = new(&pool, 5 * MIB, &rig.streams[0]).unwrap();
        assert_eq!((buffer.bytes(), pool.used()), (5 * MIB, 6 * MIB));
        assert_eq!(buffer.ensure(5 * MIB, &mut never).unwrap(), 5 * MIB);
        assert_eq!(buffer.shrink(0, &mut never).unwrap(), 5 * MIB);
        touch(buffer.storage().ptr() + (5 * MIB - 1) as u64);
        drop((buffer, pool));
        rig.assert_nothing_left();
    }
}

#[test]
fn it_stays_as_it_was_where_there_is_no_room() {
    let rig = rig(ArenaMode::Vmm, 8 * MIB, None, 1);
    let root = Pool::root(&rig.arena, "root");
    let pool = root.child("cache", Some(6 * MIB)).unwrap();
    let buffer = new(&pool, 8 * MIB, &rig.streams[0]).unwrap();
    buffer.ensure(2 * MIB, &mut never).unwrap();
    // The device refuses, then the quota.
    let block = root.allocate(6 * MIB, &rig.streams[0]).unwrap();
    assert!(buffer.ensure(4 * MIB, &mut never).unwrap_err().is_out_of_memory());
    assert_eq!((buffer.bytes(), pool.used()), (2 * MIB, 2 * MIB));
    drop(block);
    let Err(Error::OutOfMemory(refused)) = buffer.ensure(7 * MIB, &mut never) else { panic!("above the quota") };
    assert_eq!((refused.requested, refused.quota), (6 * MIB, Some(("cache".to_string(), 2 * MIB, 6 * MIB))));
    assert_eq!(buffer.ensure(6 * MIB, &mut never).unwrap(), 6 * MIB);
    assert_eq!((pool.used(), root.used()), (6 * MIB, 6 * MIB));
    pool.close().unwrap();
    drop((buffer, pool, root));
    rig.assert_nothing_left();
}

#[test]
fn it_shrinks_when_its_work_is_over_and_nobody_has_an_array() {
    let rig = rig(ArenaMode::Vmm, 64 * MIB, Some(5), 2);
    let pool = Pool::root(&rig.arena, "root");
    let buffer = new(&pool, 32 * MIB, &rig.streams[0]).unwrap();
    for mib in [4, 10, 20] {
        buffer.ensure(mib * MIB, &mut never).unwrap();
    }
    let array = buffer.storage();
    let on_both = [rig.use_on(&array, 0), rig.use_on(&array, 1)];
    let error = buffer.shrink(0, &mut never).unwrap_err().to_string();
    assert!(error.contains("1 arrays or recorded commands"), "{error}");
    drop(array);
    // Pieces are whole: the growths were of 4, of 4 and 2, and of 8 and 2 MiB.
    assert_eq!(buffer.shrink(11 * MIB, &mut never).unwrap(), 18 * MIB);
    assert_eq!(buffer.shrink(9 * MIB, &mut never).unwrap(), 10 * MIB);
    assert_eq!((rig.ran(0), rig.ran(1)), (on_both[0], on_both[1]));
    assert_eq!((pool.used(), pool.stats().reserved, rig.arena.reserved()), (10 * MIB, 10 * MIB, 10 * MIB));
    touch(buffer.storage().ptr() + (10 * MIB - 1) as u64);
    assert_eq!(buffer.shrink(0, &mut never).unwrap(), 0);
    assert_eq!(buffer.ensure(32 * MIB, &mut never).unwrap(), 32 * MIB);
    touch(buffer.storage().ptr() + (32 * MIB - 1) as u64);
    drop((buffer, pool));
    rig.assert_nothing_left();
}

/// Evicted at one size, grown, evicted again: what was written is there, at the same address.
#[test]
fn it_moves_to_the_host_and_back_whatever_its_size() {
    for deferred in [None, Some(3)] {
        let bench = bench(64 * MIB, Some(16 * MIB), deferred);
        let buffer = new(&bench.pool, 14 * MIB, &bench.streams[0]).unwrap();
        let storage = buffer.storage();
        let mut filled = 0;
        for (value, mib) in [(1u8, 4usize), (2, 6), (3, 12)] {
            buffer.ensure(mib * MIB, &mut never).unwrap();
            let (dst, count) = (storage.ptr() + filled as u64, mib * MIB - filled);
            let work = Work::Fill(Fill { dst, value: value.into(), width: 1, count });
            let uses = smallvec![used(&storage, Access::Write)];
            submit(&bench.ctx(usize::from(value) % 2), Command { work, uses, cost_key: 0 }).unwrap();
            filled = mib * MIB;
            if value == 2 {
                // Others need its room: growth brings it back, and evicts them.
                let other = bench.allocate(12 * MIB);
                bench.fill(&other, 9, 1).unwrap();
                assert!(!storage.is_resident());
                buffer.ensure(8 * MIB, &mut never).unwrap();
                assert!(storage.is_resident() && !other.is_resident());
            } else {
                assert!(storage.evict(&mut never).unwrap());
                assert_eq!(bench.pool.used(), 0);
            }
        }
        assert_eq!(bench.pool.stats().evicted, 12 * MIB);
        let bytes = bench.read(&storage, 2).unwrap();
        bench.finish();
        let want = |at: usize| if at < 4 * MIB { 1 } else { 2 + u8::from(at >= 6 * MIB) };
        assert!(bytes.iter().enumerate().step_by(4099).all(|(at, byte)| *byte == want(at)));
        drop(storage);
        // Shrinking brings it back too.
        assert!(buffer.storage().evict(&mut never).unwrap());
        assert_eq!(buffer.shrink(7 * MIB, &mut never).unwrap(), 8 * MIB);
        assert_eq!(bench.pool.used(), 8 * MIB);
        let bytes = bench.read(&buffer.storage(), 2).unwrap();
        bench.finish();
        assert!(bytes.iter().enumerate().step_by(4099).all(|(at, byte)| *byte == want(at)));
        drop(buffer);
        bench.finish();
        assert_eq!((bench.pool.used(), bench.pool.stats().evicted), (0, 0));
    }
}

#[test]
fn growth_beyond_what_the_quota_could_ever_hold_moves_nothing() {
    let bench = bench(64 * MIB, Some(8 * MIB), None);
    let buffer = new(&bench.pool, 32 * MIB, &bench.streams[0]).unwrap();
    buffer.ensure(4 * MIB, &mut never).unwrap();
    let error = buffer.ensure(10 * MIB, &mut never).unwrap_err().to_string();
    assert!(error.contains("8.0 MiB") && error.contains("evicting"), "{error}");
    assert!(buffer.storage().is_resident());
    assert_eq!(bench.state.arena.move_stats().evictions, 0);
}

#[test]
fn threads_that_grow_the_same_buffer_agree() {
    let rig = rig(ArenaMode::Vmm, 64 * MIB, None, 1);
    let pool = Pool::root(&rig.arena, "root");
    let buffer = new(&pool, 32 * MIB, &rig.streams[0]).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let buffer = &buffer;
            scope.spawn(move || {
                for step in 1..=8 {
                    buffer.ensure((step * 4 - thread % 3) * MIB, &mut never).unwrap();
                }
            });
        }
    });
    assert_eq!((buffer.bytes(), pool.used(), rig.arena.reserved()), (32 * MIB, 32 * MIB, 32 * MIB));
    drop((buffer, pool));
    rig.assert_nothing_left();
}
