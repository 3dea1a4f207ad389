//! What goes wrong on command: the words of `--faults`, and the draw for one request.
//!
//! What each fault does is in `transport.rs` and `api.rs`.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    DropBefore,
    ErrorBefore,
    Throttle,
    Unavailable,
    Late,
    ErrorAfter,
    DropAfter,
    HalfAnswer,
    Reject,
    UnderWay,
    ForgetKeys,
    Fail,
    RefuseLookup,
    RefuseCancel,
    SucceedWhileCancelling,
}

/// What may stand behind a word's `=`.
#[derive(Clone, Copy)]
enum Figure {
    /// A probability.
    Chance,
    /// A probability and a duration, which is this many milliseconds if it is left out.
    ChanceAndDuration(u64),
    /// A duration, which may not be left out.
    Duration,
}

/// In the order in which they are drawn. A new one stands last, so that a seed keeps its meaning.
const WORDS: [(Fault, &str, Figure); 15] = [
    (Fault::DropBefore, "drop-before", Figure::Chance),
    (Fault::ErrorBefore, "error-before", Figure::Chance),
    (Fault::Throttle, "throttle", Figure::ChanceAndDuration(1_000)),
    (Fault::Unavailable, "unavailable", Figure::ChanceAndDuration(1_000)),
    (Fault::Late, "late", Figure::ChanceAndDuration(2_000)),
    (Fault::ErrorAfter, "error-after", Figure::Chance),
    (Fault::DropAfter, "drop-after", Figure::Chance),
    (Fault::HalfAnswer, "half-answer", Figure::Chance),
    (Fault::Reject, "reject", Figure::Chance),
    (Fault::UnderWay, "under-way", Figure::ChanceAndDuration(2_000)),
    (Fault::ForgetKeys, "forget-keys", Figure::Duration),
    (Fault::Fail, "fail", Figure::Chance),
    (Fault::RefuseLookup, "refuse-lookup", Figure::Chance),
    (Fault::RefuseCancel, "refuse-cancel", Figure::Chance),
    (Fault::SucceedWhileCancelling, "succeed-while-cancelling", Figure::Chance),
];

/// What the faults are called if there are none.
const NONE: &str = "none";

/// No duration is longer: they are added to the clock.
const LONGEST: Duration = Duration::from_hours(24);

/// The faults in force.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults(Vec<Rule>);

#[derive(Clone, Copy, Debug, PartialEq)]
struct Rule {
    fault: Fault,
    /// 0 to 1.
    chance: f64,
    /// Zero where the fault takes none.
    duration: Duration,
}

/// What goes wrong with one request.
#[derive(Clone, Debug)]
pub struct Fate {
    met: Vec<(Fault, Duration)>,
    /// A choice between the two forms that some faults have.
    pub coin: bool,
}

impl Fate {
    pub fn meets(&self, fault: Fault) -> bool {
        self.duration(fault).is_some()
    }

    /// The fault's duration, if it is met.
    pub fn duration(&self, fault: Fault) -> Option<Duration> {
        self.met.iter().find(|(met, _)| *met == fault).map(|(_, duration)| *duration)
    }
}

impl Faults {
    /// The fault's duration, if it can be met at all.
    pub fn duration(&self, fault: Fault) -> Option<Duration> {
        self.rule(fault).map(|rule| rule.duration)
    }

    /// Takes as many numbers whatever is in force, so that a fault more leaves the others' chances as they were.
    pub fn draw(&self, random: &mut fastrand::Rng) -> Fate {
        let mut met = Vec::new();
        for (fault, _, _) in WORDS {
            let number = random.f64(); // below 1, so that a chance of 1 is always met, and one of 0 never
            met.extend(self.rule(fault).filter(|rule| number < rule.chance).map(|rule| (fault, rule.duration)));
        }
        Fate { met, coin: random.bool() }
    }

    fn rule(&self, fault: Fault) -> Option<&Rule> {
        self.0.iter().find(|rule| rule.fault == fault)
    }
}

