//! PTX text to tokens, one at a time.

use super::ast::Number;
use super::{ParseError, shorten};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind<'a> {
    /// A name, or an opcode with its dots: `%tid.x`, `ld.global.f32`.
    Word(&'a str),
    /// `.reg`, without its dot.
    Directive(&'a str),
    Int {
        value: u64,
        unsigned: bool,
    },
    Float(Number),
    /// What stands between double quotes, escapes untouched.
    Text(&'a str),
    Punct(&'static str),
    End,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub kind: Kind<'a>,
    /// The token as it is written.
    pub text: &'a str,
    /// Byte in the source where it starts.
    pub start: usize,
    /// From 1.
    pub line: u32,
}

impl Token<'_> {
    /// For messages: "`add`", "the end of the text".
    pub fn describe(&self) -> String {
        match self.kind {
            Kind::End => "the end of the text".to_owned(),
            _ => format!("`{}`", shorten(self.text)),
        }
    }
}

/// Longer operators first, so that `<<` is not read as two `<`.
const PUNCTUATION: [&str; 32] = [
    "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", ";", ",", "[", "]", "{", "}", "(", ")", "+", "-", ":", "@", "|",
    "!", "=", "<", ">", "*", "/", "%", "&", "^", "~", "?",
];

#[derive(Debug)]
pub(super) struct Lexer<'a> {
    text: &'a str,
    position: usize,
    line: u32,
}

fn starts_name(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$' | b'%')
}

fn continues_name(byte: u8) -> bool {
    byte.is_ascii_digit() || starts_name(byte)
}

impl<'a> Lexer<'a> {
    pub fn new(text: &'a str) -> Lexer<'a> {
        Lexer { text, position: 0, line: 1 }
    }

    pub fn error(&self, offset: usize, line: u32, message: &str) -> ParseError {
        ParseError::new(self.text, offset, line, message)
    }

    fn byte(&self, offset: usize) -> Option<u8> {
        self.text.as_bytes().get(offset).copied()
    }

    fn is_name(&self, offset: usize) -> bool {
        self.byte(offset).is_some_and(continues_name)
    }

    /// The text between two offsets that both lie beside ASCII.
    fn slice(&self, start: usize, end: usize) -> &'a str {
        self.text.get(start..end).unwrap_or("")
    }

    pub fn next(&mut self) -> Result<Token<'a>, ParseError> {
        self.skip_blank()?;
        let (start, line) = (self.position, self.line);
        let Some(first) = self.byte(start) else {
            return Ok(Token { kind: Kind::End, text: "", start, line });
        };
        let second = self.byte(start + 1);
        let kind = if starts_name(first) && (first != b'%' || second.is_some_and(continues_name)) {
            self.position = self.name_end(start, true);
            Kind::Word(self.slice(start, self.position))
        } else if first.is_ascii_digit() || (first == b'.' && second.is_some_and(|b| b.is_ascii_digit())) {
            self.number()?
        } else if first == b'.' && second.is_some_and(starts_name) {
            self.position = self.name_end(start + 1, false);
            Kind::Directive(self.slice(start + 1, self.position))
        } else if first == b'"' {
            self.string()?
        } else {
            let rest = self.slice(start, self.text.len());
            let Some(&punct) = PUNCTUATION.iter().find(|&&p| rest.starts_with(p)) else {
                let found = rest.chars().next().unwrap_or('?').escape_debug();
                return Err(self.error(start, line, &format!("the character `{found}` has no place in PTX")));
            };
            self.position += punct.len();
            Kind::Punct(punct)
        };
        Ok(Token { kind, text: self.slice(start, self.position), start, line })
    }

    /// Passes over white space and comments.
    fn skip_blank(&mut self) -> Result<(), ParseError> {
        loop {
            match self.byte(self.position) {
                Some(b'\n') => {
                    self.line = self.line.saturating_add(1);
                    self.position += 1;
                }
                Some(b' ' | b'\t' | b'\r' | 0x0b | 0x0c) => self.position += 1,
                Some(b'/') => match self.byte(self.position + 1) {
                    Some(b'/') => {
                        let rest = self.slice(self.position, self.text.len());
                        self.position += rest.find('\n').unwrap_or(rest.len());
                    }
                    Some(b'*') => self.skip_block_comment()?,
                    _ => return Ok(()),
                },
                _ => return Ok(()),
            }
        }
    }

    fn skip_block_comment(&mut self) -> Result<(), ParseError> {
        let body = self.position + 2;
        let rest = self.slice(body, self.text.len());
        let Some(length) = rest.find("*/") else {
            return Err(self.error(self.position, self.line, "the text ends inside a comment: expected `*/`"));
        };
        let lines = self.slice(body, body + length).bytes().filter(|&b| b == b'\n').count();
        self.line = self.line.saturating_add(u32::try_from(lines).unwrap_or(u32::MAX));
        self.position = body + length + 2;
        Ok(())
    }

    /// Where the name that starts at `offset` ends. `shared::cta` is one name; dots belong to words, not to directives.
    fn name_end(&self, mut offset: usize, dots: bool) -> usize {
        loop {
            match self.byte(offset) {
                Some(b'.') if dots => offset += 1,
                Some(b'%') if !dots => return offset,
                Some(byte) if continues_name(byte) => offset += 1,
                Some(b':') if self.byte(offset + 1) == Some(b':') && self.is_name(offset + 2) => offset += 2,
                _ => return offset,
            }
        }
    }

    fn string(&mut self) -> Result<Kind<'a>, ParseError> {
        let start = self.position + 1;
        let mut offset = start;
        loop {
            match self.byte(offset) {
                Some(b'"') => break,
                Some(b'\\') if matches!(self.byte(offset + 1), Some(b'"' | b'\\')) => offset += 2,
                Some(b'\n') | None => {
                    return Err(self.error(
                        self.position,
                        self.line,
                        "the string that starts here has no closing `\"`",
                    ));
                }
                Some(_) => offset += 1,
            }
        }
        self.position = offset + 1;
        Ok(Kind::Text(self.slice(start, offset)))
    }

    fn number(&mut self) -> Result<Kind<'a>, ParseError> {
        let start = self.position;
        let end = self.number_end(start);
        let text = self.slice(start, end);
        let kind = match read_number(text) {
            Ok(kind) => kind,
            Err(problem) => {
                return Err(self.error(start, self.line, &format!("the number `{}` {problem}", shorten(text))));
            }
        };
        self.position = end;
        Ok(kind)
    }

    /// Takes every character that could belong, so that `12ab` is one bad number and not two tokens.
    fn number_end(&self, start: usize) -> usize {
        let bytes = self.text.as_bytes();
        let decimal = !matches!(
            (self.byte(start), self.byte(start + 1)),
            (Some(b'0'), Some(b'x' | b'X' | b'b' | b'B' | b'f' | b'F' | b'd' | b'D'))
        );
        let mut offset = start;
        while let Some(&byte) = bytes.get(offset) {
            let exponent = decimal && matches!(byte, b'e' | b'E');
            if exponent && matches!(self.byte(offset + 1), Some(b'+' | b'-')) {
                offset += 2;
            } else if byte.is_ascii_alphanumeric() || byte == b'_' || (decimal && byte == b'.') {
                offset += 1;
            } else {
                break;
            }
        }
        offset
    }
}

