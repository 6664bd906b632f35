//! The CPU device: memory accounting, work, and the order of deferred streams.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use pygpukit_core::command::{Copy, CopyKind, Fill, KernelLaunch, LaunchAttributes, Work};
use pygpukit_core::cpu::{CpuConfig, CpuDevice, CpuUsage};
use pygpukit_core::device::{Device, DeviceKind, RawEvent, RawKernel, RawLibrary, RawStream, SharedDevice};
use pygpukit_core::error::Error;
use pygpukit_core::kernel::{Kernel, KernelMeta, Library};
use pygpukit_core::lane::Lane;
use pygpukit_core::stream::Stream;

const MIB: usize = 1 << 20;

fn device(deferred: Option<u64>) -> Arc<CpuDevice> {
    CpuDevice::new(CpuConfig { total_memory: Some(64 * MIB), deferred, ..CpuConfig::default() })
}

fn host(function: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Work {
    Work::Host(Arc::new(function))
}

fn copy(dst: u64, src: u64, bytes: usize) -> Work {
    Work::Copy(Copy { kind: CopyKind::DeviceToDevice, dst, src, bytes, keep: None })
}

fn code_of(error: Error) -> i32 {
    match error {
        Error::Driver { code, .. } => code,
        other => panic!("{other}"),
    }
}

/// Poll until everything has run.
fn drain(device: &CpuDevice, streams: &[RawStream]) {
    while !streams.iter().all(|stream| device.stream_query(*stream).unwrap()) {
        device.poll().unwrap();
    }
}

/// A log that host functions write to.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<usize>>>);

impl Log {
    fn writes(&self, entry: usize) -> Work {
        let log = self.0.clone();
        host(move || {
            log.lock().unwrap().push(entry);
            Ok(())
        })
    }

    fn entries(&self) -> Vec<usize> {
        self.0.lock().unwrap().clone()
    }
}

#[test]
fn properties_look_like_a_device() {
    let device = CpuDevice::new(CpuConfig::default());
    let props = device.props();
    assert_eq!((props.kind, props.capability), (DeviceKind::Cpu, (8, 0)));
    assert!(!props.name.is_empty() && props.sm_count > 0 && props.total_memory > 64 * MIB);
    assert_eq!((props.max_threads_per_block, props.max_grid), (1024, [2147483647, 65535, 65535]));
    assert_eq!(device.memory_info().unwrap(), (props.total_memory, props.total_memory));
    let (least, greatest) = device.priority_range();
    assert!(greatest < least);
    assert!(!props.features.contains(&"deferred"));
}

#[cfg(unix)]
#[test]
fn memory_is_reserved_created_mapped_and_given_back() {
    let device = device(None);
    let granule = device.vmm_granularity().unwrap();
    let va = device.reserve(16 * granule).unwrap();
    assert!(va.is_multiple_of(granule as u64));
    let handle = device.create(4 * granule).unwrap();
    device.map(va + granule as u64, 4 * granule, handle).unwrap();
    assert_eq!(device.memory_info().unwrap().0, 64 * MIB - 4 * granule);
    let byte = (va as usize + granule) as *mut u8;
    // SAFETY: the byte is mapped.
    unsafe {
        assert_eq!(*byte, 0);
        *byte = 7;
    }
    device.unmap(va + granule as u64, 4 * granule).unwrap();
    device.map(va + granule as u64, 4 * granule, handle).unwrap();
    // SAFETY: mapped again.
    assert_eq!(unsafe { *byte }, 0, "unmapping drops the pages");
    let usage = CpuUsage { reserved: 16 * granule, created: 4 * granule, mapped: 4 * granule, plain: 0 };
    assert_eq!(device.usage(), usage);
    device.unmap(va + granule as u64, 4 * granule).unwrap();
    device.release(handle, 4 * granule).unwrap();
    device.unreserve(va, 16 * granule).unwrap();
    assert_eq!(device.usage(), CpuUsage::default());
}

#[cfg(unix)]
#[test]
fn memory_calls_refuse_what_a_driver_refuses() {
    let device = device(None);
    let granule = device.vmm_granularity().unwrap();
    for bytes in [0, 1, granule + 1] {
        assert_eq!(code_of(device.reserve(bytes).unwrap_err()), 1);
        assert_eq!(code_of(device.create(bytes).unwrap_err()), 1);
    }
    let full = device.create(66 * MIB).unwrap_err();
    assert!(full.is_out_of_memory());
    assert!(full.to_string().contains("cpu.create") && full.to_string().contains("out of memory"), "{full}");
    assert!(device.reserve(usize::MAX / granule * granule).unwrap_err().is_out_of_memory());
    let va = device.reserve(4 * granule).unwrap();
    let (a, b) = (device.create(2 * granule).unwrap(), device.create(2 * granule).unwrap());
    assert!(device.map(va, granule, a).is_err(), "handles are mapped whole");
    assert!(device.map(va + 1, 2 * granule, a).is_err());
    assert!(device.map(va + 3 * granule as u64, 2 * granule, a).is_err(), "past the reservation");
    assert!(device.map(u64::MAX - 10, 2 * granule, a).is_err());
    device.map(va, 2 * granule, a).unwrap();
    assert!(device.map(va + 2 * granule as u64, 2 * granule, a).is_err(), "mapped twice");
    assert!(device.map(va + granule as u64, 2 * granule, b).is_err(), "overlap");
    assert!(device.release(a, 2 * granule).is_err(), "still mapped");
    assert!(device.unreserve(va, 4 * granule).is_err(), "still mapped inside");
    assert!(device.unmap(va, granule).is_err() && device.unmap(va + granule as u64, granule).is_err());
    device.unmap(va, 2 * granule).unwrap();
    assert!(device.unmap(va, 2 * granule).is_err());
    device.release(a, 2 * granule).unwrap();
    assert!(device.release(a, 2 * granule).is_err());
    assert!(device.unreserve(va, granule).is_err());
}

#[test]
fn plain_and_host_allocations_are_accounted() {
    let device = device(None);
    let ptr = device.plain_alloc(1000).unwrap();
    assert!(ptr.is_multiple_of(256));
    assert_eq!((device.usage().plain, device.memory_info().unwrap().0), (1000, 64 * MIB - 1000));
    assert!(device.plain_alloc(64 * MIB).unwrap_err().is_out_of_memory());
    assert!(device.plain_alloc(usize::MAX).unwrap_err().is_out_of_memory());
    assert_eq!(code_of(device.plain_alloc(0).unwrap_err()), 1);
    assert_eq!(code_of(device.plain_free(ptr + 1).unwrap_err()), 1);
    device.plain_free(ptr).unwrap();
    assert_eq!(code_of(device.plain_free(ptr).unwrap_err()), 1);
    let pinned = device.host_alloc(100).unwrap();
    assert!((pinned as usize).is_multiple_of(4096));
    assert!(device.host_free(pinned, 101).is_err());
    device.host_free(pinned, 100).unwrap();
    assert!(device.host_free(pinned, 100).is_err());
    assert!(device.host_alloc(usize::MAX).is_err());
    device.host_free(device.host_alloc(0).unwrap(), 0).unwrap();
}

#[test]
fn copies_and_fills_do_what_they_say_in_both_modes() {
    for deferred in [None, Some(1)] {
        let device = device(deferred);
        let stream = device.stream_create(0).unwrap();
        let ptr = device.plain_alloc(64).unwrap();
        let fill = |offset: u64, value, width, count| Work::Fill(Fill { dst: ptr + offset, value, width, count });
        for work in [
            fill(0, 0xAB, 1, 64),
            fill(8, 0x1234, 2, 2),
            fill(16, 0xDEAD_BEEF, 4, 1),
            fill(3, 9, 1, 0),
            copy(ptr + 1, ptr, 20),
            copy(ptr, 0, 0),
        ] {
            device.enqueue(stream, &work).unwrap();
        }
        drain(&device, &[stream]);
        let mut expected = [0xAB_u8; 64];
        expected[8..12].copy_from_slice(&[0x34, 0x12, 0x34, 0x12]);
        expected[16..20].copy_from_slice(&0xDEAD_BEEF_u32.to_le_bytes());
        expected.copy_within(0..20, 1);
        // SAFETY: 64 bytes were allocated and set above.
        assert_eq!(unsafe { std::slice::from_raw_parts(ptr as *const u8, 64) }, expected);
        for bad in [fill(0, 0, 3, 1), fill(1, 0, 2, 1), copy(0, ptr, 1), copy(ptr, 0, 1)] {
            assert!(matches!(device.enqueue(stream, &bad), Err(Error::Value(_))), "{bad:?}");
        }
        let null = Work::Fill(Fill { dst: 0, value: 0, width: 1, count: 1 });
        assert!(matches!(device.enqueue(stream, &null), Err(Error::Value(_))));
        assert_eq!(code_of(device.enqueue(RawStream(9), &copy(ptr, ptr, 1)).unwrap_err()), 400);
        device.plain_free(ptr).unwrap();
    }
}

const SET: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry set(.param .u64 p0, .param .u32 p1) {
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [p0];
    ld.param.u32 %r1, [p1];
    st.global.u32 [%rd1], %r1;
    ret;
}
";

#[test]
fn kernels_load_and_run() {
    for deferred in [None, Some(1)] {
        let device: SharedDevice = device(deferred);
        let stream = device.stream_create(0).unwrap();
        let refused = Library::load(&device, b"image").unwrap_err();
        assert!(matches!(refused, Error::Device(_)) && refused.to_string().contains("PTX line 1"), "{refused}");
        assert!(Library::load(&device, b"\x7fELF").unwrap_err().to_string().contains("machine code"));
        let library = Library::load(&device, SET.as_bytes()).unwrap();
        assert!(Kernel::new(&library, "scale", "scale", KernelMeta::default()).is_err());
        let kernel = Kernel::new(&library, "set", "set", KernelMeta::default()).unwrap();
        assert_eq!(kernel.params(9), Some(vec![(0, 8), (8, 4)]));
        kernel.allow_shared(100 << 10).unwrap();
        assert_eq!(kernel.occupancy(1024, 0).unwrap(), 2);
        assert_eq!(kernel.occupancy(0, 200 << 10).unwrap(), 1);
        let launch = |address: u64| {
            let mut args = address.to_le_bytes().to_vec();
            args.extend(7u32.to_le_bytes());
            Work::Kernel(KernelLaunch {
                kernel: kernel.clone(),
                grid: [1; 3],
                block: [1; 3],
                shared: 0,
                attributes: LaunchAttributes::default(),
                args: args.into(),
                arrays: Vec::new(),
            })
        };
        let finish = || {
            while !device.stream_query(stream)? {
                device.poll()?;
            }
            Ok::<_, Error>(())
        };
        let at = device.plain_alloc(4).unwrap();
        device.enqueue(stream, &launch(at)).unwrap();
        finish().unwrap();
        // SAFETY: the device's memory is host memory, and nothing runs.
        assert_eq!(unsafe { (at as *const u32).read() }, 7);
        let fault = device.enqueue(stream, &launch(8)).and_then(|()| finish()).unwrap_err();
        assert!(matches!(fault, Error::Kernel(_)) && fault.to_string().contains("null pointer"), "{fault}");
        device.plain_free(at).unwrap();
        assert!(device.kernel_get(RawLibrary(99), "x").is_err());
        assert_eq!(device.kernel_set_max_shared(RawKernel(1), 1).ok(), Some(()));
        assert_eq!(device.graph_build(&[], None).unwrap(), None);
        device.graph_destroy(Default::default());
        device.library_unload(RawLibrary(99));
        assert!(device.enqueue(stream, &Work::Graph(Default::default())).is_err());
    }
}

#[test]
fn inline_work_runs_at_enqueue_and_events_are_complete() {
    let device = device(None);
    let (stream, log) = (device.stream_create(0).unwrap(), Log::default());
    let (start, end, untimed) =
        (device.event_create(true).unwrap(), device.event_create(true).unwrap(), device.event_create(false).unwrap());
    assert!(device.event_query(start).unwrap(), "an event never recorded is complete");
    assert_eq!(code_of(device.event_elapsed_ms(start, end).unwrap_err()), 400);
    device.event_record(start, stream).unwrap();
    device.enqueue(stream, &log.writes(1)).unwrap();
    assert_eq!(log.entries(), [1]);
    device.event_record(end, stream).unwrap();
    device.stream_wait(stream, end).unwrap();
    assert!(device.event_query(end).unwrap() && device.stream_query(stream).unwrap());
    let forward = device.event_elapsed_ms(start, end).unwrap();
    assert!(forward >= 0.0);
    assert_eq!(device.event_elapsed_ms(end, start).unwrap(), -forward);
    device.event_record(untimed, stream).unwrap();
    assert_eq!(code_of(device.event_elapsed_ms(start, untimed).unwrap_err()), 400);
    let failed = device.enqueue(stream, &host(|| Err("no".to_string()))).unwrap_err();
    assert!(matches!(failed, Error::Host(text) if text == "no"));
    device.event_destroy(end);
    device.event_destroy(end);
    assert!(device.event_query(end).is_err() && device.event_record(end, stream).is_err());
    assert!(device.stream_query(RawStream(5)).is_err() && device.event_record(start, RawStream(5)).is_err());
    assert!(device.event_query(RawEvent(77)).is_err());
}

#[test]
fn deferred_work_waits_for_a_poll() {
    let device = device(Some(3));
    let (stream, log) = (device.stream_create(0).unwrap(), Log::default());
    let (start, end) = (device.event_create(true).unwrap(), device.event_create(true).unwrap());
    device.event_record(start, stream).unwrap();
    device.enqueue(stream, &log.writes(1)).unwrap();
    device.event_record(end, stream).unwrap();
    assert!(!device.stream_query(stream).unwrap() && !device.event_query(end).unwrap());
    assert_eq!(code_of(device.event_elapsed_ms(start, end).unwrap_err()), 600);
    assert_eq!(log.entries(), [0usize; 0]);
    drain(&device, &[stream]);
    assert_eq!(log.entries(), [1]);
    assert!(device.event_query(end).unwrap());
    assert!(device.event_elapsed_ms(start, end).unwrap() >= 0.0);
    assert!(device.props().features.contains(&"deferred"));
}

#[test]
fn a_missing_wait_shows_and_a_wait_holds() {
    let seen = |seed: u64, wait: bool| {
        let device = device(Some(seed));
        let (writer, reader) = (device.stream_create(0).unwrap(), device.stream_create(0).unwrap());
        let (event, log) = (device.event_create(false).unwrap(), Log::default());
        device.enqueue(writer, &log.writes(1)).unwrap();
        device.event_record(event, writer).unwrap();
        if wait {
            device.stream_wait(reader, event).unwrap();
        }
        device.enqueue(reader, &log.writes(2)).unwrap();
        drain(&device, &[writer, reader]);
        log.entries()
    };
    assert!((0..64).all(|seed| seen(seed, true) == [1, 2]));
    let without: HashSet<Vec<usize>> = (0..64).map(|seed| seen(seed, false)).collect();
    assert_eq!(without.len(), 2, "both orders come up");
    assert_eq!(seen(5, false), seen(5, false), "a seed repeats its order");
}

#[test]
fn a_wait_means_the_record_made_before_it() {
    for seed in 0..64 {
        let device = device(Some(seed));
        let streams = [(); 3].map(|()| device.stream_create(0).unwrap());
        let (event, log) = (device.event_create(false).unwrap(), Log::default());
        device.enqueue(streams[0], &log.writes(0)).unwrap();
        device.event_record(event, streams[0]).unwrap();
        device.stream_wait(streams[2], event).unwrap();
        // Recorded again elsewhere, then destroyed: the wait above still means the first record.
        device.event_record(event, streams[1]).unwrap();
        device.event_destroy(event);
        device.enqueue(streams[2], &log.writes(2)).unwrap();
        drain(&device, &streams);
        assert_eq!(log.entries(), [0, 2]);
    }
}

#[test]
fn a_failing_host_function_is_reported_once_and_the_stream_goes_on() {
    let device: SharedDevice = device(Some(1));
    let stream = Stream::new(&Lane::whole(&device), 0, 0).unwrap();
    let log = Log::default();
    device.enqueue(stream.raw(), &host(|| Err("division by zero".to_string()))).unwrap();
    device.enqueue(stream.raw(), &log.writes(1)).unwrap();
    let error = stream.synchronize(&mut || Ok(())).unwrap_err();
    assert!(matches!(error, Error::Host(text) if text == "division by zero"));
    stream.synchronize(&mut || Ok(())).unwrap();
    assert_eq!(log.entries(), [1]);
}

#[test]
fn a_panicking_host_function_does_not_block_its_stream() {
    let device = device(Some(1));
    let (stream, log) = (device.stream_create(0).unwrap(), Log::default());
    device.enqueue(stream, &host(|| panic!("in a host function"))).unwrap();
    device.enqueue(stream, &log.writes(1)).unwrap();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| device.poll()));
    assert!(caught.is_err());
    drain(&device, &[stream]);
    assert_eq!(log.entries(), [1]);
}

