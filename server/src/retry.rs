//! When a call is made again: a pure function of what it came to, how often it was tried, and the time left. This is the
//! one layer that retries (contract rules E1 and E2).

use std::time::Duration;

/// What one attempt came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Answered,
    /// A refusal, the pause that it asks for, and whether the call may have committed all the same.
    Refused {
        retryable: bool,
        retry_after: Option<Duration>,
        in_doubt: bool,
    },
    /// No answer: the call may have committed. Under its key it acts at most once, so it is safe to make again.
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This is the answer.
    Done,
    Again {
        after: Duration,
    },
    /// It could succeed later, but not within this budget.
    GiveUp,
}

impl Outcome {
    /// Whether the call may have committed, so that whatever a later attempt is told does not say that nothing was done.
    pub fn is_in_doubt(self) -> bool {
        matches!(self, Outcome::Lost | Outcome::Refused { in_doubt: true, .. })
    }
}

/// What to do after attempt number `attempt` (from 1) of at most `most`. `left` is what is left of the budget, `pause` a
/// random back-off.
pub fn next(outcome: Outcome, attempt: u32, most: u32, left: Duration, pause: Duration) -> Verdict {
    let after = match outcome {
        Outcome::Answered | Outcome::Refused { retryable: false, .. } => return Verdict::Done,
        Outcome::Refused { retryable: true, retry_after, .. } => retry_after.unwrap_or_default().max(pause),
        Outcome::Lost => pause,
    };
    // A pause that leaves no time for an attempt is not worth waiting for.
    if attempt < most && after < left { Verdict::Again { after } } else { Verdict::GiveUp }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_succeed_later_is_made_again_within_attempts_and_budget() {
        const S: Duration = Duration::from_secs(1);
        let refused = |retryable, retry_after| Outcome::Refused { retryable, retry_after, in_doubt: false };
        let again = |after| Verdict::Again { after };
        for (outcome, attempt, left, verdict) in [
            (Outcome::Answered, 1, 30 * S, Verdict::Done),
            // A denial, a conflict: never made again unchanged.
            (refused(false, None), 1, 30 * S, Verdict::Done),
            (refused(false, Some(S)), 1, 30 * S, Verdict::Done),
            (refused(true, None), 1, 30 * S, again(S)),
            (refused(true, Some(5 * S)), 1, 30 * S, again(5 * S)),
            // The random pause keeps those apart who were told the same.
            (refused(true, Some(S / 4)), 1, 30 * S, again(S)),
            (refused(true, Some(5 * S)), 1, 5 * S, Verdict::GiveUp),
            (refused(true, None), 3, 30 * S, Verdict::GiveUp),
            (Outcome::Lost, 2, 30 * S, again(S)),
            (Outcome::Lost, 3, 30 * S, Verdict::GiveUp),
            (Outcome::Lost, 1, S, Verdict::GiveUp),
            (Outcome::Lost, 1, S + S / 1000, again(S)),
        ] {
            assert_eq!(next(outcome, attempt, 3, left, S), verdict, "{outcome:?}, attempt {attempt}, {left:?} left");
        }
    }
}
