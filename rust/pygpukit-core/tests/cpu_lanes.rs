//! Lanes of the CPU device: groups of one SM, and kernels on as many worker threads as their lane has SMs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pygpukit_core::Error;
use pygpukit_core::command::{KernelLaunch, LaunchAttributes, Work};
use pygpukit_core::cpu::{CpuConfig, CpuDevice};
use pygpukit_core::device::{Device, RawLane, RawStream, SharedDevice};
use pygpukit_core::kernel::{Kernel, KernelMeta, Library};

/// Element i becomes the sum of 0..=i; the first word behind them, the number of SMs.
const SUM: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry sum(.param .u64 p0, .param .u32 p1) {
    .reg .pred %p<3>;
    .reg .b32 %r<10>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [p0];
    ld.param.u32 %r1, [p1];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.gt.s32 %p1, %r5, %r1;
    @%p1 bra DONE;
    mov.u32 %r6, %nsmid;
    setp.eq.s32 %p1, %r5, %r1;
    @%p1 bra STORE;
    mov.u32 %r6, 0;
    mov.u32 %r7, 0;
LOOP:
    add.s32 %r6, %r6, %r7;
    add.s32 %r7, %r7, 1;
    setp.le.s32 %p2, %r7, %r5;
    @%p2 bra LOOP;
STORE:
    mul.wide.s32 %rd2, %r5, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r6;
DONE:
    ret;
}
";

/// Waits until the host sets a flag.
const SPIN: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry spin(.param .u64 p0) {
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [p0];
LOOP:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra LOOP;
    ret;
}
";

fn device(sm_count: u32, deferred: Option<u64>) -> Arc<CpuDevice> {
    let total_memory = Some(64 << 20);
    CpuDevice::new(CpuConfig { total_memory, deferred, sm_count: Some(sm_count), ..CpuConfig::default() })
}

fn launch(device: &Arc<CpuDevice>, text: &str, entry: &str, blocks: u32, args: &[u8]) -> Work {
    let shared: SharedDevice = device.clone();
    let library = Library::load(&shared, text.as_bytes()).unwrap();
    Work::Kernel(KernelLaunch {
        kernel: Kernel::new(&library, entry, entry, KernelMeta::default()).unwrap(),
        grid: [blocks, 1, 1],
        block: [64, 1, 1],
        shared: 0,
        attributes: LaunchAttributes::default(),
        args: args.into(),
        arrays: Vec::new(),
    })
}

fn wait(device: &CpuDevice, stream: RawStream) {
    while !device.stream_query(stream).unwrap() {
        device.poll().unwrap();
        std::thread::yield_now();
    }
}

/// What the kernel gives on a stream: 300 sums and the number of SMs it saw.
fn sums(device: &Arc<CpuDevice>, stream: RawStream) -> (Vec<u32>, u32) {
    let address = device.plain_alloc(4 * 301).unwrap();
    let args = [&address.to_le_bytes()[..], &300u32.to_le_bytes()].concat();
    device.enqueue(stream, &launch(device, SUM, "sum", 5, &args)).unwrap();
    wait(device, stream);
    // SAFETY: the device's memory is host memory, and the kernel has ended.
    let mut out = unsafe { std::slice::from_raw_parts(address as *const u32, 301) }.to_vec();
    device.plain_free(address).unwrap();
    let sms = out.pop().unwrap();
    (out, sms)
}

#[test]
fn every_sm_is_a_group_and_one_alone_is_not_divided() {
    let four = device(4, None);
    assert_eq!(four.props().sm_count, 4);
    for fine in [false, true] {
        assert_eq!(four.division(fine).unwrap().groups, [1; 4]);
    }
    assert!(four.props().features.contains(&"lanes"));
    for sm_count in [0, 1] {
        let one = device(sm_count, None);
        assert_eq!(one.props().sm_count, 1);
        assert!(one.division(false).unwrap().groups.is_empty() && !one.props().features.contains(&"lanes"));
        let error = one.lane_create(false, &[0]).unwrap_err();
        assert!(matches!(error, Error::Device(_)) && error.to_string().contains("cannot be divided"), "{error}");
    }
    assert_eq!(device(u32::MAX, None).props().sm_count, 1024);
}

