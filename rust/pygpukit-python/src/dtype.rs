//! `DataType`: the element types as Python objects.

use pygpukit_core::dtype::{DType, Kind};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::errors::raise;

/// Element type of a GPU array: ``pygpukit.float32`` and its siblings. There is one object per type.
#[pyclass(frozen, eq, hash, module = "pygpukit", name = "DataType")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DataType {
    pub dtype: DType,
}

static ALL: PyOnceLock<Vec<Py<DataType>>> = PyOnceLock::new();

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
