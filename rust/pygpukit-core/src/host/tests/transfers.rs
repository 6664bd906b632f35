//! Transfers: values, order, faults.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::Error;
use crate::command::HostFn;

const DEVICES: [Option<u64>; 3] = [None, Some(1), Some(2)];
const SMALL_OPTIONS: Options = Options { workers: 3, chunk: 64 << 10, slots: 4, past_caches: true };

fn small(deferred: Option<u64>) -> (&'static DeviceState, ExecCtx) {
    let state = open(deferred);
    engine(state).set_options(SMALL_OPTIONS);
    (state, ExecCtx::default_for(state))
}

fn memory(host: &[u8]) -> HostSide {
    HostSide::Memory(host.as_ptr().cast_mut())
}

/// Host work in stream order.
fn hold(ctx: &ExecCtx, work: impl Fn() + Send + Sync + 'static) {
    let work: HostFn = Arc::new(move || {
        work();
        Ok(())
    });
    submit(ctx, Command { work: Work::Host(work), uses: smallvec![], cost_key: 0 }).unwrap();
}

#[test]
fn copies_of_every_size_arrive_and_leave_the_source_free() {
    for deferred in DEVICES {
        let (_, ctx) = small(deferred);
        for bytes in [0, 1, 4095, SMALL, SMALL + 1, (64 << 10) * 9, 3 * MIB + 17] {
            let array = Array::new(&ctx, bytes);
            let mut host = pattern(bytes, bytes as u64);
            let wanted = host.clone();
            array.upload(&ctx, &host).unwrap();
            host.fill(0xaa);
            assert_eq!(array.download(&ctx).unwrap(), wanted, "{bytes} bytes, {deferred:?}");
        }
    }
}

#[test]
fn copies_keep_their_place_on_the_stream() {
    for deferred in DEVICES {
        let (state, ctx) = small(deferred);
        let bytes = MIB + 3;
        let array = Array::new(&ctx, bytes);
        let other = ctx.on_stream(&state.stream(0).unwrap());
        for round in 0..5u8 {
            array.fill(&ctx, 0xff);
            let host = pattern(bytes, round.into());
            array.upload(&ctx, &host).unwrap();
            assert_eq!(array.download(&ctx).unwrap(), host);
            array.fill(&ctx, round);
            // Another stream that waits for this one sees the fill, and the next upload waits for its read.
            other.stream.wait_for(&ctx.stream, ctx.stream.seq()).unwrap();
            assert!(array.download(&other).unwrap().iter().all(|b| *b == round));
        }
    }
}

#[test]
fn waiting_for_a_stream_covers_what_it_waits_for() {
    // The upload leaves nothing on the stream but a wait; whoever waits for the stream must wait for that too.
    for seed in 0..20 {
        let (state, ctx) = small(Some(seed));
        let (array, host) = (Array::new(&ctx, MIB), pattern(MIB, seed));
        array.upload(&ctx, &host).unwrap();
        let streams = [state.stream(0).unwrap(), state.stream(0).unwrap()];
        streams[0].wait_for(&ctx.stream, ctx.stream.seq()).unwrap();
        streams[1].wait_for(&streams[0], streams[0].seq()).unwrap();
        assert_eq!(array.download(&ctx.on_stream(&streams[1])).unwrap(), host);
    }
}

#[test]
fn memory_is_not_reused_while_a_copy_needs_it() {
    for deferred in DEVICES {
        let (state, ctx) = small(deferred);
        let host = pattern(2 * MIB, 5);
        let array = Array::new(&ctx, host.len());
        let transfer =
            engine(state).start(&ctx, array.request(&ctx, Direction::Upload, memory(&host), Priority::Normal), false);
        let transfer = transfer.unwrap();
        drop(array);
        let mut others = Vec::new();
        for _ in 0..4 {
            let other = Array::new(&ctx, host.len());
            other.fill(&ctx, 9);
            others.push(other);
        }
        assert!(transfer.wait(Until::Over, None, &mut never).unwrap());
        for other in &others {
            assert!(other.download(&ctx).unwrap().iter().all(|b| *b == 9));
        }
    }
}

