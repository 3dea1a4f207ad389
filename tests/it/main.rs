//! The guarantees, each a test named after it, through the host: real components, files and processes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that meets an error has failed")]

mod harness;

mod access;
mod batches;
mod cli;
mod concurrency;
mod contract;
mod crashes;
mod disk;
mod exports;
mod faults;
mod files;
mod input;
mod library;
mod output;
mod schemas;
mod tidy;
