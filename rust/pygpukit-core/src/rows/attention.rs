//! Attention of ragged rows to a paged cache, row by row.

use super::lanes::{LANES, Lanes, Plain, Width};
use crate::error::{Error, Result};

/// Queries, pages and where they are; counts and strides are in elements.
#[derive(Debug, Clone, Copy)]
pub struct PagedAttention<'a> {
    /// [tokens, heads, dim].
    pub q: &'a [f32],
    pub q_strides: [usize; 2],
    /// A layer: page `p`, keys (0) or values (1), place `t`, head `h` begins at their sum of strides.
    pub cache: &'a [f32],
    pub cache_strides: [usize; 4],
    pub pages: usize,
    pub page_tokens: usize,
    /// [sequences, width].
    pub table: &'a [i32],
    pub lengths: &'a [i32],
    pub starts: &'a [i32],
    pub tokens: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub dim: usize,
    pub scale: f32,
    /// Keys a query sees; 0 for all.
    pub window: usize,
    /// 0 for none.
    pub softcap: f32,
}

/// A query: its row, its position, the pages of its sequence.
struct Query<'a> {
    row: usize,
    position: usize,
    table: &'a [i32],
}

impl<'a> PagedAttention<'a> {
    fn queries(&self) -> Result<Vec<Query<'a>>> {
        let sequences = self.lengths.len();
        let width = self.table.len().checked_div(sequences).unwrap_or(0);
        if self.starts.len() != sequences + 1 || self.table.len() != sequences * width {
            return Err(Error::Value(format!(
                "{sequences} lengths, {} starts and a table of {} do not fit together",
                self.starts.len(),
                self.table.len()
            )));
        }
        let kv = self.kv_heads.max(1);
        if !self.heads.is_multiple_of(kv) || self.page_tokens == 0 {
            return Err(Error::Value(format!("{} heads cannot share {} of keys", self.heads, self.kv_heads)));
        }
        let reach = |counts: &[usize], strides: &[usize], dim: usize| -> usize {
            counts.iter().zip(strides).map(|(n, s)| n.saturating_sub(1).saturating_mul(*s)).sum::<usize>() + dim
        };
        let counts = [self.pages, 2, self.page_tokens, self.kv_heads];
        if (self.tokens > 0 && reach(&[self.tokens, self.heads], &self.q_strides, self.dim) > self.q.len())
            || (self.pages > 0 && reach(&counts, &self.cache_strides, self.dim) > self.cache.len())
        {
            return Err(Error::Value("queries or pages do not lie in their memory".to_string()));
        }
        let mut found = Vec::with_capacity(self.tokens);
        for s in 0..sequences {
            let (first, end) = (self.starts[s].max(0) as usize, (self.starts[s + 1].max(0) as usize).min(self.tokens));
            let length = (self.lengths[s].max(0) as usize).min(width * self.page_tokens);
            if end <= first || length == 0 {
                continue;
            }
            let table = &self.table[s * width..s * width + length.div_ceil(self.page_tokens)];
            if let Some(bad) = table.iter().find(|&&page| page < 0 || page as usize >= self.pages) {
                return Err(Error::Value(format!("sdpa_paged(): page {bad} in a cache of {} pages", self.pages)));
            }
            // Of more queries than keys the first see none.
            let none = (end - first).saturating_sub(length);
            let seen = first + none..end;
            found.extend(seen.map(|row| Query { row, position: length + row - end, table }));
        }
        Ok(found)
    }
}

/// For the keys (0) or values (1) of the positions from `low` to `end`: their index and a pointer. A macro, because a
/// closure would not be compiled for the instructions of the function around it.
macro_rules! walk {
    ($call:expr, $table:expr, ($low:expr, $end:expr), $which:expr, $head:expr, |$i:ident, $pointer:ident| $body:block) => {
        let [page, kind, token, of_head] = $call.cache_strides;
        let mut position = $low;
        while position < $end {
            let place = position % $call.page_tokens;
            let stop = $end.min(position - place + $call.page_tokens);
            let number = $table[position / $call.page_tokens] as usize;
            let mut $pointer =
                $call.cache.as_ptr().add(number * page + $which * kind + place * token + $head * of_head);
            for $i in position - $low..stop - $low {
                $body
                $pointer = $pointer.wrapping_add(token);
            }
            position = stop;
        }
    };
}

