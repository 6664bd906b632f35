//! Operands: registers, immediates, special registers and addresses become rows.

use super::{Fill, Lower, Name, Number, Reg, Result, Special, Type, Width, bits_of};
use crate::emulator::code::Class;
use crate::emulator::exec::{control, lanes};
use crate::emulator::memory::{FUNCTION_WINDOW, PARAM_WINDOW};
use crate::emulator::ptx::ast::Operand;

/// An address operand: the row of its base, how wide that is, and what is added.
#[derive(Clone, Copy, Debug)]
pub(in crate::emulator) struct AddressOf {
    pub row: u32,
    pub wide: bool,
    pub offset: i32,
}

impl<'a> Lower<'a> {
    /// What a name stands for here.
    pub fn look_up(&self, name: &str) -> Option<Name> {
        for scope in self.scopes.iter().rev() {
            if let Some(found) = scope.names.get(name) {
                return Some(found.clone());
            }
            if let Some(ty) = in_ranges(&scope.ranges, name) {
                return Some(Name::Register(ty));
            }
        }
        None
    }

    /// The register of this name; its row is made on first use.
    pub fn register(&mut self, name: &'a str) -> Result<Reg> {
        for index in (0..self.scopes.len()).rev() {
            let scope = &self.scopes[index];
            if let Some(reg) = scope.rows.get(name) {
                return Ok(*reg);
            }
            let ty = match scope.names.get(name) {
                Some(Name::Register(ty)) => Some(*ty),
                Some(_) => return self.err(format!("'{name}' is not a register")),
                None => in_ranges(&scope.ranges, name),
            };
            if let Some(ty) = ty {
                let width = Width::of(ty);
                let reg = Reg { width, row: self.row(width) };
                self.scopes[index].rows.insert(name, reg);
                return Ok(reg);
            }
        }
        self.err(format!("'{name}' is not declared"))
    }

    /// A row filled with a constant.
    pub fn constant(&mut self, width: Width, bits: u64) -> u32 {
        let bits = match width {
            Width::Half => bits & 0xffff,
            Width::Word => bits & 0xffff_ffff,
            _ => bits,
        };
        if let Some(row) = self.constants.get(&(width, bits)) {
            return *row;
        }
        let row = self.row(width);
        self.fills.push(match width {
            Width::Half => Fill::Half(row, bits as u16),
            Width::Double | Width::Quad => Fill::Double(row, bits),
            _ => Fill::Word(row, bits as u32),
        });
        self.constants.insert((width, bits), row);
        row
    }

    fn special_row(&mut self, special: Special) -> u32 {
        if let Some(row) = self.specials.get(&special) {
            return *row;
        }
        let row = self.row(Width::Word);
        self.fills.push(Fill::Special(row, special));
        self.specials.insert(special, row);
        row
    }

    /// The row of a source operand of a type.
    pub fn source(&mut self, operand: &Operand<'a>, ty: Type) -> Result<u32> {
        let width = Width::of(ty);
        let reg = self.any_source(operand, ty)?;
        if reg.width != width {
            return self.err(format!(
                "operand {} has {} bits where {} are needed",
                describe(operand),
                reg.width.bits(),
                width.bits()
            ));
        }
        Ok(reg.row)
    }

    /// A source operand whose register may have another width than its type.
    pub fn any_source(&mut self, operand: &Operand<'a>, ty: Type) -> Result<Reg> {
        let width = Width::of(ty);
        match operand {
            Operand::Number(number) => {
                let row = self.constant(width, bits_of(*number, ty));
                Ok(Reg { width, row })
            }
            Operand::Name(name) if name.starts_with('%') && self.look_up(name).is_none() => self.special(name, width),
            Operand::Name("WARP_SZ") => Ok(Reg { width, row: self.constant(width, 32) }),
            Operand::Name(name) => match self.look_up(name) {
                Some(Name::Register(_)) => self.register(name),
                Some(_) => self.address_value(name, 0, width),
                None => self.err(format!("'{name}' is not declared")),
            },
            Operand::Offset(name, offset) => self.address_value(name, *offset, width),
            other => self.err(format!("{} cannot be a source operand here", describe(other))),
        }
    }

