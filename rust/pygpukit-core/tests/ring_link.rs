//! The host's end of a ring against a device's side in plain memory.

#[path = "ring/calls.rs"]
mod calls;
mod ring;

#[cfg(unix)]
use std::io::Read;
#[cfg(unix)]
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::Duration;

use pygpukit_core::error::{Error, Result};
use pygpukit_core::ring::link::Link;
use pygpukit_core::ring::mapped::{CALL, HOST, Header, Message};
use pygpukit_core::ring::orders::monotonic_ns;
use pygpukit_core::ring::park::set_patience;
use pygpukit_core::ring::peer::{Full, Sent};
use pygpukit_core::sync::{Park, SyncKind, may_sync};
use ring::*;

const LONG: Duration = Duration::from_secs(30);

/// Calls that wait for the whole device park every link of the process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn ok() -> Result<()> {
    Ok(())
}

fn header(actor: usize, id: u64, flags: u16) -> Header {
    Header { kind: 7, id, flags, source: HOST, destination: actor as u32, ..Header::default() }
}

fn send(link: &Link, actor: usize, id: u64, flags: u16, what: u8) -> Sent {
    let payload = [what, id as u8, 0, 0, 0, 0, 0, 0];
    link.send(actor, 1, Some(LONG), &mut ok, |_| (header(actor, id, flags), &payload)).unwrap().1
}

fn call(link: &Link, actor: usize, id: u64, what: u8) -> Result<(Sent, Option<Message>)> {
    let payload = [what, id as u8, 0, 0, 0, 0, 0, 0];
    link.begin(actor, header(actor, id, CALL), &payload)?.finish(Some(LONG), &mut ok)
}

fn until(mut there: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !there() {
        assert!(start.elapsed() < LONG, "it did not happen");
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn close(link: &Arc<Link>) {
    assert!(link.down(LONG));
    link.stop();
}

#[test]
fn what_comes_back_goes_to_those_it_is_for() {
    let _alone = alone();
    let (link, fake) = pair(2, 4, Full::Block);
    link.up().unwrap();
    let (sent, reply) = call(&link, 1, 10, ANSWERED).unwrap();
    let reply = reply.unwrap();
    assert_eq!((sent, reply.header.correlation, reply.header.source), (Sent::Accepted, 10, 1));
    assert_eq!(fake.taken(1), 1);
    let (sent, letter) = call(&link, 0, 11, BURIED).unwrap();
    assert_eq!((sent, letter.unwrap().header.reason), (Sent::Died, 6));
    assert_eq!((link.take_letters().len(), link.letter_count()), (0, 0));
    // Nobody waits for these in a thread.
    assert_eq!(send(&link, 0, 12, CALL, ANSWERED), Sent::Accepted);
    assert_eq!(send(&link, 0, 13, CALL, BURIED), Sent::Accepted);
    assert_eq!(send(&link, 0, 14, 0, TOLD), Sent::Accepted);
    assert_eq!(link.receive(0, Some(LONG), &mut ok).unwrap().unwrap().header.correlation, 14);
    assert_eq!(link.take_answers().iter().map(|answer| answer.header.correlation).collect::<Vec<_>>(), [12]);
    assert_eq!(link.take_letters().iter().map(|letter| letter.header.id).collect::<Vec<_>>(), [13]);
    assert_eq!((link.letter_count(), fake.taken(0)), (1, 2));
    assert!(link.take_answers().is_empty() && link.try_receive(0).unwrap().is_none());
    close(&link);
}

#[test]
fn answers_that_more_follow_are_counted_when_they_were_read() {
    let _alone = alone();
    let (link, fake) = pair(1, 4, Full::Block);
    link.up().unwrap();
    let mut answers = Vec::new();
    for (id, what) in [(1, BEGUN), (2, ANSWERED), (3, BEGUN)] {
        assert_eq!(send(&link, 0, id, CALL, what), Sent::Accepted);
    }
    until(|| {
        link.try_receive(0).unwrap();
        answers.extend(link.take_answers());
        answers.len() == 3
    });
    assert_eq!(fake.taken(0), 1);
    link.took(0, 2).unwrap();
    assert_eq!(fake.taken(0), 3);
    // Of a call the first answer is all.
    assert_eq!(call(&link, 0, 4, BEGUN).unwrap().0, Sent::Accepted);
    assert_eq!(fake.taken(0), 4);
    assert!(link.took(1, 1).is_err());
    close(&link);
}

#[test]
fn a_wait_that_never_sleeps_looks_for_signals_too() {
    let _alone = alone();
    let (link, _fake) = pair(1, 1, Full::Block);
    link.up().unwrap();
    for patience in [Some(Duration::MAX), None, Some(Duration::ZERO)] {
        assert_eq!(set_patience(patience), None);
        let mut checks = 0;
        let mut thrice = || {
            checks += 1;
            if checks < 3 { Ok(()) } else { Err(Error::Value("Ctrl-C".into())) }
        };
        assert!(matches!(link.receive(0, Some(LONG), &mut thrice), Err(Error::Value(_))));
        assert_eq!((checks, set_patience(None)), (3, patience));
    }
    close(&link);
}

#[test]
fn actors_are_added_while_messages_go_to_and_fro() {
    let _alone = alone();
    let (link, fake) = pair(1, 4, Full::Block);
    link.up().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..200).for_each(|id| assert_eq!(call(&link, 0, id, ANSWERED).unwrap().0, Sent::Accepted)));
        for actor in 1..4 {
            fake.add(&link, actor, 4, Full::Block);
            assert_eq!(call(&link, actor, 1000 + actor as u64, ANSWERED).unwrap().0, Sent::Accepted);
        }
    });
    assert!(matches!(call(&link, 4, 1, ANSWERED), Err(Error::Value(_))));
    close(&link);
}

