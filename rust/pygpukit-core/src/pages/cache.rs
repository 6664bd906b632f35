//! Sequences and their pages: begin, grow, share, move to the host and back, end.

use std::collections::HashMap;

use super::chain::Chains;
use super::pool::PagePool;
use super::sequence::{Sequence, SequenceId};
use crate::error::{Error, Result};

/// Sizes of a cache.
#[derive(Debug, Clone, Copy)]
pub struct PageLimits {
    /// Pages on the device.
    pub pages: u32,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Pages on the host for sequences that give up theirs.
    pub host_pages: u32,
    /// Are full pages found by their content?
    pub prefix: bool,
    /// Key of the index.
    pub seed: u64,
}

/// Figures of a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageStats {
    /// Pages that sequences use.
    pub used: u32,
    /// Unused pages whose content can be found.
    pub kept: u32,
    /// Pages on the host that are in use.
    pub on_host: u32,
    /// Tokens of prompts that were looked for and that were found, since the beginning.
    pub asked: u64,
    pub found: u64,
    /// Pages whose content was overwritten.
    pub overwritten: u64,
}

/// A second sequence with the tokens of a first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fork {
    pub sequence: SequenceId,
    /// The page that is not full, and the one that gets its content.
    pub copy: Option<(u32, u32)>,
}

/// A sequence as callers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceState<'a> {
    /// Tokens the host knows, and those it does not know yet.
    pub tokens: usize,
    pub pending: usize,
    /// Tokens that are in the pages, and how many of them were found there.
    pub computed: usize,
    pub found: usize,
    pub pages: &'a [u32],
    pub on_host: bool,
}

/// All pages of one engine.
pub struct PageCache {
    pub(super) limits: PageLimits,
    pub(super) pool: PagePool,
    chains: Chains,
    host: Vec<u32>,
    pub(super) sequences: HashMap<SequenceId, Sequence>,
    next: u64,
    clears: u64,
    asked: u64,
    found: u64,
}

impl PageCache {
    pub fn new(limits: PageLimits) -> Result<PageCache> {
        if limits.pages == 0 || limits.page_tokens == 0 || limits.pages > i32::MAX as u32 {
            return Err(Error::Value(format!(
                "a cache of {} pages of {} tokens cannot be made: both are at least 1, and at most 2147483647 pages",
                limits.pages, limits.page_tokens
            )));
        }
        Ok(PageCache {
            limits,
            pool: PagePool::new(limits.pages),
            chains: Chains::new(limits.seed),
            host: (0..limits.host_pages).rev().collect(),
            sequences: HashMap::new(),
            next: 0,
            clears: 0,
            asked: 0,
            found: 0,
        })
    }

    pub fn limits(&self) -> PageLimits {
        self.limits
    }

