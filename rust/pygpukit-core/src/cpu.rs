//! The CPU device: the `Device` trait over host memory, so that everything above it runs without a GPU.
//!
//! Streams run their work at once, or, deferred, in a random order that only stream order and event edges restrict:
//! a program that forgot a wait then shows it. CUDA kernels run on the PTX emulator.

mod address;
mod host;
mod kernels;
mod lanes;
mod queue;
mod residents;

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::command::{CopyKind, HostResult, Launch, Work};
use crate::device::*;
use crate::emulator::Counters;
use crate::error::{Error, Result};
use crate::kernel::Check;
use address::AddressSpace;
pub use host::memory as host_memory;
use kernels::{Kernels, MAX_THREADS, Reachable};
use lanes::Lanes;
use queue::Queue;
use residents::Residents;

const THREADS_PER_SM: u32 = 2048;

/// Most SMs of the device: each is a thread of a kernel that runs.
const MAX_SMS: u32 = 1024;

/// Driver codes the CPU device shares with CUDA.
pub(crate) mod code {
    pub const INVALID_VALUE: i32 = 1;
    pub const OUT_OF_MEMORY: i32 = 2;
    pub const INVALID_HANDLE: i32 = 400;
    pub const NOT_READY: i32 = 600;
}

pub(crate) fn failure(call: &'static str, code: i32, text: String) -> Error {
    let name = match code {
        code::OUT_OF_MEMORY => "OUT_OF_MEMORY",
        code::INVALID_HANDLE => "INVALID_HANDLE",
        code::NOT_READY => "NOT_READY",
        _ => "INVALID_VALUE",
    };
    Error::Driver { call, code, name: name.to_string(), text }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuConfig {
    /// Bytes of device memory; the machine's memory by default.
    pub total_memory: Option<usize>,
    /// Delay work and run it in an order drawn from this seed.
    pub deferred: Option<u64>,
    /// Run operators by their kernels.
    pub emulated: bool,
    /// Capability to compile kernels for: (8, 0) or (9, 0).
    pub capability: Option<(i32, i32)>,
    /// Look for errors in every kernel.
    pub check: bool,
    /// Seconds after which a kernel is ended as one that never ends.
    pub kernel_timeout: Option<u32>,
    /// SMs, from 1 to 1024: worker threads of a kernel, and what lanes are made of. One per core by default.
    pub sm_count: Option<u32>,
}

/// Memory the device has handed out, for tests of what must come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuUsage {
    /// Bytes of addresses reserved.
    pub reserved: usize,
    /// Bytes created, mapped or not.
    pub created: usize,
    pub mapped: usize,
    /// Bytes allocated by `plain_alloc`.
    pub plain: usize,
}

pub struct CpuDevice {
    props: DeviceProps,
    memory: Arc<Reachable>,
    kernels: Arc<Kernels>,
    queue: Arc<Queue>,
    residents: Residents,
    lanes: Lanes,
}

impl fmt::Debug for CpuDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuDevice({})", self.props.name)
    }
}

impl CpuDevice {
    pub fn new(config: CpuConfig) -> Arc<CpuDevice> {
        let total_memory = config.total_memory.unwrap_or_else(host::memory);
        let mut features = Vec::new();
        if address::GRANULARITY.is_some() {
            features.push("vmm");
        }
        if config.deferred.is_some() {
            features.push("deferred");
        }
        let cores = || std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(MAX_SMS));
        let sm_count = config.sm_count.unwrap_or_else(cores).clamp(1, MAX_SMS);
        let lanes = Lanes::new(sm_count);
        if !lanes.division().groups.is_empty() {
            features.push("lanes");
        }
        let props = DeviceProps {
            kind: if config.emulated { DeviceKind::Emulated } else { DeviceKind::Cpu },
            ordinal: 0,
            name: host::name(),
            capability: config.capability.unwrap_or((8, 0)),
            sm_count,
            total_memory,
            l2_bytes: 0,
            max_threads_per_block: MAX_THREADS,
            max_block: [MAX_THREADS, MAX_THREADS, 64],
            max_grid: [i32::MAX as u32, 65535, 65535],
            shared_per_block: 48 << 10,
            shared_per_block_optin: 227 << 10,
            shared_per_sm: 228 << 10,
            max_threads_per_sm: THREADS_PER_SM,
            clock_khz: 0,
            memory_clock_khz: 0,
            memory_bus_bits: 0,
            driver_version: 0,
            pci_bus_id: String::new(),
            uuid: String::new(),
            features,
        };
        let memory = Arc::new(Reachable { device: AddressSpace::new(total_memory), host: Mutex::new(BTreeMap::new()) });
        let kernels = Arc::new(Kernels::new(memory.clone(), &props, config.check, config.kernel_timeout));
        let queue = Queue::new(config.deferred, kernels.clone());
        let residents = Residents::new(kernels.clone());
        Arc::new(CpuDevice { props, memory, kernels, queue, residents, lanes })
    }

    pub fn usage(&self) -> CpuUsage {
        self.memory.device.usage()
    }
}