/// Why a text names no faults. What is written says what is allowed.
#[derive(Debug, PartialEq, Eq)]
pub enum FaultsError {
    /// The word is no fault's.
    Unknown(String),
    /// The word stands there more than once.
    Repeated(&'static str),
    /// The word, what may stand behind it, and what is wrong.
    Figure(&'static str, &'static str, String),
}

impl FromStr for Faults {
    type Err = FaultsError;

    fn from_str(text: &str) -> Result<Self, FaultsError> {
        let mut faults = Faults::default();
        if text.trim() == NONE {
            return Ok(faults);
        }
        for part in text.split(',') {
            let (word, figure) = match part.split_once('=') {
                Some((word, figure)) => (word.trim(), Some(figure.trim())),
                None => (part.trim(), None),
            };
            let Some((fault, word, kind)) = WORDS.into_iter().find(|(_, known, _)| *known == word) else {
                return Err(FaultsError::Unknown(word.to_owned()));
            };
            if faults.rule(fault).is_some() {
                return Err(FaultsError::Repeated(word));
            }
            let (chance, duration) =
                read(kind, figure).map_err(|why| FaultsError::Figure(word, expected(kind), why))?;
            faults.0.push(Rule { fault, chance, duration });
        }
        Ok(faults)
    }
}

fn read(kind: Figure, figure: Option<&str>) -> Result<(f64, Duration), String> {
    match (kind, figure) {
        (Figure::Duration, None) => Err("it is missing".to_owned()),
        (Figure::Duration, Some(figure)) => Ok((1.0, duration(figure)?)),
        (Figure::Chance, None) => Ok((1.0, Duration::ZERO)),
        (Figure::Chance, Some(figure)) => Ok((chance(figure)?, Duration::ZERO)),
        (Figure::ChanceAndDuration(usual), None) => Ok((1.0, Duration::from_millis(usual))),
        (Figure::ChanceAndDuration(usual), Some(figure)) => match figure.split_once(':') {
            Some((number, text)) => Ok((chance(number.trim())?, duration(text.trim())?)),
            None => Ok((chance(figure)?, Duration::from_millis(usual))),
        },
    }
}

fn chance(text: &str) -> Result<f64, String> {
    let number = text.parse().map_err(|_| format!("`{text}` is no probability"))?;
    if (0.0..=1.0).contains(&number) { Ok(number) } else { Err(format!("{text} is not from 0 to 1")) }
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if duration <= LONGEST { Ok(duration) } else { Err(format!("{text} is longer than 24h")) }
}

fn expected(kind: Figure) -> &'static str {
    match kind {
        Figure::Chance => "a probability from 0 to 1, such as 0.1",
        Figure::ChanceAndDuration(_) => {
            "a probability from 0 to 1 and a duration up to 24h, such as 0.1:500ms, or the former alone"
        }
        Figure::Duration => "a duration up to 24h, such as 500ms",
    }
}

/// As it is read; `none` if nothing is in force.
impl Display for Faults {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for (fault, word, kind) in WORDS {
            let Some(Rule { chance, duration, .. }) = self.rule(fault) else { continue };
            let duration = humantime::format_duration(*duration);
            match kind {
                Figure::Chance => write!(out, "{comma}{word}={chance}")?,
                Figure::ChanceAndDuration(_) => write!(out, "{comma}{word}={chance}:{duration}")?,
                Figure::Duration => write!(out, "{comma}{word}={duration}")?,
            }
            comma = ",";
        }
        if comma.is_empty() { out.write_str(NONE) } else { Ok(()) }
    }
}

impl Display for FaultsError {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            FaultsError::Unknown(word) => {
                let words: Vec<_> = WORDS.into_iter().map(|(_, word, _)| word).collect();
                let words = words.join(", ");
                write!(out, "there is no `{word}`; allowed are {words}, separated by commas, or {NONE}")
            }
            FaultsError::Repeated(word) => write!(out, "`{word}` stands there twice; each is allowed once"),
            FaultsError::Figure(word, expected, why) => {
                write!(out, "the figure of `{word}`: {why}; allowed is {expected}")
            }
        }
    }
}

