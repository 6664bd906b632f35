//! Calls of libraries on the CPU device: done when the stream reaches them, recorded, and charged like other work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use pygpukit_core::Result;
use pygpukit_core::command::{Command, Fill, Work};
use pygpukit_core::cpu::{CpuConfig, CpuDevice};
use pygpukit_core::device::{Device, RawStream};
use pygpukit_core::error::Error;
use pygpukit_core::exec::ExecCtx;
use pygpukit_core::graph::Recorder;
use pygpukit_core::launch::{call_library, submit};
use pygpukit_core::library_call::LibraryCall;
use pygpukit_core::memory::ArenaMode;
use pygpukit_core::runtime::DeviceState;
use smallvec::smallvec;

/// Notes the byte it finds at an address whenever it is called.
struct Look {
    name: Arc<str>,
    address: u64,
    seen: Mutex<Vec<u8>>,
    prepared: AtomicUsize,
    fails: AtomicBool,
}

struct LookCall(Arc<Look>);

impl LibraryCall for LookCall {
    fn name(&self) -> &Arc<str> {
        &self.0.name
    }
    fn cost_key(&self) -> u64 {
        7
    }
    fn enqueue(&self, _stream: RawStream) -> Result<()> {
        if self.0.fails.load(Ordering::Relaxed) {
            return Err(Error::Device("the library said no".to_string()));
        }
        // SAFETY: the CPU device's memory is host memory, and the test keeps it.
        self.0.seen.lock().push(unsafe { (self.0.address as *const u8).read() });
        Ok(())
    }
    fn prepare(&self, _device: &dyn Device) -> Result<()> {
        self.0.prepared.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn to_arc(&self) -> Arc<dyn LibraryCall> {
        Arc::new(LookCall(self.0.clone()))
    }
}

fn context(deferred: Option<u64>) -> ExecCtx {
    let device = CpuDevice::new(CpuConfig { total_memory: Some(64 << 20), deferred, ..CpuConfig::default() });
    ExecCtx::default_for(DeviceState::new(device, ArenaMode::Vmm, false).unwrap())
}

fn fill(address: u64, value: u32) -> Command {
    let work = Work::Fill(Fill { dst: address, value, width: 1, count: 1 });
    Command { work, uses: smallvec![], cost_key: 0 }
}

fn look(address: u64) -> (Arc<Look>, LookCall) {
    let look = Arc::new(Look {
        name: "look".into(),
        address,
        seen: Mutex::default(),
        prepared: AtomicUsize::new(0),
        fails: AtomicBool::new(false),
    });
    (look.clone(), LookCall(look))
}

#[test]
fn a_call_is_made_in_stream_order_and_again_by_replays() {
    for deferred in [None, Some(5)] {
        let ctx = context(deferred);
        let storage = ctx.allocate(16, &mut || Ok(())).unwrap();
        let (log, call) = look(storage.ptr());
        let owned = || Command { work: Work::Library(call.to_arc()), uses: smallvec![], cost_key: 0 };
        submit(&ctx, fill(storage.ptr(), 1)).unwrap();
        call_library(&ctx, &call, &[]).unwrap();
        submit(&ctx, fill(storage.ptr(), 2)).unwrap();
        submit(&ctx, owned()).unwrap();
        ctx.stream.synchronize(&mut || Ok(())).unwrap();
        assert_eq!(*log.seen.lock(), [1, 2]);
        let recorder = Recorder::new(&ctx, None, Vec::new()).unwrap();
        let mut inside = ctx.clone();
        inside.recorder = Some(recorder.clone());
        submit(&inside, fill(storage.ptr(), 3)).unwrap();
        call_library(&inside, &call, &[]).unwrap();
        submit(&inside, owned()).unwrap();
        let graph = recorder.finish(ctx.state);
        assert_eq!(log.prepared.load(Ordering::Relaxed), 4, "recorded ones are prepared too");
        graph.replay(&ctx).unwrap();
        submit(&ctx, fill(storage.ptr(), 4)).unwrap();
        graph.replay(&ctx).unwrap();
        ctx.stream.synchronize(&mut || Ok(())).unwrap();
        assert_eq!(*log.seen.lock(), [1, 2, 3, 3, 3, 3]);
        let lines: Vec<String> = ctx.stream.history().iter().map(|record| record.describe()).collect();
        assert_eq!(lines.iter().filter(|line| line.ends_with("library call look")).count(), 6, "{lines:?}");
    }
}

#[test]
fn an_error_of_the_library_is_the_callers() {
    let ctx = context(None);
    let storage = ctx.allocate(16, &mut || Ok(())).unwrap();
    submit(&ctx, fill(storage.ptr(), 1)).unwrap();
    let (log, call) = look(storage.ptr());
    log.fails.store(true, Ordering::Relaxed);
    let error = call_library(&ctx, &call, &[]).unwrap_err();
    assert_eq!(error.to_string(), "the library said no");
    log.fails.store(false, Ordering::Relaxed);
    call_library(&ctx, &call, &[]).unwrap();
    assert_eq!(*log.seen.lock(), [1]);
}
