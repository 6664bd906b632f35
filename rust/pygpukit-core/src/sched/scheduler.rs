//! The scheduler of one device: admission, and what makes its promises true.
//!
//! Admission says who may run. Here an admitted task gets its lane, or a seat on a shared one, and its memory: SMs are
//! taken from the common lane before they are given, so no two lanes ever have the same ones.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::lane::Lane;
use crate::memory::{ArenaMode, Claim, Pool, PoolOptions};
use crate::runtime::DeviceState;
use crate::stream::Stream;

use super::admission::{Admission, Mode, Placement};
use super::clock::Clock;
use super::decision::{Decision, Shortage};
use super::gate::{Gate, Row};
use super::lease::Lease;
use super::ledger::Capacity;
use super::partition::{PartitionSpec, PartitionUsage};
use super::request::{Class, Isolation, PartitionId, Request, Share, TaskId};
use super::turns::{Terms, WHOLE};

/// Device time of one turn, and of what may be in flight when more is submitted.
const QUANTUM_NS: u64 = 1_000_000;
const LEAD_NS: u64 = 500_000;

/// Turns of other processes are longer: a change of processes costs more.
const PROCESS_QUANTUM_NS: u64 = 5_000_000;

/// The longest that work of others keeps a job with a deadline waiting, as long as their kernels are not longer.
const BLOCKING_NS: u64 = 500_000;

/// Memory that is not promised to anybody: for the driver, and for slabs of small arrays.
const KEPT_BACK: u64 = 50;

/// How a scheduler divides its device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Bytes to give out; what the device has free by default.
    pub memory: Option<u64>,
    /// Lanes by small steps: kernels with clusters may not run on them.
    pub fine: bool,
    /// Most requests that wait.
    pub queue_limit: Option<usize>,
    /// Let others use lanes whose tasks are idle.
    pub lending: bool,
}

/// An admitted task with all it was promised.
pub struct Tenant {
    pub id: TaskId,
    pub name: Arc<str>,
    pub lease: Arc<Lease>,
    pub stream: Arc<Stream>,
    pub pool: Arc<Pool>,
    pub placement: Placement,
    request: Request,
    state: &'static DeviceState,
}

impl Drop for Tenant {
    fn drop(&mut self) {
        self.state.recycle(self.stream.clone());
    }
}

/// SMs and memory that tasks share: the device's, or a partition's.
struct Room {
    gate: Arc<Gate>,
    pool: Arc<Pool>,
    /// Groups of SMs that are not in a task's own lane; empty where the room shares the device's lane.
    groups: Vec<usize>,
}

struct Book {
    admission: Admission,
    device: Room,
    partitions: HashMap<PartitionId, Room>,
    tenants: HashMap<TaskId, Arc<Tenant>>,
    /// Groups of tasks with a lane of their own.
    own: HashMap<TaskId, Vec<usize>>,
    /// Admitted tasks that cannot start because memory in their way cannot move now, and why.
    delayed: HashMap<TaskId, (Claim, String)>,
    tracing: bool,
    /// Rows of lanes that are no more, until they are taken.
    traced: Vec<Row>,
}

pub struct Scheduler {
    state: &'static DeviceState,
    clock: Arc<dyn Clock>,
    fine: bool,
    lending: bool,
    /// SMs of each group lanes are made of.
    groups: Vec<u32>,
    book: Mutex<Book>,
    /// Only one thread changes lanes at a time; it waits for the device meanwhile.
    dividing: Mutex<()>,
}

