//! `cvt`: every pair of types, with registers that may be wider than integer types.

use super::instruction::Op;
use super::{Lower, Reg, Result, Type, Width};
use crate::emulator::code::{Class, Handler};
use crate::emulator::exec::convert::*;
use crate::emulator::exec::float::{Mode, Modes, modal};
use crate::emulator::exec::lanes::unary;
use crate::emulator::float::Round;

macro_rules! fixed {
    ($A:ty, $from:ident, $D:ty, $to:ident) => {
        modal::<Fixed<$A, $D, { Kind::$from as u8 }, { Kind::$to as u8 }>>()
    };
}

macro_rules! resize {
    ($A:ty, $D:ty, $via:expr) => {
        match $via {
            Kind::U8 => unary::<Resize<$A, $D, { Kind::U8 as u8 }>>(),
            Kind::S8 => unary::<Resize<$A, $D, { Kind::S8 as u8 }>>(),
            Kind::U16 => unary::<Resize<$A, $D, { Kind::U16 as u8 }>>(),
            Kind::S16 => unary::<Resize<$A, $D, { Kind::S16 as u8 }>>(),
            Kind::U32 => unary::<Resize<$A, $D, { Kind::U32 as u8 }>>(),
            Kind::S32 => unary::<Resize<$A, $D, { Kind::S32 as u8 }>>(),
            _ => unary::<Resize<$A, $D, { Kind::U64 as u8 }>>(),
        }
    };
}

/// The handler of a common conversion between registers of the types' widths.
fn common(from: Kind, to: Kind) -> Option<Modes> {
    Some(match (from, to) {
        (Kind::S32, Kind::F32) => fixed!(u32, S32, u32, F32),
        (Kind::U32, Kind::F32) => fixed!(u32, U32, u32, F32),
        (Kind::S64, Kind::F32) => fixed!(u64, S64, u32, F32),
        (Kind::U64, Kind::F32) => fixed!(u64, U64, u32, F32),
        (Kind::U16, Kind::F32) => fixed!(u16, U16, u32, F32),
        (Kind::S16, Kind::F32) => fixed!(u16, S16, u32, F32),
        (Kind::S32, Kind::F64) => fixed!(u32, S32, u64, F64),
        (Kind::U32, Kind::F64) => fixed!(u32, U32, u64, F64),
        (Kind::S64, Kind::F64) => fixed!(u64, S64, u64, F64),
        (Kind::U64, Kind::F64) => fixed!(u64, U64, u64, F64),
        (Kind::F32, Kind::S32) => fixed!(u32, F32, u32, S32),
        (Kind::F32, Kind::U32) => fixed!(u32, F32, u32, U32),
        (Kind::F32, Kind::S64) => fixed!(u32, F32, u64, S64),
        (Kind::F32, Kind::U64) => fixed!(u32, F32, u64, U64),
        (Kind::F64, Kind::S32) => fixed!(u64, F64, u32, S32),
        (Kind::F64, Kind::U32) => fixed!(u64, F64, u32, U32),
        (Kind::F64, Kind::S64) => fixed!(u64, F64, u64, S64),
        (Kind::F64, Kind::U64) => fixed!(u64, F64, u64, U64),
        (Kind::F16, Kind::F32) => fixed!(u16, F16, u32, F32),
        (Kind::Bf16, Kind::F32) => fixed!(u16, Bf16, u32, F32),
        (Kind::F32, Kind::F16) => fixed!(u32, F32, u16, F16),
        (Kind::F32, Kind::Bf16) => fixed!(u32, F32, u16, Bf16),
        (Kind::F32, Kind::F32) => fixed!(u32, F32, u32, F32),
        (Kind::F32, Kind::F64) => fixed!(u32, F32, u64, F64),
        (Kind::F64, Kind::F32) => fixed!(u64, F64, u32, F32),
        (Kind::F64, Kind::F64) => fixed!(u64, F64, u64, F64),
        _ => return None,
    })
}

