//! Resident kernels of the CPU device: they begin by themselves, nobody waits for them, and they end when they are told to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use pygpukit_core::command::{KernelLaunch, LaunchAttributes, Work};
use pygpukit_core::cpu::{CpuConfig, CpuDevice};
use pygpukit_core::device::{Device, RawStream, SharedDevice, Waited};
use pygpukit_core::error::Error;
use pygpukit_core::kernel::{Kernel, KernelMeta, Library};

/// Writes 1 behind the word at its address, and 2 once that word is not zero; a fault if it is 9.
const STAY: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry stay(.param .u64 p0) {
    .reg .pred %p<3>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [p0];
    mov.u32 %r2, 1;
    st.volatile.global.u32 [%rd1+4], %r2;
AGAIN:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.eq.s32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    setp.eq.s32 %p2, %r1, 9;
    @%p2 trap;
    mov.u32 %r3, 2;
    st.volatile.global.u32 [%rd1+4], %r3;
    ret;
}
";

struct Bench {
    device: Arc<CpuDevice>,
    kernel: Arc<Kernel>,
}

impl Bench {
    fn new(deferred: Option<u64>) -> Bench {
        let config =
            CpuConfig { total_memory: Some(64 << 20), deferred, kernel_timeout: Some(1), ..CpuConfig::default() };
        let device = CpuDevice::new(config);
        let shared: SharedDevice = device.clone();
        let library = Library::load(&shared, STAY.as_bytes()).unwrap();
        Bench { kernel: Kernel::new(&library, "stay", "stay", KernelMeta::default()).unwrap(), device }
    }

    /// The word that is waited for and the one that is written.
    fn words(&self) -> (u64, [&'static AtomicU32; 2]) {
        let at = self.device.plain_alloc(8).unwrap();
        // SAFETY: the device's memory is host memory, aligned, and these tests never free it.
        let words = [0, 4].map(|offset| unsafe { AtomicU32::from_ptr((at + offset) as *mut u32) });
        words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        (at, words)
    }

    fn launch(&self, stream: RawStream, at: u64) {
        let launch = KernelLaunch {
            kernel: self.kernel.clone(),
            grid: [1; 3],
            block: [1; 3],
            shared: 0,
            attributes: LaunchAttributes { resident: true, ..LaunchAttributes::default() },
            args: at.to_le_bytes().to_vec().into(),
            arrays: Vec::new(),
        };
        self.device.enqueue(stream, &Work::Kernel(launch)).unwrap();
    }

    fn ends(&self, stream: RawStream) {
        until(|| self.device.resident_query(stream).unwrap());
    }
}

fn until(mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < Duration::from_secs(30), "it did not happen");
        std::thread::yield_now();
    }
}

#[test]
fn it_begins_by_itself_and_nobody_waits_for_it() {
    for deferred in [None, Some(3)] {
        let bench = Bench::new(deferred);
        let device = &bench.device;
        let [stream, other] = [(); 2].map(|()| device.stream_create(0).unwrap());
        let (at, [go, told]) = bench.words();
        bench.launch(stream, at);
        until(|| told.load(Ordering::Relaxed) == 1);
        // Streams and waits do not see it.
        assert!(device.stream_query(stream).unwrap() && device.stream_query(other).unwrap());
        let event = device.event_create(false).unwrap();
        device.event_record(event, other).unwrap();
        device.stream_wait(other, event).unwrap();
        until(|| {
            device.poll().unwrap();
            device.event_query(event).unwrap()
        });
        for waited in [Waited::Stream(stream), Waited::Stream(other), Waited::Event(event)] {
            device.interrupt(waited);
        }
        assert!(!device.resident_query(stream).unwrap());
        go.store(1, Ordering::Relaxed);
        bench.ends(stream);
        assert_eq!(told.load(Ordering::Relaxed), 2);
    }
}

#[test]
fn one_follows_the_other() {
    let bench = Bench::new(Some(5));
    let stream = bench.device.stream_create(0).unwrap();
    let ((first, [go, told]), (second, [go_on, then_told])) = (bench.words(), bench.words());
    bench.launch(stream, first);
    until(|| told.load(Ordering::Relaxed) == 1);
    bench.launch(stream, second);
    assert_eq!(then_told.load(Ordering::Relaxed), 0);
    go.store(1, Ordering::Relaxed);
    until(|| then_told.load(Ordering::Relaxed) == 1);
    assert!(told.load(Ordering::Relaxed) == 2 && !bench.device.resident_query(stream).unwrap());
    go_on.store(1, Ordering::Relaxed);
    bench.ends(stream);
}

#[test]
fn a_fault_is_told_to_its_owner_alone() {
    let bench = Bench::new(None);
    let device = &bench.device;
    let [stream, other] = [(); 2].map(|()| device.stream_create(0).unwrap());
    let (at, [go, _]) = bench.words();
    go.store(9, Ordering::Relaxed);
    bench.launch(stream, at);
    until(|| device.resident_query(stream).is_err());
    assert!(matches!(device.resident_query(stream), Err(Error::Kernel(text)) if text.contains("trap")));
    assert!(device.poll().is_ok() && device.stream_query(stream).unwrap() && device.stream_query(other).unwrap());
    // The stream's number may be another's afterwards, without what was there.
    device.stream_destroy(stream);
    let again = device.stream_create(0).unwrap();
    assert_eq!(again, stream);
    go.store(1, Ordering::Relaxed);
    bench.launch(again, at);
    bench.ends(again);
}
