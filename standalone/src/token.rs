//! The lock is a folder with one file in it, the token, of which only the name matters: to rename it is to win it, since
//! of all who rename the same name one alone succeeds. No name ever recurs.

use std::fmt;
use wasip2::random::random::get_random_u64;

/// `free.RENAMES.TAKEOVERS.PATIENCE.NONCE` or `held.RENAMES.TAKEOVERS.PATIENCE.NONCE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    pub is_held: bool,
    /// How often it was renamed.
    pub renames: u64,
    /// Which files the database has: one more each time that they are made anew. The upper half is random, so that none recurs
    /// after the token was made anew.
    pub takeovers: u64,
    /// How often the time of a lease is doubled: as slow as the disk has been, and once more for each takeover in a row.
    pub patience: u32,
    nonce: u64,
}

impl Token {
    /// One that nobody has held, which does not say that nobody has held the one before it.
    pub fn new() -> Token {
        let takeovers = get_random_u64() >> 32 << 32;
        Token { is_held: false, renames: 0, takeovers, patience: 0, nonce: get_random_u64() }
    }

    pub fn is_new(self) -> bool {
        self.renames == 0
    }

    /// Under another name, in the same hands.
    pub fn renamed(self) -> Token {
        Token { renames: self.renames.saturating_add(1), nonce: get_random_u64(), ..self }
    }

    /// As it is while one holds it who found it free.
    pub fn taken(self) -> Token {
        Token { is_held: true, ..self.renamed() }
    }

    /// As it is while one holds it who took it from somebody.
    pub fn taken_over(self) -> Token {
        let (takeovers, patience) = (self.takeovers.saturating_add(1), self.patience.saturating_add(1));
        Token { is_held: true, takeovers, patience, ..self.renamed() }
    }

    pub fn released(self, patience: u32) -> Token {
        Token { is_held: false, patience, ..self.renamed() }
    }

    /// The token that this name is. Any other file in the folder is none.
    pub fn parse(name: &str) -> Option<Token> {
        let [state, renames, takeovers, patience, nonce] = *name.split('.').collect::<Vec<_>>() else { return None };
        let token = Token {
            is_held: state == "held",
            renames: renames.parse().ok()?,
            takeovers: takeovers.parse().ok()?,
            patience: patience.parse().ok()?,
            nonce: u64::from_str_radix(nonce, 16).ok()?,
        };
        // It is renamed by the name that it writes.
        (token.to_string() == name).then_some(token)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Token { is_held, renames, takeovers, patience, nonce } = self;
        let state = if *is_held { "held" } else { "free" };
        write!(f, "{state}.{renames}.{takeovers}.{patience}.{nonce:016x}")
    }
}
