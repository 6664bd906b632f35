//! Shapes and strides: the arithmetic behind views, broadcasting and elementwise launches.
//!
//! Strides count elements, not bytes, and may be zero (broadcast) or negative (reversed slices).

use crate::error::{Error, Result};

/// Most dimensions an array may have. Kernels carry their shape in fixed arrays of this length.
pub const MAX_NDIM: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    ndim: u8,
    shape: [i64; MAX_NDIM],
    strides: [i64; MAX_NDIM],
}

impl std::fmt::Debug for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Layout({:?}, strides {:?})", self.shape(), self.strides())
    }
}

/// A shape as Python writes it.
pub fn show(shape: &[i64]) -> String {
    match shape {
        [n] => format!("({n},)"),
        _ => format!("({})", shape.iter().map(|d| d.to_string()).collect::<Vec<_>>().join(", ")),
    }
}

impl Layout {
    /// Row-major layout of a shape.
    pub fn contiguous(shape: &[i64]) -> Result<Layout> {
        if shape.len() > MAX_NDIM {
            return Err(Error::Shape(format!(
                "shape {} has {} dimensions; arrays have at most {MAX_NDIM}",
                show(shape),
                shape.len()
            )));
        }
        let mut layout = Layout { ndim: shape.len() as u8, shape: [1; MAX_NDIM], strides: [0; MAX_NDIM] };
        let mut size: i64 = 1;
        for (i, &dim) in shape.iter().enumerate().rev() {
            if dim < 0 {
                return Err(Error::Shape(format!("shape {} has a negative dimension", show(shape))));
            }
            layout.shape[i] = dim;
            layout.strides[i] = size;
            // An empty dimension makes the size zero, but the others must still not overflow.
            size = size
                .checked_mul(dim.max(1))
                .filter(|s| *s <= i64::MAX / 16)
                .ok_or_else(|| Error::Shape(format!("shape {} has too many elements", show(shape))))?;
        }
        Ok(layout)
    }

    /// A layout with given strides (in elements).
    pub fn with_strides(shape: &[i64], strides: &[i64]) -> Result<Layout> {
        let mut layout = Layout::contiguous(shape)?;
        if strides.len() != shape.len() {
            return Err(Error::Shape(format!("{} strides given for shape {}", strides.len(), show(shape))));
        }
        layout.strides[..shape.len()].copy_from_slice(strides);
        Ok(layout)
    }

    pub fn ndim(&self) -> usize {
        self.ndim as usize
    }

    pub fn shape(&self) -> &[i64] {
        &self.shape[..self.ndim as usize]
    }

    pub fn strides(&self) -> &[i64] {
        &self.strides[..self.ndim as usize]
    }

    #[inline]
    pub fn size(&self) -> i64 {
        self.shape().iter().product()
    }

