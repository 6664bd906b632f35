//! Lanes as green contexts: the SMs are split once, and a lane merges groups of the split.
//!
//! A green context is used through its streams, and as the context of graph nodes; it is never made current: it could be
//! on one thread only.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::cuda::device::{CudaDevice, with_note};
use crate::cuda::driver::{Driver, call};
use crate::cuda::status::Status;
use crate::cuda::table::GreenApi;
use crate::cuda::types::*;
use crate::device::{Device, Division, RawLane, RawStream};
use crate::error::{Error, Result};

/// SMs that the driver schedules together on Hopper and later: clusters run in groups of this size.
const COARSE: u32 = 8;
/// SMs that no split takes apart.
const FINE: u32 = 2;

/// The SMs of a device, split into groups that `cuDevResourceGenerateDesc` can merge.
pub(super) struct Split(Vec<DevResource>);

impl Split {
    pub fn division(&self) -> Division {
        Division { groups: self.0.iter().map(|group| group.sm_count).collect() }
    }
}

struct Lane {
    /// The green context as a `CUcontext`.
    context: usize,
    streams: Vec<usize>,
}

/// The splits made so far, and the lanes alive by their `CUgreenCtx`.
#[derive(Default)]
pub(super) struct Lanes {
    coarse: Mutex<Option<Arc<Split>>>,
    fine: Mutex<Option<Arc<Split>>>,
    alive: Mutex<HashMap<usize, Lane>>,
}

/// A green context until everything about it is known to be right.
struct Draft<'a> {
    driver: &'a Driver,
    api: &'a GreenApi,
    green: Handle,
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        // SAFETY: made by us, never used and not given out. The error on its way says more than one of this call.
        unsafe { (self.api.cuGreenCtxDestroy)(self.green) };
    }
}

impl CudaDevice {
    /// The groups of a granularity. A split that failed is tried again; one that was made stays.
    pub(super) fn split(&self, fine: bool) -> Result<Arc<Split>> {
        // Before the lock: what was put off is let go here, and may come back to this device.
        let _bound = self.bind()?;
        let mut kept = if fine { self.lanes.fine.lock() } else { self.lanes.coarse.lock() };
        if let Some(split) = &*kept {
            return Ok(split.clone());
        }
        let split = Arc::new(Split(match &self.driver.green {
            Some(api) => self.split_sms(api, fine)?,
            None => Vec::new(),
        }));
        *kept = Some(split.clone());
        Ok(split)
    }

    fn split_sms(&self, api: &GreenApi, fine: bool) -> Result<Vec<DevResource>> {
        let mut whole = DevResource::NONE;
        // SAFETY: the resource is written to a live local.
        match unsafe { (api.cuDeviceGetDevResource)(self.device, &mut whole, RESOURCE_SM) } {
            // The driver knows the call, but this GPU cannot be divided.
            Status::NOT_SUPPORTED => return Ok(Vec::new()),
            status => self.driver.check("cuDeviceGetDevResource", status)?,
        }
        let (flags, least) = match (fine, self.props().capability.0 >= 9) {
            (true, _) => (SPLIT_IGNORE_COSCHEDULING, FINE),
            (false, true) => (0, COARSE),
            // No clusters there: the driver takes the smallest size it has from this one on.
            (false, false) => (0, FINE),
        };
        let (mut count, none) = (0, std::ptr::null_mut());
        call!(self.driver, api, cuDevSmResourceSplitByCount(none, &mut count, &whole, none, flags, least))?;
        let mut groups = vec![DevResource::NONE; count as usize];
        if groups.is_empty() {
            return Ok(groups);
        }
        let mut left = DevResource::NONE;
        let first = groups.as_mut_ptr();
        call!(self.driver, api, cuDevSmResourceSplitByCount(first, &mut count, &whole, &mut left, flags, least))?;
        groups.truncate(count as usize);
        if groups.is_empty() || groups.iter().any(|group| group.kind != RESOURCE_SM || group.sm_count == 0) {
            return Err(Error::Device(format!(
                "the driver divided {} SMs of {} into groups it does not describe: update the driver",
                whole.sm_count,
                self.props().name
            )));
        }
        if left.kind == RESOURCE_SM && left.sm_count > 0 && self.merges(api, groups[0], left) {
            groups.push(left);
        }
        Ok(groups)
    }

