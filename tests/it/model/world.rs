//! What the machine stands in: workers that die or tarry, a network that delays and loses, a provider, a caller, and a
//! person. Everything that may happen next, whatever the order; time and the clock are in `time.rs`.
//!
//! Where it costs nothing, more is allowed than can be: a claim at any time, due or not, so that a lease may be lost
//! before it has run out; an answer that takes its time; evidence told late and again, by any attempt and by none.

use super::properties;
use super::scene::{AGES, Effect, Move, Moves, Phase, Scene, end, reading};
use super::time::deadline_to_come;
use counterfoil::Timestamp;
use counterfoil::engine::next::{Event, Moment};
use counterfoil::engine::operation::{Attempt, Cancel, Contract, Operation, Seen, State, Step};

/// The function under test, or one with a fault put in.
pub type Machine = fn(&Operation, Event, &Contract, Moment) -> Operation;

/// Milliseconds, so that a clock can be wrong by half a tick.
pub const TICK: u64 = 2;
pub const LEASE: u64 = TICK;
pub const PAUSE: u64 = TICK;
pub const LONG_PAUSE: u64 = 2 * TICK;
/// The pause that a provider asks for.
pub const ASKED: u32 = 2 * TICK as u32;
/// A request arrives in the tick in which it was sent, or in the next, or never.
pub const LATENESS: u8 = 1;
/// The first tick in which no request can arrive any more.
pub const FINAL_AFTER: u64 = 2 * TICK;

/// What is really so, in ticks. The contract may claim more.
#[derive(Clone, Copy)]
pub struct Truth {
    /// For how long after it first received a key the provider knows it again.
    pub knows_keys_for: Option<u64>,
    /// The oldest request that may still arrive.
    pub lateness: u8,
    /// The network may deliver a request more than once.
    pub duplicates: bool,
    /// How many milliseconds the clock's reading may be more than the true time, whenever it is read.
    pub errors: &'static [i8],
    /// How long after its claim a worker may still send.
    pub sends_until: u64,
    /// How long after the last sending `absent` may be said of something that exists; always, if none.
    pub absent_lags_for: Option<u64>,
    /// What the provider says that it cancelled has stopped.
    pub cancelled_is_true: bool,
    /// What it throttled or rejected was not taken.
    pub refused_is_true: bool,
}

impl Truth {
    /// The contract is honoured, and nothing beyond it.
    pub fn of(contract: &Contract) -> Truth {
        Truth {
            knows_keys_for: contract.deduplicates_for.map(|window| window / TICK + u64::from(LATENESS)),
            lateness: LATENESS,
            duplicates: contract.deduplicates_for.is_some(),
            errors: match contract.clock_within {
                None => &[-3, 3],
                Some(0) => &[0],
                Some(_) => &[-1, 1],
            },
            sends_until: LEASE / TICK,
            absent_lags_for: contract.absent_is_final_after.map(|after| after / TICK),
            cancelled_is_true: true,
            refused_is_true: true,
        }
    }
}

pub struct World {
    pub contract: Contract,
    pub truth: Truth,
    pub machine: Machine,
}

impl World {
    pub fn start(&self) -> Scene {
        Scene {
            operation: Operation::new(reading(0), deadline_to_come()),
            in_hand: None,
            former: None,
            effect: Effect::None,
            taken: 0,
            key_age: 0,
            under_way: [0; AGES],
            quiet_for: 0,
            broken: None,
        }
    }

    /// Everything that can happen next.
    pub fn moves(&self, scene: &Scene, out: &mut Moves) {
        out.clear();
        if let Some(phase) = scene.in_hand {
            self.worker_moves(scene, phase, out);
        }
        if scene.former.is_some() {
            let mut after = Scene { former: None, quiet_for: 0, ..*scene };
            self.leave_under_way(&mut after, 0);
            out.push((Move::FormerSends, after));
        }
        for &error in self.truth.errors {
            self.outbox_moves(scene, error, out);
        }
        for age in (0..AGES).filter(|age| scene.under_way[*age] > 0) {
            let mut after = *scene;
            // Where copies are made, one more may follow.
            after.under_way[age] -= u8::from(!self.truth.duplicates);
            self.receive(&mut after, age as u8);
            out.push((Move::Arrives, after));
        }
        if scene.effect == Effect::Running {
            for effect in [Effect::Finished, Effect::Failed, Effect::Cancelled] {
                out.push((Move::Ends(effect), Scene { effect, ..*scene }));
            }
        }
        self.deadline_moves(scene, out);
        out.push((Move::Tick, self.tick(scene)));
        for (_, after) in out {
            self.prune(after);
        }
    }

