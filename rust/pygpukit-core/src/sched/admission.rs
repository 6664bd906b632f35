//! Who is let onto the device: a pure state machine in which the same requests get the same answers.
//!
//! A request that fits now is admitted, one that would fit an empty device waits, one that never can is rejected. Who
//! waits stands in the line of every resource that was short. Others pass only where they need nothing from these
//! lines, and a request is looked at again when it is first in all lines it stands in: nobody starves behind smaller
//! requests. Lines are ordered by priority, then by arrival. A request that would not fit if all tasks ended, because
//! partitions have what it needs, stands in no line before a partition is removed: others delay it no further.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use super::decision::{Decision, Resource, Shortage, Verdict};
use super::edf::{Deadlines, Job};
use super::ledger::{Capacity, Compute, Demand, Ledger, Lines, Space, State, Whole};
use super::partition::{Partition, PartitionError, PartitionSpec, PartitionUsage};
use super::request::{Class, Isolation, OnFull, PartitionId, Request, RequestError, Share, TaskId, invalid};

/// Place in the order of waiting: higher priorities first, then earlier ones.
pub(super) type Key = (Reverse<i32>, TaskId);

/// Where an admitted task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// On this many SMs of its own.
    OwnLane(u32),
    /// In turns with others in the common lane of its partition.
    TimeShare,
    /// In a process of its own, in turns with the common lane.
    Process,
}

/// What an admitted task has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    pub mode: Mode,
    /// Part of the device's compute that is kept for it.
    pub share: Share,
    /// Most it may get.
    pub share_limit: Option<Share>,
    /// Bytes taken from the device for it.
    pub memory_hard: u64,
    /// Bytes that are never evicted.
    pub memory_floor: u64,
    /// Most bytes in use at a time.
    pub memory_quota: Option<u64>,
    pub partition: PartitionId,
}

#[derive(Debug)]
struct Task {
    request: Request,
    state: TaskState,
}

#[derive(Debug)]
enum TaskState {
    Admitted(Demand),
    Waiting(Lines),
}

/// What a request needs: a lane first where it may have one, and what it takes instead.
struct Wanted {
    first: Demand,
    instead: Option<Demand>,
}

enum Judgement {
    Fits(Demand),
    Waits(Demand, Lines),
    /// Not before a partition is removed.
    Blocked(Shortage),
    Never(Shortage),
}

/// The books of one device.
#[derive(Debug)]
pub struct Admission {
    capacity: Capacity,
    whole: Whole,
    device: Partition,
    partitions: BTreeMap<PartitionId, Partition>,
    tasks: HashMap<TaskId, Task>,
    queue: BTreeSet<Key>,
    lanes_line: BTreeSet<Key>,
    isolation_line: BTreeSet<Key>,
    next_task: TaskId,
    next_partition: u32,
}

impl Admission {
    pub fn new(capacity: Capacity) -> Result<Admission, RequestError> {
        capacity.validate()?;
        Ok(Admission {
            capacity,
            whole: Whole { lanes: 1, windows: 0 },
            device: Partition::of_device(&capacity),
            partitions: BTreeMap::new(),
            tasks: HashMap::new(),
            queue: BTreeSet::new(),
            lanes_line: BTreeSet::new(),
            isolation_line: BTreeSet::new(),
            next_task: 1,
            next_partition: 1,
        })
    }

    pub fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// Admit the request, let it wait, or reject it. A rejected one leaves nothing but its number.
    pub fn submit(&mut self, request: Request) -> Result<(TaskId, Decision), RequestError> {
        let partition = self.checked(&request)?;
        let id = self.next_task;
        let (decision, state) = self.decide(&request, partition, key(&request, id));
        self.next_task += 1;
        let Some(state) = state else { return Ok((id, decision)) };
        match &state {
            TaskState::Admitted(demand) => self.take(&request, id, demand),
            TaskState::Waiting(lines) => self.wait(&request, id, *lines),
        }
        self.tasks.insert(id, Task { request, state });
        Ok((id, decision))
    }