/// Something whose drop uses the device, as freeing memory does.
struct Asks(Arc<CpuDevice>, RawStream);

impl Drop for Asks {
    fn drop(&mut self) {
        self.0.stream_query(self.1).unwrap();
    }
}

#[test]
fn host_functions_may_submit_poll_and_drop_what_they_hold() {
    for deferred in [None, Some(4)] {
        let device = device(deferred);
        let (stream, other) = (device.stream_create(0).unwrap(), device.stream_create(0).unwrap());
        let (log, inner) = (Log::default(), device.clone());
        let nested = log.clone();
        let submits = host(move || {
            inner.enqueue(other, &nested.writes(1)).map_err(|e| e.to_string())?;
            inner.poll().map_err(|e| e.to_string())?;
            inner.stream_query(stream).map(drop).map_err(|e| e.to_string())
        });
        device.enqueue(stream, &submits).unwrap();
        let held = Asks(device.clone(), stream);
        device.enqueue(stream, &host(move || held.0.poll().map_err(|e| e.to_string()))).unwrap();
        drain(&device, &[stream, other]);
        assert_eq!(log.entries(), [1]);
    }
}

#[test]
fn many_threads_may_poll() {
    const STEPS: u32 = 200;
    let device = device(Some(8));
    let streams = [(); 4].map(|()| device.stream_create(0).unwrap());
    let counters: Arc<[AtomicU32; 4]> = Arc::default();
    for step in 0..STEPS {
        for (index, stream) in streams.iter().enumerate() {
            let counters = counters.clone();
            let work = host(move || {
                let counted = &counters[index];
                match counted.compare_exchange(step, step + 1, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(_) => Ok(()),
                    Err(now) => Err(format!("step {step} of stream {index} ran when {now} had")),
                }
            });
            device.enqueue(*stream, &work).unwrap();
        }
    }
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| drain(&device, &streams));
        }
    });
    assert!(counters.iter().all(|counter| counter.load(Ordering::SeqCst) == STEPS));
}

