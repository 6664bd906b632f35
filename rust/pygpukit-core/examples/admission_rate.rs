//! How many requests admission decides in a second with many tasks admitted; prints a JSON object of rates.

use std::hint::black_box;
use std::time::Instant;

use pygpukit_core::sched::{Admission, Capacity, Class, Request, RequestError, Share};

const GIB: u64 = 1 << 30;
const ADMITTED: u64 = 1_000;
const ROUNDS: u32 = 7;
const DECISIONS: u32 = 100_000;

/// A GPU with 1,000 burstable tasks; with `deadlines` each has one.
fn filled(deadlines: bool) -> Result<Admission, RequestError> {
    let mut books = Admission::new(Capacity::divided(128 * GIB, 132, 8))?;
    for number in 0..ADMITTED {
        books.submit(task(number, deadlines))?;
    }
    Ok(books)
}

fn task(number: u64, deadlines: bool) -> Request {
    let times = |ns: u64| deadlines.then_some(ns);
    Request {
        memory: GIB / 16,
        bandwidth: Share::from_ppm(500),
        deadline_ns: times(100_000_000 + number * 1_000),
        cost_ns: times(40_000),
        ..Request::new(Class::Burstable)
    }
}

/// Decisions per second, the median of some rounds.
fn rate(mut decide: impl FnMut() -> Result<(), RequestError>) -> Result<f64, RequestError> {
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..DECISIONS {
            decide()?;
        }
        rates.push(f64::from(DECISIONS) / start.elapsed().as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    Ok(rates[rates.len() / 2])
}

fn admit_and_release(books: &mut Admission, request: Request) -> Result<(), RequestError> {
    let (id, decision) = books.submit(black_box(request))?;
    black_box(decision);
    black_box(books.release(id));
    Ok(())
}

fn main() -> Result<(), RequestError> {
    let mut books = filled(false)?;
    let fits = task(0, false);
    let admit = rate(|| admit_and_release(&mut books, fits))?;
    let evaluate = rate(|| books.evaluate(black_box(&fits)).map(|decision| drop(black_box(decision))))?;
    let large = Request { memory: 100 * GIB, ..fits };
    let refuse = rate(|| books.evaluate(black_box(&large)).map(|decision| drop(black_box(decision))))?;
    let mut books = filled(true)?;
    let due = task(ADMITTED / 2, true);
    let deadline = rate(|| admit_and_release(&mut books, due))?;
    // One short deadline, and every other one has to be looked at.
    books.submit(Request { deadline_ns: Some(100_000), ..due })?;
    let scan = rate(|| admit_and_release(&mut books, due))?;
    let mut books = filled(false)?;
    for _ in 0..ADMITTED {
        books.submit(large)?;
    }
    let queued = rate(|| admit_and_release(&mut books, large))?;
    let rates = [
        ("admit", admit),
        ("evaluate", evaluate),
        ("refuse", refuse),
        ("queue", queued),
        ("deadline", deadline),
        ("deadline_scan", scan),
    ];
    let rows: Vec<String> = rates.iter().map(|(name, rate)| format!("\"{name}\": {rate:.0}")).collect();
    println!("{{{}}}", rows.join(", "));
    Ok(())
}
