//! The guarantees of the standalone component: under a file system in memory, where every pause, kill and power cut can be
//! tried, and on real files, with processes that are killed and stopped.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that meets an error has failed")]

mod disk;
mod exports;
mod faults;
mod harness;
mod host;
mod marks;
mod pauses;
mod plain;
mod power;
mod principal;
mod torture;