struct Target(*mut f32);

// SAFETY: threads write the results of different queries.
unsafe impl Sync for Target {}

/// Causal attention; `out` is [tokens, heads, dim], one behind the other. Rows that belong to no sequence become zeros.
pub fn paged_attention(call: &PagedAttention<'_>, out: &mut [f32]) -> Result<()> {
    attention_by(Width::widest(), call, out)
}

pub(super) fn attention_by(width: Width, call: &PagedAttention<'_>, out: &mut [f32]) -> Result<()> {
    let queries = call.queries()?;
    if out.len() != call.tokens * call.heads * call.dim {
        return Err(Error::Value(format!("{} results do not fit the queries", out.len())));
    }
    if queries.len() < call.tokens {
        out.fill(0.0);
    }
    let keys: usize = queries.iter().map(|q| q.position + 1).sum();
    let (to, queries) = (Target(out.as_mut_ptr()), &queries[..]);
    let to = &to;
    super::by_threads(keys * call.heads * call.dim * 2, |part, parts| {
        let mine = queries.iter().skip(part).step_by(parts);
        // SAFETY: `queries` has checked the sizes, and parts write different rows.
        unsafe {
            match width {
                Width::Plain => attend::<Plain>(call, mine, to),
                #[cfg(target_arch = "x86_64")]
                Width::Avx2 => avx2(call, mine, to),
                #[cfg(target_arch = "x86_64")]
                Width::Avx512 => avx512(call, mine, to),
            }
        }
    });
    Ok(())
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<'a>(call: &PagedAttention<'_>, queries: impl Iterator<Item = &'a Query<'a>>, out: &Target) {
    // SAFETY: the caller's contract.
    unsafe { attend::<super::lanes::x86::Avx2>(call, queries, out) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn avx512<'a>(call: &PagedAttention<'_>, queries: impl Iterator<Item = &'a Query<'a>>, out: &Target) {
    // SAFETY: the caller's contract.
    unsafe { attend::<super::lanes::x86::Avx512>(call, queries, out) }
}

/// # Safety
/// The machine has the instructions of `V`; `call.queries` has made the queries; `out` has room for their rows.
#[inline(always)]
unsafe fn attend<'a, V: Lanes>(call: &PagedAttention<'_>, queries: impl Iterator<Item = &'a Query<'a>>, out: &Target) {
    let group = call.heads / call.kv_heads.max(1);
    let mut scores: Vec<f32> = Vec::new();
    for query in queries {
        let end = query.position + 1;
        let low = if call.window == 0 { 0 } else { end.saturating_sub(call.window) };
        let seen = end - low;
        // Whole vectors, so that the exponential has no rest.
        let line = seen.next_multiple_of(LANES);
        for head in 0..call.kv_heads {
            scores.clear();
            scores.resize(line * group, f32::NEG_INFINITY);
            // SAFETY: the caller's contract; positions from `low` to `end` lie in pages of the table.
            unsafe {
                let q = call.q.as_ptr().add(query.row * call.q_strides[0] + head * group * call.q_strides[1]);
                walk!(call, query.table, (low, end), 0, head, |i, key| {
                    for g in 0..group {
                        scores[g * line + i] = dot::<V>(q.add(g * call.q_strides[1]), key, call.dim) * call.scale;
                    }
                });
                for g in 0..group {
                    let weights = &mut scores[g * line..(g + 1) * line];
                    let total = softmax::<V>(weights, seen, call.softcap);
                    let to = out.0.add((query.row * call.heads + head * group + g) * call.dim);
                    let share = if total == 0.0 { 0.0 } else { 1.0 / total };
                    let mut at = 0;
                    while at < call.dim {
                        let left = call.dim - at;
                        at += if left >= 4 * LANES {
                            weighted::<V, 4>(call, query, (low, end), head, weights, at, share, to);
                            4 * LANES
                        } else if left >= LANES {
                            weighted::<V, 1>(call, query, (low, end), head, weights, at, share, to);
                            LANES
                        } else {
                            let mut sum = V::zero();
                            walk!(call, query.table, (low, end), 1, head, |i, value| {
                                sum = sum.fma(V::all(weights[i]), V::load_part(value.add(at), left));
                            });
                            V::zero().fma(sum, V::all(share)).store_part(to.add(at), left);
                            left
                        };
                    }
                }
            }
        }
    }
}

