//! Where values come from and where they go, as far as the text tells: what the checker asks about accesses.
//!
//! Registers are followed by name through a whole function, whatever the order of its instructions. What several things
//! flow into has no known origin.

use std::collections::{HashMap, HashSet};

use super::{Lower, Name, Space, Statement, Type, ast};
use crate::emulator::code::{Sight, Source};
use crate::emulator::ptx::ast::{Instruction, Operand};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From<'a> {
    /// The pointer at an offset of a kernel's parameter.
    Param(&'a str, i64),
    /// The address of a variable.
    Variable(&'a str),
    /// Several of these, or a pointer from memory.
    Anything,
}

/// The registers of a function.
#[derive(Debug, Default)]
pub(super) struct Origins<'a> {
    from: HashMap<&'a str, From<'a>>,
    /// Those whose values are looked at, not only copied.
    needed: HashSet<&'a str>,
    /// Registers that flow into a guard or the index of a branch.
    deciding: HashSet<&'a str>,
    variables: HashSet<&'a str>,
    params: HashSet<&'a str>,
}

const PASSES: usize = 64;

fn names<'a>(operand: &Operand<'a>, visit: &mut impl FnMut(&'a str)) {
    match operand {
        Operand::Name(name) | Operand::Not(name) | Operand::Offset(name, _) => visit(name),
        Operand::Pair(first, second) => [first, second].into_iter().for_each(|name| visit(name)),
        Operand::Address { base, .. } => base.iter().for_each(|name| visit(name)),
        Operand::Tensor { base, parts, .. } => {
            visit(base);
            parts.iter().for_each(|part| names(part, visit));
        }
        Operand::Vector(parts) | Operand::List(parts) => parts.iter().for_each(|part| names(part, visit)),
        Operand::Sink | Operand::Number(_) => {}
    }
}

impl<'a> Origins<'a> {
    /// Follow the registers of a function; `variables` are those of the module.
    pub fn of(function: &ast::Function<'a>, body: &[Statement<'a>], variables: HashSet<&'a str>) -> Origins<'a> {
        let params = function.params.iter().filter(|_| function.entry).map(|param| param.name).collect();
        let mut origins = Origins { variables, params, ..Origins::default() };
        let mut all = Vec::new();
        origins.gather(body, &mut all);
        // Backward jumps are followed by another pass. Text that needs very many has no known origins.
        let settled = (0..PASSES).any(|_| all.iter().filter(|instruction| origins.follow(instruction)).count() == 0);
        if !settled {
            origins.from.clear();
        }
        // What is not found to be needed is not looked at.
        let _ = (0..PASSES).any(|_| all.iter().rev().filter(|instruction| origins.need(instruction)).count() == 0);
        let _ = (0..PASSES).any(|_| all.iter().rev().filter(|instruction| origins.decide(instruction)).count() == 0);
        origins
    }

    fn gather<'i>(&mut self, body: &'i [Statement<'a>], all: &mut Vec<&'i Instruction<'a>>) {
        for statement in body {
            match statement {
                Statement::Instruction(instruction) => all.push(instruction),
                Statement::Variable(variable) if variable.space == Space::Shared => {
                    self.variables.insert(variable.name);
                }
                Statement::Block(body) => self.gather(body, all),
                _ => {}
            }
        }
    }

