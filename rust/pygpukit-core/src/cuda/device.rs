//! `CudaDevice`: one GPU behind the `Device` trait.

use std::ffi::{CString, c_void};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::command::{Launch, Work};
use crate::cuda::deferred::Deferred;
use crate::cuda::driver::{Driver, call};
use crate::cuda::graph::Drafts;
use crate::cuda::lanes::Lanes;
use crate::cuda::props::{flag, read_props};
use crate::cuda::status::Status;
pub use crate::cuda::status::is_sticky;
use crate::cuda::table::VmmApi;
use crate::cuda::types::*;
use crate::device::*;
use crate::error::{Error, Result};
use crate::library_call::LibraryCall;
use crate::tensor_map::{TensorMapBytes, TensorMapDesc};

/// The oldest GPUs we support: Ampere.
const OLDEST: (i32, i32) = (8, 0);

struct Vmm {
    api: VmmApi,
    granularity: usize,
}

pub struct CudaDevice {
    pub(super) driver: Arc<Driver>,
    pub(super) props: DeviceProps,
    pub(super) device: Ordinal,
    /// The primary context, kept for the life of the process: other libraries share it.
    context: usize,
    priorities: (i32, i32),
    vmm: Option<Vmm>,
    /// Physical memory is made exportable as a file descriptor until the driver refuses it once.
    exportable: AtomicBool,
    /// Stream of our own for whole allocations and graph uploads.
    service: RawStream,
    pub(super) lanes: Lanes,
    pub(super) drafts: Drafts,
    pub(super) deferred: Arc<Deferred>,
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaDevice({}, {})", self.props.ordinal, self.props.name)
    }
}

/// Our context is current while this lives; another library's is put back afterwards.
pub(super) struct Bound<'a> {
    driver: &'a Driver,
    restore: Handle,
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        if !self.restore.is_null() {
            // SAFETY: the handle was current on this thread a moment ago. Nothing can be done if it is gone now.
            unsafe { (self.driver.api.cuCtxSetCurrent)(self.restore) };
        }
    }
}

