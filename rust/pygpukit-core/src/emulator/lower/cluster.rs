//! Instructions of clusters.

use super::instruction::Op;
use super::operands::describe;
use super::{Lower, Number, Result, Type};
use crate::emulator::code::{Class, Handler};
use crate::emulator::exec::{cluster, control};
use crate::emulator::ptx::ast::Operand;

impl<'a> Lower<'a> {
    /// Lower an instruction of clusters or of Hopper's warp groups; false when it is not one.
    pub(super) fn cluster(&mut self, op: &mut Op<'_, 'a>) -> Result<bool> {
        match op.name {
            "barrier" if op.words.contains(&"cluster") => self.cluster_barrier(op)?,
            "mapa" => self.cluster_address(op, cluster::map_address, 3)?,
            "getctarank" => self.cluster_address(op, cluster::rank_of, 2)?,
            "setmaxnreg" => self.set_registers(op)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn cluster_barrier(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        let name = op.full_name();
        op.take("cluster");
        let (run, word): (Handler, _) = match op.take_any(&["arrive", "wait"]) {
            Some("arrive") => (cluster::arrive, "release"),
            Some(_) => (cluster::wait, "acquire"),
            None => return self.err(format!("instruction '{name}' is not supported")),
        };
        op.take(word);
        let ordered = word == "acquire" || !op.take("relaxed");
        let aligned = op.take("aligned");
        self.count(op, 0)?;
        let x = if ordered { cluster::ORDERED } else { 0 } | if aligned { cluster::ALIGNED } else { 0 };
        self.emit(Class::Barrier, run, [0; 4], x);
        Ok(())
    }

    /// `mapa{.shared::cluster}.u32 d, a, rank` and `getctarank{.shared::cluster}.u32 d, a`
    fn cluster_address(&mut self, op: &mut Op<'_, 'a>, run: Handler, count: usize) -> Result<()> {
        let generic = !op.take("shared::cluster");
        let word = op.take_type();
        let ty = match word {
            Some("u32") => Type::U32,
            Some("u64") => Type::U64,
            _ => return self.err(format!("'{}' needs addresses of 32 or 64 bits", op.full_name())),
        };
        if generic && ty == Type::U32 {
            return self.err(format!("'{}' of generic addresses needs 64 bits", op.full_name()));
        }
        self.count(op, count)?;
        let a = self.source(&op.operands[1], ty)?;
        let b = if count == 3 { self.source(&op.operands[2], Type::U32)? } else { 0 };
        let d = self.dest(&op.operands[0], if count == 3 { ty } else { Type::U32 })?;
        let x = if generic { cluster::GENERIC } else { 0 } | if ty == Type::U64 { cluster::WIDE } else { 0 };
        self.emit(Class::Integer, run, [d, a, b, 0], x);
        Ok(())
    }

    /// `setmaxnreg.inc.sync.aligned.u32 n`: registers have no limit here.
    fn set_registers(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        let name = op.full_name();
        let known = op.take_any(&["inc", "dec"]).is_some() && op.take("sync") && op.take("aligned") && op.take("u32");
        if !known {
            return self.err(format!("instruction '{name}' is not supported"));
        }
        self.count(op, 1)?;
        match &op.operands[0] {
            Operand::Number(Number::Int(count)) if (24..=256).contains(count) && count % 8 == 0 => {}
            other => {
                let text = "must be a number of registers: a multiple of 8 from 24 to 256";
                return self.err(format!("{} of '{name}' {text}", describe(other)));
            }
        }
        self.emit(Class::Other, control::nothing, [0; 4], 0);
        Ok(())
    }
}
