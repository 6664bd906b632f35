//! Floating-point arithmetic and comparisons.

use super::instruction::Op;
use super::{Lower, Result, Type, Width};
use crate::emulator::code::{ALWAYS, Class};
use crate::emulator::exec::float::*;
use crate::emulator::exec::half::*;
use crate::emulator::exec::integer::{join, part, pred_logic};
use crate::emulator::exec::lanes::{self, Combine, pack_setp};
use crate::emulator::float::Round;
use crate::emulator::ptx::ast::Operand;

/// A format of floating-point instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    F32,
    F64,
}

impl Format {
    fn parse(word: &str) -> Option<Format> {
        Some(match word {
            "f16" => Format::F16,
            "f16x2" => Format::F16x2,
            "bf16" => Format::Bf16,
            "bf16x2" => Format::Bf16x2,
            "f32" => Format::F32,
            "f64" => Format::F64,
            _ => return None,
        })
    }

    /// The registers that hold it.
    fn ty(self) -> Type {
        match self {
            Format::F16 | Format::Bf16 => Type::B16,
            Format::F16x2 | Format::Bf16x2 | Format::F32 => Type::B32,
            Format::F64 => Type::F64,
        }
    }

    fn class(self) -> Class {
        match self {
            Format::F32 => Class::Float,
            Format::F64 => Class::Double,
            _ => Class::Half,
        }
    }

    fn is_f16(self) -> bool {
        matches!(self, Format::F16 | Format::F16x2)
    }

    fn is_half(self) -> bool {
        self.is_f16() || matches!(self, Format::Bf16 | Format::Bf16x2)
    }
}

/// The handler of an operation that exists for f16 and bf16, alone and in pairs.
macro_rules! halves {
    ($format:expr, $f16:ident, $bf16:ident) => {
        match $format {
            Format::F16 => modal::<$f16>(),
            Format::F16x2 => modal::<Pair<$f16>>(),
            Format::Bf16 => modal::<$bf16>(),
            _ => modal::<Pair<$bf16>>(),
        }
    };
}

macro_rules! floats {
    ($format:expr, $f16:ident, $bf16:ident, $f32:ident, $f64:ident) => {
        match $format {
            Format::F32 => modal::<$f32>(),
            Format::F64 => modal::<$f64>(),
            half => halves!(half, $f16, $bf16),
        }
    };
}

impl<'a> Lower<'a> {
    /// Lower a floating-point instruction; false when it is not one.
    pub(super) fn float(&mut self, op: &mut Op<'_, 'a>) -> Result<bool> {
        let arithmetic = [
            "add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt", "rsqrt", "abs", "neg", "min", "max", "sin", "cos",
            "lg2", "ex2", "tanh", "copysign",
        ];
        let Some(format) = op.words.iter().rev().find_map(|word| Format::parse(word)) else { return Ok(false) };
        match op.name {
            "set" | "setp" => self.compare_floats(op),
            "testp" => {
                op.take_type();
                self.testp(op, format)
            }
            name if arithmetic.contains(&name) => {
                op.take_type();
                self.arithmetic(op, format)
            }
            _ => Ok(false),
        }
    }

