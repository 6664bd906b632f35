//! `submit` and its borrowed form `launch`: the only code that gives work to a device.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::command::{Access, ArrayArg, Command, CopyKind, HostFn, HostResult, Launch, LaunchAttributes, UseRef, Work};
use crate::device::{RawStream, SharedDevice};
use crate::early;
use crate::error::{Error, Result};
use crate::exec::ExecCtx;
use crate::kernel::Kernel;
use crate::library_call::LibraryCall;
use crate::memory::{Storage, registry};
use crate::residency;
use crate::runtime::{self, DeviceState};
use crate::sched::prompt;
use crate::slices;
use crate::stream::{Entered, Stream, is_inside};

/// The first word of the kinds of calls of libraries; other work has small numbers too.
const LIBRARY_KIND: u64 = 6;

/// Run a command on the context's stream, or record it when the context captures a graph.
#[inline]
pub fn submit(ctx: &ExecCtx, mut command: Command) -> Result<()> {
    ctx.state.check()?;
    if let Work::Library(call) = &command.work {
        call.prepare(&*ctx.state.device)?;
    }
    if let Some(recorder) = &ctx.recorder {
        return recorder.record(&ctx.stream, command);
    }
    if let Work::Kernel(launch) = &command.work {
        launch.kernel.allow_shared(launch.shared)?;
    }
    if !ctx.state.is_cuda() {
        if registry::is_tracking() {
            define(ctx, &mut command);
        }
        if let Work::Kernel(launch) = &mut command.work {
            name_counters(&mut launch.arrays, command.uses.iter().map(|used| &used.storage));
        }
    }
    for used in &command.uses {
        reach(ctx, &used.storage)?;
    }
    let kind = kind_of(ctx, &command);
    let uses = || command.uses.iter().map(|used| (&used.storage, used.access));
    let (held, entered) = enter_with(ctx, kind, || residency::hold(ctx, uses()))?;
    for used in &command.uses {
        await_birth(ctx, &used.storage)?;
    }
    if let Work::Kernel(launch) = &mut command.work
        && launch.attributes.programmatic
    {
        let uses = command.uses.iter().map(|used| (&*used.storage, used.access));
        launch.attributes.programmatic =
            early::asks(&launch.kernel, &launch.attributes) && ctx.stream.admits_early(uses);
    }
    ctx.state.device.enqueue(entered.raw(), &command.work)?;
    let seq = ctx.stream.note(&command, ctx.task.as_ref());
    leave(ctx, entered);
    for used in &command.uses {
        used.storage.note_use(&ctx.stream, seq);
    }
    held.submitted(ctx);
    drop(held);
    if runtime::sync_every_submission() {
        ctx.stream.synchronize(&mut runtime::wait_check)?;
    }
    Ok(())
}

/// Refuse arrays of a sandboxed task to everybody else.
#[inline]
pub(crate) fn reach(ctx: &ExecCtx, storage: &Storage) -> Result<()> {
    if storage.pool().lets_in(&ctx.pool) { Ok(()) } else { Err(out_of_reach(storage)) }
}

#[cold]
fn out_of_reach(storage: &Storage) -> Error {
    Error::Value(format!(
        "an array of {} bytes belongs to task '{}', which is sandboxed: only its own work may use its arrays until it \
         ends. Return it from the task, or submit the task with sandbox=False",
        storage.bytes(),
        storage.pool().name()
    ))
}

/// Enter the context's stream for work of this kind, with its memory on the device. Memory is not held while a turn is
/// waited for: others may need its place.
#[inline]
pub(crate) fn enter_with<'a, H>(
    ctx: &'a ExecCtx,
    kind: Option<u64>,
    hold: impl Fn() -> Result<H>,
) -> Result<(H, Entered<'a>)> {
    let Some(kind) = kind.filter(|_| !is_inside()) else {
        return Ok((hold()?, ctx.stream.enter()));
    };
    enter_leased(ctx, kind, hold)
}

