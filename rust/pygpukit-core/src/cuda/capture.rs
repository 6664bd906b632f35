//! Recording what is put on a stream, as a graph of the driver: calls of libraries, and cooperative kernels.

use std::cell::Cell;

use crate::command::KernelLaunch;
use crate::cuda::device::CudaDevice;
use crate::cuda::driver::{Driver, call};
use crate::cuda::types::*;
use crate::device::{Device, RawLane, RawStream};
use crate::error::Result;
use crate::library_call::LibraryCall;

/// Records calls on a stream of its own, made for the first of them. The caller has bound the context.
pub(super) struct Capture<'a> {
    device: &'a CudaDevice,
    lane: Option<RawLane>,
    stream: Cell<Option<RawStream>>,
}

/// A recorded graph.
pub(super) struct Captured<'a> {
    driver: &'a Driver,
    graph: Handle,
}

impl Drop for Captured<'_> {
    fn drop(&mut self) {
        // SAFETY: made by us and destroyed once. A failure here leaks a little host memory and nothing else.
        unsafe { (self.driver.api.cuGraphDestroy)(self.graph) };
    }
}

impl Captured<'_> {
    pub fn raw(&self) -> Handle {
        self.graph
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.get() {
            self.device.stream_destroy(stream);
        }
    }
}

impl<'a> Capture<'a> {
    /// The nodes run in the lane, or on the whole device.
    pub fn new(device: &'a CudaDevice, lane: Option<RawLane>) -> Capture<'a> {
        Capture { device, lane, stream: Cell::new(None) }
    }

    /// Record one call. Nothing runs.
    pub fn of(&self, call: &dyn LibraryCall) -> Result<Captured<'a>> {
        self.record(call.name(), |stream| call.enqueue(stream))
    }

    /// Record a kernel, which follows nothing.
    pub fn of_kernel(&self, launch: &KernelLaunch) -> Result<Captured<'a>> {
        let mut alone = launch.borrow();
        alone.attributes.programmatic = false;
        self.record(launch.kernel.name(), |stream| self.device.put_kernel(stream.0 as Handle, &alone))
    }

    fn record(&self, what: &str, put: impl FnOnce(RawStream) -> Result<()>) -> Result<Captured<'a>> {
        let driver: &'a Driver = &self.device.driver;
        let stream = self.stream()?;
        call!(driver, driver.api, cuStreamBeginCapture(stream.0 as Handle, CAPTURE_RELAXED))?;
        let recorded = put(stream);
        let mut graph: Handle = std::ptr::null_mut();
        let ended = call!(driver, driver.api, cuStreamEndCapture(stream.0 as Handle, &mut graph));
        let captured = (!graph.is_null()).then_some(Captured { driver, graph });
        // An error of the library says more than that of the capture it spoiled.
        recorded.and(ended)?;
        captured.ok_or_else(|| crate::Error::Graph(format!("{what} recorded no graph")))
    }

    fn stream(&self) -> Result<RawStream> {
        if let Some(stream) = self.stream.get() {
            return Ok(stream);
        }
        let stream = match self.lane {
            Some(lane) => self.device.lane_stream(lane, 0)?,
            None => self.device.stream_create(0)?,
        };
        self.stream.set(Some(stream));
        Ok(stream)
    }
}

impl CudaDevice {
    /// Record a call and forget the graph: the code it needs is loaded then.
    pub(super) fn rehearse(&self, call: &dyn LibraryCall) -> Result<()> {
        let _bound = self.bind()?;
        Capture::new(self, None).of(call).map(drop)
    }
}
