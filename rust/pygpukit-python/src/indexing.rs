//! Basic indexing: which view of an array ints, slices, Ellipsis and None name. All other keys are Python's.

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

/// Python's part: keys with index arrays, masks, or what only means an integer.
static GETITEM: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// One part of a key; None for what is not of basic indexing.
fn read<'a, 'py>(item: &'a Bound<'py, PyAny>) -> Option<Part<'a, 'py>> {
    if let Ok(slice) = item.cast_exact::<PySlice>() {
        return Some(Part::Slice(slice));
    }
    if let Ok(index) = item.cast_exact::<PyInt>() {
        return Some(Part::Index(index.extract().ok(), item));
    }
    if item.is_none() {
        return Some(Part::NewAxis);
    }
    // SAFETY: Ellipsis lives as long as the interpreter.
    std::ptr::eq(item.as_ptr(), unsafe { ffi::Py_Ellipsis() }).then_some(Part::Ellipsis)
}

/// What `key` names: a view, or what Python makes of the key.
pub fn item<'py>(array: &Bound<'py, GPUArray>, key: &Bound<'py, PyAny>) -> PyResult<Py<PyAny>> {
    let py = array.py();
    if let Some(view) = view(array.get(), key)? {
        return Ok(Py::new(py, view)?.into_any());
    }
    let _inside = Inside::enter().py()?;
    let getitem = GETITEM.get_or_try_init(py, || {
        PyModule::import(py, "pygpukit.array.indexing")?.getattr("getitem").map(Bound::unbind)
    })?;
    Ok(getitem.bind(py).call1((array, key))?.unbind())
}

/// Start, count and step of a slice of an axis, as Python cuts a list.
fn cut(slice: &Bound<'_, PySlice>, length: i64) -> PyResult<(i64, i64, i64)> {
    let found = slice.indices(length as isize)?;
    let count = found.slicelength as i64;
    // A step that leads nowhere may be larger than any stride can be.
    let step = if count > 1 { found.step as i64 } else { 1 };
    Ok((if count > 0 { found.start as i64 } else { 0 }, count, step))
}

/// The view that `key` names; None for a key that is not of basic indexing.
pub fn view(array: &GPUArray, key: &Bound<'_, PyAny>) -> PyResult<Option<GPUArray>> {
    match key.cast::<PyTuple>() {
        Ok(keys) => {
            let items: SmallVec<[_; MAX_NDIM]> = keys.iter().collect();
            view_of(array, &items)
        }
        Err(_) => view_of(array, std::slice::from_ref(key)),
    }
}

fn view_of(array: &GPUArray, items: &[Bound<'_, PyAny>]) -> PyResult<Option<GPUArray>> {
    let Some(parts) = items.iter().map(read).collect::<Option<SmallVec<[_; MAX_NDIM]>>>() else { return Ok(None) };
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
    Ok(Some(array.view(layout, offset)))
}

/// An integer of more than 64 bits; Python does not write out thousands of digits.
#[cold]
fn shown(item: &Bound<'_, PyAny>) -> String {
    item.str().map_or_else(|_| "of thousands of digits".to_string(), |text| text.to_string())
}
