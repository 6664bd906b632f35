//! Elementwise launches: from operands to the argument block of a kernel.
//!
//! Two entry points exist per operator and type combination (kernels/common/elementwise.cuh): a dense one for
//! operands that are contiguous or single elements, and one that walks strides. The byte layout written here
//! is the one declared there.

use crate::device::DevPtr;
use crate::error::Result;
use crate::layout::{Layout, MAX_NDIM, collapse};

/// Most inputs an elementwise operator has.
pub const MAX_INPUTS: usize = 3;

/// An input: an array, or a scalar already encoded in the compute type.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    Array { ptr: DevPtr, layout: &'a Layout, itemsize: usize },
    Scalar([u8; 16]),
}

/// What the kernel side fixes: size of the compute type and elements per vector access.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub compute_size: usize,
    pub vector: usize,
}

/// Most bytes an argument block has: three operands of complex128 with shape and strides.
const MAX_ARGS: usize = 8 + MAX_INPUTS * 32 + 8 + 8 + 8 * MAX_NDIM * (MAX_INPUTS + 2);

/// A packed launch.
pub struct Packed {
    pub dense: bool,
    pub n: i64,
    bytes: [u8; MAX_ARGS],
    len: usize,
}

impl Default for Packed {
    #[inline]
    fn default() -> Packed {
        Packed { dense: false, n: 0, bytes: [0; MAX_ARGS], len: 0 }
    }
}