    /// Row-major without gaps. Dimensions of one element do not count; an empty array is contiguous.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for i in (0..self.ndim()).rev() {
            if self.shape[i] != 1 && self.strides[i] != expected {
                return self.size() == 0;
            }
            expected *= self.shape[i];
        }
        true
    }

    /// Lowest and highest element offset reached, inclusive; None when empty.
    pub fn extent(&self) -> Option<(i64, i64)> {
        let (mut low, mut high) = (0, 0);
        for (&dim, &stride) in self.shape().iter().zip(self.strides()) {
            if dim == 0 {
                return None;
            }
            let reach = (dim - 1) * stride;
            if reach < 0 { low += reach } else { high += reach }
        }
        Some((low, high))
    }

    /// Can two different indices reach the same element? Exact for sorted dense layouts, careful otherwise.
    pub fn may_overlap_itself(&self) -> bool {
        let mut dims: Vec<(i64, i64)> = self
            .shape()
            .iter()
            .zip(self.strides())
            .filter(|(dim, _)| **dim > 1)
            .map(|(&dim, &stride)| (stride.abs(), dim))
            .collect();
        if self.size() == 0 {
            return false;
        }
        dims.sort_unstable();
        let mut reach = 0;
        for (stride, dim) in dims {
            if stride <= reach {
                return true;
            }
            reach += stride * (dim - 1);
        }
        false
    }

    /// Reorder the axes.
    pub fn permute(&self, axes: &[usize]) -> Result<Layout> {
        let mut seen = [false; MAX_NDIM];
        let valid = axes.len() == self.ndim()
            && axes.iter().all(|&a| a < self.ndim() && !std::mem::replace(&mut seen[a.min(MAX_NDIM - 1)], true));
        if !valid {
            return Err(Error::Shape(format!(
                "axes {axes:?} are not a permutation of the {} axes of shape {}",
                self.ndim(),
                show(self.shape())
            )));
        }
        let mut out = *self;
        for (i, &axis) in axes.iter().enumerate() {
            out.shape[i] = self.shape[axis];
            out.strides[i] = self.strides[axis];
        }
        Ok(out)
    }

    /// `start`, `count` and `step` elements along one axis; returns the layout and the element offset.
    pub fn slice(&self, axis: usize, start: i64, count: i64, step: i64) -> Result<(Layout, i64)> {
        let dim = *self
            .shape()
            .get(axis)
            .ok_or_else(|| Error::Shape(format!("axis {axis} is out of range for shape {}", show(self.shape()))))?;
        let last = start + (count - 1) * step;
        if count < 0 || (count > 0 && (start < 0 || start >= dim || last < 0 || last >= dim)) {
            return Err(Error::Shape(format!(
                "slice of {count} elements from {start} by {step} leaves axis {axis} of length {dim}"
            )));
        }
        let mut out = *self;
        out.shape[axis] = count;
        out.strides[axis] = self.strides[axis] * step;
        Ok((out, if count == 0 { 0 } else { start * self.strides[axis] }))
    }

    /// Drop an axis at an index; returns the layout and the element offset.
    pub fn select(&self, axis: usize, index: i64) -> Result<(Layout, i64)> {
        let (sliced, offset) = self.slice(axis, index, 1, 1)?;
        let mut out = sliced;
        for i in axis..self.ndim() - 1 {
            out.shape[i] = sliced.shape[i + 1];
            out.strides[i] = sliced.strides[i + 1];
        }
        out.truncate(self.ndim() - 1);
        Ok((out, offset))
    }

    /// The elements whose indices along two axes differ by `offset`, as a last axis; returns the layout and the element
    /// offset.
    pub fn diagonal(&self, first: usize, second: usize, offset: i64) -> Result<(Layout, i64)> {
        if first == second || first.max(second) >= self.ndim() {
            return Err(Error::Shape(format!(
                "a diagonal of shape {} needs two of its axes, not {first} and {second}",
                show(self.shape())
            )));
        }
        let (row, column) = (offset.min(0).saturating_neg(), offset.max(0));
        let count = self.shape[first].saturating_sub(row).min(self.shape[second].saturating_sub(column)).max(0);
        let (mut shape, mut strides) = (Vec::with_capacity(MAX_NDIM), Vec::with_capacity(MAX_NDIM));
        for i in (0..self.ndim()).filter(|i| *i != first && *i != second) {
            shape.push(self.shape[i]);
            strides.push(self.strides[i]);
        }
        shape.push(count);
        strides.push(self.strides[first] + self.strides[second]);
        let start = if count > 0 { row * self.strides[first] + column * self.strides[second] } else { 0 };
        Ok((Layout::with_strides(&shape, &strides)?, start))
    }

    /// Every run of `length` elements along an axis as a last axis: elements of runs that overlap are the same.
    pub fn windows(&self, axis: usize, length: i64) -> Result<Layout> {
        if axis >= self.ndim() || self.ndim() == MAX_NDIM || length < 0 || length > self.shape[axis] {
            return Err(Error::Shape(format!(
                "there are no windows of {length} elements along axis {axis} of shape {} (at most {MAX_NDIM} dimensions)",
                show(self.shape())
            )));
        }
        let (mut shape, mut strides) = (self.shape().to_vec(), self.strides().to_vec());
        strides.push(strides[axis]);
        shape[axis] -= (length - 1).max(0);
        shape.push(length);
        Layout::with_strides(&shape, &strides)
    }

    /// Insert an axis of one element.
    pub fn expand(&self, axis: usize) -> Result<Layout> {
        if self.ndim() == MAX_NDIM || axis > self.ndim() {
            return Err(Error::Shape(format!(
                "cannot insert axis {axis} into shape {} (at most {MAX_NDIM} dimensions)",
                show(self.shape())
            )));
        }
        let mut out = *self;
        for i in (axis..self.ndim()).rev() {
            out.shape[i + 1] = self.shape[i];
            out.strides[i + 1] = self.strides[i];
        }
        out.shape[axis] = 1;
        out.strides[axis] = 0;
        out.ndim += 1;
        Ok(out)
    }

    /// The same elements in a new shape without copying, or None when strides forbid it. At most one
    /// dimension may be -1 and is worked out.
    pub fn reshape(&self, shape: &[i64]) -> Result<Option<Layout>> {
        let mismatch = || {
            Error::Shape(format!("cannot reshape {} ({} elements) to {}", show(self.shape()), self.size(), show(shape)))
        };
        let mut wanted: Vec<i64> = shape.to_vec();
        let unknown: Vec<usize> = (0..wanted.len()).filter(|&i| wanted[i] == -1).collect();
        if unknown.len() > 1 || wanted.iter().any(|&d| d < -1) {
            return Err(mismatch());
        }
        if let [i] = unknown[..] {
            let known =
                wanted.iter().filter(|&&d| d != -1).try_fold(1i64, |a, &d| a.checked_mul(d)).ok_or_else(mismatch)?;
            if known == 0 || self.size() % known != 0 {
                return Err(mismatch());
            }
            wanted[i] = self.size() / known;
        }
        let mut out = Layout::contiguous(&wanted)?;
        if out.size() != self.size() {
            return Err(mismatch());
        }
        if self.size() == 0 || self.is_contiguous() {
            return Ok(Some(out));
        }
        // Match runs of old and new dimensions with equal products; within a run the old one must be dense.
        let old: Vec<(i64, i64)> =
            self.shape().iter().copied().zip(self.strides().iter().copied()).filter(|(d, _)| *d != 1).collect();
        let (mut i, mut j) = (0, 0);
        while i < old.len() {
            let (mut have, mut want) = (old[i].0, 1);
            let (first_old, first_new) = (i, j);
            i += 1;
            loop {
                if have == want {
                    break;
                }
                if want < have {
                    let Some(&d) = out.shape().get(j) else { return Ok(None) };
                    want *= d;
                    j += 1;
                } else {
                    let Some(&(d, _)) = old.get(i) else { return Ok(None) };
                    have *= d;
                    i += 1;
                }
            }
            for pair in old[first_old..i].windows(2) {
                if pair[0].1 != pair[1].0 * pair[1].1 {
                    return Ok(None);
                }
            }
            let mut stride = old[i - 1].1;
            for axis in (first_new..j).rev() {
                out.strides[axis] = stride;
                stride *= out.shape[axis];
            }
        }
        Ok(Some(out))
    }

    /// Stretch to a larger shape with zero strides.
    pub fn broadcast_to(&self, shape: &[i64]) -> Result<Layout> {
        let fail = || Error::Shape(format!("cannot broadcast shape {} to {}", show(self.shape()), show(shape)));
        if shape.len() < self.ndim() {
            return Err(fail());
        }
        let mut out = Layout::contiguous(shape)?;
        let lead = shape.len() - self.ndim();
        for (i, &dim) in shape.iter().enumerate() {
            out.strides[i] = if i < lead {
                0
            } else if self.shape[i - lead] == dim {
                self.strides[i - lead]
            } else if self.shape[i - lead] == 1 {
                0
            } else {
                return Err(fail());
            };
        }
        Ok(out)
    }

    fn truncate(&mut self, ndim: usize) {
        for i in ndim..MAX_NDIM {
            self.shape[i] = 1;
            self.strides[i] = 0;
        }
        self.ndim = ndim as u8;
    }
}