    /// Arithmetic; false for words it does not know together.
    fn arithmetic(&mut self, op: &mut Op<'_, 'a>, format: Format) -> Result<bool> {
        let mut mode = Mode::PLAIN;
        let ftz = format == Format::F32 || format.is_f16();
        mode.ftz = ftz && !matches!(op.name, "tanh" | "copysign") && op.take("ftz");
        let (count, handler, class) = match op.name {
            "add" | "sub" | "mul" | "fma" | "mad" => {
                mode.round = rounding(op, format).unwrap_or(Round::Nearest);
                mode.sat = ftz && op.take("sat");
                mode.relu = op.name == "fma" && format.is_half() && op.take("relu");
                let handler = match op.name {
                    "add" => floats!(format, AddF16, AddBf16, AddF32, AddF64),
                    "sub" => floats!(format, SubF16, SubBf16, SubF32, SubF64),
                    "mul" => floats!(format, MulF16, MulBf16, MulF32, MulF64),
                    "mad" if format.is_half() => return Ok(false),
                    _ => floats!(format, FmaF16, FmaBf16, FmaF32, FmaF64),
                };
                (if matches!(op.name, "fma" | "mad") { 3 } else { 2 }, handler, format.class())
            }
            "min" | "max" => {
                let three = op.operands.len() == 4 && format == Format::F32;
                mode.nan = format != Format::F64 && op.take("NaN");
                if format != Format::F64 && !three && op.take("xorsign") {
                    mode.xorsign = true;
                    if !op.take("abs") {
                        return self.err(format!("'.xorsign' of '{}' needs '.abs'", op.name));
                    }
                }
                let handler = match (op.name, three) {
                    ("min", true) => modal::<Min3F32>(),
                    ("min", false) => floats!(format, MinF16, MinBf16, MinF32, MinF64),
                    (_, true) => modal::<Max3F32>(),
                    (_, false) => floats!(format, MaxF16, MaxBf16, MaxF32, MaxF64),
                };
                (if three { 3 } else { 2 }, handler, format.class())
            }
            "neg" => (1, floats!(format, NegF16, NegBf16, NegF32, NegF64), format.class()),
            "abs" => (1, floats!(format, AbsF16, AbsBf16, AbsF32, AbsF64), format.class()),
            "copysign" => match format {
                Format::F32 => (2, modal::<CopysignF32>(), Class::Float),
                Format::F64 => (2, modal::<CopysignF64>(), Class::Double),
                _ => return Ok(false),
            },
            "div" | "rcp" | "sqrt" | "rsqrt" => {
                let count = if op.name == "div" { 2 } else { 1 };
                let Some((handler, class)) = quotient(op, format, &mut mode) else { return Ok(false) };
                (count, handler, class)
            }
            _ => {
                op.take("approx");
                let handler = match (op.name, format) {
                    ("sin", Format::F32) => modal::<SinF32>(),
                    ("cos", Format::F32) => modal::<CosF32>(),
                    ("lg2", Format::F32) => modal::<Lg2F32>(),
                    ("ex2", Format::F32) => modal::<Ex2F32>(),
                    ("tanh", Format::F32) => modal::<TanhF32>(),
                    ("ex2", half) if half != Format::F64 => {
                        // The bf16 forms always flush.
                        op.take("ftz");
                        halves!(half, Ex2F16, Ex2Bf16)
                    }
                    ("tanh", half) if half != Format::F64 => halves!(half, TanhF16, TanhBf16),
                    _ => return Ok(false),
                };
                (1, handler, Class::Special)
            }
        };
        self.emit_modal(op, class, handler, count, format.ty(), mode)?;
        Ok(true)
    }

    /// An operation of `count` operands of one type and its mode.
    fn emit_modal(
        &mut self,
        op: &Op<'_, 'a>,
        class: Class,
        handler: Modes,
        count: usize,
        ty: Type,
        mode: Mode,
    ) -> Result<()> {
        self.count(op, count + 1)?;
        let mut rows = [0; 4];
        for (slot, operand) in rows[1..].iter_mut().zip(&op.operands[1..]) {
            *slot = self.source(operand, ty)?;
        }
        rows[0] = self.dest(&op.operands[0], ty)?;
        self.emit(class, handler.of(mode), rows, mode.pack());
        Ok(())
    }

    fn testp(&mut self, op: &mut Op<'_, 'a>, format: Format) -> Result<bool> {
        let handler = match format {
            Format::F32 => testp::<AsF32>(),
            Format::F64 => testp::<AsF64>(),
            _ => return Ok(false),
        };
        let Some(question) = CLASSES.iter().position(|(word, _)| op.take(word)) else {
            return Ok(false);
        };
        self.count(op, 2)?;
        let a = self.source(&op.operands[1], format.ty())?;
        let d = self.dest(&op.operands[0], Type::Pred)?;
        self.emit(Class::Compare, handler, [d, a, 0, 0], question as u64);
        Ok(true)
    }

    /// `setp` and `set` of floats.
    fn compare_floats(&mut self, op: &mut Op<'_, 'a>) -> Result<bool> {
        let words = ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"];
        let Some(relation) = op.take_any(&words) else { return Ok(false) };
        let types: Vec<&str> = std::iter::from_fn(|| op.take_type()).collect();
        let Some(format) = types.last().copied().and_then(Format::parse) else { return Ok(false) };
        let ftz = (format == Format::F32 || format.is_f16()) && op.take("ftz");
        let combine = match op.take_any(&["and", "or", "xor"]) {
            None => None,
            Some("and") => Some(Combine::And),
            Some("or") => Some(Combine::Or),
            Some(_) => Some(Combine::Xor),
        };
        self.count(op, if combine.is_some() { 4 } else { 3 })?;
        let (a, b) = (self.source(&op.operands[1], format.ty())?, self.source(&op.operands[2], format.ty())?);
        let third = match combine {
            Some(how) => {
                let (row, negated) = self.predicate(&op.operands[3])?;
                Some((row, how, negated))
            }
            None => None,
        };
        let comparison = Comparison { relation, format, ftz, third };
        let paired = matches!(format, Format::F16x2 | Format::Bf16x2);
        if op.name == "set" {
            return self.set_floats(op, comparison, types[0], a, b);
        }
        let (p, q) = match &op.operands[0] {
            Operand::Pair(p, q) => (self.pred_dest(p)?, if *q == "_" { 0 } else { self.pred_dest(q)? }),
            Operand::Name(p) => (self.pred_dest(p)?, 0),
            Operand::Sink => (self.row(Width::Pred), 0),
            _ => return self.err("'setp' writes a predicate"),
        };
        if paired {
            // The first predicate is that of the lower halves, the second that of the upper.
            self.emit_pair_setp(comparison, [p, q], [a, b]);
        } else {
            self.emit_float_setp(comparison, [p, q], [a, b]);
        }
        Ok(true)
    }

