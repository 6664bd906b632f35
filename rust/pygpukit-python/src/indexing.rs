//! Basic indexing: which view of an array ints, slices, Ellipsis and None name.

use pygpukit_core::layout::{Layout, MAX_NDIM};
use pyo3::exceptions::PyIndexError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyModule, PySlice, PyTuple};
use smallvec::SmallVec;

use crate::array::{Dims, GPUArray};
use crate::errors::ToPy;
use crate::inside::Inside;

/// One part of an index.
enum Part<'a, 'py> {
    NewAxis,
    Ellipsis,
    Slice(&'a Bound<'py, PySlice>),
    /// And what it was read from. None: beyond what 64 bits hold.
    Index(Option<i64>, &'a Bound<'py, PyAny>),
}

/// Python's part: an integer of what is not an `int`, or the error that says what indexes an array.
static INTEGER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

fn read<'a, 'py>(item: &'a Bound<'py, PyAny>) -> PyResult<Part<'a, 'py>> {
    let py = item.py();
    if let Ok(slice) = item.cast_exact::<PySlice>() {
        return Ok(Part::Slice(slice));
    }
    if let Ok(index) = item.cast_exact::<PyInt>() {
        return Ok(Part::Index(index.extract().ok(), item));
    }
    if item.is_none() {
        return Ok(Part::NewAxis);
    }
    // SAFETY: Ellipsis lives as long as the interpreter.
    if std::ptr::eq(item.as_ptr(), unsafe { ffi::Py_Ellipsis() }) {
        return Ok(Part::Ellipsis);
    }
    let _inside = Inside::enter().py()?;
    let integer = INTEGER.get_or_try_init(py, || {
        PyModule::import(py, "pygpukit.array.indexing")?.getattr("integer").map(Bound::unbind)
    })?;
    Ok(Part::Index(integer.bind(py).call1((item,))?.extract().ok(), item))
}

/// Start, count and step of a slice of an axis, as Python cuts a list.
fn cut(slice: &Bound<'_, PySlice>, length: i64) -> PyResult<(i64, i64, i64)> {
    let found = slice.indices(length as isize)?;
    let count = found.slicelength as i64;
    // A step that leads nowhere may be larger than any stride can be.
    let step = if count > 1 { found.step as i64 } else { 1 };
    Ok((if count > 0 { found.start as i64 } else { 0 }, count, step))
}

/// The view that `key` names.
pub fn view(array: &GPUArray, key: &Bound<'_, PyAny>) -> PyResult<GPUArray> {
    match key.cast::<PyTuple>() {
        Ok(keys) => {
            let items: SmallVec<[_; MAX_NDIM]> = keys.iter().collect();
            view_of(array, &items)
        }
        Err(_) => view_of(array, std::slice::from_ref(key)),
    }
}

fn view_of(array: &GPUArray, items: &[Bound<'_, PyAny>]) -> PyResult<GPUArray> {
    let parts = items.iter().map(read).collect::<PyResult<SmallVec<[_; MAX_NDIM]>>>()?;
    let (shape, strides) = (array.layout.shape(), array.layout.strides());
    let dots = parts.iter().filter(|part| matches!(part, Part::Ellipsis)).count();
    if dots > 1 {
        return Err(PyIndexError::new_err("an index can have only one Ellipsis"));
    }
    let named = parts.iter().filter(|part| matches!(part, Part::Slice(_) | Part::Index(..))).count();
    let Some(rest) = shape.len().checked_sub(named) else {
        let text = format!("too many indices: the array has {} dimensions, but {named} were indexed", shape.len());
        return Err(PyIndexError::new_err(text));
    };
    let (mut lengths, mut steps, mut offset, mut axis) = (Dims::new(), Dims::new(), 0, 0);
    for part in &parts {
        match part {
            Part::NewAxis => {
                lengths.push(1);
                steps.push(0);
            }
            Part::Ellipsis => {
                lengths.extend_from_slice(&shape[axis..axis + rest]);
                steps.extend_from_slice(&strides[axis..axis + rest]);
                axis += rest;
            }
            Part::Slice(slice) => {
                let (start, count, step) = cut(slice, shape[axis])?;
                offset += start * strides[axis];
                lengths.push(count);
                steps.push(strides[axis] * step);
                axis += 1;
            }
            Part::Index(index, item) => {
                let length = shape[axis];
                let Some(index) = index.filter(|index| (-length..length).contains(index)) else {
                    let shown = index.map_or_else(|| shown(item), |index| index.to_string());
                    let text = format!("index {shown} is out of range for axis {axis} of length {length}");
                    return Err(PyIndexError::new_err(text));
                };
                offset += (if index < 0 { index + length } else { index }) * strides[axis];
                axis += 1;
            }
        }
    }
    // The axes that are not named.
    lengths.extend_from_slice(&shape[axis..]);
    steps.extend_from_slice(&strides[axis..]);
    let layout = Layout::with_strides(&lengths, &steps).py()?;
    Ok(array.view(layout, offset))
}

/// An integer of more than 64 bits; Python does not write out thousands of digits.
#[cold]
fn shown(item: &Bound<'_, PyAny>) -> String {
    item.str().map_or_else(|_| "of thousands of digits".to_string(), |text| text.to_string())
}
