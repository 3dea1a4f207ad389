//! The engine and the server, natively, under whatever input there is. libFuzzer looks for input that breaks them (`cargo xtask
//! fuzz`); the tests replay the corpus. No target knows what to answer from the code that it tests: each has rules of its own.
//!
//! | Target | What it is fed | What must hold |
//! |---|---|---|
//! | [`call`] | batches of calls; an operator's and a worker's requests between them | each answer is as the [`model`] says, and fits the tool's schema; a refusal changes nothing; what has ended has ended; the database is whole |
//! | [`canonical`] | two texts of arguments | equal canonical forms if and only if they mean the same ([`meaning`]) |
//! | [`http`] | the bytes of a connection | an answer of HTTP, no 5xx; nobody calls without a token; each call has its answer |
//! | [`stdio`] | lines of standard input | lines of JSON-RPC, one to each call |
//! | [`tokens`] | a file of tokens, and a token that is shown | let in is whose hash is listed, and nobody else |
//!
//! An input that takes more than 10 s or 512 MB breaks a target as well.

mod arguments;
pub mod call;
pub mod canonical;
mod engine;
pub mod http;
pub mod meaning;
pub mod model;
mod operator;
pub mod rpc;
mod server;
mod spelling;
pub mod stdio;
pub mod tokens;

/// Takes any bytes, and panics if something does not hold.
pub type Target = fn(&[u8]);

pub const TARGETS: [(&str, Target); 5] = [
    ("call", call::run),
    ("canonical", canonical::run),
    ("http", http::run),
    ("stdio", stdio::run),
    ("tokens", tokens::run),
];