fn enter_leased<'a, H>(ctx: &'a ExecCtx, kind: u64, hold: impl Fn() -> Result<H>) -> Result<(H, Entered<'a>)> {
    loop {
        let Some(lease) = ctx.current_lease() else { return Ok((hold()?, ctx.stream.enter())) };
        if !lease.is_prompt() {
            prompt::note_launch();
            if prompt::is_wanted() {
                runtime::blocking(&mut || {
                    prompt::make_way();
                    Ok(())
                })?;
            }
        }
        let held = hold()?;
        if let Some(entered) = lease.try_enter(&ctx.stream, kind) {
            return Ok((held, entered));
        }
        drop(held);
        ctx.state.check()?;
        match lease.await_turn(&ctx.stream, kind) {
            // The last task has ended, and with it the turns of work that belongs to none.
            Err(Error::TaskEnded(_)) if ctx.lease.is_none() => {}
            turn => turn?,
        }
    }
}

/// Submit work that uses no memory but what the caller holds, on a stream that was entered.
pub(crate) fn put_entered(ctx: &ExecCtx, entered: Entered<'_>, work: Work) -> Result<()> {
    let command = Command { work, uses: SmallVec::new(), cost_key: 0 };
    ctx.state.device.enqueue(entered.raw(), &command.work)?;
    ctx.stream.note(&command, ctx.task.as_ref());
    leave(ctx, entered);
    if runtime::sync_every_submission() {
        ctx.stream.synchronize(&mut runtime::wait_check)?;
    }
    Ok(())
}

/// The work is submitted.
#[inline]
fn leave(ctx: &ExecCtx, entered: Entered<'_>) {
    drop(entered);
    let lease = if ctx.is_leased() && ctx.state.device.runs_at_once() { ctx.current_lease() } else { None };
    if let Some(lease) = lease.filter(|_| !is_inside()) {
        lease.caught_up();
    }
}

/// Which work costs the same as this. None: it needs no part of the lane, or no lease limits it.
#[inline]
fn kind_of(ctx: &ExecCtx, command: &Command) -> Option<u64> {
    if !ctx.is_leased() {
        return None;
    }
    match &command.work {
        Work::Kernel(launch) => Some(kind_of_kernel(&launch.borrow())),
        // Copies between host and device are made by the copy engines.
        Work::Copy(copy) if ctx.state.is_cuda() && copy.kind != CopyKind::DeviceToDevice => None,
        Work::Host(_) if ctx.state.is_cuda() => None,
        Work::Copy(copy) => Some(mix(1, copy.bytes as u64)),
        Work::Fill(fill) => Some(mix(2, fill.count as u64 * u64::from(fill.width))),
        Work::Host(_) => Some(kind_of_host(command.uses.iter().map(|used| &used.storage))),
        Work::Library(call) => Some(mix(LIBRARY_KIND, call.cost_key())),
        // Graphs come with a kind of their own, whatever lane they were built for.
        Work::Graph(_) => None,
    }
}

/// Operators of the CPU device: which one cannot be told, but how much it reads and writes.
fn kind_of_host<'a>(storages: impl Iterator<Item = &'a Arc<Storage>>) -> u64 {
    storages.fold(3, |kind, storage| mix(kind, storage.bytes() as u64))
}

fn kind_of_kernel(launch: &Launch<'_>) -> u64 {
    let [gx, gy, gz] = launch.grid;
    let [bx, by, bz] = launch.block;
    let words = [gx, gy, gz, bx, by, bz, launch.shared];
    words.iter().fold(mix(5, launch.kernel.raw().0 as u64), |kind, word| mix(kind, u64::from(*word)))
}

