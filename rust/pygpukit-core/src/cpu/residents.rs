//! Resident kernels of the CPU device: they run in the background from the moment of their launch, whatever the streams
//! do, until they leave. No wait counts them, no interrupt ends them; the end of the process does.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use super::kernels::Kernels;
use crate::command::KernelLaunch;
use crate::device::RawStream;
use crate::emulator::{Options, Running};
use crate::error::{Error, Result};

/// The launches of one stream: they run one after the other.
#[derive(Default)]
struct Lined {
    waiting: VecDeque<KernelLaunch>,
    /// A thread runs one.
    busy: bool,
    fault: Option<Error>,
}

pub(super) struct Residents {
    kernels: Arc<Kernels>,
    lines: Mutex<HashMap<usize, Arc<Mutex<Lined>>>>,
}

impl Residents {
    pub fn new(kernels: Arc<Kernels>) -> Residents {
        Residents { kernels, lines: Mutex::default() }
    }

    pub fn launch(&self, stream: RawStream, launch: KernelLaunch, workers: usize) -> Result<()> {
        let line = self.lines.lock().entry(stream.0).or_default().clone();
        let mut lined = line.lock();
        if let Some(fault) = &lined.fault {
            return Err(fault.clone());
        }
        if lined.busy {
            lined.waiting.push_back(launch);
            return Ok(());
        }
        let running = self.kernels.begin(&launch, Options { workers, ..Options::default() })?;
        let (kernels, runs) = (self.kernels.clone(), line.clone());
        let work = move || run(&kernels, &runs, launch, running, workers);
        let thread = std::thread::Builder::new().name("pygpukit-resident".to_string()).spawn(work);
        thread.map_err(|error| Error::Launch(format!("a resident kernel needs a thread of its own: {error}")))?;
        lined.busy = true;
        Ok(())
    }

    /// Has everything launched on this stream ended? An error is that of a kernel, and stays.
    pub fn is_idle(&self, stream: RawStream) -> Result<bool> {
        let Some(line) = self.lines.lock().get(&stream.0).cloned() else { return Ok(true) };
        let lined = line.lock();
        match &lined.fault {
            Some(fault) => Err(fault.clone()),
            None => Ok(!lined.busy),
        }
    }

    pub fn forget(&self, stream: RawStream) {
        self.lines.lock().remove(&stream.0);
    }
}

/// Run a launch that has begun, and those that follow.
fn run(kernels: &Kernels, line: &Mutex<Lined>, mut launch: KernelLaunch, mut running: Running, workers: usize) {
    // Letting go of a kernel may unload it, which waits for the resident ones: not before the next of them runs elsewhere.
    let mut retired = Vec::new();
    loop {
        let ended = running.wait().map_err(Error::Kernel);
        let mut lined = line.lock();
        let next = ended.and_then(|_| match lined.waiting.pop_front() {
            Some(next) => {
                let before = std::mem::replace(&mut launch, next);
                if !Arc::ptr_eq(&before.kernel, &launch.kernel) {
                    retired.push(before);
                }
                kernels.begin(&launch, Options { workers, ..Options::default() }).map(Some)
            }
            None => Ok(None),
        });
        match next {
            Ok(Some(next)) => running = next,
            Ok(None) => return lined.busy = false,
            Err(fault) => {
                lined.fault = Some(fault);
                lined.waiting.clear();
                return lined.busy = false;
            }
        }
    }
}
