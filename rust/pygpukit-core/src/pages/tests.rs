use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

const SIZE: usize = 4;

fn cache(pages: u32, host_pages: u32) -> PageCache {
    PageCache::new(PageLimits { pages, page_tokens: SIZE as u32, host_pages, prefix: true, seed: 7 }).unwrap()
}

/// What the memory of the pages holds: for each slot everything its keys and values depend on.
#[derive(Default)]
struct Memory {
    device: HashMap<i64, (Vec<u8>, Vec<u32>)>,
    host: HashMap<i64, (Vec<u8>, Vec<u32>)>,
}

struct Model {
    cache: PageCache,
    memory: Memory,
    /// Sequences with their salt; tokens the device drew, by row.
    live: Vec<(SequenceId, Vec<u8>)>,
    drawn: HashMap<SequenceId, Vec<u32>>,
}

impl Model {
    fn new(pages: u32, host_pages: u32) -> Model {
        Model { cache: cache(pages, host_pages), memory: Memory::default(), live: Vec::new(), drawn: HashMap::new() }
    }

    /// All tokens, those the host does not know included.
    fn tokens(&self, id: SequenceId) -> Vec<u32> {
        let mut tokens = self.cache.get(id).unwrap().tokens.clone();
        tokens.extend(self.drawn.get(&id).into_iter().flatten());
        tokens
    }

    /// Run a step of one sequence on the model's memory.
    fn compute(&mut self, index: usize, count: usize, drafts: &[u32]) {
        let (id, salt) = self.live[index].clone();
        let tokens = self.tokens(id);
        let computed = self.cache.get(id).unwrap().computed;
        let count = count.min(tokens.len() - computed);
        let drafts = if computed + count == tokens.len() { drafts } else { &[] };
        if count == 0 || self.cache.get(id).unwrap().on_host || !self.cache.reserve(id, count + drafts.len()).unwrap() {
            return;
        }
        let total = count + drafts.len() + 2;
        let (mut ids, mut sources, mut positions) = (vec![9; total], vec![9; total], vec![9; total]);
        let mut slots = vec![9; total];
        let (mut starts, mut lengths, mut table) = (vec![9; 3], vec![9; 2], vec![9; 2 * 64]);
        let mut arrays = StepArrays {
            ids: &mut ids,
            sources: &mut sources,
            positions: &mut positions,
            slots: &mut slots,
            starts: &mut starts,
            lengths: &mut lengths,
            table: &mut table,
            table_width: 64,
        };
        let size = self.cache.step(&[StepRow { sequence: id, count, drafts }], &mut arrays).unwrap();
        assert_eq!(size, StepSize { tokens: total - 2, sequences: 1 });
        assert_eq!((starts[0], starts[1], starts[2]), (0, total as i32 - 2, total as i32 - 2));
        assert_eq!((lengths[0], lengths[1]), ((computed + count + drafts.len()) as i32, 0));
        assert_eq!(&slots[total - 2..], [-1, -1]);

        let mut content = tokens[..computed].to_vec();
        for at in 0..total - 2 {
            let position = positions[at] as usize;
            assert_eq!(position, computed + at);
            let expected = if position < tokens.len() { tokens[position] } else { drafts[position - tokens.len()] };
            let known = self.cache.get(id).unwrap().tokens.len();
            if sources[at] >= 0 {
                assert_eq!(sources[at] as usize, 100 + position - known);
            } else {
                assert_eq!(ids[at] as u32, expected);
            }
            content.push(expected);
            assert_eq!(slots[at] / SIZE as i64, i64::from(table[position / SIZE]));
            self.memory.device.insert(slots[at], (salt.clone(), content.clone()));
        }
        self.cache.advance(id, count).unwrap();
    }

    fn draw(&mut self, index: usize, token: u32, known: bool) {
        let id = self.live[index].0;
        let waiting = self.drawn.entry(id).or_default();
        if known && waiting.is_empty() {
            self.cache.push(id, token).unwrap();
        } else if waiting.len() < 2 {
            waiting.push(token);
            self.cache.push_pending(id, 99 + waiting.len() as u32).unwrap();
        }
    }

    fn learn(&mut self, index: usize) {
        let id = self.live[index].0;
        let waiting = self.drawn.entry(id).or_default();
        if waiting.is_empty() {
            assert!(self.cache.resolve(id, 1).is_err());
            return;
        }
        self.cache.resolve(id, waiting.remove(0)).unwrap();
        // The rows of the model are numbered by the place among the pending ones.
        let sequence = self.cache.sequences.get_mut(&id).unwrap();
        for (i, row) in sequence.pending.iter_mut().enumerate() {
            *row = 100 + i as u32;
        }
    }

