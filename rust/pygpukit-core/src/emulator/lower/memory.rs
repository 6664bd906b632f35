//! Moves, loads, stores, fences and addresses.

use super::instruction::Op;
use super::operands::describe;
use super::{Lower, Name, Reg, Result, Type, Width};
use crate::emulator::code::{Class, Effect, Handler};
use crate::emulator::exec::memory::*;
use crate::emulator::exec::{self, integer, lanes};
use crate::emulator::memory::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};
use crate::emulator::ptx::ast::Operand;

/// Where an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    Global,
    Shared,
    Local,
    Generic,
    Param,
}

/// The handler for these widths: memory word, register.
macro_rules! access_handler {
    ($maker:ident, $S:ty, $A:ty, $word:expr, $register:expr) => {{
        type S = $S;
        type A = $A;
        match ($word, $register) {
            (Type::U8 | Type::B8, Width::Half) => Some($maker::<Access<S, A, u8, u16>>()),
            (Type::U8 | Type::B8, Width::Word) => Some($maker::<Access<S, A, u8, u32>>()),
            (Type::U8 | Type::B8, Width::Double) => Some($maker::<Access<S, A, u8, u64>>()),
            (Type::S8, Width::Half) => Some($maker::<Access<S, A, i8, u16>>()),
            (Type::S8, Width::Word) => Some($maker::<Access<S, A, i8, u32>>()),
            (Type::S8, Width::Double) => Some($maker::<Access<S, A, i8, u64>>()),
            (Type::U16 | Type::B16 | Type::F16, Width::Half) => Some($maker::<Access<S, A, u16, u16>>()),
            (Type::S16, Width::Half) => Some($maker::<Access<S, A, u16, u16>>()),
            (Type::U16 | Type::B16 | Type::F16, Width::Word) => Some($maker::<Access<S, A, u16, u32>>()),
            (Type::U16 | Type::B16 | Type::F16, Width::Double) => Some($maker::<Access<S, A, u16, u64>>()),
            (Type::S16, Width::Word) => Some($maker::<Access<S, A, i16, u32>>()),
            (Type::S16, Width::Double) => Some($maker::<Access<S, A, i16, u64>>()),
            (Type::U32 | Type::B32 | Type::S32 | Type::F32 | Type::F16x2, Width::Word) => {
                Some($maker::<Access<S, A, u32, u32>>())
            }
            (Type::U32 | Type::B32 | Type::F32 | Type::F16x2, Width::Double) => {
                Some($maker::<Access<S, A, u32, u64>>())
            }
            (Type::S32, Width::Double) => Some($maker::<Access<S, A, i32, u64>>()),
            (Type::U64 | Type::B64 | Type::S64 | Type::F64, Width::Double) => Some($maker::<Access<S, A, u64, u64>>()),
            _ => None,
        }
    }};
}

macro_rules! in_space {
    ($maker:ident, $place:expr, $wide:expr, $word:expr, $register:expr) => {
        match ($place, $wide) {
            (Where::Global, _) => access_handler!($maker, Global, u64, $word, $register),
            (Where::Shared, true) => access_handler!($maker, Shared, u64, $word, $register),
            (Where::Shared, false) => access_handler!($maker, Shared, u32, $word, $register),
            (Where::Local | Where::Param, true) => access_handler!($maker, Local, u64, $word, $register),
            (Where::Local | Where::Param, false) => access_handler!($maker, Local, u32, $word, $register),
            (Where::Generic, _) => access_handler!($maker, Generic, u64, $word, $register),
        }
    };
}

/// Words of memory instructions that change no result here.
const HINTS: &[&str] = &[
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "nc",
    "weak",
    "uni",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::evict_first",
    "L2::evict_last",
    "L2::evict_normal",
];

