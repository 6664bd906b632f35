use super::attention::{attention_by, exp};
use super::lanes::Width;
use super::linear::linear_by;
use super::resample::resample_by;
use super::*;

/// Numbers from -1 to 1 that differ.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

fn matrix(data: &[f32], rows: usize, columns: usize) -> Matrix<'_> {
    Matrix { data, rows, columns, stride: columns }
}

#[test]
fn every_width_and_number_of_rows_gives_the_same_bits() {
    for (n, k) in [(9, 37), (16, 64), (5, 3), (33, 100)] {
        let (x, w) = (numbers(70 * k, 1), numbers(n * k, 2));
        let mut alone = vec![0.0; 70 * n];
        for row in 0..70 {
            let line = matrix(&x[row * k..(row + 1) * k], 1, k);
            linear_by(Width::Plain, line, matrix(&w, n, k), &mut alone[row * n..(row + 1) * n]).unwrap();
        }
        let exact: f64 = (0..k).map(|i| f64::from(x[i]) * f64::from(w[i])).sum();
        assert!((f64::from(alone[0]) - exact).abs() < 1e-5);
        for width in Width::all() {
            for m in [1, 2, 3, 7, 64, 70] {
                let mut together = vec![0.0; m * n];
                linear_by(width, matrix(&x[..m * k], m, k), matrix(&w, n, k), &mut together).unwrap();
                assert_eq!(together, alone[..m * n], "{width:?} {m} x {n} x {k}");
            }
        }
    }
}

