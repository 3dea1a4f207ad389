//! Which calls succeeded before, as far as is remembered. A retry of one needs no commit, so it need not wait for that of
//! others. A guess that only decides what is made first: the component answers by the receipts that it finds.

use super::Call;
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
    pub fn remember(&mut self, call: &Call) {
        if self.recent.len() == MOST {
            self.older = mem::take(&mut self.recent);
        }
        self.recent.insert(self.hash(call));
    }

    pub fn knows(&self, call: &Call) -> bool {
        let hash = self.hash(call);
        self.recent.contains(&hash) || self.older.contains(&hash)
    }

    /// Whoever retries sends the same again.
    fn hash(&self, Call { caller, invocation, .. }: &Call) -> u64 {
        self.hasher.hash_one((&caller.workspace, &caller.subject, &invocation.tool, &invocation.arguments))
    }
}