    fn worker_moves(&self, scene: &Scene, phase: Phase, out: &mut Moves) {
        let becomes = |scene: &Scene, phase| Scene { in_hand: Some(phase), ..*scene };
        match phase {
            Phase::MaySend { .. } => {
                out.push((Move::Sends, becomes(&Scene { quiet_for: 0, ..*scene }, Phase::Sent { age: 0 })));
                self.settle(scene, Seen::NotSent, out);
            }
            Phase::TooLateToSend => self.settle(scene, Seen::NotSent, out),
            Phase::Sent { age } => {
                let mut after = becomes(scene, Phase::Received);
                if self.truth.duplicates {
                    self.leave_under_way(&mut after, age);
                }
                self.receive(&mut after, age);
                out.push((Move::IsReceived, after));
                let mut unclear = *scene;
                self.leave_under_way(&mut unclear, age);
                self.settle(&unclear, Seen::Unclear, out);
                let refused = if self.truth.refused_is_true { scene } else { &unclear };
                self.settle(refused, Seen::Throttled(ASKED), out);
                self.settle(refused, Seen::Rejected, out);
            }
            Phase::Lost => {
                self.settle(scene, Seen::Unclear, out);
                self.settle(scene, Seen::Throttled(ASKED), out);
                self.settle(scene, Seen::Rejected, out);
            }
            Phase::Received => {
                self.settle(scene, Seen::Unclear, out);
                self.answers(scene, out);
            }
            Phase::MayAsk => {
                for seen in [Seen::NotSent, Seen::Unclear, Seen::Throttled(ASKED), Seen::Rejected] {
                    self.settle(scene, seen, out);
                }
                if self.may_say_absent(scene) {
                    out.push((Move::IsToldAbsent, becomes(scene, Phase::WasToldAbsent)));
                }
                self.answers(scene, out);
                let is_cancel = scene.operation.attempt.is_some_and(|attempt| attempt.step == Step::Cancel);
                if is_cancel && scene.effect == Effect::Running && !self.truth.cancelled_is_true {
                    self.settle(scene, Seen::Cancelled, out);
                }
            }
            Phase::WasToldAbsent => self.settle(scene, Seen::Absent, out),
        }
    }

    /// The provider may speak of what has ended as of something that runs, not the other way round.
    fn answers(&self, scene: &Scene, out: &mut Moves) {
        if scene.taken > 0 {
            self.settle(scene, Seen::Accepted, out);
        }
        if let Some(seen) = end(scene.effect) {
            self.settle(scene, seen, out);
        }
    }

    fn may_say_absent(&self, scene: &Scene) -> bool {
        let lags = || self.truth.absent_lags_for.is_none_or(|lag| u64::from(scene.quiet_for) < lag);
        scene.effect == Effect::None || lags()
    }

    fn settle(&self, scene: &Scene, seen: Seen, out: &mut Moves) {
        for &error in self.truth.errors {
            if let Some(after) = self.settled(scene, seen, error) {
                out.push((Move::Settles { seen, error }, after));
            }
        }
    }

    pub fn settled(&self, scene: &Scene, seen: Seen, error: i8) -> Option<Scene> {
        let attempt = scene.operation.attempt?;
        let scene = Scene { in_hand: None, ..*scene };
        Some(self.happen(&scene, Event::Settle { attempt, in_hand: true, seen }, error))
    }

