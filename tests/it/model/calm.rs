//! What an operation comes to once nothing goes wrong any more: the clock is right, the workers from before are gone, one
//! that tells at once what it saw asks every tick, and the provider finishes what it has.

use super::properties::Property;
use super::scene::{Effect, Scene, end};
use super::search::Scenes;
use super::world::World;
use counterfoil::engine::operation::{Seen, State, Step};

/// More ticks than any operation needs.
const PATIENCE: usize = 20;

pub struct Calm<'a> {
    world: &'a World,
    /// From these it is known to end as it should.
    ends: Scenes,
}

impl<'a> Calm<'a> {
    pub fn new(world: &'a World) -> Calm<'a> {
        Calm { world, ends: Scenes::default() }
    }

    /// What is under way arrives at once, or never.
    pub fn check(&mut self, scene: &Scene) -> Option<Property> {
        [true, false].into_iter().find_map(|arrives| self.run(self.world.calm(scene, arrives)))
    }

    /// How it ends if nothing ever goes wrong.
    pub fn end_without_faults(&self) -> State {
        let mut scene = self.world.start();
        for _ in 0..PATIENCE {
            if scene.operation.due.is_some() {
                scene = self.one_tick(&scene);
            }
        }
        scene.operation.state
    }

    fn run(&mut self, mut scene: Scene) -> Option<Property> {
        let mut path = Vec::new();
        while !self.ends.contains(&scene) {
            let stays = path.contains(&scene) || path.len() == PATIENCE || scene.operation.due.is_none();
            if stays && !self.may_stay(&scene) {
                return Some(Property::EndsOnceCalm);
            }
            path.push(scene);
            if stays {
                break;
            }
            scene = self.one_tick(&scene);
            if scene.broken.is_some() {
                return scene.broken;
            }
        }
        self.ends.extend(path);
        None
    }

    fn one_tick(&self, scene: &Scene) -> Scene {
        let mut scene = self.world.claimed(scene, 0);
        if let Some(attempt) = scene.operation.attempt {
            match attempt.step {
                Step::Submit => self.world.receive(&mut scene, 0),
                Step::Cancel if scene.effect == Effect::Running => scene.effect = Effect::Cancelled,
                Step::Lookup | Step::Cancel => {}
            }
            let said = match scene.effect {
                Effect::None => Seen::Absent,
                effect => end(effect).unwrap_or(Seen::Accepted),
            };
            scene = self.world.settled(&scene, said, 0).unwrap_or(scene);
        }
        if scene.effect == Effect::Running {
            scene.effect = Effect::Finished;
        }
        self.world.tick(&scene)
    }

    fn may_stay(&self, scene: &Scene) -> bool {
        let contract = &self.world.contract;
        let proves_absence = contract.absent_is_final_after.is_some() && contract.clock_within.is_some();
        match scene.operation.state {
            State::OutcomeUnknown => !contract.looks_up || scene.effect == Effect::None && !proves_absence,
            state => state.is_final(),
        }
    }
}
