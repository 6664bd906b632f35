//! Kernels of the CPU device: PTX texts, run by the emulator.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::address::AddressSpace;
use super::{code, failure};
use crate::command::KernelLaunch;
use crate::device::{DeviceProps, KernelAttributes, RawKernel, RawLibrary};
use crate::early::EARLY_CAPABILITY;
use crate::emulator::{Counters, Image, Launch, Memory, Options, Running};
use crate::error::{Error, Result};
use crate::kernel::Check;
use crate::memory::foreign;
use crate::memory::registry::{self, Extent};
use crate::runtime;

/// How long a thread runs a kernel before it looks for signals.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

/// Most threads of a block; a kernel may allow fewer.
pub(super) const MAX_THREADS: u32 = 1024;

/// Where kernels may read and write: device memory, host memory made for devices, and memory of other libraries that
/// arrays lie in.
pub(super) struct Reachable {
    pub device: AddressSpace,
    pub host: Mutex<BTreeMap<u64, usize>>,
}

impl Memory for Reachable {
    fn find(&self, address: u64) -> Option<(u64, u64)> {
        if let Some(range) = self.device.find(address) {
            return Some(range);
        }
        self.find_host(address).or_else(|| foreign::find(address))
    }

    fn array(&self, address: u64) -> Option<Extent> {
        let host = || {
            let (start, end) = self.find_host(address)?;
            Some(Extent { start, bytes: end - start, written: None })
        };
        registry::find(address).or_else(host).or_else(|| foreign::extent(address))
    }

    fn neighbours(&self, address: u64) -> (Option<Extent>, Option<Extent>) {
        registry::neighbours(address)
    }
}

impl Reachable {
    /// Host memory made for devices.
    fn find_host(&self, address: u64) -> Option<(u64, u64)> {
        let host = self.host.lock();
        let (start, bytes) = host.range(..=address).next_back()?;
        let end = start + *bytes as u64;
        (address < end).then_some((*start, end))
    }
}

#[derive(Default)]
struct Tables {
    images: HashMap<usize, Arc<Image>>,
    kernels: HashMap<usize, (Arc<Image>, usize)>,
    next: usize,
}

pub(super) struct Kernels {
    memory: Arc<Reachable>,
    tables: Mutex<Tables>,
    /// Threads of a kernel that has the whole device.
    workers: usize,
    /// Kernels are checked unless they say otherwise.
    check: bool,
    timeout: Option<Duration>,
    /// A device of this kind starts kernels before their predecessors have ended.
    pub starts_early: bool,
}

impl Kernels {
    pub fn new(memory: Arc<Reachable>, props: &DeviceProps, check: bool, timeout: Option<u32>) -> Kernels {
        if check {
            registry::track();
        }
        let timeout = timeout.map(|seconds| Duration::from_secs(seconds.into()));
        let (workers, starts_early) = (props.sm_count as usize, props.capability >= EARLY_CAPABILITY);
        Kernels { memory, tables: Mutex::default(), workers, check, timeout, starts_early }
    }

    pub fn checks(&self, check: Check) -> bool {
        self.check || check != Check::AsDevice
    }

    pub fn load(&self, image: &[u8]) -> Result<RawLibrary> {
        if image.starts_with(b"\x7fELF") {
            return Err(Error::Device(
                "this kernel is machine code of a GPU; the CPU device runs PTX. Compile it here, or load its PTX"
                    .to_string(),
            ));
        }
        let text =
            std::str::from_utf8(image).map_err(|_| Error::Device("the PTX text is not valid UTF-8".to_string()))?;
        let text = text.trim_end_matches('\0');
        let loaded = Image::load(text, |bytes| self.memory.device.plain_alloc(bytes));
        let image = loaded.map_err(|failure| match failure {
            Ok(message) => Error::Device(format!("the CPU device cannot run this kernel: {message}")),
            Err(error) => error,
        })?;
        let mut tables = self.tables.lock();
        tables.next += 1;
        let id = tables.next;
        tables.images.insert(id, Arc::new(image));
        Ok(RawLibrary(id))
    }

    pub fn set_source(&self, library: RawLibrary, file: &str, text: &str) {
        if let Some(image) = self.tables.lock().images.get(&library.0) {
            image.set_source(file, text);
        }
    }

