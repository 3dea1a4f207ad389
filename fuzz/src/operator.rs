//! What an operator and a worker ask for, with whatever figures and texts.

use crate::engine::Engine;
use crate::model::Model;
use crate::spelling;
use arbitrary::{Result, Unstructured};
use counterfoil::serving::bindings::counterfoil::tools::types::{Refusal, RefusalCode, State};
use counterfoil::serving::bindings::exports::counterfoil::tools::outbox::{Observation, ProviderContract};
use counterfoil::serving::{outbox, upkeep};
use counterfoil::tools::REGISTRY;
use std::collections::BTreeMap;

#[derive(Default)]
pub struct Operator {
    /// The attempts that were handed out.
    attempts: Vec<String>,
    /// Operations that have ended for good.
    ended: BTreeMap<String, State>,
}

impl Operator {
    pub fn step(
        &mut self,
        u: &mut Unstructured<'_>,
        engine: &mut Engine,
        model: &mut Model,
        ids: &[String],
    ) -> Result<()> {
        let permission = *u.choose(&["dispatch", "dispatch", "dispatch", "maintain", "maintain", "read"])?;
        let before = engine.changes();
        let done = engine.as_operator(permission, |_| match u.int_in_range(0..=11)? {
            0..=2 => self.claim(u),
            3..=5 => self.settle(u, ids),
            6 => {
                let (id, happened, resource) = (id(u, ids)?, u.arbitrary()?, resource(u)?);
                Ok(outbox::resolve(&REGISTRY, &id, happened, resource).map(drop))
            }
            7 => Ok(upkeep::sweep(&REGISTRY, small(u)?).map(|swept| assert_eq!(swept, 0))),
            8 => {
                let after = if u.arbitrary()? { Some(id(u, ids)?) } else { None };
                let limit = small(u)?;
                let listed = upkeep::list_operations(&REGISTRY, state(u)?, after.as_deref(), limit);
                Ok(listed.map(|listed| assert!(listed.len() <= limit as usize)))
            }
            9 => Ok(upkeep::checkpoint(&REGISTRY)),
            10 => Ok(upkeep::mark_restored(&REGISTRY).map(|_| model.is_restored = true)),
            _ => Ok(upkeep::accept_restored(&REGISTRY).map(|found| {
                assert_eq!(found.is_some(), model.is_restored);
                model.is_restored = false;
            })),
        })?;
        if let Err(refusal) = done {
            assert_eq!(engine.changes(), before, "{refusal:?}");
            let allowed = match refusal.code {
                RefusalCode::Denied => true,
                RefusalCode::InvalidArgument | RefusalCode::NotFound | RefusalCode::VersionConflict => {
                    permission != "read"
                }
                RefusalCode::Unconfirmed => model.is_restored,
                _ => false,
            };
            assert!(allowed, "{refusal:?}");
        } else {
            assert!(permission != "read");
        }
        self.check(engine);
        Ok(())
    }

    fn claim(&mut self, u: &mut Unstructured<'_>) -> Result<std::result::Result<(), Refusal>> {
        let (limit, lease) = (small(u)?, *u.choose(&[100, 99, 100, 24_000, 600_000, 600_001, 0, u32::MAX])?);
        let contract = ProviderContract {
            deduplicates_for: figure(u)?,
            looks_up: u.arbitrary()?,
            absent_is_final_after: figure(u)?,
            cancels: u.arbitrary()?,
            clock_within: figure(u)?,
        };
        let claimed = outbox::claim(&REGISTRY, limit, lease, &contract);
        Ok(claimed.map(|claimed| {
            assert!(claimed.tasks.len() <= limit as usize);
            self.attempts.extend(claimed.tasks.into_iter().map(|task| task.attempt_id));
        }))
    }

    fn settle(&self, u: &mut Unstructured<'_>, ids: &[String]) -> Result<std::result::Result<(), Refusal>> {
        let attempt = if self.attempts.is_empty() { id(u, ids)? } else { u.choose(&self.attempts)?.clone() };
        let observation = match u.int_in_range(0..=8)? {
            0 => Observation::NotSent(spelling::text(u)?),
            1 => Observation::Throttled(small(u)?),
            2 => Observation::Rejected(spelling::text(u)?),
            3 => Observation::Accepted(spelling::text(u)?),
            4 => Observation::Finished(spelling::text(u)?),
            5 => Observation::Failed(spelling::text(u)?),
            6 => Observation::Cancelled,
            7 => Observation::Absent,
            _ => Observation::Unclear(spelling::text(u)?),
        };
        Ok(outbox::settle(&REGISTRY, &attempt, observation).map(drop))
    }

    /// What has ended has ended (contract rule D6), and as many are counted as are listed.
    pub fn check(&mut self, engine: &mut Engine) {
        let listed = engine.as_operator("maintain", |_| upkeep::list_operations(&REGISTRY, None, None, 1000));
        let counted = engine.as_operator("maintain", |_| upkeep::count_operations(&REGISTRY));
        let (Ok(listed), Ok(counted)) = (listed, counted) else { panic!("operations are not listed") };
        assert_eq!(listed.len() as u64, counted.iter().map(|(_, number)| number).sum::<u64>());
        let mut now = BTreeMap::new();
        for found in listed {
            let ends = [State::Succeeded, State::Failed, State::Cancelled].contains(&found.operation.state);
            if ends {
                now.insert(found.operation.operation_id, found.operation.state);
            }
        }
        for (id, state) in &self.ended {
            assert_eq!(now.get(id), Some(state), "{id}");
        }
        self.ended = now;
    }
}

fn small(u: &mut Unstructured<'_>) -> Result<u32> {
    Ok(match u.int_in_range(0..=3)? {
        0 => u.arbitrary()?,
        1 => *u.choose(&[0, 64, 65, 1000, 1001, 10_000, 10_001])?,
        _ => u.int_in_range(1..=8)?,
    })
}

fn figure(u: &mut Unstructured<'_>) -> Result<Option<u64>> {
    Ok(match u.int_in_range(0..=3)? {
        0 => None,
        1 => Some(u.arbitrary()?),
        _ => Some(*u.choose(&[0, 1, 1000, 60_000, 86_400_000, u64::MAX, i64::MAX as u64])?),
    })
}

fn id(u: &mut Unstructured<'_>, ids: &[String]) -> Result<String> {
    if ids.is_empty() || u.ratio(1, 4)? { spelling::text(u) } else { Ok(u.choose(ids)?.clone()) }
}

fn resource(u: &mut Unstructured<'_>) -> Result<Option<String>> {
    if u.arbitrary()? { spelling::text(u).map(Some) } else { Ok(None) }
}

fn state(u: &mut Unstructured<'_>) -> Result<Option<State>> {
    let all = [State::Accepted, State::Running, State::Succeeded, State::CancelRequested, State::OutcomeUnknown];
    if u.arbitrary()? { u.choose(&all).copied().map(Some) } else { Ok(None) }
}
