//! The guarantees, each a test named after it, through the host: real components, files and processes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that meets an error has failed")]

mod harness;
mod outbox_harness;

mod access;
mod batches;
mod cancelling;
mod cli;
mod concurrency;
mod contract;
mod crashes;
mod deployments;
mod disk;
mod exports;
mod faults;
mod files;
mod histories;
mod hostile;
mod input;
mod killed;
mod library;
mod listing;
mod model;
mod outbox;
mod outcomes;
mod output;
mod restored;
mod retention;
mod schemas;
mod settling;
mod tidy;
