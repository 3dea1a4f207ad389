//! Every call to storage of a scene is where the machine loses power, or the process is killed and the machine loses power
//! once another has answered.

use super::scene::{Clean, Life, Scene};
use super::stage::Stage;
use super::step::NotDone;
use crate::disk::{Disk, Moment, mix};
use host_example::Sharing;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::iter;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// How many images are made of each moment, beside that with nothing and that with everything, and from which seed.
#[derive(Clone, Copy)]
pub struct Seeds {
    pub first: u64,
    pub images: u64,
}

impl Seeds {
    fn of(self, scene: &Scene, call: u64) -> impl Iterator<Item = u64> {
        let mut hasher = DefaultHasher::new();
        (&scene.name, call, self.first).hash(&mut hasher);
        let own = hasher.finish();
        // A large scene takes long, and so does each image of it.
        let images = if scene.every == 1 { self.images } else { self.images.min(2) };
        // 0 and 1 are nothing and everything.
        [0, 1].into_iter().chain((0..images).map(move |number| mix(own ^ number).max(2)))
    }
}

/// What was tried, and what was wrong.
#[derive(Default)]
pub struct Found {
    pub scenes: u64,
    pub calls: u64,
    pub recoveries: u64,
    pub bad: Vec<String>,
}

impl Found {
    fn add(&mut self, other: Found) {
        self.scenes += other.scenes;
        self.calls += other.calls;
        self.recoveries += other.recoveries;
        self.bad.extend(other.bad);
    }

    #[track_caller]
    pub fn assert_nothing_bad(&self) {
        let first = &self.bad[..3.min(self.bad.len())];
        assert!(
            first.is_empty(),
            "{} of {} are bad, among them:\n{}",
            self.bad.len(),
            self.recoveries,
            first.join("\n\n")
        );
    }
}

/// Tries all scenes, on as many threads as there are processors.
pub fn try_all(
    stage: impl Fn() -> Stage + Sync,
    scenes: &[Scene],
    attempt: impl Fn(&Stage, &Scene) -> Found + Sync,
) -> Found {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Found::default()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from).min(scenes.len()) {
            scope.spawn(|| {
                let stage = stage();
                while let Some(scene) = scenes.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let one = attempt(&stage, scene);
                    found.lock().unwrap().add(one);
                }
            });
        }
    });
    found.into_inner().unwrap()
}

/// Crashes at every call of the scene.
pub fn crash_everywhere(stage: &Stage, scene: &Scene, seeds: Seeds) -> Found {
    let clean = scene.clean(stage);
    assert!(!clean.moments.is_empty(), "nothing is tried in {}", scene.name);
    let mut attempt = Attempt { stage, scene, clean: &clean, seen: HashSet::new(), found: Found::default() };
    (attempt.found.scenes, attempt.found.calls) = (1, clean.calls);
    for moment in &clean.moments {
        let life = clean.life_at(moment.at);
        for seed in seeds.of(scene, moment.at) {
            attempt.recover("cut", &moment.power_cut(seed), life, moment, seed);
        }
        for cache in iter::once(moment.killed()).chain(moment.killed_within()) {
            attempt.kill(&cache, moment, life, seeds);
        }
    }
    attempt.found
}

struct Attempt<'a> {
    stage: &'a Stage,
    scene: &'a Scene,
    clean: &'a Clean,
    /// An image is tried once.
    seen: HashSet<(u64, usize)>,
    found: Found,
}

impl Attempt<'_> {
    fn recover(&mut self, how: &str, image: &Disk, life: &Life, moment: &Moment, seed: u64) {
        if self.seen.insert((image.fingerprint(), life.answers.len())) {
            self.found.recoveries += 1;
            let outcome = self.scene.recover(self.stage, self.clean, image, life);
            self.note(how, moment, seed, outcome);
        }
    }

    /// The process alone dies. The next one reads what the page cache has, which is all that was written, and answers the
    /// step in doubt, or again the last one; then the power goes.
    fn kill(&mut self, cache: &Disk, moment: &Moment, life: &Life, seeds: Seeds) {
        if !self.seen.insert((cache.fingerprint(), usize::MAX - life.answers.len())) {
            return;
        }
        let Scene { steps, contract, .. } = self.scene;
        let mut life = life.clone();
        let mut client = self.stage.client(cache);
        let outcome = match steps.get(life.answers.len()) {
            Some(step) => match step.take(self.stage, &mut client, contract, &mut life.names) {
                Ok(answer) => {
                    life.answers.push(answer);
                    Ok(())
                }
                Err(error) => Err(format!("{step:?} is answered {error:?}")),
            },
            None => {
                let (step, told) = (&steps[steps.len() - 1], &life.answers[steps.len() - 1]);
                step.recall(self.stage, &mut client, contract, &life.names, told)
            }
        };
        drop(client);
        self.note("killed", moment, 0, outcome);
        // The next step was not begun.
        life.stopped = Some(NotDone("unavailable", String::new()));
        for seed in seeds.of(self.scene, moment.at).take(3) {
            self.recover("killed, answered, then cut", &cache.power_cut(seed), &life, moment, seed);
        }
    }

    fn note(&mut self, how: &str, moment: &Moment, seed: u64, outcome: Result<(), String>) {
        if let Err(what) = outcome {
            let (name, calls) = (&self.scene.name, self.clean.calls);
            let (call, at) = (moment.call, moment.at);
            self.found
                .bad
                .push(format!("{name}: {how} in call {at} of {calls} ({call:?}), image {seed:#x}: {}", brief(&what)));
        }
    }
}

/// The beginning and the end: arguments may be long.
pub fn brief(text: &str) -> String {
    const MOST: usize = 1500;
    let characters: Vec<_> = text.chars().collect();
    if characters.len() <= 2 * MOST {
        return text.to_owned();
    }
    characters[..MOST].iter().chain(&['\n', '…', '\n']).chain(&characters[characters.len() - MOST..]).collect()
}

pub const MODES: [Sharing; 3] = [Sharing::Sole, Sharing::Shared, Sharing::SoleAtomic];