    fn copy(&mut self, moves: &[(u32, u32)], out: bool) {
        let Memory { device, host } = &mut self.memory;
        for &(from, to) in moves {
            for i in 0..SIZE as i64 {
                let (from, to) = (i64::from(from) * SIZE as i64 + i, i64::from(to) * SIZE as i64 + i);
                let (source, target) = if out { (&mut *device, &mut *host) } else { (&mut *host, &mut *device) };
                if let Some(content) = source.get(&from).cloned() {
                    target.insert(to, content);
                }
            }
        }
    }

    fn fork(&mut self, index: usize) {
        let (id, salt) = self.live[index].clone();
        if self.cache.get(id).unwrap().on_host || !self.drawn.get(&id).is_none_or(Vec::is_empty) {
            assert!(self.cache.fork(id).is_err());
            return;
        }
        let Some(Fork { sequence, copy }) = self.cache.fork(id).unwrap() else { return };
        if let Some((from, to)) = copy {
            for i in 0..SIZE as i64 {
                if let Some(content) = self.memory.device.get(&(i64::from(from) * SIZE as i64 + i)).cloned() {
                    self.memory.device.insert(i64::from(to) * SIZE as i64 + i, content);
                }
            }
        }
        self.live.push((sequence, salt));
    }

    fn swap(&mut self, index: usize) {
        let id = self.live[index].0;
        if self.cache.get(id).unwrap().on_host {
            if let Some(moves) = self.cache.swap_in(id).unwrap() {
                self.copy(&moves, false);
            }
        } else if let Some(moves) = self.cache.swap_out(id).unwrap() {
            self.copy(&moves, true);
        }
    }

    /// Every computed token of every sequence reads what was computed for it, and pages are counted.
    fn check(&self) {
        let mut users: HashMap<u32, u32> = HashMap::new();
        let mut on_host = 0;
        for (id, salt) in &self.live {
            let sequence = self.cache.get(*id).unwrap();
            let tokens = self.tokens(*id);
            let memory = if sequence.on_host { &self.memory.host } else { &self.memory.device };
            for position in 0..sequence.computed {
                let slot = i64::from(sequence.pages[position / SIZE]) * SIZE as i64 + (position % SIZE) as i64;
                assert_eq!(memory.get(&slot), Some(&(salt.clone(), tokens[..=position].to_vec())), "{id:?} {position}");
            }
            if sequence.on_host {
                on_host += sequence.pages.len() as u32;
            } else {
                let distinct: HashSet<_> = sequence.pages.iter().collect();
                assert_eq!(distinct.len(), sequence.pages.len());
                for &page in &sequence.pages {
                    *users.entry(page).or_default() += 1;
                }
            }
        }
        for page in 0..self.cache.pool.count() {
            assert_eq!(self.cache.pool.users(page), users.get(&page).copied().unwrap_or(0), "page {page}");
        }
        let stats = self.cache.stats();
        assert_eq!((stats.used, stats.on_host), (users.len() as u32, on_host));
        assert_eq!(stats.used + self.cache.available(), self.cache.pool.count());
    }
}

#[derive(Debug, Clone)]
enum Action {
    Begin(Vec<u32>, bool),
    Compute(usize, usize, Vec<u32>),
    Draw(usize, u32, bool),
    Learn(usize),
    Fork(usize),
    Swap(usize),
    Release(usize),
    Clear,
}

