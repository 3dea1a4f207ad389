//! The program `counterfoil` from outside: real processes, real files, and HTTP written by hand.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that meets an error has failed")]

mod harness;
mod scripted;
mod served;
mod world;

mod admission;
mod budget;
mod cancelling;
mod crowd;
mod interruptions;
mod kills;
mod lasting;
mod operations;
mod owning;
mod provider;
mod provider_faults;
mod random;
mod secrets;
mod sending;
mod serving;
mod strangers;
mod upkeep;
mod work;
