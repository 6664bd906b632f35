//! Matrix instructions: products, and matrices in shared memory.

use super::instruction::Op;
use super::memory::Where;
use super::operands::describe;
use super::{Lower, Result, Type, Width};
use crate::emulator::code::{Class, Handler};
use crate::emulator::exec::fragments::{Element, Fragment, Matrix, Product, Shape};
use crate::emulator::exec::matrix::*;
use crate::emulator::exec::memory::{Kind, pack_access};
use crate::emulator::exec::wmma;
use crate::emulator::ptx::ast::Operand;

impl<'a> Lower<'a> {
    /// Lower a matrix instruction; false when it is not one.
    pub(super) fn matrix(&mut self, op: &mut Op<'_, 'a>) -> Result<bool> {
        if !matches!(op.name, "mma" | "wmma" | "ldmatrix" | "stmatrix" | "movmatrix") {
            return Ok(false);
        }
        if !op.take("sync") || !op.take("aligned") {
            return self.err(format!("'{}' must have '.sync.aligned'", op.full_name()));
        }
        match op.name {
            "mma" => self.mma(op)?,
            "ldmatrix" => {
                self.count(op, 2)?;
                self.matrix_access(op, &op.operands[0], &op.operands[1], false)?;
            }
            "stmatrix" => {
                self.count(op, 2)?;
                self.matrix_access(op, &op.operands[1], &op.operands[0], true)?;
            }
            "movmatrix" => {
                if !op.take("m8n8") || !op.take("trans") || !op.take("b16") {
                    return self.err(format!("'{}' is not supported: only m8n8.trans.b16 is", op.full_name()));
                }
                self.emit1(op, Class::Matrix, move_matrix, Type::B32, Type::B32)?;
            }
            _ => match op.take_any(&["load", "store", "mma"]) {
                Some("mma") => self.wmma_product(op)?,
                Some(action) => self.wmma_access(op, action == "store")?,
                None => return self.err(format!("'{}' is not an instruction of PTX", op.full_name())),
            },
        }
        Ok(true)
    }

    /// `ldmatrix` and `stmatrix` of 8x8 matrices of 16-bit elements.
    fn matrix_access(
        &mut self,
        op: &mut Op<'_, 'a>,
        registers: &Operand<'a>,
        place: &Operand<'a>,
        write: bool,
    ) -> Result<()> {
        let count = match op.take_any(&["x1", "x2", "x4"]) {
            Some("x1") => 1,
            Some("x2") => 2,
            Some("x4") => 4,
            _ => return self.err(format!("'{}' does not say how many matrices: .x1, .x2 or .x4", op.full_name())),
        };
        if !op.take("m8n8") || !op.take("b16") {
            let name = op.full_name();
            return self
                .err(format!("'{name}' is not supported: only 8x8 matrices of 16-bit elements (.m8n8, .b16) are"));
        }
        let mut flags = if op.take("trans") { TRANSPOSED } else { 0 };
        if op.take_any(&["shared", "shared::cta"]).is_none() {
            flags |= GENERIC_ADDRESS;
        }
        let list = self.fragment_rows(registers, Type::B32, count, write)?;
        let address = self.address(place)?;
        if address.wide {
            flags |= WIDE_ADDRESS;
        } else if flags & GENERIC_ADDRESS != 0 {
            return self.err(format!("the generic address {} must have 64 bits", describe(place)));
        }
        let handler: Handler = if write { store_matrix } else { load_matrix };
        self.emit(Class::Shared, handler, [0, address.row, flags, 0], pack_access(address.offset, list));
        Ok(())
    }

    /// The list of the registers of a fragment: sources, or destinations unless `source`.
    fn fragment_rows(&mut self, operand: &Operand<'a>, ty: Type, count: usize, source: bool) -> Result<u32> {
        let single = std::slice::from_ref(operand);
        let parts = if let Operand::Vector(parts) = operand { parts.as_slice() } else { single };
        if parts.len() != count {
            return self.err(format!("{} is a fragment of {count} registers, not {}", describe(operand), parts.len()));
        }
        let mut rows = Vec::with_capacity(count);
        for part in parts {
            rows.push(if source { self.source(part, ty)? } else { self.dest(part, ty)? });
        }
        Ok(self.list(&rows))
    }

    fn take_shape(&self, op: &mut Op<'_, 'a>) -> Result<Shape> {
        let found = op.words.iter().enumerate().find_map(|(index, word)| Some((index, Shape::parse(word)?)));
        let Some((index, shape)) = found else { return self.err(format!("'{}' names no shape", op.full_name())) };
        op.words.remove(index);
        Ok(shape)
    }