    /// What `submit` would answer.
    pub fn evaluate(&self, request: &Request) -> Result<Decision, RequestError> {
        let partition = self.checked(request)?;
        Ok(self.decide(request, partition, key(request, self.next_task)).0)
    }

    /// A task has ended, or does not want to wait any more. Says who was admitted for it, in order.
    pub fn release(&mut self, id: TaskId) -> Vec<TaskId> {
        let Some(task) = self.tasks.remove(&id) else { return Vec::new() };
        match task.state {
            TaskState::Admitted(demand) => self.give_back(&task.request, id, &demand),
            TaskState::Waiting(lines) => self.stop_waiting(&task.request, id, lines),
        }
        self.admit(Admission::next_first)
    }

    /// Make a partition, or say which inequality is against it. It never waits, and passes waiting requests;
    /// `admit_waiting` says which of them are admitted because an earlier one now waits for a partition's removal.
    pub fn create_partition(&mut self, spec: PartitionSpec) -> Result<PartitionId, PartitionError> {
        spec.validate()?;
        if self.find_partition(&spec.name).is_some() {
            let name = &spec.name;
            return Err(RequestError(format!("partition '{name}' exists: remove it first, or use another name")).into());
        }
        let demand = spec.demand(&self.capacity);
        let state = self.state(&self.device);
        let short = state.short(&demand);
        if let Some(line) = short.each().next() {
            let shortage = shortage(&state, &self.device, line, &demand, None);
            return Err(PartitionError::Refused { name: spec.name, shortage });
        }
        let id = PartitionId(self.next_partition);
        self.next_partition += 1;
        self.device.ledger.lend(&demand);
        self.whole.take(&demand);
        self.partitions.insert(id, Partition::new(id, spec, demand));
        Ok(id)
    }

    /// Can a partition be removed? Not the device itself, nor one in which there are tasks.
    pub fn check_removable(&self, id: PartitionId) -> Result<(), PartitionError> {
        if id == PartitionId::DEFAULT {
            return Err(RequestError("partition 'default' is the device itself and stays".to_string()).into());
        }
        let Some(partition) = self.partitions.get(&id) else {
            return Err(RequestError(format!("there is no partition {}", id.0)).into());
        };
        let (tasks, waiting) = (partition.tasks, partition.waiting);
        if tasks + waiting > 0 {
            return Err(PartitionError::Busy { name: partition.spec.name.clone(), tasks, waiting });
        }
        Ok(())
    }

    /// Remove a partition in which there are no tasks. Says who was admitted for it, in order.
    pub fn remove_partition(&mut self, id: PartitionId) -> Result<Vec<TaskId>, PartitionError> {
        self.undo_partition(id)?;
        Ok(self.admit_waiting())
    }

    /// Remove a partition in which there are no tasks, without admitting waiting requests yet.
    pub fn undo_partition(&mut self, id: PartitionId) -> Result<(), PartitionError> {
        self.check_removable(id)?;
        if let Some(Partition { demand, .. }) = self.partitions.remove(&id) {
            self.device.ledger.get_back(&demand);
            self.whole.give_back(&demand);
        }
        Ok(())
    }

    /// Look at every waiting request again, after partitions have changed. Says who was admitted, in order.
    pub fn admit_waiting(&mut self) -> Vec<TaskId> {
        self.admit(|books, done| {
            let after = done.map_or(Bound::Unbounded, Bound::Excluded);
            books.queue.range((after, Bound::Unbounded)).next().copied()
        })
    }

    pub fn find_partition(&self, name: &str) -> Option<PartitionId> {
        self.all_partitions().find(|partition| &*partition.name == name).map(|partition| partition.id)
    }

    /// What a partition was made with.
    pub fn partition_spec(&self, id: PartitionId) -> Option<&PartitionSpec> {
        self.partition(id).map(|partition| &partition.spec)
    }

