//! What a provider is known to do, as it is written on a command line: the provider keeps to it, the worker relies on it.
//!
//! The record `provider-contract` in `wit/outbox.wit` has the same fields.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::time::Duration;

/// The figures are in milliseconds. What nobody vouches for is left out, and the careful way is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contract {
    /// `deduplicates-for=24h`: a key that is sent again this long after it was first sent, or sooner, is treated as the
    /// same request. The figure leaves room for how long a request can be under way.
    pub deduplicates_for: Option<u64>,
    /// `looks-up`: it can be asked by client reference.
    pub looks_up: bool,
    /// `absent-is-final-after=1m`: an answer of `absent` is final this long after the last sending.
    pub absent_is_final_after: Option<u64>,
    /// `cancels`: it can be asked to stop.
    pub cancels: bool,
    /// `clock-within=1s`: how far the clock of the worker's host may be from the true time.
    pub clock_within: Option<u64>,
}

/// Why a text is no contract. What is written says what is allowed.
#[derive(Debug, PartialEq, Eq)]
pub enum ContractError {
    /// The word is none of a contract's.
    Unknown(String),
    /// The word stands there more than once.
    Repeated(&'static str),
    /// The word needs a figure: the word, and what is wrong with the one it has.
    Figure(&'static str, String),
    /// The word takes no figure.
    NoFigure(&'static str),
}

const DEDUPLICATES_FOR: &str = "deduplicates-for";
const LOOKS_UP: &str = "looks-up";
const ABSENT_IS_FINAL_AFTER: &str = "absent-is-final-after";
const CANCELS: &str = "cancels";
const CLOCK_WITHIN: &str = "clock-within";

/// What a contract is called that promises nothing.
const NONE: &str = "none";

impl FromStr for Contract {
    type Err = ContractError;

    fn from_str(text: &str) -> Result<Self, ContractError> {
        let mut contract = Contract::default();
        if text.trim() == NONE {
            return Ok(contract);
        }
        for part in text.split(',') {
            let (word, figure) = match part.split_once('=') {
                Some((word, figure)) => (word.trim(), Some(figure.trim())),
                None => (part.trim(), None),
            };
            match word {
                DEDUPLICATES_FOR => set_figure(&mut contract.deduplicates_for, DEDUPLICATES_FOR, figure)?,
                LOOKS_UP => set(&mut contract.looks_up, LOOKS_UP, figure)?,
                ABSENT_IS_FINAL_AFTER => {
                    set_figure(&mut contract.absent_is_final_after, ABSENT_IS_FINAL_AFTER, figure)?;
                }
                CANCELS => set(&mut contract.cancels, CANCELS, figure)?,
                CLOCK_WITHIN => set_figure(&mut contract.clock_within, CLOCK_WITHIN, figure)?,
                _ => return Err(ContractError::Unknown(word.to_owned())),
            }
        }
        Ok(contract)
    }
}

/// As it is read; `none` if it promises nothing.
impl Display for Contract {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let figure = |word: &str, milliseconds: Option<u64>| {
            let duration = Duration::from_millis(milliseconds?);
            Some(format!("{word}={}", humantime::format_duration(duration)))
        };
        let words = [
            figure(DEDUPLICATES_FOR, self.deduplicates_for),
            self.looks_up.then(|| LOOKS_UP.to_owned()),
            figure(ABSENT_IS_FINAL_AFTER, self.absent_is_final_after),
            self.cancels.then(|| CANCELS.to_owned()),
            figure(CLOCK_WITHIN, self.clock_within),
        ];
        let words: Vec<_> = words.into_iter().flatten().collect();
        if words.is_empty() { out.write_str(NONE) } else { out.write_str(&words.join(",")) }
    }
}

fn set(field: &mut bool, word: &'static str, figure: Option<&str>) -> Result<(), ContractError> {
    if figure.is_some() {
        return Err(ContractError::NoFigure(word));
    }
    if std::mem::replace(field, true) {
        return Err(ContractError::Repeated(word));
    }
    Ok(())
}

fn set_figure(field: &mut Option<u64>, word: &'static str, figure: Option<&str>) -> Result<(), ContractError> {
    let wrong = |why: &str| ContractError::Figure(word, why.to_owned());
    let figure = figure.ok_or_else(|| wrong("it is missing"))?;
    let duration = humantime::parse_duration(figure).map_err(|error| wrong(&error.to_string()))?;
    // Rounding either way would be another assumption than the one that was written.
    if duration.subsec_nanos() % 1_000_000 != 0 {
        return Err(wrong("it is no whole number of milliseconds"));
    }
    let milliseconds = u64::try_from(duration.as_millis()).map_err(|_| wrong("it is too long"))?;
    if field.replace(milliseconds).is_some() {
        return Err(ContractError::Repeated(word));
    }
    Ok(())
}

impl Display for ContractError {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            ContractError::Unknown(word) => write!(out, "there is no `{word}`")?,
            ContractError::Repeated(word) => write!(out, "`{word}` stands there twice")?,
            ContractError::Figure(word, why) => write!(out, "the figure of `{word}`: {why}")?,
            ContractError::NoFigure(word) => write!(out, "`{word}` takes no figure")?,
        }
        write!(
            out,
            "; allowed are {DEDUPLICATES_FOR}=24h, {LOOKS_UP}, {ABSENT_IS_FINAL_AFTER}=1m, {CANCELS} and \
             {CLOCK_WITHIN}=1s, each once, separated by commas, or {NONE}"
        )
    }
}

