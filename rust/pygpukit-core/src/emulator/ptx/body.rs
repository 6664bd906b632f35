//! Bodies of functions: blocks, statements, instructions and their operands.

use super::ParseError;
use super::ast::{Guard, Instruction, Operand, Statement};
use super::lexer::{Kind, Token};
use super::parser::{Parser, space};

impl<'a> Parser<'a> {
    /// Statements in braces, standing at the `{`.
    pub(super) fn block(&mut self) -> Result<Vec<Statement<'a>>, ParseError> {
        self.enter()?;
        let open = self.bump()?;
        let mut statements = Vec::new();
        loop {
            match self.token().kind {
                Kind::Punct("}") => break,
                Kind::End => {
                    return Err(self.expected(&format!("`}}` that closes the block of line {}", open.line)));
                }
                _ => self.statement(&mut statements)?,
            }
        }
        self.leave();
        self.bump()?;
        Ok(statements)
    }

    fn statement(&mut self, statements: &mut Vec<Statement<'a>>) -> Result<(), ParseError> {
        match self.token().kind {
            Kind::Punct(";") => {
                self.bump()?;
            }
            Kind::Punct("{") => {
                let block = self.block()?;
                statements.push(Statement::Block(block));
            }
            Kind::Punct("@") => {
                let line = self.bump()?.line;
                let negated = self.accept("!")?;
                let register = self.word("the predicate of a guard")?;
                let opcode = self.token();
                self.word("an instruction after its guard")?;
                let guard = Some(Guard { register, negated });
                statements.push(Statement::Instruction(self.instruction(guard, opcode, line)?));
            }
            Kind::Word(word) => {
                let opcode = self.bump()?;
                if self.accept(":")? {
                    statements.push(self.labelled(word)?);
                } else {
                    statements.push(Statement::Instruction(self.instruction(None, opcode, opcode.line)?));
                }
            }
            Kind::Directive(name) => self.directive(name, statements)?,
            _ => return Err(self.expected("an instruction, a label, a declaration or `}`")),
        }
        Ok(())
    }

    fn directive(&mut self, name: &'a str, statements: &mut Vec<Statement<'a>>) -> Result<(), ParseError> {
        match name {
            "reg" => self.registers(statements),
            "loc" => {
                let (file, line, column) = self.location()?;
                statements.push(Statement::Location { file, line, column });
                Ok(())
            }
            "file" => self.file(),
            "pragma" => self.pragma(),
            _ => {
                let external = self.linkage()?;
                let space = match self.token().kind {
                    Kind::Directive(name) => space(name),
                    _ => None,
                };
                match space {
                    Some(space) => {
                        self.variables(space, external, &mut |variable| statements.push(Statement::Variable(variable)))
                    }
                    None => Err(self.unknown_directive("in the body of a function")),
                }
            }
        }
    }

    /// What a label names: a place, a prototype or a list of targets.
    fn labelled(&mut self, name: &'a str) -> Result<Statement<'a>, ParseError> {
        match self.token().kind {
            Kind::Directive("callprototype") => {
                self.bump()?;
                let returns = if self.is("(") { self.parameters()? } else { Vec::new() };
                let blank = self.token();
                if self.word("`_` in the place of a prototype's name")? != "_" {
                    let message =
                        format!("found {}, expected `_` in the place of a prototype's name", blank.describe());
                    return Err(self.error_at(blank, &message));
                }
                let params = if self.is("(") { self.parameters()? } else { Vec::new() };
                while let Kind::Directive(directive) = self.token().kind {
                    self.signature_directive(directive)?;
                }
                self.expect(";", "after a prototype")?;
                Ok(Statement::Prototype { name, returns, params })
            }
            Kind::Directive("branchtargets" | "calltargets") => {
                self.bump()?;
                let mut labels = Vec::new();
                loop {
                    labels.push(self.word("the name of a target")?);
                    if !self.accept(",")? {
                        self.expect(";", "or `,` after a target")?;
                        return Ok(Statement::Targets { name, labels });
                    }
                }
            }
            _ => Ok(Statement::Label(name)),
        }
    }

    /// What follows an opcode that has been taken.
    fn instruction(
        &mut self,
        guard: Option<Guard<'a>>,
        opcode: Token<'a>,
        line: u32,
    ) -> Result<Instruction<'a>, ParseError> {
        let mut words: Vec<&'a str> = opcode.text.split('.').collect();
        if !opcode.text.starts_with(|c: char| c.is_ascii_alphabetic()) || words.iter().any(|word| word.is_empty()) {
            let message = format!("found {}, expected an instruction, or `:` after a label", opcode.describe());
            return Err(self.error_at(opcode, &message));
        }
        while let Kind::Directive(word) = self.token().kind {
            words.push(word);
            self.bump()?;
        }
        let call = words.first() == Some(&"call");
        let mut operands = Vec::new();
        if !self.accept(";")? {
            loop {
                operands.push(self.operand(call)?);
                if !self.accept(",")? {
                    self.expect(";", "or `,` after an operand")?;
                    break;
                }
            }
        }
        Ok(Instruction { guard, words, operands, line })
    }

    /// One operand. Parentheses hold arguments in a call and constants elsewhere.
    fn operand(&mut self, call: bool) -> Result<Operand<'a>, ParseError> {
        match self.token().kind {
            Kind::Word(word) if word != "WARP_SZ" => {
                self.bump()?;
                self.named(word)
            }
            Kind::Punct("[") => self.address(),
            Kind::Punct("{") => Ok(Operand::Vector(self.operands("}")?)),
            Kind::Punct("(") if call => Ok(Operand::List(self.operands(")")?)),
            Kind::Punct("!") => {
                let not = self.bump()?;
                if let Kind::Word(word) = self.token().kind
                    && word != "WARP_SZ"
                {
                    self.bump()?;
                    return Ok(Operand::Not(word));
                }
                let value = self.unary()?;
                let value = self.apply_sign("!", value, not)?;
                Ok(Operand::Number(self.constant_after(value)?.number()))
            }
            Kind::Int { .. } | Kind::Float(_) | Kind::Word(_) | Kind::Punct("+" | "-" | "~" | "(") => {
                Ok(Operand::Number(self.constant()?.number()))
            }
            _ => Err(self.expected("an operand")),
        }
    }

    /// The operand that starts with a name.
    fn named(&mut self, name: &'a str) -> Result<Operand<'a>, ParseError> {
        match self.token().kind {
            Kind::Punct("|") => {
                self.bump()?;
                Ok(Operand::Pair(name, self.word("a register after `|`")?))
            }
            Kind::Punct("+" | "-") => Ok(Operand::Offset(name, self.offset()?)),
            Kind::Punct("[") => {
                let message = "an index after a name is not supported: write an address such as `[name+8]`";
                Err(self.error_at(self.token(), message))
            }
            _ if name == "_" => Ok(Operand::Sink),
            _ => Ok(Operand::Name(name)),
        }
    }

    /// `[name+8]`, `[16]` or `[map, {x, y}]`, standing at the `[`.
    fn address(&mut self) -> Result<Operand<'a>, ParseError> {
        self.bump()?;
        let (base, offset) = match self.token().kind {
            Kind::Word(word) if word != "WARP_SZ" => {
                self.bump()?;
                (Some(word), self.offset()?)
            }
            Kind::End | Kind::Punct("]" | "[" | "{") => return Err(self.expected("an address")),
            _ => (None, self.constant_integer()?),
        };
        if let Some(base) = base
            && self.is(",")
        {
            return Ok(Operand::Tensor { base, offset, parts: self.operands("]")? });
        }
        self.expect("]", "after an address")?;
        // A hint on the memory that is read; nothing depends on it.
        if self.token().kind == Kind::Directive("unified") {
            self.bump()?;
        }
        Ok(Operand::Address { base, offset })
    }

    /// Operands between commas up to `close`, standing at the token before the first.
    fn operands(&mut self, close: &str) -> Result<Vec<Operand<'a>>, ParseError> {
        self.enter()?;
        self.bump()?;
        let mut operands = Vec::new();
        // Only a call's list of arguments may be empty.
        let mut more = close != ")" || !self.is(close);
        while more {
            operands.push(self.operand(false)?);
            more = self.accept(",")?;
        }
        self.leave();
        self.expect(close, "or `,` after an operand")?;
        Ok(operands)
    }
}