/// One step of a hash of numbers.
#[inline]
pub(crate) fn mix(kind: u64, word: u64) -> u64 {
    (kind.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// What a command writes has a value from now on, as far as later commands see; a checked kernel says itself what it
/// writes, and is told its arrays.
#[cold]
fn define(ctx: &ExecCtx, command: &mut Command) {
    match &mut command.work {
        Work::Copy(copy) if copy.kind != CopyKind::DeviceToHost => registry::define(copy.dst, copy.bytes as u64),
        Work::Fill(fill) => registry::define(fill.dst, fill.count as u64 * u64::from(fill.width)),
        Work::Kernel(launch) if ctx.state.device.checks(launch.kernel.meta().check) => {
            if launch.arrays.is_empty() {
                launch.arrays = arguments(command.uses.iter().map(|used| &used.storage));
            }
        }
        Work::Copy(_) | Work::Graph(_) => {}
        Work::Kernel(launch) => {
            let any_written = launch.kernel.meta().access_from_types;
            define_written(command.uses.iter().map(|used| (&used.storage, used.access)), any_written);
        }
        Work::Host(_) | Work::Library(_) => {
            define_written(command.uses.iter().map(|used| (&used.storage, used.access)), false)
        }
    }
}

/// The arrays of a launch that names none. They may be freed, in stream order, before it runs.
fn arguments<'a>(storages: impl Iterator<Item = &'a Arc<Storage>>) -> Vec<ArrayArg> {
    let whole = |(index, storage): (usize, &Arc<Storage>)| ArrayArg {
        name: format!("bytes_of_argument_{index}").into(),
        address: storage.ptr(),
        size: storage.bytes() as u64,
        item: 1,
        shape: SmallVec::new(),
        memory: storage.extent(),
        ends_zero: false,
    };
    storages.enumerate().map(whole).collect()
}

/// What is read and written had a value before, or has none now. Only where the access was guessed from C types it may be
/// plain output, so it counts as written too (`any_written`): a report must not be wrong.
fn define_written<'a>(uses: impl Iterator<Item = (&'a Arc<Storage>, Access)>, any_written: bool) {
    for (storage, _) in uses.filter(|(_, a)| *a == Access::Write || any_written && a.is_written()) {
        registry::define(storage.ptr(), storage.bytes() as u64);
    }
}

/// Work that belongs to memory itself rather than to anybody. Returns its number on the stream, which has a marker there:
/// whoever waits for this does not wait for what follows.
pub(crate) fn put_on(stream: &Arc<Stream>, work: Work) -> Result<u64> {
    let command = Command { work, uses: SmallVec::new(), cost_key: 0 };
    let entered = stream.enter();
    stream.device().enqueue(entered.raw(), &command.work)?;
    let seq = stream.note(&command, None);
    drop(entered);
    stream.passed(seq)?;
    Ok(seq)
}

/// A block recycled on its home stream may still be in use there by earlier work; another stream waits for that.
#[inline]
pub(crate) fn await_birth(ctx: &ExecCtx, storage: &Storage) -> Result<()> {
    if storage.home().id() == ctx.stream.id() {
        return Ok(());
    }
    ctx.stream.wait_for(storage.home(), storage.born())
}

/// `submit` for a kernel, borrowing everything: the hot path of operators and JIT kernels.
#[inline]
pub fn launch(ctx: &ExecCtx, launch: &Launch<'_>, uses: &[UseRef<'_>]) -> Result<()> {
    ctx.state.check()?;
    if let Some(recorder) = &ctx.recorder {
        let uses = uses.iter().map(UseRef::to_owned).collect();
        return recorder.record(&ctx.stream, Command { work: Work::Kernel(launch.to_owned()), uses, cost_key: 0 });
    }
    launch.kernel.allow_shared(launch.shared)?;
    for used in uses {
        reach(ctx, used.storage)?;
    }
    let kind = if ctx.is_leased() { Some(kind_of_kernel(launch)) } else { None };
    if let Some(kind) = kind
        && launch.kernel.meta().sliceable
        && !is_inside()
        // A launch that is given up between two ranges would leave them nonzero.
        && !uses.iter().any(|used| used.storage.is_counters())
        && let Some(slices) = slices::plan(ctx, launch, kind)?
    {
        return slices.launch(ctx, launch, uses);
    }
    put_kernel(ctx, launch, uses, kind)
}

/// Launch a kernel whose shape was checked, as work of this kind.
#[inline]
pub(crate) fn put_kernel(ctx: &ExecCtx, launch: &Launch<'_>, uses: &[UseRef<'_>], kind: Option<u64>) -> Result<()> {
    let put = |stream: RawStream| {
        // After the waits for memory, behind which nothing is started early.
        let in_order;
        let mut launch = launch;
        if launch.attributes.programmatic
            && !(early::asks(launch.kernel, &launch.attributes)
                && ctx.stream.admits_early(uses.iter().map(|used| (&**used.storage, used.access))))
        {
            let attributes = LaunchAttributes { programmatic: false, ..launch.attributes };
            in_order = Launch { attributes, ..*launch };
            launch = &in_order;
        }
        let is_followed = || registry::is_tracking() || uses.iter().any(|used| used.storage.is_counters());
        if !ctx.state.is_cuda() && is_followed() {
            launch_tracked(ctx, stream, launch, uses)?;
        } else {
            ctx.state.device.launch(stream, launch)?;
        }
        Ok(ctx.stream.note_launch(launch, uses, ctx.task.as_ref()))
    };
    put_borrowed(ctx, uses, kind, put)
}

