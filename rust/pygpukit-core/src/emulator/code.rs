//! Code ready to run: instructions with their handlers, and operands as offsets of register rows.
//!
//! A register is a row of 32 values, one per lane, in the frame of its function. Immediates and special registers are
//! rows too, filled when a frame begins, so an operand is always an offset. Predicates are 32-bit masks.

use std::sync::OnceLock;

use super::warp::Cx;

pub(crate) const LANES: usize = 32;
pub(crate) const FULL: u32 = u32::MAX;

/// What a handler tells the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Go on with the next instruction.
    Next,
    /// The place or the lanes of the group have changed.
    Jump,
    /// The instruction cannot finish yet; it runs again when `Cx::wait` is over.
    Wait,
    /// Finished, but others should run before this warp goes on.
    Yield,
    /// `Cx::fault` says what went wrong.
    Fault,
}

/// Runs an instruction for the lanes of a mask.
///
/// # Safety
/// The instruction's offsets must lie in the frame of the context, in rows of the width the handler expects.
pub(crate) type Handler = unsafe fn(&mut Cx<'_>, &Instr, u32) -> Flow;

#[derive(Clone, Debug)]
pub(crate) struct Instr {
    pub run: Handler,
    /// Predicate that enables lanes: its offset, and all ones to negate it.
    pub guard: u32,
    pub flip: u32,
    /// Operands: offsets of rows in the frame.
    pub d: u32,
    pub a: u32,
    pub b: u32,
    pub c: u32,
    /// What else the handler needs: a target, an address offset, the start of a list.
    pub x: u64,
}

/// What an instruction counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    Integer,
    Float,
    Double,
    Half,
    Special,
    Convert,
    Move,
    Compare,
    Global,
    Shared,
    Local,
    Constant,
    Atomic,
    Branch,
    Barrier,
    Warp,
    Matrix,
    Other,
}

/// Where an instruction comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Line of the PTX text.
    pub ptx: u32,
    /// Number of the source file (0 is none), and line in it.
    pub file: u32,
    pub line: u32,
}

/// How an instruction takes part in the order of memory, as flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effect(pub u8);

impl Effect {
    /// Volatile, relaxed or atomic: others may do the same at the same time.
    pub const STRONG: u8 = 1;
    /// Its scope is the block.
    pub const NARROW: u8 = 2;
    pub const ACQUIRE: u8 = 4;
    pub const RELEASE: u8 = 8;
    /// It reads and changes in one step.
    pub const ATOMIC: u8 = 16;
    /// Its write happens later.
    pub const ASYNC: u8 = 32;
    /// A plain store, whose values are compared with what is there.
    pub const STORE: u8 = 64;

    pub fn is(self, flag: u8) -> bool {
        self.0 & flag != 0
    }
}

/// What the checker knows of an access from the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sight {
    /// What its addresses in global and in shared memory are derived from: numbers of `Code::sources` from 1, or 0.
    pub global: u16,
    pub shared: u16,
    /// Of a vector that is loaded: bytes of an element, and the elements whose values are looked at.
    pub unit: u8,
    pub needed: u8,
    /// What it loads decides where threads go: it is a flag, not data.
    pub decides: bool,
}

/// What an address is derived from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The pointer at this offset of the argument block.
    Param(u32),
    /// A global or constant variable, by its number in `Code::variables`.
    Global(usize),
    /// One of `Code::shared`.
    Shared(usize),
    /// Shared memory whose size the launch decides, by its name.
    Dynamic(String),
}

/// A variable of a module, for reports.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub name: String,
    /// Address, or offset in shared memory.
    pub start: u64,
    pub bytes: u64,
    /// Bytes of an element, 1 where the text does not say.
    pub item: u64,
    /// The kernel whose shared memory it lies in; none for all.
    pub function: Option<usize>,
}

/// Rows filled when a frame begins.
#[derive(Clone, Debug)]
pub(crate) enum Fill {
    Half(u32, u16),
    Word(u32, u32),
    Double(u32, u64),
    Special(u32, Special),
}

impl Fill {
    /// Does it differ between blocks?
    pub fn varies(&self) -> bool {
        let Fill::Special(_, special) = self else { return false };
        matches!(
            special,
            Special::Ctaid(_) | Special::Sm | Special::ClusterCtaid(_) | Special::ClusterRank | Special::Clusterid(_)
        )
    }
}