/// Work that says when it runs and then waits until the other end is dropped.
fn gate() -> (Work, Receiver<()>, Sender<()>) {
    let (started, has_started) = channel();
    let (release, released) = channel::<()>();
    let ends = Mutex::new((started, released));
    let work = host(move || {
        let ends = ends.lock().unwrap();
        ends.0.send(()).map_err(|e| e.to_string())?;
        // Ends with an error when the sender is dropped.
        let _ = ends.1.recv();
        Ok(())
    });
    (work, has_started, release)
}

#[test]
fn threads_that_share_an_inline_stream_take_turns() {
    const THREADS: usize = 4;
    const EACH: usize = 200;
    let device = device(None);
    let (stream, log, count) = (device.stream_create(0).unwrap(), Log::default(), Arc::new(AtomicU32::new(0)));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (device, log, count) = (&device, &log, &count);
            scope.spawn(move || {
                for step in 0..EACH {
                    let (entries, count) = (log.0.clone(), count.clone());
                    let work = host(move || {
                        // Loses updates when two run at once.
                        let seen = count.load(Ordering::SeqCst);
                        std::thread::yield_now();
                        count.store(seen + 1, Ordering::SeqCst);
                        entries.lock().unwrap().push(thread * EACH + step);
                        Ok(())
                    });
                    device.enqueue(stream, &work).unwrap();
                }
            });
        }
    });
    // Whoever ran the stream has returned, so nothing is left.
    assert!(device.stream_query(stream).unwrap());
    assert_eq!(count.load(Ordering::SeqCst) as usize, THREADS * EACH);
    let entries = log.entries();
    for thread in 0..THREADS {
        let own: Vec<usize> = entries.iter().copied().filter(|entry| entry / EACH == thread).collect();
        assert_eq!(own, (thread * EACH..(thread + 1) * EACH).collect::<Vec<_>>());
    }
}