    /// What an admitted task has; None for others.
    pub fn placement(&self, id: TaskId) -> Option<Placement> {
        let task = self.tasks.get(&id)?;
        let TaskState::Admitted(demand) = &task.state else { return None };
        let (request, partition) = (&task.request, self.partition(task.request.partition)?);
        let own_quota = match request.class {
            Class::Guaranteed => Some(request.reserved_memory()).filter(|bytes| *bytes > 0),
            Class::Burstable | Class::BestEffort => None,
        };
        let (mode, share) = match demand.compute {
            Compute::Lane(width) => (Mode::OwnLane(width), request.bandwidth),
            Compute::Time(share) if is_process(request, partition) => (Mode::Process, share),
            Compute::Time(share) => (Mode::TimeShare, share),
        };
        Some(Placement {
            mode,
            share,
            share_limit: least(request.bandwidth_limit, partition.spec.compute_limit),
            memory_hard: request.memory,
            memory_floor: request.reserved_memory(),
            memory_quota: least(request.memory_limit.or(own_quota), partition.spec.memory_limit),
            partition: partition.id,
        })
    }

    /// How many wait before this request; None where it does not wait.
    pub fn position(&self, id: TaskId) -> Option<usize> {
        let task = self.waiting(id)?;
        Some(self.queue.range(..key(&task.request, id)).count())
    }

    /// Requests that wait, in their order.
    pub fn queued(&self) -> impl Iterator<Item = TaskId> {
        self.queue.iter().map(|(_, id)| *id)
    }

    /// Why a request waits now; None where it does not.
    pub fn reason(&self, id: TaskId) -> Option<Shortage> {
        let request = &self.waiting(id)?.request;
        let partition = self.partition(request.partition)?;
        match self.judge(request, partition, key(request, id)) {
            Judgement::Waits(demand, lines) => self.explain(partition, &demand, lines, key(request, id)),
            Judgement::Blocked(shortage) | Judgement::Never(shortage) => Some(shortage),
            Judgement::Fits(_) => None,
        }
    }

    /// What is reserved, by partition; the device itself comes first.
    pub fn usage(&self) -> Vec<PartitionUsage> {
        self.all_partitions().map(|partition| partition.usage(&self.capacity)).collect()
    }

    /// Live lanes of the device, the common one included.
    pub fn lanes(&self) -> u32 {
        self.whole.lanes
    }

    /// Is nothing left in any line or list?
    #[cfg(test)]
    pub(super) fn is_clean(&self) -> bool {
        let lines = [&self.queue, &self.lanes_line, &self.isolation_line];
        let own =
            self.all_partitions().all(|p| p.deadlines.is_empty() && Lines::ALL.iter().all(|l| p.line(*l).is_empty()));
        own && self.tasks.is_empty() && self.whole.windows == 0 && lines.iter().all(|line| line.is_empty())
    }

    fn waiting(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(&id).filter(|task| matches!(task.state, TaskState::Waiting(_)))
    }

    fn partition(&self, id: PartitionId) -> Option<&Partition> {
        if id == PartitionId::DEFAULT { Some(&self.device) } else { self.partitions.get(&id) }
    }

    fn partition_mut(&mut self, id: PartitionId) -> &mut Partition {
        match self.partitions.get_mut(&id) {
            Some(partition) => partition,
            None => &mut self.device,
        }
    }

    fn all_partitions(&self) -> impl Iterator<Item = &Partition> {
        std::iter::once(&self.device).chain(self.partitions.values())
    }

    /// The partition whose common lane tasks of this one share.
    fn lane_of<'a>(&'a self, partition: &'a Partition) -> &'a Partition {
        if partition.has_sms() { partition } else { &self.device }
    }

    fn state<'a>(&'a self, partition: &'a Partition) -> State<'a> {
        State {
            device: &self.capacity,
            whole: self.whole,
            ledger: &partition.ledger,
            deadlines: &self.lane_of(partition).deadlines,
        }
    }

    fn checked(&self, request: &Request) -> Result<&Partition, RequestError> {
        request.validate()?;
        match self.partition(request.partition) {
            Some(partition) => Ok(partition),
            None => invalid(format!("there is no partition {}: it was removed or never made", request.partition.0)),
        }
    }