#[cfg(unix)]
#[test]
fn a_descriptor_tells_of_news_once_until_somebody_looks() {
    let _alone = alone();
    let (link, _fake) = pair(2, 4, Full::Block);
    let (mut reader, writer) = std::io::pipe().unwrap();
    link.set_signal(writer.as_raw_fd());
    link.up().unwrap();
    link.expect(2);
    let mut bytes = [0; 64];
    for id in [20, 21] {
        send(&link, 0, id, CALL, ANSWERED);
    }
    let mut answers = Vec::new();
    assert_eq!(reader.read(&mut bytes).unwrap(), 8);
    assert_eq!(bytes[..8], 1u64.to_le_bytes());
    link.signalled();
    answers.extend(link.take_answers());
    while answers.len() < 2 {
        assert_eq!(reader.read(&mut bytes).unwrap(), 8);
        link.signalled();
        answers.extend(link.take_answers());
    }
    link.expect(-2);
    send(&link, 0, 22, 0, BURIED);
    // The last answer may have been taken before its signal was read.
    while link.take_letters().is_empty() {
        assert_eq!(reader.read(&mut bytes).unwrap(), 8);
        link.signalled();
    }
    // Output is news of those that are watched.
    send(&link, 0, 23, 0, TOLD);
    until(|| link.peer(0).unwrap().depth() == 1);
    link.watch(1, true).unwrap();
    send(&link, 1, 24, 0, TOLD);
    while link.try_receive(1).unwrap().is_none() {
        assert_eq!(reader.read(&mut bytes).unwrap(), 8);
        link.signalled();
    }
    link.watch(1, false).unwrap();
    assert!(link.watch(1, false).is_err());
    // Nobody looks: however much comes, eight bytes.
    link.signalled();
    for id in 30..34 {
        send(&link, 0, id, CALL, ANSWERED);
    }
    until(|| link.take_answers().iter().any(|answer| answer.header.correlation == 33));
    close(&link);
    link.set_signal(-1);
    drop(writer);
    let mut left = Vec::new();
    reader.read_to_end(&mut left).unwrap();
    assert!(left.len() <= 16, "{} bytes", left.len());
}

#[test]
fn the_oldest_make_room_when_they_are_asked_to() {
    let _alone = alone();
    let (link, fake) = pair(1, 3, Full::DropOldest);
    fake.idle.store(true, Ordering::Release);
    link.up().unwrap();
    let payload = [ANSWERED; 8];
    let sent = link.send(0, 5, None, &mut ok, |index| (header(0, index, 0), &payload)).unwrap();
    assert_eq!(sent, (5, Sent::Accepted));
    assert_eq!(*fake.trims.lock().unwrap(), [(0, 2)]);
    // More than fit are asked for in parts, and each message once: a later order asks for more.
    fake.trims.lock().unwrap().clear();
    fake.idle.store(false, Ordering::Release);
    let sent = link.send(0, 40, Some(LONG), &mut ok, |index| (header(0, index, 0), &payload)).unwrap();
    assert_eq!(sent, (40, Sent::Accepted));
    let trims = fake.trims.lock().unwrap().clone();
    assert!(trims.windows(2).all(|pair| pair[0].1 < pair[1].1), "{trims:?}");
    assert!(trims.iter().all(|trim| trim.1 <= 42), "{trims:?}");
    close(&link);
}

