//! One instruction: its guard, its words, and the part of `lower` that knows it.

use smallvec::SmallVec;

use super::{Lower, Result, Type};
use crate::emulator::code::{Class, Effect, Handler};
use crate::emulator::ptx::ast::{Instruction, Operand};

/// An opcode taken apart. Whoever lowers it takes the words it understands; what is left over is not supported.
pub(in crate::emulator) struct Op<'i, 'a> {
    pub name: &'a str,
    pub words: SmallVec<[&'a str; 8]>,
    pub operands: &'i [Operand<'a>],
}

impl<'i, 'a> Op<'i, 'a> {
    /// Is this word there? It is taken.
    pub fn take(&mut self, word: &str) -> bool {
        match self.words.iter().position(|w| *w == word) {
            Some(index) => {
                self.words.remove(index);
                true
            }
            None => false,
        }
    }

    /// The first of these words that is there, taken.
    pub fn take_any(&mut self, words: &[&'static str]) -> Option<&'static str> {
        words.iter().find(|word| self.take(word)).copied()
    }

    /// The next word that is a type, taken.
    pub fn take_type(&mut self) -> Option<&'a str> {
        let index = self.words.iter().position(|w| is_type(w))?;
        Some(self.words.remove(index))
    }

    pub fn full_name(&self) -> String {
        std::iter::once(self.name).chain(self.words.iter().copied()).collect::<Vec<_>>().join(".")
    }
}

fn is_type(word: &str) -> bool {
    Type::parse(word).is_some() || matches!(word, "e4m3" | "e5m2" | "e4m3x2" | "e5m2x2" | "s4" | "u4" | "b1")
}

impl<'a> Lower<'a> {
    pub(super) fn instruction(&mut self, instruction: &Instruction<'a>) -> Result<()> {
        self.guard = (0, 0);
        self.effect = Effect::default();
        self.sight = self.sight(instruction);
        if let Some(guard) = &instruction.guard {
            let operand = Operand::Name(guard.register);
            let (row, _) = self.predicate(&operand)?;
            self.guard = (row, if guard.negated { u32::MAX } else { 0 });
        }
        let Some((name, words)) = instruction.words.split_first() else {
            return self.err("an instruction has no name");
        };
        let mut op = Op { name, words: words.iter().copied().collect(), operands: &instruction.operands };
        let known = self.control(&mut op)?
            || self.bulk(&mut op)?
            || self.memory(&mut op)?
            || self.integer(&mut op)?
            || self.float(&mut op)?
            || self.convert(&mut op)?
            || self.sync(&mut op)?
            || self.atomic(&mut op)?
            || self.copies(&mut op)?
            || self.matrix(&mut op)?
            || self.cluster(&mut op)?
            || self.wgmma(&mut op)?;
        if !known {
            return self.err(format!("instruction '{}' is not supported", instruction.words.join(".")));
        }
        if !op.words.is_empty() {
            let left = op.words.join(".");
            return self.err(format!("'.{left}' of instruction '{}' is not supported", instruction.words.join(".")));
        }
        Ok(())
    }

    /// Check that there are as many operands as needed.
    pub fn count(&self, op: &Op<'_, 'a>, count: usize) -> Result<()> {
        if op.operands.len() == count {
            return Ok(());
        }
        self.err(format!("'{}' takes {count} operands, not {}", op.full_name(), op.operands.len()))
    }

    /// The type a word names; an error where it is missing or not one of registers.
    pub fn type_of(&self, op: &Op<'_, 'a>, word: Option<&str>) -> Result<Type> {
        match word.and_then(Type::parse) {
            Some(ty) => Ok(ty),
            None => self.err(format!("instruction '{}' has no type this emulator knows", op.full_name())),
        }
    }

    /// d = f(a)
    pub fn emit1(&mut self, op: &Op<'_, 'a>, class: Class, run: Handler, d: Type, a: Type) -> Result<()> {
        self.count(op, 2)?;
        let ra = self.source(&op.operands[1], a)?;
        let rd = self.dest(&op.operands[0], d)?;
        self.emit(class, run, [rd, ra, 0, 0], 0);
        Ok(())
    }

    /// d = f(a, b)
    pub fn emit2(&mut self, op: &Op<'_, 'a>, class: Class, run: Handler, d: Type, a: Type, b: Type) -> Result<()> {
        self.count(op, 3)?;
        let (ra, rb) = (self.source(&op.operands[1], a)?, self.source(&op.operands[2], b)?);
        let rd = self.dest(&op.operands[0], d)?;
        self.emit(class, run, [rd, ra, rb, 0], 0);
        Ok(())
    }

    /// d = f(a, b, c)
    pub fn emit3(&mut self, op: &Op<'_, 'a>, class: Class, run: Handler, types: [Type; 4], x: u64) -> Result<()> {
        self.count(op, 4)?;
        let [d, a, b, c] = types;
        let ra = self.source(&op.operands[1], a)?;
        let rb = self.source(&op.operands[2], b)?;
        let rc = self.source(&op.operands[3], c)?;
        let rd = self.dest(&op.operands[0], d)?;
        self.emit(class, run, [rd, ra, rb, rc], x);
        Ok(())
    }
}
