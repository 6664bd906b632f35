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

fn mutate(text: &str, words: &[(usize, usize)], random: &mut Random) -> String {
    let mut result = text.to_string();
    for _ in 0..1 + random.below(3) {
        // Later words first, so that the places of earlier ones stay true.
        let (from, to) = words[words.len() / 3 + random.below(words.len() * 2 / 3)];
        let (other, end) = words[words.len() / 3 + random.below(words.len() * 2 / 3)];
        if to > result.len() || result.get(from..to) != text.get(from..to) {
            continue;
        }
        let replacement = match random.below(6) {
            0 => String::new(),
            1 => (random.next() as i32).to_string(),
            _ => text[other..end].to_string(),
        };
        result.replace_range(from..to, &replacement);
        break;
    }
    result
}

#[test]
fn texts_with_changed_words_do_no_harm() {
    let mut random = Random::new(7);
    let (mut loaded, mut ran) = (0, 0);
    for text in TEXTS {
        let words = words(text);
        for _ in 0..60 {
            let changed = mutate(text, &words, &mut random);
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
                let check = random.below(4) == 0;
                let options = Options { max_instructions: Some(8_000), workers: 1, check, ..Options::default() };
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
