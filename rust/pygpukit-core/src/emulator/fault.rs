//! What can go wrong in a kernel, and how it is told.

use std::fmt::Write;

use super::code::{Code, LANES};

/// A kind of memory, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemorySpace {
    Global,
    Shared,
    Local,
    Param,
}

impl MemorySpace {
    pub fn name(self) -> &'static str {
        match self {
            MemorySpace::Global => "global",
            MemorySpace::Shared => "shared",
            MemorySpace::Local => "local",
            MemorySpace::Param => "parameter",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum FaultKind {
    /// An address outside every allocation, or outside the block's shared or the thread's local memory.
    OutOfBounds {
        space: MemorySpace,
        write: bool,
        address: u64,
        bytes: u32,
        limit: u64,
    },
    Misaligned {
        space: MemorySpace,
        write: bool,
        address: u64,
        bytes: u32,
    },
    DivergentBarrier {
        here: u32,
        live: u32,
    },
    WarpDeadlock {
        here: u32,
        need: u32,
    },
    /// Every warp of a block waits; each line says where one does.
    Deadlock {
        warps: Vec<String>,
    },
    StackOverflow {
        bytes: usize,
    },
    /// A call of an address that is no function.
    BadCall {
        address: u64,
    },
    Trap,
    Assert {
        message: String,
    },
    /// More instructions or time than allowed.
    Limit {
        text: String,
    },
    Interrupted,
    /// An operand the hardware leaves undefined.
    Invalid {
        text: String,
    },
    /// A finding of the checker: a headline that says all.
    Check {
        text: String,
    },
}

impl FaultKind {
    fn headline(&self) -> String {
        match self {
            FaultKind::OutOfBounds { space: MemorySpace::Global, write, address, bytes, .. } => {
                let verb = if *write { "write" } else { "read" };
                let null = if *address < 4096 { " (a null pointer)" } else { "" };
                format!("{verb} of {bytes} bytes at {address:#x}{null}, which is in no allocation")
            }
            FaultKind::OutOfBounds { space, write, address, bytes, limit } => {
                let verb = if *write { "write" } else { "read" };
                format!(
                    "{verb} of {bytes} bytes at offset {address} of {} memory, which has {limit} bytes",
                    space.name()
                )
            }
            FaultKind::Misaligned { space, write, address, bytes } => {
                let verb = if *write { "write" } else { "read" };
                format!(
                    "misaligned {verb} of {bytes} bytes at {address:#x} in {} memory: the address must be a multiple of {bytes}",
                    space.name()
                )
            }
            FaultKind::DivergentBarrier { here, live } => format!(
                "divergent barrier: {} of {} lanes of the warp are at this barrier, and the others cannot reach it \
                 (lanes here {here:#010x}, lanes of the warp {live:#010x})",
                here.count_ones(),
                live.count_ones()
            ),
            FaultKind::WarpDeadlock { here, need } => format!(
                "deadlock in a warp: lanes {here:#010x} wait for lanes {:#010x}, which never come to this instruction",
                need & !here
            ),
            FaultKind::Deadlock { warps } => format!("deadlock: every warp of the block waits\n{}", warps.join("\n")),
            FaultKind::StackOverflow { bytes } => {
                format!("stack overflow: a thread needs {bytes} bytes of stack; is there endless recursion?")
            }
            FaultKind::BadCall { address } => format!("call of {address:#x}, which is not a function"),
            FaultKind::Trap => "the kernel executed a trap".to_string(),
            FaultKind::Assert { message } => message.clone(),
            FaultKind::Limit { text } | FaultKind::Invalid { text } | FaultKind::Check { text } => text.clone(),
            FaultKind::Interrupted => "the kernel was interrupted".to_string(),
        }
    }
}

/// A fault of one thread at one instruction.
#[derive(Clone, Debug)]
pub struct Fault {
    pub kind: FaultKind,
    pub pc: u32,
    /// Linear number in its block.
    pub thread: u32,
    pub block: [u32; 3],
    pub notes: Vec<String>,
}

impl Fault {
    /// The whole report: what, where in the source, which thread, which instruction.
    pub fn report(&self, kernel: &str, code: &Code, threads: [u32; 3]) -> String {
        let mut text = format!("kernel '{kernel}': {}", self.kind.headline());
        let place = code.place(self.pc);
        let (x, y) = (threads[0].max(1), threads[1].max(1));
        let thread = [self.thread % x, self.thread / x % y, self.thread / (x * y)];
        if place.line > 0 {
            let _ = write!(text, "\n  --> {}:{}", code.file_name(place.file), place.line);
            if let Some(line) = code.source_line(place) {
                let _ = write!(text, "\n   | {}", line.trim_end());
            }
        }
        let _ = write!(
            text,
            "\n  thread {thread:?} of block {:?} (warp {}, lane {})",
            self.block,
            self.thread / LANES as u32,
            self.thread % LANES as u32
        );
        if place.ptx > 0 {
            let _ = write!(text, "\n  PTX line {}: {}", place.ptx, code.ptx_line(place.ptx));
        }
        for note in &self.notes {
            let _ = write!(text, "\n  note: {note}");
        }
        text
    }
}