#[test]
fn groups_that_cannot_make_a_lane_are_refused() {
    let device = device(4, None);
    for (groups, part) in [(&[][..], "at least one"), (&[4], "group 4"), (&[usize::MAX], "group"), (&[1, 1], "twice")] {
        let error = device.lane_create(false, groups).unwrap_err();
        assert!(matches!(error, Error::Value(_)) && error.to_string().contains(part), "{error}");
    }
    let lane = device.lane_create(true, &[3, 0]).unwrap();
    // Groups may be in several lanes.
    device.lane_create(true, &[0]).unwrap();
    device.lane_destroy(lane);
    device.lane_destroy(lane);
    for gone in [lane, RawLane(77)] {
        let error = device.lane_stream(gone, 0).unwrap_err();
        assert!(error.to_string().contains("unknown or was destroyed"), "{error}");
        assert!(device.graph_build(&[], Some(gone)).is_err());
    }
}

#[test]
fn a_kernel_gives_the_same_in_every_lane() {
    let want: Vec<u32> = (0..300).map(|i| i * (i + 1) / 2).collect();
    for deferred in [None, Some(5)] {
        let device = device(4, deferred);
        let plain = device.stream_create(0).unwrap();
        assert_eq!(sums(&device, plain), (want.clone(), 4));
        for groups in [&[2][..], &[0, 3], &[0, 1, 2, 3]] {
            let lane = device.lane_create(false, groups).unwrap();
            let stream = device.lane_stream(lane, 0).unwrap();
            assert_eq!(sums(&device, stream), (want.clone(), groups.len() as u32));
        }
    }
}

/// Threads of this process that run kernels; the name is cut by the system.
#[cfg(target_os = "linux")]
fn kernel_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("pygpukit-emulat") || name.starts_with("pygpukit-kernel")).count()
}

/// The other tests here start threads of this name too, so this one runs its kernels in a process of its own.
#[cfg(target_os = "linux")]
#[test]
fn a_kernel_runs_on_as_many_threads_as_its_lane_has_sms() {
    const INSIDE: &str = "PYGPUKIT_TEST_LANE_THREADS";
    if std::env::var_os(INSIDE).is_none() {
        let program = std::env::current_exe().unwrap();
        let name = "a_kernel_runs_on_as_many_threads_as_its_lane_has_sms";
        let out = std::process::Command::new(program).args(["--exact", name]).env(INSIDE, "1").output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
        return;
    }
    let device = device(6, None);
    let flag = device.plain_alloc(4).unwrap();
    // SAFETY: the device's memory is host memory, and only the kernels read it beside.
    let word = unsafe { &*(flag as *const AtomicU32) };
    let mut streams: Vec<(usize, RawStream)> = [&[1][..], &[0, 2, 4]]
        .iter()
        .map(|groups| (groups.len(), device.lane_stream(device.lane_create(false, groups).unwrap(), 0).unwrap()))
        .collect();
    streams.push((6, device.stream_create(0).unwrap()));
    for (sms, stream) in streams {
        word.store(0, Ordering::SeqCst);
        // Returns when its patience is over: by then a thread works in the caller's place.
        device.enqueue(stream, &launch(&device, SPIN, "spin", 16, &flag.to_le_bytes())).unwrap();
        let mut most = 0;
        for _ in 0..10_000 {
            most = most.max(kernel_threads());
            if most >= sms {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((most, kernel_threads()), (sms, sms));
        word.store(1, Ordering::SeqCst);
        wait(&device, stream);
        while kernel_threads() > 0 {
            std::thread::yield_now();
        }
    }
}