    /// The answer, and what becomes of the request.
    fn decide(&self, request: &Request, partition: &Partition, key: Key) -> (Decision, Option<TaskState>) {
        let (verdict, shortage, state) = match self.judge(request, partition, key) {
            Judgement::Fits(demand) => (Verdict::Admitted, None, Some(TaskState::Admitted(demand))),
            Judgement::Never(shortage) => (Verdict::Rejected, Some(shortage), None),
            Judgement::Blocked(shortage) => self.queue(request, partition, Some(shortage), Lines::NONE),
            Judgement::Waits(demand, lines) => {
                self.queue(request, partition, self.explain(partition, &demand, lines, key), lines)
            }
        };
        (Decision { verdict, shortage }, state)
    }

    /// A request that cannot be admitted now waits in these lines, where it may.
    fn queue(
        &self,
        request: &Request,
        partition: &Partition,
        shortage: Option<Shortage>,
        lines: Lines,
    ) -> (Verdict, Option<Shortage>, Option<TaskState>) {
        if request.on_full == OnFull::Reject {
            return (Verdict::Rejected, shortage, None);
        }
        let limit = partition.spec.queue_limit.unwrap_or(self.capacity.queue_limit);
        if partition.waiting < limit {
            return (Verdict::Queued, shortage, Some(TaskState::Waiting(lines)));
        }
        let full = Shortage {
            resource: Resource::Queue,
            partition: partition.name.clone(),
            asked: 1,
            used: partition.waiting as u64,
            kept: 0,
            capacity: limit as u64,
            behind: None,
        };
        (Verdict::Rejected, Some(full), None)
    }

    fn judge(&self, request: &Request, partition: &Partition, key: Key) -> Judgement {
        if let Some(resource) = refused_by(partition, request) {
            let partition = partition.name.clone();
            let shortage = Shortage { resource, partition, asked: 0, used: 0, kept: 0, capacity: 0, behind: None };
            return Judgement::Never(shortage);
        }
        // On an empty device there is at most the partition itself.
        let ledger = match partition.id {
            PartitionId::DEFAULT => Ledger::new(self.capacity.memory, Space::Sms(self.capacity.sms)),
            _ => Ledger::new(partition.ledger.memory, partition.ledger.space),
        };
        let is_part = partition.id != PartitionId::DEFAULT && partition.has_sms();
        let empty = State {
            device: &self.capacity,
            whole: Whole { lanes: 1 + u32::from(is_part), windows: u32::from(partition.demand.windows) },
            ledger: &ledger,
            deadlines: &Deadlines::default(),
        };
        let Wanted { first, instead } = wanted(request, &empty);
        if let Some(line) = empty.short(&first).each().next() {
            return Judgement::Never(shortage(&empty, partition, line, &first, None));
        }
        let ledger = partition.ledger.without_tasks();
        let idle = State { whole: self.without_tasks(), ledger: &ledger, ..empty };
        let lines = idle.short(&first);
        let may_share = || lines == Lines::LANES && instead.is_some_and(|demand| idle.short(&demand).is_empty());
        if let Some(line) = lines.each().next().filter(|_| !may_share()) {
            return Judgement::Blocked(shortage(&idle, partition, line, &first, None));
        }
        let state = self.state(partition);
        let asked = first.asked() | instead.map_or(Lines::NONE, |demand| demand.asked() & Lines::DEADLINE);
        let lines = state.short(&first) | self.taken_before(partition, asked, key);
        match instead {
            _ if lines.is_empty() => Judgement::Fits(first),
            Some(demand) if lines == Lines::LANES => {
                let lines = state.short(&demand) | self.taken_before(partition, demand.asked(), key);
                if lines.is_empty() { Judgement::Fits(demand) } else { Judgement::Waits(demand, lines) }
            }
            // Lanes alone never hold it up.
            Some(_) => Judgement::Waits(first, lines.without(Lines::LANES)),
            None => Judgement::Waits(first, lines),
        }
    }

    /// What partitions alone take of the device as a whole.
    fn without_tasks(&self) -> Whole {
        let mut whole = Whole { lanes: 1, windows: 0 };
        self.partitions.values().for_each(|partition| whole.take(&partition.demand));
        whole
    }