    fn take_element(&self, op: &mut Op<'_, 'a>) -> Result<Element> {
        let name = op.full_name();
        match op.take_type() {
            Some("b1") => self.err(format!("'{name}' is not supported: there are no products of single bits here")),
            Some(word) => match Element::parse(word) {
                Some(element) => Ok(element),
                None => self.err(format!("'.{word}' of '{name}' is not a type of matrices")),
            },
            None => self.err(format!("'{name}' lacks types this emulator knows")),
        }
    }

    fn mma(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        let name = op.full_name();
        if op.words.iter().any(|word| *word == "sp" || word.starts_with("sp::")) {
            return self.err(format!("'{name}' is not supported: there are no products of sparse matrices here"));
        }
        if op.words.iter().any(|word| *word == "block_scale" || word.starts_with("kind::")) {
            return self.err(format!("'{name}' is not supported: it needs a later architecture than sm_90"));
        }
        let shape = self.take_shape(op)?;
        let d = self.take_element(op)?;
        let (a, b, c) = (self.take_element(op)?, self.take_element(op)?, self.take_element(op)?);
        let product = Product { shape, a, b, c, d, saturate: op.take("satfinite") };
        if (shape, a) == (Shape { m: 8, n: 8, k: 4 }, Element::F16) {
            return self.err(format!(
                "'{name}' is not supported: it is made for sm_70, and slow on what came later; use m16n8k8 or m16n8k16"
            ));
        }
        let layout = op.words.iter().copied().filter(|word| matches!(*word, "row" | "col"));
        if layout.ne(["row", "col"]) {
            return self.err(format!("'{name}' is not supported: A must be '.row' and B '.col'"));
        }
        op.words.retain(|word| !matches!(*word, "row" | "col"));
        if a == Element::F64 {
            op.take("rn");
        }
        if !is_mma(&product) {
            return self.err(format!("'{name}' is not supported: these types do not go with this shape"));
        }
        self.emit_product(op, &product)
    }

    fn emit_product(&mut self, op: &Op<'_, 'a>, product: &Product) -> Result<()> {
        self.count(op, 4)?;
        let shape = product.shape;
        // Fragments of f16 matrices have eight registers in `wmma`, whatever the shape.
        let long = |matrix, element: Element| {
            let fixed = op.name == "wmma" && element == Element::F16;
            if fixed { 8 } else { shape.registers(matrix, element) }
        };
        let (for_a, for_b) = (long(Matrix::A, product.a), long(Matrix::B, product.b));
        let a = self.fragment_rows(&op.operands[1], register_type(product.a), for_a, true)?;
        let b = self.fragment_rows(&op.operands[2], register_type(product.b), for_b, true)?;
        let for_c = shape.registers(Matrix::C, product.c);
        let c = self.fragment_rows(&op.operands[3], register_type(product.c), for_c, true)?;
        let for_d = shape.registers(Matrix::C, product.d);
        let d = self.fragment_rows(&op.operands[0], register_type(product.d), for_d, false)?;
        let handler = match product.a {
            Element::F64 => multiply::<Doubles>(),
            Element::S8 | Element::U8 | Element::S4 | Element::U4 => multiply::<Integers>(),
            _ => multiply::<Floats>(),
        };
        self.emit(Class::Matrix, handler, [d, a, b, c], product.pack());
        Ok(())
    }

    fn wmma_product(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        let name = op.full_name();
        let shape = self.take_shape(op)?;
        let first = self.take_element(op)?;
        let second = self.take_element(op)?;
        // Products of f16 name only the types of D and C.
        let (d, a, b, c) = if matches!(second, Element::F16 | Element::F32) {
            (first, Element::F16, Element::F16, second)
        } else {
            (first, second, self.take_element(op)?, self.take_element(op)?)
        };
        let product = Product { shape, a, b, c, d, saturate: op.take("satfinite") };
        let known = is_wmma_type(shape, Matrix::A, a)
            && a.bits() == b.bits()
            && is_wmma_type(shape, Matrix::B, b)
            && is_wmma_type(shape, Matrix::C, c)
            && is_wmma_type(shape, Matrix::C, d)
            && sums_of(&product);
        if !known {
            return self.err(format!("'{name}' is not supported: these types do not go with this shape"));
        }
        // Fragments are the same whatever the order in memory was.
        op.words.retain(|word| !matches!(*word, "row" | "col"));
        if a == Element::F64 {
            op.take("rn");
        }
        self.emit_product(op, &product)
    }

