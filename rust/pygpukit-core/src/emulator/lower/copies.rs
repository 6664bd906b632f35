//! Asynchronous copies, and barrier objects in shared memory.

use super::instruction::Op;
use super::memory::Where;
use super::operands::AddressOf;
use super::operands::describe;
use super::{Lower, Name, Number, Result, Type, Width};
use crate::emulator::code::{Class, Effect, Handler};
use crate::emulator::exec::{copies, mbarrier};
use crate::emulator::ptx::ast::Operand;

impl<'a> Lower<'a> {
    /// Lower `cp.async` or `mbarrier`; false when it is neither.
    pub(super) fn copies(&mut self, op: &mut Op<'_, 'a>) -> Result<bool> {
        match op.name {
            "cp" => self.copy_async(op),
            "mbarrier" => self.mbarrier(op),
            _ => Ok(false),
        }
    }

    fn copy_async(&mut self, op: &mut Op<'_, 'a>) -> Result<bool> {
        if op.words.first() != Some(&"async") || op.words.contains(&"bulk") {
            return Ok(false);
        }
        op.take("async");
        if op.take("mbarrier") {
            self.effect = Effect(Effect::STRONG | Effect::ATOMIC | Effect::NARROW);
            op.take("arrive");
            let flags = u64::from(op.take("noinc"));
            let generic = self.take_space(op)? == Where::Generic;
            op.take("b64");
            self.count(op, 1)?;
            let address = self.address(&op.operands[0])?;
            self.emit_object(copies::track, address, generic, [0, 0], flags);
            return Ok(true);
        }
        let (run, x): (Handler, _) = match op.take_any(&["commit_group", "wait_group", "wait_all"]) {
            Some("commit_group") => (copies::commit, 0),
            Some("wait_all") => (copies::wait_all, 0),
            Some(_) => {
                self.count(op, 1)?;
                (copies::wait_group, self.immediate(&op.operands[0], 0..=i64::from(u32::MAX))?)
            }
            None => return self.issue_copy(op),
        };
        self.emit(Class::Barrier, run, [0; 4], x);
        Ok(true)
    }

    /// `cp.async.ca.shared.global [target], [source], bytes{, read}{, policy}`, or a predicate in the place of `read`.
    fn issue_copy(&mut self, op: &mut Op<'_, 'a>) -> Result<bool> {
        let name = op.full_name();
        let whole = op.words.contains(&"cg");
        let hinted = op.words.contains(&"L2::cache_hint");
        op.take_any(&["shared", "shared::cta"]);
        if self.take_space(op)? != Where::Global {
            return self.err(format!("instruction '{name}' is not supported"));
        }
        let count = op.operands.len().saturating_sub(usize::from(hinted));
        let (target, source, bytes, read) = match &op.operands[..count] {
            [target, source, bytes] => (target, source, bytes, None),
            [target, source, bytes, read] => (target, source, bytes, Some(read)),
            _ => return self.err(format!("'{name}' takes two addresses and a number of bytes")),
        };
        let bytes = self.immediate(bytes, 4..=16)?;
        if !bytes.is_power_of_two() || (whole && bytes != 16) {
            return self.err(format!("'{name}' cannot copy {bytes} bytes"));
        }
        let (target, source) = (self.address(target)?, self.address(source)?);
        let source_row = if source.wide { source.row } else { self.widen(source.row) };
        let (mut b, mut c, mut flags) = (0, 0, [0, 0]);
        match read {
            None => {}
            Some(operand) if self.is_predicate(operand) => {
                let (row, negated) = self.predicate(operand)?;
                (c, flags) = (row, [1, u32::from(negated)]);
            }
            Some(operand) => b = self.source(operand, Type::U32)?,
        }
        let offsets = [target.offset as u32, source.offset as u32];
        let list = self.list(&[bytes as u32, offsets[0], offsets[1], u32::from(target.wide), flags[0], flags[1]]);
        self.effect = Effect(Effect::ASYNC);
        self.emit(Class::Global, copies::copy, [target.row, source_row, b, c], u64::from(list));
        Ok(true)
    }

    fn is_predicate(&self, operand: &Operand<'a>) -> bool {
        match operand {
            Operand::Not(_) => true,
            Operand::Name(name) => matches!(self.look_up(name), Some(Name::Register(Type::Pred))),
            _ => false,
        }
    }

