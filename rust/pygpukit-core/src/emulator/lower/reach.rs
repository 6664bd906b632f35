//! What a kernel reaches through its calls, and how much shared memory it has therefore.

use std::collections::BTreeSet;

use super::{Lower, Result, fail};
use crate::emulator::check::plain_name;
use crate::emulator::code;
use crate::emulator::ptx::ast::Variable;

/// Most bytes of shared variables in a kernel, on every GPU. Memory beyond must be asked for by the launch.
const MAX_SHARED: u64 = 48 << 10;

/// What functions name, by their numbers.
#[derive(Default)]
pub(super) struct Reach {
    /// Caller and callee.
    calls: BTreeSet<(usize, usize)>,
    /// Functions that call through pointers, and functions whose address is taken.
    through_pointers: BTreeSet<usize>,
    pointed_to: BTreeSet<usize>,
    /// Function and number of a shared variable.
    shared: BTreeSet<(usize, usize)>,
    /// Of each shared variable, as they are numbered in `Code::shared`: its alignment, and the line that declares it.
    declared: Vec<(u64, u32)>,
}

impl Reach {
    pub fn declare(&mut self, variable: &Variable<'_>) {
        self.declared.push((variable.align.clamp(1, 1024) as u64, variable.line));
    }

    pub fn call(&mut self, caller: usize, callee: usize) {
        self.calls.insert((caller, callee));
    }

    pub fn call_through_pointer(&mut self, caller: usize) {
        self.through_pointers.insert(caller);
    }

    pub fn take_address(&mut self, function: usize) {
        self.pointed_to.insert(function);
    }

    /// Functions that a kernel may come to, itself included.
    fn functions(&self, kernel: usize) -> BTreeSet<usize> {
        let (mut all, mut left) = (BTreeSet::from([kernel]), vec![kernel]);
        while let Some(function) = left.pop() {
            let called = self.calls.range((function, 0)..=(function, usize::MAX)).map(|call| call.1);
            let pointed: &BTreeSet<usize> =
                if self.through_pointers.contains(&function) { &self.pointed_to } else { &BTreeSet::new() };
            left.extend(called.chain(pointed.iter().copied()).filter(|next| all.insert(*next)));
        }
        all
    }
}

impl Lower<'_> {
    /// The current function names a shared variable.
    pub(super) fn name_shared(&mut self, name: &str, start: u32) {
        let same = |v: &code::Variable| v.name == name && v.start == u64::from(start);
        if let Some(number) = self.code.shared.iter().rposition(same) {
            self.reach.shared.insert((self.index, number));
        }
    }

    /// Give kernels the size of their shared variables; variables that a kernel does not reach are not its own.
    pub(super) fn size_shared(&mut self) -> Result<()> {
        for kernel in 0..self.code.functions.len() {
            if !self.code.functions[kernel].entry {
                continue;
            }
            let functions = self.reach.functions(kernel);
            let named = self.reach.shared.iter().filter(|(function, _)| functions.contains(function));
            let numbers: BTreeSet<usize> = named.map(|(_, number)| *number).collect();
            let own: Vec<_> =
                numbers.iter().map(|&number| (&self.code.shared[number], self.reach.declared[number])).collect();
            let bytes = own.iter().fold(0, |end: u64, (v, (align, _))| end.next_multiple_of(*align) + v.bytes);
            if bytes > MAX_SHARED {
                let line = own.iter().map(|(_, (_, line))| *line).max().unwrap_or(0);
                let mut list: Vec<_> =
                    own.iter().map(|(v, _)| format!("'{}' of {}", plain_name(&v.name), v.bytes)).collect();
                let more = list.len().saturating_sub(8);
                list.truncate(8);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                return fail(
                    line,
                    format!(
                        "kernel '{}' has {bytes} bytes of static shared memory, and {MAX_SHARED} is the most: {}{more}. \
                         For more, declare an array `extern __shared__` and launch with shared=bytes",
                        self.code.functions[kernel].name,
                        list.join(", ")
                    ),
                );
            }
            self.code.functions[kernel].static_shared = bytes as u32;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::emulator::Image;

    const TEXT: &str = "
.version 8.0
.target sm_80
.address_size 64
.shared .align 4 .b8 _ZZ1fvE5small[16];
.shared .align 16 .b8 _ZZ1gvE5large[40000];
.func f() { .reg .b32 %r<2>; mov.u32 %r0, _ZZ1fvE5small; st.shared.u32 [%r0], 1; ret; }
.func g() { st.shared.u32 [_ZZ1gvE5large+4], 1; call f; ret; }
.global .align 8 .u64 table[1] = { g };
.visible .entry none() { ret; }
.visible .entry direct() { .shared .align 1 .b8 own[3]; st.shared.u8 [own], 1; call g; ret; }
.visible .entry pointer() {
    .reg .b64 %rd<2>;
    ld.global.u64 %rd0, [table];
    prototype: .callprototype ()_ ();
    call %rd0, prototype;
    ret;
}
.visible .entry more() { .shared .align 4 .b8 own[SIZE]; st.shared.u8 [own], 1; call g; ret; }
";

    fn load(size: usize) -> Result<Image, String> {
        let mut data = vec![0u64; 16];
        let text = TEXT.replace("SIZE", &size.to_string());
        Image::load::<String>(&text, |_| Ok(data.as_mut_ptr() as u64)).map_err(|error| error.unwrap_or_else(|e| e))
    }

    #[test]
    fn kernels_have_the_shared_variables_they_reach() {
        let image = load(9136).unwrap();
        let bytes = |name| image.kernel(name).expect("a kernel").1.static_shared;
        assert_eq!(bytes("none"), 0);
        assert_eq!(bytes("direct"), 40_019);
        assert_eq!(bytes("pointer"), 40_016);
        assert_eq!(bytes("more"), 48 << 10);
    }

    #[test]
    fn more_than_a_gpu_has_is_refused() {
        let error = load(9137).err().expect("an error");
        assert!(error.starts_with("PTX line 19: kernel 'more' has 49153 bytes of static shared memory, "), "{error}");
        assert!(error.contains("49152 is the most: 'small' of 16, 'large' of 40000, 'own' of 9137."), "{error}");
        assert!(load(1 << 30).is_err());
    }
}
