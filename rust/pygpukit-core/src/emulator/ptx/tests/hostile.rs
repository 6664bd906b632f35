//! Texts that are not PTX: the reader ends, without a panic, and says where.

use super::super::parse;
use super::nvrtc::TEXTS;
use super::{HEAD, kernel, text};
use proptest::prelude::*;

/// Reads a text that may be anything, and checks the place of an error.
fn survive(text: &str) -> Result<(), TestCaseError> {
    if let Err(error) = parse(text) {
        prop_assert!(error.line >= 1 && error.column >= 1);
        let text = text.trim_end_matches('\0');
        let line = text.split('\n').nth(error.line as usize - 1);
        let length = line.map(|line| line.chars().count());
        prop_assert!(length.is_some_and(|length| error.column as usize <= length + 1), "{error:?}");
        prop_assert!(!error.message.is_empty() && error.message.chars().count() < 400, "{error}");
        prop_assert!(!error.message.contains('\n'), "{error}");
    }
    Ok(())
}

const PIECES: [&str; 72] = [
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "<",
    ">",
    ";",
    ",",
    ":",
    "@",
    "!",
    "|",
    "+",
    "-",
    "*",
    "/",
    "%",
    "?",
    "=",
    "&",
    "~",
    "<<",
    "::",
    ".",
    "\"",
    "\"a\"",
    "//",
    "/*",
    "*/",
    "\n",
    "_",
    "%r1",
    "%p",
    "x",
    "$L_1",
    "generic",
    "WARP_SZ",
    "0",
    "16",
    "0xFF",
    "0f3F800000",
    "0d3FF0000000000000",
    "1.5",
    "08",
    "18446744073709551615",
    ".reg",
    ".b32",
    ".f32",
    ".pred",
    ".global",
    ".shared",
    ".param",
    ".const",
    ".align",
    ".v4",
    ".ptr",
    ".func",
    ".entry",
    ".extern",
    ".loc",
    ".file",
    ".section",
    ".pragma",
    ".callprototype",
    ".branchtargets",
    ".maxntid",
    ".attribute",
    "mov.u32",
    "call",
    "ret",
];

fn soup() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(PIECES.as_slice()), 0..60).prop_map(|pieces| pieces.join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = String::from_utf8_lossy(&bytes);
        survive(&bytes)?;
        survive(&text(&bytes))?;
        survive(&kernel(&bytes))?;
    }

    #[test]
    fn random_characters_are_survived(characters in "\\PC{0,80}") {
        survive(&text(&characters))?;
        survive(&kernel(&characters))?;
    }

    #[test]
    fn random_tokens_are_survived(pieces in soup()) {
        survive(&text(&pieces))?;
        survive(&kernel(&pieces))?;
        survive(&text(&format!(".global .b32 x = {pieces}")))?;
        survive(&kernel(&format!("mov.u32 {pieces}")))?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn changed_bytes_are_survived(index in 0..TEXTS.len(), place: prop::sample::Index, byte in 0..128u8) {
        let mut bytes = TEXTS[index].1.as_bytes().to_vec();
        let place = place.index(bytes.len());
        bytes[place] = byte;
        survive(&String::from_utf8(bytes).unwrap())?;
    }

    #[test]
    fn swapped_lines_are_survived(index in 0..TEXTS.len(), a: prop::sample::Index, b: prop::sample::Index) {
        let mut lines: Vec<_> = TEXTS[index].1.lines().collect();
        let count = lines.len();
        lines.swap(a.index(count), b.index(count));
        survive(&lines.join("\n"))?;
    }

    #[test]
    fn repeated_and_missing_pieces_are_survived(
        index in 0..TEXTS.len(),
        a: prop::sample::Index,
        b: prop::sample::Index,
        repeat: bool,
    ) {
        let text = TEXTS[index].1;
        let (a, b) = (a.index(text.len()), b.index(text.len()));
        let (start, end) = (a.min(b), a.max(b));
        let changed = match repeat {
            true => format!("{}{}", &text[..end], &text[start..]),
            false => format!("{}{}", &text[..start], &text[end..]),
        };
        survive(&changed)?;
    }
}

/// A text cut inside its last function is refused at the line where it ends.
#[test]
fn truncated_texts_are_refused_where_they_end() {
    for (name, text) in TEXTS {
        let body = text.rfind(".entry").unwrap();
        let body = body + text[body..].find('{').unwrap() + 1;
        let end = body + text[body..].find("\n}\n").unwrap();
        for cut in (body..end).step_by(7) {
            let cut_text = &text[..cut];
            let error = parse(cut_text).expect_err(cut_text);
            let last = cut_text.split('\n').count();
            assert_eq!(error.line as usize, last, "{name} cut at {cut}: {error}");
        }
        for cut in (0..text.len()).step_by(101) {
            survive(&text[..cut]).unwrap();
        }
    }
}

#[test]
fn the_end_of_a_truncated_text_is_named() {
    for code in
        [".entry k() {\n add.s32 %r1,", ".entry k() {\n ld.u32 %r1, [", ".entry k() {\n ret", ".global .u32 x = {1,"]
    {
        let error = parse(&format!("{HEAD}{code}")).unwrap_err();
        assert!(error.message.starts_with("the text ends here, where "), "{error}");
    }
}
