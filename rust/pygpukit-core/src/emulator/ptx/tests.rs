//! Tests of the reader of PTX.

mod bodies;
mod constants;
mod declarations;
mod directives;
mod hostile;
mod nvrtc;

use super::ast::{Function, Instruction, Module, Operand, Statement};
use super::{ParseError, parse};

const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

/// A text with the directives that every text starts with; the code starts at line 4.
fn text(code: &str) -> String {
    format!("{HEAD}{code}")
}

fn read(text: &str) -> Module<'_> {
    parse(text).unwrap_or_else(|error| panic!("{error}"))
}

fn refuse(code: &str) -> ParseError {
    match parse(&text(code)) {
        Ok(module) => panic!("read as {module:?}"),
        Err(error) => error,
    }
}

/// A kernel around statements; they start at line 5.
fn kernel(statements: &str) -> String {
    text(&format!(".entry k() {{\n{statements}\n}}"))
}

fn function<'m, 'a>(module: &'m Module<'a>, name: &str) -> &'m Function<'a> {
    module.functions.iter().find(|function| function.name == name && function.body.is_some()).expect(name)
}

fn body<'m, 'a>(module: &'m Module<'a>) -> &'m [Statement<'a>] {
    function(module, "k").body.as_deref().unwrap()
}

/// Every instruction, those of inner blocks included.
fn instructions<'m, 'a>(statements: &'m [Statement<'a>]) -> Vec<&'m Instruction<'a>> {
    let mut found = Vec::new();
    for statement in statements {
        match statement {
            Statement::Instruction(instruction) => found.push(instruction),
            Statement::Block(block) => found.extend(instructions(block)),
            _ => {}
        }
    }
    found
}

/// Checks the operands of one instruction.
fn check_operands(instruction: &str, expected: &[Operand<'_>]) {
    let text = kernel(instruction);
    let module = read(&text);
    assert_eq!(instructions(body(&module))[0].operands, expected, "{instruction}");
}
