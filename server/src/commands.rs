//! The commands that the small host does not have.

pub mod backup;
pub mod call;
pub mod operations;
pub mod provider;
pub mod resolve;
pub mod restore;
pub mod serve;
pub mod sweep;
pub mod token;
pub mod work;
