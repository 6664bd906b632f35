//! A device that fails: nothing leaks, nothing panics, and what nobody heard is remembered.

use super::*;

#[test]
fn a_failed_mapping_gives_its_memory_and_addresses_back() {
    let rig = rig(ArenaMode::Vmm, 64 * MIB, None, 1);
    let pool = Pool::root(&rig.arena, "root");
    let first = pool.allocate(2 * MIB, &rig.streams[0]).unwrap();
    // Somebody else's mapping sits where the arena goes next.
    let (next, handle) = (first.ptr() + 2 * MIB as u64, rig.device.create(2 * MIB).unwrap());
    rig.device.map(next, 2 * MIB, handle).unwrap();
    let error = pool.allocate(2 * MIB, &rig.streams[0]).unwrap_err().to_string();
    assert!(error.contains("cpu.map"), "{error}");
    assert_eq!(pool.stats().used, 2 * MIB);
    assert_eq!(rig.cpu.usage().created, 4 * MIB);
    rig.device.unmap(next, 2 * MIB).unwrap();
    rig.device.release(handle, 2 * MIB).unwrap();
    assert_eq!(pool.allocate(2 * MIB, &rig.streams[0]).unwrap().ptr(), next);
    drop((first, pool));
    rig.assert_nothing_left();
}

#[test]
fn a_failed_release_is_remembered_and_its_addresses_are_not_used_again() {
    let rig = rig(ArenaMode::Vmm, 64 * MIB, None, 1);
    let pool = Pool::root(&rig.arena, "root");
    let block = pool.allocate(2 * MIB, &rig.streams[0]).unwrap();
    let ptr = block.ptr();
    rig.device.unmap(ptr, 2 * MIB).unwrap();
    drop(block);
    pool.trim().unwrap();
    let error = rig.arena.take_error().unwrap().to_string();
    assert!(error.contains("cpu.unmap"), "{error}");
    assert!(rig.arena.take_error().is_none());
    assert_ne!(pool.allocate(2 * MIB, &rig.streams[0]).unwrap().ptr(), ptr);
}

#[test]
fn memory_in_flight_when_the_arena_ends_is_waited_for() {
    let rig = rig(ArenaMode::Vmm, 64 * MIB, Some(9), 1);
    let pool = Pool::root(&rig.arena, "root");
    let block = pool.allocate(3 * MIB, &rig.streams[0]).unwrap();
    rig.use_on(&block, 0);
    drop((block, pool));
    let Rig { cpu, arena, done, .. } = rig;
    assert_eq!(cpu.usage().created, 4 * MIB);
    drop(arena);
    assert_eq!(done[0].load(Ordering::SeqCst), 1);
    assert_eq!(cpu.usage(), Default::default());
}
