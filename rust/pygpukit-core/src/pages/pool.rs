//! Pages, how many sequences use each, and an index of full pages by content.
//!
//! A page nobody uses is in a list, from whose front pages are taken: pages without content first, then those whose
//! content was not used for the longest time. Until a page is taken its content can be found again.

use std::collections::HashMap;

use super::chain::Chain;

const NONE: u32 = u32::MAX;

struct Content {
    chain: Chain,
    parent: Chain,
    tokens: Box<[u32]>,
}

struct Page {
    users: u32,
    content: Option<Content>,
    /// Neighbours in the list of unused pages.
    before: u32,
    after: u32,
}

pub(super) struct PagePool {
    pages: Vec<Page>,
    index: HashMap<Chain, u32>,
    first: u32,
    last: u32,
    unused: u32,
    /// Pages whose content was given up for another.
    pub(super) overwritten: u64,
}

impl PagePool {
    pub(super) fn new(count: u32) -> PagePool {
        let page = |_| Page { users: 0, content: None, before: NONE, after: NONE };
        let mut pool = PagePool {
            pages: (0..count).map(page).collect(),
            index: HashMap::new(),
            first: NONE,
            last: NONE,
            unused: 0,
            overwritten: 0,
        };
        for page in 0..count {
            pool.append(page);
        }
        pool
    }

    pub(super) fn count(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Pages no sequence uses; some may have content that can still be found.
    pub(super) fn unused(&self) -> u32 {
        self.unused
    }

    /// Unused pages that have content.
    pub(super) fn kept(&self) -> u32 {
        let found = |&&page: &&u32| self.pages[page as usize].users == 0;
        self.index.values().filter(found).count() as u32
    }

    /// Take a page for one user; its content is forgotten.
    pub(super) fn take(&mut self) -> Option<u32> {
        let page = self.first;
        if page == NONE {
            return None;
        }
        self.unlink(page);
        self.forget(page);
        self.pages[page as usize].users = 1;
        Some(page)
    }

    /// Find the page with this content and add a user. The tokens are compared: a hash alone proves nothing.
    pub(super) fn find(&mut self, chain: Chain, parent: Chain, tokens: &[u32]) -> Option<u32> {
        let page = *self.index.get(&chain)?;
        let content = self.pages[page as usize].content.as_ref()?;
        if content.parent != parent || *content.tokens != *tokens {
            return None;
        }
        self.share(page);
        Some(page)
    }

    pub(super) fn share(&mut self, page: u32) {
        if self.pages[page as usize].users == 0 {
            self.unlink(page);
        }
        self.pages[page as usize].users += 1;
    }

    /// Say what a page contains. Of two pages with the same content the first is found.
    pub(super) fn publish(&mut self, page: u32, chain: Chain, parent: Chain, tokens: &[u32]) {
        if self.index.contains_key(&chain) || self.pages[page as usize].content.is_some() {
            return;
        }
        self.index.insert(chain, page);
        self.pages[page as usize].content = Some(Content { chain, parent, tokens: tokens.into() });
    }

    /// Remove a user; the last one leaves the page to be taken.
    pub(super) fn release(&mut self, page: u32) {
        let entry = &mut self.pages[page as usize];
        debug_assert!(entry.users > 0);
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        if entry.content.is_some() { self.append(page) } else { self.prepend(page) }
    }

    #[cfg(test)]
    pub(super) fn users(&self, page: u32) -> u32 {
        self.pages[page as usize].users
    }

    /// Forget the content of every page.
    pub(super) fn clear(&mut self) {
        for page in 0..self.count() {
            self.pages[page as usize].content = None;
        }
        self.index.clear();
    }

    fn forget(&mut self, page: u32) {
        if let Some(content) = self.pages[page as usize].content.take() {
            self.index.remove(&content.chain);
            self.overwritten += 1;
        }
    }

    fn append(&mut self, page: u32) {
        let last = self.last;
        let entry = &mut self.pages[page as usize];
        (entry.before, entry.after) = (last, NONE);
        if last == NONE {
            self.first = page
        } else {
            self.pages[last as usize].after = page
        }
        self.last = page;
        self.unused += 1;
    }

    fn prepend(&mut self, page: u32) {
        let first = self.first;
        let entry = &mut self.pages[page as usize];
        (entry.before, entry.after) = (NONE, first);
        if first == NONE {
            self.last = page
        } else {
            self.pages[first as usize].before = page
        }
        self.first = page;
        self.unused += 1;
    }

    fn unlink(&mut self, page: u32) {
        let Page { before, after, .. } = self.pages[page as usize];
        if before == NONE {
            self.first = after
        } else {
            self.pages[before as usize].after = after
        }
        if after == NONE {
            self.last = before
        } else {
            self.pages[after as usize].before = before
        }
        self.unused -= 1;
    }
}