    /// Those of the lines in which somebody stands before the place `key`.
    fn taken_before(&self, partition: &Partition, asked: Lines, key: Key) -> Lines {
        if self.queue.is_empty() {
            return Lines::NONE;
        }
        asked
            .each()
            .filter(|line| self.line(partition, *line).first().is_some_and(|first| *first < key))
            .fold(Lines::NONE, |taken, line| taken | line)
    }

    fn line<'a>(&'a self, partition: &'a Partition, line: Lines) -> &'a BTreeSet<Key> {
        match line {
            Lines::LANES => &self.lanes_line,
            Lines::ISOLATION => &self.isolation_line,
            Lines::DEADLINE => self.lane_of(partition).line(line),
            _ => partition.line(line),
        }
    }

    fn line_mut(&mut self, partition: PartitionId, line: Lines) -> &mut BTreeSet<Key> {
        match line {
            Lines::LANES => &mut self.lanes_line,
            Lines::ISOLATION => &mut self.isolation_line,
            Lines::DEADLINE => self.lane_mut(partition).line_mut(line),
            _ => self.partition_mut(partition).line_mut(line),
        }
    }

    fn lane_mut(&mut self, partition: PartitionId) -> &mut Partition {
        match self.partitions.get_mut(&partition) {
            Some(partition) if partition.has_sms() => partition,
            _ => &mut self.device,
        }
    }

    /// The first inequality against a demand; where there is none, whom it waits for.
    fn explain(&self, partition: &Partition, demand: &Demand, lines: Lines, key: Key) -> Option<Shortage> {
        let state = self.state(partition);
        let short = lines & state.short(demand);
        let line = short.each().next().or_else(|| lines.each().next())?;
        let first = self.line(partition, line).first().filter(|first| short.is_empty() && **first < key);
        let of = if line == Lines::DEADLINE { self.lane_of(partition) } else { partition };
        Some(shortage(&state, of, line, demand, first.map(|(_, id)| *id)))
    }

    fn take(&mut self, request: &Request, id: TaskId, demand: &Demand) {
        let partition = self.partition_mut(request.partition);
        partition.ledger.take(demand);
        partition.tasks += 1;
        self.whole.take(demand);
        if let (Some(job), Compute::Time(_)) = (demand.job, demand.compute) {
            self.lane_mut(request.partition).deadlines.insert(job, id);
        }
    }

    fn give_back(&mut self, request: &Request, id: TaskId, demand: &Demand) {
        let partition = self.partition_mut(request.partition);
        partition.ledger.give_back(demand);
        partition.tasks -= 1;
        self.whole.give_back(demand);
        if let (Some(job), Compute::Time(_)) = (demand.job, demand.compute) {
            self.lane_mut(request.partition).deadlines.remove(job, id);
        }
    }

    fn wait(&mut self, request: &Request, id: TaskId, lines: Lines) {
        let key = key(request, id);
        self.queue.insert(key);
        self.partition_mut(request.partition).waiting += 1;
        for line in lines.each() {
            self.line_mut(request.partition, line).insert(key);
        }
    }

    fn stop_waiting(&mut self, request: &Request, id: TaskId, lines: Lines) {
        let key = key(request, id);
        self.queue.remove(&key);
        self.partition_mut(request.partition).waiting -= 1;
        for line in lines.each() {
            self.line_mut(request.partition, line).remove(&key);
        }
    }

