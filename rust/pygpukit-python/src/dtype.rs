//! `DataType`: the element types as Python objects.

use pygpukit_core::dtype::{DType, Kind};
use pyo3::basic::CompareOp;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyNotImplemented, PyString, PyTuple};

use crate::errors::raise;

/// Element type of a GPU array: ``pygpukit.float32`` and its siblings. There is one object per type.
///
/// It equals what names the same type: ``"float32"``, ``numpy.float32``, ``numpy.dtype("float32")``. Its hash is that of
/// its name.
#[pyclass(frozen, module = "pygpukit", name = "DataType")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DataType {
    pub dtype: DType,
}

static ALL: PyOnceLock<Vec<Py<DataType>>> = PyOnceLock::new();
/// Python's part of comparisons: the element type that another object names, None, or NotImplemented.
static MEANING: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The one object for an element type.
pub fn object(py: Python<'_>, dtype: DType) -> PyResult<Py<DataType>> {
    let all = ALL.get_or_try_init(py, || {
        DType::ALL.into_iter().map(|dtype| Py::new(py, DataType { dtype })).collect::<PyResult<Vec<_>>>()
    })?;
    Ok(all[dtype.code() as usize].clone_ref(py))
}

#[pymethods]
impl DataType {
    /// The type of a name such as "float32", "bf16" or "float8_e4m3".
    #[staticmethod]
    fn from_name(py: Python<'_>, name: &str) -> PyResult<Py<DataType>> {
        match DType::from_name(name) {
            Some(dtype) => object(py, dtype),
            None => Err(raise("DTypeError", format!("'{name}' is not an element type of a GPU array"))),
        }
    }

    /// NumPy's or ml_dtypes' name.
    #[getter]
    fn name(&self) -> &'static str {
        self.dtype.name()
    }

    /// Short name used in kernel symbols: "f32", "bf16", "e4m3".
    #[getter]
    fn tag(&self) -> &'static str {
        self.dtype.tag()
    }

    /// Bytes of an element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.dtype.itemsize()
    }

    /// Number of the type, the same in every version.
    #[getter]
    fn code(&self) -> u8 {
        self.dtype.code()
    }

    /// "b", "i", "u", "f" or "c".
    #[getter]
    fn kind(&self) -> &'static str {
        match self.dtype.kind() {
            Kind::Bool => "b",
            Kind::Int => "i",
            Kind::UInt => "u",
            Kind::Float => "f",
            Kind::Complex => "c",
        }
    }

    /// An array of this type and a fixed shape, for a field of a message: ``float32[64]``, ``float32[8, 8]``.
    fn __getitem__(slf: Bound<'_, Self>, shape: &Bound<'_, PyAny>) -> PyResult<FixedArray> {
        let size = |one: &Bound<'_, PyAny>| (!one.is_instance_of::<PyBool>()).then(|| one.extract::<usize>().ok())?;
        let sizes: Option<Vec<usize>> = match shape.cast::<PyTuple>() {
            Ok(tuple) => tuple.iter().map(|one| size(&one)).collect(),
            Err(_) => size(shape).map(|size| vec![size]),
        };
        let total = |sizes: &[usize]| sizes.iter().try_fold(1usize, |all, &size| all.checked_mul(size));
        match sizes {
            Some(sizes) if !sizes.is_empty() && total(&sizes).is_some_and(|all| (1..=MAX_ELEMENTS).contains(&all)) => {
                Ok(FixedArray { dtype: slf.get().dtype, shape: sizes })
            }
            _ => Err(raise(
                "ShapeError",
                format!(
                    "{0}[{1}] is not a fixed array: its sizes must be ints from 1, of {MAX_ELEMENTS} elements at most, \
                     as in {0}[64] or {0}[8, 8]",
                    slf.get().__repr__(),
                    shape.str()?
                ),
            )),
        }
    }

    fn __richcmp__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>, op: CompareOp) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        let (CompareOp::Eq | CompareOp::Ne) = op else {
            return Ok(PyNotImplemented::get(py).to_owned().into_any().unbind());
        };
        let other = match (other.cast_exact::<DataType>(), MEANING.get(py)) {
            (Ok(other), _) => Some(other.get().dtype),
            (Err(_), Some(meaning)) => {
                let meant = meaning.bind(py).call1((other,))?;
                if meant.is(PyNotImplemented::get(py)) {
                    return Ok(meant.unbind());
                }
                meant.cast_exact::<DataType>().ok().map(|found| found.get().dtype)
            }
            (Err(_), None) => None,
        };
        let is_wanted = (other == Some(slf.get().dtype)) == matches!(op, CompareOp::Eq);
        Ok(PyBool::new(py, is_wanted).to_owned().into_any().unbind())
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        PyString::intern(py, self.dtype.name()).hash()
    }

    fn __repr__(&self) -> String {
        format!("pygpukit.{}", if self.dtype == DType::Bool { "bool_" } else { self.dtype.name() })
    }

    fn __str__(&self) -> &'static str {
        self.dtype.name()
    }

    fn __reduce__(&self, py: Python<'_>) -> PyResult<(Py<PyAny>, (&'static str,))> {
        let class = py.get_type::<DataType>();
        Ok((class.getattr("from_name")?.unbind(), (self.dtype.name(),)))
    }
}

/// A message holds no more elements than this in one field.
const MAX_ELEMENTS: usize = 1 << 28;

/// Element type and shape of an array inside a message: what ``pygpukit.float32[64]`` is.
#[pyclass(frozen, eq, hash, module = "pygpukit", name = "FixedArray")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct FixedArray {
    dtype: DType,
    shape: Vec<usize>,
}

#[pymethods]
impl FixedArray {
    /// Type of the elements.
    #[getter]
    fn dtype(&self, py: Python<'_>) -> PyResult<Py<DataType>> {
        object(py, self.dtype)
    }

    /// Sizes along the axes.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// Number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of all elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.size() * self.dtype.itemsize()
    }

    fn __repr__(&self) -> String {
        let sizes: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        format!("{}[{}]", DataType { dtype: self.dtype }.__repr__(), sizes.join(", "))
    }
}

/// Give comparisons of element types with other objects their Python side.
#[pyfunction]
fn set_dtype_meaning(py: Python<'_>, meaning: Py<PyAny>) {
    let _ = MEANING.set(py, meaning);
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(set_dtype_meaning, m)?)
}
