//! `Stock`: physical memory that a pool holds for itself, whether its arrays use it or not.
//!
//! What lies in stock and what the pool's segments have together is never less than the guarantee. Above it, what comes
//! back goes on to the pool around or to the device. A piece cannot be split: where only larger ones are left, one is
//! given to the device and smaller ones are made of it before anybody else in this process can ask.

use std::sync::Arc;

use parking_lot::Mutex;

use super::arena::Arena;
use super::pieces::{PIECE_MAX, Spare, sizes};
use super::pool::Pool;
use super::segment::Pieces;
use crate::error::{Error, Result};

#[derive(Debug, Default)]
struct State {
    guarantee: usize,
    spare: Spare,
    /// Bytes that segments have from here or through here.
    drawn: usize,
}

impl State {
    /// Pieces above the guarantee, largest first.
    fn shed(&mut self, out: &mut Pieces) {
        loop {
            let above = (self.spare.bytes + self.drawn).saturating_sub(self.guarantee);
            match self.spare.take_up_to(above) {
                Some(piece) => out.push(piece),
                None => return,
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Stock {
    /// That of a pool around.
    above: Option<Arc<Stock>>,
    state: Mutex<State>,
}

impl Stock {
    /// Bytes held and not in use.
    pub fn unused(&self) -> usize {
        self.state.lock().spare.bytes
    }

    /// Bytes in use above the guarantee: what others can gain from it.
    pub fn above_guarantee(&self) -> usize {
        let state = self.state.lock();
        state.drawn.saturating_sub(state.guarantee)
    }
}

impl Arena {
    /// Hold memory for a pool from now on. Fails with the device's out-of-memory error when it has no more.
    pub(super) fn stock(&self, guarantee: usize, above: Option<Arc<Stock>>) -> Result<Arc<Stock>> {
        // The last part in small pieces, for slabs and for the ends of large arrays.
        let small = guarantee.min(PIECE_MAX);
        let halves = sizes(small, self.granule()).flat_map(|size| split(size, self.granule()));
        let mut pieces = Pieces::new();
        for size in sizes(guarantee - small, self.granule()).chain(halves) {
            let drawn = self.draw(above.as_ref(), size, &mut pieces);
            drawn.inspect_err(|_| self.put_back(above.as_ref(), std::mem::take(&mut pieces)))?;
        }
        let mut state = State { guarantee, ..State::default() };
        pieces.into_iter().for_each(|(handle, bytes)| state.spare.put(handle, bytes));
        Ok(Arc::new(Stock { above, state: Mutex::new(state) }))
    }

    /// Hold no more than what is in use, and that only until it comes back.
    pub(super) fn dissolve(&self, stock: &Arc<Stock>) {
        let mut out = Pieces::new();
        {
            let mut state = stock.state.lock();
            state.guarantee = 0;
            while let Some(piece) = state.spare.take_up_to(usize::MAX) {
                out.push(piece);
            }
        }
        self.put_back(stock.above.as_ref(), out);
    }

    /// Pieces of together this many bytes: from stock, or from further above and at last from the device. After an error
    /// the caller puts back what it has got.
    pub(super) fn draw(&self, stock: Option<&Arc<Stock>>, bytes: usize, into: &mut Pieces) -> Result<()> {
        match self.draw_from_one(stock, bytes, into) {
            // No stock has all of it, nor has the device, but together they may.
            Err(error) if error.is_out_of_memory() && stock.is_some() && bytes > self.granule() => {
                self.draw(stock, bytes / 2, into)?;
                self.draw(stock, bytes - bytes / 2, into)
            }
            drawn => drawn,
        }
    }

    /// The same, all of it from one of them.
    fn draw_from_one(&self, stock: Option<&Arc<Stock>>, bytes: usize, into: &mut Pieces) -> Result<()> {
        let Some(stock) = stock else {
            let spare = self.spare.lock().take(bytes);
            into.push((spare.map_or_else(|| self.create(bytes), Ok)?, bytes));
            return Ok(());
        };
        {
            let mut state = stock.state.lock();
            if let Some(handle) = state.spare.take(bytes) {
                state.drawn += bytes;
                into.push((handle, bytes));
                return Ok(());
            }
        }
        let mut shed = Pieces::new();
        match self.draw_from_one(stock.above.as_ref(), bytes, into) {
            Err(error) if error.is_out_of_memory() => return self.compose(stock, bytes, into, error),
            drawn => drawn?,
        }
        {
            let mut state = stock.state.lock();
            state.drawn += bytes;
            state.shed(&mut shed);
        }
        self.put_back(stock.above.as_ref(), shed);
        Ok(())
    }

    /// Pieces of a size the stock does not have, from those it has. `full` says that nobody else has any.
    fn compose(&self, stock: &Stock, bytes: usize, into: &mut Pieces, full: Error) -> Result<()> {
        let _nobody_else = self.creating.lock();
        let mut state = stock.state.lock();
        if state.spare.bytes < bytes {
            return Err(full);
        }
        let first = into.len();
        let mut left = bytes;
        while left > 0 {
            match state.spare.take_up_to(left) {
                Some((handle, size)) => {
                    into.push((handle, size));
                    left -= size;
                }
                None => {
                    // Only larger ones are left.
                    if let Err(error) = self.halve_smallest(&mut state.spare) {
                        into.drain(first..).for_each(|(handle, size)| state.spare.put(handle, size));
                        return Err(error);
                    }
                }
            }
        }
        state.drawn += bytes;
        Ok(())
    }

    /// Let go of what is above the guarantee, also where that means to cut a piece.
    pub(super) fn level(&self, stock: &Arc<Stock>) {
        let mut out = Pieces::new();
        {
            let _nobody_else = self.creating.lock();
            let mut state = stock.state.lock();
            loop {
                state.shed(&mut out);
                let above = (state.spare.bytes + state.drawn).saturating_sub(state.guarantee);
                if above < self.granule() || state.spare.bytes == 0 {
                    break;
                }
                if let Err(error) = self.halve_smallest(&mut state.spare) {
                    self.record(Err(error));
                    break;
                }
            }
        }
        self.put_back(stock.above.as_ref(), out);
    }

    /// Give the smallest piece to the device for two halves. The caller is the only one in this process who makes memory;
    /// another process can come in between.
    fn halve_smallest(&self, spare: &mut Spare) -> Result<()> {
        let Some((handle, bytes)) = spare.take_smallest() else {
            return Err(Error::Value("a guarantee holds less than it should".to_string()));
        };
        self.device().release(handle, bytes)?;
        for size in [bytes / 2, bytes - bytes / 2] {
            spare.put(self.device().create(size)?, size);
        }
        Ok(())
    }

    /// Pieces come back: what the guarantees do not hold is for the next segment of anybody.
    pub(super) fn put_back(&self, stock: Option<&Arc<Stock>>, pieces: Pieces) {
        self.keep_spare(self.hold_back(stock, pieces));
    }

    /// The same, but what the guarantees do not hold is returned.
    pub(super) fn hold_back(&self, stock: Option<&Arc<Stock>>, pieces: Pieces) -> Pieces {
        let Some(stock) = stock else { return pieces };
        let mut shed = Pieces::new();
        {
            let mut state = stock.state.lock();
            for (handle, bytes) in pieces {
                state.drawn -= bytes;
                state.spare.put(handle, bytes);
            }
            state.shed(&mut shed);
        }
        if shed.is_empty() { shed } else { self.hold_back(stock.above.as_ref(), shed) }
    }
}

/// Bytes of the guarantees around a pool that no array has and no other guarantee holds: they are there, or on their way.
pub(super) fn promised(pools: &[Arc<Pool>], requester: u32) -> usize {
    let Some(asking) = pools.iter().find(|pool| pool.id() == requester) else { return 0 };
    let around = std::iter::successors(Some(asking), |pool| pool.parent()).filter(|pool| pool.guarantee() > 0);
    let unused = around.map(|pool| {
        let inside = || pools.iter().filter(|other| other.is_within(pool));
        let arrays: usize = inside().map(|other| other.held()).sum();
        let others = inside().filter(|other| !asking.is_within(other)).filter_map(|other| other.own_stock());
        let elsewhere: usize = others.map(|stock| stock.unused()).sum();
        pool.guarantee().saturating_sub(arrays + elsewhere)
    });
    unused.max().unwrap_or(0)
}

/// A piece as its halves, quarters and so on down to two of the smallest.
fn split(bytes: usize, granule: usize) -> impl Iterator<Item = usize> {
    let mut left = bytes;
    std::iter::from_fn(move || {
        let size = if left > granule { left / 2 } else { left };
        left -= size;
        (size > 0).then_some(size)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_is_in_small_pieces() {
        assert_eq!(split(64, 2).collect::<Vec<_>>(), [32, 16, 8, 4, 2, 2]);
        assert_eq!(split(2, 2).collect::<Vec<_>>(), [2]);
        assert_eq!(split(0, 2).count(), 0);
    }
}
