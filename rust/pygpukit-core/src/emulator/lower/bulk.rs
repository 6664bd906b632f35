//! Bulk copies: `cp.async.bulk` and `st.async`.

use super::instruction::Op;
use super::operands::{AddressOf, describe};
use super::{Lower, Number, Result, Type, Width};
use crate::emulator::code::{Class, Effect, Handler};
use crate::emulator::exec::{bulk, control, lanes};
use crate::emulator::ptx::ast::Operand;

impl<'a> Lower<'a> {
    /// Lower a bulk copy; false when it is not one.
    pub(super) fn bulk(&mut self, op: &mut Op<'_, 'a>) -> Result<bool> {
        let async_words = op.words.first() == Some(&"async");
        match op.name {
            "cp" if async_words && op.words.get(1) == Some(&"bulk") => {
                op.words.drain(..2);
                self.bulk_copy(op)?;
            }
            "st" if async_words => {
                op.words.remove(0);
                self.store_async(op)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn bulk_copy(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        let name = op.full_name();
        if op.take("commit_group") {
            self.emit(Class::Barrier, bulk::commit, [0; 4], 0);
            return Ok(());
        }
        if op.take("wait_group") {
            let read = u32::from(op.take("read"));
            self.count(op, 1)?;
            let left = match &op.operands[0] {
                Operand::Number(Number::Int(left)) if (0..=i64::from(u32::MAX)).contains(left) => *left as u64,
                other => return self.err(format!("{} must be a number of groups", describe(other))),
            };
            self.emit(Class::Barrier, bulk::wait_group, [0, read, 0, 0], left);
            return Ok(());
        }
        if op.take("prefetch") {
            op.words.clear();
            self.emit(Class::Other, control::nothing, [0; 4], 0);
            return Ok(());
        }
        let rank = if op.take("tensor") {
            match op.take_any(&["1d", "2d", "3d", "4d", "5d"]) {
                Some(word) => usize::from(word.as_bytes()[0] - b'0'),
                None => return self.err(format!("'cp.async.bulk.{name}' does not say how many dimensions")),
            }
        } else {
            0
        };
        op.take("tile");
        let hinted = op.take("L2::cache_hint");
        let spaces: Vec<&str> =
            op.words.iter().copied().filter(|word| *word == "global" || word.starts_with("shared::")).collect();
        op.words.retain(|word| *word != "global" && !word.starts_with("shared::"));
        match spaces[..] {
            ["global", "shared::cta"] if op.take("bulk_group") => self.bulk_store(op, rank, hinted),
            ["shared::cluster" | "shared::cta", source] if op.take("mbarrier::complete_tx::bytes") => {
                self.bulk_load(op, rank, hinted, source == "shared::cta")
            }
            _ => self.err(format!("instruction 'cp.async.bulk.{name}' is not supported")),
        }
    }

    /// The address of a tensor map, and the rows of coordinates.
    fn tensor(&mut self, operand: &Operand<'a>, rank: usize) -> Result<(AddressOf, Vec<u32>)> {
        let Operand::Tensor { base, offset, parts } = operand else {
            return self.err(format!("{} is not a tensor map with coordinates", describe(operand)));
        };
        let coordinates = match &parts[..] {
            [Operand::Vector(coordinates)] if coordinates.len() == rank => coordinates,
            _ => return self.err(format!("{} does not have {rank} coordinates", describe(operand))),
        };
        let mut rows = Vec::new();
        for coordinate in coordinates {
            rows.push(self.source(coordinate, Type::S32)?);
        }
        let map = self.address(&Operand::Address { base: Some(base), offset: *offset })?;
        Ok((map, rows))
    }

    /// Row and offset of an address, the row 64 bits wide. The sum with an address of 32 bits wraps there.
    fn wide_address(&mut self, address: AddressOf) -> [u32; 2] {
        if address.wide {
            return [address.row, address.offset as u32];
        }
        let mut row = address.row;
        if address.offset != 0 {
            let by = self.constant(Width::Word, u64::from(address.offset as u32));
            row = self.row(Width::Word);
            let add = lanes::binary::<crate::emulator::exec::integer::Add<u32>>();
            self.emit(Class::Integer, add, [row, address.row, by, 0], 0);
        }
        [self.widen(row), 0]
    }

    /// `[target], [map, {..}], [object]{, mask}{, policy}` or `[target], [source], size, [object]{, mask}{, policy}`
    fn bulk_load(&mut self, op: &mut Op<'_, 'a>, rank: usize, hinted: bool, from_shared: bool) -> Result<()> {
        let multicast = op.take("multicast::cluster");
        let fixed = if rank > 0 { 3 } else { 4 };
        self.count(op, fixed + usize::from(multicast) + usize::from(hinted))?;
        let target = self.address(&op.operands[0])?;
        let (source, coordinates, size) = if rank > 0 {
            let (map, coordinates) = self.tensor(&op.operands[1], rank)?;
            (map, coordinates, 0)
        } else {
            let source = self.address(&op.operands[1])?;
            (source, Vec::new(), self.source(&op.operands[2], Type::U32)?)
        };
        let object = self.address(&op.operands[fixed - 1])?;
        let mask = if multicast { self.source(&op.operands[fixed], Type::U16)? } else { 0 };
        let [a, b, c] = [target, source, object].map(|address| self.wide_address(address));
        let mut list = vec![a[0], a[1], b[0], b[1], c[0], c[1], size, mask];
        list.extend(coordinates);
        let list = self.list(&list);
        let run: Handler = if rank > 0 { bulk::load_tile } else { bulk::load_bytes };
        self.code.async_reads |= from_shared;
        self.effect = Effect(Effect::ASYNC);
        self.emit(Class::Global, run, [0, 0, 0, u32::from(from_shared)], u64::from(list));
        Ok(())
    }

    /// `[map, {..}], [source]{, policy}` or `[target], [source], size{, policy}`
    fn bulk_store(&mut self, op: &mut Op<'_, 'a>, rank: usize, hinted: bool) -> Result<()> {
        self.count(op, if rank > 0 { 2 } else { 3 } + usize::from(hinted))?;
        let source = self.address(&op.operands[1])?;
        let (target, coordinates, size) = if rank > 0 {
            let (map, coordinates) = self.tensor(&op.operands[0], rank)?;
            (map, coordinates, 0)
        } else {
            (self.address(&op.operands[0])?, Vec::new(), self.source(&op.operands[2], Type::U32)?)
        };
        let [a, b] = [source, target].map(|address| self.wide_address(address));
        let mut list = vec![a[0], a[1], b[0], b[1], 0, 0, size, 0];
        list.extend(coordinates);
        let list = self.list(&list);
        let run: Handler = if rank > 0 { bulk::store_tile } else { bulk::store_bytes };
        self.code.async_reads = true;
        self.emit(Class::Global, run, [0; 4], u64::from(list));
        Ok(())
    }

    /// `st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [target], value, [object]`
    fn store_async(&mut self, op: &mut Op<'_, 'a>) -> Result<()> {
        let name = op.full_name();
        op.take("weak");
        if !op.take("shared::cluster") || !op.take("mbarrier::complete_tx::bytes") {
            return self.err(format!("instruction 'st.async.{name}' is not supported"));
        }
        op.take_any(&["v2", "v4"]);
        let word = op.take_type();
        let ty = self.type_of(op, word)?;
        self.count(op, 3)?;
        let single = std::slice::from_ref(&op.operands[1]);
        let values = if let Operand::Vector(parts) = &op.operands[1] { parts.as_slice() } else { single };
        if !matches!(ty.bytes(), 4 | 8) || ty.bytes() * values.len() > 16 {
            return self.err(format!("instruction 'st.async.{name}' is not supported"));
        }
        let mut list = vec![ty.bytes() as u32, 0, 0];
        for value in values {
            list.push(self.source(value, ty)?);
        }
        let (target, object) = (self.address(&op.operands[0])?, self.address(&op.operands[2])?);
        let ([a, by], [c, further]) = (self.wide_address(target), self.wide_address(object));
        (list[1], list[2]) = (by, further);
        let list = self.list(&list);
        self.effect = Effect(Effect::ASYNC);
        self.emit(Class::Shared, bulk::store_async, [0, a, 0, c], u64::from(list));
        Ok(())
    }
}
