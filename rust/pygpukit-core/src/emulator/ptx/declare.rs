//! Variables, parameters, registers and initial values.

use super::ParseError;
use super::ast::{Init, Number, Space, Statement, Type, Variable};
use super::lexer::{Kind, Token};
use super::parser::{Parser, space};

/// Dimensions of an array at most.
const DIMENSIONS: usize = 16;
/// Elements that incomplete initialisers of one text may leave out inside nested braces.
const MAX_PADDING: usize = 1 << 20;

/// What the names of one declaration share.
#[derive(Clone, Copy)]
struct Head {
    space: Space,
    ty: Type,
    lanes: usize,
    align: usize,
    external: bool,
}

impl<'a> Parser<'a> {
    /// `.global .align 4 .b32 a, b[4];`, standing at the state space.
    pub(super) fn variables(
        &mut self,
        space: Space,
        external: bool,
        add: &mut dyn FnMut(Variable<'a>),
    ) -> Result<(), ParseError> {
        let head = self.head(space, external)?;
        loop {
            add(self.declarator(head)?);
            if !self.accept(",")? {
                return self.expect(";", "or `,` after a variable");
            }
        }
    }

    /// `.param .u64 .ptr .align 1 a`, standing at `.param`.
    pub(super) fn parameter(&mut self) -> Result<Variable<'a>, ParseError> {
        let head = self.head(Space::Param, false)?;
        self.declarator(head)
    }

    /// `.reg .b32 %r<3>, %s;`, standing at `.reg`.
    pub(super) fn registers(&mut self, statements: &mut Vec<Statement<'a>>) -> Result<(), ParseError> {
        self.bump()?;
        let ty = match self.token().kind {
            Kind::Directive("v2" | "v4") => {
                return Err(self.error_at(self.token(), "vector registers are not supported: declare single ones"));
            }
            Kind::Directive(name) => Type::parse(name),
            _ => None,
        };
        let Some(ty) = ty else { return Err(self.expected("the type of registers")) };
        self.bump()?;
        loop {
            let line = self.token().line;
            let name = self.word("the name of a register")?;
            let mut count = None;
            if self.accept("<")? {
                count = Some(self.number("a number of registers")?);
                self.expect(">", "after a number of registers")?;
            }
            statements.push(Statement::Register { ty, name, count, line });
            if !self.accept(",")? {
                return self.expect(";", "or `,` after a register");
            }
        }
    }

    fn head(&mut self, space: Space, external: bool) -> Result<Head, ParseError> {
        self.bump()?;
        let (mut ty, mut lanes, mut align) = (None, 1, 1);
        while let Kind::Directive(name) = self.token().kind {
            match name {
                "align" => align = self.alignment()?,
                "attribute" => {
                    self.attributes()?;
                    continue;
                }
                "ptr" if space == Space::Param => {
                    self.pointee()?;
                    continue;
                }
                "v2" | "v4" if ty.is_none() => lanes = if name == "v2" { 2 } else { 4 },
                "texref" | "samplerref" | "surfref" => {
                    return Err(self.error_at(self.token(), &format!("`.{name}` variables are not supported")));
                }
                "pred" => return Err(self.error_at(self.token(), "predicates have no address: use `.reg`")),
                _ if ty.is_none() => match Type::parse(name) {
                    Some(found) => ty = Some(found),
                    None => return Err(self.unknown_directive("in a declaration")),
                },
                _ => return Err(self.unknown_directive("after the type of a declaration")),
            }
            self.bump()?;
        }
        let Some(ty) = ty else { return Err(self.expected("the type of a variable")) };
        let natural = ty.bytes() * lanes;
        if natural > 16 {
            return Err(self.error_at(self.token(), &format!("a vector of {natural} bytes, at most 16 are allowed")));
        }
        Ok(Head { space, ty, lanes, align: align.max(natural), external })
    }