/// Special registers that do not change while a warp runs; 32 bits wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    Lane,
    Warp,
    Warps,
    Sm,
    Sms,
    GridId,
    LanesEq,
    LanesLt,
    LanesLe,
    LanesGt,
    LanesGe,
    DynamicShared,
    TotalShared,
    /// Where dynamic shared memory begins.
    SharedStart,
    ClusterCtaid(u8),
    ClusterNctaid(u8),
    ClusterRank,
    ClusterSize,
    Clusterid(u8),
    Nclusterid(u8),
    IsCluster,
    /// Half of the address of a cooperative launch's workspace: 0 the upper, 1 the lower.
    Workspace(u8),
    Zero,
}

/// A function after lowering.
#[derive(Clone, Debug, Default)]
pub(crate) struct Function {
    pub name: String,
    pub entry: bool,
    /// It has a body.
    pub defined: bool,
    /// Index of its first instruction.
    pub start: u32,
    /// Bytes of its frame of registers.
    pub frame: u32,
    /// Bytes of local memory a thread needs for it, calls it makes not counted.
    pub local: u32,
    pub fills: Vec<Fill>,
    /// Where shared variables end, those of other kernels too, and how many bytes a kernel's own take.
    pub shared: u32,
    pub static_shared: u32,
    /// Offset and size of each parameter: of the argument block for a kernel, of local memory for other functions.
    pub params: Vec<(u32, u32)>,
    pub returns: Vec<(u32, u32)>,
    pub max_threads: u32,
    pub required_threads: Option<[u32; 3]>,
    pub cluster: Option<[u32; 3]>,
}

/// A lowered module.
#[derive(Debug, Default)]
pub(crate) struct Code {
    pub instrs: Vec<Instr>,
    pub places: Vec<Place>,
    pub classes: Vec<Class>,
    pub effects: Vec<Effect>,
    pub sights: Vec<Sight>,
    pub sources: Vec<Source>,
    /// Global and constant variables, and those of shared memory.
    pub variables: Vec<Variable>,
    pub shared: Vec<Variable>,
    /// Operand lists of instructions that have more operands than fields.
    pub lists: Vec<u32>,
    pub functions: Vec<Function>,
    /// Alignment of dynamic shared memory that the text asks for.
    pub dynamic_align: u32,
    /// Some instruction reads shared memory through the async proxy.
    pub async_reads: bool,
    /// The instructions that wait for the kernels before.
    pub waits: Vec<u32>,
    pub files: Vec<(u32, String)>,
    /// The PTX text, for reports.
    pub text: String,
    /// The source it was compiled from: file name and text.
    pub source: OnceLock<(String, String)>,
}

impl Code {
    /// One line of the PTX text, trimmed.
    pub fn ptx_line(&self, line: u32) -> &str {
        self.text.lines().nth((line as usize).saturating_sub(1)).unwrap_or("").trim()
    }

    pub fn place(&self, pc: u32) -> Place {
        self.places.get(pc as usize).copied().unwrap_or_default()
    }

    pub fn file(&self, number: u32) -> &str {
        self.files.iter().find(|(n, _)| *n == number).map_or("", |(_, name)| name)
    }

    /// A line of the source, where it is known.
    pub fn source_line(&self, place: Place) -> Option<&str> {
        let (name, text) = self.source.get()?;
        let file = self.file(place.file);
        let last = file.rsplit(['/', '\\']).next().unwrap_or(file);
        if last != name || place.line == 0 {
            return None;
        }
        text.lines().nth(place.line as usize - 1)
    }

    /// Where an instruction is in the source, or in the text, with the line.
    pub fn place_text(&self, pc: u32) -> String {
        let place = self.place(pc);
        if place.line == 0 {
            return format!("PTX line {}: {}", place.ptx, self.ptx_line(place.ptx));
        }
        let line = self.source_line(place).map(|text| format!(": {}", text.trim())).unwrap_or_default();
        format!("{}:{}{line}", self.file_name(place.file), place.line)
    }

    /// A file of the source as a person would name it: without this process's folder.
    pub fn file_name(&self, number: u32) -> String {
        let file = self.file(number);
        let here = std::env::current_dir().map(|folder| format!("{}/", folder.display())).unwrap_or_default();
        file.strip_prefix(&here).unwrap_or(file).to_string()
    }
}

/// The first rows of every frame: predicates (the first is always true), then what a return needs.
pub(crate) const ALWAYS: u32 = 0;
pub(crate) const RETURN_PC: u32 = 128;
pub(crate) const RETURN_BASE: u32 = 256;
pub(crate) const LOCAL_BASE_ROW: u32 = 384;
pub(crate) const FIRST_ROW: u32 = 512;