#[test]
fn a_full_mailbox_refuses_or_lets_wait() {
    let _alone = alone();
    for (full, fate) in [(Full::Reject, Sent::Rejected), (Full::DropNew, Sent::Dropped), (Full::Block, Sent::TimedOut)]
    {
        let (link, _fake) = pair(1, 3, full);
        let timeout = Some(Duration::from_millis(1));
        let sent = link.send(0, 5, timeout, &mut ok, |index| (header(0, index, 0), &[0; 8])).unwrap();
        assert_eq!(sent, (3, fate));
        assert_eq!(link.peer(0).unwrap().counts().1, if full == Full::Block { 0 } else { 2 });
    }
}

#[test]
fn whoever_waits_for_room_is_not_let_in_once_it_is_closed() {
    let _alone = alone();
    // The kernel is not there: nobody makes room.
    let (link, _fake) = pair(1, 4, Full::Block);
    let send =
        |link: &Link, count| link.send(0, count, Some(LONG), &mut ok, |index| (header(0, index, 0), &[0; 8])).unwrap();
    assert_eq!(send(&link, 4), (4, Sent::Accepted));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| send(&link, 3));
        std::thread::sleep(Duration::from_millis(5));
        link.peer(0).unwrap().close(None);
        assert_eq!(waits.join().unwrap(), (0, Sent::Closed));
    });
    assert_eq!(send(&link, 1), (0, Sent::Closed));
    // One that was promised more takes that.
    let (link, _fake) = pair(1, 4, Full::Reject);
    link.peer(0).unwrap().close(Some(3));
    assert_eq!(send(&link, 5), (3, Sent::Closed));
    link.peer(0).unwrap().close(Some(9));
    assert_eq!(send(&link, 1), (0, Sent::Closed));
    assert_eq!(link.peer(0).unwrap().counts(), (3, 0, 0, 0));
}

#[test]
fn it_is_away_while_anybody_holds_it() {
    let _alone = alone();
    let (link, _fake) = pair(1, 4, Full::Block);
    link.up().unwrap();
    assert!(link.status().up);
    link.park(LONG, &mut ok).unwrap();
    assert!(!may_sync(SyncKind::ModuleLoad, || Ok(link.status().up)).unwrap());
    link.resume();
    let status = link.status();
    assert_eq!((status.up, status.launches, status.parks, status.last_exit), (true, 2, 1, PARKED));
    // An order waits for the kernel, and so does a call.
    link.park(LONG, &mut ok).unwrap();
    std::thread::scope(|scope| {
        let mode = scope.spawn(|| link.set_mode(0, 2, Some(LONG), &mut ok).unwrap());
        let called = scope.spawn(|| call(&link, 0, 1, ANSWERED).unwrap().0);
        until(|| link.status().orders_pending > 0);
        link.resume();
        assert!(mode.join().unwrap());
        assert_eq!(called.join().unwrap(), Sent::Accepted);
    });
    // Taken down while it is held, it does not come back.
    link.park(LONG, &mut ok).unwrap();
    assert!(link.down(LONG));
    link.resume();
    assert!(!link.status().up);
    link.up().unwrap();
    assert_eq!(call(&link, 0, 2, ANSWERED).unwrap().0, Sent::Accepted);
    close(&link);
}

#[test]
fn a_wait_for_one_that_does_not_leave_ends_and_holds_it_no_longer() {
    let _alone = alone();
    let (link, fake) = pair(1, 4, Full::Block);
    link.up().unwrap();
    fake.deaf.store(true, Ordering::Release);
    let late = link.park(Duration::from_millis(20), &mut ok);
    assert!(matches!(late, Err(Error::Device(text)) if text.contains("not within 0.02 s") && text.contains("abort()")));
    let mut interrupted = || Err(Error::Value("Ctrl-C".into()));
    assert!(matches!(link.park(LONG, &mut interrupted), Err(Error::Value(_))));
    fake.deaf.store(false, Ordering::Release);
    // It was asked to leave, does so at last, and comes back.
    until(|| link.status().launches == 2);
    assert_eq!(call(&link, 0, 1, ANSWERED).unwrap().0, Sent::Accepted);
    assert!(!may_sync(SyncKind::ModuleLoad, || Ok(link.status().up)).unwrap());
    assert!(link.status().up);
    close(&link);
}

