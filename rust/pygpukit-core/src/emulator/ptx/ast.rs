//! PTX as the parser leaves it: names unresolved, instructions as words and operands.
//!
//! Text is borrowed from the source. Nothing here knows what an instruction means; `lower` does.

/// A whole PTX text.
#[derive(Debug, Default)]
pub struct Module<'a> {
    pub version: (u32, u32),
    /// `sm_80`, and what follows it (`debug`, ...).
    pub target: Vec<&'a str>,
    /// Source files by the numbers `.loc` uses.
    pub files: Vec<(u32, String)>,
    /// Variables of module scope.
    pub variables: Vec<Variable<'a>>,
    pub functions: Vec<Function<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    Param,
    Global,
    Shared,
    Local,
    Const,
}

/// A fundamental type of a declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    F32,
    F64,
}

impl Type {
    /// The type of this name (without its dot): `b32`, `f16x2`, `bf16` (as `B16`), `texref` is none.
    pub fn parse(name: &str) -> Option<Type> {
        Some(match name {
            "pred" => Type::Pred,
            "b8" => Type::B8,
            "b16" | "bf16" => Type::B16,
            "b32" | "bf16x2" | "tf32" => Type::B32,
            "b64" => Type::B64,
            "b128" => Type::B128,
            "u8" => Type::U8,
            "u16" => Type::U16,
            "u32" => Type::U32,
            "u64" => Type::U64,
            "s8" => Type::S8,
            "s16" => Type::S16,
            "s32" => Type::S32,
            "s64" => Type::S64,
            "f16" => Type::F16,
            "f16x2" => Type::F16x2,
            "f32" => Type::F32,
            "f64" => Type::F64,
            _ => return None,
        })
    }

    /// Bytes of one value; predicates have none.
    pub fn bytes(self) -> usize {
        match self {
            Type::Pred => 0,
            Type::B8 | Type::U8 | Type::S8 => 1,
            Type::B16 | Type::U16 | Type::S16 | Type::F16 => 2,
            Type::B32 | Type::U32 | Type::S32 | Type::F32 | Type::F16x2 => 4,
            Type::B64 | Type::U64 | Type::S64 | Type::F64 => 8,
            Type::B128 => 16,
        }
    }
}

/// A variable with an address: `.global .align 4 .b8 name[16] = {...};`, or a parameter.
#[derive(Clone, Debug)]
pub struct Variable<'a> {
    pub space: Space,
    pub name: &'a str,
    pub ty: Type,
    /// In bytes, at least the type's size.
    pub align: usize,
    /// Whole size in bytes, `.v2`/`.v4` and dimensions included; None for `name[]`.
    pub bytes: Option<usize>,
    pub init: Vec<Init<'a>>,
    pub external: bool,
    /// Line in the PTX text, from 1.
    pub line: u32,
}

/// One element of an initialiser, of the variable's type (vectors flattened).
#[derive(Clone, Debug, PartialEq)]
pub enum Init<'a> {
    Value(Number),
    /// Address of a variable or function, or `generic(name)`, plus an offset.
    Address {
        name: &'a str,
        generic: bool,
        offset: i64,
    },
    /// `mask(name + offset)`: one byte of an address.
    Byte {
        name: &'a str,
        generic: bool,
        offset: i64,
        shift: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// Two's complement; `-1` and `0xffffffffffffffff` are the same.
    Int(i64),
    /// Bits of `0f3F800000`.
    F32(u32),
    /// Bits of `0d3FF0000000000000`, or of a decimal number such as `1.5`.
    F64(u64),
}

#[derive(Debug, Default)]
pub struct Function<'a> {
    pub name: &'a str,
    /// `.entry` rather than `.func`.
    pub entry: bool,
    pub external: bool,
    /// Values returned: `.param` variables, or none. `.reg` returns are refused.
    pub returns: Vec<Variable<'a>>,
    pub params: Vec<Variable<'a>>,
    /// Threads per block of `.maxntid`, or 0.
    pub max_threads: u32,
    /// Dimensions of `.reqntid`.
    pub required_threads: Option<[u32; 3]>,
    /// Dimensions of `.reqnctapercluster`, or `.explicitcluster` without them as zeros.
    pub cluster: Option<[u32; 3]>,
    /// `.blocksareclusters`: the grid of a launch counts clusters.
    pub blocks_are_clusters: bool,
    /// None for a declaration.
    pub body: Option<Vec<Statement<'a>>>,
    pub line: u32,
}

#[derive(Debug)]
pub enum Statement<'a> {
    Label(&'a str),
    Instruction(Instruction<'a>),
    /// `.reg .f32 %f<3>;` gives `%f0` .. `%f2` (count Some(3)); `.reg .b64 %SP, %SPL;` gives two of these without a count.
    Register {
        ty: Type,
        name: &'a str,
        count: Option<u32>,
        line: u32,
    },
    Variable(Variable<'a>),
    Block(Vec<Statement<'a>>),
    /// `.loc file line column`, with the place a function was inlined at where it is given.
    Location {
        file: u32,
        line: u32,
        column: u32,
    },
    /// `name: .callprototype (returns) _ (params);`
    Prototype {
        name: &'a str,
        returns: Vec<Variable<'a>>,
        params: Vec<Variable<'a>>,
    },
    /// `name: .branchtargets a, b;` and `name: .calltargets f, g;`
    Targets {
        name: &'a str,
        labels: Vec<&'a str>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard<'a> {
    pub register: &'a str,
    pub negated: bool,
}

/// `@%p1 ld.global.v2.f32 {%f1, %f2}, [%rd1+8];`
#[derive(Debug)]
pub struct Instruction<'a> {
    pub guard: Option<Guard<'a>>,
    /// The opcode split at its dots: `["ld", "global", "v2", "f32"]`; `shared::cta` stays one word.
    pub words: Vec<&'a str>,
    pub operands: Vec<Operand<'a>>,
    pub line: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Operand<'a> {
    /// A register, special register (`%tid.x` with its dot), variable, label or function.
    Name(&'a str),
    /// `!%p1`
    Not(&'a str),
    /// `%p1|%p2`
    Pair(&'a str, &'a str),
    /// `_`
    Sink,
    Number(Number),
    /// `[name+8]`, `[name]`, `[16]`; the offset may be negative.
    Address {
        base: Option<&'a str>,
        offset: i64,
    },
    /// `[map, {c0, c1}]`: a tensor map and coordinates; more operands may follow (`[map, {..}, {..}]`).
    Tensor {
        base: &'a str,
        offset: i64,
        parts: Vec<Operand<'a>>,
    },
    /// `{%f1, %f2}`
    Vector(Vec<Operand<'a>>),
    /// `name+8` outside brackets, as in `mov.u64 %rd1, table+8;`
    Offset(&'a str, i64),
    /// `(a, b)` of a call.
    List(Vec<Operand<'a>>),
}