/// `submit` for a call of a library, borrowing everything: the hot path of operators that a library computes.
#[inline]
pub fn call_library(ctx: &ExecCtx, call: &dyn LibraryCall, uses: &[UseRef<'_>]) -> Result<()> {
    ctx.state.check()?;
    call.prepare(&*ctx.state.device)?;
    if let Some(recorder) = &ctx.recorder {
        let uses = uses.iter().map(UseRef::to_owned).collect();
        return recorder.record(&ctx.stream, Command { work: Work::Library(call.to_arc()), uses, cost_key: 0 });
    }
    for used in uses {
        reach(ctx, used.storage)?;
    }
    let kind = ctx.is_leased().then(|| mix(LIBRARY_KIND, call.cost_key()));
    let put = |stream| {
        if registry::is_tracking() && !ctx.state.is_cuda() {
            define_written(uses.iter().map(|used| (used.storage, used.access)), false);
        }
        ctx.state.device.call_library(stream, call)?;
        Ok(ctx.stream.note_library(call, uses, ctx.task.as_ref()))
    };
    put_borrowed(ctx, uses, kind, put)
}

/// Put borrowed work of this kind on the context's stream; `put` does and notes it there.
#[inline]
fn put_borrowed(
    ctx: &ExecCtx,
    uses: &[UseRef<'_>],
    kind: Option<u64>,
    put: impl FnOnce(RawStream) -> Result<u64>,
) -> Result<()> {
    let hold = || residency::hold(ctx, uses.iter().map(|used| (used.storage, used.access)));
    let (held, entered) = enter_with(ctx, kind, hold)?;
    for used in uses {
        await_birth(ctx, used.storage)?;
    }
    let seq = put(entered.raw())?;
    leave(ctx, entered);
    for used in uses {
        used.storage.note_use(&ctx.stream, seq);
    }
    held.submitted(ctx);
    drop(held);
    if runtime::sync_every_submission() {
        ctx.stream.synchronize(&mut runtime::wait_check)?;
    }
    Ok(())
}

/// `submit` for a host function of the CPU device, borrowing everything: the hot path of its operators. `now` runs before
/// this returns where the stream runs work at once and has none to do first. Otherwise, and in a capture, what `later`
/// makes is submitted or recorded instead.
pub fn run_inline(
    ctx: &ExecCtx,
    uses: &[UseRef<'_>],
    now: &mut dyn FnMut() -> HostResult,
    later: impl FnOnce() -> HostFn,
) -> Result<()> {
    ctx.state.check()?;
    if let Some(recorder) = &ctx.recorder {
        let uses = uses.iter().map(UseRef::to_owned).collect();
        return recorder.record(&ctx.stream, Command { work: Work::Host(later()), uses, cost_key: 0 });
    }
    let on_cpu = !ctx.state.is_cuda();
    if on_cpu && registry::is_tracking() {
        define_written(uses.iter().map(|used| (used.storage, used.access)), false);
    }
    for used in uses {
        reach(ctx, used.storage)?;
    }
    let limited = on_cpu && ctx.is_leased();
    let kind = limited.then(|| kind_of_host(uses.iter().map(|used| used.storage)));
    let hold = || residency::hold(ctx, uses.iter().map(|used| (used.storage, used.access)));
    let (held, entered) = enter_with(ctx, kind, hold)?;
    for used in uses {
        await_birth(ctx, used.storage)?;
    }
    if !ctx.state.device.run_now(entered.raw(), now)? {
        ctx.state.device.enqueue(entered.raw(), &Work::Host(later()))?;
    }
    let seq = ctx.stream.note_host(uses, ctx.task.as_ref());
    leave(ctx, entered);
    for used in uses {
        used.storage.note_use(&ctx.stream, seq);
    }
    held.submitted(ctx);
    drop(held);
    if runtime::sync_every_submission() {
        ctx.stream.synchronize(&mut runtime::wait_check)?;
    }
    Ok(())
}

/// Launch where the checker follows arrays.
#[cold]
fn launch_tracked(ctx: &ExecCtx, stream: RawStream, launch: &Launch<'_>, uses: &[UseRef<'_>]) -> Result<()> {
    let mut arrays = launch.arrays.to_vec();
    if !ctx.state.device.checks(launch.kernel.meta().check) {
        if registry::is_tracking() {
            let any_written = launch.kernel.meta().access_from_types;
            define_written(uses.iter().map(|used| (used.storage, used.access)), any_written);
        }
    } else if arrays.is_empty() {
        arrays = arguments(uses.iter().map(|used| used.storage));
    }
    name_counters(&mut arrays, uses.iter().map(|used| used.storage));
    ctx.state.device.launch(stream, &Launch { arrays: &arrays, ..*launch })
}

/// Say which arrays the kernel must leave zero.
fn name_counters<'a>(arrays: &mut Vec<ArrayArg>, storages: impl Iterator<Item = &'a Arc<Storage>>) {
    for storage in storages.filter(|storage| storage.is_counters()) {
        let whole = ArrayArg {
            name: "counters".into(),
            address: storage.ptr(),
            size: storage.bytes() as u64 / 4,
            item: 4,
            shape: SmallVec::new(),
            memory: storage.extent(),
            ends_zero: true,
        };
        match arrays.iter_mut().find(|array| array.address == whole.address) {
            // All of it, also where the argument is a part.
            Some(array) => *array = ArrayArg { name: array.name.clone(), ..whole },
            None => arrays.push(whole),
        }
    }
}

/// Launch a resident kernel on a stream of its own: no task waits for it or pays for it, and its memory is kept where it
/// is by whoever asks for this.
pub(crate) fn put_resident(device: &SharedDevice, stream: RawStream, launch: &Launch<'_>) -> Result<()> {
    debug_assert!(launch.attributes.resident);
    if runtime::exiting() {
        return Err(Error::ShuttingDown);
    }
    device.launch(stream, launch)
}

/// Seconds per launch, for benchmarks: of the bare driver call, the floor, or with our bookkeeping. Bursts of `burst`
/// launches that end with a wait; the median of `rounds`.
pub fn time_launches(ctx: &ExecCtx, work: &Launch<'_>, bare: bool, burst: u32, rounds: u32) -> Result<f64> {
    ctx.state.check()?;
    let mut times = Vec::with_capacity(rounds as usize);
    for _ in 0..rounds {
        let start = std::time::Instant::now();
        for _ in 0..burst {
            if bare {
                ctx.state.device.launch(ctx.stream.raw(), work)?;
            } else {
                launch(ctx, work, &[])?;
            }
        }
        ctx.stream.synchronize(&mut runtime::wait_check)?;
        times.push(start.elapsed().as_secs_f64() / f64::from(burst.max(1)));
    }
    times.sort_by(f64::total_cmp);
    Ok(times.get(times.len() / 2).copied().unwrap_or(0.0))
}

/// Nanoseconds from each of `count` launches, with random pauses of that mean before them, to what the kernel wrote to `told`: the
/// device's clock when its first block began, less `offset` to the machine's monotonic clock. For benchmarks.
///
/// # Safety
/// `told` points at eight bytes of page-locked memory that stays.
#[cfg(unix)]
pub unsafe fn time_first_blocks(
    ctx: &ExecCtx,
    work: &Launch<'_>,
    told: *const u64,
    offset: f64,
    pause_ns: f64,
    count: u32,
) -> Result<Vec<f64>> {
    let mut random = crate::random::Random::new(3);
    let now = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the time is written to a live local.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    };
    let mut times = Vec::with_capacity(count as usize);
    for _ in 0..count {
        // Of a Poisson process.
        let pause = now() - pause_ns * ((random.below(1 << 30) + 1) as f64 / f64::from(1 << 30)).ln();
        while now() < pause {
            std::hint::spin_loop();
        }
        let called = now();
        launch(ctx, work, &[])?;
        ctx.stream.synchronize(&mut runtime::wait_check)?;
        // SAFETY: as the caller promised; the kernel that wrote it has ended.
        times.push(unsafe { told.read_volatile() } as f64 - offset - called);
    }
    Ok(times)
}