    /// The value of an operand that must be a number.
    fn immediate(&self, operand: &Operand<'a>, range: std::ops::RangeInclusive<i64>) -> Result<u64> {
        match operand {
            Operand::Number(Number::Int(value)) if range.contains(value) => Ok(*value as u64),
            other => {
                let (low, high) = range.into_inner();
                self.err(format!("{} must be a number from {low} to {high}", describe(other)))
            }
        }
    }

    fn emit_object(&mut self, run: Handler, address: AddressOf, generic: bool, [d, b]: [u32; 2], flags: u64) {
        let wide = generic || address.wide;
        let row = if wide && !address.wide { self.widen(address.row) } else { address.row };
        let x = mbarrier::pack_object(address.offset, wide, generic, flags);
        self.emit(Class::Barrier, run, [d, row, b, 0], x);
    }

    fn mbarrier(&mut self, op: &mut Op<'_, 'a>) -> Result<bool> {
        let name = op.full_name();
        let kinds = ["init", "inval", "arrive", "arrive_drop", "test_wait", "try_wait", "expect_tx", "complete_tx"];
        if op.take("pending_count") {
            op.take("b64");
            self.count(op, 2)?;
            let a = self.source(&op.operands[1], Type::B64)?;
            let d = self.dest(&op.operands[0], Type::U32)?;
            self.emit(Class::Barrier, mbarrier::pending_count, [d, a, 0, 0], 0);
            return Ok(true);
        }
        let first = op.words.first().copied().unwrap_or("");
        let Some(kind) = kinds.into_iter().find(|kind| *kind == first) else { return Ok(false) };
        op.words.remove(0);
        // A block's accesses to its shared memory are in order, whatever order is asked for.
        self.take_order(op);
        self.effect = match kind {
            "init" | "inval" => Effect::default(),
            _ => Effect(Effect::STRONG | Effect::ATOMIC | Effect::NARROW),
        };
        let generic = match self.take_space(op)? {
            Where::Generic => true,
            Where::Shared => false,
            _ => return self.err(format!("'{name}' needs an object in shared memory")),
        };
        op.take("b64");
        let bad = format!("'{name}' does not take {} operands", op.operands.len());
        match (kind, op.operands) {
            ("init" | "expect_tx" | "complete_tx", [object, value]) => {
                let b = self.source(value, Type::U32)?;
                let (run, flags): (Handler, _) = match kind {
                    "init" => (mbarrier::init, 0),
                    "expect_tx" => (mbarrier::transact, 0),
                    _ => (mbarrier::transact, 1),
                };
                let address = self.address(object)?;
                self.emit_object(run, address, generic, [0, b], flags);
            }
            ("inval", [object]) => {
                let address = self.address(object)?;
                self.emit_object(mbarrier::invalidate, address, generic, [0, 0], 0);
            }
            ("arrive" | "arrive_drop", [state, object, rest @ ..]) if rest.len() < 2 => {
                let mut flags = if kind == "arrive_drop" { mbarrier::DROP } else { 0 };
                flags |= if op.take("noComplete") { mbarrier::NO_COMPLETE } else { 0 };
                flags |= if op.take("expect_tx") { mbarrier::EXPECT } else { 0 };
                let b = match rest {
                    [value] => self.source(value, Type::U32)?,
                    _ if flags & mbarrier::EXPECT != 0 => return self.err(bad),
                    _ => 0,
                };
                let d = if *state == Operand::Sink { 0 } else { self.dest(state, Type::B64)? };
                let address = self.address(object)?;
                self.emit_object(mbarrier::arrive, address, generic, [d, b], flags);
            }
            ("test_wait" | "try_wait", [over, object, phase, rest @ ..]) if rest.len() < 2 => {
                // The hint of how long to wait changes nothing: others run, and the answer is given.
                let parity = op.take("parity");
                let b = self.source(phase, if parity { Type::U32 } else { Type::B64 })?;
                let d = match over {
                    Operand::Name(name) => self.pred_dest(name)?,
                    _ => self.row(Width::Pred),
                };
                let address = self.address(object)?;
                self.emit_object(mbarrier::test, address, generic, [d, b], u64::from(parity));
            }
            _ => return self.err(bad),
        }
        Ok(true)
    }
}