impl Scheduler {
    pub fn new(state: &'static DeviceState, options: Options, clock: Arc<dyn Clock>) -> Result<Scheduler> {
        state.check()?;
        let groups = state.lanes.groups(options.fine)?;
        let memory = match options.memory {
            Some(bytes) => bytes,
            None => {
                let total = state.device.props().total_memory as u64;
                total - total / KEPT_BACK
            }
        };
        let sms: u32 = if groups.is_empty() { state.device.props().sm_count } else { groups.iter().sum() };
        let granule = groups.first().copied().unwrap_or(1);
        let divisible = groups.len() > 1;
        let mut capacity = Capacity { sms, granule, min_common: granule, divisible, ..Capacity::new(memory) };
        capacity.time_margin = Share::ZERO;
        capacity.blocking_ns = BLOCKING_NS;
        if let Some(limit) = options.queue_limit {
            capacity.queue_limit = limit;
        }
        let device = Room {
            gate: Gate::new(&state.lane, clock.clone()),
            pool: state.root_pool.clone(),
            groups: (0..groups.len()).collect(),
        };
        let book = Book {
            admission: Admission::new(capacity)?,
            device,
            partitions: HashMap::new(),
            tenants: HashMap::new(),
            own: HashMap::new(),
            delayed: HashMap::new(),
            tracing: false,
            traced: Vec::new(),
        };
        Ok(Scheduler {
            state,
            clock,
            fine: options.fine,
            lending: options.lending,
            groups,
            book: Mutex::new(book),
            dividing: Mutex::new(()),
        })
    }