#[test]
fn a_call_in_progress_holds_one_that_comes_up_meanwhile() {
    let _alone = alone();
    let (link, _fake) = pair(1, 4, Full::Block);
    let (go, begun) = (mpsc::channel(), mpsc::channel());
    std::thread::scope(|scope| {
        let (waits, begins) = (go.1, begun.0);
        scope.spawn(move || {
            may_sync(SyncKind::GreenContext, || {
                begins.send(()).unwrap();
                waits.recv().unwrap();
                Ok(())
            })
            .unwrap();
        });
        begun.1.recv().unwrap();
        link.up().unwrap();
        assert_eq!((link.status().up, link.status().launches), (false, 0));
        go.0.send(()).unwrap();
    });
    assert_eq!((link.status().up, link.status().launches), (true, 1));
    // Nobody measured the clock when it came up; the keeper did.
    until(|| link.device_time_offset().is_some());
    close(&link);
}

#[test]
fn many_hold_and_let_go_at_once() {
    let _alone = alone();
    let (link, _fake) = pair(1, 4, Full::Block);
    link.up().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..20 {
                    assert!(!may_sync(SyncKind::ModuleLoad, || Ok(link.status().up)).unwrap());
                }
            });
        }
        for id in 0..200 {
            assert_eq!(call(&link, 0, id, ANSWERED).unwrap().0, Sent::Accepted);
        }
    });
    assert!(link.status().up && link.failure().is_none());
    close(&link);
}

#[test]
fn it_is_launched_again_when_its_slice_is_over() {
    let _alone = alone();
    let (link, fake) = pair(1, 4, Full::Block);
    fake.slice.store(20, Ordering::Release);
    link.up().unwrap();
    for id in 0..20 {
        assert_eq!(call(&link, 0, id, ANSWERED).unwrap().0, Sent::Accepted);
    }
    until(|| link.status().launches > 3);
    until(|| link.status().last_exit == SLICE_ENDED);
    fake.slice.store(0, Ordering::Release);
    close(&link);
    assert!(link.failure().is_none());
}

#[test]
fn it_is_launched_again_when_it_left_while_it_was_looked_for() {
    let _alone = alone();
    let (link, fake) = pair(1, 4, Full::Block);
    link.up().unwrap();
    for launches in 2..6 {
        fake.leaves.store(true, Ordering::Release);
        until(|| link.status().launches >= launches);
        assert_eq!(call(&link, 0, launches, ANSWERED).unwrap().0, Sent::Accepted);
    }
    close(&link);
    assert!(link.failure().is_none());
}

#[test]
fn a_kernel_that_does_not_leave_is_stuck() {
    let _alone = alone();
    let (link, fake) = pair(1, 4, Full::Block);
    link.up().unwrap();
    fake.deaf.store(true, Ordering::Release);
    assert!(!link.down(Duration::from_millis(1)));
    until(|| link.status().stuck);
    fake.deaf.store(false, Ordering::Release);
    assert!(link.down(LONG) && !link.status().stuck);
    link.stop();
}

#[cfg(unix)]
#[test]
fn handlers_that_do_not_return_are_told() {
    let _alone = alone();
    let (link, fake) = pair(3, 4, Full::Block);
    let (mut reader, writer) = std::io::pipe().unwrap();
    link.set_signal(writer.as_raw_fd());
    link.up().unwrap();
    assert!(!link.status().stuck && link.stuck_actors().is_empty());
    let mut bytes = [0; 8];
    for (blocks, actors) in [([None, Some(2), None], vec![2]), ([Some(0), None, Some(1)], vec![0, 1])] {
        fake.accuse(blocks);
        // Whoever waits for news is told.
        reader.read_exact(&mut bytes).unwrap();
        link.signalled();
        assert_eq!((link.status().stuck, link.stuck_actors()), (true, actors));
    }
    fake.accuse([None; 3]);
    reader.read_exact(&mut bytes).unwrap();
    assert!(!link.status().stuck && link.stuck_actors().is_empty());
    close(&link);
    link.set_signal(-1);
}

#[test]
fn one_in_sixteen_messages_says_when_it_was_sent() {
    let _alone = alone();
    let (link, fake) = pair(1, 64, Full::Block);
    link.up().unwrap();
    let now = || monotonic_ns().wrapping_add_signed(link.device_time_offset().unwrap()) as u32;
    let began = now();
    let sent = link.send(0, 20, Some(LONG), &mut ok, |index| (header(0, index, 0), &[SWALLOWED; 8])).unwrap();
    assert_eq!(sent, (20, Sent::Accepted));
    (20..40).for_each(|id| assert_eq!(send(&link, 0, 2 * id, 0, SWALLOWED), Sent::Accepted));
    until(|| fake.headers.lock().unwrap().len() == 40);
    let took = now().wrapping_sub(began);
    let stamps: Vec<_> = fake.headers.lock().unwrap().iter().map(|header| header.stamp).collect();
    for (place, stamp) in stamps.into_iter().enumerate() {
        match place % 16 {
            0 => assert!(stamp & 1 == 1 && stamp.wrapping_sub(began) <= took + (1 << 20), "{place}"),
            _ => assert_eq!(stamp, 0, "{place}"),
        }
    }
    close(&link);
}