    /// `set`: a comparison, then one of two constants.
    fn set_floats(&mut self, op: &Op<'_, 'a>, how: Comparison, result: &str, a: u32, b: u32) -> Result<bool> {
        if matches!(how.format, Format::F16x2 | Format::Bf16x2) {
            let one = match result {
                "f16x2" => 0x3c00,
                "bf16x2" => 0x3f80,
                "u32" | "s32" | "b32" => 0xffff,
                _ => return Ok(false),
            };
            let d = self.dest(&op.operands[0], Type::B32)?;
            let preds = [self.row(Width::Pred), self.row(Width::Pred)];
            self.emit_pair_setp(how, preds, [a, b]);
            let (yes, no) = (self.constant(Width::Half, one), self.constant(Width::Half, 0));
            let parts = [self.row(Width::Half), self.row(Width::Half)];
            for (part, pred) in parts.into_iter().zip(preds) {
                self.emit(Class::Compare, lanes::select::<u16>(), [part, yes, no, pred], 0);
            }
            let list = self.list(&parts);
            self.emit(Class::Compare, join::<u16, u32>(), [d, 0, 0, 0], u64::from(list));
            return Ok(true);
        }
        let (ty, one) = match result {
            "f32" => (Type::B32, 0x3f80_0000),
            "u32" | "s32" | "b32" => (Type::B32, 0xffff_ffff),
            "f16" => (Type::B16, 0x3c00),
            "bf16" => (Type::B16, 0x3f80),
            "u16" | "s16" | "b16" => (Type::B16, 0xffff),
            _ => return Ok(false),
        };
        let d = self.dest(&op.operands[0], ty)?;
        let pred = self.row(Width::Pred);
        self.emit_float_setp(how, [pred, 0], [a, b]);
        let width = Width::of(ty);
        let (yes, no) = (self.constant(width, one), self.constant(width, 0));
        let select = if width == Width::Half { lanes::select::<u16>() } else { lanes::select::<u32>() };
        self.emit(Class::Compare, select, [d, yes, no, pred], 0);
        Ok(true)
    }

    /// Compare lower and upper halves, each into its predicate (0 for none).
    fn emit_pair_setp(&mut self, how: Comparison, preds: [u32; 2], rows: [u32; 2]) {
        let format = if how.format == Format::F16x2 { Format::F16 } else { Format::Bf16 };
        // The first predicate written may be the guard, or the third operand, of what follows.
        let (guard, flip) = std::mem::take(&mut self.guard);
        let guard = self.copy_predicate(guard);
        let third = how.third.map(|(row, combine, negated)| (self.copy_predicate(row), combine, negated));
        self.guard = (guard, flip);
        for (pred, shift) in preds.into_iter().zip([0, 16]) {
            if pred == 0 {
                continue;
            }
            let halves = rows.map(|row| {
                let half = self.row(Width::Half);
                self.emit(Class::Move, part::<u32, u16>(), [half, row, 0, 0], shift);
                half
            });
            self.emit_float_setp(Comparison { format, third, ..how }, [pred, 0], halves);
        }
    }

    fn copy_predicate(&mut self, row: u32) -> u32 {
        if row == ALWAYS {
            return row;
        }
        let copy = self.row(Width::Pred);
        self.emit(Class::Move, pred_logic, [copy, row, row, 0], 4);
        copy
    }