    /// The number after `.align`, left standing there.
    fn alignment(&mut self) -> Result<usize, ParseError> {
        self.bump()?;
        match self.token().kind {
            Kind::Int { value, .. } if value.is_power_of_two() => {
                let align = usize::try_from(value).ok().filter(|&align| align <= 1 << 30);
                align.ok_or_else(|| self.error_at(self.token(), "the alignment is too large"))
            }
            _ => Err(self.expected("an alignment, a power of two")),
        }
    }

    /// What `.ptr` says of the memory a parameter points at; the parameter itself is not changed by it.
    fn pointee(&mut self) -> Result<(), ParseError> {
        self.bump()?;
        while let Kind::Directive(name) = self.token().kind {
            if name == "align" {
                self.alignment()?;
            } else if space(name.split("::").next().unwrap_or(name)).is_none() {
                return Ok(());
            }
            self.bump()?;
        }
        Ok(())
    }

    /// `.attribute(.managed, .unified(1, 2))`, where it is given.
    pub(super) fn attributes(&mut self) -> Result<(), ParseError> {
        while self.token().kind == Kind::Directive("attribute") {
            self.bump()?;
            self.expect("(", "after `.attribute`")?;
            loop {
                match self.token().kind {
                    Kind::Directive("managed") => {
                        self.bump()?;
                    }
                    Kind::Directive("unified") => {
                        self.bump()?;
                        self.expect("(", "after `.unified`")?;
                        self.constant_integer()?;
                        self.expect(",", "between the numbers of `.unified`")?;
                        self.constant_integer()?;
                        self.expect(")", "after the numbers of `.unified`")?;
                    }
                    _ => return Err(self.expected("the attribute `.managed` or `.unified`")),
                }
                if !self.accept(",")? {
                    self.expect(")", "or `,` after an attribute")?;
                    break;
                }
            }
        }
        Ok(())
    }