    pub fn state(&self) -> &'static DeviceState {
        self.state
    }

    pub fn now(&self) -> u64 {
        self.clock.now()
    }

    pub fn capacity(&self) -> Capacity {
        *self.book.lock().admission.capacity()
    }

    /// How compute shares are made true here.
    pub fn mechanism(&self) -> &'static str {
        match (self.groups.len() > 1, self.state.is_cuda()) {
            (true, true) => "green contexts and turns",
            (true, false) => "worker threads and turns",
            (false, _) => "turns",
        }
    }

    pub fn submit(&self, request: Request) -> Result<(TaskId, Decision)> {
        let mut book = self.book.lock();
        book.room(request.partition).ok_or_else(|| gone(request.partition))?;
        Ok(book.admission.submit(request)?)
    }

    pub fn evaluate(&self, request: &Request) -> Result<Decision> {
        Ok(self.book.lock().admission.evaluate(request)?)
    }

    pub fn position(&self, id: TaskId) -> Option<usize> {
        self.book.lock().admission.position(id)
    }

    pub fn reason(&self, id: TaskId) -> Option<Shortage> {
        self.book.lock().admission.reason(id)
    }

    pub fn placement(&self, id: TaskId) -> Option<Placement> {
        self.book.lock().admission.placement(id)
    }

    pub fn usage(&self) -> Vec<PartitionUsage> {
        self.book.lock().admission.usage()
    }

    /// One that tasks can run in: not while it is made or removed.
    pub fn find_partition(&self, name: &str) -> Option<PartitionId> {
        let book = self.book.lock();
        book.admission.find_partition(name).filter(|id| book.room(*id).is_some())
    }

    pub fn partition_spec(&self, id: PartitionId) -> Option<PartitionSpec> {
        self.book.lock().admission.partition_spec(id).cloned()
    }

    pub fn tenants(&self) -> Vec<Arc<Tenant>> {
        let mut all: Vec<_> = self.book.lock().tenants.values().cloned().collect();
        all.sort_by_key(|tenant| tenant.id);
        all
    }

    pub fn tenant(&self, id: TaskId) -> Option<Arc<Tenant>> {
        self.book.lock().tenants.get(&id).cloned()
    }

    /// The lane that is shared by whoever has no other.
    pub fn common(&self) -> Arc<Gate> {
        self.book.lock().device.gate.clone()
    }

    /// The pool that tasks of a partition draw on.
    pub fn pool(&self, partition: PartitionId) -> Option<Arc<Pool>> {
        self.book.lock().room(partition).map(|room| room.pool.clone())
    }

    /// Why an admitted task could not start, and should try again: others had filled the device, and the host too.
    pub fn delay(&self, id: TaskId) -> Option<String> {
        self.book.lock().delayed.get(&id).map(|(_, why)| why.clone())
    }

    /// Give an admitted task its lane and its memory. `check` runs while the device is waited for.
    pub fn start(
        &self,
        id: TaskId,
        name: &str,
        request: Request,
        sandbox: bool,
        check: &mut Check<'_>,
    ) -> Result<Arc<Tenant>> {
        let Some(placement) = self.placement(id) else {
            return Err(Error::Value(format!("task {id} is not admitted, and cannot start")));
        };
        let parent = self.pool(placement.partition).ok_or_else(|| gone(placement.partition))?;
        let options = PoolOptions { sandbox, ..memory_of(&placement, &request, &parent) };
        let made = parent.child_with(name, options, check);
        {
            let mut book = self.book.lock();
            let before = book.delayed.remove(&id);
            if let Err(Error::HostMemory(why)) = &made {
                // A later try has a new reason, and the same claim.
                let claim = before.map_or_else(|| Claim::new(parent.arena()), |(claim, _)| claim);
                book.delayed.insert(id, (claim, why.clone()));
            }
        }
        let pool = made?;
        let gate = match placement.mode {
            Mode::OwnLane(width) => self.give_lane(id, placement.partition, width, check)?,
            Mode::TimeShare | Mode::Process => {
                let book = self.book.lock();
                book.room(placement.partition).ok_or_else(|| gone(placement.partition))?.gate.clone()
            }
        };
        let begun: Result<_> = (|| {
            let (least, greatest) = self.state.device.priority_range();
            let priority = if request.class == Class::Guaranteed { greatest } else { least.min(0).max(greatest) };
            let stream = self.state.stream(priority)?;
            let lease = gate.join(name, self.terms(&request, &placement, &gate.lane()));
            Ok(Arc::new(Tenant { id, name: name.into(), lease, stream, pool, placement, request, state: self.state }))
        })();
        match begun {
            Ok(tenant) => {
                let mut book = self.book.lock();
                book.tenants.insert(id, tenant.clone());
                self.set_unscheduled(&book);
                self.set_lending(&book);
                Ok(tenant)
            }
            Err(error) => {
                self.take_lane_back(id, placement.partition);
                Err(error)
            }
        }
    }

    /// A task has ended, or is given up while it waits. Returns those admitted in its place.
    pub fn finish(&self, id: TaskId, check: &mut Check<'_>) -> Result<Vec<TaskId>> {
        let tenant = self.book.lock().tenants.get(&id).cloned();
        if let Some(tenant) = &tenant {
            tenant.lease.end();
            self.stop_lending(tenant);
            // Its SMs and its memory are others' when nothing of it runs any more.
            tenant.lease.gate().drain_of(&tenant.lease, check)?;
            self.take_lane_back(id, tenant.placement.partition);
        }
        let mut book = self.book.lock();
        book.tenants.remove(&id);
        book.delayed.remove(&id);
        if let Some(tenant) = tenant {
            book.keep_trace(tenant.lease.gate());
            self.set_unscheduled(&book);
            // What is left of its arrays is nobody's: not held, and the first to go.
            tenant.pool.set_floor(0);
            tenant.pool.set_rank(0);
            tenant.pool.loosen();
            tenant.pool.open_sandbox();
            tenant.pool.close()?;
        }
        Ok(book.admission.release(id))
    }

    /// Set a part of the device aside. Tasks find it when there is room for them. Made or not, `admit_waiting` is next.
    pub fn create_partition(&self, spec: PartitionSpec, check: &mut Check<'_>) -> Result<PartitionId> {
        let id = self.book.lock().admission.create_partition(spec.clone())?;
        let made = self.make_room(id, &spec, check);
        let mut book = self.book.lock();
        match made {
            Ok(room) => {
                book.partitions.insert(id, room);
                Ok(id)
            }
            Err(error) => {
                let _ = book.admission.undo_partition(id);
                Err(error)
            }
        }
    }

    /// Returns the tasks admitted since partitions have changed.
    pub fn admit_waiting(&self) -> Vec<TaskId> {
        self.book.lock().admission.admit_waiting()
    }

    fn make_room(&self, id: PartitionId, spec: &PartitionSpec, check: &mut Check<'_>) -> Result<Room> {
        let held = whole_pieces(spec.memory, &self.state.root_pool);
        let options = PoolOptions {
            quota: spec.memory_limit.or((spec.memory > 0).then_some(spec.memory)).map(|bytes| held.max(bytes as usize)),
            guarantee: spec.memory as usize,
            ..PoolOptions::default()
        };
        let pool = self.state.root_pool.child_with(&spec.name, options, check)?;
        let sms = self.usage().iter().find(|usage| usage.id == id).map_or(0, |usage| usage.sms);
        if spec.isolation != Isolation::Sm || sms == 0 {
            let gate = self.book.lock().device.gate.clone();
            return Ok(Room { gate, pool, groups: Vec::new() });
        }
        let groups = self.take_groups(PartitionId::DEFAULT, sms, check)?;
        let lane = self.lane_of(PartitionId::DEFAULT, &groups)?;
        let gate = Gate::new(&lane, self.clock.clone());
        gate.set_trace(self.book.lock().tracing);
        Ok(Room { gate, pool, groups })
    }

    /// Returns the tasks admitted in its place.
    pub fn remove_partition(&self, id: PartitionId) -> Result<Vec<TaskId>> {
        let room = {
            let mut book = self.book.lock();
            book.admission.check_removable(id)?;
            // Nobody finds it any more, and so nobody is admitted to it.
            book.partitions.remove(&id).ok_or_else(|| gone(id))?
        };
        if let Err(error) = room.pool.close() {
            self.book.lock().partitions.insert(id, room);
            return Err(error);
        }
        if !room.groups.is_empty() {
            self.give_groups_back(PartitionId::DEFAULT, room.groups);
        }
        let mut book = self.book.lock();
        book.keep_trace(&room.gate);
        Ok(book.admission.remove_partition(id)?)
    }

    /// Begin or end keeping a trace of turns.
    pub fn set_trace(&self, on: bool) {
        let mut book = self.book.lock();
        book.tracing = on;
        book.traced.clear();
        for gate in book.gates() {
            gate.set_trace(on);
        }
    }

    /// The turns since the trace began or was last taken, oldest first.
    pub fn take_trace(&self) -> Vec<Row> {
        let (gates, mut rows) = {
            let mut book = self.book.lock();
            (book.gates(), std::mem::take(&mut book.traced))
        };
        rows.extend(gates.iter().flat_map(|gate| gate.take_trace()));
        rows.sort_by_key(|row| row.start_ns);
        rows
    }

    /// What a task is promised on a lane, whose time is worth its part of the device.
    fn terms(&self, request: &Request, placement: &Placement, lane: &Lane) -> Terms {
        let all = u64::from(self.state.device.props().sm_count);
        let of_lane = |share: Share| {
            let scaled = u64::from(share.ppm()) * all / u64::from(lane.sm_count().max(1));
            scaled.min(u64::from(WHOLE)) as u32
        };
        let own = matches!(placement.mode, Mode::OwnLane(_));
        Terms {
            class: request.class,
            request: if own { WHOLE } else { of_lane(placement.share) },
            limit: placement.share_limit.map_or(WHOLE, of_lane),
            weight: request.weight,
            priority: request.priority,
            quantum_ns: if placement.mode == Mode::Process { PROCESS_QUANTUM_NS } else { QUANTUM_NS },
            // Nobody else is on a lane of its own: nothing is held back.
            lead_ns: if own { u64::MAX } else { LEAD_NS },
        }
    }

    /// Let the common lane's turns use the lanes of idle tasks, those outside of partitions.
    fn set_lending(&self, book: &Book) {
        if self.lending {
            let owners =
                book.tenants.values().filter(|tenant| is_owner(tenant)).map(|tenant| tenant.lease.gate().clone());
            book.device.gate.set_wide(&self.state.lane, owners.collect());
        }
    }

    /// Before a task's SMs are given away its lane is not lent any more.
    fn stop_lending(&self, tenant: &Arc<Tenant>) {
        if self.lending && is_owner(tenant) {
            let book = self.book.lock();
            let others = book.tenants.values().filter(|other| is_owner(other) && !Arc::ptr_eq(other, tenant));
            book.device.gate.set_wide(&self.state.lane, others.map(|other| other.lease.gate().clone()).collect());
        }
    }

    /// Work of nobody takes turns with the tasks while there are any.
    fn set_unscheduled(&self, book: &Book) {
        let now = self.state.unscheduled();
        if !book.tenants.is_empty() {
            if now.is_some() {
                return;
            }
            let terms = Terms {
                class: Class::Burstable,
                request: 0,
                limit: WHOLE,
                weight: 1,
                priority: 0,
                quantum_ns: QUANTUM_NS,
                lead_ns: LEAD_NS,
            };
            self.state.set_unscheduled(Some(book.device.gate.join("(unscheduled)", terms)));
        } else if now.is_some_and(|lease| Arc::ptr_eq(lease.gate(), &book.device.gate))
            && let Some(lease) = self.state.set_unscheduled(None)
        {
            // Not that of another scheduler, whose tasks go on.
            lease.end();
            self.state.go_home();
        }
    }

    fn give_lane(&self, id: TaskId, partition: PartitionId, width: u32, check: &mut Check<'_>) -> Result<Arc<Gate>> {
        let groups = self.take_groups(partition, width, check)?;
        let lane = self.lane_of(partition, &groups)?;
        let mut book = self.book.lock();
        book.own.insert(id, groups);
        let gate = Gate::new(&lane, self.clock.clone());
        gate.set_trace(book.tracing);
        Ok(gate)
    }

    /// The lane of groups that were taken from a room, which gets them back if there can be none.
    fn lane_of(&self, partition: PartitionId, groups: &[usize]) -> Result<Arc<Lane>> {
        let made = self.state.lanes.get(self.fine, groups);
        if made.is_err() {
            self.give_groups_back(partition, groups.to_vec());
        }
        made
    }

    fn take_lane_back(&self, id: TaskId, partition: PartitionId) {
        let groups = self.book.lock().own.remove(&id);
        if let Some(groups) = groups {
            self.give_groups_back(partition, groups);
        }
    }

    /// Take SMs from a room's shared lane; returns when nothing runs on them any more.
    fn take_groups(&self, partition: PartitionId, sms: u32, check: &mut Check<'_>) -> Result<Vec<usize>> {
        let _one_at_a_time = self.dividing.lock();
        let mut taken = Vec::new();
        {
            let mut book = self.book.lock();
            let room = book.room_mut(partition).ok_or_else(|| gone(partition))?;
            let mut found = 0;
            let mut left = Vec::new();
            for &group in &room.groups {
                if found < sms && self.groups[group] <= sms - found {
                    found += self.groups[group];
                    taken.push(group);
                } else {
                    left.push(group);
                }
            }
            if found < sms || left.is_empty() {
                return Err(Error::Device(format!("{sms} SMs are not left in the lane they should come from")));
            }
            room.groups = left;
        }
        let left = self.relane(partition).and_then(|gate| gate.drain(check));
        if let Err(error) = left {
            self.add_groups(partition, taken);
            return Err(error);
        }
        Ok(taken)
    }

    fn give_groups_back(&self, partition: PartitionId, groups: Vec<usize>) {
        let _one_at_a_time = self.dividing.lock();
        self.add_groups(partition, groups);
    }

    /// Widen a room's shared lane. What still runs on the old one runs on SMs of the new one: nobody waits for it.
    fn add_groups(&self, partition: PartitionId, groups: Vec<usize>) {
        if let Some(room) = self.book.lock().room_mut(partition) {
            room.groups.extend(groups);
            room.groups.sort_unstable();
        }
        // A lane that cannot be made now is made with the next change; until then these SMs are idle.
        let _ = self.relane(partition);
    }

    /// Move a room's shared turns to the lane of the groups it has now.
    fn relane(&self, partition: PartitionId) -> Result<Arc<Gate>> {
        let (gate, groups) = {
            let book = self.book.lock();
            let room = book.room(partition).ok_or_else(|| gone(partition))?;
            (room.gate.clone(), room.groups.clone())
        };
        let lane = if groups.len() == self.groups.len() {
            self.state.lane.clone()
        } else {
            self.state.lanes.get(self.fine, &groups)?
        };
        gate.set_lane(&lane);
        for tenant in self.tenants().iter().filter(|tenant| Arc::ptr_eq(tenant.lease.gate(), &gate)) {
            tenant.lease.set_terms(self.terms(&tenant.request, &tenant.placement, &lane));
        }
        Ok(gate)
    }
}

