//! Matrix products of warp groups.

use super::instruction::Op;
use super::operands::describe;
use super::{Lower, Number, Result, Type};
use crate::emulator::code::{Class, Handler};
use crate::emulator::exec::fragments::Element;
use crate::emulator::exec::wgmma::{self, Halves, Integers, Product, Singles};
use crate::emulator::ptx::ast::Operand;

impl<'a> Lower<'a> {
    /// Lower `wgmma`; false when it is another instruction.
    pub(super) fn wgmma(&mut self, op: &mut Op<'_, 'a>) -> Result<bool> {
        if op.name != "wgmma" {
            return Ok(false);
        }
        let name = op.full_name();
        let kind = op.take_any(&["mma_async", "fence", "commit_group", "wait_group"]);
        if !op.take("sync") || !op.take("aligned") {
            return self.err(format!("'{name}' must have '.sync.aligned'"));
        }
        let (run, x): (Handler, _) = match kind {
            Some("mma_async") => {
                self.group_product(op, &name)?;
                return Ok(true);
            }
            Some("fence") => (wgmma::fence, 0),
            Some("commit_group") => (wgmma::commit, 0),
            Some(_) => {
                self.count(op, 1)?;
                (wgmma::wait_group, self.whole(&op.operands[0], 0..=7)? as u64)
            }
            None => return self.err(format!("instruction '{name}' is not supported")),
        };
        self.emit(Class::Matrix, run, [0; 4], x);
        Ok(true)
    }

    /// The value of an operand that must be a whole number in a range.
    fn whole(&self, operand: &Operand<'a>, range: std::ops::RangeInclusive<i64>) -> Result<i64> {
        match operand {
            Operand::Number(Number::Int(value)) if range.contains(value) => Ok(*value),
            other => {
                let (low, high) = range.into_inner();
                self.err(format!("{} must be a number from {low} to {high}", describe(other)))
            }
        }
    }

    fn scale(&self, operand: &Operand<'a>) -> Result<bool> {
        match self.whole(operand, -1..=1)? {
            0 => self.err("the scale of a matrix must be 1 or -1"),
            scale => Ok(scale < 0),
        }
    }

    /// `m64n32k16`: n and k.
    fn take_group_shape(&self, op: &mut Op<'_, 'a>, name: &str) -> Result<(usize, usize)> {
        let parse = |word: &str| {
            let (n, k) = word.strip_prefix("m64n")?.split_once('k')?;
            Some((n.parse::<usize>().ok()?, k.parse::<usize>().ok()?))
        };
        let found = op.words.iter().enumerate().find_map(|(index, word)| Some((index, parse(word)?)));
        match found {
            Some((index, (n, k))) if n % 8 == 0 && (8..=256).contains(&n) => {
                op.words.remove(index);
                Ok((n, k))
            }
            _ => self.err(format!("'{name}' has no shape m64nNk.. with N a multiple of 8 from 8 to 256")),
        }
    }

    fn group_product(&mut self, op: &mut Op<'_, 'a>, name: &str) -> Result<()> {
        let (n, k) = self.take_group_shape(op, name)?;
        let mut element = || op.take_type().and_then(Element::parse);
        let (Some(d), Some(a), Some(b)) = (element(), element(), element()) else {
            return self.err(format!("'{name}' lacks types this emulator knows"));
        };
        let saturates = d == Element::S32 && op.take("satfinite");
        let whole = |element| matches!(element, Element::S8 | Element::U8);
        let eight = |element| matches!(element, Element::E4m3 | Element::E5m2);
        let fits = match a {
            Element::F16 => k == 16 && b == a && matches!(d, Element::F16 | Element::F32),
            Element::Bf16 => k == 16 && b == a && d == Element::F32,
            Element::Tf32 => k == 8 && b == a && d == Element::F32,
            // Of integers N has fewer values.
            _ if whole(a) => k == 32 && whole(b) && d == Element::S32 && (n <= 24 || n % 16 == 0),
            _ if eight(a) => k == 32 && eight(b) && matches!(d, Element::F16 | Element::F32),
            _ => false,
        };
        if !fits {
            return self.err(format!("'{name}' is not supported: these types do not go with this shape"));
        }
        let fragment = matches!(op.operands.get(1), Some(Operand::Vector(_)));
        // Only matrices of 16-bit elements may be contiguous along M or N, and A only in shared memory.
        let turns = if a.bits() == 16 { 2 - usize::from(fragment) } else { 0 };
        // Integers are not negated.
        let scales = if whole(a) { 0 } else { 2 };
        self.count(op, 4 + scales + turns)?;
        let [sums, left, right, adds, rest @ ..] = op.operands else {
            return self.err(format!("'{name}' lacks operands"));
        };
        let (scales, turned) = rest.split_at(scales);
        let mut turns = Vec::new();
        for turn in turned {
            turns.push(self.whole(turn, 0..=1)? == 1);
        }
        let turned = match turns[..] {
            [a, b] => [a, b],
            [b] => [false, b],
            _ => [false; 2],
        };
        let negated = match scales {
            [a, b] => [self.scale(a)?, self.scale(b)?],
            _ => [false; 2],
        };
        let adds = self.predicate(adds)?;
        let product = Product { n, k, a, b, fragment, negated, turned, adds };
        let a_list = match left {
            Operand::Vector(parts) if parts.len() == 4 => self.word_rows(parts)?,
            Operand::Vector(parts) => return self.err(format!("a fragment of A has 4 registers, not {}", parts.len())),
            descriptor => {
                let row = self.source(descriptor, Type::B64)?;
                self.list(&[row])
            }
        };
        let b_row = self.source(right, Type::B64)?;
        let count = if d == Element::F16 { n / 4 } else { n / 2 };
        let d_list = match sums {
            Operand::Vector(parts) if parts.len() == count => self.word_rows(parts)?,
            other => return self.err(format!("{} is not the {count} registers of the sums", describe(other))),
        };
        let list = self.list(&product.pack());
        let run = match d {
            Element::F16 => wgmma::multiply_group::<Halves>(),
            Element::S32 if saturates => wgmma::multiply_group::<Integers<true>>(),
            Element::S32 => wgmma::multiply_group::<Integers<false>>(),
            _ => wgmma::multiply_group::<Singles>(),
        };
        self.code.async_reads = true;
        self.emit(Class::Matrix, run, [d_list, a_list, b_row, 0], u64::from(list));
        Ok(())
    }

    /// The list of registers of 32 bits, which must be registers.
    fn word_rows(&mut self, parts: &[Operand<'a>]) -> Result<u32> {
        let mut rows = Vec::with_capacity(parts.len());
        for part in parts {
            rows.push(self.dest(part, Type::B32)?);
        }
        Ok(self.list(&rows))
    }
}
