//! `Uses`: the last use of some memory, per stream.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::Result;
use crate::stream::Stream;

/// The highest number at which each stream uses some memory. At most one entry per stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses(SmallVec<[(Arc<Stream>, u64); 1]>);

impl Uses {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn note(&mut self, stream: &Arc<Stream>, seq: u64) {
        match self.0.iter_mut().find(|(known, _)| known.id() == stream.id()) {
            Some((_, last)) => *last = (*last).max(seq),
            None => self.0.push((stream.clone(), seq)),
        }
    }

    pub fn merge(&mut self, other: &Uses) {
        for (stream, seq) in &other.0 {
            self.note(stream, *seq);
        }
    }

    /// Forget uses already known to be over, without asking the driver.
    pub fn drop_completed(&mut self) {
        self.0.retain(|(stream, seq)| stream.completed() < *seq);
    }

    /// Has every stream passed its use? Never blocks.
    pub fn passed(&self) -> Result<bool> {
        for (stream, seq) in &self.0 {
            if !stream.passed(*seq)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub fn pop(&mut self) -> Option<(Arc<Stream>, u64)> {
        self.0.pop()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Arc<Stream>, u64)> {
        self.0.iter().map(|(stream, seq)| (stream, *seq))
    }
}