    /// The address of a variable or function as a value.
    fn address_value(&mut self, name: &str, offset: i64, width: Width) -> Result<Reg> {
        let plus = |base: u64| base.wrapping_add(offset as u64);
        let value = match self.look_up(name) {
            Some(Name::Global(address)) => plus(address),
            Some(Name::Shared(at)) => {
                self.name_shared(name, at);
                plus(u64::from(at))
            }
            Some(Name::Function(index)) => {
                self.reach.take_address(index);
                FUNCTION_WINDOW | index as u64
            }
            Some(Name::Param(at, _)) => plus(u64::from(at) | PARAM_WINDOW),
            Some(Name::DynamicShared) => {
                let row = self.special_row(Special::SharedStart);
                let start = match width {
                    Width::Word => row,
                    _ => self.widen(row),
                };
                if offset == 0 {
                    return Ok(Reg { width, row: start });
                }
                let sum = self.row(width);
                let by = self.constant(width, offset as u64);
                let handler = match width {
                    Width::Word => lanes::binary::<crate::emulator::exec::integer::Add<u32>>(),
                    _ => lanes::binary::<crate::emulator::exec::integer::Add<u64>>(),
                };
                self.emit(Class::Integer, handler, [sum, start, by, 0], 0);
                return Ok(Reg { width, row: sum });
            }
            Some(Name::Local(at, _)) => {
                let row = self.row(Width::Double);
                self.emit(Class::Integer, control::local_address, [row, 0, 0, 0], plus(u64::from(at)));
                return Ok(Reg { width: Width::Double, row });
            }
            _ => return self.err(format!("'{name}' has no address")),
        };
        Ok(Reg { width, row: self.constant(width, value) })
    }

    /// A 32-bit row as a 64-bit one.
    pub fn widen(&mut self, row: u32) -> u32 {
        let wide = self.row(Width::Double);
        self.emit(Class::Convert, lanes::unary::<crate::emulator::exec::integer::Widen>(), [wide, row, 0, 0], 0);
        wide
    }

    fn special(&mut self, name: &str, width: Width) -> Result<Reg> {
        let (stem, part) = name.rsplit_once('.').unwrap_or((name, ""));
        let dimension = match part {
            "x" => Some(0),
            "y" => Some(1),
            "z" => Some(2),
            _ => None,
        };
        let special = match (stem, dimension) {
            ("%tid", Some(i)) => Special::Tid(i),
            ("%ntid", Some(i)) => Special::Ntid(i),
            ("%ctaid", Some(i)) => Special::Ctaid(i),
            ("%nctaid", Some(i)) => Special::Nctaid(i),
            ("%clusterid", Some(i)) => Special::Clusterid(i),
            ("%nclusterid", Some(i)) => Special::Nclusterid(i),
            ("%cluster_ctaid", Some(i)) => Special::ClusterCtaid(i),
            ("%cluster_nctaid", Some(i)) => Special::ClusterNctaid(i),
            ("%tid" | "%ntid" | "%ctaid" | "%nctaid", None) if part == "w" => Special::Zero,
            _ => match name {
                "%laneid" => Special::Lane,
                "%warpid" => Special::Warp,
                "%nwarpid" => Special::Warps,
                "%smid" => Special::Sm,
                "%nsmid" => Special::Sms,
                "%gridid" => Special::GridId,
                "%lanemask_eq" => Special::LanesEq,
                "%lanemask_lt" => Special::LanesLt,
                "%lanemask_le" => Special::LanesLe,
                "%lanemask_gt" => Special::LanesGt,
                "%lanemask_ge" => Special::LanesGe,
                "%dynamic_smem_size" => Special::DynamicShared,
                "%total_smem_size" => Special::TotalShared,
                "%cluster_ctarank" => Special::ClusterRank,
                "%cluster_nctarank" => Special::ClusterSize,
                "%is_explicit_cluster" => Special::IsCluster,
                "%envreg1" => Special::Workspace(0),
                "%envreg2" => Special::Workspace(1),
                "%clock" | "%clock_hi" | "%clock64" | "%globaltimer" | "%globaltimer_lo" | "%globaltimer_hi" => {
                    return Ok(self.counter(name));
                }
                _ => return self.err(format!("special register '{name}' is not supported")),
            },
        };
        let row = self.special_row(special);
        match width {
            Width::Word => Ok(Reg { width, row }),
            Width::Double => Ok(Reg { width, row: self.widen(row) }),
            Width::Half => {
                let narrow = self.row(Width::Half);
                let handler = lanes::unary::<crate::emulator::exec::integer::Narrow>();
                self.emit(Class::Convert, handler, [narrow, row, 0, 0], 0);
                Ok(Reg { width, row: narrow })
            }
            _ => self.err(format!("'{name}' does not fit an operand of {} bits", width.bits())),
        }
    }

    /// A register that counts time, read now.
    fn counter(&mut self, name: &str) -> Reg {
        let (width, x) = match name {
            "%clock64" | "%globaltimer" => (Width::Double, 0),
            "%clock_hi" | "%globaltimer_hi" => (Width::Word, 3),
            _ => (Width::Word, 2),
        };
        let global = if name.starts_with("%globaltimer") { control::GLOBAL } else { 0 };
        let row = self.row(width);
        self.emit(Class::Move, control::clock, [row, 0, 0, 0], x | global);
        Reg { width, row }
    }

    /// The row of a destination of a type.
    pub fn dest(&mut self, operand: &Operand<'a>, ty: Type) -> Result<u32> {
        let width = Width::of(ty);
        let reg = self.any_dest(operand, ty)?;
        if reg.width != width {
            return self.err(format!(
                "destination {} has {} bits where {} are needed",
                describe(operand),
                reg.width.bits(),
                width.bits()
            ));
        }
        Ok(reg.row)
    }

