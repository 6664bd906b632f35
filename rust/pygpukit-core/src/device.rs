//! The `Device` trait: what a backend must offer. Two implementations: `cuda::CudaDevice` and `cpu::CpuDevice`.
//!
//! Everything above it (pool, streams, graphs, launch) is written once against this trait, so what runs
//! without a GPU in the tests is the code that runs on one.

use std::fmt;
use std::sync::Arc;

use crate::command::{Command, HostResult, Launch, Work};
use crate::emulator::Counters;
use crate::error::{Error, Result};
use crate::kernel::Check;
use crate::library_call::LibraryCall;
use crate::tensor_map::{TensorMapBytes, TensorMapDesc};

/// An address in the device's space. On the CPU device it is a host address.
pub type DevPtr = u64;

macro_rules! raw_handle {
    ($($(#[$doc:meta])* $name:ident),*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        pub struct $name(pub usize);
    )*};
}

raw_handle!(
    /// A backend's stream handle (`CUstream`, or an index on the CPU device).
    RawStream,
    RawEvent,
    RawLibrary,
    RawKernel,
    RawGraph,
    /// Physical memory made by `create`.
    PhysHandle,
    /// A part of the device that streams can be bound to (a green context).
    RawLane
);

/// What a wait waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    Stream(RawStream),
    /// The last record of an event.
    Event(RawEvent),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKind {
    /// Operators on NumPy, kernels on the emulator.
    Cpu,
    /// The CPU device with operators run by their kernels too.
    Emulated,
    Cuda,
}

/// What a device is. `sm_count` is the device's; code that sizes a grid asks its lane instead.
#[derive(Clone, Debug)]
pub struct DeviceProps {
    pub kind: DeviceKind,
    pub ordinal: i32,
    pub name: String,
    /// Compute capability; on the CPU device that of the PTX it runs.
    pub capability: (i32, i32),
    pub sm_count: u32,
    pub total_memory: usize,
    pub l2_bytes: usize,
    pub max_threads_per_block: u32,
    pub max_block: [u32; 3],
    pub max_grid: [u32; 3],
    /// Shared memory a block gets without asking, and at most.
    pub shared_per_block: u32,
    pub shared_per_block_optin: u32,
    pub shared_per_sm: u32,
    pub max_threads_per_sm: u32,
    pub clock_khz: u32,
    pub memory_clock_khz: u32,
    pub memory_bus_bits: u32,
    /// CUDA version the driver speaks, as 1000 * major + 10 * minor; 0 on the CPU device.
    pub driver_version: i32,
    pub pci_bus_id: String,
    pub uuid: String,
    /// Mechanisms in force, by name: "vmm", "green_contexts", "cooperative", ...
    pub features: Vec<&'static str>,
}

/// Registers and limits of a loaded kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelAttributes {
    pub registers: u32,
    pub static_shared: u32,
    pub local_bytes: u32,
    pub const_bytes: u32,
    pub max_threads: u32,
}

/// How a device can be divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    /// SMs of each group; a lane is made of whole groups.
    pub groups: Vec<u32>,
}

impl Division {
    /// SMs of a lane made of these groups; an error when it could not be made.
    pub fn sm_count(&self, groups: &[usize]) -> Result<u32> {
        let there = self.groups.len();
        if there == 0 {
            return Err(Error::Device("lanes cannot be made: this device or its driver cannot be divided".to_string()));
        }
        if groups.is_empty() {
            return Err(Error::Value(format!("a lane needs at least one of the device's {there} groups of SMs")));
        }
        let mut taken = vec![false; there];
        let mut sms = 0u32;
        for &group in groups {
            let (Some(seen), Some(size)) = (taken.get_mut(group), self.groups.get(group)) else {
                return Err(Error::Value(format!(
                    "a lane cannot have group {group}: the device is divided into {there} groups, numbered from 0 to {}",
                    there - 1
                )));
            };
            if std::mem::replace(seen, true) {
                return Err(Error::Value(format!("a lane cannot have group {group} twice: name each group once")));
            }
            sms = sms.saturating_add(*size);
        }
        Ok(sms)
    }
}

/// One node of a graph being built: a command and the nodes it waits for.
pub struct GraphNode<'a> {
    pub command: &'a Command,
    pub after: &'a [usize],
    /// A kernel that may be launched before these nodes, which are kernels, have ended.
    pub early: bool,
    /// `graph_update` may come for it.
    pub changes: bool,
}

pub trait Device: Send + Sync + fmt::Debug {
    fn props(&self) -> &DeviceProps;

