//! Integer arithmetic, logic, shifts, bit fields, comparisons and selection.

use super::instruction::Op;
use super::{Lower, Result, Type, Width};
use crate::emulator::code::{Class, Handler};
use crate::emulator::exec::integer::*;
use crate::emulator::exec::lanes::{self, Combine, binary, pack_setp, ternary, unary};
use crate::emulator::ptx::ast::Operand;

/// The handler of a generic operation for an integer type, or None for other types.
macro_rules! by_int {
    ($ty:expr, $T:ident => $body:expr) => {
        match $ty {
            Type::U16 => {
                type $T = u16;
                Some($body)
            }
            Type::S16 => {
                type $T = i16;
                Some($body)
            }
            Type::U32 => {
                type $T = u32;
                Some($body)
            }
            Type::S32 => {
                type $T = i32;
                Some($body)
            }
            Type::U64 => {
                type $T = u64;
                Some($body)
            }
            Type::S64 => {
                type $T = i64;
                Some($body)
            }
            _ => None,
        }
    };
}

macro_rules! by_bits {
    ($ty:expr, $T:ident => $body:expr) => {
        match Width::of($ty) {
            Width::Half => {
                type $T = u16;
                Some($body)
            }
            Width::Word => {
                type $T = u32;
                Some($body)
            }
            Width::Double => {
                type $T = u64;
                Some($body)
            }
            _ => None,
        }
    };
}

