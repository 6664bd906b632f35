//! `Protection`: what eviction for one pool leaves to the others: their reserves, and memory that a guarantee would hold
//! anyway, so that taking it is no gain.

use std::sync::Arc;

use super::pool::Pool;
use super::segment::{Segment, SegmentState};
use super::stock::Stock;

pub(super) struct Protection<'a> {
    pools: &'a [Arc<Pool>],
    requester: Option<&'a Arc<Pool>>,
    /// What may still be taken from a pool and those below it, by the pool's id.
    floors: Vec<(u32, usize)>,
    /// The same for pools that share a guarantee.
    stocks: Vec<(*const Stock, usize)>,
}

impl<'a> Protection<'a> {
    /// From the pool that asks, or from anybody where it has no such id.
    pub fn new(pools: &'a [Arc<Pool>], requester: u32) -> Protection<'a> {
        let requester = pools.iter().find(|pool| pool.id() == requester);
        Protection { pools, requester, floors: Vec::new(), stocks: Vec::new() }
    }

    /// May this segment go? Then it counts as gone.
    pub fn give(&mut self, owner: &Pool, segment: &Segment) -> bool {
        let bytes = segment.bytes();
        let home = self.requester.and_then(|pool| pool.stock());
        let stock = segment.stock().filter(|stock| home.is_none_or(|home| !Arc::ptr_eq(home, stock)));
        let stock = stock.map(|stock| self.stock(stock));
        let floors = self.floors(owner);
        let fits = |(_, room): &(_, usize)| bytes <= *room;
        if !floors.iter().all(|index| fits(&self.floors[*index])) || stock.is_some_and(|i| self.stocks[i].1 < bytes) {
            return false;
        }
        floors.into_iter().for_each(|index| self.floors[index].1 -= bytes);
        if let Some(index) = stock {
            self.stocks[index].1 -= bytes;
        }
        true
    }

    /// Bytes of a pool that may go before a reserve is reached.
    pub fn above_reserves(&mut self, owner: &Pool) -> usize {
        self.floors(owner).into_iter().map(|index| self.floors[index].1).min().unwrap_or(usize::MAX)
    }

    /// The reserves that protect a pool: its own and those of the pools around that the requester is not inside of.
    fn floors(&mut self, owner: &Pool) -> Vec<usize> {
        let mut found = Vec::new();
        let mut around = Some(owner);
        while let Some(pool) = around {
            around = pool.parent().map(|parent| &**parent);
            if pool.floor() == 0 || self.requester.is_some_and(|requester| requester.is_within(pool)) {
                continue;
            }
            let known = self.floors.iter().position(|(id, _)| *id == pool.id());
            found.push(known.unwrap_or_else(|| {
                let below = self.pools.iter().filter(|other| other.is_within(pool));
                let here: usize = below.map(|other| other.staying()).sum();
                self.floors.push((pool.id(), here.saturating_sub(pool.floor())));
                self.floors.len() - 1
            }));
        }
        found
    }

    fn stock(&mut self, stock: &Arc<Stock>) -> usize {
        let key = Arc::as_ptr(stock);
        self.stocks.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            let same = |segment: &Arc<Segment>| segment.stock().is_some_and(|other| Arc::ptr_eq(other, stock));
            let leaving = |segment: &Arc<Segment>| segment.state() == SegmentState::Leaving && same(segment);
            let segments = self.pools.iter().flat_map(|pool| pool.segments()).filter(leaving);
            let going: usize = segments.map(|segment| segment.bytes()).sum();
            self.stocks.push((key, stock.above_guarantee().saturating_sub(going)));
            self.stocks.len() - 1
        })
    }
}
