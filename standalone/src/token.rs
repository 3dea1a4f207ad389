//! The lock is a folder with one file in it, the token, of which only the name matters: to rename it is to win it, since
//! of all who rename the same name one alone succeeds. No name ever recurs.

use std::fmt;
use wasip2::random::random::get_random_u64;

/// `free.RENAMES.TAKEOVERS.NONCE` or `held.RENAMES.TAKEOVERS.UNCLEAN.NONCE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// None while it is free. While it is held, after how many takeovers in a row.
    pub unclean: Option<u32>,
    /// How often it was renamed.
    pub renames: u64,
    /// How often it was taken from somebody. The database's files are new each time.
    pub takeovers: u64,
    nonce: u64,
}

impl Token {
    pub fn new() -> Token {
        Token { unclean: None, renames: 0, takeovers: 0, nonce: get_random_u64() }
    }

    /// One in the place of one that is gone: whoever held that may be alive, so it is to be taken over, with a fence.
    pub fn abandoned() -> Token {
        Token::new().taken()
    }

    /// Under another name, in the same hands.
    pub fn renamed(self) -> Token {
        Token { renames: self.renames.saturating_add(1), nonce: get_random_u64(), ..self }
    }

    /// As it is while one holds it who found it free.
    pub fn taken(self) -> Token {
        Token { unclean: Some(0), ..self.renamed() }
    }

    /// As it is while one holds it who took it from somebody.
    pub fn taken_over(self) -> Token {
        let unclean = self.unclean.map_or(0, |unclean| unclean.saturating_add(1));
        Token { unclean: Some(unclean), takeovers: self.takeovers.saturating_add(1), ..self.renamed() }
    }

    pub fn released(self) -> Token {
        Token { unclean: None, ..self.renamed() }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Token { unclean, renames, takeovers, nonce } = self;
        match unclean {
            None => write!(f, "free.{renames}.{takeovers}.{nonce:016x}"),
            Some(unclean) => write!(f, "held.{renames}.{takeovers}.{unclean}.{nonce:016x}"),
        }
    }
}

impl Token {
    /// The token that this name is. Any other file in the folder is none.
    pub fn parse(name: &str) -> Option<Token> {
        let (unclean, [renames, takeovers, nonce]) = match *name.split('.').collect::<Vec<_>>() {
            ["free", renames, takeovers, nonce] => (None, [renames, takeovers, nonce]),
            ["held", renames, takeovers, unclean, nonce] => (Some(unclean.parse().ok()?), [renames, takeovers, nonce]),
            _ => return None,
        };
        let (renames, takeovers) = (renames.parse().ok()?, takeovers.parse().ok()?);
        let token = Token { unclean, renames, takeovers, nonce: u64::from_str_radix(nonce, 16).ok()? };
        // It is renamed by the name that it writes.
        (token.to_string() == name).then_some(token)
    }
}