impl Error for FaultsError {}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]
mod tests {
    use super::*;

    fn rule(fault: Fault, chance: f64, milliseconds: u64) -> Rule {
        Rule { fault, chance, duration: Duration::from_millis(milliseconds) }
    }

    #[test]
    fn a_word_happens_always_or_with_its_probability_and_takes_its_duration() {
        for (text, rules) in [
            ("none", vec![]),
            ("drop-before", vec![rule(Fault::DropBefore, 1.0, 0)]),
            ("drop-after=0.25", vec![rule(Fault::DropAfter, 0.25, 0)]),
            ("late", vec![rule(Fault::Late, 1.0, 2_000)]),
            ("late=0.5", vec![rule(Fault::Late, 0.5, 2_000)]),
            ("late=0.5:3m", vec![rule(Fault::Late, 0.5, 180_000)]),
            ("forget-keys=500ms", vec![rule(Fault::ForgetKeys, 1.0, 500)]),
            (" fail = 0 , under-way = 1 : 1s ", vec![rule(Fault::Fail, 0.0, 0), rule(Fault::UnderWay, 1.0, 1_000)]),
        ] {
            assert_eq!(text.parse(), Ok(Faults(rules)), "{text}");
        }
    }

    #[test]
    fn what_is_shown_is_read_back() {
        for (text, shown) in [
            ("none", "none"),
            ("fail", "fail=1"),
            ("forget-keys=90s,late,drop-after=0.125", "late=1:2s,drop-after=0.125,forget-keys=1m 30s"),
        ] {
            let faults: Faults = text.parse().unwrap();
            assert_eq!(faults.to_string(), shown);
            assert_eq!(shown.parse::<Faults>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn what_names_no_faults_is_refused_with_what_is_allowed() {
        for (text, begins, ends) in [
            ("", "there is no ``; allowed are drop-before, error-before, throttle, ", "or none"),
            ("drop", "there is no `drop`; ", "succeed-while-cancelling, separated by commas, or none"),
            ("fail,fail=0.5", "`fail` stands there twice", "each is allowed once"),
            ("fail=2", "the figure of `fail`: 2 is not from 0 to 1", "such as 0.1"),
            ("fail=NaN", "the figure of `fail`: NaN is not from 0 to 1", "such as 0.1"),
            ("fail=often", "the figure of `fail`: `often` is no probability", "such as 0.1"),
            ("fail=1:1s", "the figure of `fail`: `1:1s` is no probability", "such as 0.1"),
            ("late=1s", "the figure of `late`: `1s` is no probability", "or the former alone"),
            ("late=1:", "the figure of `late`: value was empty", "or the former alone"),
            ("late=1:25h", "the figure of `late`: 25h is longer than 24h", "or the former alone"),
            ("forget-keys", "the figure of `forget-keys`: it is missing", "such as 500ms"),
            ("forget-keys=0.1:1s", "the figure of `forget-keys`: ", "such as 500ms"),
        ] {
            let error = text.parse::<Faults>().unwrap_err().to_string();
            assert!(error.starts_with(begins) && error.ends_with(ends), "{text}: {error}");
        }
    }

    #[test]
    fn a_seed_draws_the_same_again_and_one_fault_more_changes_no_other() {
        let draw = |faults: &str, fault| {
            let (faults, mut random) = (faults.parse::<Faults>().unwrap(), fastrand::Rng::with_seed(7));
            (0..64).map(|_| faults.draw(&mut random).meets(fault)).collect::<Vec<_>>()
        };
        let alone = draw("drop-after=0.5", Fault::DropAfter);

        assert!(alone.contains(&true) && alone.contains(&false));
        assert_eq!(draw("drop-after=0.5", Fault::DropAfter), alone);
        assert_eq!(draw("fail=0.5,drop-before=0.5,drop-after=0.5", Fault::DropAfter), alone);
        assert_eq!(draw("fail=1", Fault::Fail), vec![true; 64]);
        assert_eq!(draw("fail=0", Fault::Fail), vec![false; 64]);
    }
}
