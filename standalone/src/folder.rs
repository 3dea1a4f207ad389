//! The folder of the database. Its path is the operator's choice, since a host may let a component see its folders under
//! their own names only.

use crate::caller::variable;
use wasip2::filesystem::preopens::get_directories;
use wasip2::filesystem::types::{Descriptor, DescriptorFlags, ErrorCode, OpenFlags, PathFlags};

const DIR: &str = "COUNTERFOIL_DIR";

/// Finds the folder that `COUNTERFOIL_DIR` names, or else the only one that the host has opened for this component.
///
/// # Errors
///
/// A sentence for the caller and the operator.
pub fn find() -> Result<Descriptor, String> {
    let mut opened = get_directories();
    let Some(path) = variable(DIR) else {
        return match opened.len() {
            0 => Err(format!("The host has opened no folder, in which {DIR} could name that of the database.")),
            1 => Ok(opened.remove(0).0),
            count => Err(format!("{DIR} must name the folder of the database: the host has opened {count} folders.")),
        };
    };
    let rest = |name: &str| below(name, &path).map(str::to_owned);
    let best = opened.into_iter().filter_map(|(folder, name)| Some((folder, rest(&name)?)));
    match best.min_by_key(|(_, rest)| rest.len()) {
        None => Err(format!("{DIR} names {path}, which is in no folder that the host has opened.")),
        Some((folder, rest)) if rest.is_empty() => Ok(folder),
        Some((folder, rest)) => open(&folder, &rest)
            .map_err(|error| format!("{DIR} names {path}, which cannot be opened: {}.", error.name())),
    }
}

/// The rest of the path, if it begins with the folder's name.
fn below<'a>(name: &str, path: &'a str) -> Option<&'a str> {
    let trim = |path: &'a str| path.strip_prefix("./").unwrap_or(path).trim_matches('/');
    let is_relative = !path.starts_with('/');
    match name {
        "." | "./" | "" => is_relative.then(|| if path == "." { "" } else { trim(path) }),
        _ => {
            let rest = path.strip_prefix(name.trim_end_matches('/'))?;
            (rest.is_empty() || rest.starts_with('/')).then(|| rest.trim_matches('/'))
        }
    }
}

/// Opens a folder in a folder. Without MUTATE_DIRECTORY: some hosts refuse the flag, and take the permission from what they
/// opened themselves.
pub fn open(folder: &Descriptor, path: &str) -> Result<Descriptor, ErrorCode> {
    folder.open_at(PathFlags::empty(), path, OpenFlags::DIRECTORY, DescriptorFlags::READ)
}

/// Returns once the folder's entries would survive a power cut.
pub fn sync(folder: &Descriptor) -> Result<(), ErrorCode> {
    // Of a folder that the host opened itself, some hosts do not do this.
    open(folder, ".")?.sync()
}
