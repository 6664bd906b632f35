//! `PageCache`: pages of a KV cache, for engines written in Python.

use parking_lot::Mutex;
use pygpukit_core::error::Error;
use pygpukit_core::pages::{PageCache, PageLimits, SequenceId, StepArrays, StepRow};
use pyo3::buffer::{Element, PyBuffer};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyModule};

use crate::errors::ToPy;

/// Pages of a KV cache: which sequence has which, what they contain, and the arrays a step of an engine needs.
///
/// Full pages are found by their content, so sequences with a common beginning (and the same salt) share it. The cache
/// moves no memory: `fork`, `swap_out` and `swap_in` return lists of pages to copy. All work on the device is taken to be
/// queued on one stream in the order of these calls.
///
/// Parameters
/// ----------
/// pages : int
///     Pages on the device.
/// page_tokens : int
///     Tokens of a page.
/// host_pages : int
///     Pages on the host, for sequences that give up theirs.
/// prefix : bool
///     Are full pages found by their content?
/// seed : int
///     Key of the index of contents.
///
/// Examples
/// --------
/// >>> from pygpukit import _pygpukit_rust as native
/// >>> cache = native.PageCache(64, 16)
/// >>> sequence = cache.begin(list(range(40)))
/// >>> cache.reserve(sequence, 40), cache.available
/// (True, 61)
#[pyclass(frozen, module = "pygpukit", name = "PageCache")]
struct PyPageCache {
    cache: Mutex<PageCache>,
    limits: PageLimits,
}

/// The memory of a contiguous, writable array.
fn memory<T: Element>(name: &str, array: &PyBuffer<T>) -> PyResult<(*mut T, usize)> {
    if array.readonly() || !array.is_c_contiguous() {
        return Err(Error::Value(format!("'{name}' of a step must be a contiguous array that can be written"))).py();
    }
    Ok((array.buf_ptr().cast(), array.item_count()))
}

/// A row as Python gives it.
#[derive(FromPyObject)]
enum Row {
    Drafts(u64, usize, Vec<u32>),
    Tokens(u64, usize),
}

/// Pages as Python gets them: from, to.
type Move = (u32, u32);

#[pymethods]
impl PyPageCache {
    #[new]
    #[pyo3(signature = (pages, page_tokens=16, host_pages=0, *, prefix=true, seed=0))]
    fn new(pages: u32, page_tokens: u32, host_pages: u32, prefix: bool, seed: u64) -> PyResult<PyPageCache> {
        let limits = PageLimits { pages, page_tokens, host_pages, prefix, seed };
        Ok(PyPageCache { cache: Mutex::new(PageCache::new(limits).py()?), limits })
    }

    /// Pages on the device.
    #[getter]
    fn pages(&self) -> u32 {
        self.limits.pages
    }

    /// Tokens of a page.
    #[getter]
    fn page_tokens(&self) -> u32 {
        self.limits.page_tokens
    }

    /// Pages a sequence can take now.
    #[getter]
    fn available(&self) -> u32 {
        self.cache.lock().available()
    }

    /// Begin a sequence with a prompt and return its number; pages with the same beginning are shared.
    #[pyo3(signature = (tokens, salt=""))]
    fn begin(&self, tokens: Vec<u32>, salt: &str) -> PyResult<u64> {
        self.cache.lock().begin(&tokens, salt.as_bytes()).py().map(|id| id.0)
    }

    /// Give a sequence pages for this many tokens more than are computed; False, and nothing, if there are not enough.
    fn reserve(&self, sequence: u64, count: usize) -> PyResult<bool> {
        self.cache.lock().reserve(SequenceId(sequence), count).py()
    }

    /// Note that this many tokens more are computed, or queued to be.
    fn advance(&self, sequence: u64, count: usize) -> PyResult<()> {
        self.cache.lock().advance(SequenceId(sequence), count).py()
    }

    /// Add a token.
    fn push(&self, sequence: u64, token: u32) -> PyResult<()> {
        self.cache.lock().push(SequenceId(sequence), token).py()
    }

    /// Add a token that row `row` of a step draws, and that `resolve` tells later.
    fn push_pending(&self, sequence: u64, row: u32) -> PyResult<()> {
        self.cache.lock().push_pending(SequenceId(sequence), row).py()
    }

    /// Tell the oldest pending token.
    fn resolve(&self, sequence: u64, token: u32) -> PyResult<()> {
        self.cache.lock().resolve(SequenceId(sequence), token).py()
    }

    /// Begin a second sequence with the same tokens: its number, and a pair of pages (from, to) where one has to be
    /// copied; None if there is no page for it.
    fn fork(&self, sequence: u64) -> PyResult<Option<(u64, Option<Move>)>> {
        let made = self.cache.lock().fork(SequenceId(sequence)).py()?;
        Ok(made.map(|fork| (fork.sequence.0, fork.copy)))
    }

    /// Give up a sequence's pages: (page, page on the host) for each to copy; None, and nothing, if the host has no room.
    fn swap_out(&self, sequence: u64) -> PyResult<Option<Vec<Move>>> {
        self.cache.lock().swap_out(SequenceId(sequence)).py()
    }