/// Runs while something is waited for, and may end the wait with an error.
pub type Check<'a> = dyn FnMut() -> Result<()> + 'a;

impl Book {
    fn room(&self, partition: PartitionId) -> Option<&Room> {
        if partition == PartitionId::DEFAULT { Some(&self.device) } else { self.partitions.get(&partition) }
    }

    fn room_mut(&mut self, partition: PartitionId) -> Option<&mut Room> {
        if partition == PartitionId::DEFAULT { Some(&mut self.device) } else { self.partitions.get_mut(&partition) }
    }

    /// A lane may go with its last user, its part of the trace stays.
    fn keep_trace(&mut self, gate: &Gate) {
        if self.tracing {
            self.traced.extend(gate.take_trace());
        }
    }

    /// Every lane in use, once.
    fn gates(&self) -> Vec<Arc<Gate>> {
        let mut all: Vec<Arc<Gate>> = vec![self.device.gate.clone()];
        let more = self.partitions.values().map(|room| &room.gate);
        for gate in more.chain(self.tenants.values().map(|tenant| tenant.lease.gate())) {
            if !all.iter().any(|known| Arc::ptr_eq(known, gate)) {
                all.push(gate.clone());
            }
        }
        all
    }
}

/// Has it SMs of its own that come from the device's lane?
fn is_owner(tenant: &Tenant) -> bool {
    matches!(tenant.placement.mode, Mode::OwnLane(_)) && tenant.placement.partition == PartitionId::DEFAULT
}

