//! Breadth first, so that the way to what is broken is a shortest one.

use super::calm::Calm;
use super::properties::{self, Property};
use super::scene::{Move, Moves, Scene};
use super::world::World;
use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

pub struct Explored {
    pub states: usize,
    pub moves: usize,
}

pub struct Counterexample {
    pub property: Property,
    /// What happened, and what it led to.
    pub steps: Moves,
}

pub type Scenes = HashSet<Scene, BuildHasherDefault<Mixer>>;

/// Explores every state that can be reached, and looks out for what breaks one of these.
pub fn explore(world: &World, properties: &[Property]) -> Result<Explored, Counterexample> {
    let is_sought = |property: &Property| properties.contains(property);
    let start = world.start();
    let mut found = vec![Node { scene: start, parent: 0, by: Move::Tick }];
    let mut seen = Scenes::from_iter([start]);
    let mut calm = Calm::new(world);
    let (mut next, mut moves) = (Moves::new(), 0);
    let mut parent = 0;
    while parent < found.len() {
        let scene = found[parent].scene;
        world.moves(&scene, &mut next);
        for (by, mut after) in next.drain(..) {
            let mut broken = properties::of_scene(&after).filter(is_sought);
            after.broken = broken;
            if after == scene {
                continue;
            }
            moves += 1;
            if !seen.insert(after) {
                continue;
            }
            if broken.is_none() && is_sought(&Property::EndsOnceCalm) {
                broken = calm.check(&after).filter(is_sought);
            }
            found.push(Node { scene: after, parent, by });
            if let Some(property) = broken {
                return Err(Counterexample { property, steps: way_to_last(&found) });
            }
        }
        parent += 1;
    }
    Ok(Explored { states: found.len(), moves })
}

struct Node {
    scene: Scene,
    parent: usize,
    by: Move,
}

fn way_to_last(found: &[Node]) -> Moves {
    let mut steps = Moves::new();
    let mut at = found.len() - 1;
    while at > 0 {
        let Node { scene, parent, by } = &found[at];
        steps.push((*by, *scene));
        at = *parent;
    }
    steps.reverse();
    steps
}

impl fmt::Display for Counterexample {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{:?} is broken after {} steps:", self.property, self.steps.len())?;
        let mut ticks = 0;
        for (number, (by, scene)) in (1..).zip(&self.steps) {
            ticks += u32::from(*by == Move::Tick);
            writeln!(out, "{number:>4}. in tick {ticks}: {by:?}")?;
            writeln!(out, "      {scene}")?;
        }
        Ok(())
    }
}

/// Quick rather than safe against chosen input: the default costs most of the time.
#[derive(Default)]
pub struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value as u64);
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }
}
