//! What is on a disk, and what is done with it; once without any fault, and what is checked after one.

use super::stage::Stage;
use super::step::{Names, NotDone, Step, as_first, without_ids};
use crate::disk::{Disk, Moment};
use crate::harness::Client;
use crate::outbox_harness::START;
use host_example::ProviderContract;

pub struct Scene {
    pub name: String,
    pub disk: Disk,
    /// What those know who used the disk before.
    pub names: Names,
    pub steps: Vec<Step>,
    pub contract: ProviderContract,
    /// Whether the first step may have been taken before, by one who was killed in it.
    pub is_begun: bool,
    /// Of so many calls to storage one is tried.
    pub every: u64,
}

/// What was answered, up to the step that was not.
#[derive(Clone)]
pub struct Life {
    pub names: Names,
    pub answers: Vec<String>,
    pub stopped: Option<NotDone>,
}

/// What happens where nothing goes wrong.
pub struct Clean {
    pub answers: Vec<String>,
    pub summary: String,
    pub calls: u64,
    pub moments: Vec<Moment>,
    /// The life so far and the calls to storage up to its end, for each number of answers.
    lives: Vec<(u64, Life)>,
}

impl Scene {
    pub fn live(&self, stage: &Stage, disk: &Disk, client: &mut Client) -> Life {
        self.live_seen(stage, disk, client, |_| {})
    }

    fn live_seen(&self, stage: &Stage, disk: &Disk, client: &mut Client, mut seen: impl FnMut((u64, Life))) -> Life {
        stage.clock.set(START);
        let mut life = Life { names: self.names.clone(), answers: Vec::new(), stopped: None };
        seen((0, life.clone()));
        for step in &self.steps {
            match step.take(stage, client, &self.contract, &mut life.names) {
                Ok(answer) => life.answers.push(answer),
                Err(error) => {
                    life.stopped = Some(error);
                    break;
                }
            }
            seen((disk.calls(), life.clone()));
        }
        life
    }

    /// # Panics
    ///
    /// If anything is refused.
    pub fn clean(&self, stage: &Stage) -> Clean {
        let disk = self.disk.copy(self.disk.storage_mode());
        disk.record(self.every);
        let mut client = stage.client(&disk);
        let mut lives = Vec::new();
        let life = self.live_seen(stage, &disk, &mut client, |life| lives.push(life));
        assert_eq!(life.stopped, None, "{}: {:?}", self.name, life.answers);
        let (calls, moments) = (disk.calls(), disk.moments());
        disk.record(0);
        client.instance.close().unwrap().unwrap();
        let summary = stage.summary(&disk).unwrap();
        assert!(!summary.contains("nobody") && !summary.contains("another"), "{}: {summary}", self.name);
        Clean { answers: life.answers, summary, calls, moments, lives }
    }

    /// A later instance, which nothing disturbs.
    pub fn recover(&self, stage: &Stage, clean: &Clean, disk: &Disk, life: &Life) -> Result<(), String> {
        stage.clock.set(START);
        let mut client = stage.client(disk);
        verify(&mut client)?;
        self.go_on(stage, clean, disk, client, life)
    }

    /// What was answered holds; the step in doubt and those after it lead to where they lead without a fault.
    pub fn go_on(
        &self,
        stage: &Stage,
        clean: &Clean,
        disk: &Disk,
        mut client: Client,
        life: &Life,
    ) -> Result<(), String> {
        stage.clock.set(START);
        let answered = life.answers.len();
        for (number, told) in life.answers.iter().enumerate() {
            let ends_mark = |step: Option<&Step>| matches!(step, Some(Step::Accept));
            let is_over = (number + 1..=answered).any(|later| ends_mark(self.steps.get(later)));
            if !(is_over && matches!(self.steps[number], Step::Mark)) {
                self.steps[number].recall(stage, &mut client, &self.contract, &life.names, told)?;
            }
        }
        let mut names = life.names.clone();
        for (number, (step, expected)) in self.steps.iter().zip(&clean.answers).enumerate().skip(answered) {
            let answer = step.take(stage, &mut client, &self.contract, &mut names);
            let answer = answer.map_err(|error| format!("{step:?} is answered {error:?}"))?;
            let is_undone = life.stopped.as_ref().is_some_and(NotDone::is_undone) && !(self.is_begun && number == 0);
            let may_be_done = number == answered && !is_undone;
            let is_right = if may_be_done {
                as_first(&answer) == as_first(expected) || step.answer_if_done() == Some(&answer)
            } else {
                without_ids(&answer) == without_ids(expected)
            };
            if !is_right {
                return Err(format!("{step:?}: expected {expected}, found {answer}"));
            }
            step.recall(stage, &mut client, &self.contract, &names, &answer)?;
        }
        verify(&mut client)?;
        let closed = client.instance.close().map_err(|trap| format!("{trap:?}"))?;
        closed.map_err(|refusal| format!("close: {refusal:?}"))?;
        let summary = stage.summary(disk)?;
        if summary == clean.summary {
            Ok(())
        } else {
            Err(format!("expected in the end:\n{}\nfound:\n{summary}", clean.summary))
        }
    }
}

fn verify(client: &mut Client) -> Result<(), String> {
    match client.instance.verify().map_err(|trap| format!("{trap:?}"))? {
        Ok(wrong) if wrong.is_empty() => Ok(()),
        wrong => Err(format!("verify says {wrong:?}")),
    }
}

impl Clean {
    /// What had been answered when a call to storage was made.
    pub fn life_at(&self, call: u64) -> &Life {
        let (_, life) = self.lives.iter().rev().find(|(ended, _)| *ended < call).unwrap_or(&self.lives[0]);
        life
    }
}