/// The driver call alone, for benchmarks: one block on the default stream, without any bookkeeping.
pub fn bare_launch(state: &DeviceState, kernel: &Arc<Kernel>, args: &[u8]) -> Result<()> {
    state.check()?;
    let attributes = LaunchAttributes::default();
    let launch = Launch { kernel, grid: [1; 3], block: [256, 1, 1], shared: 0, attributes, args, arrays: &[] };
    state.device.launch(state.default_stream.raw(), &launch)
}

/// Most blocks of a kernel that run at the same time on the SMs of the context's stream.
pub fn resident_blocks(ctx: &ExecCtx, kernel: &Kernel, threads: u32, shared: u32) -> Result<u64> {
    kernel.allow_shared(shared)?;
    Ok(u64::from(kernel.occupancy(threads, shared)?) * u64::from(ctx.stream.lane().sm_count()))
}

/// Refuse a cooperative launch whose blocks cannot all run at the same time: they would wait for each other forever.
pub fn check_cooperative(ctx: &ExecCtx, kernel: &Kernel, grid: [u32; 3], block: [u32; 3], shared: u32) -> Result<()> {
    let props = ctx.state.device.props();
    if ctx.state.is_cuda() && !props.features.contains(&"cooperative") {
        return Err(Error::Device(format!("{} cannot launch kernels cooperatively", props.name)));
    }
    let blocks: u64 = grid.iter().map(|&n| u64::from(n)).product();
    let fit = resident_blocks(ctx, kernel, block.iter().product(), shared)?;
    if blocks <= fit {
        return Ok(());
    }
    Err(Error::Launch(format!(
        "kernel '{}': a cooperative launch runs all its blocks at the same time, but of the {blocks} blocks of grid {grid:?} \
         only {fit} fit on the {} SMs of this stream with blocks of {block:?}; use at most {fit} blocks \
         (kernel.resident_blocks(block)) and let each do more",
        kernel.name(),
        ctx.stream.lane().sm_count(),
    )))
}