    /// Free and total bytes, as the driver sees them now.
    fn memory_info(&self) -> Result<(usize, usize)>;

    // -- address space and physical memory ---------------------------------------------------------------

    /// Granularity of `reserve`, `create` and `map`; None where virtual memory management is missing.
    fn vmm_granularity(&self) -> Option<usize>;
    /// Reserve addresses; nothing is mapped yet.
    fn reserve(&self, bytes: usize) -> Result<DevPtr>;
    fn unreserve(&self, va: DevPtr, bytes: usize) -> Result<()>;
    /// Make physical memory. Out of memory is `Error::Driver { code: 2, .. }`; the pool adds the rest.
    fn create(&self, bytes: usize) -> Result<PhysHandle>;
    fn release(&self, handle: PhysHandle, bytes: usize) -> Result<()>;
    /// Map and make readable and writable.
    fn map(&self, va: DevPtr, bytes: usize, handle: PhysHandle) -> Result<()>;
    /// Does not wait for running kernels: the caller has seen every stream pass the last use.
    fn unmap(&self, va: DevPtr, bytes: usize) -> Result<()>;
    /// A whole allocation outside the arena: the fallback without VMM, and `PYGPUKIT_POOL=none`.
    fn plain_alloc(&self, bytes: usize) -> Result<DevPtr>;
    /// The caller has seen every stream pass the last use.
    fn plain_free(&self, ptr: DevPtr) -> Result<()>;

    // -- streams and events ------------------------------------------------------------------------------

    /// (least, greatest) priority; greatest is the smaller number, as in CUDA.
    fn priority_range(&self) -> (i32, i32);
    fn stream_create(&self, priority: i32) -> Result<RawStream>;
    /// Has everything submitted so far finished? Never blocks.
    fn stream_query(&self, stream: RawStream) -> Result<bool>;
    /// The same of a stream that resident kernels were launched on, and errors of those alone.
    fn resident_query(&self, stream: RawStream) -> Result<bool>;
    /// Nothing runs on it any more, and nobody uses it again.
    fn stream_destroy(&self, stream: RawStream);
    fn stream_wait(&self, stream: RawStream, event: RawEvent) -> Result<()>;
    fn event_create(&self, timing: bool) -> Result<RawEvent>;
    fn event_destroy(&self, event: RawEvent);
    fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()>;
    /// Has the last record of this event completed? Never blocks. An event never recorded is complete.
    fn event_query(&self, event: RawEvent) -> Result<bool>;
    fn event_elapsed_ms(&self, start: RawEvent, end: RawEvent) -> Result<f32>;

    // -- lanes -------------------------------------------------------------------------------------------

    /// Groups that lanes can be made of: coarse ones, in which clusters run as on the whole device, or fine ones. Empty
    /// where the device cannot be divided. Divided once per granularity; asking again gives the same groups.
    fn division(&self, fine: bool) -> Result<Division>;
    /// A lane of these groups of a division. Groups may be in several lanes at once. May wait for the whole device (wrap
    /// in `sync::may_sync`).
    fn lane_create(&self, fine: bool, groups: &[usize]) -> Result<RawLane>;
    /// Nothing runs in it any more, no graph of it is left, and no stream of it is used again: its streams end with it.
    /// May wait as `lane_create` does.
    fn lane_destroy(&self, lane: RawLane);
    /// A stream whose work runs on the lane's SMs only.
    fn lane_stream(&self, lane: RawLane, priority: i32) -> Result<RawStream>;

    // -- work --------------------------------------------------------------------------------------------

    /// Put one piece of work on a stream. Only `launch::submit` calls this.
    fn enqueue(&self, stream: RawStream, work: &Work) -> Result<()>;

    /// Put one kernel on a stream: `enqueue` without an owned command. Only `launch::launch` calls this.
    fn launch(&self, stream: RawStream, launch: &Launch<'_>) -> Result<()> {
        self.enqueue(stream, &Work::Kernel(launch.to_owned()))
    }

    /// Run a function at once as work of a stream, or not at all (false): where the device or the stream has other work
    /// first. Only `launch::run_inline` calls this.
    fn run_now(&self, _stream: RawStream, _function: &mut dyn FnMut() -> HostResult) -> Result<bool> {
        Ok(false)
    }

    /// Put one call of a library on a stream: `enqueue` without an owned command. Only `launch::call_library` calls this.
    fn call_library(&self, stream: RawStream, call: &dyn LibraryCall) -> Result<()> {
        self.enqueue(stream, &Work::Library(call.to_arc()))
    }