fn gone(partition: PartitionId) -> Error {
    Error::Value(format!("partition {} is not there: it is being made, or was removed", partition.0))
}

/// Memory is held in whole pieces, so a limit of as much allows the last of them too.
fn whole_pieces(bytes: u64, pool: &Pool) -> usize {
    (bytes as usize).next_multiple_of(pool.arena().granule().max(1))
}

/// The pool that makes a placement's memory true. Those of lower classes lose memory first.
fn memory_of(placement: &Placement, request: &Request, parent: &Pool) -> PoolOptions {
    let rank = match request.class {
        Class::Guaranteed => 2,
        Class::Burstable => 1,
        Class::BestEffort => 0,
    };
    if placement.mode == Mode::Process {
        // Its memory is held where it runs.
        return PoolOptions { quota: Some(0), ..PoolOptions::default() };
    }
    let held = whole_pieces(placement.memory_hard, parent);
    PoolOptions {
        quota: placement.memory_quota.map(|bytes| (bytes as usize).max(held)),
        evicting: parent.arena().mode() == ArenaMode::Vmm,
        fixed: request.class == Class::Guaranteed,
        floor: placement.memory_floor as usize,
        rank,
        guarantee: placement.memory_hard as usize,
        host_quota: None,
        sandbox: false,
    }
}