fn action() -> impl Strategy<Value = Action> {
    // Two tokens only, so that sequences have common beginnings.
    let token = 0u32..2;
    prop_oneof![
        3 => (prop::collection::vec(token.clone(), 1..24), any::<bool>()).prop_map(|(t, s)| Action::Begin(t, s)),
        8 => (any::<usize>(), 1usize..12, prop::collection::vec(token.clone(), 0..4))
            .prop_map(|(i, n, d)| Action::Compute(i, n, d)),
        6 => (any::<usize>(), token, any::<bool>()).prop_map(|(i, t, k)| Action::Draw(i, t, k)),
        5 => any::<usize>().prop_map(Action::Learn),
        1 => any::<usize>().prop_map(Action::Fork),
        2 => any::<usize>().prop_map(Action::Swap),
        2 => any::<usize>().prop_map(Action::Release),
        1 => Just(Action::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sequences_read_what_was_computed_for_them(actions in prop::collection::vec(action(), 1..120)) {
        let mut model = Model::new(24, 16);
        for action in actions {
            let count = model.live.len();
            match action {
                Action::Begin(tokens, salted) => {
                    let salt = if salted { b"tenant".to_vec() } else { Vec::new() };
                    let id = model.cache.begin(&tokens, &salt).unwrap();
                    model.live.push((id, salt));
                }
                Action::Clear => model.cache.clear(),
                _ if count == 0 => {}
                Action::Compute(i, n, drafts) => model.compute(i % count, n, &drafts),
                Action::Draw(i, token, known) => model.draw(i % count, token, known),
                Action::Learn(i) => model.learn(i % count),
                Action::Fork(i) => model.fork(i % count),
                Action::Swap(i) => model.swap(i % count),
                Action::Release(i) => {
                    let (id, _) = model.live.swap_remove(i % count);
                    model.drawn.remove(&id);
                    model.cache.release(id).unwrap();
                    assert!(model.cache.release(id).is_err());
                }
            }
            model.check();
        }
        for (id, _) in std::mem::take(&mut model.live) {
            model.cache.release(id).unwrap();
        }
        let stats = model.cache.stats();
        prop_assert_eq!((stats.used, stats.on_host), (0, 0));
    }
}

/// A prompt whose pages are all computed.
fn run(cache: &mut PageCache, tokens: &[u32], salt: &[u8]) -> SequenceId {
    let id = cache.begin(tokens, salt).unwrap();
    let count = tokens.len() - cache.get(id).unwrap().computed;
    assert!(cache.reserve(id, count).unwrap());
    cache.advance(id, count).unwrap();
    id
}

#[test]
fn full_pages_are_found_but_for_the_last_token() {
    let mut cache = cache(16, 0);
    let prompt: Vec<u32> = (0..12).collect();
    let first = run(&mut cache, &prompt, b"");
    for (tokens, found) in
        [(&prompt[..], 8), (&prompt[..9], 8), (&prompt[..8], 4), (&prompt[..4], 0), (&prompt[..1], 0)]
    {
        let id = cache.begin(tokens, b"").unwrap();
        assert_eq!(cache.get(id).unwrap().computed, found, "{} tokens", tokens.len());
        cache.release(id).unwrap();
    }
    let longer: Vec<u32> = (0..20).collect();
    let id = cache.begin(&longer, b"").unwrap();
    assert_eq!(cache.get(id).unwrap().found, 12);
    let other = cache.begin(&longer, b"another tenant").unwrap();
    assert_eq!(cache.get(other).unwrap().computed, 0);
    cache.release(first).unwrap();
    assert_eq!(cache.stats().used, 3);
}

#[test]
fn pages_at_the_end_of_a_sequence_are_overwritten_first() {
    let mut cache = cache(4, 0);
    let prompt: Vec<u32> = (0..12).collect();
    let id = run(&mut cache, &prompt, b"");
    cache.release(id).unwrap();
    assert_eq!((cache.stats().kept, cache.available()), (3, 4));
    // One page has no content, so two of these overwrite the last page only.
    let id = run(&mut cache, &[50, 51, 52, 53, 54, 55, 56, 57], b"");
    assert_eq!(cache.stats().overwritten, 1);
    cache.release(id).unwrap();
    let id = cache.begin(&prompt, b"").unwrap();
    assert_eq!(cache.get(id).unwrap().computed, 8);
}

#[test]
fn pages_are_given_in_whole_or_not_at_all() {
    let mut cache = cache(3, 0);
    let id = cache.begin(&[1; 13], b"").unwrap();
    assert!(!cache.reserve(id, 13).unwrap());
    assert_eq!(cache.available(), 3);
    assert!(cache.reserve(id, 12).unwrap());
    assert!(cache.reserve(id, 12).unwrap());
    assert_eq!(cache.available(), 0);
}

#[test]
fn a_page_with_a_pending_token_is_found_once_the_token_is_known() {
    let mut cache = cache(8, 0);
    let id = run(&mut cache, &[1, 2, 3], b"");
    cache.push_pending(id, 0).unwrap();
    assert!(cache.push(id, 4).is_err());
    assert!(cache.reserve(id, 1).unwrap());
    cache.advance(id, 1).unwrap();
    let before = cache.begin(&[1, 2, 3, 4, 5], b"").unwrap();
    assert_eq!(cache.get(before).unwrap().computed, 0);
    cache.resolve(id, 4).unwrap();
    let after = cache.begin(&[1, 2, 3, 4, 5], b"").unwrap();
    assert_eq!(cache.get(after).unwrap().computed, 4);
}

#[test]
fn nothing_is_found_of_what_was_there_before_a_clear() {
    let mut cache = cache(8, 4);
    let id = run(&mut cache, &[1; 12], b"");
    cache.clear();
    let other = cache.begin(&[1; 12], b"").unwrap();
    assert_eq!(cache.get(other).unwrap().computed, 0);
    assert_eq!(cache.swap_out(id).unwrap().map(|moves| moves.len()), Some(3));
    assert_eq!(cache.swap_in(id).unwrap().map(|moves| moves.len()), Some(3));
}

#[test]
fn a_sequence_comes_back_by_sharing_what_is_still_there() {
    let mut cache = cache(8, 4);
    let id = run(&mut cache, &[1, 2, 3, 4, 5, 6, 7, 8, 9], b"");
    assert_eq!(cache.swap_out(id).unwrap().unwrap().len(), 3);
    assert!(cache.advance(id, 0).is_err());
    assert_eq!(cache.stats().on_host, 3);
    // Only the page that is not full has to be copied.
    assert_eq!(cache.swap_in(id).unwrap().unwrap().len(), 1);
    assert_eq!(cache.stats().on_host, 0);
    assert_eq!(cache.get(id).unwrap().computed, 9);
    assert!(cache.swap_in(id).is_err());
}

#[test]
fn a_full_host_or_device_changes_nothing() {
    let mut cache = cache(4, 2);
    let id = run(&mut cache, &[1; 12], b"");
    assert_eq!(cache.swap_out(id).unwrap(), None);
    assert_eq!(cache.stats().used, 3);
    let small = run(&mut cache, &[2; 2], b"");
    assert_eq!(cache.swap_out(small).unwrap().unwrap().len(), 1);
    let filler = cache.begin(&[3; 4], b"").unwrap();
    assert!(cache.reserve(filler, 4).unwrap());
    assert_eq!(cache.swap_in(small).unwrap(), None);
    assert_eq!(cache.stats().on_host, 1);
    cache.release(filler).unwrap();
    assert_eq!(cache.swap_in(small).unwrap().unwrap().len(), 1);
}

#[test]
fn rows_that_cannot_be_computed_are_refused_and_nothing_is_written() {
    let mut cache = cache(8, 8);
    let id = cache.begin(&[1; 6], b"").unwrap();
    assert!(cache.reserve(id, 6).unwrap());
    let away = run(&mut cache, &[2; 3], b"");
    cache.swap_out(away).unwrap();
    let attempt = |cache: &PageCache, sequence, count, drafts: &[u32], tokens: usize, width: usize| {
        let (mut ids, mut sources, mut positions) = (vec![5; tokens], vec![5; tokens], vec![5; tokens]);
        let (mut slots, mut starts, mut lengths) = (vec![5; tokens], vec![5; 2], vec![5; 1]);
        let mut table = vec![5; width];
        let mut arrays = StepArrays {
            ids: &mut ids,
            sources: &mut sources,
            positions: &mut positions,
            slots: &mut slots,
            starts: &mut starts,
            lengths: &mut lengths,
            table: &mut table,
            table_width: width,
        };
        let error = cache.step(&[StepRow { sequence, count, drafts }], &mut arrays).unwrap_err().to_string();
        assert!(ids.iter().chain(&starts).chain(&table).all(|&x| x == 5));
        error
    };
    assert!(attempt(&cache, id, 0, &[], 8, 8).contains("no token of it"));
    assert!(attempt(&cache, id, 7, &[], 8, 8).contains("it has 6 tokens, 0 of them computed"));
    assert!(attempt(&cache, id, 5, &[1], 8, 8).contains("drafts follow its last token"));
    assert!(attempt(&cache, id, 6, &[1, 1, 1], 16, 8).contains("it has 2 pages and needs 3"));
    assert!(attempt(&cache, id, 6, &[], 8, 1).contains("the table has 1"));
    assert!(attempt(&cache, id, 6, &[], 5, 8).contains("does not fit arrays of 5"));
    assert!(attempt(&cache, away, 1, &[], 8, 8).contains("on the host"));
    assert!(attempt(&cache, SequenceId(99), 1, &[], 8, 8).contains("there is no sequence 99"));
}

#[test]
fn impossible_sizes_are_refused() {
    for (pages, page_tokens) in [(0, 4), (4, 0), (u32::MAX, 4)] {
        let limits = PageLimits { pages, page_tokens, host_pages: 0, prefix: true, seed: 0 };
        assert!(PageCache::new(limits).is_err());
    }
    assert!(cache(4, 0).begin(&[], b"").is_err());
}
