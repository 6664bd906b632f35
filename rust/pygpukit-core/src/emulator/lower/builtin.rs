//! Functions the driver provides: printf, assert, and memory from the device heap, which is refused when it is asked for.

use super::{Lower, Result};
use crate::emulator::code::{Class, Handler};
use crate::emulator::exec::builtin;
use crate::emulator::ptx::ast::Operand;

impl<'a> Lower<'a> {
    /// The handler of a function that has no body because the driver has it.
    pub(super) fn builtin(&self, name: &str) -> Option<Handler> {
        Some(match name {
            "vprintf" => builtin::print,
            "__assertfail" => builtin::assert_fail,
            "malloc" | "free" => builtin::heap,
            _ => return None,
        })
    }

    /// Call it: `a` is the start of a list of the places of its parameters, `b` that of its result, `x` the function.
    pub(super) fn call_builtin(
        &mut self,
        run: Handler,
        function: usize,
        given: &[Operand<'a>],
        returned: &[Operand<'a>],
    ) -> Result<()> {
        let mut places = Vec::new();
        for operand in given {
            places.push(self.param_area(operand)?.0);
        }
        let result = match returned.first() {
            Some(operand) => self.param_area(operand)?.0,
            None => u32::MAX,
        };
        let list = self.list(&places);
        self.emit(Class::Other, run, [0, list, result, 0], function as u64);
        Ok(())
    }
}