    /// Bring a sequence back: (page on the host, page) for each to copy; None, and nothing, if there is no room.
    fn swap_in(&self, sequence: u64) -> PyResult<Option<Vec<Move>>> {
        self.cache.lock().swap_in(SequenceId(sequence)).py()
    }

    /// End a sequence.
    fn release(&self, sequence: u64) -> PyResult<()> {
        self.cache.lock().release(SequenceId(sequence)).py()
    }

    /// Find nothing of what is there now again.
    fn clear(&self) {
        self.cache.lock().clear();
    }

    /// Figures of a sequence: tokens, pending, computed, found, pages, on_host.
    fn sequence<'py>(&self, py: Python<'py>, sequence: u64) -> PyResult<Bound<'py, PyDict>> {
        let cache = self.cache.lock();
        let state = cache.state(SequenceId(sequence)).py()?;
        let made = PyDict::new(py);
        made.set_item("tokens", state.tokens)?;
        made.set_item("pending", state.pending)?;
        made.set_item("computed", state.computed)?;
        made.set_item("found", state.found)?;
        made.set_item("pages", state.pages)?;
        made.set_item("on_host", state.on_host)?;
        Ok(made)
    }

    /// Figures of the cache: used, kept and available pages, pages on the host, tokens asked for and found, overwritten.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (stats, available) = {
            let cache = self.cache.lock();
            (cache.stats(), cache.available())
        };
        let made = PyDict::new(py);
        made.set_item("used", stats.used)?;
        made.set_item("kept", stats.kept)?;
        made.set_item("available", available)?;
        made.set_item("on_host", stats.on_host)?;
        made.set_item("asked", stats.asked)?;
        made.set_item("found", stats.found)?;
        made.set_item("overwritten", stats.overwritten)?;
        Ok(made)
    }

    /// Write the arrays of a step and return how many tokens and sequences it has; what is left of them is padding.
    ///
    /// Parameters
    /// ----------
    /// rows : list of (sequence, count) or (sequence, count, drafts)
    ///     How many tokens of each sequence to compute, and guesses about those after its last.
    /// ids, sources, positions : int32 arrays
    ///     Per token: its id; the row of an earlier step that drew it, or -1; its place in the sequence.
    /// slots : int64 array
    ///     Per token: where its keys and values go, -1 for nowhere.
    /// starts, lengths : int32 arrays
    ///     Per sequence: its first token, with one element more; the tokens it has in the cache after the step.
    /// table : int32 array
    ///     Per sequence its pages; its size is a multiple of that of `lengths`.
    #[allow(clippy::too_many_arguments, reason = "the arrays of a step")]
    fn step(
        &self,
        rows: Vec<Row>,
        ids: PyBuffer<i32>,
        sources: PyBuffer<i32>,
        positions: PyBuffer<i32>,
        slots: PyBuffer<i64>,
        starts: PyBuffer<i32>,
        lengths: PyBuffer<i32>,
        table: PyBuffer<i32>,
    ) -> PyResult<(usize, usize)> {
        let words = [
            memory("ids", &ids)?,
            memory("sources", &sources)?,
            memory("positions", &positions)?,
            memory("starts", &starts)?,
            memory("lengths", &lengths)?,
            memory("table", &table)?,
        ];
        let (wide, wide_count) = memory("slots", &slots)?;
        let mut ranges: Vec<(usize, usize)> = words.iter().map(|&(p, n)| (p as usize, p as usize + 4 * n)).collect();
        ranges.push((wide as usize, wide as usize + 8 * wide_count));
        ranges.retain(|(begin, end)| begin < end);
        ranges.sort_unstable();
        if ranges.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            return Err(Error::Value("the arrays of a step must not share memory".to_string())).py();
        }
        // SAFETY: the buffers are held, contiguous and writable, and none overlaps another; the interpreter's lock is held.
        let [ids, sources, positions, starts, lengths, table] = words.map(|(p, n)| unsafe { slice(p, n) });
        // SAFETY: as above.
        let slots = unsafe { slice(wide, wide_count) };
        let table_width = table.len() / lengths.len().max(1);
        let steps: Vec<StepRow<'_>> = rows
            .iter()
            .map(|row| match row {
                Row::Drafts(id, count, drafts) => StepRow { sequence: SequenceId(*id), count: *count, drafts },
                Row::Tokens(id, count) => StepRow { sequence: SequenceId(*id), count: *count, drafts: &[] },
            })
            .collect();
        let mut arrays = StepArrays { ids, sources, positions, slots, starts, lengths, table, table_width };
        let size = self.cache.lock().step(&steps, &mut arrays).py()?;
        Ok((size.tokens, size.sequences))
    }
}

/// # Safety
/// As `std::slice::from_raw_parts_mut`, but that the pointer of an empty slice may be anything.
unsafe fn slice<'a, T>(pointer: *mut T, count: usize) -> &'a mut [T] {
    if count == 0 {
        return &mut [];
    }
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts_mut(pointer, count) }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyPageCache>()
}
