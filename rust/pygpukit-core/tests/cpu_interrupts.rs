//! Interrupts of the CPU device: which kernels end, and what goes on.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use pygpukit_core::command::{KernelLaunch, LaunchAttributes, Work};
use pygpukit_core::cpu::{CpuConfig, CpuDevice};
use pygpukit_core::device::{Device, RawEvent, RawStream, SharedDevice, Waited};
use pygpukit_core::kernel::{Kernel, KernelMeta, Library};

fn device(deferred: Option<u64>) -> Arc<CpuDevice> {
    CpuDevice::new(CpuConfig { total_memory: Some(64 << 20), deferred, ..CpuConfig::default() })
}

/// A log that host functions write to.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<usize>>>);

impl Log {
    fn writes(&self, entry: usize) -> Work {
        let log = self.0.clone();
        Work::Host(Arc::new(move || {
            log.lock().unwrap().push(entry);
            Ok(())
        }))
    }

    fn entries(&self) -> Vec<usize> {
        self.0.lock().unwrap().clone()
    }
}

const SPIN: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry spin(.param .u64 p0) {
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [p0];
AGAIN:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.eq.s32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    ret;
}
";

/// Launches of a kernel that spins until the word at its address is not zero, and two such words.
fn spinning(device: &Arc<CpuDevice>) -> (impl Fn(u64) -> Work, [u64; 2]) {
    let shared: SharedDevice = device.clone();
    let library = Library::load(&shared, SPIN.as_bytes()).unwrap();
    let kernel = Kernel::new(&library, "spin", "spin", KernelMeta::default()).unwrap();
    let words = [(); 2].map(|()| {
        let at = device.plain_alloc(4).unwrap();
        word(at).store(0, Ordering::Relaxed);
        at
    });
    let launch = move |address: u64| {
        Work::Kernel(KernelLaunch {
            kernel: kernel.clone(),
            grid: [1; 3],
            block: [1; 3],
            shared: 0,
            attributes: LaunchAttributes::default(),
            args: address.to_le_bytes().to_vec().into(),
            arrays: Vec::new(),
        })
    };
    (launch, words)
}

fn word(at: u64) -> &'static AtomicU32 {
    // SAFETY: the device's memory is host memory, aligned, and the tests that use this never free it.
    unsafe { AtomicU32::from_ptr(at as *mut u32) }
}

/// The errors that come up until everything has run.
fn errors(device: &CpuDevice, streams: &[RawStream]) -> Vec<String> {
    let mut errors = Vec::new();
    loop {
        match device.poll().and_then(|()| streams.iter().try_fold(true, |all, s| Ok(device.stream_query(*s)? && all))) {
            Ok(true) => return errors,
            Ok(false) => std::thread::yield_now(),
            Err(error) => errors.push(error.to_string()),
        }
    }
}

#[test]
fn an_interrupt_ends_the_kernels_of_one_stream() {
    for deferred in [None, Some(3)] {
        let device = device(deferred);
        let (launch, [never, later]) = spinning(&device);
        let (stream, other, log) = (device.stream_create(0).unwrap(), device.stream_create(0).unwrap(), Log::default());
        device.enqueue(other, &launch(later)).unwrap();
        device.enqueue(other, &log.writes(2)).unwrap();
        for _ in 0..7 {
            device.enqueue(stream, &launch(never)).unwrap();
        }
        device.enqueue(stream, &log.writes(1)).unwrap();
        device.poll().unwrap();
        device.interrupt(Waited::Stream(stream));
        let found = errors(&device, &[stream]);
        assert_eq!(found.len(), 1, "{found:?}");
        let names = "not run, because the wait for its stream was interrupted: 'spin', 'spin', 'spin', 'spin' and";
        assert!(found[0].contains(names), "{found:?}");
        assert!(deferred.is_some() || found[0].starts_with("kernel 'spin': the kernel was interrupted"), "{found:?}");
        assert_eq!(log.entries(), [1]);
        word(later).store(1, Ordering::Relaxed);
        assert!(errors(&device, &[other]).is_empty());
        assert_eq!(log.entries(), [1, 2]);
        word(never).store(1, Ordering::Relaxed);
        device.enqueue(stream, &launch(never)).unwrap();
        assert!(errors(&device, &[stream]).is_empty());
    }
}

#[test]
fn an_interrupt_follows_events_to_other_streams() {
    for deferred in [None, Some(5)] {
        let device = device(deferred);
        let (launch, [never, later]) = spinning(&device);
        let [waiting, made, beside] = [(); 3].map(|()| device.stream_create(0).unwrap());
        let (ready, done) = (device.event_create(false).unwrap(), device.event_create(false).unwrap());
        let log = Log::default();
        device.enqueue(beside, &launch(later)).unwrap();
        device.enqueue(made, &launch(never)).unwrap();
        device.enqueue(made, &launch(never)).unwrap();
        device.event_record(ready, made).unwrap();
        // Behind the record: nobody waits for it.
        device.enqueue(made, &launch(later)).unwrap();
        device.enqueue(made, &log.writes(2)).unwrap();
        device.stream_wait(waiting, ready).unwrap();
        device.enqueue(waiting, &log.writes(1)).unwrap();
        device.event_record(done, waiting).unwrap();
        device.interrupt(Waited::Event(done));
        let found = errors(&device, &[waiting]);
        assert!(device.event_query(done).unwrap());
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(log.entries(), [1]);
        word(later).store(1, Ordering::Relaxed);
        assert!(errors(&device, &[made, beside]).is_empty());
        assert_eq!(log.entries(), [1, 2]);
        // Complete, unknown, and never recorded: nothing to end.
        device.interrupt(Waited::Event(done));
        device.interrupt(Waited::Event(RawEvent(9999)));
        device.interrupt(Waited::Stream(RawStream(9999)));
        assert!(errors(&device, &[waiting, made, beside]).is_empty());
    }
}