/// Write `N` vectors of a result, from element `at` on.
///
/// # Safety
/// As `attend`.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "the state of one result")]
unsafe fn weighted<V: Lanes, const N: usize>(
    call: &PagedAttention<'_>,
    query: &Query<'_>,
    range: (usize, usize),
    head: usize,
    weights: &[f32],
    at: usize,
    share: f32,
    to: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = [V::zero(); N];
        walk!(call, query.table, (range.0, range.1), 1, head, |i, value| {
            let weight = V::all(weights[i]);
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = sum.fma(weight, V::load(value.add(at + n * LANES)));
            }
        });
        for (n, sum) in sums.into_iter().enumerate() {
            V::zero().fma(sum, V::all(share)).store(to.add(at + n * LANES));
        }
    }
}

/// # Safety
/// Both are readable for `count` elements.
#[inline(always)]
unsafe fn dot<V: Lanes>(a: *const f32, b: *const f32, count: usize) -> f32 {
    // SAFETY: the caller's contract.
    unsafe {
        let (mut sum, mut at) = (V::zero(), 0);
        while at + LANES <= count {
            sum = sum.fma(V::load(a.add(at)), V::load(b.add(at)));
            at += LANES;
        }
        if at < count {
            sum = sum.fma(V::load_part(a.add(at), count - at), V::load_part(b.add(at), count - at));
        }
        sum.sum()
    }
}

/// Turn scores into weights, and return their sum; elements behind `seen` are minus infinity and become zero.
///
/// # Safety
/// The machine has the instructions of `V`; the length is a multiple of `LANES`.
#[inline(always)]
unsafe fn softmax<V: Lanes>(scores: &mut [f32], seen: usize, softcap: f32) -> f32 {
    if softcap > 0.0 {
        for score in &mut scores[..seen] {
            *score = (*score / softcap).tanh() * softcap;
        }
    }
    let mut largest = f32::NEG_INFINITY;
    let mut wrong = false;
    for &score in &scores[..seen] {
        largest = if score > largest { score } else { largest };
        wrong |= score.is_nan();
    }
    if wrong {
        scores.fill(f32::NAN);
        return f32::NAN;
    }
    if largest == f32::NEG_INFINITY {
        scores.fill(0.0);
        return 0.0;
    }
    for score in scores.iter_mut() {
        *score = exp(*score - largest);
    }
    // SAFETY: the caller's contract.
    unsafe {
        let mut sum = V::zero();
        for part in scores.chunks_exact(LANES) {
            sum = sum.fma(V::load(part.as_ptr()), V::all(1.0));
        }
        sum.sum()
    }
}

/// The exponential of a number that is not above zero, to two units in the last place; 0 below -87.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    let clamped = if x < -87.0 { -87.0 } else { x };
    // Adding 1.5 * 2^23 rounds to a whole number.
    let whole = clamped.mul_add(std::f32::consts::LOG2_E, MAGIC) - MAGIC;
    let rest = whole.mul_add(-0.693_359_4, clamped);
    let rest = whole.mul_add(2.121_944_4e-4, rest);
    let mut sum = 1.987_569_1e-4_f32;
    for term in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
        sum = sum.mul_add(rest, term);
    }
    let value = (sum * rest).mul_add(rest, rest) + 1.0;
    let power = f32::from_bits((((whole as i32) + 127) << 23) as u32);
    if x < -87.0 { 0.0 } else { value * power }
}