#[test]
fn a_lost_kernel_is_told_to_everybody() {
    let _alone = alone();
    type Fault = fn(&Link, &Fake);
    type Told = fn(&Error) -> bool;
    let faults: [(Fault, Told); 3] = [
        (
            |link, _| assert!(link.trap()),
            |error| matches!(error, Error::Kernel(text) if text == "the ring was ended by runtime.abort()"),
        ),
        (
            |_, fake| fake.vanishes.store(true, Ordering::Release),
            |error| matches!(error, Error::Device(text) if text.contains("without saying why")),
        ),
        (
            |link, fake| {
                fake.refuses.store(true, Ordering::Release);
                link.park(LONG, &mut ok).unwrap();
                link.resume();
            },
            |error| matches!(error, Error::Launch(_)),
        ),
    ];
    for (fault, is_it) in faults {
        let (link, fake) = pair(1, 4, Full::Block);
        link.up().unwrap();
        std::thread::scope(|scope| {
            let received = scope.spawn(|| link.receive(0, Some(LONG), &mut ok));
            let called = scope.spawn(|| call(&link, 0, 1, SWALLOWED));
            until(|| !fake.headers.lock().unwrap().is_empty());
            fault(&link, &fake);
            assert!(is_it(&received.join().unwrap().unwrap_err()));
            assert!(is_it(&called.join().unwrap().unwrap_err()));
        });
        assert!(link.failure().is_some_and(is_it));
        assert!(link.set_mode(0, 1, Some(LONG), &mut ok).is_err_and(|error| is_it(&error)));
        assert!(link.up().is_err() && call(&link, 0, 2, ANSWERED).is_err());
        // Nothing is there that a driver call would wait for.
        may_sync(SyncKind::ModuleLoad, || Ok(())).unwrap();
        assert!(!link.status().up);
        close(&link);
    }
}

#[test]
fn a_refused_first_launch_is_an_error_of_up() {
    let _alone = alone();
    let (link, fake) = pair(1, 4, Full::Block);
    fake.refuses.store(true, Ordering::Release);
    assert!(matches!(link.up(), Err(Error::Launch(_))));
    may_sync(SyncKind::ModuleLoad, || Ok(())).unwrap();
    link.stop();
}

#[test]
fn deadlines_are_on_the_devices_clock() {
    let _alone = alone();
    let (link, fake) = pair(1, 4, Full::Block);
    link.up().unwrap();
    let offset = link.device_time_offset().unwrap();
    assert!(offset.abs_diff(AHEAD as i64) < 1_000_000_000, "{offset}");
    let deadline = link.to_device(1 << 45, None, &mut ok).unwrap();
    assert_eq!(link.to_device(0, None, &mut ok).unwrap(), 0);
    let dated = Header { deadline, ..header(0, 1, CALL) };
    link.begin(0, dated, &[ANSWERED; 8]).unwrap().finish(Some(LONG), &mut ok).unwrap();
    let arrived = fake.headers.lock().unwrap()[0].deadline;
    assert!(arrived.abs_diff(AHEAD + (1 << 45)) < 1_000_000_000);
    assert!(link.to_host(arrived).abs_diff(1 << 45) < 1_000_000_000);
    close(&link);
    // Without a kernel there is no clock.
    let (link, _fake) = pair(1, 4, Full::Block);
    assert!(link.to_device(5, Some(Duration::from_millis(1)), &mut ok).is_err());
}

#[test]
fn a_closed_link_ends_its_waits() {
    let _alone = alone();
    let (link, _fake) = pair(1, 4, Full::Block);
    link.up().unwrap();
    std::thread::scope(|scope| {
        let waits = [Some(Duration::MAX), None, Some(Duration::ZERO)].map(|patience| {
            let link = &link;
            scope.spawn(move || {
                set_patience(patience);
                link.receive(0, Some(LONG), &mut ok)
            })
        });
        close(&link);
        for received in waits {
            assert!(matches!(received.join().unwrap(), Err(Error::Device(_))));
        }
    });
    assert!(link.up().is_err());
}
