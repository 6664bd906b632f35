//! Putting work on a stream: the launch path, kept as short as the driver allows.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::command::{Copy, CopyKind, Fill, HostFn, Launch, LaunchAttributes, Work};
use crate::cuda::deferred::Deferred;
use crate::cuda::device::CudaDevice;
use crate::cuda::driver::call;
use crate::cuda::status::Status;
use crate::cuda::types::*;
use crate::device::RawStream;
use crate::early::EARLY_CAPABILITY;
use crate::error::{Error, Result};
use crate::library_call::LibraryCall;

/// At most one attribute of each kind.
pub(super) type AttributeList = smallvec::SmallVec<[LaunchAttribute; 4]>;

pub(super) fn attribute(id: u32, words: &[u32]) -> LaunchAttribute {
    let mut value = [0; 16];
    value[..words.len()].copy_from_slice(words);
    LaunchAttribute { id, pad: 0, value }
}

/// The driver's attributes that a launch asks for, but the programmatic one.
pub(super) fn attributes_of(asked: &LaunchAttributes) -> AttributeList {
    let mut list = AttributeList::new();
    if asked.cluster != [0; 3] {
        list.push(attribute(launch_attribute::CLUSTER_DIMENSION, &asked.cluster));
    }
    if asked.cooperative {
        list.push(attribute(launch_attribute::COOPERATIVE, &[1]));
    }
    if let Some(priority) = asked.priority {
        list.push(attribute(launch_attribute::PRIORITY, &[priority as u32]));
    }
    list
}

/// The argument block in the form the driver takes it; the size is written to `size`, which must stay put.
#[inline]
pub(super) fn extra_of(args: &[u8], size: &mut usize) -> [*mut c_void; 5] {
    *size = args.len();
    [
        PARAM_BUFFER_POINTER as *mut c_void,
        args.as_ptr() as *mut c_void,
        PARAM_BUFFER_SIZE as *mut c_void,
        std::ptr::from_mut(size).cast(),
        PARAM_END as *mut c_void,
    ]
}

impl CudaDevice {
    #[inline]
    pub(super) fn put(&self, stream: RawStream, work: &Work) -> Result<()> {
        if stream.0 == 0 {
            return Err(Error::Launch(
                "work must go to a stream of its own, not to the driver's default stream".into(),
            ));
        }
        let raw = stream.0 as Handle;
        match work {
            Work::Kernel(launch) => self.put_kernel(raw, &launch.borrow()),
            Work::Copy(copy) => self.put_copy(raw, copy),
            Work::Fill(fill) => self.put_fill(raw, fill),
            Work::Graph(graph) => {
                let _bound = self.bind()?;
                call!(self.driver, self.driver.api, cuGraphLaunch(graph.0 as Handle, raw))
            }
            Work::Host(function) => self.put_host(raw, function),
            Work::Library(call) => self.put_library(stream, &**call),
        }
    }

    #[inline]
    pub(super) fn put_kernel(&self, stream: Handle, launch: &Launch<'_>) -> Result<()> {
        // What others did wrong is none of a resident kernel's business.
        if !launch.attributes.resident {
            self.deferred.report()?;
        }
        let mut list = AttributeList::new();
        if launch.attributes != LaunchAttributes::default() {
            list = attributes_of(&launch.attributes);
            if launch.attributes.programmatic && self.props.capability >= EARLY_CAPABILITY {
                list.push(attribute(launch_attribute::PROGRAMMATIC_SERIALIZATION, &[1]));
            }
        }
        let config = LaunchConfig {
            grid: launch.grid,
            block: launch.block,
            shared: launch.shared,
            stream,
            attributes: list.as_ptr(),
            attribute_count: list.len() as u32,
        };
        let mut size = 0;
        let mut extra = extra_of(launch.args, &mut size);
        let extra = if launch.args.is_empty() { std::ptr::null_mut() } else { extra.as_mut_ptr() };
        let kernel = launch.kernel.raw().0 as Handle;
        let call = || {
            // SAFETY: the configuration, the argument block and its size live until the driver has copied them.
            unsafe { (self.driver.api.cuLaunchKernelEx)(&config, kernel, std::ptr::null_mut(), extra) }
        };
        match call() {
            Status::SUCCESS => Ok(()),
            // The stream names the context; a driver that wants one on the thread too gets it.
            Status::INVALID_CONTEXT => {
                let _bound = self.bind_only()?;
                self.driver.check("cuLaunchKernelEx", call())
            }
            status => Err(self.driver.error("cuLaunchKernelEx", status)),
        }
    }

