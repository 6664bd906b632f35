//! The arrays of one step: what the kernels of an engine read about the rows they compute.

use super::cache::PageCache;
use super::sequence::SequenceId;
use crate::error::{Error, Result};

/// What a step computes of a sequence: `count` of its tokens that are not computed yet, then drafts, which are guesses
/// about the tokens after all of those.
#[derive(Debug, Clone, Copy)]
pub struct StepRow<'a> {
    pub sequence: SequenceId,
    pub count: usize,
    pub drafts: &'a [u32],
}

/// Memory for the arrays. `ids`, `sources`, `positions` and `slots` have an element per token; `lengths` has one per
/// sequence and `starts` one more; `table` has `table_width` per sequence.
pub struct StepArrays<'a> {
    /// The token; 0 where the device has it.
    pub ids: &'a mut [i32],
    /// The row of an earlier step that drew the token; -1 where `ids` has it.
    pub sources: &'a mut [i32],
    /// Place of the token in its sequence.
    pub positions: &'a mut [i32],
    /// Where its keys and values go: page * tokens of a page + place in it; -1 for nowhere.
    pub slots: &'a mut [i64],
    /// First token of each sequence, and the end of the last.
    pub starts: &'a mut [i32],
    /// Tokens each sequence has in the cache when the step has run.
    pub lengths: &'a mut [i32],
    /// Pages of each sequence in order.
    pub table: &'a mut [i32],
    pub table_width: usize,
}

/// Tokens and sequences of a step, without padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSize {
    pub tokens: usize,
    pub sequences: usize,
}

impl PageCache {
    /// Write the arrays of a step. What is left of them is padding: sequences of no tokens, and tokens that go nowhere.
    ///
    /// Nothing is written if a row cannot be: its pages must have been reserved.
    pub fn step(&self, rows: &[StepRow<'_>], arrays: &mut StepArrays<'_>) -> Result<StepSize> {
        let total = self.check(rows, arrays)?;
        let size = self.limits.page_tokens as usize;
        let mut at = 0;
        for (row, step) in rows.iter().enumerate() {
            let sequence = self.get(step.sequence)?;
            arrays.starts[row] = at as i32;
            let known = sequence.tokens.len();
            let end = sequence.computed + step.count + step.drafts.len();
            arrays.lengths[row] = end as i32;
            for position in sequence.computed..end {
                let drawn = position.checked_sub(known);
                let (id, source) = match drawn {
                    None => (sequence.tokens[position], -1),
                    Some(i) if i < sequence.pending.len() => (0, sequence.pending[i] as i32),
                    Some(i) => (step.drafts[i - sequence.pending.len()], -1),
                };
                arrays.ids[at] = id as i32;
                arrays.sources[at] = source;
                arrays.positions[at] = position as i32;
                arrays.slots[at] = i64::from(sequence.pages[position / size]) * size as i64 + (position % size) as i64;
                at += 1;
            }
            let pages = end.div_ceil(size);
            let line = &mut arrays.table[row * arrays.table_width..(row + 1) * arrays.table_width];
            for (entry, &page) in line.iter_mut().zip(&sequence.pages[..pages]) {
                *entry = page as i32;
            }
            line[pages..].fill(0);
        }
        arrays.ids[at..].fill(0);
        arrays.sources[at..].fill(-1);
        arrays.positions[at..].fill(0);
        arrays.slots[at..].fill(-1);
        arrays.starts[rows.len()..].fill(at as i32);
        arrays.lengths[rows.len()..].fill(0);
        arrays.table[rows.len() * arrays.table_width..].fill(0);
        Ok(StepSize { tokens: total, sequences: rows.len() })
    }

    fn check(&self, rows: &[StepRow<'_>], arrays: &StepArrays<'_>) -> Result<usize> {
        let tokens = arrays.ids.len();
        let sequences = arrays.lengths.len();
        let given = [arrays.sources.len(), arrays.positions.len(), arrays.slots.len()];
        let table = sequences.checked_mul(arrays.table_width);
        if given != [tokens; 3] || arrays.starts.len() != sequences + 1 || table != Some(arrays.table.len()) {
            return Err(Error::Value(format!(
                "the arrays of a step do not fit together: {tokens} ids beside {given:?} sources, positions and slots; \
                 {sequences} lengths beside {} starts and a table of {} x {}",
                arrays.starts.len(),
                arrays.table.len(),
                arrays.table_width
            )));
        }
        let mut total = 0;
        for step in rows {
            let sequence = self.get(step.sequence)?;
            let id = step.sequence.0;
            let end = sequence.computed + step.count + step.drafts.len();
            let pages = self.pages_for(end);
            let problem = match () {
                () if sequence.on_host => "it is on the host".to_string(),
                () if step.count == 0 => "no token of it is to be computed".to_string(),
                () if sequence.computed + step.count > sequence.length() => {
                    format!("it has {} tokens, {} of them computed", sequence.length(), sequence.computed)
                }
                () if !step.drafts.is_empty() && sequence.computed + step.count != sequence.length() => {
                    "drafts follow its last token only".to_string()
                }
                () if pages > sequence.pages.len() => {
                    format!("it has {} pages and needs {pages}: reserve them first", sequence.pages.len())
                }
                () if pages > arrays.table_width => {
                    format!("it needs {pages} pages, and the table has {} for each", arrays.table_width)
                }
                () => {
                    total += end - sequence.computed;
                    continue;
                }
            };
            let (count, drafts) = (step.count, step.drafts.len());
            return Err(Error::Value(format!(
                "sequence {id} cannot be in a step with {count} tokens and {drafts} drafts: {problem}"
            )));
        }
        if total > tokens || rows.len() > sequences {
            return Err(Error::Value(format!(
                "a step of {total} tokens of {} sequences does not fit arrays of {tokens} and {sequences}",
                rows.len()
            )));
        }
        Ok(total)
    }
}