#[test]
fn threads_change_no_bit() {
    let (n, k) = (600, 1000);
    let (x, w) = (numbers(9 * k, 3), numbers(n * k, 4));
    let mut whole = vec![0.0; 9 * n];
    linear(matrix(&x, 9, k), matrix(&w, n, k), &mut whole).unwrap();
    for row in 0..9 {
        let mut one = vec![0.0; n];
        linear(matrix(&x[row * k..(row + 1) * k], 1, k), matrix(&w, n, k), &mut one).unwrap();
        assert_eq!(one, whole[row * n..(row + 1) * n]);
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let x = numbers(12, 5);
    let mut out = vec![0.0; 4];
    assert!(linear(matrix(&x, 2, 6), matrix(&x, 2, 6), &mut out).is_ok());
    assert!(linear(matrix(&x, 3, 6), matrix(&x, 2, 6), &mut out).is_err());
    assert!(linear(matrix(&x, 2, 6), matrix(&x, 3, 4), &mut out).is_err());
    let close = Matrix { stride: 2, ..matrix(&x, 2, 6) };
    assert!(linear(close, matrix(&x, 2, 6), &mut out).is_err());
}

#[test]
fn the_exponential_is_near() {
    for i in 0..20_000 {
        let x = -(i as f32) * 0.005;
        let (near, exact) = (f64::from(exp(x)), f64::from(x).exp());
        assert!((near - exact).abs() <= exact * 2.5e-7 + 1e-37, "{x}: {near} {exact}");
    }
    assert_eq!((exp(0.0), exp(f32::NEG_INFINITY)), (1.0, 0.0));
}

struct Cache {
    data: Vec<f32>,
    table: Vec<i32>,
}

const PAGE: usize = 4;

impl Cache {
    fn call<'a>(&'a self, q: &'a [f32], lengths: &'a [i32], starts: &'a [i32], dim: usize) -> PagedAttention<'a> {
        let (heads, kv_heads) = (4, 2);
        PagedAttention {
            q,
            q_strides: [heads * dim, dim],
            cache: &self.data,
            cache_strides: [2 * PAGE * kv_heads * dim, PAGE * kv_heads * dim, kv_heads * dim, dim],
            pages: 12,
            page_tokens: PAGE,
            table: &self.table,
            lengths,
            starts,
            tokens: q.len() / (heads * dim),
            heads,
            kv_heads,
            dim,
            scale: 0.3,
            window: 0,
            softcap: 0.0,
        }
    }
}

fn attention(call: &PagedAttention<'_>, width: Width) -> Vec<f32> {
    let mut out = vec![7.0; call.tokens * call.heads * call.dim];
    attention_by(width, call, &mut out).unwrap();
    out
}

#[test]
fn a_query_has_its_bits_however_the_sequence_is_cut() {
    for dim in [16, 10, 40] {
        let cache = Cache { data: numbers(12 * 2 * PAGE * 2 * dim, 6), table: vec![3, 7, 1, 9, 0, 11, 2] };
        let q = numbers(26 * 4 * dim, 7);
        for (window, softcap) in [(0, 0.0), (5, 0.0), (0, 2.0)] {
            fn with(call: PagedAttention<'_>, window: usize, softcap: f32) -> PagedAttention<'_> {
                PagedAttention { window, softcap, ..call }
            }
            let whole = attention(&with(cache.call(&q, &[26], &[0, 26], dim), window, softcap), Width::Plain);
            for width in Width::all() {
                assert_eq!(attention(&with(cache.call(&q, &[26], &[0, 26], dim), window, softcap), width), whole);
                for position in 0..26 {
                    let range = position * 4 * dim..(position + 1) * 4 * dim;
                    let lengths = [position as i32 + 1];
                    let one = with(cache.call(&q[range.clone()], &lengths, &[0, 1], dim), window, softcap);
                    assert_eq!(attention(&one, width), whole[range]);
                }
            }
        }
    }
}

#[test]
fn attention_is_what_its_formula_says() {
    let dim = 10;
    let cache = Cache { data: numbers(12 * 2 * PAGE * 2 * dim, 8), table: vec![3, 7, 1] };
    let q = numbers(4 * dim, 9);
    let made = attention(&cache.call(&q, &[9], &[0, 1], dim), Width::widest());
    let at = |position: usize, which: usize, i: usize| {
        let page = cache.table[position / PAGE] as usize;
        f64::from(cache.data[((page * 2 + which) * PAGE + position % PAGE) * 2 * dim + dim + i])
    };
    // Head 3 of the queries shares head 1 of the keys.
    let scores: Vec<f64> =
        (0..9).map(|p| (0..dim).map(|i| f64::from(q[3 * dim + i]) * at(p, 0, i)).sum::<f64>() * 0.3).collect();
    let total: f64 = scores.iter().map(|s| s.exp()).sum();
    for i in 0..dim {
        let exact = (0..9).map(|p| scores[p].exp() / total * at(p, 1, i)).sum::<f64>();
        assert!((exact - f64::from(made[3 * dim + i])).abs() < 1e-5);
    }
}

#[test]
fn padding_gives_zeros_and_wrong_pages_are_refused() {
    let dim = 16;
    let cache = Cache { data: numbers(12 * 2 * PAGE * 2 * dim, 6), table: vec![3, 12] };
    let q = numbers(2 * 4 * dim, 7);
    let mut out = vec![7.0; q.len()];
    paged_attention(&cache.call(&q, &[2], &[0, 1], dim), &mut out).unwrap();
    assert!(out[4 * dim..].iter().all(|&x| x == 0.0) && out[..4 * dim].iter().all(|&x| x != 7.0));
    let error = paged_attention(&cache.call(&q, &[5], &[0, 2], dim), &mut out).unwrap_err();
    assert!(error.to_string().contains("page 12 in a cache of 12 pages"), "{error}");
    assert!(paged_attention(&cache.call(&q, &[2], &[0], dim), &mut out).is_err());
}

#[test]
fn resampling_has_the_same_bits_in_every_width_and_cut() {
    for (up, down, taps, center, n) in
        [(3, 2, 37, 20, 400), (1, 2, 41, 20, 301), (160, 441, 19, 700, 2000), (5, 1, 3, 40, 7)]
    {
        let (x, filters) = (numbers(2 * n, 5), numbers(up * taps, 6));
        let length = n * up / down;
        let call = Resample { x: &x, rows: 2, filters: &filters, up, down, center, length };
        let mut plain = vec![0.0; 2 * length];
        resample_by(Width::Plain, &call, &mut plain).unwrap();
        for (m, &got) in plain[length..].iter().enumerate() {
            let (i, phase) = ((m * down + center) / up, (m * down + center) % up);
            let under = (0..taps).filter(|&k| k <= i && i - k < n);
            let exact: f64 = under.map(|k| f64::from(filters[phase * taps + k]) * f64::from(x[n + i - k])).sum();
            assert!((f64::from(got) - exact).abs() < 1e-5, "{up} / {down} at {m}");
        }
        for width in Width::all() {
            for (rows, fewer) in [(2, length), (1, length), (1, length / 3 + 1), (1, 1)] {
                let mut some = vec![0.0; rows * fewer];
                let call = Resample { x: &x[..rows * n], rows, length: fewer, ..call };
                resample_by(width, &call, &mut some).unwrap();
                for row in 0..rows {
                    assert_eq!(
                        some[row * fewer..(row + 1) * fewer],
                        plain[row * length..row * length + fewer],
                        "{width:?}"
                    );
                }
            }
        }
    }
    let call = Resample { x: &[1.0; 4], rows: 1, filters: &[1.0; 5], up: 2, down: 1, center: 0, length: 3 };
    assert!(resample(&call, &mut [0.0; 3]).is_err());
    assert!(resample(&Resample { filters: &[1.0; 4], ..call }, &mut [0.0; 2]).is_err());
    assert!(resample(&Resample { filters: &[1.0; 4], length: usize::MAX, down: 3, ..call }, &mut [0.0; 2]).is_err());
    assert!(resample(&Resample { length: 0, filters: &[], ..call }, &mut []).is_ok());
}