#[test]
fn inline_work_behind_another_threads_is_not_finished_until_it_ran() {
    let device = device(None);
    let (stream, other) = (device.stream_create(0).unwrap(), device.stream_create(0).unwrap());
    let (before, after, log) = (device.event_create(true).unwrap(), device.event_create(true).unwrap(), Log::default());
    let (held, started, release) = gate();
    std::thread::scope(|scope| {
        device.event_record(before, stream).unwrap();
        let runner = scope.spawn(|| device.enqueue(stream, &held));
        started.recv().unwrap();
        device.enqueue(stream, &log.writes(1)).unwrap();
        device.event_record(after, stream).unwrap();
        device.stream_wait(other, after).unwrap();
        device.enqueue(other, &log.writes(2)).unwrap();
        device.poll().unwrap();
        assert!(device.event_query(before).unwrap() && !device.event_query(after).unwrap());
        assert!(!device.stream_query(stream).unwrap() && !device.stream_query(other).unwrap());
        assert_eq!(code_of(device.event_elapsed_ms(before, after).unwrap_err()), 600);
        assert_eq!(log.entries(), [0usize; 0]);
        drop(release);
        runner.join().unwrap().unwrap();
    });
    // The thread that was held has run everything that waited for it, on the other stream too.
    assert_eq!(log.entries(), [1, 2]);
    assert!(device.stream_query(stream).unwrap() && device.stream_query(other).unwrap());
    assert!(device.event_elapsed_ms(before, after).unwrap() >= 0.0);
}