impl Packed {
    #[inline]
    pub fn args(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    #[inline]
    fn put<const N: usize>(&mut self, value: [u8; N]) {
        self.bytes[self.len..self.len + N].copy_from_slice(&value);
        self.len += N;
    }

    /// Pointer, step, and the scalar padded to a multiple of eight bytes.
    #[inline]
    fn put_operand(&mut self, ptr: DevPtr, step: i64, value: &[u8; 16], compute_size: usize) {
        self.put(ptr.to_le_bytes());
        self.put(step.to_le_bytes());
        self.put(*value);
        // Sixteen bytes were written; only those of the padded value count.
        self.len -= 16 - compute_size.next_multiple_of(8);
    }
}

/// Pack the argument block for `out = op(inputs...)`; every input already broadcasts to `out`'s shape. It is written
/// in place: the block is large to move.
#[inline]
pub fn pack(
    packed: &mut Packed,
    out_ptr: DevPtr,
    out: &Layout,
    out_itemsize: usize,
    inputs: &[Input<'_>],
    shape: Shape,
) -> Result<()> {
    let n = out.size();
    let mut dense = out.is_contiguous();
    let mut aligned = out_ptr.is_multiple_of((shape.vector * out_itemsize) as u64);
    for input in inputs {
        if let Input::Array { ptr, layout, itemsize } = input {
            if layout.size() == 1 {
                continue;
            }
            dense = dense && layout.shape() == out.shape() && layout.is_contiguous();
            aligned = aligned && ptr.is_multiple_of((shape.vector * itemsize) as u64);
        }
    }
    (packed.dense, packed.n, packed.len) = (dense, n, 0);
    packed.put(out_ptr.to_le_bytes());
    if dense {
        for input in inputs {
            match input {
                Input::Array { ptr, layout, .. } => {
                    let step = i64::from(n == 1 || layout.size() != 1);
                    packed.put_operand(*ptr, step, &[0; 16], shape.compute_size);
                }
                Input::Scalar(value) => packed.put_operand(0, 0, value, shape.compute_size),
            }
        }
        packed.put(n.to_le_bytes());
        packed.put(i32::from(aligned).to_le_bytes());
        return Ok(());
    }
    let mut layouts = [*out; MAX_INPUTS + 1];
    for (slot, input) in layouts[1..].iter_mut().zip(inputs) {
        if let Input::Array { layout, .. } = input {
            *slot = layout.broadcast_to(out.shape())?;
        }
    }
    for input in inputs {
        match input {
            Input::Array { ptr, .. } => packed.put_operand(*ptr, 1, &[0; 16], shape.compute_size),
            Input::Scalar(value) => packed.put_operand(0, 0, value, shape.compute_size),
        }
    }
    let merged = collapse(&layouts);
    packed.put(n.to_le_bytes());
    packed.put((merged.ndim as i32).to_le_bytes());
    packed.put(0i32.to_le_bytes());
    for word in merged.shape.into_iter().chain(merged.strides[..=inputs.len()].iter().flatten().copied()) {
        packed.put(word.to_le_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const F32: Shape = Shape { compute_size: 4, vector: 4 };

    fn packed(out_ptr: u64, out: &Layout, inputs: &[Input<'_>]) -> Packed {
        let mut packed = Packed::default();
        pack(&mut packed, out_ptr, out, 4, inputs, F32).unwrap();
        packed
    }

    fn word(args: &[u8], at: usize) -> i64 {
        i64::from_le_bytes(args[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn dense_operands_scalars_and_single_elements_use_the_dense_kernel() {
        let out = Layout::contiguous(&[3, 5]).unwrap();
        let one = Layout::contiguous(&[1]).unwrap();
        let inputs = [
            Input::Array { ptr: 4096, layout: &out, itemsize: 4 },
            Input::Array { ptr: 4, layout: &one, itemsize: 4 },
            Input::Scalar([7; 16]),
        ];
        let packed = packed(512, &out, &inputs);
        assert!(packed.dense);
        assert_eq!(packed.n, 15);
        assert_eq!(packed.args().len(), 8 + 3 * 24 + 8 + 4);
        assert_eq!((word(packed.args(), 8), word(packed.args(), 16)), (4096, 1));
        assert_eq!((word(packed.args(), 32), word(packed.args(), 40)), (4, 0));
        assert_eq!((word(packed.args(), 56), word(packed.args(), 64)), (0, 0));
        assert_eq!(&packed.args()[72..80], &[7; 8]);
        assert_eq!(word(packed.args(), 80), 15);
        assert_eq!(packed.args()[88], 1);
    }

    #[test]
    fn unaligned_pointers_clear_the_vector_flag() {
        let out = Layout::contiguous(&[8]).unwrap();
        let input = [Input::Array { ptr: 4100, layout: &out, itemsize: 4 }];
        let packed = packed(512, &out, &input);
        assert!(packed.dense);
        assert_eq!(packed.args()[packed.args().len() - 4], 0);
    }

    #[test]
    fn strided_and_broadcast_operands_carry_merged_strides() {
        let out = Layout::contiguous(&[2, 3, 4]).unwrap();
        let row = Layout::contiguous(&[4]).unwrap();
        let turned = Layout::contiguous(&[4, 2, 3]).unwrap().permute(&[1, 2, 0]).unwrap();
        let inputs = [
            Input::Array { ptr: 64, layout: &turned, itemsize: 4 },
            Input::Array { ptr: 128, layout: &row, itemsize: 4 },
        ];
        let packed = packed(512, &out, &inputs);
        assert!(!packed.dense);
        let at = 8 + 2 * 24;
        assert_eq!(word(packed.args(), at), 24);
        assert_eq!(packed.args()[at + 8], 2, "the first two axes merge for all operands");
        let (shape, strides) = (at + 16, at + 16 + 64);
        assert_eq!((word(packed.args(), shape), word(packed.args(), shape + 8)), (6, 4));
        assert_eq!((word(packed.args(), strides), word(packed.args(), strides + 8)), (4, 1));
        assert_eq!((word(packed.args(), strides + 64), word(packed.args(), strides + 72)), (1, 6));
        assert_eq!((word(packed.args(), strides + 128), word(packed.args(), strides + 136)), (0, 1));
        assert_eq!(packed.args().len(), at + 16 + 64 + 3 * 64);
    }
}