impl Error for ContractError {}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]
mod tests {
    use super::*;

    const FULL: Contract = Contract {
        deduplicates_for: Some(86_400_000),
        looks_up: true,
        absent_is_final_after: Some(60_000),
        cancels: true,
        clock_within: Some(1_000),
    };

    #[test]
    fn each_word_sets_its_field() {
        let bare = Contract::default;
        for (text, contract) in [
            ("none", bare()),
            ("deduplicates-for=24h", Contract { deduplicates_for: Some(86_400_000), ..bare() }),
            ("looks-up", Contract { looks_up: true, ..bare() }),
            ("absent-is-final-after=1m 500ms", Contract { absent_is_final_after: Some(60_500), ..bare() }),
            ("cancels", Contract { cancels: true, ..bare() }),
            ("clock-within=0s", Contract { clock_within: Some(0), ..bare() }),
            (" clock-within = 1s , cancels,absent-is-final-after=1m,looks-up,deduplicates-for=24h", FULL),
        ] {
            assert_eq!(text.parse(), Ok(contract), "{text}");
        }
    }

    #[test]
    fn what_is_shown_is_read_back() {
        for (contract, text) in [
            (Contract::default(), "none"),
            (FULL, "deduplicates-for=1day,looks-up,absent-is-final-after=1m,cancels,clock-within=1s"),
            (Contract { clock_within: Some(90_001), ..Contract::default() }, "clock-within=1m 30s 1ms"),
        ] {
            assert_eq!(contract.to_string(), text);
            assert_eq!(text.parse(), Ok(contract));
        }
    }

    #[test]
    fn what_is_no_contract_is_refused_with_what_is_allowed() {
        for (text, begins) in [
            ("", "there is no ``;"),
            ("looks-up,", "there is no ``;"),
            ("none,looks-up", "there is no `none`;"),
            ("Looks-Up", "there is no `Looks-Up`;"),
            ("looks-up,cancels,looks-up", "`looks-up` stands there twice;"),
            ("clock-within=1s,clock-within=1s", "`clock-within` stands there twice;"),
            ("looks-up=true", "`looks-up` takes no figure;"),
            ("deduplicates-for", "the figure of `deduplicates-for`: it is missing;"),
            ("deduplicates-for=", "the figure of `deduplicates-for`: value was empty;"),
            ("absent-is-final-after=60", "the figure of `absent-is-final-after`: "),
            ("clock-within=-1s", "the figure of `clock-within`: "),
            ("clock-within=1us", "the figure of `clock-within`: it is no whole number of milliseconds;"),
            ("deduplicates-for=500000000000years", "the figure of `deduplicates-for`: "),
        ] {
            let error = text.parse::<Contract>().unwrap_err().to_string();
            assert!(error.starts_with(begins), "{text}: {error}");
            let allowed = "allowed are deduplicates-for=24h, looks-up, absent-is-final-after=1m, cancels and \
                           clock-within=1s, each once, separated by commas, or none";
            assert!(error.ends_with(allowed), "{text}: {error}");
        }
    }
}