#[test]
fn errors_of_work_that_another_thread_ran_are_reported_once() {
    let device = device(None);
    let (stream, log) = (device.stream_create(0).unwrap(), Log::default());
    let (held, started, release) = gate();
    std::thread::scope(|scope| {
        let runner = scope.spawn(|| device.enqueue(stream, &held));
        started.recv().unwrap();
        for text in ["first", "second"] {
            device.enqueue(stream, &host(move || Err(text.to_string()))).unwrap();
        }
        device.enqueue(stream, &log.writes(1)).unwrap();
        drop(release);
        runner.join().unwrap().expect("its own work did not fail");
    });
    assert_eq!(log.entries(), [1], "the stream goes on");
    for text in ["first", "second"] {
        let reported = if text == "first" { device.poll() } else { device.stream_query(stream).map(drop) };
        assert!(matches!(reported, Err(Error::Host(said)) if said == text));
    }
    device.poll().unwrap();
    assert!(device.stream_query(stream).unwrap());
}

#[test]
fn a_host_function_may_submit_to_its_own_stream() {
    for deferred in [None, Some(2)] {
        let device = device(deferred);
        let (stream, log) = (device.stream_create(0).unwrap(), Log::default());
        let (inner, nested) = (device.clone(), log.clone());
        let outer = host(move || {
            inner.enqueue(stream, &nested.writes(2)).map_err(|e| e.to_string())?;
            nested.0.lock().unwrap().push(1);
            Ok(())
        });
        device.enqueue(stream, &outer).unwrap();
        drain(&device, &[stream]);
        assert_eq!(log.entries(), [1, 2]);
    }
}