    pub fn unload(&self, library: RawLibrary) {
        let image = {
            let mut tables = self.tables.lock();
            let image = tables.images.remove(&library.0);
            if let Some(image) = &image {
                tables.kernels.retain(|_, (of, _)| !Arc::ptr_eq(of, image));
            }
            image
        };
        if let Some(data) = image.map(|image| image.data).filter(|data| *data != 0) {
            // It was allocated when the image was loaded.
            let _ = self.memory.device.plain_free(data);
        }
    }

    pub fn get(&self, library: RawLibrary, entry: &str) -> Result<(RawKernel, KernelAttributes)> {
        const CALL: &str = "cpu.kernel_get";
        let mut tables = self.tables.lock();
        let Some(image) = tables.images.get(&library.0).cloned() else {
            let text = format!("kernel '{entry}' was asked of a library that is not loaded");
            return Err(failure(CALL, code::INVALID_HANDLE, text));
        };
        let Some((index, attributes)) = image.kernel(entry) else {
            let text = format!("there is no kernel '{entry}'; there are {}", image.kernels().join(", "));
            return Err(failure(CALL, code::INVALID_VALUE, text));
        };
        tables.next += 1;
        let id = tables.next;
        tables.kernels.insert(id, (image, index));
        let max_threads = match attributes.max_threads {
            0 => MAX_THREADS,
            n => n.min(MAX_THREADS),
        };
        Ok((RawKernel(id), KernelAttributes { max_threads, ..attributes }))
    }

    /// Address and bytes of a variable of a library.
    pub fn variable(&self, library: RawLibrary, name: &str) -> Result<(u64, usize)> {
        const CALL: &str = "cpu.library_variable";
        let Some(image) = self.tables.lock().images.get(&library.0).cloned() else {
            let text = format!("variable '{name}' was asked of a library that is not loaded");
            return Err(failure(CALL, code::INVALID_HANDLE, text));
        };
        image
            .variable(name)
            .ok_or_else(|| failure(CALL, code::INVALID_VALUE, format!("The image has no variable '{name}'.")))
    }

    pub fn params(&self, kernel: RawKernel) -> Option<Vec<(usize, usize)>> {
        let tables = self.tables.lock();
        tables.kernels.get(&kernel.0).map(|(image, index)| image.params(*index))
    }

    /// Run a launch to its end and count what it does.
    pub fn profile(&self, launch: &KernelLaunch) -> Result<Counters> {
        let running = self.begin(launch, Options { workers: self.workers, count: true, ..Options::default() })?;
        let summary = loop {
            if let Some(result) = running.work(PAUSE) {
                break result.map_err(Error::Kernel)?;
            }
            if let Err(error) = runtime::wait_check() {
                running.interrupt();
                // Its memory may be freed once this returns.
                let _ = running.wait();
                return Err(error);
            }
        };
        Ok(summary.counters.map(|counters| *counters).unwrap_or_default())
    }

    /// Begin a launch: the caller then calls `work` or `wait`.
    pub fn begin(&self, launch: &KernelLaunch, options: Options) -> Result<Running> {
        let name = launch.kernel.name();
        let known = self.tables.lock().kernels.get(&launch.kernel.raw().0).cloned();
        let Some((image, index)) = known else {
            return Err(Error::Launch(format!("kernel '{name}' is not loaded on this device")));
        };
        let work = Launch {
            kernel: index,
            name,
            grid: launch.grid,
            block: launch.block,
            shared: launch.shared,
            cluster: launch.attributes.cluster,
            // Blocks that stay need all others to be there.
            cooperative: launch.attributes.cooperative || launch.attributes.resident,
            args: &launch.args,
            arrays: &launch.arrays,
        };
        let max_time = self.timeout.filter(|_| !launch.attributes.resident);
        let options = Options { max_time, ..options };
        let options = match launch.kernel.meta().check {
            Check::AsDevice => Options { check: self.check, ..options },
            Check::On => Options { check: true, ..options },
            Check::Fuzz(seed) => Options { check: true, fuzz: Some(seed), ..options },
        };
        image.launch(&work, self.memory.clone(), options).map_err(Error::Launch)
    }
}