    /// `name[2][3] = {...}`
    fn declarator(&mut self, head: Head) -> Result<Variable<'a>, ParseError> {
        let token = self.token();
        let name = self.word("the name of a variable")?;
        let mut unsized_first = false;
        let mut extents = Vec::new();
        while self.is("[") {
            self.bump()?;
            if extents.len() == DIMENSIONS {
                return Err(self.error_at(token, &format!("an array of more than {DIMENSIONS} dimensions")));
            }
            if extents.is_empty() && self.is("]") {
                unsized_first = true;
                extents.push(usize::MAX);
            } else {
                extents.push(self.extent()?);
            }
            self.expect("]", "after the size of an array")?;
        }
        if self.is("<") {
            return Err(self.error_at(token, "numbered names are supported for registers only"));
        }
        if head.lanes > 1 {
            extents.push(head.lanes);
        }
        let fixed = if unsized_first { &extents[1..] } else { &extents[..] };
        let row = fixed.iter().try_fold(head.ty.bytes(), |bytes, &extent| bytes.checked_mul(extent));
        let row = row.filter(|&bytes| i64::try_from(bytes).is_ok());
        let row = row.ok_or_else(|| self.error_at(token, "the size of the array does not fit in 64 bits"))?;
        let mut init = Vec::new();
        if self.is("=") {
            self.initial_value(token, head, &extents, &mut init)?;
        }
        let bytes = if !unsized_first {
            Some(row)
        } else if init.is_empty() {
            None
        } else {
            let rows = init.len().saturating_mul(head.ty.bytes()).div_ceil(row.max(1));
            Some(rows.saturating_mul(row))
        };
        let Head { space, ty, align, external, .. } = head;
        Ok(Variable { space, name, ty, align, bytes, init, external, line: token.line })
    }

    fn extent(&mut self) -> Result<usize, ParseError> {
        let token = self.token();
        let extent = self.constant_integer()?;
        usize::try_from(extent)
            .map_err(|_| self.error_at(token, &format!("{extent} is not a size that an array can have")))
    }

    fn initial_value(
        &mut self,
        name: Token<'a>,
        head: Head,
        extents: &[usize],
        init: &mut Vec<Init<'a>>,
    ) -> Result<(), ParseError> {
        if head.external || !matches!(head.space, Space::Global | Space::Const) {
            let message =
                "an initial value, allowed only for variables in `.global` and `.const` that are defined here";
            return Err(self.error_at(name, message));
        }
        self.bump()?;
        if self.is("{") {
            let scalar = [1];
            return self.braces(name, if extents.is_empty() { &scalar } else { extents }, init);
        }
        if !extents.is_empty() {
            return Err(self.expected("`{` before the initial values of an array"));
        }
        init.push(self.initial_element()?);
        Ok(())
    }

    /// Values of one dimension. Inner braces that leave values out are filled up with zeros.
    fn braces(&mut self, name: Token<'a>, extents: &[usize], init: &mut Vec<Init<'a>>) -> Result<(), ParseError> {
        self.enter()?;
        self.bump()?;
        let start = init.len();
        let inner = extents.get(1..).unwrap_or(&[]);
        let below = inner.iter().fold(1usize, |size, &extent| size.saturating_mul(extent));
        let capacity = extents.first().map_or(1, |&extent| extent.saturating_mul(below));
        while !self.is("}") {
            if self.is("{") {
                if inner.is_empty() || !(init.len() - start).is_multiple_of(below.max(1)) {
                    return Err(self.error_at(self.token(), "these braces match no dimension of the array"));
                }
                let row = init.len();
                self.braces(name, inner, init)?;
                let missing = below.saturating_sub(init.len() - row);
                self.padding = self.padding.saturating_add(missing);
                if self.padding > MAX_PADDING {
                    return Err(self.error_at(name, "too many initial values are left out: write the zeros"));
                }
                init.resize(init.len() + missing, Init::Value(Number::Int(0)));
            } else {
                init.push(self.initial_element()?);
            }
            if init.len() - start > capacity {
                return Err(self.error_at(name, &format!("more initial values than the {capacity} there is room for")));
            }
            if !self.accept(",")? {
                break;
            }
        }
        self.leave();
        self.expect("}", "or `,` after an initial value")
    }

    fn initial_element(&mut self) -> Result<Init<'a>, ParseError> {
        let token = self.token();
        match token.kind {
            Kind::Word(word) if word != "WARP_SZ" => {
                let (name, generic, offset) = self.symbol_address()?;
                Ok(Init::Address { name, generic, offset })
            }
            Kind::Int { value, .. } => {
                let first = self.unary()?;
                if self.is("(") {
                    self.masked(token, value)
                } else {
                    Ok(Init::Value(self.constant_after(first)?.number()))
                }
            }
            _ => Ok(Init::Value(self.constant()?.number())),
        }
    }

    /// `name+4` or `generic(name)+4`
    fn symbol_address(&mut self) -> Result<(&'a str, bool, i64), ParseError> {
        let token = self.token();
        let word = self.word("the name of a variable")?;
        if word != "generic" || !self.is("(") {
            return Ok((word, false, self.offset()?));
        }
        self.bump()?;
        let name = self.word("the name of a variable")?;
        let inside = self.offset()?;
        self.expect(")", "after the name in `generic`")?;
        let offset = inside.checked_add(self.offset()?);
        let offset = offset.ok_or_else(|| self.error_at(token, "the offset does not fit in 64 bits"))?;
        Ok((name, true, offset))
    }

    /// `0xFF00(name)`: one byte of an address or of a number.
    fn masked(&mut self, token: Token<'a>, mask: u64) -> Result<Init<'a>, ParseError> {
        let shift = mask.trailing_zeros();
        if mask == 0 || !shift.is_multiple_of(8) || mask >> shift != 0xff {
            return Err(self.error_at(token, &format!("found the mask `{}`, expected one of one byte", token.text)));
        }
        self.bump()?;
        let init = match self.token().kind {
            Kind::Word(word) if word != "WARP_SZ" => {
                let (name, generic, offset) = self.symbol_address()?;
                Init::Byte { name, generic, offset, shift }
            }
            _ => Init::Value(Number::Int(self.constant_integer()? >> shift & 0xff)),
        };
        self.expect(")", "after a masked address")?;
        Ok(init)
    }
}