#[test]
fn page_locked_memory_is_copied_without_slots() {
    for deferred in DEVICES {
        let (state, ctx) = small(deferred);
        let (from, to) = (state.pinned.take(2 * MIB).unwrap(), state.pinned.take(2 * MIB).unwrap());
        let wanted = pattern(2 * MIB, 3);
        // SAFETY: the block is ours and holds as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(wanted.as_ptr(), from.ptr(), wanted.len()) };
        let used = state.pinned.stats().used;
        let array = Array::new(&ctx, 2 * MIB);
        for (direction, block) in [(Direction::Upload, &from), (Direction::Download, &to)] {
            let request = array.request(&ctx, direction, HostSide::Memory(block.ptr()), Priority::High);
            let transfer = engine(state).start(&ctx, request, false).unwrap();
            assert!(transfer.wait(Until::Over, None, &mut never).unwrap());
            assert_eq!(transfer.bytes_done(), 2 * MIB);
            assert!(transfer.seconds() > 0.0);
        }
        assert_eq!(state.pinned.stats().used, used);
        // SAFETY: the copy into the block is over.
        assert!(unsafe { std::slice::from_raw_parts(to.ptr(), 2 * MIB) } == wanted);
    }
}

#[test]
fn without_page_locked_memory_copies_go_on() {
    for deferred in DEVICES {
        for limit in [0, 64 << 10, 200 << 10] {
            let (state, ctx) = small(deferred);
            state.pinned.set_limit(limit);
            for bytes in [100, SMALL, 2 * MIB + 1] {
                let (array, host) = (Array::new(&ctx, bytes), pattern(bytes, 8));
                array.upload(&ctx, &host).unwrap();
                assert_eq!(array.download(&ctx).unwrap(), host);
            }
            assert!(state.pinned.stats().used <= limit);
        }
    }
}

#[test]
fn cancelling_drops_the_rest_and_waiting_says_so() {
    // Deferred: nothing passes before somebody waits, so at most the slots are on their way.
    let (state, ctx) = small(Some(4));
    let host = pattern(8 * MIB, 1);
    let array = Array::new(&ctx, host.len());
    let request = array.request(&ctx, Direction::Upload, memory(&host), Priority::Normal);
    let transfer = engine(state).start(&ctx, request, false).unwrap();
    assert!(!transfer.wait(Until::Over, Some(Duration::ZERO), &mut never).unwrap());
    assert!(transfer.cancel());
    let error = transfer.wait(Until::Over, None, &mut never).unwrap_err();
    assert!(matches!(error, Error::Cancelled(_)), "{error}");
    assert!(transfer.is_over() && transfer.bytes_done() < host.len());
    // The same slots serve the next one.
    array.upload(&ctx, &host).unwrap();
    assert_eq!(array.download(&ctx).unwrap(), host);
    let request = array.request(&ctx, Direction::Upload, memory(&host), Priority::Normal);
    let whole = engine(state).start(&ctx, request, false).unwrap();
    whole.wait(Until::Over, None, &mut never).unwrap();
    assert!(!whole.cancel(), "too late");
    assert!(whole.wait(Until::Over, None, &mut never).unwrap());
}

#[test]
fn a_wait_that_is_given_up_leaves_nothing_behind() {
    for direction in [Direction::Upload, Direction::Download] {
        let (state, ctx) = small(Some(6));
        let host = pattern(4 * MIB, 2);
        let array = Array::new(&ctx, host.len());
        let mut checks = 0;
        let mut give_up = || {
            checks += 1;
            if checks > 1 { Err(Error::Host("Ctrl-C".into())) } else { Ok(()) }
        };
        hold(&ctx, || std::thread::sleep(Duration::from_millis(30)));
        let pair = array.pair(host.as_ptr(), Access::Write);
        // SAFETY: the vector is kept until the transfer is over.
        let result = unsafe {
            match direction {
                Direction::Upload => upload(&ctx, &pair, None, &mut give_up),
                Direction::Download => download(&ctx, &pair, None, &mut give_up),
            }
        };
        // A fast machine may be done before the second look.
        if let Err(error) = result {
            assert_eq!(error.to_string(), "Ctrl-C");
        }
        state.synchronize(&mut never).unwrap();
        array.upload(&ctx, &host).unwrap();
        assert_eq!(array.download(&ctx).unwrap(), host);
    }
}

