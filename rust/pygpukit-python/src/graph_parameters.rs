//! Parameters of graphs: numbers and arrays that a replay sets by name.

use std::sync::Arc;

use pygpukit_core::command::{Access, Command, Copy, CopyKind, Work};
use pygpukit_core::dtype::DType;
use pygpukit_core::exec::ExecCtx;
use pygpukit_core::graph::{ArrayParameter, Given, SLOT, ScalarValue, Scalars};
use pygpukit_core::launch::submit;
use pygpukit_core::layout::{Layout, show};
use pygpukit_core::memory::Storage;
use pyo3::prelude::*;
use smallvec::smallvec;

use crate::array::GPUArray;
use crate::errors::{ToPy, raise};
use crate::scalar::Scalar;

/// Kernels were chosen for the alignment of the named array, as far as it is at most this.
const MAX_ALIGN: u64 = 128;

/// A parameter: a number in the block, or an array.
#[derive(Clone)]
pub(crate) enum Parameter {
    Number { slot: usize, dtype: DType },
    Array(NamedArray),
}

#[derive(Clone)]
pub(crate) struct NamedArray {
    index: usize,
    shape: Vec<i64>,
    dtype: DType,
    memory: ArrayParameter,
}

#[derive(Clone, Default)]
pub(crate) struct Parameters {
    scalars: Scalars,
    names: Vec<(String, Parameter)>,
    numbers: usize,
    arrays: usize,
}

/// What a replay was given.
#[derive(Default)]
pub(crate) struct Settings {
    pub scalars: Vec<ScalarValue>,
    pub arrays: Vec<(usize, Given)>,
}

fn misuse(text: String) -> PyErr {
    raise("GraphError", text)
}

impl Parameters {
    pub fn scalars(&self) -> &Scalars {
        &self.scalars
    }

    pub fn check_name(&self, name: &str) -> Result<(), String> {
        match self.names.iter().any(|(known, _)| known == name) {
            true => Err(format!("the graph already has a parameter named '{name}'")),
            false => Ok(()),
        }
    }

    /// Add a number; the spare memory is used when what there is has no room.
    pub fn add_number(&mut self, name: String, dtype: DType, spare: &Arc<Storage>) -> (Arc<Storage>, usize) {
        let slot = self.numbers;
        self.numbers += 1;
        if !self.scalars.has_room(slot) {
            self.scalars.grow(spare.clone());
        }
        self.names.push((name, Parameter::Number { slot, dtype }));
        self.scalars.place(slot)
    }

    pub fn add_array(&mut self, name: String, array: &GPUArray) -> Result<(), String> {
        let shape = array.layout.shape();
        if array.layout.size() == 0 {
            return Err(format!("parameter '{name}' is an array without elements, which nothing reads"));
        }
        if !array.layout.is_contiguous() {
            return Err(format!(
                "parameter '{name}' must be a contiguous array; the one of shape {} is not. Pass x.contiguous()",
                show(shape)
            ));
        }
        let bytes = (array.layout.size() as usize * array.dtype.itemsize()) as u64;
        let first = array.ptr();
        for (other, parameter) in &self.names {
            if let Parameter::Array(NamedArray { memory, .. }) = parameter
                && memory.first < first + bytes
                && first < memory.first + memory.bytes
            {
                return Err(format!("parameter '{name}' has memory in common with parameter '{other}'"));
            }
        }
        let memory = ArrayParameter { first, bytes, storage: array.storage.clone() };
        let named = NamedArray { index: self.arrays, shape: shape.to_vec(), dtype: array.dtype, memory };
        self.arrays += 1;
        self.names.push((name, Parameter::Array(named)));
        Ok(())
    }

    /// The named arrays, by their numbers.
    pub fn arrays(&self) -> Vec<ArrayParameter> {
        let array = |(_, parameter): &(String, Parameter)| match parameter {
            Parameter::Array(named) => Some(named.memory.clone()),
            Parameter::Number { .. } => None,
        };
        self.names.iter().filter_map(array).collect()
    }

    fn find(&self, name: &str) -> PyResult<&Parameter> {
        let found = self.names.iter().find(|(known, _)| known == name).map(|(_, parameter)| parameter);
        found.ok_or_else(|| {
            let known: Vec<&str> = self.names.iter().map(|(n, _)| n.as_str()).collect();
            misuse(format!("the graph has no parameter '{name}'; it has: {}", known.join(", ")))
        })
    }

    /// What a replay sets one parameter to.
    pub fn read(&self, name: &str, value: &Bound<'_, PyAny>, into: &mut Settings) -> PyResult<()> {
        match self.find(name)? {
            Parameter::Number { slot, dtype } => {
                let scalar = Scalar::read(value)?.ok_or_else(|| {
                    misuse(format!("parameter '{name}' is a number; its value must be a Python number"))
                })?;
                into.scalars.push((*slot, scalar.element(*dtype)?));
            }
            Parameter::Array(named) => {
                let Ok(array) = value.cast_exact::<GPUArray>() else {
                    return Err(misuse(format!(
                        "parameter '{name}' is an array; its value must be a GPUArray, not {}",
                        value.get_type()
                    )));
                };
                into.arrays.push((named.index, named.given(name, array.get())?));
            }
        }
        Ok(())
    }
}

impl NamedArray {
    fn given(&self, name: &str, array: &GPUArray) -> PyResult<Given> {
        let fail = |text: String| Err(misuse(format!("parameter '{name}': {text}")));
        if array.dtype != self.dtype || array.layout.shape() != self.shape.as_slice() {
            return fail(format!(
                "the graph was captured with {} of shape {}, and can be replayed with such arrays only, not with {} of \
                 shape {}",
                self.dtype.name(),
                show(&self.shape),
                array.dtype.name(),
                show(array.layout.shape())
            ));
        }
        if !array.layout.is_contiguous() {
            return fail("the array is not contiguous; pass x.contiguous()".to_string());
        }
        let align = 1u64 << self.memory.first.trailing_zeros().min(MAX_ALIGN.trailing_zeros());
        if !array.ptr().is_multiple_of(align) {
            return fail(format!(
                "the array starts at an address that is not a multiple of {align}, as that of the captured one is; pass \
                 x.copy()"
            ));
        }
        let (first, storage, writeable) = (array.ptr(), array.storage.clone(), array.is_writeable());
        Ok(Given { first, storage, writeable })
    }
}

/// Put the first value of a number into device memory, in stream order.
pub(crate) fn write_number(ctx: &ExecCtx, array: &GPUArray, value: Scalar) -> PyResult<()> {
    let kept: Arc<[u8; SLOT]> = Arc::new(value.element(array.dtype)?);
    let copy = Copy {
        kind: CopyKind::HostToDevice,
        dst: array.ptr(),
        src: kept.as_ptr() as u64,
        bytes: array.dtype.itemsize(),
        keep: Some(kept),
    };
    submit(ctx, Command { work: Work::Copy(copy), uses: smallvec![array.used(Access::Write)?], cost_key: 0 }).py()
}

/// The array of a number.
pub(crate) fn number_array(ctx: &ExecCtx, place: (Arc<Storage>, usize), dtype: DType) -> PyResult<GPUArray> {
    Ok(GPUArray::of(ctx.state, place.0, place.1, Layout::contiguous(&[]).py()?, dtype))
}
