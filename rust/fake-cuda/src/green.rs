//! Green contexts: SMs split into groups, groups merged into contexts, streams bound to them.
//!
//! The pretended GPU has 132 SMs of which 120 can be scheduled together by eights; 12 are left over. SMs are numbered,
//! so that tests see which a lane has. Descriptors live as long as the process, as the driver's do.

use std::collections::{BTreeSet, HashMap};
use std::ffi::c_int;

use crate::api::{exports, get, put};
use crate::device::check_device;
use crate::state::*;
use crate::stream::Stream;

const SMS: u32 = 132;
/// SMs that groups of 8 and more can be made of.
const COSCHEDULED: u32 = 120;
const TYPE_SM: u32 = 1;
const IGNORE_COSCHEDULING: u32 = 1;

/// `CUdevResource` of the SM kind.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct DevResource {
    kind: u32,
    /// Ours: the split it comes from, 0 for what can be split itself.
    split: u32,
    /// Ours: the number of its first SM.
    first: u32,
    device: c_int,
    internal: [u32; 20],
    sm_count: u32,
    min_partition: u32,
    alignment: u32,
    rest: [u32; 9],
}

const _: () = assert!(std::mem::size_of::<DevResource>() == 144);

fn resource(device: c_int, split: u32, first: u32, sm_count: u32, alignment: u32) -> DevResource {
    let (internal, rest, min_partition) = ([0; 20], [0; 9], alignment);
    DevResource { kind: TYPE_SM, split, first, device, internal, sm_count, min_partition, alignment, rest }
}

/// A lane as the fake driver sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GreenContext {
    /// Its `CUcontext`.
    pub context: usize,
    pub sms: BTreeSet<u32>,
    /// Streams made in it and not destroyed.
    pub streams: Vec<usize>,
}

struct Descriptor {
    device: c_int,
    sms: BTreeSet<u32>,
}

#[derive(Default)]
pub(crate) struct Green {
    splits: u32,
    descriptors: HashMap<usize, Descriptor>,
    pub alive: HashMap<usize, GreenContext>,
}

impl Green {
    /// Is it the `CUcontext` of a green context that is alive?
    pub fn knows(&self, context: usize) -> bool {
        self.alive.values().any(|green| green.context == context)
    }
}

exports! {
    needs Health fn cuDeviceGetDevResource(state; device: c_int, target: *mut DevResource, kind: u32) {
        check_device(state, device)?;
        if kind != TYPE_SM {
            return Err(INVALID_RESOURCE_TYPE);
        }
        put(target, resource(device, 0, 0, SMS, 8))
    }

    needs Health fn cuDevSmResourceSplitByCount(
        state; result: *mut DevResource, count: *mut u32, input: *const DevResource, rest: *mut DevResource, flags: u32,
        least: u32,
    ) {
        let input = get(input)?;
        if input.kind != TYPE_SM || input.split != 0 || flags > 1 || least > input.sm_count {
            return Err(INVALID_VALUE);
        }
        let fine = flags == IGNORE_COSCHEDULING || state.config.capability < (9, 0);
        let (unit, usable) = if fine { (2, SMS) } else { (8, COSCHEDULED) };
        let size = least.max(1).next_multiple_of(unit);
        let most = usable / size;
        if result.is_null() {
            return put(count, most);
        }
        let made = get(count)?.min(most);
        state.green.splits += 1;
        let split = state.green.splits;
        for i in 0..made {
            // SAFETY: the array has the length the caller gives.
            put(unsafe { result.add(i as usize) }, resource(input.device, split, i * size, size, unit))?;
        }
        if !rest.is_null() {
            let left = SMS - made * size;
            let mut remainder = resource(input.device, split, made * size, left, unit);
            remainder.kind = if left == 0 { 0 } else { TYPE_SM };
            put(rest, remainder)?;
        }
        put(count, made)
    }

    needs Health fn cuDevResourceGenerateDesc(state; target: *mut usize, parts: *const DevResource, count: u32) {
        if count == 0 {
            return Err(INVALID_VALUE);
        }
        let first = get(parts)?;
        let mut sms = BTreeSet::new();
        for i in 0..count as usize {
            // SAFETY: the array has the length the caller gives.
            let part = get(unsafe { parts.add(i) })?;
            if part.kind != TYPE_SM {
                return Err(INVALID_RESOURCE_TYPE);
            }
            if part.split != first.split || part.device != first.device {
                return Err(INVALID_RESOURCE_CONFIGURATION);
            }
            sms.extend(part.first..part.first + part.sm_count);
        }
        let handle = state.handle();
        state.green.descriptors.insert(handle, Descriptor { device: first.device, sms });
        put(target, handle)
    }

    needs Health fn cuGreenCtxCreate(state; target: *mut usize, desc: usize, device: c_int, flags: u32) {
        check_device(state, device)?;
        let desc = state.green.descriptors.get(&desc).filter(|d| d.device == device).ok_or(INVALID_VALUE)?;
        if flags != 1 {
            return Err(INVALID_VALUE);
        }
        let sms = desc.sms.clone();
        let (handle, context) = (state.handle(), state.handle());
        state.green.alive.insert(handle, GreenContext { context, sms, streams: Vec::new() });
        put(target, handle)
    }

    needs Health fn cuGreenCtxDestroy(state; green: usize) {
        let ended = state.green.alive.remove(&green).ok_or(INVALID_HANDLE)?;
        for stream in ended.streams {
            if let Some(stream) = state.streams.get_mut(&stream) {
                stream.detach();
            }
        }
        Ok(())
    }

    needs Health fn cuGreenCtxGetDevResource(state; green: usize, target: *mut DevResource, kind: u32) {
        let green = state.green.alive.get(&green).ok_or(INVALID_HANDLE)?;
        if kind != TYPE_SM {
            return Err(INVALID_RESOURCE_TYPE);
        }
        put(target, resource(0, 0, 0, state.config.lane_sms.unwrap_or(green.sms.len() as u32), 8))
    }

    needs Health fn cuCtxFromGreenCtx(state; context: *mut usize, green: usize) {
        put(context, state.green.alive.get(&green).ok_or(INVALID_HANDLE)?.context)
    }

    since 12050 needs Health fn cuGreenCtxStreamCreate(
        state; target: *mut usize, green: usize, flags: u32, _priority: c_int,
    ) {
        if flags != 1 {
            return Err(INVALID_VALUE);
        }
        let handle = state.handle();
        let green = state.green.alive.get_mut(&green).ok_or(INVALID_HANDLE)?;
        green.streams.push(handle);
        state.streams.insert(handle, Stream::of(green.context));
        put(target, handle)
    }

    needs Health fn cuStreamDestroy_v2(state; stream: usize) {
        // The driver would let its work end first; the runtime has seen that.
        if state.streams.get(&stream).ok_or(INVALID_HANDLE)?.is_busy() {
            return Err(INVALID_VALUE);
        }
        state.streams.remove(&stream);
        state.green.alive.values_mut().for_each(|green| green.streams.retain(|own| *own != stream));
        Ok(())
    }
}