#[test]
fn a_transfer_of_high_priority_overtakes() {
    let (state, ctx) = small(Some(2));
    let (big, little) = (pattern(6 * MIB, 1), pattern(128 << 10, 2));
    let arrays = [Array::new(&ctx, big.len()), Array::new(&ctx, little.len())];
    let start = |array: &Array, host: &[u8], priority| {
        engine(state).start(&ctx, array.request(&ctx, Direction::Upload, memory(host), priority), false).unwrap()
    };
    let slow = start(&arrays[0], &big, Priority::Normal);
    let fast = start(&arrays[1], &little, Priority::High);
    fast.wait(Until::Over, None, &mut never).unwrap();
    assert!(!slow.is_over() && slow.bytes_done() < big.len());
    slow.wait(Until::Over, None, &mut never).unwrap();
    assert_eq!(arrays[0].download(&ctx).unwrap(), big);
    assert_eq!(arrays[1].download(&ctx).unwrap(), little);
}

#[test]
fn what_keeps_the_memory_goes_when_it_is_not_needed() {
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (state, ctx) = small(None);
    let dropped = Arc::new(AtomicUsize::new(0));
    let host = pattern(MIB, 4);
    let array = Array::new(&ctx, host.len());
    let request = Request {
        keep: Some(Box::new(Counted(dropped.clone()))),
        ..array.request(&ctx, Direction::Upload, memory(&host), Priority::Normal)
    };
    let transfer = engine(state).start(&ctx, request, false).unwrap();
    transfer.wait(Until::Over, None, &mut never).unwrap();
    // Whoever saw its end drops it, after saying so.
    while dropped.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

#[test]
fn many_threads_copy_at_once() {
    for deferred in DEVICES {
        let (state, _) = small(deferred);
        std::thread::scope(|scope| {
            for thread in 0..5u64 {
                scope.spawn(move || {
                    let ctx = ExecCtx::default_for(state).on_stream(&state.stream(0).unwrap());
                    for round in 0..4 {
                        let bytes = [1000, SMALL + 5, MIB, 700 << 10][(thread as usize + round) % 4];
                        let (array, host) = (Array::new(&ctx, bytes), pattern(bytes, thread));
                        array.upload(&ctx, &host).unwrap();
                        assert_eq!(array.download(&ctx).unwrap(), host);
                    }
                });
            }
        });
    }
}

#[test]
fn many_small_copies_are_packed_and_neighbours_joined() {
    for deferred in DEVICES {
        let (_, ctx) = small(deferred);
        let whole = Array::new(&ctx, 1000);
        let (near, far) = (pattern(1000, 1), pattern(50, 2));
        let other = Array::new(&ctx, 50);
        let big = (Array::new(&ctx, MIB), pattern(MIB, 3));
        let mut pairs: Vec<(Pair, Option<Keep>)> = (0..10)
            .map(|i| {
                let mut pair = whole.pair(near[i * 100..].as_ptr(), Access::Write);
                (pair.device, pair.bytes) = (pair.device + i as u64 * 100, 100);
                (pair, None)
            })
            .collect();
        pairs.push((other.pair(far.as_ptr(), Access::Write), None));
        pairs.push((big.0.pair(big.1.as_ptr(), Access::Write), None));
        pairs.push((other.pair(far.as_ptr(), Access::Write), None));
        let before = ctx.stream.seq();
        // SAFETY: the vectors outlive the call.
        unsafe { upload_many(&ctx, &mut pairs, &mut never).unwrap() };
        assert!(ctx.stream.seq() - before <= 4, "ten neighbours are one copy");
        assert_eq!(whole.download(&ctx).unwrap(), near);
        assert_eq!(other.download(&ctx).unwrap(), far);
        assert_eq!(big.0.download(&ctx).unwrap(), big.1);
    }
}

fn file_of(name: &str, bytes: &[u8]) -> (std::path::PathBuf, std::fs::File) {
    let path = std::env::temp_dir().join(format!("pygpukit-test-{}-{name}", std::process::id()));
    std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    (path, file)
}

fn load(ctx: &ExecCtx, array: &Array, source: FileSource) -> crate::Result<bool> {
    let request = array.request(ctx, Direction::Upload, HostSide::File(source), Priority::Normal);
    engine(ctx.state).start(ctx, request, false)?.wait(Until::Over, None, &mut never)
}

#[test]
fn files_are_loaded_from_any_offset() {
    let content = pattern(MIB + 777, 9);
    let (path, file) = file_of("offsets", &content);
    for deferred in DEVICES {
        let (_, ctx) = small(deferred);
        for (offset, bytes) in [(0, content.len()), (1, 5), (4096, 64 << 10), (65_537, 900_000), (MIB, 777), (3, 0)] {
            let array = Array::new(&ctx, bytes);
            let source = FileSource::new(file.try_clone().unwrap(), "offsets", offset as u64, bytes).unwrap();
            load(&ctx, &array, source).unwrap();
            assert_eq!(array.download(&ctx).unwrap(), content[offset..offset + bytes]);
        }
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_file_that_is_or_becomes_too_short_is_an_error() {
    let content = pattern(MIB, 9);
    let (path, file) = file_of("shrinks", &content);
    let (_, ctx) = small(Some(1));
    let open = |offset, bytes| FileSource::new(file.try_clone().unwrap(), "shrinks", offset, bytes);
    for (offset, bytes) in [(1, MIB), (2 << 40, 1), (u64::MAX, 2)] {
        let error = open(offset, bytes).err().unwrap().to_string();
        assert!(error.contains("'shrinks' is too short") && error.contains("1048576 bytes"), "{error}");
    }
    let source = open(0, MIB).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(300_000).unwrap();
    let array = Array::new(&ctx, MIB);
    let error = load(&ctx, &array, source).unwrap_err().to_string();
    assert!(error.contains("became shorter") && error.contains("300000"), "{error}");
    // The slots are free again.
    let host = pattern(MIB, 1);
    array.upload(&ctx, &host).unwrap();
    assert_eq!(array.download(&ctx).unwrap(), host);
    std::fs::remove_file(path).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Uploads, fills and downloads of several arrays on several streams, beside a model of what they hold.
    #[test]
    fn arrays_hold_what_was_last_written(
        seed: u64,
        slots in 1usize..5,
        actions in prop::collection::vec((0usize..3, 0usize..3, 0u8..4), 1..40),
    ) {
        let state = open(Some(seed));
        engine(state).set_options(Options { slots, ..SMALL_OPTIONS });
        let root = ExecCtx::default_for(state);
        let streams: Vec<ExecCtx> = (0..3).map(|_| root.on_stream(&state.stream(0).unwrap())).collect();
        let sizes = [1000, SMALL + 1, 600 << 10];
        let arrays: Vec<Array> = sizes.iter().map(|bytes| Array::new(&root, *bytes)).collect();
        let mut model: Vec<Vec<u8>> = Vec::new();
        for array in &arrays {
            array.fill(&root, 0);
            model.push(vec![0; array.bytes]);
        }
        let mut last = root.clone();
        for (i, (which, stream, action)) in actions.into_iter().enumerate() {
            let (array, ctx) = (&arrays[which], &streams[stream]);
            ctx.stream.wait_for(&last.stream, last.stream.seq()).unwrap();
            match action {
                0 | 1 => {
                    model[which] = pattern(array.bytes, i as u64);
                    array.upload(ctx, &model[which]).unwrap();
                }
                2 => {
                    model[which].fill(i as u8);
                    array.fill(ctx, i as u8);
                }
                _ => prop_assert!(array.download(ctx).unwrap() == model[which]),
            }
            last = ctx.clone();
        }
        for (array, wanted) in arrays.iter().zip(&model) {
            prop_assert!(&array.download(&last).unwrap() == wanted);
        }
    }
}
