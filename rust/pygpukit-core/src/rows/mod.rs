//! Products, attention and resampling of rows in float32 on the host, in an order of sums that the rows beside a row do not change.
//!
//! A library's matrix product sums in another order for one row than for many, so a reply of a language model on the CPU
//! device would depend on its neighbours. Here a sum of products has 16 partial sums: partial sum `l` takes the elements
//! `l`, `l + 16`, ... ascending by fused operations, and a tree adds them. Vectors of any width compute the same bits.

mod attention;
mod lanes;
mod linear;
mod resample;
#[cfg(test)]
mod tests;

pub use attention::{PagedAttention, paged_attention};
pub use linear::{Matrix, linear};
pub use resample::{Resample, resample};

/// Work below this many multiplications is not worth a thread.
const PART: usize = 1 << 20;
const MOST_THREADS: usize = 64;

/// Call `work(part, parts)` for every part, on as many threads as the work is worth.
fn by_threads(multiplications: usize, work: impl Fn(usize, usize) + Sync) {
    let parts = (multiplications / PART).clamp(1, threads());
    if parts == 1 {
        return work(0, 1);
    }
    let work = &work;
    std::thread::scope(|scope| {
        for part in 1..parts {
            if std::thread::Builder::new().spawn_scoped(scope, move || work(part, parts)).is_err() {
                work(part, parts);
            }
        }
        work(0, parts);
    });
}

/// Number of threads of one call: OPENBLAS_NUM_THREADS or OMP_NUM_THREADS, as NumPy's products take it, else the cores.
fn threads() -> usize {
    use std::sync::LazyLock;
    static THREADS: LazyLock<usize> = LazyLock::new(|| {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let asked = ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"]
            .iter()
            .find_map(|name| std::env::var(name).ok()?.parse::<usize>().ok().filter(|&n| n > 0));
        asked.unwrap_or(cores).min(MOST_THREADS)
    });
    *THREADS
}
