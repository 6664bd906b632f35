//! `linear_rows`, `paged_attention_rows` and `resample_rows`: what the CPU device runs where a row's bits must not depend on its neighbours.

use pygpukit_core::error::Error;
use pygpukit_core::rows::{Matrix, PagedAttention, Resample, linear, paged_attention, resample};
use pyo3::buffer::{Element, PyBuffer};
use pyo3::prelude::*;
use pyo3::types::PyModule;

use crate::errors::ToPy;
use crate::inside::detached;

/// Memory of an array of float32 from its first element on: strides in elements, the last axis contiguous.
struct View<'a, const AXES: usize> {
    data: &'a [f32],
    shape: [usize; AXES],
    strides: [usize; AXES],
}

fn view<'a, const AXES: usize>(name: &str, array: &'a PyBuffer<f32>) -> PyResult<View<'a, AXES>> {
    let (mut shape, mut strides) = ([0; AXES], [0; AXES]);
    let wrong = || Error::Value(format!("'{name}' must have {AXES} axes, the last of them contiguous"));
    if array.shape().len() != AXES {
        return Err(wrong()).py();
    }
    let mut end = 1;
    for axis in 0..AXES {
        let (n, stride) = (array.shape()[axis], array.strides()[axis]);
        if stride < 0 && n > 1 || stride % 4 != 0 || axis == AXES - 1 && n > 1 && stride != 4 {
            return Err(wrong()).py();
        }
        (shape[axis], strides[axis]) = (n, (stride / 4).max(0) as usize);
        end += n.saturating_sub(1) * strides[axis];
    }
    let end = if shape.contains(&0) { 0 } else { end };
    let data = match end {
        0 => &[][..],
        // SAFETY: the elements of a buffer lie between its first and its last, and it is held as long as the view.
        _ => unsafe { std::slice::from_raw_parts(array.buf_ptr().cast::<f32>(), end) },
    };
    Ok(View { data, shape, strides })
}

/// A contiguous array that is read.
fn flat<'a, T: Element>(name: &str, array: &'a PyBuffer<T>) -> PyResult<&'a [T]> {
    if !array.is_c_contiguous() {
        return Err(Error::Value(format!("'{name}' must be contiguous"))).py();
    }
    if array.item_count() == 0 {
        return Ok(&[]);
    }
    // SAFETY: the buffer is contiguous and held as long as the slice.
    Ok(unsafe { std::slice::from_raw_parts(array.buf_ptr().cast(), array.item_count()) })
}

/// Memory of a contiguous array that is written.
fn target(name: &str, array: &PyBuffer<f32>) -> PyResult<(*mut f32, usize)> {
    if array.readonly() || !array.is_c_contiguous() {
        return Err(Error::Value(format!("'{name}' must be a contiguous array that can be written"))).py();
    }
    let count = array.item_count();
    let first = if count == 0 { std::ptr::NonNull::dangling().as_ptr() } else { array.buf_ptr().cast() };
    Ok((first, count))
}

/// Write ``x @ weight.T`` of float32 to ``out``; a row's bits depend on the row alone.
///
/// Parameters
/// ----------
/// x, weight : float32 arrays
///     [rows, in] and [out, in]; the last axes contiguous.
/// out : float32 array
///     [rows, out], contiguous.
#[pyfunction]
fn linear_rows(py: Python<'_>, x: PyBuffer<f32>, weight: PyBuffer<f32>, out: PyBuffer<f32>) -> PyResult<()> {
    let (x, weight, (to, count)) = (view::<2>("x", &x)?, view::<2>("weight", &weight)?, target("out", &out)?);
    // SAFETY: the buffer is contiguous and held until the end; the caller owns the result, and no operand shares its memory.
    let out = unsafe { std::slice::from_raw_parts_mut(to, count) };
    let matrix = |v: &View<'_, 2>| (v.shape[0], v.shape[1], v.strides[0]);
    let [x, weight] = [(x.data, matrix(&x)), (weight.data, matrix(&weight))]
        .map(|(data, (rows, columns, stride))| Matrix { data, rows, columns, stride });
    detached(py, || linear(x, weight, out))
}