    fn wmma_access(&mut self, op: &mut Op<'_, 'a>, write: bool) -> Result<()> {
        let name = op.full_name();
        let matrix = match op.take_any(&["a", "b", "c", "d"]) {
            Some("a") if !write => Matrix::A,
            Some("b") if !write => Matrix::B,
            Some("c") if !write => Matrix::C,
            Some("d") if write => Matrix::C,
            _ => return self.err(format!("'{name}' names no matrix that it could move")),
        };
        let shape = self.take_shape(op)?;
        let element = self.take_element(op)?;
        if !is_wmma_type(shape, matrix, element) {
            return self.err(format!("'{name}' is not supported: this type does not go with this shape"));
        }
        let column_major = match op.take_any(&["row", "col"]) {
            Some(order) => order == "col",
            None => return self.err(format!("'{name}' does not say whether rows or columns follow each other")),
        };
        let kind = match self.take_space(op)? {
            Where::Global => Kind::Global,
            Where::Shared => Kind::Shared,
            Where::Generic => Kind::Generic,
            _ => return self.err(format!("'{name}' is not supported in this memory")),
        };
        if !(2..=3).contains(&op.operands.len()) {
            return self.err(format!("'{name}' takes a fragment, an address and a stride"));
        }
        let (registers, place) = (&op.operands[usize::from(write)], &op.operands[usize::from(!write)]);
        let fixed = element == Element::F16 && matrix != Matrix::C;
        let count = if fixed { 8 } else { shape.registers(matrix, element) };
        let (lines, length) = match matrix {
            Matrix::A => (shape.m, shape.k),
            Matrix::B => (shape.k, shape.n),
            Matrix::C => (shape.m, shape.n),
        };
        let stride = match op.operands.get(2) {
            Some(stride) => self.source(stride, Type::U32)?,
            None => self.constant(Width::Word, if column_major { lines } else { length } as u64),
        };
        let list = self.fragment_rows(registers, register_type(element), count, write)?;
        let address = self.address(place)?;
        let base = if address.wide { address.row } else { self.widen(address.row) };
        let handler: Handler = if write { wmma::store } else { wmma::load };
        let class = if kind == Kind::Shared { Class::Shared } else { Class::Global };
        let fragment = Fragment { shape, matrix, element, column_major, kind };
        self.emit(class, handler, [list, base, stride, address.offset as u32], fragment.pack());
        Ok(())
    }
}

/// The type of the registers that hold these elements.
fn register_type(element: Element) -> Type {
    if element == Element::F64 { Type::F64 } else { Type::B32 }
}

/// Are C and D of types that sums of these products may have?
fn sums_of(product: &Product) -> bool {
    let Product { a, c, d, saturate, .. } = *product;
    match a {
        Element::F64 => c == Element::F64 && d == Element::F64 && !saturate,
        Element::S8 | Element::U8 | Element::S4 | Element::U4 => c == Element::S32 && d == Element::S32,
        Element::F16 | Element::E4m3 | Element::E5m2 => {
            !saturate && [c, d].iter().all(|sum| matches!(sum, Element::F16 | Element::F32))
        }
        Element::Bf16 | Element::Tf32 => c == Element::F32 && d == Element::F32 && !saturate,
        _ => false,
    }
}

/// Does `mma` have this product?
fn is_mma(product: &Product) -> bool {
    let Product { shape: Shape { m, n, k }, a, b, c, d, .. } = *product;
    let fits = match a {
        Element::F16 | Element::Bf16 => m == 16 && matches!(k, 8 | 16) && b == a,
        Element::Tf32 => m == 16 && matches!(k, 4 | 8) && b == a,
        Element::E4m3 | Element::E5m2 => m == 16 && matches!(k, 16 | 32) && matches!(b, Element::E4m3 | Element::E5m2),
        Element::F64 => matches!((m, k), (8 | 16, 4) | (16, 8 | 16)) && b == a,
        Element::S8 | Element::U8 => {
            matches!((m, k), (8 | 16, 16) | (16, 32)) && matches!(b, Element::S8 | Element::U8)
        }
        Element::S4 | Element::U4 => {
            matches!((m, k), (8 | 16, 32) | (16, 64)) && matches!(b, Element::S4 | Element::U4)
        }
        _ => false,
    };
    n == 8 && fits && c == d && sums_of(product)
}

/// Does `wmma` have matrices of this type in this shape?
fn is_wmma_type(shape: Shape, matrix: Matrix, element: Element) -> bool {
    let Shape { m, n, k } = shape;
    match (m, n, k) {
        (16, 16, 16) | (32, 8, 16) | (8, 32, 16) => match matrix {
            Matrix::C => matches!(element, Element::F16 | Element::F32 | Element::S32),
            _ => matches!(element, Element::F16 | Element::Bf16 | Element::S8 | Element::U8),
        },
        (16, 16, 8) => element == if matrix == Matrix::C { Element::F32 } else { Element::Tf32 },
        (8, 8, 4) => element == Element::F64,
        _ => false,
    }
}
