//! From parsed PTX to code: names become rows and addresses, opcodes become handlers.
//!
//! What cannot be run is refused here, with the instruction and its line, before anything runs.

mod atomic;
mod builtin;
mod bulk;
mod cluster;
mod control;
mod convert;
mod copies;
mod float;
mod instruction;
mod integer;
mod matrix;
mod memory;
mod operands;
mod origin;
mod reach;
mod sync;
mod wgmma;

use std::collections::HashMap;

use super::code::{self, Class, Code, Effect, Fill, Function, Handler, Instr, Place, Sight, Special};
use super::memory::FUNCTION_WINDOW;
use super::ptx::ast::{self, Init, Module, Number, Space, Statement, Type, Variable};
use origin::Origins;
use reach::Reach;

/// Why a PTX text cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LowerError {
    /// Line of the PTX text.
    pub line: u32,
    pub message: String,
}

impl std::fmt::Display for LowerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PTX line {}: {}", self.line, self.message)
    }
}

pub(super) type Result<T> = std::result::Result<T, LowerError>;

pub(super) fn fail<T>(line: u32, message: impl Into<String>) -> Result<T> {
    Err(LowerError { line, message: message.into() })
}

/// Width of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Width {
    Pred,
    Half,
    Word,
    Double,
    Quad,
}

impl Width {
    pub fn of(ty: Type) -> Width {
        match ty.bytes() {
            0 => Width::Pred,
            1 | 2 => Width::Half,
            4 => Width::Word,
            8 => Width::Double,
            _ => Width::Quad,
        }
    }

    pub fn bits(self) -> u32 {
        match self {
            Width::Pred => 1,
            Width::Half => 16,
            Width::Word => 32,
            Width::Double => 64,
            Width::Quad => 128,
        }
    }

