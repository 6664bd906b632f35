//! Calls in two parts, and calls that are given up.

use super::*;

/// A link with one actor, which has rings of its own.
fn own() -> (Arc<Link>, Arc<Fake>) {
    let (link, fake) = pair(0, 4, Full::Block);
    fake.add_own(&link, 0, Full::Block);
    (link, fake)
}

#[test]
fn a_call_that_was_begun_and_given_up_is_forgotten() {
    let _alone = alone();
    let (link, _fake) = own();
    let payload = [ANSWERED, 1, 0, 0, 0, 0, 0, 0];
    let begun = link.begin(0, header(0, 10, CALL), &payload).unwrap();
    assert!(link.begin(0, header(0, 10, CALL), &payload).is_err());
    // Nobody is on the device, so the answer cannot have come.
    drop(begun);
    assert!(link.begin(0, header(0, 10, CALL), &payload).is_ok());
    link.up().unwrap();
    let mut answers = Vec::new();
    until(|| {
        link.try_receive(0).unwrap();
        answers.extend(link.take_answers());
        answers.len() == 2
    });
    assert!(answers.iter().all(|answer| answer.header.correlation == 10));
    assert_eq!(call(&link, 0, 11, ANSWERED).unwrap().1.unwrap().header.correlation, 11);
    close(&link);
}

#[test]
fn a_call_that_finds_no_room_is_sent_when_it_is_finished() {
    let _alone = alone();
    for own in [false, true] {
        let (link, fake) = pair(0, 4, Full::Block);
        if own {
            fake.add_own(&link, 0, Full::Block);
        } else {
            fake.add(&link, 0, 1, Full::Block);
        }
        let payload = [TOLD, 0, 0, 0, 0, 0, 0, 0];
        while link.send(0, 1, Some(Duration::ZERO), &mut ok, |_| (header(0, 1, 0), &payload)).unwrap().0 == 1 {}
        let payload = [ANSWERED, 1, 0, 0, 0, 0, 0, 0];
        let begun = link.begin(0, header(0, 10, CALL), &payload).unwrap();
        let soon = Some(Duration::from_millis(1));
        assert_eq!(begun.finish(soon, &mut ok).unwrap().0, Sent::TimedOut);
        let begun = link.begin(0, header(0, 10, CALL), &payload).unwrap();
        link.up().unwrap();
        let (sent, reply) = begun.finish(Some(LONG), &mut ok).unwrap();
        assert_eq!((sent, reply.unwrap().header.correlation), (Sent::Accepted, 10));
        close(&link);
    }
}

#[test]
fn an_answer_in_the_moment_of_giving_up_is_not_lost() {
    let _alone = alone();
    let (link, _fake) = own();
    link.up().unwrap();
    let fates = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (link, fates) = (&link, &fates);
            scope.spawn(move || {
                for round in 0..2000 {
                    let payload = [ANSWERED, 0, 0, 0, 0, 0, 0, 0];
                    let soon = Some(Duration::from_micros(40 + round % 80));
                    let header = header(0, 1 + 4 * round + thread, CALL);
                    let (sent, reply) = link.begin(0, header, &payload).unwrap().finish(soon, &mut ok).unwrap();
                    assert_eq!(reply.is_some(), sent == Sent::Accepted);
                    fates.lock().unwrap().push(sent);
                }
            });
        }
    });
    let fates = fates.into_inner().unwrap();
    let count = |fate| fates.iter().filter(|one| **one == fate).count();
    let (answered, unanswered) = (count(Sent::Accepted), count(Sent::Unanswered));
    let mut late = 0;
    until(|| {
        link.try_receive(0).unwrap();
        late += link.take_answers().len();
        late == unanswered
    });
    assert!(answered > 0 && late > 0, "{answered} answered, {late} late");
    assert_eq!(answered + unanswered + count(Sent::TimedOut), 8000);
    close(&link);
}