    /// Admit those who wait and fit now, in their order, of the requests that `next` finds.
    fn admit(&mut self, next: fn(&Admission, Option<Key>) -> Option<Key>) -> Vec<TaskId> {
        let mut admitted = Vec::new();
        let mut done = None;
        while let Some(key) = next(self, done) {
            done = Some(key);
            let id = key.1;
            let Some(task) = self.tasks.get(&id) else { continue };
            let TaskState::Waiting(stands_in) = task.state else { continue };
            let request = task.request;
            let Some(partition) = self.partition(request.partition) else { continue };
            let judgement = self.judge(&request, partition, key);
            let is_first = |line| self.line(partition, line).first() == Some(&key);
            if !matches!(judgement, Judgement::Blocked(_)) && !stands_in.each().all(is_first) {
                continue;
            }
            let state = match judgement {
                Judgement::Fits(demand) => {
                    self.stop_waiting(&request, id, stands_in);
                    self.take(&request, id, &demand);
                    admitted.push(id);
                    TaskState::Admitted(demand)
                }
                // What it was short of once stays claimed: otherwise two resources could be taken away in turns.
                Judgement::Waits(_, lines) => {
                    for line in lines.each() {
                        self.line_mut(request.partition, line).insert(key);
                    }
                    TaskState::Waiting(stands_in | lines)
                }
                Judgement::Blocked(_) => {
                    for line in stands_in.each() {
                        self.line_mut(request.partition, line).remove(&key);
                    }
                    TaskState::Waiting(Lines::NONE)
                }
                Judgement::Never(_) => continue,
            };
            if let Some(task) = self.tasks.get_mut(&id) {
                task.state = state;
            }
        }
        admitted
    }

    /// The first request after `done` that heads a line.
    fn next_first(&self, done: Option<Key>) -> Option<Key> {
        if self.queue.is_empty() {
            return None;
        }
        let of_device = [&self.lanes_line, &self.isolation_line];
        let of_partitions = self.all_partitions().flat_map(|p| [&p.memory_line, &p.compute_line, &p.deadline_line]);
        of_device
            .into_iter()
            .chain(of_partitions)
            .filter_map(BTreeSet::first)
            .copied()
            .filter(|key| Some(*key) > done)
            .min()
    }
}

fn key(request: &Request, id: TaskId) -> Key {
    (Reverse(request.priority), id)
}

/// A rule of the partition against the request.
fn refused_by(partition: &Partition, request: &Request) -> Option<Resource> {
    let (lowest, highest) = partition.spec.priority_band;
    if !partition.spec.classes.contains(&request.class) {
        Some(Resource::Class(request.class))
    } else if !(lowest..=highest).contains(&request.priority) {
        Some(Resource::Priority { asked: request.priority, lowest, highest })
    } else {
        None
    }
}

/// What a request needs, given what an empty device could do for it.
fn wanted(request: &Request, empty: &State<'_>) -> Wanted {
    let job = match (request.relative_deadline(), request.cost_ns) {
        (Some(deadline), Some(cost)) => Some(Job::new(deadline, cost)),
        _ => None,
    };
    let memory = request.reserved_memory();
    let shared = Demand {
        memory,
        compute: Compute::Time(request.time_share()),
        windows: request.isolation == Isolation::Time,
        job,
    };
    let may_have_lane = request.class == Class::Guaranteed
        && request.bandwidth > Share::ZERO
        && matches!(request.isolation, Isolation::Auto | Isolation::Sm);
    if !may_have_lane {
        return Wanted { first: shared, instead: None };
    }
    let lane = Demand { memory, compute: Compute::Lane(empty.device.width(request.bandwidth)), windows: false, job };
    if request.isolation == Isolation::Sm {
        return Wanted { first: lane, instead: None };
    }
    if empty.short(&lane).has(Lines::COMPUTE | Lines::LANES | Lines::ISOLATION) {
        return Wanted { first: shared, instead: None };
    }
    let possible = empty.short(&shared).is_empty();
    Wanted { first: lane, instead: possible.then_some(shared) }
}

fn is_process(request: &Request, partition: &Partition) -> bool {
    request.isolation == Isolation::Process
        || request.isolation == Isolation::Auto && partition.spec.isolation == Isolation::Process
}

fn least<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

fn shortage(
    state: &State<'_>,
    partition: &Partition,
    line: Lines,
    demand: &Demand,
    behind: Option<TaskId>,
) -> Shortage {
    let (resource, [asked, used, kept, capacity]) = state.inequality(line, demand);
    Shortage { resource, partition: partition.name.clone(), asked, used, kept, capacity, behind }
}