    fn origin(&self, name: &'a str) -> Option<From<'a>> {
        match self.variables.contains(name) {
            true => Some(From::Variable(name)),
            false => self.from.get(name).copied(),
        }
    }

    fn join(&self, operands: &[Operand<'a>]) -> Option<From<'a>> {
        let mut result = None;
        let mut visit = |name| {
            result = match (result, self.origin(name)) {
                (None, other) | (other, None) => other,
                (Some(one), Some(other)) if one == other => Some(one),
                _ => Some(From::Anything),
            };
        };
        operands.iter().for_each(|operand| names(operand, &mut visit));
        result
    }

    /// What flows into the destination of an instruction. A product or a shifted value is no address.
    fn value(&self, instruction: &Instruction<'a>) -> Option<From<'a>> {
        let sources = instruction.operands.get(1..).unwrap_or_default();
        let wide = instruction.words.last().is_some_and(|ty| matches!(*ty, "b64" | "u64" | "s64" | "b128"));
        match *instruction.words.first()? {
            "ld" | "ldu" => match sources.first() {
                _ if !wide => None,
                Some(Operand::Address { base: Some(base), offset })
                    if self.params.contains(base) && matches!(instruction.operands[0], Operand::Name(_)) =>
                {
                    Some(From::Param(base, *offset))
                }
                _ => Some(From::Anything),
            },
            "atom" => wide.then_some(From::Anything),
            "mapa" => Some(From::Anything),
            "mul" | "mul24" | "shl" | "shr" | "div" | "rem" | "set" | "setp" | "popc" | "clz" | "bfind" => None,
            "mad" | "mad24" | "fma" => self.join(sources.last().map(std::slice::from_ref).unwrap_or_default()),
            _ => self.join(sources),
        }
    }

    fn follow(&mut self, instruction: &Instruction<'a>) -> bool {
        let (Some(new), Some(to)) = (self.value(instruction), instruction.operands.first()) else { return false };
        if !matches!(to, Operand::Name(_) | Operand::Vector(_) | Operand::Pair(..)) {
            return false;
        }
        let mut changed = false;
        names(to, &mut |name| {
            let old = self.from.insert(name, new);
            if old.is_some_and(|old| old != new) {
                self.from.insert(name, From::Anything);
            }
            changed |= self.from.get(name) != old.as_ref();
        });
        changed
    }

    fn need(&mut self, instruction: &Instruction<'a>) -> bool {
        let before = self.needed.len();
        let mut add = |name| {
            self.needed.insert(name);
        };
        instruction.guard.iter().for_each(|guard| add(guard.register));
        let operands = &instruction.operands[..];
        match (instruction.words.first().copied(), operands) {
            // What is only stored is copied.
            (Some("st"), [to, ..]) => names(to, &mut add),
            (Some("mov"), [to, rest @ ..]) => {
                let mut used = false;
                names(to, &mut |name| used |= self.needed.contains(name));
                if used {
                    rest.iter().for_each(|operand| names(operand, &mut |name| _ = self.needed.insert(name)));
                }
            }
            (_, [to, rest @ ..]) => {
                if !matches!(to, Operand::Name(_) | Operand::Vector(_)) {
                    names(to, &mut add);
                }
                rest.iter().for_each(|operand| names(operand, &mut add));
            }
            _ => {}
        }
        self.needed.len() != before
    }
}

impl<'a> Origins<'a> {
    /// Note what decides where threads go, and what that is computed from. Memory is not followed.
    fn decide(&mut self, instruction: &Instruction<'a>) -> bool {
        let before = self.deciding.len();
        instruction.guard.iter().for_each(|guard| _ = self.deciding.insert(guard.register));
        match (instruction.words.first().copied(), &instruction.operands[..]) {
            (Some("brx"), operands) => {
                operands.iter().for_each(|operand| names(operand, &mut |name| _ = self.deciding.insert(name)));
            }
            (Some("ld" | "ldu" | "atom" | "st" | "call"), _) => {}
            (name, [to, rest @ ..]) => {
                let mut used = false;
                names(to, &mut |name| used |= self.deciding.contains(name));
                // What a predicate selects may be a decision that the compiler has made a choice of values.
                let first = if used { 0 } else { rest.len().saturating_sub(1) };
                if used || name == Some("selp") {
                    let add = |operand| names(operand, &mut |name| _ = self.deciding.insert(name));
                    rest[first..].iter().for_each(add);
                }
            }
            _ => {}
        }
        self.deciding.len() != before
    }
}

/// Instructions whose addresses are looked at.
const ACCESSES: &[&str] = &["ld", "ldu", "st", "atom", "red", "cp", "ldmatrix", "stmatrix", "wmma"];

impl<'a> Lower<'a> {
    /// What the checker may know of an instruction's accesses.
    pub(super) fn sight(&mut self, instruction: &Instruction<'a>) -> Sight {
        let mut sight = Sight::default();
        let Some(name) = instruction.words.first().filter(|name| ACCESSES.contains(name)) else { return sight };
        if instruction.words.contains(&"bulk") {
            return sight;
        }
        for operand in &instruction.operands {
            let Operand::Address { base: Some(base), .. } = operand else { continue };
            match self.origins.origin(base).and_then(|from| self.source_number(from)) {
                Some((number, true)) => sight.shared = number,
                Some((number, false)) => sight.global = number,
                None => {}
            }
        }
        // Acquiring loads order by themselves, and who writes `relaxed` has said that no order is needed.
        sight.decides = instruction.words.iter().any(|word| matches!(*word, "acquire" | "relaxed" | "mmio"));
        if let Some(target) = instruction.operands.first() {
            names(target, &mut |name| sight.decides |= self.origins.deciding.contains(name));
        }
        if let ("ld" | "ldu", Some(Operand::Vector(parts))) = (*name, instruction.operands.first()) {
            let unit = instruction.words.last().and_then(|word| Type::parse(word)).map_or(0, Type::bytes);
            sight.unit = if parts.len() <= 8 { unit as u8 } else { 0 };
            for (at, part) in parts.iter().enumerate().take(8) {
                let needed = matches!(part, Operand::Name(name) if self.origins.needed.contains(name));
                sight.needed |= u8::from(needed) << at;
            }
        }
        sight
    }

    /// The number of a source, and whether it is in shared memory.
    fn source_number(&mut self, from: From<'a>) -> Option<(u16, bool)> {
        let find = |vars: &[crate::emulator::code::Variable], start: u64, name: &str| {
            vars.iter().rposition(|var| var.start == start && var.name == name)
        };
        let source = match from {
            From::Anything => return None,
            From::Param(name, offset) => match self.look_up(name)? {
                Name::Param(at, _) => Source::Param(u32::try_from(i64::from(at).checked_add(offset)?).ok()?),
                _ => return None,
            },
            From::Variable(name) => match self.look_up(name)? {
                Name::Global(address) => Source::Global(find(&self.code.variables, address, name)?),
                Name::Shared(start) => Source::Shared(find(&self.code.shared, start.into(), name)?),
                Name::DynamicShared => Source::Dynamic(name.to_string()),
                _ => return None,
            },
        };
        let shared = matches!(source, Source::Shared(_) | Source::Dynamic(_));
        let known = self.code.sources.iter().position(|known| *known == source);
        let index = known.unwrap_or_else(|| {
            self.code.sources.push(source);
            self.code.sources.len() - 1
        });
        u16::try_from(index + 1).ok().map(|number| (number, shared))
    }
}