impl<'a> Lower<'a> {
    /// Lower a memory instruction; false when it is not one.
    pub(super) fn memory(&mut self, op: &mut Op<'_, 'a>) -> Result<bool> {
        match op.name {
            "mov" => self.move_value(op)?,
            "ld" | "ldu" => self.load(op)?,
            "st" => self.store(op)?,
            "cvta" => self.convert_address(op)?,
            "isspacep" => self.is_space(op)?,
            "fence" | "membar" => {
                self.effect = Effect(if op.words.contains(&"cta") { Effect::NARROW } else { 0 });
                // A fence between proxies orders nothing between threads.
                let run: Handler = if op.words.contains(&"proxy") { exec::control::nothing } else { fence };
                op.words.clear();
                self.emit(Class::Barrier, run, [0; 4], 0);
            }
            "prefetch" | "prefetchu" | "discard" | "applypriority" => {
                op.words.clear();
                self.emit(Class::Other, crate::emulator::exec::control::nothing, [0; 4], 0);
            }
            "createpolicy" => {
                op.words.clear();
                let d = self.dest(&op.operands[0], Type::U64)?;
                let zero = self.constant(Width::Double, 0);
                self.emit(Class::Move, lanes::copy::<u64>(), [d, zero, 0, 0], 0);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn copy(&mut self, width: Width, d: u32, a: u32) -> Result<()> {
        let handler = match width {
            Width::Pred => {
                self.emit(Class::Move, integer::pred_logic, [d, a, a, 0], 4);
                return Ok(());
            }
            Width::Half => lanes::copy::<u16>(),
            Width::Word => lanes::copy::<u32>(),
            Width::Double => lanes::copy::<u64>(),
            Width::Quad => {
                self.emit(Class::Move, lanes::copy::<u64>(), [d, a, 0, 0], 0);
                self.emit(Class::Move, lanes::copy::<u64>(), [d + 256, a + 256, 0, 0], 0);
                return Ok(());
            }
        };
        self.emit(Class::Move, handler, [d, a, 0, 0], 0);
        Ok(())
    }

    fn move_value(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        let word = op.take_type();
        let ty = self.type_of(op, word)?;
        self.count(op, 2)?;
        match (&op.operands[0], &op.operands[1]) {
            (Operand::Vector(parts), source) => self.unpack(parts, source, ty),
            (target, Operand::Vector(parts)) => self.pack(target, parts, ty),
            (target, source) if ty == Type::Pred => {
                let a = self.plain_predicate(source)?;
                let d = self.dest(target, ty)?;
                self.copy(Width::Pred, d, a)
            }
            (target, source) => {
                let width = Width::of(ty);
                let a = self.any_source(source, ty)?;
                let row = match (a.width, width) {
                    (from, to) if from == to => a.row,
                    (Width::Word, Width::Double) => self.widen(a.row),
                    // The address of a local variable is made with 64 bits.
                    (Width::Double, Width::Word) => self.narrow_double(a.row),
                    _ => return self.err(format!("{} does not fit this move", describe(source))),
                };
                let d = self.dest(target, ty)?;
                self.copy(width, d, row)
            }
        }
    }

    fn narrow_double(&mut self, row: u32) -> u32 {
        let d = self.row(Width::Word);
        self.emit(Class::Convert, lanes::unary::<integer::LowWord>(), [d, row, 0, 0], 0);
        d
    }

    /// `mov.b64 {%r1, %r2}, %rd1`: the parts of a value, the lowest first.
    fn unpack(&mut self, parts: &[Operand<'a>], source: &Operand<'a>, ty: Type) -> Result<()> {
        let a = self.source(source, ty)?;
        let part = self.part_type(ty, parts.len())?;
        for (k, target) in parts.iter().enumerate() {
            if *target == Operand::Sink {
                continue;
            }
            let d = self.dest(target, part)?;
            let shift = k as u32 * part.bytes() as u32 * 8;
            let (row, shift) = if ty == Type::B128 { (a + 256 * (shift / 64), shift % 64) } else { (a, shift) };
            let handler = match (Width::of(ty), part) {
                (Width::Word, Type::B16) => integer::part::<u32, u16>(),
                (Width::Word, Type::B8) => integer::part_byte::<u32>(),
                (Width::Half, Type::B8) => integer::part_byte::<u16>(),
                (Width::Double, Type::B8) => integer::part_byte::<u64>(),
                (Width::Double, Type::B16) => integer::part::<u64, u16>(),
                (Width::Double | Width::Quad, Type::B32) => integer::part::<u64, u32>(),
                (Width::Quad, Type::B64) => lanes::copy::<u64>(),
                _ => return self.err("this way to take a value apart is not supported"),
            };
            self.emit(Class::Move, handler, [d, row, 0, 0], u64::from(shift));
        }
        Ok(())
    }

    /// `mov.b64 %rd1, {%r1, %r2}`
    fn pack(&mut self, target: &Operand<'a>, parts: &[Operand<'a>], ty: Type) -> Result<()> {
        let part = self.part_type(ty, parts.len())?;
        let mut rows = Vec::new();
        for source in parts {
            rows.push(self.source(source, part)?);
        }
        let d = self.dest(target, ty)?;
        if ty == Type::B128 {
            match (part, &rows[..]) {
                (Type::B64, [low, high]) => {
                    // Both halves are read before one is written.
                    let copy = self.row(Width::Double);
                    self.copy(Width::Double, copy, *high)?;
                    self.copy(Width::Double, d, *low)?;
                    return self.copy(Width::Double, d + 256, copy);
                }
                (_, &[a, b, c, e]) => {
                    let list = self.list(&[c, e]);
                    let high = self.row(Width::Double);
                    self.emit(Class::Move, integer::join::<u32, u64>(), [high, 0, 0, 0], u64::from(list));
                    let list = self.list(&[a, b]);
                    self.emit(Class::Move, integer::join::<u32, u64>(), [d, 0, 0, 0], u64::from(list));
                    return self.copy(Width::Double, d + 256, high);
                }
                _ => return self.err("this way to put a value together is not supported"),
            }
        }
        let list = self.list(&rows);
        let handler = match (Width::of(ty), part) {
            (Width::Half, Type::B8) => integer::join_bytes::<u16>(),
            (Width::Word, Type::B8) => integer::join_bytes::<u32>(),
            (Width::Double, Type::B8) => integer::join_bytes::<u64>(),
            (Width::Word, Type::B16) => integer::join::<u16, u32>(),
            (Width::Double, Type::B16) => integer::join::<u16, u64>(),
            (Width::Double, Type::B32) => integer::join::<u32, u64>(),
            _ => return self.err("this way to put a value together is not supported"),
        };
        self.emit(Class::Move, handler, [d, 0, 0, 0], u64::from(list));
        Ok(())
    }

    fn part_type(&self, ty: Type, parts: usize) -> Result<Type> {
        match ty.bytes().checked_div(parts) {
            Some(1) => Ok(Type::B8),
            Some(2) => Ok(Type::B16),
            Some(4) => Ok(Type::B32),
            Some(8) => Ok(Type::B64),
            _ => self.err(format!("a value of {} bytes has no {parts} parts", ty.bytes())),
        }
    }

    /// Take the words that say where an access goes and how it is ordered.
    pub(super) fn take_space(&mut self, op: &mut Op<'_, 'a>) -> Result<Where> {
        for hint in HINTS {
            op.take(hint);
        }
        if op.take("L2::cache_hint") {
            // The policy is one more operand, which callers leave alone.
        }
        let place = match op.take_any(&[
            "global",
            "shared",
            "shared::cta",
            "shared::cluster",
            "local",
            "const",
            "param",
            "param::entry",
            "param::func",
        ]) {
            None => Where::Generic,
            Some("global" | "const") => Where::Global,
            Some("local") => Where::Local,
            Some("param" | "param::entry" | "param::func") => Where::Param,
            Some(_) => Where::Shared,
        };
        Ok(place)
    }

    /// Take the words of memory ordering; whether a fence is needed (before a store, after a load).
    pub(super) fn take_order(&mut self, op: &mut Op<'_, 'a>) -> bool {
        let order = op.take_any(&["acquire", "release", "acq_rel"]);
        let strong = op.take_any(&["volatile", "relaxed", "mmio"]).is_some() || op.words.contains(&"cv");
        let narrow = op.take_any(&["cta", "cluster", "gpu", "sys"]) == Some("cta");
        self.effect = Effect(match order {
            None if strong => Effect::STRONG,
            None => 0,
            Some("acquire") => Effect::STRONG | Effect::ACQUIRE,
            Some("release") => Effect::STRONG | Effect::RELEASE,
            Some(_) => Effect::STRONG | Effect::ACQUIRE | Effect::RELEASE,
        });
        if narrow {
            self.effect.0 |= Effect::NARROW;
        }
        order.is_some()
    }

    fn vector_rows(&mut self, parts: &[Operand<'a>], ty: Type, write: bool) -> Result<(u32, Width)> {
        let mut rows = Vec::new();
        let mut width = None;
        for part in parts {
            let reg = if write { self.any_dest(part, ty)? } else { self.any_source(part, ty)? };
            if width.is_some_and(|w| w != reg.width) {
                return self.err("the registers of a vector have different widths");
            }
            width = Some(reg.width);
            rows.push(reg.row);
        }
        let Some(width) = width else { return self.err("a vector has no elements") };
        Ok((self.list(&rows), width))
    }

    fn class_of(place: Where) -> Class {
        match place {
            Where::Global | Where::Generic => Class::Global,
            Where::Shared => Class::Shared,
            Where::Local => Class::Local,
            Where::Param => Class::Constant,
        }
    }

    fn load(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        let order = self.take_order(op);
        let place = self.take_space(op)?;
        op.take_any(&["v2", "v4", "v8"]);
        let word = op.take_type();
        let ty = self.type_of(op, word)?;
        if op.operands.len() < 2 {
            return self.err("'ld' takes a destination and an address");
        }
        let (target, source) = (&op.operands[0], &op.operands[1]);
        if ty == Type::B128 {
            return self.load_quad(target, source, place);
        }
        let (list, reg) = match target {
            Operand::Vector(parts) => {
                let (list, width) = self.vector_rows(parts, ty, true)?;
                (list, Reg { width, row: 0 })
            }
            single => (0, self.any_dest(single, ty)?),
        };
        if let (Where::Param, Operand::Address { base: Some(base), offset }) = (place, source)
            && let Some(Name::Param(at, bytes)) = self.look_up(base)
        {
            let start = i64::from(at) + offset;
            let count = if list == 0 { 1 } else { self.code.lists[list as usize] as usize };
            if *offset < 0 || offset + (ty.bytes() * count) as i64 > i64::from(bytes) {
                return self
                    .err(format!("{} reaches outside of the parameter, which has {bytes} bytes", describe(source)));
            }
            let handler = access_handler!(load_param, Global, u64, ty, reg.width);
            let handler = self.access(op, handler)?;
            self.emit(Class::Constant, handler, [reg.row, 0, 0, 0], pack_access(start as i32, list));
            return Ok(());
        }
        let mut place = place;
        if place == Where::Param && self.is_param_pointer(source) {
            place = Where::Generic;
        }
        let address = self.address(source)?;
        let handler = in_space!(load, place, address.wide, ty, reg.width);
        let handler = self.access(op, handler)?;
        let row = if needs_wide(place) && !address.wide { self.widen(address.row) } else { address.row };
        self.emit(Self::class_of(place), handler, [reg.row, row, 0, 0], pack_access(address.offset, list));
        if order {
            self.emit(Class::Barrier, fence, [0; 4], 0);
        }
        Ok(())
    }

    /// Is it a register in a kernel? It then holds the address of a parameter.
    fn is_param_pointer(&self, operand: &Operand<'a>) -> bool {
        let Operand::Address { base: Some(base), .. } = operand else { return false };
        self.entry && matches!(self.look_up(base), Some(Name::Register(_)))
    }

    fn access(&self, op: &Op<'_, 'a>, handler: Option<Handler>) -> Result<Handler> {
        match handler {
            Some(handler) => Ok(handler),
            None => self.err(format!("'{}' is not supported with a register of this width", op.full_name())),
        }
    }

    fn load_quad(&mut self, target: &Operand<'a>, source: &Operand<'a>, place: Where) -> Result<()> {
        let d = self.dest(target, Type::B128)?;
        let address = self.address(source)?;
        let list = self.list(&[d, d + 256]);
        let handler = in_space!(load, place, address.wide, Type::B64, Width::Double);
        let Some(handler) = handler else { return self.err("this load of 128 bits is not supported") };
        let row = if needs_wide(place) && !address.wide { self.widen(address.row) } else { address.row };
        self.emit(Self::class_of(place), handler, [0, row, 0, 0], pack_access(address.offset, list));
        Ok(())
    }

    fn store(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        if op.words.first() == Some(&"async") || op.words.first() == Some(&"bulk") {
            return self.err(format!("instruction '{}' is not supported", op.full_name()));
        }
        let order = self.take_order(op);
        let place = self.take_space(op)?;
        op.take_any(&["v2", "v4", "v8"]);
        let word = op.take_type();
        let ty = self.type_of(op, word)?;
        if op.operands.len() < 2 {
            return self.err("'st' takes an address and a value");
        }
        if order {
            self.emit(Class::Barrier, fence, [0; 4], 0);
        }
        if !self.effect.is(Effect::STRONG) {
            self.effect.0 |= Effect::STORE;
        }
        let (target, source) = (&op.operands[0], &op.operands[1]);
        let (ty, list, reg) = match source {
            Operand::Vector(parts) => {
                let (list, width) = self.vector_rows(parts, ty, false)?;
                (ty, list, Reg { width, row: 0 })
            }
            single if ty == Type::B128 => {
                let a = self.source(single, ty)?;
                (Type::B64, self.list(&[a, a + 256]), Reg { width: Width::Double, row: 0 })
            }
            single => (ty, 0, self.any_source(single, ty)?),
        };
        let address = self.address(target)?;
        let handler = in_space!(store, place, address.wide, ty, reg.width);
        let handler = self.access(op, handler)?;
        let row = if needs_wide(place) && !address.wide { self.widen(address.row) } else { address.row };
        self.emit(Self::class_of(place), handler, [0, row, reg.row, 0], pack_access(address.offset, list));
        Ok(())
    }

    fn convert_address(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        let to_space = op.take("to");
        let space = op.take_any(&[
            "global",
            "shared",
            "shared::cta",
            "shared::cluster",
            "local",
            "const",
            "param",
            "param::entry",
        ]);
        let word = op.take_type();
        if word != Some("u64") {
            return self.err("'cvta' needs addresses of 64 bits");
        }
        self.count(op, 2)?;
        let a = self.source(&op.operands[1], Type::U64)?;
        let d = self.dest(&op.operands[0], Type::U64)?;
        let window = match space {
            Some("shared" | "shared::cta" | "shared::cluster") => Some(SHARED_WINDOW),
            Some("local") => Some(LOCAL_WINDOW),
            _ => None,
        };
        match window {
            // Global, constant and parameter addresses are generic ones.
            None => self.copy(Width::Double, d, a)?,
            Some(window) => {
                let x = if to_space { 0 } else { window };
                self.emit(Class::Integer, convert_address, [d, a, 0, 0], x);
            }
        }
        Ok(())
    }

    fn is_space(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        let window = match op.take_any(&[
            "global",
            "shared",
            "shared::cta",
            "shared::cluster",
            "local",
            "const",
            "param",
            "param::entry",
        ]) {
            Some("shared" | "shared::cta" | "shared::cluster") => SHARED_WINDOW,
            Some("local") => LOCAL_WINDOW,
            Some("param" | "param::entry") => PARAM_WINDOW,
            Some("global") => 0,
            _ => return self.err("'isspacep' of this space is not supported"),
        };
        self.count(op, 2)?;
        let a = self.source(&op.operands[1], Type::U64)?;
        let d = self.dest(&op.operands[0], Type::Pred)?;
        self.emit(Class::Integer, is_space, [d, a, 0, 0], window);
        Ok(())
    }
}

fn needs_wide(place: Where) -> bool {
    matches!(place, Where::Global | Where::Generic)
}
