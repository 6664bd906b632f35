//! Branches, calls, returns and the end of threads.

use super::instruction::Op;
use super::operands::describe;
use super::{Lower, Name, Result, Type};
use crate::emulator::code::{Class, Handler};
use crate::emulator::exec::control;
use crate::emulator::ptx::ast::Operand;

impl<'a> Lower<'a> {
    /// Lower a control instruction; false when it is not one.
    pub(super) fn control(&mut self, op: &mut Op<'_, 'a>) -> Result<bool> {
        match op.name {
            "bra" => {
                op.take("uni");
                self.count(op, 1)?;
                let label = self.label(&op.operands[0])?;
                self.jumps.push((self.code.instrs.len(), label));
                self.emit(Class::Branch, control::branch, [0; 4], 0);
            }
            "brx" => {
                op.take("idx");
                op.take("uni");
                self.branch_table(op)?;
            }
            "call" => {
                op.take("uni");
                self.call(op)?;
            }
            "ret" => {
                op.take("uni");
                let entry = u64::from(self.entry);
                self.emit(Class::Branch, control::ret, [0; 4], entry);
            }
            "exit" => self.emit(Class::Branch, control::exit, [0; 4], 0),
            "trap" => self.emit(Class::Other, control::trap, [0; 4], 0),
            "brkpt" | "pmevent" => {
                op.words.clear();
                self.emit(Class::Other, control::nothing, [0; 4], 0);
            }
            "nanosleep" => {
                op.take_type();
                self.emit(Class::Other, control::sleep, [0; 4], 0);
            }
            // Launches do not overlap here, so nothing is left to wait for; the checker hears of the wait.
            "griddepcontrol" => {
                if op.take("wait") {
                    self.code.waits.push(self.code.instrs.len() as u32);
                    self.emit(Class::Other, control::await_kernels, [0; 4], 0);
                } else if op.take("launch_dependents") {
                    self.emit(Class::Other, control::nothing, [0; 4], 0);
                } else {
                    return self.err("'griddepcontrol' needs .wait or .launch_dependents");
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn label(&self, operand: &Operand<'a>) -> Result<usize> {
        match operand {
            Operand::Name(name) => match self.look_up(name) {
                Some(Name::Label(label)) => Ok(label),
                _ => self.err(format!("label '{name}' does not exist")),
            },
            other => self.err(format!("{} is not a label", describe(other))),
        }
    }

    fn branch_table(&mut self, op: &Op<'_, 'a>) -> Result<()> {
        self.count(op, 2)?;
        let index = self.source(&op.operands[0], Type::U32)?;
        let Operand::Name(table) = &op.operands[1] else { return self.err("'brx.idx' needs a table of labels") };
        let Some(Name::Targets(labels)) = self.look_up(table) else {
            return self.err(format!("'{table}' is not a table of labels"));
        };
        let list = self.list(&vec![0; labels.len()]);
        for (k, name) in labels.iter().enumerate() {
            let Some(Name::Label(label)) = self.look_up(name) else {
                return self.err(format!("label '{name}' does not exist"));
            };
            self.list_jumps.push((list as usize + 1 + k, label));
        }
        self.emit(Class::Branch, control::branch_indexed, [0, index, 0, 0], u64::from(list));
        Ok(())
    }

    /// `call (returns), function, (params);`, all but the function optional, a prototype last for an indirect call.
    fn call(&mut self, op: &Op<'_, 'a>) -> Result<()> {
        let mut operands = op.operands;
        let mut returned: &[Operand<'a>] = &[];
        if let [Operand::List(list), rest @ ..] = operands {
            (returned, operands) = (list, rest);
        }
        let [target, rest @ ..] = operands else { return self.err("'call' names no function") };
        let (given, prototype): (&[Operand<'a>], _) = match rest {
            [Operand::List(list), prototype @ ..] => (list, prototype.first()),
            _ => (&[], rest.first()),
        };
        let Operand::Name(name) = target else { return self.err(format!("{} cannot be called", describe(target))) };
        let caller = self.index as u32;
        let (handler, a, params, returns): (Handler, u32, _, _) = match self.look_up(name) {
            Some(Name::Function(index)) => {
                let function = &self.code.functions[index];
                let (params, returns) = (function.params.clone(), function.returns.clone());
                let (entry, defined) = (function.entry, function.defined);
                if let Some(builtin) = self.builtin(name).filter(|_| !defined) {
                    return self.call_builtin(builtin, index, given, returned);
                }
                if entry {
                    return self.err(format!("'{name}' is a kernel and cannot be called"));
                }
                if !defined {
                    return self.err(format!("function '{name}' has no body in this module"));
                }
                self.reach.call(self.index, index);
                (control::call, index as u32, params, returns)
            }
            Some(Name::Register(_)) => {
                let row = self.source(target, Type::U64)?;
                self.reach.call_through_pointer(self.index);
                let Some(Operand::Name(prototype)) = prototype else {
                    return self.err("a call through a pointer needs a prototype");
                };
                let (params, returns) = match self.look_up(prototype) {
                    Some(Name::Prototype { params, returns }) => (params, returns),
                    _ => return self.err(format!("'{prototype}' is not a prototype of a function")),
                };
                (control::call_indirect, row, params, returns)
            }
            _ => return self.err(format!("function '{name}' is not declared")),
        };
        if given.len() != params.len() || returned.len() != returns.len() {
            return self.err(format!(
                "'{name}' takes {} parameters and returns {}; the call has {} and {}",
                params.len(),
                returns.len(),
                given.len(),
                returned.len()
            ));
        }
        let list = self.moves(given, &params)?;
        let results = self.moves(returned, &returns)?;
        self.emit(Class::Branch, handler, [0, a, caller, results], u64::from(list));
        if !returns.is_empty() {
            self.emit(Class::Branch, control::take_returns, [0, 0, caller, 0], u64::from(results));
        }
        Ok(())
    }

    /// A list of the operands of a call: for each where it lies, where its partner lies, how many bytes.
    fn moves(&mut self, operands: &[Operand<'a>], partners: &[(u32, u32)]) -> Result<u32> {
        let mut all = Vec::new();
        for (operand, (offset, bytes)) in operands.iter().zip(partners) {
            let (at, size) = self.param_area(operand)?;
            if size != *bytes {
                return self.err(format!("{} has {size} bytes where {bytes} are needed", describe(operand)));
            }
            all.extend([at, *offset, size]);
        }
        let list = self.list(&all);
        // The length counts operands, of three numbers each.
        self.code.lists[list as usize] = partners.len() as u32;
        Ok(list)
    }

    /// Place and size in local memory of a `.param` variable of a call.
    pub(super) fn param_area(&self, operand: &Operand<'a>) -> Result<(u32, u32)> {
        match operand {
            Operand::Name(name) => match self.look_up(name) {
                Some(Name::Local(at, bytes)) => Ok((at, bytes)),
                _ => self.err(format!("'{name}' is not a parameter of the call")),
            },
            other => self.err(format!("{} is not a parameter of the call", describe(other))),
        }
    }
}
