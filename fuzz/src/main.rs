//! libFuzzer, on the target that `COUNTERFOIL_FUZZ` names.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::env;
use std::sync::LazyLock;

static TARGET: LazyLock<fuzz::Target> = LazyLock::new(|| {
    let name = env::var("COUNTERFOIL_FUZZ").unwrap_or_default();
    let found = fuzz::TARGETS.iter().find(|(target, _)| *target == name);
    found.unwrap_or_else(|| panic!("COUNTERFOIL_FUZZ={name} is no target")).1
});

fuzz_target!(|data: &[u8]| TARGET(data));