impl CudaDevice {
    pub fn open(driver: Arc<Driver>, ordinal: i32) -> Result<Arc<CudaDevice>> {
        let count = driver.device_count()?;
        if count == 0 {
            return Err(driver.no_devices());
        }
        if !usize::try_from(ordinal).is_ok_and(|n| n < count) {
            return Err(Error::NoDevice(format!(
                "There is no GPU {ordinal}: the driver offers {count}, numbered from 0 to {}. Check \
                 CUDA_VISIBLE_DEVICES and PYGPUKIT_DEVICE.",
                count - 1
            )));
        }
        let mut device = 0;
        call!(driver, driver.api, cuDeviceGet(&mut device, ordinal))?;
        let mut props = read_props(&driver, device, ordinal)?;
        if props.capability < OLDEST {
            return Err(Error::DeviceUnsupported(format!(
                "PyGPUkit requires SM >= {}{} (Ampere): GPU {ordinal} ({}) has compute capability {}.{}. Use another GPU, or the \
                 CPU device with PYGPUKIT_DEVICE=cpu.",
                OLDEST.0, OLDEST.1, props.name, props.capability.0, props.capability.1
            )));
        }
        let mut context: Handle = std::ptr::null_mut();
        call!(driver, driver.api, cuDevicePrimaryCtxRetain(&mut context, device))?;
        let _bound = bind(&driver, context)?;
        let (mut least, mut greatest) = (0, 0);
        call!(driver, driver.api, cuCtxGetStreamPriorityRange(&mut least, &mut greatest))?;
        let mut service: Handle = std::ptr::null_mut();
        call!(driver, driver.api, cuStreamCreateWithPriority(&mut service, STREAM_NON_BLOCKING, 0))?;
        let exportable = cfg!(unix) && flag(&driver, attribute::POSIX_FD_SUPPORTED, device);
        let vmm = open_vmm(&driver, device, exportable);
        let green = driver.green.is_some();
        for (feature, there) in [("vmm", vmm.is_some()), ("posix_fd", exportable), ("green_contexts", green)] {
            if there {
                props.features.push(feature);
            }
        }
        drop(_bound);
        Ok(Arc::new(CudaDevice {
            driver,
            props,
            device,
            context: context as usize,
            priorities: (least, greatest),
            vmm,
            exportable: AtomicBool::new(exportable),
            service: RawStream(service as usize),
            lanes: Lanes::default(),
            drafts: Drafts::default(),
            deferred: Arc::default(),
        }))
    }

    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// The primary context (`CUcontext`), for libraries that ask for it.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Make our context current for the calls that need one, after reporting what was put off.
    #[inline]
    pub(super) fn bind(&self) -> Result<Bound<'_>> {
        self.deferred.report()?;
        self.bind_only()
    }

    #[inline]
    pub(super) fn bind_only(&self) -> Result<Bound<'_>> {
        bind(&self.driver, self.context as Handle)
    }

    pub(super) fn service_stream(&self) -> Handle {
        self.service.0 as Handle
    }

    fn vmm(&self) -> Result<&Vmm> {
        self.vmm.as_ref().ok_or_else(|| {
            Error::Device(format!(
                "{} offers no virtual memory management with this driver; whole allocations are used instead",
                self.props.name
            ))
        })
    }

    fn allocation(&self) -> AllocationProp {
        let exportable = self.exportable.load(Ordering::Relaxed);
        allocation(self.device, if exportable { HANDLE_TYPE_POSIX_FD } else { HANDLE_TYPE_NONE })
    }

    fn try_create(&self, vmm: &Vmm, bytes: usize, prop: &AllocationProp) -> (Status, u64) {
        let mut handle = 0;
        // SAFETY: the handle is written to a live local; the properties live for the call.
        let status = unsafe { (vmm.api.cuMemCreate)(&mut handle, bytes, prop, 0) };
        (status, handle)
    }

    /// Wait for our own stream by asking; nothing long ever runs on it. The caller has bound the context.
    fn drain_service(&self) -> Result<()> {
        crate::stream::wait_until(&mut || Ok(()), || self.finished(self.service))
    }

    fn finished(&self, stream: RawStream) -> Result<bool> {
        // SAFETY: the stream is one of ours, and its owner uses it no longer once it is destroyed.
        match unsafe { (self.driver.api.cuStreamQuery)(stream.0 as Handle) } {
            Status::SUCCESS => Ok(true),
            Status::NOT_READY => Ok(false),
            status => Err(self.driver.error("cuStreamQuery", status)),
        }
    }

    fn kernel_attribute(&self, kernel: Handle, which: i32) -> Result<u32> {
        let mut value = 0;
        call!(self.driver, self.driver.api, cuKernelGetAttribute(&mut value, which, kernel, self.device))?;
        Ok(u32::try_from(value).unwrap_or(0))
    }
}

fn bind(driver: &Driver, context: Handle) -> Result<Bound<'_>> {
    let mut current: Handle = std::ptr::null_mut();
    call!(driver, driver.api, cuCtxGetCurrent(&mut current))?;
    if current == context {
        return Ok(Bound { driver, restore: std::ptr::null_mut() });
    }
    call!(driver, driver.api, cuCtxSetCurrent(context))?;
    Ok(Bound { driver, restore: current })
}

fn allocation(device: Ordinal, handle_types: u32) -> AllocationProp {
    AllocationProp {
        kind: ALLOCATION_TYPE_PINNED,
        handle_types,
        location: MemLocation { kind: LOCATION_TYPE_DEVICE, id: device },
        win32_meta: std::ptr::null_mut(),
        compression: 0,
        gpu_direct_rdma: 0,
        usage: 0,
        reserved: [0; 4],
    }
}

