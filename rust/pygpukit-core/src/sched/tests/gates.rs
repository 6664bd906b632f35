//! Gates, with work that the device has not done yet.

use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::*;
use crate::command::{Command, HostFn, Work};
use crate::cpu::{CpuConfig, CpuDevice};
use crate::exec::ExecCtx;
use crate::launch::submit;
use crate::memory::ArenaMode;
use crate::runtime::DeviceState;
use crate::sched::clock::Monotonic;
use crate::sched::turns::{Terms, WHOLE};

pub(super) const EQUAL: Terms = Terms {
    class: Class::Burstable,
    request: 0,
    limit: WHOLE,
    weight: 1,
    priority: 0,
    quantum_ns: 1_000_000,
    lead_ns: 500_000,
};

pub(super) fn noop() -> Command {
    busy(Duration::ZERO)
}

fn busy(time: Duration) -> Command {
    let function: HostFn = Arc::new(move || {
        let start = Instant::now();
        while start.elapsed() < time {
            std::thread::yield_now();
        }
        Ok(())
    });
    Command { work: Work::Host(function), uses: SmallVec::new(), cost_key: 0 }
}

fn deferred() -> &'static DeviceState {
    let config = CpuConfig { total_memory: Some(1 << 30), deferred: Some(1), ..CpuConfig::default() };
    DeviceState::new(CpuDevice::new(config), ArenaMode::Vmm, false).unwrap()
}

#[test]
fn who_joins_follows_work_that_was_not_marked_while_nobody_else_was_there() {
    let state = deferred();
    let gate = Gate::new(&state.lane, Arc::new(Monotonic));
    let tenant = |name: &str, terms: Terms| {
        let (lease, stream) = (gate.join(name, terms), state.stream(0).unwrap());
        let mut ctx = ExecCtx::default_for(state).on_stream(&stream);
        ctx.lease = Some(lease);
        (ctx, stream)
    };
    let (first, stream) = tenant("first", EQUAL);
    // Once to know what it costs, and once more after a rest, when it is alone and needs no marks.
    submit(&first, noop()).unwrap();
    stream.synchronize(&mut || Ok(())).unwrap();
    submit(&first, noop()).unwrap();
    let (second, _) = tenant("second", Terms { class: Class::Guaranteed, request: WHOLE, ..EQUAL });
    submit(&second, noop()).unwrap();
    assert!(!stream.passed(stream.seq()).unwrap());
    let inner = gate.lock();
    assert_eq!(inner.turns.holder(), second.lease.as_ref().map(|lease| lease.seat()));
    assert!(inner.last.iter().any(|mark| !mark.is_passed().unwrap()), "the second task's work runs beside the first's");
}

#[test]
fn who_takes_a_seat_does_not_pay_for_who_had_it() {
    let state = deferred();
    let gate = Gate::new(&state.lane, Arc::new(Monotonic));
    let stream = state.stream(0).unwrap();
    let first = gate.join("first", EQUAL);
    let mut ctx = ExecCtx::default_for(state).on_stream(&stream);
    ctx.lease = Some(first.clone());
    submit(&ctx, busy(Duration::from_millis(20))).unwrap();
    // It is cancelled while its work, which takes far longer than was supposed, is on its way.
    first.end();
    let (second, third) = (gate.join("second", EQUAL), gate.join("third", EQUAL));
    assert_eq!(second.seat(), first.seat());
    stream.synchronize(&mut || Ok(())).unwrap();
    gate.look();
    assert!(first.used().measured_ns > 10_000_000, "{:?}", first.used());
    let mut inner = gate.lock();
    let now = gate.now();
    for lease in [&third, &second] {
        inner.turns.arrive(lease.seat(), now);
    }
    assert_eq!(inner.turns.next_seat(), Some(second.seat()));
}