/// The shape NumPy's broadcasting gives for several shapes.
pub fn broadcast_shapes(shapes: &[&[i64]]) -> Result<Vec<i64>> {
    let ndim = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    let mut out = vec![1; ndim];
    for shape in shapes {
        let lead = ndim - shape.len();
        for (i, &dim) in shape.iter().enumerate() {
            let have = &mut out[lead + i];
            if *have == 1 {
                *have = dim;
            } else if dim != 1 && dim != *have {
                let all: Vec<String> = shapes.iter().map(|s| show(s)).collect();
                return Err(Error::Shape(format!("shapes {} cannot be broadcast together", all.join(" and "))));
            }
        }
    }
    Ok(out)
}

/// Several layouts over one index space, with dimensions merged where all of them allow it.
#[derive(Clone, Debug)]
pub struct Collapsed<const K: usize> {
    pub ndim: usize,
    pub shape: [i64; MAX_NDIM],
    pub strides: [[i64; MAX_NDIM]; K],
}

/// Merge the dimensions of K layouts of one shape. The order of elements stays row-major.
pub fn collapse<const K: usize>(layouts: &[Layout; K]) -> Collapsed<K> {
    let mut out = Collapsed { ndim: 0, shape: [1; MAX_NDIM], strides: [[0; MAX_NDIM]; K] };
    for (axis, &dim) in layouts[0].shape().iter().enumerate() {
        if dim == 1 {
            continue;
        }
        let merges = out.ndim > 0 && (0..K).all(|k| out.strides[k][out.ndim - 1] == layouts[k].strides[axis] * dim);
        if !merges {
            out.ndim += 1;
        }
        let last = out.ndim - 1;
        out.shape[last] = if merges { out.shape[last] * dim } else { dim };
        for (k, layout) in layouts.iter().enumerate() {
            out.strides[k][last] = layout.strides[axis];
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every element offset in row-major index order: the model all transformations are checked against.
    fn offsets(layout: &Layout, base: i64) -> Vec<i64> {
        let mut out = vec![base];
        for (&dim, &stride) in layout.shape().iter().zip(layout.strides()) {
            out = out.iter().flat_map(|o| (0..dim).map(move |i| o + i * stride)).collect();
        }
        out
    }

    fn any_shape() -> impl Strategy<Value = Vec<i64>> {
        prop::collection::vec(0i64..5, 0..5)
    }

    /// A shape and a view of it made by random permutation and slicing.
    fn any_view() -> impl Strategy<Value = (Layout, i64)> {
        (any_shape(), prop::collection::vec((0usize..8, any::<u8>(), any::<u8>(), -3i64..4), 0..4)).prop_map(
            |(shape, steps)| {
                let mut layout = Layout::contiguous(&shape).unwrap();
                let mut base = 0;
                for (axis, start, count, step) in steps {
                    if layout.ndim() == 0 {
                        continue;
                    }
                    let axis = axis % layout.ndim();
                    let dim = layout.shape()[axis];
                    if dim > 0 && step != 0 {
                        let start = start as i64 % dim;
                        let most = if step > 0 { (dim - 1 - start) / step + 1 } else { start / -step + 1 };
                        let (next, offset) = layout.slice(axis, start, count as i64 % (most + 1), step).unwrap();
                        layout = next;
                        base += offset;
                    }
                    let mut axes: Vec<usize> = (0..layout.ndim()).collect();
                    axes.rotate_left(axis);
                    layout = layout.permute(&axes).unwrap();
                }
                (layout, base)
            },
        )
    }

    #[test]
    fn a_diagonal_of_two_axes() {
        let layout = Layout::contiguous(&[2, 3, 4]).unwrap();
        for (first, second, above, base, shape, strides) in [
            (1, 2, 0, 0, [2, 3], [12, 5]),
            (2, 1, 0, 0, [2, 3], [12, 5]),
            (1, 2, 2, 2, [2, 2], [12, 5]),
            (1, 2, -1, 4, [2, 2], [12, 5]),
            (0, 2, 0, 0, [3, 2], [4, 13]),
            (1, 2, 4, 0, [2, 0], [12, 5]),
            (1, 2, i64::MIN, 0, [2, 0], [12, 5]),
            (1, 2, i64::MAX, 0, [2, 0], [12, 5]),
        ] {
            let (made, offset) = layout.diagonal(first, second, above).unwrap();
            assert_eq!((made.shape(), made.strides(), offset), (&shape[..], &strides[..], base), "{above}");
        }
        assert!(layout.diagonal(1, 1, 0).is_err() && layout.diagonal(0, 3, 0).is_err());
    }

    proptest! {
        #[test]
        fn contiguous_layouts_count_up(shape in any_shape()) {
            let layout = Layout::contiguous(&shape).unwrap();
            let expected: Vec<i64> = (0..layout.size()).collect();
            prop_assert_eq!(offsets(&layout, 0), expected);
            prop_assert!(layout.is_contiguous());
        }

        #[test]
        fn is_contiguous_means_offsets_are_consecutive((layout, base) in any_view()) {
            let all = offsets(&layout, base);
            let consecutive = all.windows(2).all(|w| w[1] == w[0] + 1);
            prop_assert_eq!(layout.is_contiguous(), consecutive);
        }

        #[test]
        fn views_never_overlap_themselves((layout, _) in any_view()) {
            let mut all = offsets(&layout, 0);
            all.sort_unstable();
            let distinct = all.windows(2).all(|w| w[0] != w[1]);
            prop_assert!(distinct);
            if let Some((low, high)) = layout.extent() {
                prop_assert_eq!((low, high), (all[0], all[all.len() - 1]));
            }
        }

        #[test]
        fn overlap_is_never_missed(shape in prop::collection::vec(1i64..4, 0..4),
                                   strides in prop::collection::vec(-4i64..5, 4)) {
            let layout = Layout::with_strides(&shape, &strides[..shape.len()]).unwrap();
            let mut all = offsets(&layout, 0);
            all.sort_unstable();
            if all.windows(2).any(|w| w[0] == w[1]) {
                prop_assert!(layout.may_overlap_itself());
            }
        }

        #[test]
        fn reshape_keeps_the_elements_in_order((layout, base) in any_view(), split in 1i64..4, flat in any::<bool>()) {
            let size = layout.size();
            let wanted: Vec<i64> = if flat { vec![-1] } else if size % split == 0 { vec![split, -1, 1] } else { vec![size] };
            match layout.reshape(&wanted) {
                Ok(Some(view)) => prop_assert_eq!(offsets(&view, base), offsets(&layout, base)),
                Ok(None) => prop_assert!(!layout.is_contiguous()),
                Err(_) => prop_assert_eq!(size, 0),
            }
        }

        #[test]
        fn broadcasting_repeats_elements(shape in prop::collection::vec(1i64..4, 0..4), ones in any::<u8>(), lead in 0usize..3) {
            let small: Vec<i64> = shape.iter().enumerate().map(|(i, &d)| if ones >> i & 1 == 1 { 1 } else { d }).collect();
            let mut big = vec![2; lead];
            big.extend(&shape);
            let layout = Layout::contiguous(&small).unwrap();
            prop_assert_eq!(broadcast_shapes(&[&small, &big]).unwrap(), big.clone());
            let view = layout.broadcast_to(&big).unwrap();
            prop_assert_eq!(view.shape(), &big[..]);
            let all = offsets(&view, 0);
            prop_assert!(all.iter().all(|&o| o < layout.size()));
        }

        #[test]
        fn collapsing_keeps_every_operand_in_order((a, _) in any_view(), dense in any::<bool>()) {
            let b = if dense { Layout::contiguous(a.shape()).unwrap() } else { a };
            let merged = collapse(&[a, b]);
            for (k, layout) in [a, b].iter().enumerate() {
                let view = Layout::with_strides(&merged.shape[..merged.ndim], &merged.strides[k][..merged.ndim]).unwrap();
                if a.size() > 0 {
                    prop_assert_eq!(offsets(&view, 0), offsets(layout, 0));
                }
            }
            if dense && a.is_contiguous() && a.size() > 0 {
                prop_assert!(merged.ndim <= 1);
            }
        }

        #[test]
        fn hostile_shapes_are_errors_not_overflows(shape in prop::collection::vec(any::<i64>(), 0..10)) {
            let _ = Layout::contiguous(&shape);
            let _ = Layout::contiguous(&[2, 3]).unwrap().reshape(&shape);
        }
    }

    #[test]
    fn diagonals_are_views_of_any_layout() {
        let dense = Layout::contiguous(&[3, 4]).unwrap();
        let (turned, _) = dense.permute(&[1, 0]).unwrap().slice(0, 3, 2, -2).unwrap();
        for (layout, offset, expected) in [
            (dense, 0, vec![0, 5, 10]),
            (dense, 2, vec![2, 7]),
            (dense, -1, vec![4, 9]),
            (dense, 4, vec![]),
            (dense, i64::MIN, vec![]),
            (turned, 1, vec![4, 6]),
        ] {
            let (diagonal, start) = layout.diagonal(0, 1, offset).unwrap();
            assert_eq!(offsets(&diagonal, start), expected, "{layout:?} {offset}");
        }
        let (last, start) = Layout::contiguous(&[2, 3, 2]).unwrap().diagonal(2, 0, 0).unwrap();
        assert_eq!((last.shape(), last.strides(), start), (&[3, 2][..], &[2, 7][..], 0));
        assert!(dense.diagonal(1, 1, 0).is_err());
        let windows = dense.windows(1, 3).unwrap();
        assert_eq!((windows.shape(), windows.strides()), (&[3, 2, 3][..], &[4, 1, 1][..]));
        assert_eq!(dense.windows(0, 0).unwrap().shape(), &[3, 4, 0]);
        assert!(dense.windows(1, 5).is_err() && dense.windows(2, 1).is_err() && dense.windows(0, -1).is_err());
        assert!(dense.diagonal(0, 2, 0).is_err());
    }

    #[test]
    fn messages_name_the_shapes() {
        let a = Layout::contiguous(&[2, 3]).unwrap();
        let text = broadcast_shapes(&[&[2, 3], &[4]]).unwrap_err().to_string();
        assert_eq!(text, "shapes (2, 3) and (4,) cannot be broadcast together");
        assert!(a.reshape(&[4]).unwrap_err().to_string().contains("(2, 3) (6 elements) to (4,)"));
        assert!(a.permute(&[0, 0]).is_err());
        assert!(a.permute(&[0, 9]).is_err());
        assert!(a.select(2, 0).is_err());
        assert!(Layout::contiguous(&[1; 9]).is_err());
    }
}
