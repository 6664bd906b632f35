//! Constant expressions: literals and C operators, evaluated in 64 bits.

use super::ParseError;
use super::ast::Number;
use super::lexer::{Kind, Token};
use super::parser::Parser;

/// A constant whose signedness still matters to the operators around it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Int { bits: u64, unsigned: bool },
    Float(Number),
}

impl Value {
    pub fn number(self) -> Number {
        match self {
            Value::Int { bits, .. } => Number::Int(bits as i64),
            Value::Float(number) => number,
        }
    }
}

/// Binding strength of a binary operator; what is not one has none.
fn strength(operator: &str) -> Option<u8> {
    Some(match operator {
        "||" => 1,
        "&&" => 2,
        "|" => 3,
        "^" => 4,
        "&" => 5,
        "==" | "!=" => 6,
        "<" | ">" | "<=" | ">=" => 7,
        "<<" | ">>" => 8,
        "+" | "-" => 9,
        "*" | "/" | "%" => PRODUCT,
        _ => return None,
    })
}

/// Strength of `*`: a term of a sum is read down to it.
const PRODUCT: u8 = 10;

impl<'a> Parser<'a> {
    /// A whole expression.
    pub(super) fn constant(&mut self) -> Result<Value, ParseError> {
        let first = self.unary()?;
        self.constant_after(first)
    }

    /// The rest of an expression whose first term has been read.
    pub(super) fn constant_after(&mut self, first: Value) -> Result<Value, ParseError> {
        let condition = self.binary_after(first, 0)?;
        let question = self.token();
        if !self.accept("?")? {
            return Ok(condition);
        }
        let chosen = self.integer_value(condition, question)? != 0;
        self.enter()?;
        let yes = self.constant()?;
        self.expect(":", "between the two values of `?`")?;
        let no = self.constant()?;
        self.leave();
        match (yes, no) {
            (Value::Int { bits: yes, unsigned: a }, Value::Int { bits: no, unsigned: b }) => {
                Ok(Value::Int { bits: if chosen { yes } else { no }, unsigned: a || b })
            }
            (Value::Float(yes), Value::Float(no)) => Ok(Value::Float(if chosen { yes } else { no })),
            _ => Err(self.error_at(question, "the two values of `?` are an integer and a float")),
        }
    }

    /// An expression that must be an integer, as two's complement.
    pub(super) fn constant_integer(&mut self) -> Result<i64, ParseError> {
        let first = self.token();
        let value = self.constant()?;
        Ok(self.integer_value(value, first)? as i64)
    }

    /// The sum of the `+ n` and `- n` that follow a name; 0 where nothing does.
    pub(super) fn offset(&mut self) -> Result<i64, ParseError> {
        let mut sum = 0i64;
        loop {
            let sign = self.token();
            let minus = match sign.kind {
                Kind::Punct("+") => false,
                Kind::Punct("-") => true,
                _ => return Ok(sum),
            };
            self.bump()?;
            let first = self.unary()?;
            let value = self.binary_after(first, PRODUCT)?;
            let term = self.integer_value(value, sign)? as i64;
            let next = if minus { sum.checked_sub(term) } else { sum.checked_add(term) };
            sum = next.ok_or_else(|| self.error_at(sign, "the offset does not fit in 64 bits"))?;
        }
    }

    fn binary_after(&mut self, first: Value, weakest: u8) -> Result<Value, ParseError> {
        let mut left = first;
        loop {
            let operator = self.token();
            let Kind::Punct(symbol) = operator.kind else { return Ok(left) };
            let Some(strength) = strength(symbol).filter(|&s| s >= weakest) else { return Ok(left) };
            self.bump()?;
            let term = self.unary()?;
            let right = self.binary_after(term, strength + 1)?;
            left = self.apply(symbol, left, right, operator)?;
        }
    }