    /// Compare rows: the result into the first predicate, its complement into the second (0 for none).
    fn emit_float_setp(&mut self, how: Comparison, preds: [u32; 2], rows: [u32; 2]) {
        // Every relation is one of five, perhaps of swapped operands, perhaps negated.
        let (base, swap, negate) = match how.relation {
            "eq" => ("eq", false, false),
            "ne" => ("ne", false, false),
            "lt" => ("lt", false, false),
            "le" => ("le", false, false),
            "gt" => ("lt", true, false),
            "ge" => ("le", true, false),
            "equ" => ("ne", false, true),
            "neu" => ("eq", false, true),
            "ltu" => ("le", true, true),
            "leu" => ("lt", true, true),
            "gtu" => ("le", false, true),
            "geu" => ("lt", false, true),
            "num" => ("num", false, false),
            _ => ("num", false, true),
        };
        let [mut a, mut b] = rows;
        if how.ftz && how.format == Format::F16 {
            [a, b] = rows.map(|row| {
                let flushed = self.row(Width::Half);
                self.emit(Class::Half, modal::<FlushF16>().of(Mode::PLAIN), [flushed, row, 0, 0], 0);
                flushed
            });
        }
        if swap {
            (a, b) = (b, a);
        }
        macro_rules! pick {
            ($make:ident, $as:ident) => {
                match base {
                    "eq" => lanes::$make::<Eq<$as>>(),
                    "ne" => lanes::$make::<Ne<$as>>(),
                    "lt" => lanes::$make::<Lt<$as>>(),
                    "le" => lanes::$make::<Le<$as>>(),
                    _ => lanes::$make::<Num<$as>>(),
                }
            };
        }
        macro_rules! by_format {
            ($make:ident) => {
                match how.format {
                    Format::F32 if how.ftz => pick!($make, AsF32Ftz),
                    Format::F32 => pick!($make, AsF32),
                    Format::F64 => pick!($make, AsF64),
                    Format::F16 | Format::F16x2 => pick!($make, AsF16),
                    Format::Bf16 | Format::Bf16x2 => pick!($make, AsBf16),
                }
            };
        }
        let [mut p, mut q] = preds;
        if negate {
            // What the handler takes for the complement is the result.
            (p, q) = (if q == 0 { self.row(Width::Pred) } else { q }, p);
        }
        match how.third {
            None => self.emit(Class::Compare, by_format!(setp), [p, a, b, 0], u64::from(q)),
            Some((row, combine, negated)) => {
                let x = pack_setp(q, combine, negated);
                self.emit(Class::Compare, by_format!(setp_combined), [p, a, b, row], x);
            }
        }
    }
}

/// Division, reciprocal and roots: correctly rounded, or approximate. None for words that do not go together.
fn quotient(op: &mut Op<'_, '_>, format: Format, mode: &mut Mode) -> Option<(Modes, Class)> {
    let way = op.take_any(&["approx", "full"]);
    let round = if way.is_none() { rounding(op, format) } else { None };
    mode.round = round.unwrap_or(Round::Nearest);
    if format == Format::F64 {
        mode.ftz = op.take("ftz");
    }
    let handler = match (op.name, format, way, round) {
        ("div", Format::F32, Some("approx"), _) => modal::<DivApproxF32>(),
        ("div", Format::F32, Some(_), _) => modal::<DivFullF32>(),
        ("div", Format::F32, None, Some(_)) => modal::<DivF32>(),
        ("div", Format::F64, None, Some(_)) if !mode.ftz => modal::<DivF64>(),
        ("rcp", Format::F32, Some("approx"), _) => modal::<RcpApproxF32>(),
        ("rcp", Format::F32, None, Some(_)) => modal::<RcpF32>(),
        ("rcp", Format::F64, Some("approx"), _) if mode.ftz => modal::<RcpApproxF64>(),
        ("rcp", Format::F64, None, Some(_)) if !mode.ftz => modal::<RcpF64>(),
        ("sqrt", Format::F32, Some("approx"), _) => modal::<SqrtApproxF32>(),
        ("sqrt", Format::F32, None, Some(_)) => modal::<SqrtF32>(),
        ("sqrt", Format::F64, None, Some(_)) if !mode.ftz => modal::<SqrtF64>(),
        ("rsqrt", Format::F32, Some("approx"), _) => modal::<RsqrtF32>(),
        ("rsqrt", Format::F64, Some("approx"), _) => modal::<RsqrtApproxF64>(),
        _ => return None,
    };
    Some((handler, if way.is_some() { Class::Special } else { format.class() }))
}

/// The rounding an opcode names; the 16-bit formats have only one.
fn rounding(op: &mut Op<'_, '_>, format: Format) -> Option<Round> {
    let known: &[&'static str] = if format.is_half() { &["rn"] } else { &["rn", "rz", "rm", "rp"] };
    op.take_any(known).map(|word| match word {
        "rn" => Round::Nearest,
        "rz" => Round::Zero,
        "rm" => Round::Down,
        _ => Round::Up,
    })
}

/// A comparison of floats: its relation, and the predicate it is combined with.
#[derive(Clone, Copy)]
struct Comparison {
    relation: &'static str,
    format: Format,
    ftz: bool,
    third: Option<(u32, Combine, bool)>,
}