    /// The library asks for the context of the thread, which must be the device's.
    #[inline]
    pub(super) fn put_library(&self, stream: RawStream, call: &dyn LibraryCall) -> Result<()> {
        let _bound = self.bind()?;
        call.enqueue(stream)
    }

    fn put_copy(&self, stream: Handle, copy: &Copy) -> Result<()> {
        if copy.bytes == 0 {
            return self.deferred.report();
        }
        let _bound = self.bind()?;
        let api = &self.driver.api;
        let (dst, src, bytes) = (copy.dst, copy.src, copy.bytes);
        match copy.kind {
            CopyKind::HostToDevice => {
                call!(self.driver, api, cuMemcpyHtoDAsync(dst, src as *const c_void, bytes, stream))
            }
            CopyKind::DeviceToHost => {
                call!(self.driver, api, cuMemcpyDtoHAsync(dst as *mut c_void, src, bytes, stream))
            }
            CopyKind::DeviceToDevice => call!(self.driver, api, cuMemcpyDtoDAsync(dst, src, bytes, stream)),
        }
    }

    fn put_fill(&self, stream: Handle, fill: &Fill) -> Result<()> {
        check_width(fill)?;
        if fill.count == 0 {
            return self.deferred.report();
        }
        let _bound = self.bind()?;
        let api = &self.driver.api;
        match fill.width {
            1 => call!(self.driver, api, cuMemsetD8Async(fill.dst, fill.value as u8, fill.count, stream)),
            2 => call!(self.driver, api, cuMemsetD16Async(fill.dst, fill.value as u16, fill.count, stream)),
            _ => call!(self.driver, api, cuMemsetD32Async(fill.dst, fill.value, fill.count, stream)),
        }
    }

    fn put_host(&self, stream: Handle, function: &HostFn) -> Result<()> {
        let _bound = self.bind()?;
        let task = Box::new(HostTask { function: function.clone(), deferred: self.deferred.clone() });
        let data = Box::into_raw(task);
        call!(self.driver, self.driver.api, cuLaunchHostFunc(stream, run_host, data.cast())).inspect_err(|_| {
            // SAFETY: the driver refused the call, so the box is still ours alone.
            drop(unsafe { Box::from_raw(data) });
        })
    }
}

pub(super) fn check_width(fill: &Fill) -> Result<()> {
    match fill.width {
        1 | 2 | 4 => Ok(()),
        other => Err(Error::Value(format!("a fill writes elements of 1, 2 or 4 bytes, not of {other}"))),
    }
}

struct HostTask {
    function: HostFn,
    deferred: Arc<Deferred>,
}

/// Runs on the driver's thread: must not unwind into it and must not call it.
unsafe extern "C" fn run_host(data: *mut c_void) {
    // SAFETY: the pointer is the box given to cuLaunchHostFunc, which calls back exactly once.
    let task = unsafe { Box::from_raw(data.cast::<HostTask>()) };
    let result = match catch_unwind(AssertUnwindSafe(|| (task.function)())) {
        Ok(result) => result.map_err(Error::Host),
        Err(_) => Err(Error::Host("a host function in a stream panicked; see standard error".into())),
    };
    let HostTask { function, deferred } = *task;
    deferred.finish(function, result);
}