impl<'a> Lower<'a> {
    /// Lower a conversion; false when it is not one.
    pub(super) fn convert(&mut self, op: &mut Op<'_, 'a>) -> Result<bool> {
        if op.name != "cvt" {
            return Ok(false);
        }
        if op.take("pack") {
            self.cvt_pack(op)?;
            return Ok(true);
        }
        let name = op.full_name();
        let (Some(to), Some(from)) = (op.take_type(), op.take_type()) else { return Ok(false) };
        let mut mode = Mode::PLAIN;
        let rounding = op.take_any(&["rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi"]);
        mode.integral = matches!(rounding, Some("rni" | "rzi" | "rmi" | "rpi"));
        mode.round = match rounding {
            Some("rz" | "rzi") => Round::Zero,
            Some("rm" | "rmi") => Round::Down,
            Some("rp" | "rpi") => Round::Up,
            Some("rna") => Round::Away,
            _ => Round::Nearest,
        };
        match (Kind::parse(to), Kind::parse(from)) {
            (Some(to), Some(from)) => self.numbers(op, &name, to, from, rounding, mode),
            _ => self.packed(op, &name, to, from, mode),
        }
    }

    fn numbers(
        &mut self,
        op: &mut Op<'_, 'a>,
        name: &str,
        to: Kind,
        from: Kind,
        rounding: Option<&str>,
        mut mode: Mode,
    ) -> Result<bool> {
        let (from_int, to_int) = (from.int().is_some(), to.int().is_some());
        let allowed = match (from_int, to_int) {
            (true, true) => rounding.is_none(),
            // A value of a float becomes an integer, or integral in the same format.
            (false, true) => mode.integral,
            (false, false) if from == to => mode.integral || rounding.is_none(),
            _ => !mode.integral && mode.round != Round::Away,
        };
        if !allowed {
            return self.err(format!("instruction '{name}' has no rounding, or one that does not fit its types"));
        }
        mode.ftz = (from == Kind::F32 || to == Kind::F32) && op.take("ftz");
        mode.sat = op.take("sat");
        if from == Kind::F32 && matches!(to, Kind::F16 | Kind::Bf16) {
            mode.relu = op.take("relu");
            mode.satfinite = op.take("satfinite");
        }
        self.count(op, 2)?;
        let a = self.any_source(&op.operands[1], register_type(from))?;
        let d = self.any_dest(&op.operands[0], register_type(to))?;
        self.check_register(name, a, from)?;
        self.check_register(name, d, to)?;
        let natural = fits(a, from) && fits(d, to);
        let handler = match (from_int && to_int && !mode.sat, natural) {
            (true, _) => resize(a.width, d.width, from, to),
            (false, true) => common(from, to).map(|modes| modes.of(mode)),
            _ => None,
        };
        match handler {
            Some(handler) => self.emit(Class::Convert, handler, [d.row, a.row, 0, 0], mode.pack()),
            None => {
                let x = pack_any(mode, from, to, a.width.bits() / 8, d.width.bits() / 8);
                self.emit(Class::Convert, any::<u64>(), [d.row, a.row, 0, 0], x);
            }
        }
        Ok(true)
    }

    /// A register must hold its type; only an integer may lie in a wider one.
    fn check_register(&self, name: &str, reg: Reg, kind: Kind) -> Result<()> {
        let bits = reg.width.bits();
        let fine = match reg.width {
            Width::Pred | Width::Quad => false,
            _ if kind.int().is_some() => bits >= kind.bits(),
            _ => bits == kind.bits(),
        };
        if fine {
            return Ok(());
        }
        self.err(format!("an operand of '{name}' has {bits} bits where {} are needed", kind.bits()))
    }