#[test]
fn an_error_is_not_hidden_by_an_answer_that_comes_meanwhile() {
    let _alone = alone();
    let (link, fake) = own();
    fake.idle.store(true, Ordering::Release);
    link.up().unwrap();
    for (id, what) in [(10, ANSWERED), (11, BURIED)] {
        let payload = [what, 0, 0, 0, 0, 0, 0, 0];
        let mut interrupted = || {
            fake.idle.store(false, Ordering::Release);
            until(|| fake.headers.lock().unwrap().iter().any(|header| header.id == id));
            std::thread::sleep(Duration::from_millis(2));
            Err(Error::Value("interrupted".to_string()))
        };
        let outcome = link.begin(0, header(0, id, CALL), &payload).unwrap().finish(Some(LONG), &mut interrupted);
        assert!(matches!(outcome, Err(Error::Value(_))), "{outcome:?}");
        fake.idle.store(true, Ordering::Release);
    }
    let (mut answers, mut letters) = (Vec::new(), Vec::new());
    until(|| {
        link.try_receive(0).unwrap();
        answers.extend(link.take_answers());
        letters.extend(link.take_letters());
        answers.len() + letters.len() == 2
    });
    assert_eq!((answers[0].header.correlation, letters[0].header.id, link.letter_count()), (10, 11, 1));
    assert_eq!(fake.taken(0), 1);
    close(&link);
}

#[test]
fn a_time_limit_is_for_room_and_answer_together() {
    let _alone = alone();
    let (link, _fake) = own();
    let payload = [SWALLOWED, 0, 0, 0, 0, 0, 0, 0];
    while link.send(0, 1, Some(Duration::ZERO), &mut ok, |_| (header(0, 1, 0), &payload)).unwrap().0 == 1 {}
    let began = std::time::Instant::now();
    let sent = std::thread::scope(|scope| {
        let call = scope.spawn(|| {
            let begun = link.begin(0, header(0, 10, CALL), &payload).unwrap();
            begun.finish(Some(Duration::from_millis(600)), &mut ok).unwrap().0
        });
        std::thread::sleep(Duration::from_millis(400));
        link.up().unwrap();
        call.join().unwrap()
    });
    assert_eq!(sent, Sent::Unanswered);
    assert!(began.elapsed() < Duration::from_millis(950), "{:?}", began.elapsed());
    close(&link);
}

#[test]
fn whoever_waits_is_told_that_the_actor_has_ended() {
    let _alone = alone();
    let (link, fake) = pair(1, 4, Full::Block);
    fake.add_own(&link, 1, Full::Block);
    link.up().unwrap();
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..2)
            .map(|actor| {
                scope.spawn({
                    let link = &link;
                    move || call(link, actor, 10 + actor as u64, SWALLOWED).unwrap()
                })
            })
            .collect();
        until(|| fake.headers.lock().unwrap().len() == 2);
        link.end_calls(1).unwrap();
        let mut calls = calls.into_iter();
        let other = calls.next().unwrap();
        let (sent, reply) = calls.next().unwrap().join().unwrap();
        assert_eq!((sent, reply.is_none()), (Sent::Closed, true));
        assert!(!other.is_finished());
        link.end_calls(0).unwrap();
        assert_eq!(other.join().unwrap().0, Sent::Closed);
    });
    // What was answered before is an answer.
    let payload = [ANSWERED, 0, 0, 0, 0, 0, 0, 0];
    let begun = link.begin(1, header(1, 20, CALL), &payload).unwrap();
    until(|| fake.headers.lock().unwrap().len() == 3);
    std::thread::sleep(Duration::from_millis(2));
    link.end_calls(1).unwrap();
    assert_eq!(begun.finish(Some(LONG), &mut ok).unwrap().0, Sent::Accepted);
    assert!(link.end_calls(2).is_err());
    close(&link);
}

#[test]
fn threads_that_call_and_send_at_once_get_what_is_theirs() {
    let _alone = alone();
    let (link, fake) = own();
    link.up().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let link = &link;
            scope.spawn(move || {
                for id in 0..200 {
                    let id = 1000 * (thread + 1) + id;
                    let (sent, reply) = call(link, 0, id, ANSWERED).unwrap();
                    assert_eq!((sent, reply.unwrap().header.correlation), (Sent::Accepted, id));
                }
            });
        }
        let payload = [TOLD, 0, 0, 0, 0, 0, 0, 0];
        let all = link.send(0, 200, Some(LONG), &mut ok, |index| (header(0, 1 + index, 0), &payload)).unwrap();
        assert_eq!(all, (200, Sent::Accepted));
        for id in 1..=200 {
            assert_eq!(link.receive(0, Some(LONG), &mut ok).unwrap().unwrap().header.correlation, id);
        }
    });
    assert_eq!(fake.taken(0), 800);
    close(&link);
}
