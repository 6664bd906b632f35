//! Texts that are almost right: loading them never panics, and what loads can be run without harm.

use std::sync::Arc;

use super::{Image, Launch, Memory, Options};
use crate::random::Random;

const TEXTS: [&str; 4] = [
    include_str!("exec/tests/cuda/sync.sm_80.ptx"),
    include_str!("exec/tests/cuda/sync.sm_90a.ptx"),
    include_str!("../../tests/ptx/calls.sm_90a.ptx"),
    include_str!("exec/matrix/tests/tile.ptx"),
];

/// The only memory kernels may touch.
struct Buffer(u64, u64);

impl Memory for Buffer {
    fn find(&self, address: u64) -> Option<(u64, u64)> {
        (self.0..self.1).contains(&address).then_some((self.0, self.1))
    }
}

/// Words of a text that change places: registers, types, opcodes, labels, numbers.
fn words(text: &str) -> Vec<(usize, usize)> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "%_$:".contains(c);
    let mut found = Vec::new();
    let mut start = None;
    for (at, c) in text.char_indices() {
        match (is_word(c), start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                found.push((from, at));
                start = None;
            }
            _ => {}
        }
    }
    found
}

/// Words that differ in their digits alone, such as registers of one type, mostly stand for each other.
fn kind(word: &str) -> String {
    word.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Change one to three words of a text.
fn mutate(text: &str, words: &[(usize, usize)], kinds: &[String], random: &mut Random) -> String {
    let word = |index: usize| &text[words[index].0..words[index].1];
    let mut chosen: Vec<usize> = (0..1 + random.below(3)).map(|_| random.below(words.len())).collect();
    chosen.sort_unstable();
    chosen.dedup();
    let mut result = text.to_string();
    // Later words first, so that the places of earlier ones stay true.
    for index in chosen.into_iter().rev() {
        let replacement = match random.below(12) {
            0 => String::new(),
            1 => (random.next() as i32).to_string(),
            2 => word(random.below(words.len())).to_string(),
            _ => {
                let same: Vec<usize> = (0..words.len()).filter(|&k| kinds[k] == kinds[index]).collect();
                word(same[random.below(same.len())]).to_string()
            }
        };
        result.replace_range(words[index].0..words[index].1, &replacement);
    }
    result
}

#[test]
fn texts_with_changed_words_do_no_harm() {
    let mut random = Random::new(7);
    let (mut loaded, mut ran) = (0, 0);
    for text in TEXTS {
        let words = words(text);
        // What comes first is mostly declarations.
        let words = &words[words.len() / 3..];
        let kinds: Vec<String> = words.iter().map(|&(from, to)| kind(&text[from..to])).collect();
        for _ in 0..40 {
            let changed = mutate(text, words, &kinds, &mut random);
            let mut data = Vec::new();
            let allocate = |bytes: usize| {
                data.resize(bytes.div_ceil(8) + 16, 0u64);
                Ok::<_, String>((data.as_ptr() as u64).next_multiple_of(128))
            };
            let Ok(image) = Image::load(&changed, allocate) else { continue };
            loaded += 1;
            let mut buffer = vec![0u64; 1 << 15];
            let start = buffer.as_mut_ptr() as u64;
            let memory = Arc::new(Buffer(start, start + 8 * buffer.len() as u64));
            for name in image.kernels() {
                let Some((kernel, _)) = image.kernel(name) else { continue };
                let bytes = image.params(kernel).last().map_or(0, |(offset, size)| offset + size);
                let args: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| (start + 4096).to_le_bytes()).collect();
                let launch = Launch {
                    kernel,
                    name,
                    grid: [2, 1, 1],
                    block: [64, 1, 1],
                    shared: 1024,
                    cluster: [0; 3],
                    cooperative: false,
                    args: &args,
                    arrays: &[],
                };
                // Random orders look at the limit more often.
                let (check, fuzz) = (random.below(4) == 0, (random.below(4) > 0).then(|| random.next()));
                let options = Options { max_instructions: Some(8_000), workers: 1, check, fuzz, ..Options::default() };
                if let Ok(running) = image.launch(&launch, memory.clone(), options) {
                    let result = running.wait();
                    assert!(!result.as_ref().is_err_and(|text| text.contains("the emulator failed")), "{changed}");
                    ran += 1;
                }
            }
        }
    }
    assert!(loaded > 40 && ran > 40, "{loaded} loaded, {ran} ran");
}