    fn row_bytes(self) -> u32 {
        match self {
            Width::Pred => 4,
            other => other.bits() / 8 * 32,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Reg {
    pub width: Width,
    pub row: u32,
}

/// What a name stands for.
#[derive(Clone, Debug)]
pub(super) enum Name {
    Register(Type),
    /// A global or constant variable, at its address.
    Global(u64),
    /// Offset in shared memory.
    Shared(u32),
    /// Shared memory whose size the launch decides.
    DynamicShared,
    /// Offset in the function's local memory, and size.
    Local(u32, u32),
    /// A kernel's parameter: offset in the argument block, and size.
    Param(u32, u32),
    Function(usize),
    Label(usize),
    Prototype {
        returns: Vec<(u32, u32)>,
        params: Vec<(u32, u32)>,
    },
    Targets(Vec<String>),
}

#[derive(Default)]
struct Scope<'a> {
    names: HashMap<&'a str, Name>,
    /// `.reg .b32 %r<10>`: prefix, type, count.
    ranges: Vec<(&'a str, Type, u32)>,
    /// Rows of the registers of this scope that were used.
    rows: HashMap<&'a str, Reg>,
}

/// Data of a module's variables: where it lies and what it holds.
pub(crate) struct Data {
    pub base: u64,
    pub bytes: usize,
    /// Offset and bytes.
    pub init: Vec<(usize, Vec<u8>)>,
}

/// Lay out the global and constant variables of a module; their offsets by name.
fn layout_globals<'a>(module: &Module<'a>) -> Result<(HashMap<&'a str, usize>, usize)> {
    let mut offsets = HashMap::new();
    let mut end = 0usize;
    for variable in &module.variables {
        if !matches!(variable.space, Space::Global | Space::Const) {
            continue;
        }
        if variable.external {
            return fail(variable.line, format!("variable '{}' is defined in another module", variable.name));
        }
        let bytes = variable.bytes.unwrap_or(0);
        // Apart from each other, so that an access past the end of one is not an access to the next.
        end = end.next_multiple_of(variable.align.max(16));
        offsets.insert(variable.name, end);
        end = match end.checked_add(bytes) {
            Some(end) if end <= 1 << 32 => end,
            _ => return fail(variable.line, format!("variable '{}' is too large", variable.name)),
        };
    }
    Ok((offsets, end))
}

/// Lower a whole module. `allocate` gives the address for this many bytes of variables; the data goes there.
pub(crate) fn lower<E: From<LowerError>>(
    module: &Module<'_>,
    text: &str,
    allocate: impl FnOnce(usize) -> std::result::Result<u64, E>,
) -> std::result::Result<(Code, Data), E> {
    let (offsets, bytes) = layout_globals(module)?;
    let base = if bytes > 0 { allocate(bytes)? } else { 0 };
    let mut root = Scope::default();
    for (name, offset) in &offsets {
        root.names.insert(name, Name::Global(base + *offset as u64));
    }
    let mut code = Code { lists: vec![0], files: module.files.clone(), text: text.to_string(), ..Code::default() };
    for variable in &module.variables {
        if let Some(offset) = offsets.get(variable.name) {
            code.variables.push(described(variable, base + *offset as u64, None));
        }
    }
    for function in &module.functions {
        let known = root.names.get(function.name);
        let index = match known {
            Some(Name::Function(index)) => *index,
            _ => code.functions.len(),
        };
        if index == code.functions.len() {
            code.functions.push(signature(function));
            root.names.insert(function.name, Name::Function(index));
        } else if function.body.is_some() {
            code.functions[index] = signature(function);
        }
    }
    let (mut shared, mut reach) = (0u32, Reach::default());
    for variable in module.variables.iter().filter(|v| v.space == Space::Shared) {
        let name = place_shared(variable, &mut shared)?;
        match name {
            Name::Shared(start) => {
                code.shared.push(described(variable, u64::from(start), None));
                reach.declare(variable);
            }
            _ => code.dynamic_align = code.dynamic_align.max(variable.align.clamp(1, 1024) as u32),
        }
        root.names.insert(variable.name, name);
    }
    let init = initial_data(module, &root, base)?;
    for init in module.variables.iter().flat_map(|variable| &variable.init) {
        if let Init::Address { name, .. } | Init::Byte { name, .. } = init
            && let Some(Name::Function(index)) = root.names.get(name)
        {
            reach.take_address(*index);
        }
    }
    let mut lower = Lower { scopes: vec![root], code, shared, reach, ..Lower::default() };
    // Shared memory of functions comes first, so that it lies at the same place in every kernel.
    for entries in [false, true] {
        for function in module.functions.iter().filter(|f| f.entry == entries) {
            if let Some(body) = &function.body {
                let start = lower.shared;
                lower.function(function, body)?;
                if entries {
                    lower.shared = start;
                }
            }
        }
    }
    lower.size_shared()?;
    Ok((lower.code, Data { base, bytes, init }))
}

/// What reports say about a variable.
fn described(variable: &Variable<'_>, start: u64, function: Option<usize>) -> code::Variable {
    let (bytes, item) = (variable.bytes.unwrap_or(0) as u64, variable.ty.bytes().max(1) as u64);
    code::Variable { name: variable.name.to_string(), start, bytes, item, function }
}

fn place_shared(variable: &Variable<'_>, end: &mut u32) -> Result<Name> {
    let Some(bytes) = variable.bytes else { return Ok(Name::DynamicShared) };
    let start = end.next_multiple_of(variable.align.clamp(1, 1024) as u32);
    match u32::try_from(bytes).ok().and_then(|bytes| start.checked_add(bytes)) {
        Some(after) if after <= 1 << 28 => *end = after,
        _ => return fail(variable.line, format!("shared variable '{}' of {bytes} bytes is too large", variable.name)),
    }
    Ok(Name::Shared(start))
}

/// Offsets and sizes of parameters one after the other, as the driver lays them out, and where they end.
fn layout_params(params: &[Variable<'_>], from: u32) -> (Vec<(u32, u32)>, u32) {
    let mut end = from;
    let mut placed = Vec::new();
    for param in params {
        let bytes = param.bytes.unwrap_or(0).min(1 << 20) as u32;
        end = end.next_multiple_of(param.align.clamp(1, 1 << 12) as u32);
        placed.push((end, bytes));
        end = end.saturating_add(bytes);
    }
    (placed, end)
}

/// Offset and size of each of several values.
pub(super) type Places = Vec<(u32, u32)>;

/// Parameters of a function, then what it returns: both depend on the prototype alone, so indirect calls know them.
pub(super) fn layout_call(params: &[Variable<'_>], returns: &[Variable<'_>]) -> (Places, Places, u32) {
    let (params, end) = layout_params(params, 0);
    let (returns, end) = layout_params(returns, end.next_multiple_of(16));
    (params, returns, end)
}

fn signature(function: &ast::Function<'_>) -> Function {
    let (params, returns) = if function.entry {
        (layout_params(&function.params, 0).0, Vec::new())
    } else {
        let (params, returns, _) = layout_call(&function.params, &function.returns);
        (params, returns)
    };
    Function {
        name: function.name.to_string(),
        entry: function.entry,
        defined: function.body.is_some(),
        params,
        returns,
        max_threads: function.max_threads,
        required_threads: function.required_threads,
        cluster: function.cluster,
        ..Function::default()
    }
}

/// The bytes variables start with.
fn initial_data(module: &Module<'_>, root: &Scope<'_>, base: u64) -> Result<Vec<(usize, Vec<u8>)>> {
    let mut all = Vec::new();
    for variable in module.variables.iter().filter(|v| matches!(v.space, Space::Global | Space::Const)) {
        let Some(Name::Global(address)) = root.names.get(variable.name) else { continue };
        let size = variable.ty.bytes().max(1);
        let mut bytes = Vec::new();
        for item in &variable.init {
            let value = match item {
                Init::Value(number) => bits_of(*number, variable.ty),
                Init::Address { name, offset, .. } => address_of(root, name, *offset, variable.line)?,
                Init::Byte { name, offset, shift, .. } => {
                    address_of(root, name, *offset, variable.line)? >> shift & 0xff
                }
            };
            bytes.extend_from_slice(&value.to_le_bytes()[..size.min(8)]);
        }
        if variable.bytes.is_some_and(|limit| bytes.len() > limit) {
            return fail(variable.line, format!("variable '{}' has more initial values than room", variable.name));
        }
        all.push(((address - base) as usize, bytes));
    }
    Ok(all)
}

fn address_of(root: &Scope<'_>, name: &str, offset: i64, line: u32) -> Result<u64> {
    match root.names.get(name) {
        Some(Name::Global(address)) => Ok(address.wrapping_add(offset as u64)),
        Some(Name::Function(index)) => Ok(FUNCTION_WINDOW | *index as u64),
        Some(Name::Shared(at)) => Ok((u64::from(*at) | super::memory::SHARED_WINDOW).wrapping_add(offset as u64)),
        _ => fail(line, format!("'{name}' has no address that is known when the module is loaded")),
    }
}

/// A number as the bits of a type.
pub(super) fn bits_of(number: Number, ty: Type) -> u64 {
    match (number, ty) {
        (Number::Int(value), _) => value as u64,
        (Number::F32(bits), Type::F64) => f64::from(f32::from_bits(bits)).to_bits(),
        (Number::F32(bits), _) => u64::from(bits),
        (Number::F64(bits), Type::F32 | Type::B32 | Type::U32 | Type::S32) => {
            u64::from((f64::from_bits(bits) as f32).to_bits())
        }
        (Number::F64(bits), _) => bits,
    }
}

/// One function being lowered.
#[derive(Default)]
pub(super) struct Lower<'a> {
    pub code: Code,
    scopes: Vec<Scope<'a>>,
    /// Index of the function.
    pub index: usize,
    pub entry: bool,
    /// End of the frame so far, and of the current line of predicates.
    frame: u32,
    preds: (u32, u32),
    constants: HashMap<(Width, u64), u32>,
    specials: HashMap<Special, u32>,
    fills: Vec<Fill>,
    /// End of local and of shared memory so far.
    local: u32,
    shared: u32,
    /// Place of each label, once it is known.
    labels: Vec<Option<u32>>,
    /// Instructions whose `x` becomes the place of a label, and list entries that do.
    jumps: Vec<(usize, usize)>,
    list_jumps: Vec<(usize, usize)>,
    guard: (u32, u32),
    /// How the instruction orders memory, and what the checker knows of its accesses.
    pub effect: Effect,
    sight: Sight,
    origins: Origins<'a>,
    pub line: u32,
    place: Place,
    carry: Option<u32>,
    reach: Reach,
}

impl<'a> Lower<'a> {
    fn function(&mut self, function: &ast::Function<'a>, body: &[Statement<'a>]) -> Result<()> {
        let Some(Name::Function(index)) = self.scopes[0].names.get(function.name) else {
            return fail(function.line, format!("function '{}' is unknown", function.name));
        };
        self.index = *index;
        self.entry = function.entry;
        self.frame = super::code::FIRST_ROW;
        // The first predicate is the one that is always true.
        self.preds = (4, 128);
        self.constants.clear();
        self.specials.clear();
        self.fills.clear();
        self.labels.clear();
        self.carry = None;
        self.local = 0;
        self.place = Place::default();
        let mut scope = Scope::default();
        let known = &self.code.functions[self.index];
        if function.entry {
            for (param, place) in function.params.iter().zip(&known.params) {
                scope.names.insert(param.name, Name::Param(place.0, place.1));
            }
        } else {
            let (params, returns, end) = layout_call(&function.params, &function.returns);
            let all = function.params.iter().zip(params).chain(function.returns.iter().zip(returns));
            for (param, place) in all {
                scope.names.insert(param.name, Name::Local(place.0, place.1));
            }
            self.local = end;
        }
        let start = self.code.instrs.len() as u32;
        let variables = |(name, what): (&&'a str, &Name)| match what {
            Name::Global(_) | Name::Shared(_) | Name::DynamicShared => Some(*name),
            _ => None,
        };
        let variables = self.scopes[0].names.iter().filter_map(variables).collect();
        self.origins = Origins::of(function, body, variables);
        self.scopes.push(scope);
        self.block(body)?;
        self.line = function.line;
        self.guard = (0, 0);
        (self.effect, self.sight) = (Effect::default(), Sight::default());
        // A function that runs off its end returns.
        let entry = u64::from(self.entry);
        self.emit(Class::Branch, super::exec::control::ret, [0; 4], entry);
        self.scopes.truncate(1);
        for (instr, label) in std::mem::take(&mut self.jumps) {
            self.code.instrs[instr].x = u64::from(self.labels[label].unwrap_or(start));
        }
        for (slot, label) in std::mem::take(&mut self.list_jumps) {
            self.code.lists[slot] = self.labels[label].unwrap_or(start);
        }
        let (frame, local, shared, fills) = (self.frame, self.local, self.shared, std::mem::take(&mut self.fills));
        let known = &mut self.code.functions[self.index];
        (known.start, known.frame, known.local, known.shared, known.fills) =
            (start, frame.next_multiple_of(128), local.next_multiple_of(16), shared, fills);
        if frame > 8 << 20 {
            return fail(function.line, format!("function '{}' uses too many registers", function.name));
        }
        Ok(())
    }

    fn block(&mut self, body: &[Statement<'a>]) -> Result<()> {
        for statement in body {
            if let Statement::Label(name) = statement {
                let label = self.labels.len();
                self.labels.push(None);
                self.scope().names.insert(name, Name::Label(label));
            }
        }
        for statement in body {
            self.statement(statement)?;
        }
        Ok(())
    }

    fn scope(&mut self) -> &mut Scope<'a> {
        let last = self.scopes.len() - 1;
        &mut self.scopes[last]
    }

    fn statement(&mut self, statement: &Statement<'a>) -> Result<()> {
        match statement {
            Statement::Label(name) => {
                let here = self.code.instrs.len() as u32;
                if let Some(Name::Label(label)) = self.scope().names.get(name).cloned() {
                    self.labels[label] = Some(here);
                }
            }
            Statement::Instruction(instruction) => {
                self.line = instruction.line;
                self.place.ptx = instruction.line;
                self.instruction(instruction)?;
            }
            Statement::Register { ty, name, count: Some(count), .. } => self.scope().ranges.push((name, *ty, *count)),
            Statement::Register { ty, name, count: None, .. } => {
                self.scope().names.insert(name, Name::Register(*ty));
            }
            Statement::Variable(variable) => self.variable(variable)?,
            Statement::Block(body) => {
                self.scopes.push(Scope::default());
                self.block(body)?;
                self.scopes.pop();
            }
            Statement::Location { file, line, .. } => (self.place.file, self.place.line) = (*file, *line),
            Statement::Prototype { name, returns, params } => {
                let (params, returns, _) = layout_call(params, returns);
                self.scope().names.insert(name, Name::Prototype { returns, params });
            }
            Statement::Targets { name, labels } => {
                let labels = labels.iter().map(|label| label.to_string()).collect();
                self.scope().names.insert(name, Name::Targets(labels));
            }
        }
        Ok(())
    }

    fn variable(&mut self, variable: &Variable<'a>) -> Result<()> {
        let name = match variable.space {
            Space::Shared => {
                let name = place_shared(variable, &mut self.shared)?;
                if let Name::Shared(start) = name {
                    let function = self.entry.then_some(self.index);
                    self.code.shared.push(described(variable, u64::from(start), function));
                    self.reach.declare(variable);
                } else {
                    self.code.dynamic_align = self.code.dynamic_align.max(variable.align.clamp(1, 1024) as u32);
                }
                name
            }
            Space::Local | Space::Param => {
                let bytes = variable.bytes.unwrap_or(0);
                let start = self.local.next_multiple_of(variable.align.clamp(1, 1 << 12) as u32);
                if bytes > super::frames::MAX_LOCAL || start as usize + bytes > super::frames::MAX_LOCAL {
                    let limit = super::frames::MAX_LOCAL;
                    return fail(
                        variable.line,
                        format!("'{}' needs {bytes} bytes of local memory; a thread has {limit}", variable.name),
                    );
                }
                self.local = start + bytes as u32;
                Name::Local(start, bytes as u32)
            }
            Space::Global | Space::Const => {
                return fail(variable.line, format!("variable '{}' must stand outside of functions", variable.name));
            }
        };
        self.scope().names.insert(variable.name, name);
        Ok(())
    }

    /// A new row of registers.
    pub fn row(&mut self, width: Width) -> u32 {
        if width == Width::Pred {
            if self.preds.0 == self.preds.1 {
                self.preds = (self.frame, self.frame + 128);
                self.frame += 128;
            }
            self.preds.0 += 4;
            return self.preds.0 - 4;
        }
        let start = self.frame.next_multiple_of(64);
        self.frame = start + width.row_bytes();
        start
    }

    /// Add an instruction under the current guard; operands are d, a, b, c.
    pub fn emit(&mut self, class: Class, run: Handler, rows: [u32; 4], x: u64) {
        let [d, a, b, c] = rows;
        let (guard, flip) = self.guard;
        self.code.instrs.push(Instr { run, guard, flip, d, a, b, c, x });
        self.code.places.push(self.place);
        self.code.classes.push(class);
        self.code.effects.push(self.effect);
        self.code.sights.push(self.sight);
    }

    pub fn err<T>(&self, message: impl Into<String>) -> Result<T> {
        fail(self.line, message)
    }

    /// The predicate that holds the carry of extended arithmetic.
    pub fn carry(&mut self) -> u32 {
        match self.carry {
            Some(row) => row,
            None => {
                let row = self.row(Width::Pred);
                self.carry = Some(row);
                row
            }
        }
    }
}
