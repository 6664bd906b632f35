//! Tests of page-locked memory and transfers over the CPU device; deferred streams show missing waits.

mod pinned;
mod transfers;

use std::sync::Arc;

use smallvec::smallvec;

use super::*;
use crate::command::{Access, ArgTag, Command, Fill, Use, Work};
use crate::cpu::{CpuConfig, CpuDevice};
use crate::exec::ExecCtx;
use crate::launch::submit;
use crate::memory::{ArenaMode, Storage};
use crate::runtime::DeviceState;

pub(super) const MIB: usize = 1 << 20;

pub(super) fn open(deferred: Option<u64>) -> &'static DeviceState {
    let device = CpuDevice::new(CpuConfig { total_memory: Some(256 * MIB), deferred, ..CpuConfig::default() });
    DeviceState::new(device, ArenaMode::Vmm, false).unwrap()
}

pub(super) fn never() -> crate::Result<()> {
    Ok(())
}

/// Bytes that differ from chunk to chunk.
pub(super) fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = crate::random::Random::new(seed);
    let mut data = Vec::with_capacity(bytes + 8);
    while data.len() < bytes {
        data.extend_from_slice(&random.next().to_le_bytes());
    }
    data.truncate(bytes);
    data
}

pub(super) struct Array {
    pub storage: Arc<Storage>,
    pub bytes: usize,
}

impl Array {
    pub fn new(ctx: &ExecCtx, bytes: usize) -> Array {
        Array { storage: ctx.allocate(bytes, &mut never).unwrap(), bytes }
    }

    pub fn used(&self, access: Access) -> Use {
        Use { storage: self.storage.clone(), access, tag: ArgTag::default() }
    }

    pub fn pair(&self, host: *const u8, access: Access) -> Pair {
        Pair { device: self.storage.ptr(), used: self.used(access), host: host.cast_mut(), bytes: self.bytes }
    }

    pub fn upload(&self, ctx: &ExecCtx, host: &[u8]) -> crate::Result<()> {
        // SAFETY: the slice outlives the call, and tests keep it until the transfer is over.
        unsafe { upload(ctx, &self.pair(host.as_ptr(), Access::Write), None, &mut never) }
    }

    pub fn download(&self, ctx: &ExecCtx) -> crate::Result<Vec<u8>> {
        let mut host = vec![0u8; self.bytes];
        // SAFETY: the vector outlives the call.
        unsafe { download(ctx, &self.pair(host.as_mut_ptr(), Access::Read), None, &mut never)? };
        Ok(host)
    }

    pub fn fill(&self, ctx: &ExecCtx, value: u8) {
        let fill = Fill { dst: self.storage.ptr(), value: value.into(), width: 1, count: self.bytes };
        let uses = smallvec![self.used(Access::Write)];
        submit(ctx, Command { work: Work::Fill(fill), uses, cost_key: 0 }).unwrap();
    }

    pub fn request(&self, ctx: &ExecCtx, direction: Direction, host: HostSide, priority: Priority) -> Request {
        let access = if direction == Direction::Upload { Access::Write } else { Access::Read };
        Request {
            direction,
            priority,
            device: self.storage.ptr(),
            bytes: self.bytes,
            used: self.used(access),
            host,
            after: (ctx.stream.clone(), ctx.stream.seq()),
            keep: None,
        }
    }
}