    /// Load what a call of a library needs, without running anything. May wait for the whole device (wrap in
    /// `sync::may_sync`).
    fn load_library_call(&self, _call: &dyn LibraryCall) -> Result<()> {
        Ok(())
    }

    /// Run with the device's context current on this thread, for libraries that ask for one.
    fn in_context(&self, run: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        run()
    }

    /// Has work ended when the call that submits it returns?
    fn runs_at_once(&self) -> bool {
        false
    }

    /// A wait was given up (Ctrl-C): where the device can, end the kernels it waited for.
    fn interrupt(&self, _waited: Waited) {}

    /// Run a kernel to its end and count what it did; `runtime::wait_check` may end it before.
    fn profile(&self, launch: &Launch<'_>) -> Result<Counters> {
        Err(Error::Device(format!(
            "kernel '{}' cannot be counted on this device: profile() runs on the CPU device (PYGPUKIT_DEVICE=cpu)",
            launch.kernel.name()
        )))
    }

    /// Does this device look for errors in kernels of this kind?
    fn checks(&self, _check: Check) -> bool {
        false
    }

    /// Let queued work make progress. The CPU device's deferred streams run here; elsewhere it does nothing.
    fn poll(&self) -> Result<()> {
        Ok(())
    }

    // -- kernels -----------------------------------------------------------------------------------------

    /// Load a cubin or PTX image eagerly.
    fn library_load(&self, image: &[u8]) -> Result<RawLibrary>;
    /// The text a library was compiled from, for reports of devices that make some.
    fn library_source(&self, _library: RawLibrary, _file: &str, _text: &str) {}
    fn library_unload(&self, library: RawLibrary);
    /// Address and bytes of a variable (`__device__`, `__constant__`) of a library, by the name it has in the image.
    fn library_variable(&self, library: RawLibrary, name: &str) -> Result<(DevPtr, usize)>;
    fn kernel_get(&self, library: RawLibrary, entry: &str) -> Result<(RawKernel, KernelAttributes)>;
    /// Offset and size of the first `count` parameters in the argument block: fewer when the kernel has fewer, None where
    /// the device cannot say.
    fn kernel_params(&self, kernel: RawKernel, count: usize) -> Option<Vec<(usize, usize)>>;
    /// Raise the dynamic shared memory limit of a kernel.
    fn kernel_set_max_shared(&self, kernel: RawKernel, bytes: u32) -> Result<()>;
    /// Resident blocks per SM.
    fn kernel_occupancy(&self, kernel: RawKernel, block_threads: u32, shared: u32) -> Result<u32>;

    // -- tensor maps -------------------------------------------------------------------------------------

    /// The object that a kernel is given by value. Here that of the emulator.
    fn encode_tensor_map(&self, desc: &TensorMapDesc) -> Result<TensorMapBytes> {
        desc.encode_for_emulator()
    }

    // -- graphs ------------------------------------------------------------------------------------------

    /// Make an executable graph of the recorded commands, or None where the list itself is replayed. It runs in `lane`,
    /// whatever stream it is put on; without one on the whole device.
    fn graph_build(&self, nodes: &[GraphNode<'_>], lane: Option<RawLane>) -> Result<Option<RawGraph>>;
    /// Give nodes that may change, by their number, other work of the same kind, for later launches. False where that cannot
    /// be: the graph is to be built anew.
    fn graph_update(&self, _graph: RawGraph, _works: &[(usize, &Work)]) -> Result<bool> {
        Ok(false)
    }
    fn graph_destroy(&self, graph: RawGraph);

    // -- host memory -------------------------------------------------------------------------------------

    /// Page-locked host memory the device can address.
    fn host_alloc(&self, bytes: usize) -> Result<*mut u8>;
    fn host_free(&self, ptr: *mut u8, bytes: usize) -> Result<()>;
}

pub type SharedDevice = Arc<dyn Device>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_made_of_groups_that_are_there_each_named_once() {
        let division = Division { groups: vec![8, 8, 12] };
        assert_eq!(division.sm_count(&[2, 0]).unwrap(), 20);
        for (groups, part) in [(&[][..], "at least one of the device's 3"), (&[3], "group 3"), (&[1, 1], "twice")] {
            let error = division.sm_count(groups).unwrap_err();
            assert!(matches!(error, Error::Value(_)) && error.to_string().contains(part), "{error}");
        }
        let undivided = Division { groups: Vec::new() };
        assert!(matches!(undivided.sm_count(&[0]).unwrap_err(), Error::Device(_)));
    }
}
