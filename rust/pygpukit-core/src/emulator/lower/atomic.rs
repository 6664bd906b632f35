//! Atomic operations.

use super::instruction::Op;
use super::memory::Where;
use super::{Lower, Result, Type, Width};
use crate::emulator::code::{Class, Effect, Handler};
use crate::emulator::exec::atomic::*;
use crate::emulator::exec::lanes;
use crate::emulator::exec::memory::Kind;
use crate::emulator::ptx::ast::Operand;

const OPERATIONS: &[&str] = &["add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"];

/// The handler of an operation on a type, where PTX has it.
fn handler(operation: &str, ty: &str) -> Option<Handler> {
    Some(match (operation, ty) {
        ("add", "u32" | "s32") => atomic::<Add32>,
        ("add", "u64" | "s64") => atomic::<Add64>,
        ("add", "f32") => atomic::<AddF32>,
        ("add", "f64") => atomic::<AddF64>,
        ("add", "f16") => atomic::<AddF16>,
        ("add", "bf16") => atomic::<AddBf16>,
        ("add", "f16x2") => atomic::<AddF16x2>,
        ("add", "bf16x2") => atomic::<AddBf16x2>,
        ("min", "f16") => atomic::<MinF16>,
        ("max", "f16") => atomic::<MaxF16>,
        ("min", "bf16") => atomic::<MinBf16>,
        ("max", "bf16") => atomic::<MaxBf16>,
        ("min", "f16x2") => atomic::<MinF16x2>,
        ("max", "f16x2") => atomic::<MaxF16x2>,
        ("min", "bf16x2") => atomic::<MinBf16x2>,
        ("max", "bf16x2") => atomic::<MaxBf16x2>,
        ("min", "u32") => atomic::<MinU32>,
        ("max", "u32") => atomic::<MaxU32>,
        ("min", "s32") => atomic::<MinS32>,
        ("max", "s32") => atomic::<MaxS32>,
        ("min", "u64") => atomic::<MinU64>,
        ("max", "u64") => atomic::<MaxU64>,
        ("min", "s64") => atomic::<MinS64>,
        ("max", "s64") => atomic::<MaxS64>,
        ("inc", "u32") => atomic::<Increment>,
        ("dec", "u32") => atomic::<Decrement>,
        ("and", "b32") => atomic::<And32>,
        ("and", "b64") => atomic::<And64>,
        ("or", "b32") => atomic::<Or32>,
        ("or", "b64") => atomic::<Or64>,
        ("xor", "b32") => atomic::<Xor32>,
        ("xor", "b64") => atomic::<Xor64>,
        ("exch", "b32") => atomic::<Exchange32>,
        ("exch", "b64") => atomic::<Exchange64>,
        ("cas", "b16") => atomic::<Compare16>,
        ("cas", "b32") => atomic::<Compare32>,
        ("cas", "b64") => atomic::<Compare64>,
        _ => return None,
    })
}

impl<'a> Lower<'a> {
    /// Lower `atom` or `red`; false when it is neither.
    pub(super) fn atomic(&mut self, op: &mut Op<'_, 'a>) -> Result<bool> {
        let returns = match op.name {
            "atom" => true,
            "red" => false,
            _ => return Ok(false),
        };
        if op.words.contains(&"async") {
            return Ok(false);
        }
        let name = op.full_name();
        let hinted = op.words.contains(&"L2::cache_hint");
        // Host atomics order as strongly as any of these words ask.
        self.take_order(op);
        self.effect.0 |= Effect::STRONG | Effect::ATOMIC;
        let kind = match self.take_space(op)? {
            Where::Global => Kind::Global,
            Where::Shared => Kind::Shared,
            Where::Generic => Kind::Generic,
            _ => return self.err(format!("'{name}' is not an operation on this memory")),
        };
        op.take("noftz");
        let vector = op.take_any(&["v2", "v4", "v8"]).is_some();
        let operation = op.take_any(OPERATIONS).unwrap_or("");
        let word = op.take_type().unwrap_or("");
        let (Some(run), Some(ty)) = (handler(operation, word), Type::parse(word)) else {
            return self.err(format!("instruction '{name}' is not supported"));
        };
        let count = usize::from(returns) + 2 + usize::from(operation == "cas") + usize::from(hinted);
        self.count(op, count)?;
        let (target, rest) = if returns { (Some(&op.operands[0]), &op.operands[1..]) } else { (None, op.operands) };
        let address = self.address(&rest[0])?;
        let widened = kind != Kind::Shared && !address.wide;
        let row = if widened { self.widen(address.row) } else { address.row };
        let x = |offset| pack_atomic(offset, kind, widened || address.wide);
        if vector {
            let bytes = ty.bytes() as i32;
            return self.vector(run, (target, &rest[1]), ty, row, |k| x(address.offset.wrapping_add(k * bytes)));
        }
        let b = self.source(&rest[1], ty)?;
        let c = if operation == "cas" { self.source(&rest[2], ty)? } else { 0 };
        let d = target.map_or(Ok(0), |target| self.dest(target, ty))?;
        self.emit(Class::Atomic, run, [d, row, b, c], x(address.offset));
        Ok(true)
    }

    /// Each element of a vector is an operation of its own; `x` gives what is packed for the one with this number.
    fn vector(
        &mut self,
        run: Handler,
        (target, source): (Option<&Operand<'a>>, &Operand<'a>),
        ty: Type,
        row: u32,
        x: impl Fn(i32) -> u64,
    ) -> Result<bool> {
        let Operand::Vector(sources) = source else { return self.err("a vector operation needs a vector of values") };
        let mut results = Vec::new();
        for (k, source) in sources.iter().enumerate() {
            let b = self.source(source, ty)?;
            // Results go to the registers at the end, since one may be an operand of the next.
            let d = if target.is_some() { self.row(Width::of(ty)) } else { 0 };
            results.push(d);
            self.emit(Class::Atomic, run, [d, row, b, 0], x(k as i32));
        }
        let Some(target) = target else { return Ok(true) };
        let parts: &[Operand<'a>] = match target {
            Operand::Vector(parts) if parts.len() == sources.len() => parts,
            Operand::Sink => return Ok(true),
            _ => return self.err("the result of a vector operation needs as many registers as it has values"),
        };
        for (part, result) in parts.iter().zip(results) {
            let d = self.dest(part, ty)?;
            let copy = if Width::of(ty) == Width::Half { lanes::copy::<u16>() } else { lanes::copy::<u32>() };
            self.emit(Class::Move, copy, [d, result, 0, 0], 0);
        }
        Ok(true)
    }
}
