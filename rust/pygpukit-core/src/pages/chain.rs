//! The name of a page's content: a hash of everything that its keys and values depend on.

use std::hash::{DefaultHasher, Hasher};

/// A hash over the salt and all tokens up to the end of a page. Keyed, so that nobody can choose tokens that collide.
pub type Chain = u128;

/// Makes chains with keys of its own.
#[derive(Clone)]
pub(super) struct Chains {
    keys: [u64; 2],
}

impl Chains {
    pub(super) fn new(seed: u64) -> Chains {
        Chains { keys: [seed, seed.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15] }
    }

    /// The chain before the first page. Sequences with other salts share nothing.
    pub(super) fn root(&self, salt: &[u8]) -> Chain {
        self.hash(|hasher| {
            hasher.write_u64(salt.len() as u64);
            hasher.write(salt);
        })
    }

    pub(super) fn next(&self, parent: Chain, tokens: &[u32]) -> Chain {
        self.hash(|hasher| {
            hasher.write_u128(parent);
            for &token in tokens {
                hasher.write_u32(token);
            }
        })
    }

    fn hash(&self, content: impl Fn(&mut DefaultHasher)) -> Chain {
        let half = |key: u64| {
            let mut hasher = DefaultHasher::new();
            hasher.write_u64(key);
            content(&mut hasher);
            Chain::from(hasher.finish())
        };
        half(self.keys[0]) << 64 | half(self.keys[1])
    }
}
