//! The machine for effects outside the database, `engine::next::next` itself, explored together with a model of the
//! world: every order of what workers, network, provider, clock, caller and person may do, until nothing new is found.
//!
//! | File | What is there |
//! |---|---|
//! | `scene.rs`, `world.rs`, `time.rs` | one state; what may happen in it; how time goes by |
//! | `properties.rs`, `calm.rs` | what must hold always, and once nothing goes wrong any more |
//! | `search.rs` | the search, and a shortest way to what is broken |
//! | `mutants.rs` | faults put into the machine, each of which must be found |
//! | `lies.rs` | assumptions taken away, each of which must be needed |
//!
//! Left out: databases restored from an older copy; contracts that change; more than two workers at a time that may
//! still send; clocks that err by less than the most they may; pauses that grow. When something is due is not waited
//! for: that it is due within a bound is checked. A request that was refused is refused in all its copies.

mod calm;
mod lies;
mod mutants;
mod properties;
mod scene;
mod search;
mod time;
mod world;

use calm::Calm;
use counterfoil::engine::next::next;
use counterfoil::engine::operation::{Contract, State};
use properties::Property;
use std::io::{self, Write};
use world::{FINAL_AFTER, Machine, TICK, Truth, World};

const KEYS: u8 = 1;
const LOOKUP: u8 = 2;
const FINAL: u8 = 4;
const CANCELS: u8 = 8;

/// What a provider offers, and how far the clock is vouched to be off at most.
fn contract(offers: u8, clock_within: Option<u64>) -> Contract {
    let has = |offer| offers & offer != 0;
    // Long enough for a second sending a tick after the first.
    let window = 2 * TICK + 2 * clock_within.unwrap_or_default();
    Contract {
        deduplicates_for: has(KEYS).then_some(window),
        looks_up: has(LOOKUP),
        absent_is_final_after: has(FINAL).then_some(FINAL_AFTER),
        cancels: has(CANCELS),
        clock_within,
    }
}

/// Every one that makes sense: without a question there is no answer of `absent`.
fn contracts() -> impl Iterator<Item = Contract> {
    let offers = (0..16).filter(|offers| offers & FINAL == 0 || offers & (LOOKUP | CANCELS) != 0);
    offers.flat_map(|offers| [None, Some(0), Some(1)].map(|clock| contract(offers, clock)))
}

fn honest(contract: Contract, machine: Machine) -> World {
    World { contract, truth: Truth::of(&contract), machine }
}

fn name(contract: &Contract) -> String {
    let offers = [
        (contract.deduplicates_for.is_some(), "keys"),
        (contract.looks_up, "look-up"),
        (contract.absent_is_final_after.is_some(), "absent final"),
        (contract.cancels, "cancels"),
    ];
    let offers: Vec<_> = offers.into_iter().filter(|(has, _)| *has).map(|(_, offer)| offer).collect();
    let offers = if offers.is_empty() { "nothing".to_owned() } else { offers.join(", ") };
    let clock = contract.clock_within.map_or("any clock".to_owned(), |error| format!("clock within {error} ms"));
    format!("{offers}; {clock}")
}

/// D1 to D6, E2, E3.
#[test]
fn whatever_goes_wrong_there_is_one_effect_at_most_and_no_false_word_of_it() {
    let (mut states, mut moves) = (0, 0);
    for contract in contracts() {
        let explored = search::explore(&honest(contract, next), properties::ALL);
        let explored = explored.unwrap_or_else(|found| panic!("{}: {found}", name(&contract)));
        println!("{:>9} states, {:>9} moves: {}", explored.states, explored.moves, name(&contract));
        assert!(explored.states > 200, "almost nothing was explored");
        states += explored.states;
        moves += explored.moves;
    }
    // To be seen in every run, past the capture of a passing test's output.
    writeln!(io::stderr(), "model: {states} states, {moves} moves, over all contracts").unwrap();
    assert!(states > 1_000_000, "{states}");
}

#[test]
fn if_nothing_goes_wrong_it_succeeds_wherever_the_end_can_be_learnt() {
    for contract in contracts() {
        let knows_keys = contract.deduplicates_for.is_some() && contract.clock_within.is_some();
        let end = if contract.looks_up || knows_keys { State::Succeeded } else { State::OutcomeUnknown };
        assert_eq!(Calm::new(&honest(contract, next)).end_without_faults(), end, "{}", name(&contract));
    }
}

/// Else the search would prove nothing.
#[test]
fn every_fault_put_into_the_machine_is_found() {
    for mutant in mutants::all() {
        let contract = contract(mutant.offers, mutant.clock);
        let Err(found) = search::explore(&honest(contract, mutant.machine), &[mutant.breaks]) else {
            panic!("not found: {}", mutant.fault)
        };
        println!("{} ({}): {found}", mutant.fault, name(&contract));
    }
}

/// Else the contract would ask for more than it needs.
#[test]
fn every_assumption_is_needed() {
    for lie in lies::all() {
        let contract = contract(lie.offers, lie.clock);
        let world = World { contract, truth: (lie.truth)(Truth::of(&contract)), machine: next };
        let sought = [Property::OneEffect, Property::NoFalseDenial];
        let Err(found) = search::explore(&world, &sought) else { panic!("not needed: {}", lie.what) };
        println!("{} ({}): {found}", lie.what, name(&contract));
    }
}