impl Device for CpuDevice {
    fn props(&self) -> &DeviceProps {
        &self.props
    }

    fn memory_info(&self) -> Result<(usize, usize)> {
        Ok((self.memory.device.free(), self.props.total_memory))
    }

    fn vmm_granularity(&self) -> Option<usize> {
        address::GRANULARITY
    }

    fn reserve(&self, bytes: usize) -> Result<DevPtr> {
        self.memory.device.reserve(bytes)
    }

    fn unreserve(&self, va: DevPtr, bytes: usize) -> Result<()> {
        self.memory.device.unreserve(va, bytes)
    }

    fn create(&self, bytes: usize) -> Result<PhysHandle> {
        self.memory.device.create(bytes)
    }

    fn release(&self, handle: PhysHandle, bytes: usize) -> Result<()> {
        self.memory.device.release(handle, bytes)
    }

    fn map(&self, va: DevPtr, bytes: usize, handle: PhysHandle) -> Result<()> {
        self.memory.device.map(va, bytes, handle)
    }

    fn unmap(&self, va: DevPtr, bytes: usize) -> Result<()> {
        self.memory.device.unmap(va, bytes)
    }

    fn plain_alloc(&self, bytes: usize) -> Result<DevPtr> {
        self.memory.device.plain_alloc(bytes)
    }

    fn plain_free(&self, ptr: DevPtr) -> Result<()> {
        self.memory.device.plain_free(ptr)
    }

    fn priority_range(&self) -> (i32, i32) {
        (0, -5)
    }

    fn stream_create(&self, _priority: i32) -> Result<RawStream> {
        Ok(self.queue.add_stream(self.props.sm_count))
    }

    fn stream_query(&self, stream: RawStream) -> Result<bool> {
        self.queue.is_idle(stream)
    }

    fn resident_query(&self, stream: RawStream) -> Result<bool> {
        self.residents.is_idle(stream)
    }

    fn stream_destroy(&self, stream: RawStream) {
        self.residents.forget(stream);
        self.queue.remove_stream(stream);
    }

    fn stream_wait(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        self.queue.wait(stream, event)
    }

    fn event_create(&self, timing: bool) -> Result<RawEvent> {
        Ok(self.queue.add_event(timing))
    }

    fn event_destroy(&self, event: RawEvent) {
        self.queue.remove_event(event);
    }

    fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        self.queue.record(event, stream)
    }

    fn event_query(&self, event: RawEvent) -> Result<bool> {
        self.queue.is_complete(event)
    }

    fn event_elapsed_ms(&self, start: RawEvent, end: RawEvent) -> Result<f32> {
        self.queue.elapsed_ms(start, end)
    }

    fn division(&self, _fine: bool) -> Result<Division> {
        Ok(self.lanes.division().clone())
    }

    fn lane_create(&self, _fine: bool, groups: &[usize]) -> Result<RawLane> {
        self.lanes.create(groups)
    }

    fn lane_destroy(&self, lane: RawLane) {
        self.lanes.destroy(lane);
    }

    fn lane_stream(&self, lane: RawLane, _priority: i32) -> Result<RawStream> {
        let sms = self.lanes.sm_count("cpu.lane_stream", lane)?;
        Ok(self.queue.add_stream(sms))
    }

    /// What can be refused is refused here, in deferred mode too: the caller is still there to hear it.
    fn enqueue(&self, stream: RawStream, work: &Work) -> Result<()> {
        check(work)?;
        if let Work::Kernel(launch) = work
            && launch.attributes.resident
        {
            let workers = self.queue.workers(stream)?;
            return self.residents.launch(stream, launch.clone(), workers);
        }
        self.queue.enqueue(stream, work)
    }

    fn run_now(&self, stream: RawStream, function: &mut dyn FnMut() -> HostResult) -> Result<bool> {
        self.queue.run_now(stream, function)
    }

    fn runs_at_once(&self) -> bool {
        !self.props.features.contains(&"deferred")
    }

    fn poll(&self) -> Result<()> {
        self.queue.poll()
    }

    fn interrupt(&self, waited: Waited) {
        self.queue.interrupt(waited);
    }

    fn library_load(&self, image: &[u8]) -> Result<RawLibrary> {
        self.kernels.load(image)
    }

    fn checks(&self, check: Check) -> bool {
        self.kernels.checks(check)
    }

    fn library_source(&self, library: RawLibrary, file: &str, text: &str) {
        self.kernels.set_source(library, file, text);
    }

    fn profile(&self, launch: &Launch<'_>) -> Result<Counters> {
        self.kernels.profile(&launch.to_owned())
    }

    fn library_unload(&self, library: RawLibrary) {
        self.kernels.unload(library);
    }

    fn library_variable(&self, library: RawLibrary, name: &str) -> Result<(DevPtr, usize)> {
        self.kernels.variable(library, name)
    }

    fn kernel_get(&self, library: RawLibrary, entry: &str) -> Result<(RawKernel, KernelAttributes)> {
        self.kernels.get(library, entry)
    }

    fn kernel_params(&self, kernel: RawKernel, count: usize) -> Option<Vec<(usize, usize)>> {
        self.kernels.params(kernel).map(|all| all.into_iter().take(count).collect())
    }

    fn kernel_set_max_shared(&self, _kernel: RawKernel, _bytes: u32) -> Result<()> {
        Ok(())
    }

    fn kernel_occupancy(&self, _kernel: RawKernel, block_threads: u32, shared: u32) -> Result<u32> {
        let by_threads = THREADS_PER_SM / block_threads.clamp(1, THREADS_PER_SM);
        let by_shared = self.props.shared_per_sm.checked_div(shared).unwrap_or(u32::MAX);
        Ok(by_threads.min(by_shared))
    }

    /// Nothing is built, but what could not be replayed is refused now.
    fn graph_build(&self, nodes: &[GraphNode<'_>], lane: Option<RawLane>) -> Result<Option<RawGraph>> {
        lane.map_or(Ok(0), |lane| self.lanes.sm_count("cpu.graph_build", lane))?;
        nodes.iter().try_for_each(|node| check(&node.command.work))?;
        Ok(None)
    }

    fn graph_destroy(&self, _graph: RawGraph) {}

    fn host_alloc(&self, bytes: usize) -> Result<*mut u8> {
        let layout = host_layout(bytes)?;
        // SAFETY: the layout's size is not zero.
        let ptr = unsafe { alloc(layout) };
        if ptr.is_null() {
            return Err(failure("cpu.host_alloc", code::OUT_OF_MEMORY, format!("the host has no {bytes} bytes left")));
        }
        self.memory.host.lock().insert(ptr as u64, layout.size());
        Ok(ptr)
    }

    fn host_free(&self, ptr: *mut u8, bytes: usize) -> Result<()> {
        let address = ptr as u64;
        let layout = host_layout(bytes)?;
        let mut host = self.memory.host.lock();
        if host.get(&address) != Some(&layout.size()) {
            let text = format!("{bytes} bytes at {address:#x} are not one host allocation");
            return Err(failure("cpu.host_free", code::INVALID_VALUE, text));
        }
        host.remove(&address);
        // SAFETY: `host_alloc` made it with this layout, and the table no longer holds it.
        unsafe { dealloc(address as *mut u8, layout) };
        Ok(())
    }
}

/// Page-aligned, as pinned memory is.
fn host_layout(bytes: usize) -> Result<Layout> {
    Layout::from_size_align(bytes.max(1), 4096).map_err(|_| {
        failure("cpu.host_alloc", code::INVALID_VALUE, format!("{bytes} bytes do not fit the address space"))
    })
}

/// Refuse what could not run when its turn comes.
fn check(work: &Work) -> Result<()> {
    match work {
        Work::Graph(_) => Err(Error::Device(
            "the CPU device has no executable graphs: it replays the recorded commands one by one".to_string(),
        )),
        Work::Copy(copy) if copy.bytes > 0 && (copy.dst == 0 || copy.src == 0) => {
            let side = match (copy.kind, copy.dst) {
                (CopyKind::HostToDevice | CopyKind::DeviceToDevice, 0) => "device destination",
                (CopyKind::DeviceToHost, 0) => "host destination",
                (CopyKind::HostToDevice, _) => "host source",
                _ => "device source",
            };
            Err(Error::Value(format!("a copy of {} bytes has a null {side}", copy.bytes)))
        }
        Work::Fill(fill) if !matches!(fill.width, 1 | 2 | 4) => {
            Err(Error::Value(format!("a fill sets elements of 1, 2 or 4 bytes, not {}", fill.width)))
        }
        Work::Fill(fill) if fill.count > 0 && fill.dst == 0 => {
            Err(Error::Value(format!("a fill of {} elements has a null destination", fill.count)))
        }
        Work::Fill(fill) if fill.dst % u64::from(fill.width) != 0 => Err(Error::Value(format!(
            "a fill of {}-byte elements starts at {:#x}, which is not a multiple of the element size",
            fill.width, fill.dst
        ))),
        _ => Ok(()),
    }
}
