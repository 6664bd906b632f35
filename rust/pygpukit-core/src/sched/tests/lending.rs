//! Lanes that are lent while their tenants are idle, with work that the device has not done yet.

use std::sync::Arc;

use super::gates::{EQUAL, noop};
use super::*;
use crate::cpu::{CpuConfig, CpuDevice};
use crate::exec::ExecCtx;
use crate::lane::Lane;
use crate::launch::submit;
use crate::memory::ArenaMode;
use crate::runtime::DeviceState;
use crate::sched::clock::{Clock, Manual};
use crate::stream::Stream;

/// A tenant on a gate of its own, with a stream to submit to.
struct Party {
    gate: Arc<Gate>,
    lease: Arc<Lease>,
    stream: Arc<Stream>,
    ctx: ExecCtx,
}

impl Party {
    fn new(state: &'static DeviceState, lane: &Arc<Lane>, clock: &Arc<Manual>, name: &str) -> Party {
        let gate = Gate::new(lane, clock.clone());
        let (lease, stream) = (gate.join(name, EQUAL), state.stream(0).unwrap());
        let mut ctx = ExecCtx::default_for(state).on_stream(&stream);
        ctx.lease = Some(lease.clone());
        Party { gate, lease, stream, ctx }
    }

    fn submit(&self) {
        submit(&self.ctx, noop()).unwrap();
    }

    fn finish(&self) {
        self.stream.synchronize(&mut || Ok(())).unwrap();
        self.gate.look();
    }
}

/// Two owners of two SMs each, and somebody on the other four who uses theirs while both are idle.
fn parties() -> (Party, Party, Party, Arc<Manual>) {
    let config =
        CpuConfig { total_memory: Some(1 << 30), deferred: Some(1), sm_count: Some(8), ..CpuConfig::default() };
    let state = DeviceState::new(CpuDevice::new(config), ArenaMode::Vmm, false).unwrap();
    let clock = Arc::new(Manual::default());
    let lane = |groups: &[usize]| state.lanes.get(false, groups).unwrap();
    let one = Party::new(state, &lane(&[0, 1]), &clock, "one");
    let two = Party::new(state, &lane(&[2, 3]), &clock, "two");
    let hog = Party::new(state, &lane(&[4, 5, 6, 7]), &clock, "hog");
    hog.gate.set_wide(&state.lane, vec![one.gate.clone(), two.gate.clone()]);
    (one, two, hog, clock)
}

fn pass(clock: &Manual, milliseconds: u64) {
    clock.set(clock.now() + milliseconds * 1_000_000);
}

fn waits_for_others(owner: &Party) -> bool {
    let marks = owner.gate.take_back().unwrap().unwrap();
    marks.iter().any(|mark| !mark.is_passed().unwrap())
}

#[test]
fn a_lane_is_lent_only_when_all_owners_are_idle() {
    let (one, two, hog, clock) = parties();
    pass(&clock, 10);
    two.submit();
    hog.submit();
    assert_eq!(hog.stream.lane().sm_count(), 4);
    assert!(!one.lease.own().lent, "marked although nobody uses its lane");
    assert!(!waits_for_others(&one), "the next submission would wait for a neighbour's kernel");
    two.finish();
    hog.finish();
    pass(&clock, 10);
    hog.gate.lock().close();
    hog.submit();
    assert_eq!(hog.stream.lane().sm_count(), 8);
    assert!(one.lease.own().lent && two.lease.own().lent);
    assert!(waits_for_others(&one) && waits_for_others(&two));
}

#[test]
fn an_owner_waits_for_work_on_its_own_sms_only() {
    let (one, two, hog, clock) = parties();
    pass(&clock, 10);
    hog.submit();
    assert_eq!(hog.stream.lane().sm_count(), 8);
    // One owner takes its lane back, and so the borrower is on its own lane when the other comes.
    one.submit();
    hog.finish();
    assert!(two.lease.own().lent);
    hog.submit();
    assert_eq!(hog.stream.lane().sm_count(), 4);
    // The end of the batch is marked.
    hog.lease.rest();
    assert!(hog.gate.lock().last.iter().any(|mark| !mark.is_passed().unwrap()));
    assert!(!waits_for_others(&two), "it would wait for work on other SMs");
}