    /// A literal, a parenthesis or a cast, with the signs before it.
    pub(super) fn unary(&mut self) -> Result<Value, ParseError> {
        let token = self.token();
        match token.kind {
            Kind::Int { value, unsigned } => {
                self.bump()?;
                Ok(Value::Int { bits: value, unsigned })
            }
            Kind::Float(number) => {
                self.bump()?;
                Ok(Value::Float(number))
            }
            Kind::Word("WARP_SZ") => {
                self.bump()?;
                Ok(Value::Int { bits: 32, unsigned: false })
            }
            Kind::Punct(sign @ ("+" | "-" | "!" | "~")) => {
                self.bump()?;
                self.enter()?;
                let value = self.unary()?;
                self.leave();
                self.apply_sign(sign, value, token)
            }
            Kind::Punct("(") => {
                self.bump()?;
                self.enter()?;
                let value = match self.token().kind {
                    Kind::Directive(ty @ ("s64" | "u64")) => {
                        self.bump()?;
                        self.expect(")", "after the type of a cast")?;
                        let value = self.unary()?;
                        let bits = self.integer_value(value, token)?;
                        Value::Int { bits, unsigned: ty == "u64" }
                    }
                    _ => {
                        let value = self.constant()?;
                        self.expect(")", "after a constant expression")?;
                        value
                    }
                };
                self.leave();
                Ok(value)
            }
            _ => Err(self.expected("a number")),
        }
    }

    pub(super) fn apply_sign(&self, sign: &str, value: Value, token: Token<'a>) -> Result<Value, ParseError> {
        match (sign, value) {
            ("+", value) => Ok(value),
            ("-", Value::Int { bits, unsigned }) => Ok(Value::Int { bits: bits.wrapping_neg(), unsigned }),
            ("-", Value::Float(Number::F32(bits))) => Ok(Value::Float(Number::F32(bits ^ 1 << 31))),
            ("-", Value::Float(Number::F64(bits))) => Ok(Value::Float(Number::F64(bits ^ 1 << 63))),
            ("!", value) => Ok(Value::Int { bits: u64::from(self.integer_value(value, token)? == 0), unsigned: false }),
            (_, value) => Ok(Value::Int { bits: !self.integer_value(value, token)?, unsigned: true }),
        }
    }

    pub(super) fn integer_value(&self, value: Value, token: Token<'a>) -> Result<u64, ParseError> {
        match value {
            Value::Int { bits, .. } => Ok(bits),
            Value::Float(_) => Err(self.error_at(token, "found a float where an integer is needed")),
        }
    }

    fn apply(&self, symbol: &str, left: Value, right: Value, token: Token<'a>) -> Result<Value, ParseError> {
        let (Value::Int { bits: a, unsigned: ua }, Value::Int { bits: b, unsigned: ub }) = (left, right) else {
            return Err(self.error_at(token, &format!("`{symbol}` is supported between integers only")));
        };
        let unsigned = ua || ub;
        let (sa, sb) = (a as i64, b as i64);
        let number = |bits: u64| Ok(Value::Int { bits, unsigned });
        let truth = |value: bool| Ok(Value::Int { bits: u64::from(value), unsigned: false });
        let divisor = || if b == 0 { Err(self.error_at(token, "division by zero")) } else { Ok(b) };
        let before = |left_first: bool| {
            let ((x, sx), (y, sy)) = if left_first { ((a, sa), (b, sb)) } else { ((b, sb), (a, sa)) };
            if unsigned { x < y } else { sx < sy }
        };
        match symbol {
            "||" => truth(a != 0 || b != 0),
            "&&" => truth(a != 0 && b != 0),
            "|" => number(a | b),
            "^" => number(a ^ b),
            "&" => number(a & b),
            "==" => truth(a == b),
            "!=" => truth(a != b),
            "<" => truth(before(true)),
            ">" => truth(before(false)),
            "<=" => truth(!before(false)),
            ">=" => truth(!before(true)),
            "<<" => Ok(Value::Int { bits: if b < 64 { a << b } else { 0 }, unsigned: ua }),
            ">>" if ua => Ok(Value::Int { bits: if b < 64 { a >> b } else { 0 }, unsigned: ua }),
            ">>" => Ok(Value::Int { bits: (sa >> b.min(63)) as u64, unsigned: ua }),
            "+" => number(a.wrapping_add(b)),
            "-" => number(a.wrapping_sub(b)),
            "*" => number(a.wrapping_mul(b)),
            "/" if unsigned => number(a / divisor()?),
            "/" => divisor().and_then(|_| number(sa.wrapping_div(sb) as u64)),
            _ => divisor().map(|divisor| Value::Int { bits: a % divisor, unsigned: false }),
        }
    }
}
