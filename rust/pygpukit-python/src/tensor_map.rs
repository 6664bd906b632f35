//! `TensorMap`: an array and the box of it that a kernel's bulk copies move.

use pygpukit_core::command::Access;
use pygpukit_core::emulator::tensor_map::{MAX_RANK, Swizzle, TensorMap};
use pygpukit_core::error::Error;
use pygpukit_core::tensor_map::{L2Promotion, TensorMapBytes, TensorMapDesc};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::array::GPUArray;
use crate::errors::ToPy;

/// An array as the tensor memory accelerator sees it: a kernel's `CUtensorMap` parameter takes it.
///
/// Parameters
/// ----------
/// array : GPUArray
///     Of one to five dimensions, the last one contiguous; it begins at a multiple of 16 bytes, and so do its other strides.
/// box : tuple of int
///     Elements that one copy moves along each axis, in the order of the array's axes: 1 to 256 each, in rows of a multiple
///     of 16 bytes.
/// access : str
///     ``"read"``, ``"write"`` or ``"readwrite"``: what kernels do to the array through the map. On the CPU device a copy
///     to an array that is read only is an error.
/// swizzle : str
///     ``"none"``, ``"32B"``, ``"64B"`` or ``"128B"``: how the 16-byte units of a box lie in shared memory. A row has no
///     more bytes than that.
/// l2 : str
///     ``"none"``, ``"64B"``, ``"128B"`` or ``"256B"``: bytes that are brought to the L2 cache together.
/// fill : str
///     What elements outside of the array read as: ``"zero"``, or ``"nan"`` for floats on a GPU.
/// steps : tuple of int, optional
///     Every how many elements of the box one is taken along each axis, 1 to 8.
///
/// Examples
/// --------
/// >>> import pygpukit as gp
/// >>> gp.TensorMap(gp.zeros((100, 64), "float16"), box=(32, 64), swizzle="128B").box_bytes
/// 4096
#[pyclass(frozen, weakref, module = "pygpukit", name = "TensorMap")]
pub struct PyTensorMap {
    array: Py<GPUArray>,
    pub access: Access,
    pub bytes: TensorMapBytes,
    desc: TensorMapDesc,
}

impl PyTensorMap {
    #[inline]
    pub fn array(&self) -> &GPUArray {
        self.array.get()
    }
}

#[pymethods]
impl PyTensorMap {
    #[new]
    #[pyo3(signature = (array, r#box, *, access="read", swizzle="none", l2="256B", fill="zero", steps=None))]
    fn new(
        array: Bound<'_, GPUArray>,
        r#box: Vec<i64>,
        access: &str,
        swizzle: &str,
        l2: &str,
        fill: &str,
        steps: Option<Vec<i64>>,
    ) -> PyResult<PyTensorMap> {
        let access = named("access", access, ["read", "write", "readwrite"])?;
        let access = [Access::Read, Access::Write, Access::ReadWrite][access];
        let (swizzle, promotion) = (swizzle_of(swizzle)?, promotion_of(l2)?);
        let nan_fill = named("fill", fill, ["zero", "nan"])? == 1;
        let given = array.get();
        given.touched(access)?;
        let map = geometry(given, &r#box, steps.as_deref(), swizzle, !access.is_written()).py()?;
        let desc = TensorMapDesc { map, dtype: given.dtype, promotion, nan_fill };
        let bytes = given.state.device.encode_tensor_map(&desc).py()?;
        Ok(PyTensorMap { array: array.unbind(), access, bytes, desc })
    }

    /// The array; it lives as long as the map.
    #[getter(array)]
    fn get_array(&self, py: Python<'_>) -> Py<GPUArray> {
        self.array.clone_ref(py)
    }

    /// Elements that one copy moves, by axis.
    #[getter]
    fn r#box<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.desc.map.extents[..self.desc.map.rank].iter().rev())
    }

    /// Bytes of a box in shared memory: what a copy adds to its barrier, also where it hangs over the array's end.
    #[getter]
    fn box_bytes(&self) -> u64 {
        self.desc.map.box_bytes()
    }

    /// The 128 bytes that a kernel is given.
    fn tobytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.bytes)
    }

    fn __repr__(&self) -> String {
        let map = &self.desc.map;
        let sizes = |values: &[String]| values.join(", ");
        let dims: Vec<String> = map.dims[..map.rank].iter().rev().map(u64::to_string).collect();
        let extents: Vec<String> = map.extents[..map.rank].iter().rev().map(u32::to_string).collect();
        format!("<TensorMap {} ({}) box=({})>", self.desc.dtype.name(), sizes(&dims), sizes(&extents))
    }
}

/// Which of the words a keyword is.
fn named<const N: usize>(keyword: &str, word: &str, words: [&str; N]) -> PyResult<usize> {
    words.iter().position(|known| *known == word).ok_or_else(|| {
        let text = format!("{keyword} must be one of '{}', not '{word}'", words.join("', '"));
        crate::errors::to_py(Error::Value(text))
    })
}

pub fn swizzle_of(word: &str) -> PyResult<Swizzle> {
    let index = named("swizzle", word, ["none", "32B", "64B", "128B"])?;
    Ok([Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128][index])
}

pub fn promotion_of(word: &str) -> PyResult<L2Promotion> {
    let index = named("l2", word, ["none", "64B", "128B", "256B"])?;
    Ok([L2Promotion::None, L2Promotion::B64, L2Promotion::B128, L2Promotion::B256][index])
}

/// The map's numbers, whose first dimension is the array's last.
fn geometry(
    array: &GPUArray,
    extents: &[i64],
    steps: Option<&[i64]>,
    swizzle: Swizzle,
    read_only: bool,
) -> pygpukit_core::Result<TensorMap> {
    let fail = |text: String| Err(Error::Value(format!("tensor map: {text}")));
    let (shape, strides) = (array.layout.shape(), array.layout.strides());
    let rank = shape.len();
    if !(1..=MAX_RANK).contains(&rank) {
        return fail(format!("the array has {rank} dimensions; from 1 to {MAX_RANK} are possible"));
    }
    for (what, given) in [("box", Some(extents)), ("steps", steps)] {
        if let Some(given) = given.filter(|given| given.len() != rank) {
            return fail(format!("{what} has {} numbers, and the array {rank} dimensions", given.len()));
        }
    }
    if strides[rank - 1] != 1 && shape[rank - 1] != 1 {
        return fail(format!("the last axis has a stride of {} elements; it must be contiguous", strides[rank - 1]));
    }
    let item = array.dtype.itemsize() as u32;
    let small = |value: i64| u32::try_from(value).unwrap_or(0);
    let mut map = TensorMap {
        address: array.ptr(),
        rank,
        item,
        swizzle,
        dims: [1; MAX_RANK],
        strides: [0; MAX_RANK],
        extents: [1; MAX_RANK],
        steps: [1; MAX_RANK],
        read_only,
    };
    for (i, axis) in (0..rank).rev().enumerate() {
        map.dims[i] = u64::try_from(shape[axis]).unwrap_or(0);
        map.extents[i] = small(extents[axis]);
        map.steps[i] = steps.map_or(1, |steps| small(steps[axis]));
        if i > 0 {
            // An axis of one element may have any stride; hardware wants a good one all the same.
            let bytes = if shape[axis] == 1 { 16 } else { strides[axis].saturating_mul(i64::from(item)) };
            map.strides[i] = u64::try_from(bytes)
                .map_err(|_| Error::Value(format!("tensor map: axis {axis} has a stride of {bytes} bytes")))?;
        }
    }
    Ok(map)
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyTensorMap>()
}