fn read_number(text: &str) -> Result<Kind<'static>, &'static str> {
    let bits = |digits: &str, count: usize, problem: &'static str| {
        let valid = digits.len() == count && digits.bytes().all(|b| b.is_ascii_hexdigit());
        if valid { u64::from_str_radix(digits, 16).map_err(|_| problem) } else { Err(problem) }
    };
    let (prefix, digits) = text.split_at_checked(2).unwrap_or((text, ""));
    match prefix {
        "0f" | "0F" => {
            let value = bits(digits, 8, "is not `0f` and 8 hexadecimal digits")?;
            Ok(Kind::Float(Number::F32(value as u32)))
        }
        "0d" | "0D" => {
            let value = bits(digits, 16, "is not `0d` and 16 hexadecimal digits")?;
            Ok(Kind::Float(Number::F64(value)))
        }
        "0x" | "0X" => read_integer(digits, 16),
        "0b" | "0B" => read_integer(digits, 2),
        _ if text.bytes().any(|b| matches!(b, b'.' | b'e' | b'E')) => read_decimal(text),
        _ if text.len() > 1 && text.starts_with('0') && text != "0U" => read_integer(&text[1..], 8),
        _ => read_integer(text, 10),
    }
}

fn read_decimal(text: &str) -> Result<Kind<'static>, &'static str> {
    let valid = text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'));
    match text.parse::<f64>() {
        Ok(value) if valid && value.is_finite() => Ok(Kind::Float(Number::F64(value.to_bits()))),
        Ok(_) if valid => Err("is too large for a 64-bit float"),
        _ => Err("is malformed"),
    }
}

fn read_integer(digits: &str, radix: u32) -> Result<Kind<'static>, &'static str> {
    let (digits, suffix) = match digits.strip_suffix('U') {
        Some(digits) => (digits, true),
        None => (digits, false),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return Err("is malformed");
    }
    let value = u64::from_str_radix(digits, radix).map_err(|_| "does not fit in 64 bits")?;
    Ok(Kind::Int { value, unsigned: suffix || i64::try_from(value).is_err() })
}