impl<'a> Lower<'a> {
    /// Lower an integer or bit instruction; false when it is not one.
    pub(super) fn integer(&mut self, op: &mut Op<'_, 'a>) -> Result<bool> {
        let is_float = |word: &str| word.starts_with('f') || word.starts_with("bf") || word == "tf32";
        let has_float = op.words.iter().any(|word| is_float(word) && Type::parse(word).is_some());
        match op.name {
            "add" | "sub" | "mul" | "mad" | "neg" | "abs" | "min" | "max" | "div" | "sad" if has_float => {
                return Ok(false);
            }
            // The result may be a float where integers are compared.
            "set" | "setp"
                if op.words.iter().rev().find(|word| Type::parse(word).is_some()).is_some_and(|w| is_float(w)) =>
            {
                return Ok(false);
            }
            "add" | "addc" | "sub" | "subc" | "madc" => self.add_sub(op)?,
            "mul" | "mad" => self.multiply(op)?,
            "mul24" | "mad24" => self.multiply24(op)?,
            "div" | "rem" | "min" | "max" | "neg" | "abs" | "sad" | "popc" | "clz" | "bfind" | "brev" => {
                self.simple(op)?
            }
            "and" | "or" | "xor" | "not" | "cnot" => self.logic(op)?,
            "shl" | "shr" | "shf" | "bfe" | "bfi" | "bmsk" | "szext" | "prmt" | "lop3" | "fns" | "dp4a" | "dp2a" => {
                self.bits(op)?;
            }
            "setp" | "set" => self.compare(op)?,
            "selp" | "slct" => self.choose(op)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn int_type(&mut self, op: &mut Op<'_, 'a>) -> Result<Type> {
        let word = op.take_type();
        self.type_of(op, word)
    }

    fn known(&self, op: &Op<'_, 'a>, handler: Option<Handler>) -> Result<Handler> {
        match handler {
            Some(handler) => Ok(handler),
            None => self.err(format!("instruction '{}' is not supported for this type", op.full_name())),
        }
    }

    fn add_sub(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        let packed = op.words.last().copied().filter(|w| matches!(*w, "u16x2" | "s16x2"));
        if let Some(word) = packed {
            op.take(word);
            if op.name != "add" {
                return self.err(format!("instruction '{}.{word}' is not supported", op.name));
            }
            return self.emit2(op, Class::Integer, binary::<AddHalves>(), Type::U32, Type::U32, Type::U32);
        }
        let ty = self.int_type(op)?;
        let sub = op.name.starts_with("sub");
        let carry_in = op.name.ends_with('c');
        let carry_out = op.take("cc");
        let saturate = op.take("sat");
        if carry_in || carry_out {
            let mut flags = if carry_in { CARRY_IN } else { 0 } | if carry_out { CARRY_OUT } else { 0 };
            flags |= if sub { CARRY_SUB } else { 0 };
            if op.name == "madc" {
                flags |= if op.take("hi") { CARRY_MAD_HIGH } else { CARRY_MAD_LOW };
                op.take("lo");
            }
            return self.with_carry(op, ty, flags);
        }
        let handler = match (sub, saturate) {
            (false, false) => by_int!(ty, T => binary::<Add<T>>()),
            (true, false) => by_int!(ty, T => binary::<Sub<T>>()),
            (false, true) => by_int!(ty, T => binary::<AddSat<T>>()),
            (true, true) => by_int!(ty, T => binary::<SubSat<T>>()),
        };
        let handler = self.known(op, handler)?;
        self.emit2(op, Class::Integer, handler, ty, ty, ty)
    }

    fn with_carry(&mut self, op: &Op<'_, 'a>, ty: Type, flags: u64) -> Result<()> {
        let handler = match ty {
            Type::U32 | Type::S32 => {
                if ty == Type::S32 && flags & CARRY_MAD_HIGH != 0 {
                    carry::<i32>()
                } else {
                    carry::<u32>()
                }
            }
            Type::U64 | Type::S64 => {
                if ty == Type::S64 && flags & CARRY_MAD_HIGH != 0 {
                    carry::<i64>()
                } else {
                    carry::<u64>()
                }
            }
            _ => return self.err(format!("'{}' with a carry needs 32 or 64 bits", op.name)),
        };
        let flag = self.carry();
        let x = flags | u64::from(flag) << 32;
        if flags & (CARRY_MAD_LOW | CARRY_MAD_HIGH) != 0 {
            return self.emit3(op, Class::Integer, handler, [ty; 4], x);
        }
        self.count(op, 3)?;
        let (a, b) = (self.source(&op.operands[1], ty)?, self.source(&op.operands[2], ty)?);
        let d = self.dest(&op.operands[0], ty)?;
        self.emit(Class::Integer, handler, [d, a, b, 0], x);
        Ok(())
    }

    fn multiply(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        let ty = self.int_type(op)?;
        let part = op.take_any(&["lo", "hi", "wide"]).unwrap_or("lo");
        let mad = op.name == "mad";
        if mad && op.take("cc") {
            let flags = CARRY_OUT | if part == "hi" { CARRY_MAD_HIGH } else { CARRY_MAD_LOW };
            return self.with_carry(op, ty, flags);
        }
        if part == "wide" {
            let (wide, mul, mad_handler) = match ty {
                Type::U16 => (Type::U32, binary::<MulWideU16>(), ternary::<MadWideU16>()),
                Type::S16 => (Type::U32, binary::<MulWideS16>(), ternary::<MadWideS16>()),
                Type::U32 => (Type::U64, binary::<MulWideU32>(), ternary::<MadWideU32>()),
                Type::S32 => (Type::U64, binary::<MulWideS32>(), ternary::<MadWideS32>()),
                _ => return self.err(format!("'{}.wide' needs 16 or 32 bits", op.name)),
            };
            return if mad {
                self.emit3(op, Class::Integer, mad_handler, [wide, ty, ty, wide], 0)
            } else {
                self.emit2(op, Class::Integer, mul, wide, ty, ty)
            };
        }
        if mad {
            let saturate = op.take("sat");
            let handler = match (part, saturate) {
                ("lo", _) => by_int!(ty, T => ternary::<Mad<T>>()),
                (_, false) => by_int!(ty, T => ternary::<MadHigh<T>>()),
                _ => by_int!(ty, T => ternary::<MadHighSat<T>>()),
            };
            let handler = self.known(op, handler)?;
            return self.emit3(op, Class::Integer, handler, [ty; 4], 0);
        }
        let handler = match part {
            "lo" => by_int!(ty, T => binary::<Mul<T>>()),
            _ => by_int!(ty, T => binary::<MulHigh<T>>()),
        };
        let handler = self.known(op, handler)?;
        self.emit2(op, Class::Integer, handler, ty, ty, ty)
    }

    fn multiply24(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        let ty = self.int_type(op)?;
        let part = op.take_any(&["lo", "hi"]).unwrap_or("lo");
        let signed = ty == Type::S32;
        if op.name == "mad24" {
            let handler = match (part, signed, op.take("sat")) {
                ("lo", false, _) => ternary::<Mad24LowU>(),
                ("lo", true, _) => ternary::<Mad24LowS>(),
                (_, false, _) => ternary::<Mad24HighU>(),
                (_, true, false) => ternary::<Mad24HighS>(),
                (_, true, true) => ternary::<Mad24HighSat>(),
            };
            return self.emit3(op, Class::Integer, handler, [ty; 4], 0);
        }
        let handler = match (part, signed) {
            ("lo", false) => binary::<Mul24LowU>(),
            ("lo", true) => binary::<Mul24LowS>(),
            (_, false) => binary::<Mul24HighU>(),
            (_, true) => binary::<Mul24HighS>(),
        };
        self.emit2(op, Class::Integer, handler, ty, ty, ty)
    }

    fn simple(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        let packed = op.words.last().copied().filter(|w| matches!(*w, "u16x2" | "s16x2"));
        if let Some(word) = packed {
            op.take(word);
            let relu = word == "s16x2" && op.take("relu");
            let handler = match (op.name, word) {
                ("min", "s16x2") if relu => binary::<MinReluHalves>(),
                ("max", "s16x2") if relu => binary::<MaxReluHalves>(),
                ("min", "u16x2") => binary::<MinHalvesU>(),
                ("min", _) => binary::<MinHalvesS>(),
                ("max", "u16x2") => binary::<MaxHalvesU>(),
                ("max", _) => binary::<MaxHalvesS>(),
                _ => return self.err(format!("instruction '{}.{word}' is not supported", op.name)),
            };
            return self.emit2(op, Class::Integer, handler, Type::U32, Type::U32, Type::U32);
        }
        let ty = self.int_type(op)?;
        let handler = match op.name {
            "div" => by_int!(ty, T => binary::<Div<T>>()),
            "rem" => by_int!(ty, T => binary::<Rem<T>>()),
            "min" => by_int!(ty, T => binary::<Min<T>>()),
            "max" => by_int!(ty, T => binary::<Max<T>>()),
            "sad" => {
                let handler = by_int!(ty, T => ternary::<Sad<T>>());
                let handler = self.known(op, handler)?;
                return self.emit3(op, Class::Integer, handler, [ty; 4], 0);
            }
            _ => {
                let shift = op.take("shiftamt");
                let (handler, d) = match op.name {
                    "neg" => (by_int!(ty, T => unary::<Neg<T>>()), ty),
                    "abs" => (by_int!(ty, T => unary::<Abs<T>>()), ty),
                    "popc" => (by_bits!(ty, T => unary::<Popc<T>>()), Type::U32),
                    "clz" => (by_bits!(ty, T => unary::<Clz<T>>()), Type::U32),
                    "brev" => (by_bits!(ty, T => unary::<Brev<T>>()), ty),
                    _ if shift => (by_int!(ty, T => unary::<BfindShift<T>>()), Type::U32),
                    _ => (by_int!(ty, T => unary::<Bfind<T>>()), Type::U32),
                };
                let handler = self.known(op, handler)?;
                return self.emit1(op, Class::Integer, handler, d, ty);
            }
        };
        // At least zero.
        let handler = match (op.name, ty) {
            ("min", Type::S32) if op.take("relu") => Some(binary::<MinRelu>()),
            ("max", Type::S32) if op.take("relu") => Some(binary::<MaxRelu>()),
            _ => handler,
        };
        let handler = self.known(op, handler)?;
        self.emit2(op, Class::Integer, handler, ty, ty, ty)
    }

    fn logic(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        let ty = self.int_type(op)?;
        if ty == Type::Pred {
            let code = ["and", "or", "xor", "not"].iter().position(|name| *name == op.name);
            let Some(code) = code else { return self.err(format!("'{}.pred' is not supported", op.name)) };
            self.count(op, if code == 3 { 2 } else { 3 })?;
            let a = self.plain_predicate(&op.operands[1])?;
            let b = if code == 3 { a } else { self.plain_predicate(&op.operands[2])? };
            let d = self.dest(&op.operands[0], Type::Pred)?;
            self.emit(Class::Compare, pred_logic, [d, a, b, 0], code as u64);
            return Ok(());
        }
        let handler = match op.name {
            "and" => by_bits!(ty, T => binary::<And<T>>()),
            "or" => by_bits!(ty, T => binary::<Or<T>>()),
            "xor" => by_bits!(ty, T => binary::<Xor<T>>()),
            name => {
                let handler = match name {
                    "not" => by_bits!(ty, T => unary::<Not<T>>()),
                    _ => by_bits!(ty, T => unary::<Cnot<T>>()),
                };
                let handler = self.known(op, handler)?;
                return self.emit1(op, Class::Integer, handler, ty, ty);
            }
        };
        let handler = self.known(op, handler)?;
        self.emit2(op, Class::Integer, handler, ty, ty, ty)
    }

    fn bits(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        const W: Type = Type::U32;
        let class = Class::Integer;
        if op.name == "prmt" {
            op.take_type();
            let handler = match op.take_any(&["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"]) {
                None => ternary::<PrmtDefault>(),
                Some("f4e") => ternary::<PrmtF4e>(),
                Some("b4e") => ternary::<PrmtB4e>(),
                Some("rc8") => ternary::<PrmtRc8>(),
                Some("ecl") => ternary::<PrmtEcl>(),
                Some("ecr") => ternary::<PrmtEcr>(),
                Some(_) => ternary::<PrmtRc16>(),
            };
            return self.emit3(op, class, handler, [W; 4], 0);
        }
        if op.name == "dp4a" || op.name == "dp2a" {
            let types: Vec<&str> = std::iter::from_fn(|| op.take_type()).collect();
            let [a, b] = types[..] else { return self.err(format!("'{}' needs two types", op.name)) };
            let (a, b) = (a == "s32", b == "s32");
            if op.name == "dp2a" {
                let high = op.take_any(&["lo", "hi"]) == Some("hi");
                let x = u64::from(a) | u64::from(b) << 1 | u64::from(high) << 2;
                return self.emit3(op, class, dp2a::<u32>(), [W; 4], x);
            }
            let handler = match (a, b) {
                (false, false) => ternary::<Dp4aUU>(),
                (false, true) => ternary::<Dp4aUS>(),
                (true, false) => ternary::<Dp4aSU>(),
                (true, true) => ternary::<Dp4aSS>(),
            };
            return self.emit3(op, class, handler, [W; 4], 0);
        }
        let ty = self.int_type(op)?;
        match op.name {
            "shl" | "shr" => {
                let handler = if op.name == "shl" {
                    by_bits!(ty, T => binary::<Shl<T>>())
                } else {
                    match ty {
                        Type::S16 | Type::S32 | Type::S64 => by_int!(ty, T => binary::<Shr<T>>()),
                        _ => by_bits!(ty, T => binary::<Shr<T>>()),
                    }
                };
                let handler = self.known(op, handler)?;
                self.emit2(op, class, handler, ty, ty, W)
            }
            "shf" => {
                let left = op.take_any(&["l", "r"]) == Some("l");
                let clamp = op.take_any(&["clamp", "wrap"]) == Some("clamp");
                let handler = match (left, clamp) {
                    (true, true) => ternary::<ShfLeftClamp>(),
                    (true, false) => ternary::<ShfLeftWrap>(),
                    (false, true) => ternary::<ShfRightClamp>(),
                    (false, false) => ternary::<ShfRightWrap>(),
                };
                self.emit3(op, class, handler, [W; 4], 0)
            }
            "bfe" => {
                let handler = match ty {
                    Type::U32 => ternary::<BfeU32>(),
                    Type::S32 => ternary::<BfeS32>(),
                    Type::U64 => ternary::<BfeU64>(),
                    Type::S64 => ternary::<BfeS64>(),
                    _ => return self.err("'bfe' needs 32 or 64 bits"),
                };
                self.emit3(op, class, handler, [ty, ty, W, W], 0)
            }
            "bfi" => {
                self.count(op, 5)?;
                let width = self.source(&op.operands[4], W)?;
                let at = self.source(&op.operands[3], W)?;
                let (a, b) = (self.source(&op.operands[1], ty)?, self.source(&op.operands[2], ty)?);
                let d = self.dest(&op.operands[0], ty)?;
                let handler = by_bits!(ty, T => bfi::<T>());
                let handler = self.known(op, handler)?;
                self.emit(class, handler, [d, a, b, at], u64::from(width));
                Ok(())
            }
            "bmsk" => {
                let wrap = op.take_any(&["clamp", "wrap"]) == Some("wrap");
                let handler = if wrap { binary::<BmskWrap>() } else { binary::<BmskClamp>() };
                self.emit2(op, class, handler, W, W, W)
            }
            "szext" => {
                let wrap = op.take_any(&["clamp", "wrap"]) == Some("wrap");
                let handler = match (wrap, ty) {
                    (true, Type::S32) => binary::<SzextWrapS>(),
                    (false, Type::S32) => binary::<SzextClampS>(),
                    (true, _) => binary::<SzextWrapU>(),
                    (false, _) => binary::<SzextClampU>(),
                };
                self.emit2(op, class, handler, W, W, W)
            }
            "lop3" => {
                let Some(Operand::Number(number)) = op.operands.get(4) else {
                    return self.err("'lop3' needs its table as a number");
                };
                let table = super::bits_of(*number, W) & 0xff;
                let rule = op.take_any(&["and", "or"]);
                let (Operand::Pair(d, p), Some(rule)) = (&op.operands[0], rule) else {
                    let short = Op { name: op.name, words: Default::default(), operands: &op.operands[..4] };
                    self.count(op, 5)?;
                    return self.emit3(&short, class, lop3::<u32>(), [W; 4], table);
                };
                // With a predicate: whether the result is not zero, combined with another one.
                self.count(op, 6)?;
                let mut operands = op.operands[..4].to_vec();
                operands[0] = if *d == "_" { Operand::Sink } else { Operand::Name(d) };
                let zero = self.constant(Width::Word, 0);
                let (q, negated) = self.predicate(&op.operands[5])?;
                let result = self.row(Width::Word);
                let rows = [1, 2, 3].map(|k| self.source(&operands[k], W));
                let [a, b, c] = rows;
                self.emit(class, lop3::<u32>(), [result, a?, b?, c?], table);
                let d = self.dest(&operands[0], W)?;
                self.emit(Class::Move, lanes::copy::<u32>(), [d, result, 0, 0], 0);
                // Last, since it may be the guard.
                let p = self.pred_dest(p)?;
                let how = if rule == "and" { Combine::And } else { Combine::Or };
                let ne = lanes::setp_combined::<Ne<u32>>();
                self.emit(class, ne, [p, result, zero, q], pack_setp(0, how, negated));
                Ok(())
            }
            _ => self.emit3(op, class, ternary::<Fns>(), [W; 4], 0),
        }
    }

    fn compare(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        let Some(relation) = op.take_any(&["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"]) else {
            return self.err(format!("instruction '{}' has no comparison", op.full_name()));
        };
        let types: Vec<&str> = std::iter::from_fn(|| op.take_type()).collect();
        let ty = self.type_of(op, types.last().copied())?;
        let unsigned = |ty: Type| match Width::of(ty) {
            Width::Half => Type::U16,
            Width::Word => Type::U32,
            _ => Type::U64,
        };
        let bits = matches!(relation, "lo" | "ls" | "hi" | "hs") || matches!(ty, Type::B16 | Type::B32 | Type::B64);
        let compared = if bits { unsigned(ty) } else { ty };
        macro_rules! pick {
            ($maker:path) => {
                match relation {
                    "eq" => by_int!(compared, T => { use $maker as make; make::<Eq<T>>() }),
                    "ne" => by_int!(compared, T => { use $maker as make; make::<Ne<T>>() }),
                    "lt" | "lo" => by_int!(compared, T => { use $maker as make; make::<Lt<T>>() }),
                    "le" | "ls" => by_int!(compared, T => { use $maker as make; make::<Le<T>>() }),
                    "gt" | "hi" => by_int!(compared, T => { use $maker as make; make::<Gt<T>>() }),
                    _ => by_int!(compared, T => { use $maker as make; make::<Ge<T>>() }),
                }
            };
        }
        if op.name == "set" {
            let handler = pick!(lanes::set);
            let handler = self.known(op, handler)?;
            return self.emit_set(op, handler, ty, types.first().copied());
        }
        let plain = pick!(lanes::setp);
        let combined = pick!(lanes::setp_combined);
        let (plain, combined) = (self.known(op, plain)?, self.known(op, combined)?);
        self.emit_setp(op, plain, combined, ty)
    }

    /// `setp` with these handlers, for the forms with and without a third operand.
    pub fn emit_setp(&mut self, op: &mut Op<'_, 'a>, plain: Handler, combined: Handler, ty: Type) -> Result<()> {
        let combine = take_combine(op);
        self.count(op, if combine.is_some() { 4 } else { 3 })?;
        let (a, b) = (self.source(&op.operands[1], ty)?, self.source(&op.operands[2], ty)?);
        let third = match combine {
            Some(_) => self.predicate(&op.operands[3])?,
            None => (0, false),
        };
        let (p, q) = match &op.operands[0] {
            Operand::Pair(p, q) => (self.pred_dest(p)?, if *q == "_" { 0 } else { self.pred_dest(q)? }),
            Operand::Name(p) => (self.pred_dest(p)?, 0),
            Operand::Sink => (self.row(Width::Pred), 0),
            _ => return self.err("'setp' writes a predicate"),
        };
        match combine {
            None => self.emit(Class::Compare, plain, [p, a, b, 0], u64::from(q)),
            Some(how) => self.emit(Class::Compare, combined, [p, a, b, third.0], pack_setp(q, how, third.1)),
        }
        Ok(())
    }

    /// `set` with this handler: the result is all ones, or 1.0 when it is a float.
    pub fn emit_set(&mut self, op: &mut Op<'_, 'a>, handler: Handler, ty: Type, result: Option<&str>) -> Result<()> {
        let yes = match result {
            Some("f32") => 1.0f32.to_bits(),
            Some("u32" | "s32" | "b32") => u32::MAX,
            _ => return self.err(format!("instruction '{}' is not supported for this result", op.full_name())),
        };
        let combine = take_combine(op);
        self.count(op, if combine.is_some() { 4 } else { 3 })?;
        let (a, b) = (self.source(&op.operands[1], ty)?, self.source(&op.operands[2], ty)?);
        let (c, x) = match combine {
            Some(how) => {
                let (row, negated) = self.predicate(&op.operands[3])?;
                (row, pack_setp(0, how, negated))
            }
            None => (0, 0),
        };
        let d = self.dest(&op.operands[0], Type::U32)?;
        self.emit(Class::Compare, handler, [d, a, b, c], x | u64::from(yes));
        Ok(())
    }

    fn choose(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        let ftz = op.take("ftz");
        let ty = self.int_type(op)?;
        if op.name == "slct" {
            let by = self.int_type(op)?;
            let handler = match (Width::of(ty), by) {
                (Width::Half, Type::S32) => ternary::<SlctU16>(),
                (Width::Half, _) if ftz => ternary::<SlctFtz16>(),
                (Width::Half, _) => ternary::<SlctF16>(),
                (Width::Word, Type::S32) => ternary::<SlctU32>(),
                (Width::Word, _) if ftz => ternary::<SlctFtz32>(),
                (Width::Word, _) => ternary::<SlctF32>(),
                (Width::Double, Type::S32) => ternary::<SlctU64>(),
                (Width::Double, _) if ftz => ternary::<SlctFtz64>(),
                (Width::Double, _) => ternary::<SlctF64>(),
                _ => return self.err("'slct' is not supported for this type"),
            };
            return self.emit3(op, Class::Compare, handler, [ty, ty, ty, by], 0);
        }
        self.count(op, 4)?;
        let (a, b) = (self.source(&op.operands[1], ty)?, self.source(&op.operands[2], ty)?);
        let (p, negated) = self.predicate(&op.operands[3])?;
        let d = self.dest(&op.operands[0], ty)?;
        let handler = by_bits!(ty, T => lanes::select::<T>());
        let handler = self.known(op, handler)?;
        self.emit(Class::Compare, handler, [d, a, b, p], u64::from(negated));
        Ok(())
    }
}

/// How a comparison is combined with a predicate, where it is.
fn take_combine(op: &mut Op<'_, '_>) -> Option<Combine> {
    op.take_any(&["and", "or", "xor"]).map(|word| match word {
        "and" => Combine::And,
        "or" => Combine::Or,
        _ => Combine::Xor,
    })
}
