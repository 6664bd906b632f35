//! Reading PTX text.

pub mod ast;
mod body;
mod constant;
mod declare;
mod lexer;
mod parser;
#[cfg(test)]
mod tests;

pub use parser::parse;

/// Why a text is not PTX that can be read, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PTX line {line}: {message}")]
pub struct ParseError {
    /// From 1.
    pub line: u32,
    /// In characters, from 1.
    pub column: u32,
    /// What was found and what was expected, with the line (shortened).
    pub message: String,
}

/// Characters of the offending line that a message shows at most.
const QUOTED: usize = 72;
/// Characters shown before the column when a line is shortened.
const QUOTED_BEFORE: usize = 32;

impl ParseError {
    /// An error at a byte of `text`, which lies on `line`. Reads the text around it: make one, then stop.
    fn new(text: &str, offset: usize, line: u32, message: &str) -> ParseError {
        let (before, after) = text.split_at_checked(offset).unwrap_or((text, ""));
        let head = before.rsplit('\n').next().unwrap_or(before);
        let tail = after.split('\n').next().unwrap_or(after);
        let before = head.chars().count();
        let shown = quote(head.chars().rev(), tail.chars(), before);
        let message = if shown.is_empty() { message.to_owned() } else { format!("{message}, in `{shown}`") };
        ParseError { line, column: u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1), message }
    }
}

/// One line, given as what comes before a place (backwards) and after it, shortened around the place.
fn quote(head: impl Iterator<Item = char>, tail: impl Iterator<Item = char>, before: usize) -> String {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    let mut line: Vec<char> = head.take(QUOTED_BEFORE).map(printable).collect();
    let cut_before = before > line.len();
    line.reverse();
    let room = QUOTED - line.len();
    let mut tail = tail;
    line.extend(tail.by_ref().take(room).map(printable));
    let cut_after = tail.any(|c| !c.is_whitespace());
    let line: String = line.into_iter().collect();
    format!("{}{}{}", if cut_before { "..." } else { "" }, line.trim(), if cut_after { "..." } else { "" })
}

/// A piece of the text for a message: at most 40 characters, on one line.
fn shorten(text: &str) -> String {
    let mut chars = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut short: String = chars.by_ref().take(40).collect();
    if chars.next().is_some() {
        short.push_str("...");
    }
    short
}