    /// Pages that so many tokens take.
    pub fn pages_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.limits.page_tokens as usize)
    }

    /// Pages a sequence can take now.
    pub fn available(&self) -> u32 {
        self.pool.unused()
    }

    /// Begin a sequence with a prompt; pages with the same beginning are shared. At least the last token is left to be
    /// computed, since its logits are wanted.
    pub fn begin(&mut self, tokens: &[u32], salt: &[u8]) -> Result<SequenceId> {
        if tokens.is_empty() {
            return Err(Error::Value("a sequence needs at least one token".to_string()));
        }
        let root = self.chains.root(salt);
        let mut sequence = Sequence {
            tokens: tokens.to_vec(),
            pending: Default::default(),
            computed: 0,
            found: 0,
            pages: Vec::new(),
            on_host: false,
            published: 0,
            chain: root,
            root,
        };
        if self.limits.prefix {
            self.asked += tokens.len() as u64;
            self.match_pages(&mut sequence, tokens.len() - 1);
            sequence.found = sequence.computed;
            self.found += sequence.computed as u64;
        }
        let id = SequenceId(self.next);
        self.next += 1;
        self.sequences.insert(id, sequence);
        Ok(id)
    }

    /// Add pages that have the sequence's next tokens, at most up to `limit` computed tokens.
    fn match_pages(&mut self, sequence: &mut Sequence, limit: usize) {
        let size = self.limits.page_tokens as usize;
        debug_assert_eq!(sequence.computed, sequence.pages.len() * size);
        while sequence.computed + size <= limit {
            let tokens = &sequence.tokens[sequence.computed..sequence.computed + size];
            let chain = self.chains.next(sequence.chain, tokens);
            let Some(page) = self.pool.find(chain, sequence.chain, tokens) else { break };
            sequence.pages.push(page);
            sequence.computed += size;
            sequence.published += 1;
            sequence.chain = chain;
        }
    }

    /// Give a sequence the pages for `count` tokens more than are computed. False, and nothing changes, if there are
    /// not enough.
    pub fn reserve(&mut self, id: SequenceId, count: usize) -> Result<bool> {
        let sequence = self.on_device(id)?;
        let (computed, has) = (sequence.computed, sequence.pages.len());
        let needed = self.pages_for(computed + count).saturating_sub(has);
        if needed > self.pool.unused() as usize {
            return Ok(false);
        }
        for _ in 0..needed {
            let page = self.pool.take();
            let sequence = self.sequences.get_mut(&id);
            if let (Some(page), Some(sequence)) = (page, sequence) {
                sequence.pages.push(page);
            }
        }
        Ok(true)
    }

    /// Note that `count` tokens more are computed, or queued to be. Full pages of known tokens can be found from now on.
    pub fn advance(&mut self, id: SequenceId, count: usize) -> Result<()> {
        let size = self.limits.page_tokens as usize;
        let sequence = self.on_device(id)?;
        let computed = sequence.computed + count;
        if computed > sequence.length() || computed > sequence.pages.len() * size {
            return Err(Error::Value(format!(
                "sequence {} cannot have {computed} computed tokens: it has {} tokens and room for {}",
                id.0,
                sequence.length(),
                sequence.pages.len() * size
            )));
        }
        sequence.computed = computed;
        self.publish(id);
        Ok(())
    }

    fn publish(&mut self, id: SequenceId) {
        let size = self.limits.page_tokens as usize;
        let Some(sequence) = self.sequences.get_mut(&id).filter(|_| self.limits.prefix) else { return };
        let full = sequence.computed.min(sequence.tokens.len()) / size;
        for page in sequence.published..full {
            let tokens = &sequence.tokens[page * size..(page + 1) * size];
            let chain = self.chains.next(sequence.chain, tokens);
            self.pool.publish(sequence.pages[page], chain, sequence.chain, tokens);
            sequence.chain = chain;
        }
        sequence.published = sequence.published.max(full);
    }

    /// Add a token the host knows.
    pub fn push(&mut self, id: SequenceId, token: u32) -> Result<()> {
        let sequence = self.get_mut(id)?;
        if !sequence.pending.is_empty() {
            return Err(Error::Value(format!(
                "sequence {} waits for a token the device has drawn: resolve it first",
                id.0
            )));
        }
        sequence.tokens.push(token);
        Ok(())
    }

    /// Add a token that row `row` of a step draws, and that the host learns later.
    pub fn push_pending(&mut self, id: SequenceId, row: u32) -> Result<()> {
        self.get_mut(id)?.pending.push(row);
        Ok(())
    }

    /// Learn the oldest pending token.
    pub fn resolve(&mut self, id: SequenceId, token: u32) -> Result<()> {
        let sequence = self.get_mut(id)?;
        if sequence.pending.is_empty() {
            return Err(Error::Value(format!("sequence {} has no pending token", id.0)));
        }
        sequence.pending.remove(0);
        sequence.tokens.push(token);
        if !sequence.on_host {
            self.publish(id);
        }
        Ok(())
    }

    /// Begin a second sequence with the same tokens. Full pages are shared; one that is not full has to be copied. None if
    /// there is no page for that.
    pub fn fork(&mut self, id: SequenceId) -> Result<Option<Fork>> {
        let size = self.limits.page_tokens as usize;
        let sequence = self.on_device(id)?;
        if !sequence.pending.is_empty() {
            return Err(Error::Value(format!("sequence {} has a pending token: resolve it before a fork", id.0)));
        }
        let full = sequence.computed / size;
        let partial = (sequence.computed % size > 0).then(|| sequence.pages[full]);
        let mut copy = Sequence {
            tokens: sequence.tokens.clone(),
            pending: Default::default(),
            computed: sequence.computed,
            found: sequence.computed,
            pages: sequence.pages[..full].to_vec(),
            on_host: false,
            published: sequence.published,
            chain: sequence.chain,
            root: sequence.root,
        };
        let mut copied = None;
        if let Some(from) = partial {
            let Some(to) = self.pool.take() else { return Ok(None) };
            copy.pages.push(to);
            copied = Some((from, to));
        }
        for &page in &copy.pages[..full] {
            self.pool.share(page);
        }
        let copy_id = SequenceId(self.next);
        self.next += 1;
        self.sequences.insert(copy_id, copy);
        Ok(Some(Fork { sequence: copy_id, copy: copied }))
    }

    /// Give up a sequence's pages on the device. Returns (page, page on the host) for each to copy; None, and nothing
    /// changes, if the host has no room.
    pub fn swap_out(&mut self, id: SequenceId) -> Result<Option<Vec<(u32, u32)>>> {
        let size = self.limits.page_tokens as usize;
        let sequence = self.on_device(id)?;
        let count = sequence.computed.div_ceil(size);
        let pages = std::mem::take(&mut sequence.pages);
        if count > self.host.len() {
            self.get_mut(id)?.pages = pages;
            return Ok(None);
        }
        let to = self.host.split_off(self.host.len() - count);
        let moves = pages.iter().copied().zip(to.iter().copied()).collect();
        for &page in pages.iter().rev() {
            self.pool.release(page);
        }
        let sequence = self.get_mut(id)?;
        (sequence.pages, sequence.on_host) = (to, true);
        Ok(Some(moves))
    }

    /// Bring a sequence back. Returns (page on the host, page) for each to copy: pages whose content is still there are
    /// shared instead. None, and nothing changes, if the device has no room.
    pub fn swap_in(&mut self, id: SequenceId) -> Result<Option<Vec<(u32, u32)>>> {
        let size = self.limits.page_tokens as usize;
        let Some(mut sequence) = self.sequences.remove(&id) else { return Err(unknown(id)) };
        if !sequence.on_host {
            self.sequences.insert(id, sequence);
            return Err(Error::Value(format!("sequence {} is on the device already", id.0)));
        }
        let (computed, chain, published) = (sequence.computed, sequence.chain, sequence.published);
        let from = std::mem::take(&mut sequence.pages);
        (sequence.computed, sequence.chain, sequence.published) = (0, sequence.root, 0);
        if self.limits.prefix {
            self.match_pages(&mut sequence, published * size);
        }
        let found = sequence.pages.len();
        let room = from.len() - found <= self.pool.unused() as usize;
        let mut moves = Vec::new();
        if room {
            for &host in &from[found..] {
                if let Some(page) = self.pool.take() {
                    sequence.pages.push(page);
                    moves.push((host, page));
                }
            }
            self.host.extend(from);
            sequence.on_host = false;
        } else {
            for &page in sequence.pages.iter().rev() {
                self.pool.release(page);
            }
            sequence.pages = from;
        }
        (sequence.computed, sequence.chain, sequence.published) = (computed, chain, published);
        self.republish(&sequence, found, room);
        self.sequences.insert(id, sequence);
        Ok(room.then_some(moves))
    }

    /// Pages that came back can be found again.
    fn republish(&mut self, sequence: &Sequence, found: usize, room: bool) {
        if !room || !self.limits.prefix {
            return;
        }
        let size = self.limits.page_tokens as usize;
        let mut chain = sequence.root;
        for page in 0..sequence.published {
            let tokens = &sequence.tokens[page * size..(page + 1) * size];
            let next = self.chains.next(chain, tokens);
            if page >= found {
                self.pool.publish(sequence.pages[page], next, chain, tokens);
            }
            chain = next;
        }
    }

    /// End a sequence. Its last pages are given to others first: a beginning is worth more.
    pub fn release(&mut self, id: SequenceId) -> Result<()> {
        let Some(sequence) = self.sequences.remove(&id) else { return Err(unknown(id)) };
        if sequence.on_host {
            self.host.extend(sequence.pages);
        } else {
            for &page in sequence.pages.iter().rev() {
                self.pool.release(page);
            }
        }
        Ok(())
    }

    /// Find nothing of what is there now again.
    pub fn clear(&mut self) {
        self.pool.clear();
        self.clears += 1;
        self.chains = Chains::new(self.limits.seed ^ self.clears.wrapping_mul(0xd134_2543_de82_ef95));
    }

    pub fn stats(&self) -> PageStats {
        PageStats {
            used: self.pool.count() - self.pool.unused(),
            kept: self.pool.kept(),
            on_host: self.limits.host_pages - self.host.len() as u32,
            asked: self.asked,
            found: self.found,
            overwritten: self.pool.overwritten,
        }
    }

    pub fn state(&self, id: SequenceId) -> Result<SequenceState<'_>> {
        let sequence = self.get(id)?;
        Ok(SequenceState {
            tokens: sequence.tokens.len(),
            pending: sequence.pending.len(),
            computed: sequence.computed,
            found: sequence.found,
            pages: &sequence.pages,
            on_host: sequence.on_host,
        })
    }

    pub(super) fn get(&self, id: SequenceId) -> Result<&Sequence> {
        self.sequences.get(&id).ok_or_else(|| unknown(id))
    }

    fn get_mut(&mut self, id: SequenceId) -> Result<&mut Sequence> {
        self.sequences.get_mut(&id).ok_or_else(|| unknown(id))
    }

    fn on_device(&mut self, id: SequenceId) -> Result<&mut Sequence> {
        let sequence = self.get_mut(id)?;
        if sequence.on_host {
            return Err(Error::Value(format!("sequence {} is on the host: swap it in first", id.0)));
        }
        Ok(sequence)
    }
}

fn unknown(id: SequenceId) -> Error {
    Error::Value(format!("there is no sequence {}: it was released, or never begun", id.0))
}