    fn outbox_moves(&self, scene: &Scene, error: i8, out: &mut Moves) {
        let operation = &scene.operation;
        if operation.due.is_some() {
            let after = self.claimed(scene, error);
            if scene.former.is_some() {
                out.push((Move::Claims { error }, Scene { former: scene.former, ..after }));
            }
            out.push((Move::Claims { error }, after));
        }
        if operation.cancel == Cancel::No && !operation.state.is_final() {
            out.push((Move::CallerCancels { error }, self.happen(scene, Event::Cancel, error)));
        }
        if operation.state == State::OutcomeUnknown && scene.is_quiet() {
            let happened = scene.effect == Effect::Finished;
            let after = self.happen(scene, Event::Resolve { happened }, error);
            out.push((Move::PersonFinds { happened, error }, after));
        }
        let exists = (scene.taken > 0).then_some(Seen::Accepted);
        let evidence = [Some(Seen::NotSent), Some(Seen::Absent), exists, end(scene.effect)];
        for seen in evidence.into_iter().flatten() {
            let step = if seen == Seen::Absent { Step::Lookup } else { Step::Submit };
            let (claimed_at, lease_until) = (Timestamp::from_milliseconds(0), Timestamp::from_milliseconds(LEASE));
            let attempt = Attempt { step, claimed_at, lease_until };
            let after = self.happen(scene, Event::Settle { attempt, in_hand: false, seen }, error);
            out.push((Move::SettlesLate { seen, error }, after));
        }
    }

    /// The worker that had it in hand lives on, without the lease.
    pub fn claimed(&self, scene: &Scene, error: i8) -> Scene {
        let mut after = self.happen(scene, Event::Claim { lease: LEASE }, error);
        after.in_hand = after.operation.attempt.map(|attempt| match attempt.step {
            Step::Submit => Phase::MaySend { elapsed: 0 },
            Step::Lookup | Step::Cancel => Phase::MayAsk,
        });
        self.let_go(&mut after, scene.in_hand);
        after
    }

    /// The attempt is no longer waited for, whatever its worker still does.
    pub fn let_go(&self, scene: &mut Scene, worker: Option<Phase>) {
        match worker {
            Some(Phase::MaySend { elapsed }) => scene.former = Some(elapsed),
            Some(Phase::Sent { age }) => self.leave_under_way(scene, age),
            _ => {}
        }
    }

    /// The same without the workers, and without what is under way, which arrives first or is lost.
    pub fn calm(&self, scene: &Scene, arrives: bool) -> Scene {
        let mut after = Scene { in_hand: None, former: None, under_way: [0; AGES], ..*scene };
        let is_sent = matches!(scene.in_hand, Some(Phase::Sent { .. })) || scene.under_way != [0; AGES];
        if arrives && is_sent && scene.taken == 0 {
            self.receive(&mut after, 0);
        }
        after
    }

    /// The machine is told, and what it says is stored.
    fn happen(&self, scene: &Scene, event: Event, error: i8) -> Scene {
        let moment = Moment { now: reading(error), pause: PAUSE, long_pause: LONG_PAUSE };
        let mut operation = (self.machine)(&scene.operation, event, &self.contract, moment);
        let broken = properties::of_step(&self.contract, &scene.operation, &operation, event, moment.now);
        // Pauses are random and grow; here they are fixed. What is left of the count is whose turn it is.
        operation.fruitless = if operation.cancel == Cancel::Asked { operation.fruitless % 2 } else { 0 };
        // More than two sendings are as two: one is un-counted at most, or all are.
        operation.attempts = operation.attempts.min(2);
        operation.due = operation.due.map(|_| reading(0));
        if operation.state.is_final() {
            // The rest is never looked at again.
            operation = Operation { state: operation.state, due: None, ..Operation::new(reading(0), reading(0)) };
        }
        self.keep(&mut operation);
        Scene { operation, broken, ..*scene }
    }

    fn leave_under_way(&self, scene: &mut Scene, age: u8) {
        let count = &mut scene.under_way[usize::from(age)];
        // Copies are alike.
        *count = if self.truth.duplicates { 1 } else { *count + 1 };
    }

    /// The provider receives a submission.
    pub fn receive(&self, scene: &mut Scene, age: u8) {
        let is_known = self.truth.knows_keys_for.is_some_and(|limit| u64::from(scene.key_age) <= limit);
        if scene.taken == 0 || !is_known {
            scene.taken += 1;
            (scene.effect, scene.key_age, scene.quiet_for) = (Effect::Running, 0, age);
        }
    }
}