    pub fn any_dest(&mut self, operand: &Operand<'a>, ty: Type) -> Result<Reg> {
        match operand {
            Operand::Name(name) => self.register(name),
            Operand::Sink => {
                let width = Width::of(ty);
                Ok(Reg { width, row: self.row(width) })
            }
            other => self.err(format!("{} cannot be a destination", describe(other))),
        }
    }

    /// A predicate operand: its offset, and whether it is negated.
    pub fn predicate(&mut self, operand: &Operand<'a>) -> Result<(u32, bool)> {
        let (name, negated) = match operand {
            Operand::Name(name) => (*name, false),
            Operand::Not(name) => (*name, true),
            Operand::Number(Number::Int(value)) => return Ok((crate::emulator::code::ALWAYS, *value == 0)),
            other => return self.err(format!("{} is not a predicate", describe(other))),
        };
        let reg = self.register(name)?;
        if reg.width != Width::Pred {
            return self.err(format!("'{name}' is not a predicate"));
        }
        Ok((reg.row, negated))
    }

    /// A predicate row that is exactly this operand: a negated one is computed first.
    pub fn plain_predicate(&mut self, operand: &Operand<'a>) -> Result<u32> {
        let (row, negated) = self.predicate(operand)?;
        if !negated {
            return Ok(row);
        }
        let flipped = self.row(Width::Pred);
        self.emit(Class::Move, crate::emulator::exec::integer::pred_logic, [flipped, row, row, 0], 3);
        Ok(flipped)
    }

    /// A predicate that is written.
    pub fn pred_dest(&mut self, name: &'a str) -> Result<u32> {
        if name == "_" {
            return Ok(self.row(Width::Pred));
        }
        let reg = self.register(name)?;
        if reg.width != Width::Pred {
            return self.err(format!("'{name}' is not a predicate"));
        }
        Ok(reg.row)
    }

    /// The address in brackets.
    pub fn address(&mut self, operand: &Operand<'a>) -> Result<AddressOf> {
        let Operand::Address { base, offset } = operand else {
            return self.err(format!("{} is not an address in brackets", describe(operand)));
        };
        let Some(base) = base else {
            let row = self.constant(Width::Double, *offset as u64);
            return Ok(AddressOf { row, wide: true, offset: 0 });
        };
        let is_register = matches!(self.look_up(base), Some(Name::Register(_)));
        let (reg, offset) = if is_register {
            (self.register(base)?, *offset)
        } else {
            (self.address_value(base, *offset, Width::Double)?, 0)
        };
        let Ok(offset) = i32::try_from(offset) else {
            return self.err(format!("the offset {offset} of an address does not fit 32 bits"));
        };
        match reg.width {
            Width::Double => Ok(AddressOf { row: reg.row, wide: true, offset }),
            Width::Word => Ok(AddressOf { row: reg.row, wide: false, offset }),
            _ => self.err(format!("'{base}' is no register for an address: it has {} bits", reg.width.bits())),
        }
    }

    /// Start a list of operands; the index of its length.
    pub fn list(&mut self, items: &[u32]) -> u32 {
        let start = self.code.lists.len() as u32;
        self.code.lists.push(items.len() as u32);
        self.code.lists.extend_from_slice(items);
        start
    }
}

fn in_ranges(ranges: &[(&str, Type, u32)], name: &str) -> Option<Type> {
    for (prefix, ty, count) in ranges {
        let Some(digits) = name.strip_prefix(prefix) else { continue };
        let canonical = digits == "0" || !digits.starts_with('0');
        if canonical && digits.parse::<u32>().is_ok_and(|number| number < *count) {
            return Some(*ty);
        }
    }
    None
}

/// An operand as a person would write it.
pub(super) fn describe(operand: &Operand<'_>) -> String {
    match operand {
        Operand::Name(name) => format!("'{name}'"),
        Operand::Not(name) => format!("'!{name}'"),
        Operand::Pair(a, b) => format!("'{a}|{b}'"),
        Operand::Sink => "'_'".to_string(),
        Operand::Number(Number::Int(value)) => format!("{value}"),
        Operand::Number(Number::F32(bits)) => format!("{}", f32::from_bits(*bits)),
        Operand::Number(Number::F64(bits)) => format!("{}", f64::from_bits(*bits)),
        Operand::Address { base, offset } => format!("'[{}{offset:+}]'", base.unwrap_or("")),
        Operand::Tensor { base, .. } => format!("'[{base}, ...]'"),
        Operand::Vector(parts) => format!("a vector of {}", parts.len()),
        Operand::Offset(name, offset) => format!("'{name}{offset:+}'"),
        Operand::List(parts) => format!("a list of {}", parts.len()),
    }
}
