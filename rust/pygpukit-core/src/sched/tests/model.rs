//! Admission written down once more as plainly as possible: lists, and every sum computed from scratch.

use std::cmp::Reverse;

use crate::sched::*;

const WHOLE: u128 = 1_000_000;

/// A line is a resource and the partition it is of.
type Line = (&'static str, u32);

#[derive(Clone)]
pub struct Admitted {
    pub id: TaskId,
    pub request: Request,
    pub lane: bool,
}

struct Waiting {
    id: TaskId,
    request: Request,
    lines: Vec<Line>,
}

pub struct Model {
    device: Capacity,
    partitions: Vec<(u32, PartitionSpec)>,
    pub admitted: Vec<Admitted>,
    waiting: Vec<Waiting>,
    next_task: TaskId,
    next_partition: u32,
}

/// Verdict, name of the resource that was short, and whom the request waits behind.
pub type Answer = (Verdict, Option<(&'static str, Option<TaskId>)>);

/// Partitions and admitted tasks; the state of the device, or an empty one.
struct World<'a> {
    device: &'a Capacity,
    partitions: Vec<&'a (u32, PartitionSpec)>,
    admitted: Vec<&'a Admitted>,
}

fn ceil_ppm(part: u64, whole: u64) -> u128 {
    (u128::from(part) * WHOLE).div_ceil(u128::from(whole))
}

fn reserved(request: &Request) -> u128 {
    u128::from(request.memory.max(request.memory_soft))
}

fn time(request: &Request) -> u128 {
    let every = request.period_ns.or(request.deadline_ns);
    let needed = every.map_or(0, |every| ceil_ppm(request.cost_ns.unwrap(), every));
    needed.max(u128::from(request.bandwidth.ppm()))
}

fn job(request: &Request) -> Option<(u64, u64)> {
    request.cost_ns.map(|cost| (request.deadline_ns.or(request.period_ns).unwrap(), cost))
}

impl World<'_> {
    fn width(&self, share: Share) -> u128 {
        let step = u128::from(self.device.granule);
        (u128::from(share.ppm()) * u128::from(self.device.sms)).div_ceil(WHOLE * step) * step
    }

    fn spec(&self, id: u32) -> Option<&PartitionSpec> {
        self.partitions.iter().find(|(known, _)| *known == id).map(|(_, spec)| spec)
    }

    fn is_part(&self, id: u32) -> bool {
        self.spec(id).is_some_and(|spec| spec.isolation == Isolation::Sm)
    }

    fn lane_owner(&self, id: u32) -> u32 {
        if self.is_part(id) { id } else { 0 }
    }

    fn inside(&self, id: u32) -> impl Iterator<Item = &Admitted> {
        self.admitted.iter().copied().filter(move |task| task.request.partition.0 == id)
    }

    fn memory(&self, id: u32) -> u128 {
        match self.spec(id) {
            Some(spec) => u128::from(spec.memory),
            None => {
                let given: u128 = self.partitions.iter().map(|(_, spec)| u128::from(spec.memory)).sum();
                u128::from(self.device.memory) - given
            }
        }
    }

    /// SMs of a partition, or None where it has a share of time.
    fn sms(&self, id: u32) -> Option<u128> {
        match self.spec(id) {
            Some(spec) => (spec.isolation == Isolation::Sm).then(|| self.width(spec.compute)),
            None => {
                let parts = self.partitions.iter().filter(|(id, _)| self.is_part(*id));
                let given: u128 = parts.map(|(_, spec)| self.width(spec.compute)).sum();
                Some(u128::from(self.device.sms) - given)
            }
        }
    }

    /// Lanes and windows of the whole device.
    fn divided(&self) -> (usize, usize) {
        let parts = self.partitions.iter().filter(|(id, _)| self.is_part(*id)).count();
        let lanes = self.admitted.iter().filter(|task| task.lane).count();
        let windows = self.admitted.iter().filter(|task| task.request.isolation == Isolation::Time).count();
        let wide = self.partitions.iter().filter(|(_, spec)| spec.isolation == Isolation::Time).count();
        (1 + parts + lanes, windows + wide)
    }

    /// Can those who share keep `time` more when the lanes take `width` more?
    fn shares_fit(&self, id: u32, time_more: u128, width_more: u128) -> bool {
        let shared: u128 = self.inside(id).filter(|task| !task.lane).map(|task| time(&task.request)).sum();
        let Some(sms) = self.sms(id) else {
            let compute = self.spec(id).map_or(0, |spec| u128::from(spec.compute.ppm()));
            return width_more == 0 && shared + time_more <= compute;
        };
        let lanes: u128 = self.inside(id).filter(|t| t.lane).map(|t| self.width(t.request.bandwidth)).sum();
        let lent: u128 = if id == 0 {
            let sharing = self.partitions.iter().filter(|(id, _)| !self.is_part(*id));
            sharing.map(|(_, spec)| u128::from(spec.compute.ppm())).sum()
        } else {
            0
        };
        let least = if width_more > 0 { u128::from(self.device.min_common) } else { 0 };
        let Some(common) = sms.checked_sub(lanes + width_more) else { return false };
        let sold = WHOLE - u128::from(self.device.time_margin.ppm());
        common >= least && (shared + time_more + lent) * u128::from(self.device.sms) <= common * sold
    }

    fn deadlines_fit(&self, id: u32, new: (u64, u64), lane: bool) -> bool {
        let bound = u128::from(self.device.edf_bound.ppm());
        if lane {
            return ceil_ppm(new.1, new.0) <= bound;
        }
        let owner = self.lane_owner(id);
        let sharing = self.admitted.iter().filter(|t| !t.lane && self.lane_owner(t.request.partition.0) == owner);
        let mut jobs: Vec<(u64, u64)> = sharing.filter_map(|task| job(&task.request)).collect();
        jobs.push(new);
        jobs.iter().all(|(deadline, _)| {
            let before = jobs.iter().filter(|(d, _)| d <= deadline).map(|(d, c)| ceil_ppm(*c, *d)).sum::<u128>();
            let later = jobs.iter().filter(|(d, _)| d > deadline).map(|(_, c)| *c).max().unwrap_or(0);
            before + ceil_ppm(self.device.blocking_ns + later, *deadline) <= bound
        })
    }

    /// Every inequality that fails, in the order in which they are reported.
    fn short(&self, request: &Request, lane: bool) -> Vec<(Line, &'static str)> {
        let id = request.partition.0;
        let mut short = Vec::new();
        let used: u128 = self.inside(id).map(|task| reserved(&task.request)).sum();
        if reserved(request) > 0 && used + reserved(request) > self.memory(id) {
            short.push((("memory", id), "memory"));
        }
        let (lanes, windows) = self.divided();
        let whole = request.isolation == Isolation::Time;
        if (lane && windows > 0) || (whole && lanes > 1) {
            short.push((("isolation", 0), "isolation"));
        }
        if lane {
            if !self.shares_fit(id, 0, self.width(request.bandwidth)) {
                short.push((("compute", id), "SMs"));
            }
            let limit = if self.device.divisible { self.device.max_lanes as usize } else { 1 };
            if lanes + 1 > limit {
                short.push((("lanes", 0), "lanes"));
            }
        } else if time(request) > 0 && !self.shares_fit(id, time(request), 0) {
            short.push((("compute", id), "time"));
        }
        if job(request).is_some_and(|new| !self.deadlines_fit(id, new, lane)) {
            short.push((("deadline", self.lane_owner(id)), "deadlines"));
        }
        short
    }

    /// Every line a request needs something from, in the order in which they are reported.
    fn asked(&self, request: &Request, lane: bool, may_share: bool) -> Vec<(Line, &'static str)> {
        let id = request.partition.0;
        let deadline = (job(request).is_some() && (!lane || may_share), ("deadline", self.lane_owner(id)), "deadlines");
        let compute = if lane { "SMs" } else { "time" };
        let all = [
            (reserved(request) > 0, ("memory", id), "memory"),
            (lane || request.isolation == Isolation::Time, ("isolation", 0), "isolation"),
            (lane || time(request) > 0, ("compute", id), compute),
            (lane, ("lanes", 0), "lanes"),
            deadline,
        ];
        all.into_iter().filter(|(asked, ..)| *asked).map(|(_, line, name)| (line, name)).collect()
    }
}

enum Judged {
    Fits { lane: bool },
    Waits { lines: Vec<Line>, why: (&'static str, Option<TaskId>) },
    Never(&'static str),
}

impl Model {
    pub fn new(device: Capacity) -> Model {
        let (admitted, waiting) = (Vec::new(), Vec::new());
        Model { device, partitions: Vec::new(), admitted, waiting, next_task: 1, next_partition: 1 }
    }

    fn now(&self) -> World<'_> {
        World {
            device: &self.device,
            partitions: self.partitions.iter().collect(),
            admitted: self.admitted.iter().collect(),
        }
    }

    fn empty(&self, id: u32) -> World<'_> {
        let partitions = self.partitions.iter().filter(|(known, _)| *known == id).collect();
        World { device: &self.device, partitions, admitted: Vec::new() }
    }

    fn is_before(waiting: &Waiting, priority: i32, id: TaskId) -> bool {
        (Reverse(waiting.request.priority), waiting.id) < (Reverse(priority), id)
    }

    /// What is short, then what is claimed by somebody before: line, name, and by whom.
    fn held(
        &self,
        request: &Request,
        id: TaskId,
        lane: bool,
        may_share: bool,
    ) -> Vec<(Line, &'static str, Option<TaskId>)> {
        let now = self.now();
        let mut held: Vec<_> = now.short(request, lane).into_iter().map(|(line, name)| (line, name, None)).collect();
        let before: Vec<&Waiting> = self.waiting.iter().filter(|w| Model::is_before(w, request.priority, id)).collect();
        for (line, name) in now.asked(request, lane, may_share) {
            let mut claims = before.iter().filter(|w| w.lines.contains(&line));
            if let Some(first) = claims.next().filter(|_| !held.iter().any(|(known, ..)| *known == line)) {
                held.push((line, name, Some(first.id)));
            }
        }
        held
    }

    fn judge(&self, request: &Request, id: TaskId) -> Judged {
        if let Some((_, spec)) = self.partitions.iter().find(|(known, _)| *known == request.partition.0) {
            if !spec.classes.contains(&request.class) {
                return Judged::Never("class");
            }
            if request.priority < spec.priority_band.0 || request.priority > spec.priority_band.1 {
                return Judged::Never("priority");
            }
        }
        let empty = self.empty(request.partition.0);
        let lane_at_all = request.class == Class::Guaranteed && request.bandwidth > Share::ZERO;
        let hindered =
            empty.short(request, true).iter().any(|(line, _)| ["isolation", "compute", "lanes"].contains(&line.0));
        let lane =
            lane_at_all && (request.isolation == Isolation::Sm || (request.isolation == Isolation::Auto && !hindered));
        if let Some((_, name)) = empty.short(request, lane).first() {
            return Judged::Never(name);
        }
        let may_share = lane && request.isolation == Isolation::Auto && empty.short(request, false).is_empty();
        let lanes = |line: &Line| *line == ("lanes", 0);
        // With no task left there are the partitions still.
        let idle = World { admitted: Vec::new(), ..self.now() };
        let blocked = idle.short(request, lane);
        let shares = may_share && blocked.iter().all(|(line, _)| lanes(line)) && idle.short(request, false).is_empty();
        if let Some((_, name)) = blocked.first().filter(|_| !shares) {
            return Judged::Waits { lines: Vec::new(), why: (name, None) };
        }
        let mut held = self.held(request, id, lane, may_share);
        if held.is_empty() {
            return Judged::Fits { lane };
        }
        if may_share && held.iter().all(|(line, ..)| lanes(line)) {
            held = self.held(request, id, false, false);
            if held.is_empty() {
                return Judged::Fits { lane: false };
            }
        } else if may_share {
            held.retain(|(line, ..)| !lanes(line));
        }
        let (_, name, behind) = held[0];
        Judged::Waits { lines: held.into_iter().map(|(line, ..)| line).collect(), why: (name, behind) }
    }

    pub fn submit(&mut self, request: Request) -> Answer {
        let id = self.next_task;
        self.next_task += 1;
        match self.judge(&request, id) {
            Judged::Never(name) => (Verdict::Rejected, Some((name, None))),
            Judged::Fits { lane } => {
                self.admitted.push(Admitted { id, request, lane });
                (Verdict::Admitted, None)
            }
            Judged::Waits { why, .. } if request.on_full == OnFull::Reject => (Verdict::Rejected, Some(why)),
            Judged::Waits { lines, why } => {
                let spec = self.partitions.iter().find(|(known, _)| *known == request.partition.0);
                let limit = spec.and_then(|(_, spec)| spec.queue_limit).unwrap_or(self.device.queue_limit);
                if self.waiting.iter().filter(|w| w.request.partition == request.partition).count() >= limit {
                    return (Verdict::Rejected, Some(("queue", None)));
                }
                self.waiting.push(Waiting { id, request, lines });
                self.waiting.sort_by_key(|w| (Reverse(w.request.priority), w.id));
                (Verdict::Queued, Some(why))
            }
        }
    }

    pub fn release(&mut self, id: TaskId) -> Vec<TaskId> {
        let known = self.admitted.len() + self.waiting.len();
        self.admitted.retain(|task| task.id != id);
        self.waiting.retain(|task| task.id != id);
        if self.admitted.len() + self.waiting.len() < known { self.admit_waiting() } else { Vec::new() }
    }

    /// Everybody in order; who stands behind somebody else in a line is passed over.
    pub fn admit_waiting(&mut self) -> Vec<TaskId> {
        let mut newly = Vec::new();
        let mut at = 0;
        while at < self.waiting.len() {
            let Waiting { id, request, lines: stands_in } = &self.waiting[at];
            let (id, request) = (*id, *request);
            let judged = self.judge(&request, id);
            if let Judged::Waits { lines, .. } = &judged
                && lines.is_empty()
            {
                self.waiting[at].lines.clear();
                at += 1;
                continue;
            }
            if self.waiting[..at].iter().any(|before| before.lines.iter().any(|line| stands_in.contains(line))) {
                at += 1;
                continue;
            }
            match judged {
                Judged::Fits { lane } => {
                    self.waiting.remove(at);
                    self.admitted.push(Admitted { id, request, lane });
                    newly.push(id);
                }
                Judged::Waits { lines, .. } => {
                    let known = &mut self.waiting[at].lines;
                    known.extend(lines);
                    at += 1;
                }
                Judged::Never(name) => panic!("a waiting request became impossible: {name}"),
            }
        }
        newly
    }

    /// The name of the resource that refuses a partition.
    pub fn create_partition(&mut self, spec: PartitionSpec) -> Result<u32, &'static str> {
        // A partition takes from the device what a guaranteed task without a deadline would.
        let is_part = spec.isolation == Isolation::Sm;
        let isolation = if spec.isolation == Isolation::Time { Isolation::Time } else { Isolation::Auto };
        let as_task =
            Request { memory: spec.memory, bandwidth: spec.compute, isolation, ..Request::new(Class::Guaranteed) };
        if let Some((_, name)) = self.now().short(&as_task, is_part).first() {
            return Err(name);
        }
        let id = self.next_partition;
        self.next_partition += 1;
        self.partitions.push((id, spec));
        Ok(id)
    }

    /// None where tasks are in it.
    pub fn remove_partition(&mut self, id: u32) -> Option<Vec<TaskId>> {
        let inside = |request: &Request| request.partition.0 == id;
        if self.admitted.iter().any(|task| inside(&task.request)) || self.waiting.iter().any(|w| inside(&w.request)) {
            return None;
        }
        self.partitions.retain(|(known, _)| *known != id);
        Some(self.admit_waiting())
    }

    pub fn partitions(&self) -> Vec<u32> {
        self.partitions.iter().map(|(id, _)| *id).collect()
    }

    pub fn waiting(&self) -> Vec<TaskId> {
        self.waiting.iter().map(|w| w.id).collect()
    }

    pub fn reason(&self, id: TaskId) -> Option<(&'static str, Option<TaskId>)> {
        let waiting = self.waiting.iter().find(|w| w.id == id)?;
        match self.judge(&waiting.request, id) {
            Judged::Waits { why, .. } => Some(why),
            _ => None,
        }
    }

    /// Reserved memory, SMs in lanes, time that is shared, and lanes of a partition.
    pub fn sums(&self, id: u32) -> (u128, u128, u128, usize) {
        let now = self.now();
        let inside = |lane: bool| now.inside(id).filter(move |task| task.lane == lane);
        (
            now.inside(id).map(|task| reserved(&task.request)).sum(),
            inside(true).map(|task| now.width(task.request.bandwidth)).sum(),
            inside(false).map(|task| time(&task.request)).sum(),
            inside(true).count(),
        )
    }
}