#[test]
fn a_panic_leaves_the_rest_of_an_inline_stream_to_the_next_call() {
    let device = device(None);
    let (stream, log) = (device.stream_create(0).unwrap(), Log::default());
    let (inner, nested) = (device.clone(), log.clone());
    let outer = host(move || {
        inner.enqueue(stream, &nested.writes(1)).map_err(|e| e.to_string())?;
        panic!("in a host function")
    });
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| device.enqueue(stream, &outer)));
    assert!(caught.is_err() && !device.stream_query(stream).unwrap());
    device.enqueue(stream, &log.writes(2)).unwrap();
    assert_eq!(log.entries(), [1, 2]);
    assert!(device.stream_query(stream).unwrap());
}

#[derive(Clone, Debug)]
enum Op {
    Work(usize),
    Record(usize, usize),
    Wait(usize, usize),
    Poll,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (0..4usize).prop_map(Op::Work),
        2 => (0..4usize, 0..3usize).prop_map(|(stream, event)| Op::Record(stream, event)),
        2 => (0..4usize, 0..3usize).prop_map(|(stream, event)| Op::Wait(stream, event)),
        1 => Just(Op::Poll),
    ];
    prop::collection::vec(op, 1..80)
}

/// Run a program and check the order of its work. Each piece of work has the set of earlier work it must follow,
/// derived here from the calls alone. Held, the first stream is busy on another thread during all of them.
fn check_order(device: &Arc<CpuDevice>, ops: Vec<Op>, held: bool) -> Result<(), TestCaseError> {
    let streams = [(); 4].map(|()| device.stream_create(0).unwrap());
    let events = [(); 3].map(|()| device.event_create(false).unwrap());
    let log = Log::default();
    let mut must_follow: Vec<HashSet<usize>> = Vec::new();
    let (busy, started, release) = gate();
    std::thread::scope(|scope| {
        // Dropped at the end of this closure, also after a failure: the thread then goes on.
        let _release = release;
        if held {
            scope.spawn(|| device.enqueue(streams[0], &busy).unwrap());
            started.recv().unwrap();
        }
        let mut before: [HashSet<usize>; 4] = Default::default();
        let mut recorded: [HashSet<usize>; 3] = Default::default();
        for op in ops {
            match op {
                Op::Work(stream) => {
                    let id = must_follow.len();
                    device.enqueue(streams[stream], &log.writes(id)).unwrap();
                    must_follow.push(before[stream].clone());
                    before[stream].insert(id);
                }
                Op::Record(stream, event) => {
                    device.event_record(events[event], streams[stream]).unwrap();
                    recorded[event] = before[stream].clone();
                }
                Op::Wait(stream, event) => {
                    device.stream_wait(streams[stream], events[event]).unwrap();
                    before[stream].extend(recorded[event].iter().copied());
                }
                Op::Poll => device.poll().unwrap(),
            }
            let ran: HashSet<usize> = log.entries().into_iter().collect();
            for (event, needed) in events.iter().zip(&recorded) {
                prop_assert!(!device.event_query(*event).unwrap() || needed.is_subset(&ran));
            }
        }
        Ok(())
    })?;
    if held {
        prop_assert!(streams.iter().all(|stream| device.stream_query(*stream).unwrap()), "inline work was left");
    }
    drain(device, &streams);
    let order = log.entries();
    prop_assert_eq!(order.len(), must_follow.len());
    let mut ran = HashSet::new();
    for id in order {
        prop_assert!(must_follow[id].is_subset(&ran), "{} ran before what it must follow", id);
        ran.insert(id);
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_order_respects_streams_and_event_edges(ops in ops(), seed in any::<u64>()) {
        check_order(&device(Some(seed)), ops, false)?;
    }

    #[test]
    fn inline_work_behind_a_busy_stream_respects_streams_and_event_edges(ops in ops()) {
        check_order(&device(None), ops, true)?;
    }
}
