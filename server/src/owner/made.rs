//! Which calls succeeded before, as far as is remembered. A retry of one needs no commit, so it need not wait for that of
//! others. A guess that only decides what is made first: the component answers by the receipts that it finds.

use host_example::{Invocation, Principal};
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::mem;

/// How many are remembered at least, 8 bytes each.
const MOST: usize = 50_000;

#[derive(Default)]
pub struct Made {
    hasher: RandomState,
    recent: HashSet<u64>,
    older: HashSet<u64>,
}

impl Made {
    /// What a call is remembered by: whoever retries sends the same again.
    pub fn hash(&self, caller: &Principal, invocation: &Invocation) -> u64 {
        self.hasher.hash_one((&caller.workspace, &caller.subject, &invocation.tool, &invocation.arguments))
    }

    pub fn knows(&self, hash: u64) -> bool {
        self.recent.contains(&hash) || self.older.contains(&hash)
    }

    pub fn remember(&mut self, hash: u64) {
        if self.recent.len() == MOST {
            self.older = mem::take(&mut self.recent);
        }
        self.recent.insert(hash);
    }
}