/// Write causal attention of ragged rows to a paged cache of float32 to ``out``; a query's bits depend on its sequence alone.
///
/// Parameters
/// ----------
/// q : float32 array
///     [tokens, heads, dim].
/// cache : float32 array
///     [pages, 2, page_tokens, kv_heads, dim].
/// table, lengths, starts : int32 arrays
///     As `sdpa_paged` takes them.
/// out : float32 array
///     Of the shape of ``q``, contiguous.
/// scale : float
/// window : int
///     0 for none, and so for `softcap`.
#[pyfunction]
#[pyo3(signature = (q, cache, table, lengths, starts, out, scale, window=0, softcap=0.0))]
#[allow(clippy::too_many_arguments, reason = "the operands of attention")]
fn paged_attention_rows(
    py: Python<'_>,
    q: PyBuffer<f32>,
    cache: PyBuffer<f32>,
    table: PyBuffer<i32>,
    lengths: PyBuffer<i32>,
    starts: PyBuffer<i32>,
    out: PyBuffer<f32>,
    scale: f32,
    window: usize,
    softcap: f32,
) -> PyResult<()> {
    let (queries, pages) = (view::<3>("q", &q)?, view::<5>("cache", &cache)?);
    let ([tokens, heads, dim], [of_cache, kinds, page_tokens, kv_heads, width]) = (queries.shape, pages.shape);
    if kinds != 2 || width != dim {
        let problem = format!("a cache of {:?} does not fit queries of {:?}", pages.shape, queries.shape);
        return Err(Error::Value(problem)).py();
    }
    let s = pages.strides;
    let call = PagedAttention {
        q: queries.data,
        q_strides: [queries.strides[0], queries.strides[1]],
        cache: pages.data,
        cache_strides: [s[0], s[1], s[2], s[3]],
        pages: of_cache,
        page_tokens,
        table: flat("table", &table)?,
        lengths: flat("lengths", &lengths)?,
        starts: flat("starts", &starts)?,
        tokens,
        heads,
        kv_heads,
        dim,
        scale,
        window,
        softcap,
    };
    let (to, count) = target("out", &out)?;
    // SAFETY: the buffer is contiguous and held until the end; the caller owns the result, and no operand shares its memory.
    let out = unsafe { std::slice::from_raw_parts_mut(to, count) };
    detached(py, || paged_attention(&call, out))
}

/// Write rows of float32 at another rate to ``out``; an output's bits depend on the inputs under the filter alone.
///
/// Parameters
/// ----------
/// x : float32 array
///     [rows, n], contiguous.
/// filters : float32 array
///     [up, taps], contiguous: phase q has taps q, q + up, ... of the filter.
/// out : float32 array
///     [rows, length], contiguous.
/// down : int
///     Divisor of the rate.
/// center : int
///     Tap of the filter that belongs to output 0.
#[pyfunction]
fn resample_rows(
    py: Python<'_>,
    x: PyBuffer<f32>,
    filters: PyBuffer<f32>,
    out: PyBuffer<f32>,
    down: usize,
    center: usize,
) -> PyResult<()> {
    let ([rows, _], [up, _], [to_rows, length]) = (axes("x", &x)?, axes("filters", &filters)?, axes("out", &out)?);
    if rows != to_rows {
        return Err(Error::Value(format!("{rows} rows of inputs and {to_rows} of outputs"))).py();
    }
    let (x, filters) = (flat("x", &x)?, flat("filters", &filters)?);
    let (to, count) = target("out", &out)?;
    // SAFETY: the buffer is contiguous and held until the end; the caller owns the result, and no operand shares its memory.
    let out = unsafe { std::slice::from_raw_parts_mut(to, count) };
    let call = Resample { x, rows, filters, up, down, center, length };
    detached(py, || resample(&call, out))
}

/// Sizes of a matrix.
fn axes(name: &str, array: &PyBuffer<f32>) -> PyResult<[usize; 2]> {
    array.shape().try_into().map_err(|_| Error::Value(format!("'{name}' must have 2 axes"))).py()
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(linear_rows, m)?)?;
    m.add_function(wrap_pyfunction!(paged_attention_rows, m)?)?;
    m.add_function(wrap_pyfunction!(resample_rows, m)?)
}
