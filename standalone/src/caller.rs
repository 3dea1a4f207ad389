//! One principal for one deployment: whoever runs the component says in its environment for whom. It is read at every
//! call, so that a host that changes it is obeyed at the next.

use crate::Adapter;
use crate::bindings::exports::counterfoil::tools::caller::{Guest, Principal};
use crate::files;
use wasip2::cli::environment::get_environment;

const SUBJECT: &str = "COUNTERFOIL_SUBJECT";
const WORKSPACE: &str = "COUNTERFOIL_WORKSPACE";
/// Separated by commas.
const PERMISSIONS: &str = "COUNTERFOIL_PERMISSIONS";

impl Guest for Adapter {
    fn current(_: u32) -> Option<Principal> {
        // The first that every call asks, whatever it does.
        files::begin_call();
        let [subject, workspace, permissions] = [SUBJECT, WORKSPACE, PERMISSIONS].map(|name| {
            let value = variable(name);
            if value.is_none() {
                eprintln!("counterfoil: {name} is not set, or empty: every call is denied");
            }
            value
        });
        let permissions = permissions?.split(',').map(|name| name.trim().to_owned()).collect();
        Some(Principal { workspace: workspace?, subject: subject?, permissions })
    }
}

/// None if it is not set, or blank.
pub fn variable(name: &str) -> Option<String> {
    // Not Rust's own, which reads the environment once in an instance's life.
    let (_, value) = get_environment().into_iter().find(|(other, _)| other == name)?;
    (!value.trim().is_empty()).then_some(value)
}
