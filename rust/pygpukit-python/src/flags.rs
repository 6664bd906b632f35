//! `GPUArray.flags`: what may be done with an array, under NumPy's names.

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyModule;

use crate::array::GPUArray;

/// Flags of an array, under NumPy's names: ``x.flags.writeable`` or ``x.flags["WRITEABLE"]``.
#[pyclass(frozen, module = "pygpukit", name = "ArrayFlags")]
pub struct ArrayFlags {
    array: Py<GPUArray>,
}

#[pymethods]
impl ArrayFlags {
    /// May the array be written through this object? Setting it is `GPUArray.setflags`.
    #[getter]
    fn writeable(&self) -> bool {
        self.array.get().is_writeable()
    }

    #[setter]
    fn set_writeable(&self, write: bool) -> PyResult<()> {
        self.array.get().set_writeable(write)
    }

    /// Are the elements in row-major order without gaps?
    #[getter]
    fn c_contiguous(&self) -> bool {
        self.array.get().layout.is_contiguous()
    }

    /// Are the elements in column-major order without gaps?
    #[getter]
    fn f_contiguous(&self) -> bool {
        let layout = &self.array.get().layout;
        let axes: Vec<usize> = (0..layout.ndim()).rev().collect();
        layout.permute(&axes).is_ok_and(|reversed| reversed.is_contiguous())
    }

    fn __getitem__(&self, name: &str) -> PyResult<bool> {
        match name {
            "WRITEABLE" | "W" => Ok(self.writeable()),
            "C_CONTIGUOUS" | "C" => Ok(self.c_contiguous()),
            "F_CONTIGUOUS" | "F" => Ok(self.f_contiguous()),
            _ => Err(PyKeyError::new_err(format!(
                "no flag is named '{name}'; there are WRITEABLE, C_CONTIGUOUS and F_CONTIGUOUS"
            ))),
        }
    }

    fn __setitem__(&self, name: &str, value: bool) -> PyResult<()> {
        match name {
            "WRITEABLE" | "W" => self.set_writeable(value),
            _ => Err(PyKeyError::new_err(format!("flag '{name}' cannot be set; WRITEABLE can"))),
        }
    }

    fn __repr__(&self) -> String {
        let show = |flag: bool| if flag { "True" } else { "False" };
        format!(
            "  C_CONTIGUOUS : {}\n  F_CONTIGUOUS : {}\n  WRITEABLE : {}\n",
            show(self.c_contiguous()),
            show(self.f_contiguous()),
            show(self.writeable())
        )
    }
}

impl ArrayFlags {
    pub fn of(array: Py<GPUArray>) -> ArrayFlags {
        ArrayFlags { array }
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<ArrayFlags>()
}
