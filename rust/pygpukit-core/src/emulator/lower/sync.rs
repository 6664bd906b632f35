//! Barriers, and instructions of a whole warp.

use super::instruction::Op;
use super::operands::describe;
use super::{Lower, Result, Type, Width};
use crate::emulator::code::{Class, Handler};
use crate::emulator::exec::barrier::{Mode, barrier, reduced};
use crate::emulator::exec::warpwide::*;
use crate::emulator::ptx::ast::Operand;

impl<'a> Lower<'a> {
    /// Lower an instruction of synchronisation; false when it is not one.
    pub(super) fn sync(&mut self, op: &mut Op<'_, 'a>) -> Result<bool> {
        match op.name {
            "bar" | "barrier" => return self.barrier(op),
            "shfl" => self.shuffle(op)?,
            "vote" => self.vote(op)?,
            "match" => self.matches(op)?,
            "redux" => self.redux(op)?,
            "elect" => self.elect(op)?,
            "activemask" => {
                op.take("b32");
                self.count(op, 1)?;
                let d = self.dest(&op.operands[0], Type::B32)?;
                self.emit(Class::Warp, active_mask, [d, 0, 0, 0], 0);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn barrier(&mut self, op: &mut Op<'_, 'a>) -> Result<bool> {
        if op.words.contains(&"cluster") {
            return Ok(false);
        }
        let name = op.full_name();
        op.take("cta");
        if op.name == "bar" && op.take("warp") {
            op.take("sync");
            self.count(op, 1)?;
            let mask = self.source(&op.operands[0], Type::B32)?;
            self.emit(Class::Barrier, warp_barrier, [0, mask, 0, 0], 0);
            return Ok(true);
        }
        let aligned = op.take("aligned") || op.name == "bar";
        match op.take_any(&["sync", "arrive", "red"]) {
            Some("red") => self.barrier_reduction(op, aligned)?,
            Some(kind) => {
                let wait = kind == "sync";
                let (id, count) = match op.operands {
                    [id] if wait => (id, None),
                    [id, count] => (id, Some(count)),
                    _ => return self.err(format!("'{name}' takes a barrier and a number of threads")),
                };
                let a = self.source(id, Type::U32)?;
                let b = count.map_or(Ok(0), |count| self.source(count, Type::U32))?;
                let mode = Mode { aligned, wait, reduce: false };
                self.emit(Class::Barrier, barrier, [0, a, b, 0], mode.pack());
            }
            None => return Ok(false),
        }
        Ok(true)
    }

    fn barrier_reduction(&mut self, op: &mut Op<'_, 'a>, aligned: bool) -> Result<()> {
        let name = op.full_name();
        let (ty, x) = match op.take_any(&["popc", "and", "or"]) {
            Some("popc") => (Type::U32, 0),
            Some("and") => (Type::Pred, 1),
            Some("or") => (Type::Pred, 2),
            _ => return self.err(format!("instruction '{name}' is not supported")),
        };
        op.take_any(&["u32", "pred"]);
        let (target, id, count, value) = match op.operands {
            [target, id, value] => (target, id, None, value),
            [target, id, count, value] => (target, id, Some(count), value),
            _ => return self.err(format!("'{name}' takes a result, a barrier, a number of threads and a predicate")),
        };
        let a = self.source(id, Type::U32)?;
        let b = count.map_or(Ok(0), |count| self.source(count, Type::U32))?;
        let c = self.plain_predicate(value)?;
        let d = self.dest(target, ty)?;
        // The barrier's number is read again after the wait, from a copy: the result may go to its register.
        let (phase, copy) = (self.row(Width::Word), self.row(Width::Word));
        self.emit(Class::Move, crate::emulator::exec::lanes::copy::<u32>(), [copy, a, 0, 0], 0);
        let mode = Mode { aligned, wait: true, reduce: true };
        self.emit(Class::Barrier, barrier, [phase, a, b, c], mode.pack());
        self.emit(Class::Move, reduced, [d, copy, phase, 0], x);
        Ok(())
    }

    /// A destination that may have a predicate with it: the register, and the predicate or 0.
    fn with_predicate(&mut self, operand: &Operand<'a>, ty: Type) -> Result<(u32, u32)> {
        match operand {
            Operand::Pair(register, predicate) => {
                let target = if *register == "_" { Operand::Sink } else { Operand::Name(register) };
                Ok((self.dest(&target, ty)?, self.pred_dest(predicate)?))
            }
            single => Ok((self.dest(single, ty)?, 0)),
        }
    }

    /// The instruction must say `.sync`; what older hardware had is gone.
    fn must_sync(&self, op: &mut Op<'_, 'a>) -> Result<()> {
        if op.take("sync") {
            return Ok(());
        }
        self.err(format!("'{}' without '.sync' is not supported", op.full_name()))
    }

    fn shuffle(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        self.must_sync(op)?;
        let run: Handler = match op.take_any(&["up", "down", "bfly", "idx"]) {
            Some("up") => shuffle::<Up>(),
            Some("down") => shuffle::<Down>(),
            Some("bfly") => shuffle::<Butterfly>(),
            Some("idx") => shuffle::<Index>(),
            _ => return self.err("'shfl.sync' needs a mode"),
        };
        op.take("b32");
        self.count(op, 5)?;
        let a = self.source(&op.operands[1], Type::B32)?;
        let b = self.source(&op.operands[2], Type::B32)?;
        let clamp = self.source(&op.operands[3], Type::B32)?;
        let mask = self.source(&op.operands[4], Type::B32)?;
        let (d, predicate) = self.with_predicate(&op.operands[0], Type::B32)?;
        let list = self.code.lists.len() as u32;
        self.code.lists.extend([clamp, mask]);
        self.emit(Class::Warp, run, [d, a, b, list], u64::from(predicate));
        Ok(())
    }

    fn vote(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        self.must_sync(op)?;
        let mode = op.take_any(&["all", "any", "uni", "ballot"]);
        op.take_any(&["pred", "b32"]);
        self.count(op, 3)?;
        let a = self.plain_predicate(&op.operands[1])?;
        let mask = self.source(&op.operands[2], Type::B32)?;
        let (run, ty, x): (Handler, _, _) = match mode {
            Some("ballot") => (ballot, Type::B32, 0),
            Some("all") => (vote, Type::Pred, 0),
            Some("any") => (vote, Type::Pred, 1),
            Some("uni") => (vote, Type::Pred, 2),
            _ => return self.err("'vote.sync' needs a mode"),
        };
        let d = self.dest(&op.operands[0], ty)?;
        self.emit(Class::Warp, run, [d, a, mask, 0], x);
        Ok(())
    }

    fn matches(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        self.must_sync(op)?;
        let all = op.take("all");
        if !all && !op.take("any") {
            return self.err("'match.sync' needs a mode");
        }
        let word = op.take_type();
        let (ty, run): (_, Handler) = match (word, all) {
            (Some("b32"), false) => (Type::B32, match_any::<u32>),
            (Some("b64"), false) => (Type::B64, match_any::<u64>),
            (Some("b32"), true) => (Type::B32, match_all::<u32>),
            (Some("b64"), true) => (Type::B64, match_all::<u64>),
            _ => return self.err("'match.sync' compares values of 32 or 64 bits"),
        };
        self.count(op, 3)?;
        let a = self.source(&op.operands[1], ty)?;
        let mask = self.source(&op.operands[2], Type::B32)?;
        let (d, predicate) = self.with_predicate(&op.operands[0], Type::B32)?;
        self.emit(Class::Warp, run, [d, a, mask, predicate], 0);
        Ok(())
    }

    fn redux(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        let name = op.full_name();
        self.must_sync(op)?;
        let operation = op.take_any(&["add", "min", "max", "and", "or", "xor"]).unwrap_or("");
        let (abs, nan) = (op.take("abs"), op.take("NaN"));
        let word = op.take_type().unwrap_or("");
        let run: Handler = match (operation, word, nan) {
            ("add", "u32" | "s32", false) => reduce::<Sum>,
            ("min", "u32", false) => reduce::<MinU>,
            ("max", "u32", false) => reduce::<MaxU>,
            ("min", "s32", false) => reduce::<MinS>,
            ("max", "s32", false) => reduce::<MaxS>,
            ("and", "b32", false) => reduce::<And>,
            ("or", "b32", false) => reduce::<Or>,
            ("xor", "b32", false) => reduce::<Xor>,
            ("min", "f32", false) => reduce::<MinF>,
            ("max", "f32", false) => reduce::<MaxF>,
            ("min", "f32", true) => reduce::<MinNan>,
            ("max", "f32", true) => reduce::<MaxNan>,
            _ => return self.err(format!("instruction '{name}' is not supported")),
        };
        if abs && word != "f32" {
            return self.err(format!("'.abs' of '{name}' needs a floating-point type"));
        }
        self.count(op, 3)?;
        let a = self.source(&op.operands[1], Type::B32)?;
        let mask = self.source(&op.operands[2], Type::B32)?;
        let d = self.dest(&op.operands[0], Type::B32)?;
        self.emit(Class::Warp, run, [d, a, mask, 0], if abs { 1 << 31 } else { 0 });
        Ok(())
    }

    fn elect(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        self.must_sync(op)?;
        self.count(op, 2)?;
        let mask = self.source(&op.operands[1], Type::B32)?;
        let (d, predicate) = self.with_predicate(&op.operands[0], Type::B32)?;
        if predicate == 0 {
            return self.err(format!("'elect.sync' needs a predicate after {}", describe(&op.operands[0])));
        }
        self.emit(Class::Warp, elect, [d, mask, mask, predicate], 0);
        Ok(())
    }
}