    /// Pairs, fp8 and tf32.
    fn packed(&mut self, op: &mut Op<'_, 'a>, name: &str, to: &str, from: &str, mut mode: Mode) -> Result<bool> {
        mode.relu = op.take("relu");
        mode.satfinite = op.take("satfinite");
        let (half, word) = (Type::B16, Type::B32);
        let (handler, sources, d, a) = match (to, from) {
            ("f16x2", "f32") => (modal::<F16x2>(), 2, word, word),
            ("bf16x2", "f32") => (modal::<Bf16x2>(), 2, word, word),
            ("tf32", "f32") => (modal::<Tf32>(), 1, word, word),
            ("e4m3x2", "f32") => (modal::<E4m3FromF32>(), 2, half, word),
            ("e5m2x2", "f32") => (modal::<E5m2FromF32>(), 2, half, word),
            ("e4m3x2", "f16x2") => (modal::<E4m3FromF16>(), 1, half, word),
            ("e5m2x2", "f16x2") => (modal::<E5m2FromF16>(), 1, half, word),
            ("e4m3x2", "bf16x2") => (modal::<E4m3FromBf16>(), 1, half, word),
            ("e5m2x2", "bf16x2") => (modal::<E5m2FromBf16>(), 1, half, word),
            ("f16x2", "e4m3x2") => (modal::<E4m3ToF16>(), 1, word, half),
            ("f16x2", "e5m2x2") => (modal::<E5m2ToF16>(), 1, word, half),
            _ => return Ok(false),
        };
        let fits = match mode.round {
            Round::Nearest => true,
            Round::Zero => matches!(to, "f16x2" | "bf16x2" | "tf32") && from == "f32",
            Round::Away => to == "tf32",
            _ => false,
        };
        if mode.integral || !fits {
            return self.err(format!("instruction '{name}' has a rounding that does not fit its types"));
        }
        self.count(op, sources + 1)?;
        let mut rows = [0; 4];
        for (slot, operand) in rows[1..].iter_mut().zip(&op.operands[1..]) {
            *slot = self.source(operand, a)?;
        }
        rows[0] = self.dest(&op.operands[0], d)?;
        self.emit(Class::Convert, handler.of(mode), rows, mode.pack());
        Ok(true)
    }

    fn cvt_pack(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        op.take("sat");
        let Some(to) = op.take_any(&["u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"]) else {
            return self.err("'cvt.pack' needs the type it clamps to");
        };
        while op.take("s32") || op.take("b32") {}
        let handler = match to {
            "u16" => modal::<Pack<16, false>>(),
            "s16" => modal::<Pack<16, true>>(),
            "u8" => modal::<Pack<8, false>>(),
            "s8" => modal::<Pack<8, true>>(),
            "u4" => modal::<Pack<4, false>>(),
            "s4" => modal::<Pack<4, true>>(),
            "u2" => modal::<Pack<2, false>>(),
            _ => modal::<Pack<2, true>>(),
        }
        .of(Mode::PLAIN);
        let word = Type::B32;
        if op.operands.len() == 4 && !to.ends_with("16") {
            return self.emit3(op, Class::Convert, handler, [word; 4], 0);
        }
        self.count(op, 3)?;
        let zero = self.constant(Width::Word, 0);
        let (a, b) = (self.source(&op.operands[1], word)?, self.source(&op.operands[2], word)?);
        let d = self.dest(&op.operands[0], word)?;
        self.emit(Class::Convert, handler, [d, a, b, zero], 0);
        Ok(())
    }
}

fn fits(reg: Reg, kind: Kind) -> bool {
    reg.width.bits() == kind.bits()
}

/// The type of an immediate operand.
fn register_type(kind: Kind) -> Type {
    match kind {
        Kind::F16 | Kind::Bf16 => Type::B16,
        Kind::F32 => Type::F32,
        Kind::F64 => Type::F64,
        other => match other.bits() {
            64 => Type::U64,
            32 => Type::U32,
            _ => Type::U16,
        },
    }
}

/// The handler between integers without `.sat`: one of the two types decides what is kept and how it is extended.
fn resize(a: Width, d: Width, from: Kind, to: Kind) -> Option<Handler> {
    let signed = |kind: Kind| kind.int().is_some_and(|int| int.signed());
    let via = if to.bits() <= from.bits() {
        to
    } else if to.bits() == d.bits() || signed(from) == signed(to) {
        from
    } else {
        return None;
    };
    Some(match (a, d) {
        (Width::Half, Width::Half) => resize!(u16, u16, via),
        (Width::Half, Width::Word) => resize!(u16, u32, via),
        (Width::Half, _) => resize!(u16, u64, via),
        (Width::Word, Width::Half) => resize!(u32, u16, via),
        (Width::Word, Width::Word) => resize!(u32, u32, via),
        (Width::Word, _) => resize!(u32, u64, via),
        (_, Width::Half) => resize!(u64, u16, via),
        (_, Width::Word) => resize!(u64, u32, via),
        _ => resize!(u64, u64, via),
    })
}
