//! After shutdown, drops touch nothing. Alone in its process, since shutdown is for good.

use pygpukit_core::Error;
use pygpukit_core::cpu::{CpuConfig, CpuDevice};
use pygpukit_core::device::SharedDevice;
use pygpukit_core::lane::Lane;
use pygpukit_core::memory::{Arena, ArenaMode, GrowBuffer, Pool, shutdown};
use pygpukit_core::stream::Stream;

#[test]
fn drops_after_shutdown_do_nothing_and_allocation_is_refused() {
    let cpu = CpuDevice::new(CpuConfig { total_memory: Some(64 << 20), deferred: None, ..CpuConfig::default() });
    let device: SharedDevice = cpu.clone();
    let arena = Arena::new(device.clone(), ArenaMode::Vmm);
    let pool = Pool::root(&arena, "root");
    let stream = Stream::new(&Lane::whole(&device), 0, 0).unwrap();
    let blocks = [100, 3 << 20].map(|bytes| pool.allocate(bytes, &stream).unwrap());
    let buffer = GrowBuffer::new(&pool, 4 << 20, &stream, &mut || Ok(())).unwrap();
    buffer.ensure(1, &mut || Ok(())).unwrap();
    let before = (cpu.usage(), pool.stats());
    shutdown();
    assert!(matches!(pool.allocate(1, &stream), Err(Error::ShuttingDown)));
    drop((blocks, buffer));
    assert_eq!((cpu.usage(), pool.stats()), before);
    drop((pool, arena));
    assert_eq!(cpu.usage(), before.0);
}