/// Most blocks of a cluster on every device that has clusters.
const MAX_CLUSTER: u64 = 8;

/// Refuse clusters that the device does not have, or that the grid is not made of.
pub fn check_cluster(ctx: &ExecCtx, kernel: &Kernel, grid: [u32; 3], cluster: [u32; 3]) -> Result<()> {
    let props = ctx.state.device.props();
    let fail = |text: String| Err(Error::Launch(format!("kernel '{}': {text}", kernel.name())));
    if props.capability < (9, 0) {
        let (major, minor) = props.capability;
        return fail(format!(
            "clusters need compute capability 9.0; {} has {major}.{minor}, where the kernel must do without",
            props.name
        ));
    }
    let blocks: u64 = cluster.iter().map(|&n| u64::from(n)).product();
    if blocks > MAX_CLUSTER {
        return fail(format!("a cluster of {cluster:?} has {blocks} blocks; the most is {MAX_CLUSTER}"));
    }
    if (0..3).any(|i| !grid[i].is_multiple_of(cluster[i])) {
        return fail(format!("grid {grid:?} is not made of whole clusters of {cluster:?} blocks"));
    }
    Ok(())
}

/// Check a launch's shape against the device before the driver refuses it with a number.
pub fn check_dimensions(
    props: &crate::device::DeviceProps,
    name: &str,
    max_threads: u32,
    grid: [i64; 3],
    block: [i64; 3],
) -> Result<([u32; 3], [u32; 3])> {
    let fail = |text: String| Err(Error::Launch(format!("kernel '{name}': {text}")));
    let mut out = ([1u32; 3], [1u32; 3]);
    for i in 0..3 {
        if grid[i] < 1 || grid[i] > props.max_grid[i] as i64 {
            return fail(format!(
                "grid {grid:?} is out of range: dimension {i} must be between 1 and {}",
                props.max_grid[i]
            ));
        }
        if block[i] < 1 || block[i] > props.max_block[i] as i64 {
            return fail(format!(
                "block {block:?} is out of range: dimension {i} must be between 1 and {}",
                props.max_block[i]
            ));
        }
        out.0[i] = grid[i] as u32;
        out.1[i] = block[i] as u32;
    }
    let threads: i64 = block.iter().product();
    let limit = if max_threads == 0 { props.max_threads_per_block } else { max_threads };
    if threads > limit as i64 {
        return fail(format!("block {block:?} has {threads} threads; this kernel on this device allows {limit}"));
    }
    Ok(out)
}