fn open_vmm(driver: &Driver, device: Ordinal, exportable: bool) -> Option<Vmm> {
    let api = driver.vmm.filter(|_| flag(driver, attribute::VMM_SUPPORTED, device))?;
    let types = if exportable { HANDLE_TYPE_POSIX_FD } else { HANDLE_TYPE_NONE };
    let mut granularity = 0usize;
    // SAFETY: the granularity is written to a live local; the properties live for the call.
    let status = unsafe {
        (api.cuMemGetAllocationGranularity)(&mut granularity, &allocation(device, types), GRANULARITY_MINIMUM)
    };
    (status == Status::SUCCESS && granularity.is_power_of_two()).then_some(Vmm { api, granularity })
}

impl Device for CudaDevice {
    fn props(&self) -> &DeviceProps {
        &self.props
    }

    fn memory_info(&self) -> Result<(usize, usize)> {
        let _bound = self.bind()?;
        let (mut free, mut total) = (0, 0);
        call!(self.driver, self.driver.api, cuMemGetInfo(&mut free, &mut total))?;
        Ok((free, total))
    }

    fn vmm_granularity(&self) -> Option<usize> {
        self.vmm.as_ref().map(|vmm| vmm.granularity)
    }

    fn reserve(&self, bytes: usize) -> Result<DevPtr> {
        let vmm = self.vmm()?;
        let _bound = self.bind()?;
        let mut address = 0;
        call!(self.driver, vmm.api, cuMemAddressReserve(&mut address, bytes, 0, 0, 0))?;
        Ok(address)
    }

    fn unreserve(&self, va: DevPtr, bytes: usize) -> Result<()> {
        let vmm = self.vmm()?;
        let _bound = self.bind()?;
        call!(self.driver, vmm.api, cuMemAddressFree(va, bytes))
    }

    fn create(&self, bytes: usize) -> Result<PhysHandle> {
        let vmm = self.vmm()?;
        let _bound = self.bind()?;
        let prop = self.allocation();
        let (mut status, mut handle) = self.try_create(vmm, bytes, &prop);
        let refused = matches!(status, Status::INVALID_VALUE | Status::NOT_PERMITTED | Status::NOT_SUPPORTED);
        if refused && prop.handle_types != HANDLE_TYPE_NONE {
            // Containers may forbid exportable memory; everything but sharing works without it.
            (status, handle) = self.try_create(vmm, bytes, &allocation(self.device, HANDLE_TYPE_NONE));
            if status == Status::SUCCESS {
                self.exportable.store(false, Ordering::Relaxed);
            }
        }
        self.driver.check("cuMemCreate", status)?;
        Ok(PhysHandle(handle as usize))
    }

    fn release(&self, handle: PhysHandle, _bytes: usize) -> Result<()> {
        let vmm = self.vmm()?;
        let _bound = self.bind()?;
        call!(self.driver, vmm.api, cuMemRelease(handle.0 as u64))
    }

    fn map(&self, va: DevPtr, bytes: usize, handle: PhysHandle) -> Result<()> {
        let vmm = self.vmm()?;
        let _bound = self.bind()?;
        call!(self.driver, vmm.api, cuMemMap(va, bytes, 0, handle.0 as u64, 0))?;
        let access = AccessDesc {
            location: MemLocation { kind: LOCATION_TYPE_DEVICE, id: self.device },
            flags: ACCESS_READ_WRITE,
        };
        call!(self.driver, vmm.api, cuMemSetAccess(va, bytes, &access, 1)).inspect_err(|_| {
            // SAFETY: mapped just above and never made accessible, so nothing can use it.
            let status = unsafe { (vmm.api.cuMemUnmap)(va, bytes) };
            self.deferred.note(self.driver.check("cuMemUnmap", status));
        })
    }

    fn unmap(&self, va: DevPtr, bytes: usize) -> Result<()> {
        let vmm = self.vmm()?;
        let _bound = self.bind()?;
        call!(self.driver, vmm.api, cuMemUnmap(va, bytes))
    }

