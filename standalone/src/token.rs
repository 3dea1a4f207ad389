//! The lock is a folder with one file in it, the token, of which only the name matters: to rename it is to win it, since
//! of all who rename the same name one alone succeeds. No name ever recurs.

use std::fmt;
use std::str::FromStr;
use wasip2::random::random::get_random_u64;

/// `free.RENAMES.TAKEOVERS.NONCE` or `held.RENAMES.TAKEOVERS.UNCLEAN.NONCE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    pub holder: Holder,
    /// How often it was renamed.
    pub renames: u64,
    /// How often it was taken from somebody. The database's files are new each time.
    pub takeovers: u64,
    nonce: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    Nobody,
    /// Somebody, who took it after so many takeovers in a row.
    Somebody {
        unclean: u32,
    },
}

impl Token {
    pub fn new() -> Token {
        Token { holder: Holder::Nobody, renames: 0, takeovers: 0, nonce: get_random_u64() }
    }

    /// One in the place of one that is gone: whoever held that may be alive, so it is to be taken over, with a fence.
    pub fn abandoned() -> Token {
        Token::new().taken()
    }

    fn renamed(self) -> Token {
        Token { renames: self.renames + 1, nonce: get_random_u64(), ..self }
    }

    /// As it is while one holds it who found it free.
    pub fn taken(self) -> Token {
        Token { holder: Holder::Somebody { unclean: 0 }, ..self.renamed() }
    }

    /// As it is while one holds it who took it from somebody.
    pub fn taken_over(self) -> Token {
        let unclean = match self.holder {
            Holder::Nobody => 0,
            Holder::Somebody { unclean } => unclean.saturating_add(1),
        };
        Token { holder: Holder::Somebody { unclean }, takeovers: self.takeovers + 1, ..self.renamed() }
    }

    /// As it is in the same hands, which are alive.
    pub fn renewed(self) -> Token {
        self.renamed()
    }

    pub fn released(self) -> Token {
        Token { holder: Holder::Nobody, ..self.renamed() }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Token { holder, renames, takeovers, nonce } = self;
        match holder {
            Holder::Nobody => write!(f, "free.{renames}.{takeovers}.{nonce:016x}"),
            Holder::Somebody { unclean } => write!(f, "held.{renames}.{takeovers}.{unclean}.{nonce:016x}"),
        }
    }
}

/// Any other file in the folder is none.
pub struct NoToken;

impl FromStr for Token {
    type Err = NoToken;

    fn from_str(name: &str) -> Result<Token, NoToken> {
        let number = |text: &str| text.parse().map_err(|_| NoToken);
        let (holder, [renames, takeovers, nonce]) = match *name.split('.').collect::<Vec<_>>() {
            ["free", renames, takeovers, nonce] => (Holder::Nobody, [renames, takeovers, nonce]),
            ["held", renames, takeovers, unclean, nonce] => {
                let unclean = unclean.parse().map_err(|_| NoToken)?;
                (Holder::Somebody { unclean }, [renames, takeovers, nonce])
            }
            _ => return Err(NoToken),
        };
        let nonce = u64::from_str_radix(nonce, 16).map_err(|_| NoToken)?;
        Ok(Token { holder, renames: number(renames)?, takeovers: number(takeovers)?, nonce })
    }
}