    /// Can what is left over be in a lane with the groups? Drivers differ. A descriptor holds nothing and needs no end.
    fn merges(&self, api: &GreenApi, group: DevResource, left: DevResource) -> bool {
        let mut both = [group, left];
        let mut desc: Handle = std::ptr::null_mut();
        // SAFETY: the array has the length given, and the descriptor is written to a live local.
        let status = unsafe { (api.cuDevResourceGenerateDesc)(&mut desc, both.as_mut_ptr(), 2) };
        status == Status::SUCCESS
    }

    fn green(&self) -> Result<&GreenApi> {
        let missing = || Error::Device(format!("{} cannot be divided: its driver has no lanes", self.props().name));
        self.driver.green.as_ref().ok_or_else(missing)
    }

    pub(super) fn make_lane(&self, fine: bool, groups: &[usize]) -> Result<RawLane> {
        let split = self.split(fine)?;
        let wanted = split.division().sm_count(groups)?;
        let api = self.green()?;
        let _bound = self.bind()?;
        let mut parts: Vec<DevResource> = groups.iter().map(|&group| split.0[group]).collect();
        let mut desc: Handle = std::ptr::null_mut();
        call!(self.driver, api, cuDevResourceGenerateDesc(&mut desc, parts.as_mut_ptr(), parts.len() as u32)).map_err(
            |error| with_note(error, &format!("The driver does not merge groups {groups:?} into one lane.")),
        )?;
        let mut green: Handle = std::ptr::null_mut();
        call!(self.driver, api, cuGreenCtxCreate(&mut green, desc, self.device, GREEN_CTX_DEFAULT_STREAM))?;
        let draft = Draft { driver: &self.driver, api, green };
        let context = draft.context(wanted)?;
        std::mem::forget(draft);
        self.lanes.alive.lock().insert(green as usize, Lane { context, streams: Vec::new() });
        Ok(RawLane(green as usize))
    }

    /// The context of graph nodes that run in a lane.
    pub(super) fn lane_context(&self, lane: RawLane) -> Result<usize> {
        self.lanes.alive.lock().get(&lane.0).map(|known| known.context).ok_or_else(|| unknown(lane))
    }

    pub(super) fn make_lane_stream(&self, lane: RawLane, priority: i32) -> Result<RawStream> {
        let api = self.green()?;
        let _bound = self.bind()?;
        // Locked over the call: a lane that ends meanwhile must end this stream too.
        let mut alive = self.lanes.alive.lock();
        let known = alive.get_mut(&lane.0).ok_or_else(|| unknown(lane))?;
        let mut stream: Handle = std::ptr::null_mut();
        let green = lane.0 as Handle;
        call!(self.driver, api, cuGreenCtxStreamCreate(&mut stream, green, STREAM_NON_BLOCKING, priority))?;
        known.streams.push(stream as usize);
        Ok(RawStream(stream as usize))
    }

    pub(super) fn end_stream(&self, stream: RawStream) {
        for lane in self.lanes.alive.lock().values_mut() {
            lane.streams.retain(|own| *own != stream.0);
        }
        let done = self
            .bind_only()
            .and_then(|_bound| call!(self.driver, self.driver.api, cuStreamDestroy(stream.0 as Handle)));
        self.deferred.note(done);
    }

    pub(super) fn end_lane(&self, lane: RawLane) {
        let known = self.lanes.alive.lock().remove(&lane.0);
        let Some(known) = known else { return self.deferred.note(Err(unknown(lane))) };
        let done = self.green().and_then(|api| {
            let _bound = self.bind_only()?;
            for stream in known.streams {
                self.deferred.note(call!(self.driver, self.driver.api, cuStreamDestroy(stream as Handle)));
            }
            call!(self.driver, api, cuGreenCtxDestroy(lane.0 as Handle))
        });
        self.deferred.note(done);
    }
}

impl Draft<'_> {
    /// Check that it has the SMs that were asked for, and give its `CUcontext`.
    fn context(&self, wanted: u32) -> Result<usize> {
        let mut got = DevResource::NONE;
        call!(self.driver, self.api, cuGreenCtxGetDevResource(self.green, &mut got, RESOURCE_SM))?;
        if got.sm_count != wanted {
            return Err(Error::Device(format!(
                "a lane of {wanted} SMs was asked for and the driver made one of {}: its share would not be what was \
                 promised. Update the driver, or divide the device more coarsely.",
                got.sm_count
            )));
        }
        let mut context: Handle = std::ptr::null_mut();
        call!(self.driver, self.api, cuCtxFromGreenCtx(&mut context, self.green))?;
        Ok(context as usize)
    }
}

fn unknown(lane: RawLane) -> Error {
    Error::Device(format!("lane {:#x} is unknown or was destroyed", lane.0))
}