    fn plain_alloc(&self, bytes: usize) -> Result<DevPtr> {
        let _bound = self.bind()?;
        let mut address = 0;
        call!(self.driver, self.driver.api, cuMemAllocAsync(&mut address, bytes, self.service_stream()))?;
        self.drain_service()?;
        Ok(address)
    }

    fn plain_free(&self, ptr: DevPtr) -> Result<()> {
        let _bound = self.bind()?;
        call!(self.driver, self.driver.api, cuMemFreeAsync(ptr, self.service_stream()))?;
        self.drain_service()
    }

    fn priority_range(&self) -> (i32, i32) {
        self.priorities
    }

    fn stream_create(&self, priority: i32) -> Result<RawStream> {
        let _bound = self.bind()?;
        let mut stream: Handle = std::ptr::null_mut();
        call!(self.driver, self.driver.api, cuStreamCreateWithPriority(&mut stream, STREAM_NON_BLOCKING, priority))?;
        Ok(RawStream(stream as usize))
    }

    fn stream_query(&self, stream: RawStream) -> Result<bool> {
        let _bound = self.bind()?;
        let finished = self.finished(stream)?;
        // A host function that failed has done so by now.
        self.deferred.report()?;
        Ok(finished)
    }

    fn resident_query(&self, stream: RawStream) -> Result<bool> {
        let _bound = self.bind_only()?;
        self.finished(stream)
    }

    fn stream_destroy(&self, stream: RawStream) {
        self.end_stream(stream);
    }

    fn stream_wait(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        let _bound = self.bind()?;
        call!(self.driver, self.driver.api, cuStreamWaitEvent(stream.0 as Handle, event.0 as Handle, 0))
    }

    fn event_create(&self, timing: bool) -> Result<RawEvent> {
        let _bound = self.bind()?;
        let mut event: Handle = std::ptr::null_mut();
        let flags = if timing { 0 } else { EVENT_DISABLE_TIMING };
        call!(self.driver, self.driver.api, cuEventCreate(&mut event, flags))?;
        Ok(RawEvent(event as usize))
    }

    fn event_destroy(&self, event: RawEvent) {
        let done =
            self.bind_only().and_then(|_bound| call!(self.driver, self.driver.api, cuEventDestroy(event.0 as Handle)));
        self.deferred.note(done);
    }

    fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        let _bound = self.bind()?;
        call!(self.driver, self.driver.api, cuEventRecord(event.0 as Handle, stream.0 as Handle))
    }

    fn event_query(&self, event: RawEvent) -> Result<bool> {
        let _bound = self.bind()?;
        // SAFETY: the event is alive: its owner asks.
        match unsafe { (self.driver.api.cuEventQuery)(event.0 as Handle) } {
            Status::SUCCESS => Ok(true),
            Status::NOT_READY => Ok(false),
            status => Err(self.driver.error("cuEventQuery", status)),
        }
    }

    fn event_elapsed_ms(&self, start: RawEvent, end: RawEvent) -> Result<f32> {
        let _bound = self.bind()?;
        let mut elapsed = 0.0;
        let (start, end) = (start.0 as Handle, end.0 as Handle);
        match &self.driver.elapsed {
            Some(api) => call!(self.driver, api, cuEventElapsedTime(&mut elapsed, start, end))?,
            None => call!(self.driver, self.driver.api, cuEventElapsedTime(&mut elapsed, start, end))?,
        }
        Ok(elapsed)
    }

    fn division(&self, fine: bool) -> Result<Division> {
        Ok(self.split(fine)?.division())
    }

    fn lane_create(&self, fine: bool, groups: &[usize]) -> Result<RawLane> {
        self.make_lane(fine, groups)
    }

    fn lane_destroy(&self, lane: RawLane) {
        self.end_lane(lane);
    }

    fn lane_stream(&self, lane: RawLane, priority: i32) -> Result<RawStream> {
        self.make_lane_stream(lane, priority)
    }

    #[inline]
    fn enqueue(&self, stream: RawStream, work: &Work) -> Result<()> {
        self.put(stream, work)
    }

    #[inline]
    fn launch(&self, stream: RawStream, launch: &Launch<'_>) -> Result<()> {
        // Streams come from `stream_create` and `lane_stream` alone, so this one is not the driver's default stream.
        self.put_kernel(stream.0 as Handle, launch)
    }

    #[inline]
    fn call_library(&self, stream: RawStream, call: &dyn LibraryCall) -> Result<()> {
        self.put_library(stream, call)
    }

    fn load_library_call(&self, call: &dyn LibraryCall) -> Result<()> {
        self.rehearse(call)
    }

    fn in_context(&self, run: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let _bound = self.bind()?;
        run()
    }

    fn library_load(&self, image: &[u8]) -> Result<RawLibrary> {
        let _bound = self.bind()?;
        let mut library: Handle = std::ptr::null_mut();
        // A cubin and a fat binary know their length; PTX is text and must end in a NUL.
        if image.starts_with(b"\x7fELF") || image.starts_with(&0xBA55_ED50u32.to_le_bytes()) {
            let (code, none) = (image.as_ptr().cast::<c_void>(), std::ptr::null_mut());
            let (no_values, no_options, no_option_values) =
                (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
            call!(
                self.driver,
                self.driver.api,
                cuLibraryLoadData(&mut library, code, none, no_values, 0, no_options, no_option_values, 0)
            )?;
            return Ok(RawLibrary(library as usize));
        }
        let mut text = image.to_vec();
        text.push(0);
        let mut log = vec![0u8; 8192];
        let mut options = [JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_SIZE];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        // SAFETY: the text ends in a NUL; options and values match in number, and the log has the length it claims.
        let status = unsafe {
            (self.driver.api.cuLibraryLoadData)(
                &mut library,
                text.as_ptr().cast(),
                options.as_mut_ptr(),
                values.as_mut_ptr(),
                2,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                0,
            )
        };
        self.driver.check("cuLibraryLoadData", status).map_err(|error| {
            let log: Vec<u8> = log.into_iter().take_while(|b| *b != 0).collect();
            with_note(error, String::from_utf8_lossy(&log).trim())
        })?;
        Ok(RawLibrary(library as usize))
    }

    fn library_unload(&self, library: RawLibrary) {
        let done = self
            .bind_only()
            .and_then(|_bound| call!(self.driver, self.driver.api, cuLibraryUnload(library.0 as Handle)));
        self.deferred.note(done);
    }

    fn library_variable(&self, library: RawLibrary, name: &str) -> Result<(u64, usize)> {
        let wanted = CString::new(name)
            .map_err(|_| Error::Value(format!("a variable's name cannot hold a NUL character: {name:?}")))?;
        let _bound = self.bind()?;
        let (mut address, mut bytes) = (0, 0);
        let found = call!(
            self.driver,
            self.driver.api,
            cuLibraryGetGlobal(&mut address, &mut bytes, library.0 as Handle, wanted.as_ptr())
        );
        found.map_err(|error| match &error {
            Error::Driver { code, .. } if Status(*code) == Status::NOT_FOUND => {
                with_note(error, &format!("The image has no variable '{name}'."))
            }
            _ => error,
        })?;
        Ok((address, bytes))
    }

    fn kernel_get(&self, library: RawLibrary, entry: &str) -> Result<(RawKernel, KernelAttributes)> {
        let name = CString::new(entry)
            .map_err(|_| Error::Value(format!("a kernel name cannot hold a NUL character: {entry:?}")))?;
        let _bound = self.bind()?;
        let api = &self.driver.api;
        let mut kernel: Handle = std::ptr::null_mut();
        call!(self.driver, api, cuLibraryGetKernel(&mut kernel, library.0 as Handle, name.as_ptr())).map_err(
            |error| match &error {
                Error::Driver { code, .. } if Status(*code) == Status::NOT_FOUND => {
                    with_note(error, &format!("The image has no kernel '{entry}'."))
                }
                _ => error,
            },
        )?;
        // Load the code now: done lazily, the first launch would wait for the whole device.
        let mut function: Handle = std::ptr::null_mut();
        call!(self.driver, api, cuKernelGetFunction(&mut function, kernel))?;
        call!(self.driver, api, cuFuncLoad(function))?;
        let attributes = KernelAttributes {
            registers: self.kernel_attribute(kernel, kernel_attribute::REGISTERS)?,
            static_shared: self.kernel_attribute(kernel, kernel_attribute::STATIC_SHARED)?,
            local_bytes: self.kernel_attribute(kernel, kernel_attribute::LOCAL_BYTES)?,
            const_bytes: self.kernel_attribute(kernel, kernel_attribute::CONST_BYTES)?,
            max_threads: self.kernel_attribute(kernel, kernel_attribute::MAX_THREADS)?,
        };
        Ok((RawKernel(kernel as usize), attributes))
    }

    fn kernel_params(&self, kernel: RawKernel, count: usize) -> Option<Vec<(usize, usize)>> {
        let api = self.driver.param_info.as_ref()?;
        let mut params = Vec::with_capacity(count);
        while params.len() < count {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: the results are written to live locals.
            match unsafe { (api.cuKernelGetParamInfo)(kernel.0 as Handle, params.len(), &mut offset, &mut size) } {
                Status::SUCCESS => params.push((offset, size)),
                // Past the last parameter.
                Status::INVALID_VALUE => break,
                _ => return None,
            }
        }
        Some(params)
    }

    fn kernel_set_max_shared(&self, kernel: RawKernel, bytes: u32) -> Result<()> {
        let _bound = self.bind()?;
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        let which = kernel_attribute::MAX_DYNAMIC_SHARED;
        call!(self.driver, self.driver.api, cuKernelSetAttribute(which, bytes, kernel.0 as Handle, self.device))
    }

    fn kernel_occupancy(&self, kernel: RawKernel, block_threads: u32, shared: u32) -> Result<u32> {
        let _bound = self.bind()?;
        let mut blocks = 0;
        let threads = i32::try_from(block_threads).unwrap_or(i32::MAX);
        call!(
            self.driver,
            self.driver.api,
            cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, kernel.0 as Handle, threads, shared as usize)
        )?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    fn encode_tensor_map(&self, desc: &TensorMapDesc) -> Result<TensorMapBytes> {
        self.encode_map(desc)
    }

    fn graph_build(&self, nodes: &[GraphNode<'_>], lane: Option<RawLane>) -> Result<Option<RawGraph>> {
        self.build_graph(nodes, lane).map(Some)
    }

    fn graph_update(&self, graph: RawGraph, works: &[(usize, &Work)]) -> Result<bool> {
        self.update_graph(graph, works)
    }

    fn graph_destroy(&self, graph: RawGraph) {
        let done = self
            .bind_only()
            .and_then(|_bound| call!(self.driver, self.driver.api, cuGraphExecDestroy(graph.0 as Handle)));
        self.deferred.note(done);
        self.drop_draft(graph);
    }

    fn host_alloc(&self, bytes: usize) -> Result<*mut u8> {
        let _bound = self.bind()?;
        let mut pointer: *mut c_void = std::ptr::null_mut();
        let flags = HOST_ALLOC_PORTABLE | HOST_ALLOC_DEVICE_MAP;
        call!(self.driver, self.driver.api, cuMemHostAlloc(&mut pointer, bytes, flags))?;
        Ok(pointer.cast())
    }

    fn host_free(&self, ptr: *mut u8, _bytes: usize) -> Result<()> {
        let _bound = self.bind()?;
        call!(self.driver, self.driver.api, cuMemFreeHost(ptr.cast()))
    }
}

/// Put what only the caller knows behind the driver's text.
pub(super) fn with_note(error: Error, note: &str) -> Error {
    match error {
        Error::Driver { call, code, name, text } if !note.is_empty() => {
            Error::Driver { call, code, name, text: format!("{text}\n{note}") }
        }
        other => other,
    }
}
