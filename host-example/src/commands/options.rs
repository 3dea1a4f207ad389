//! The options that all commands have, and what they come to.

use super::Failure;
use crate::{Files, Host, Limits, Principal};
use clap::Args;
use std::env::{self, VarError};
use std::path::{Path, PathBuf};

/// What the component reads from its environment, and is handed from this program's.
const VARIABLES: [&str; 3] = ["COUNTERFOIL_RETENTION", "COUNTERFOIL_DEADLINE", "COUNTERFOIL_CACHE"];

/// The options that all commands have. Each is asked for by the commands that need it.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The component [default: the one that `cargo xtask component` built].
    #[arg(long, global = true, value_name = "FILE")]
    component: Option<PathBuf>,
    /// The database. Whatever calls tools makes it if it is not there.
    #[arg(long, global = true, value_name = "FILE")]
    db: Option<PathBuf>,
    /// Who is calling.
    #[arg(long = "as", global = true, value_name = "SUBJECT@WORKSPACE", value_parser = subject)]
    subject: Option<(String, String)>,
    /// What the caller may do, separated by commas: read, write-notes, write-automations, deploy.
    #[arg(long, global = true, value_name = "PERMISSIONS", value_delimiter = ',')]
    allow: Vec<String>,
}

impl Options {
    /// The component's file: the one named, or else the one that was built in the target folder, in which this program
    /// is as well.
    ///
    /// # Errors
    ///
    /// If none is named and none was built: wrong usage.
    pub fn component(&self) -> Result<PathBuf, Failure> {
        if let Some(file) = &self.component {
            return Ok(file.clone());
        }
        let program = env::current_exe().map_err(Failure::usage)?;
        let found = program.ancestors().map(|folder| folder.join("counterfoil.wasm")).find(|file| file.is_file());
        found.ok_or_else(|| {
            Failure::usage("there is no component: run `cargo xtask component`, or name it with --component")
        })
    }

    /// The component, compiled, which is handed its own variables, as far as they are set.
    ///
    /// # Errors
    ///
    /// As for [`Options::component`] and [`Host::load`], or if one of the variables is no UTF-8: wrong usage.
    pub fn host(&self, limits: Limits) -> Result<Host, Failure> {
        let component = self.component()?;
        let mut variables = Vec::new();
        for name in VARIABLES {
            match env::var(name) {
                Ok(value) => variables.push((name, value)),
                Err(VarError::NotPresent) => {}
                Err(error) => return Err(Failure::usage(format!("{name}: {error}"))),
            }
        }
        let host = Host::load(&component, limits).map_err(|error| format!("{error:#}"))?;
        Ok(variables.into_iter().fold(host, |host, (name, value)| host.with_variable(name, value)))
    }

    /// Who is calling.
    ///
    /// # Errors
    ///
    /// If `--as` is missing: wrong usage.
    pub fn principal(&self) -> Result<Principal, Failure> {
        let (subject, workspace) =
            self.subject.clone().ok_or_else(|| Failure::usage("--as SUBJECT@WORKSPACE is missing"))?;
        let permissions = self.allow.iter().map(|name| name.trim().to_owned()).collect();
        Ok(Principal { workspace, subject, permissions })
    }

    /// Whether a caller, or what it may do, was named.
    #[must_use]
    pub fn has_principal(&self) -> bool {
        self.subject.is_some() || !self.allow.is_empty()
    }

    /// The database's file, which need not be there.
    ///
    /// # Errors
    ///
    /// If `--db` is missing: wrong usage.
    pub fn database(&self) -> Result<&Path, Failure> {
        self.db.as_deref().ok_or_else(|| Failure::usage("--db FILE is missing"))
    }

    /// The database, shared with others; the component makes it if it is not there.
    ///
    /// # Errors
    ///
    /// As for [`Options::database`] and [`Files::shared`].
    pub fn shared(&self) -> Result<Files, Failure> {
        Ok(Files::shared(self.database()?)?)
    }

    /// The same, for a command that makes no database.
    ///
    /// # Errors
    ///
    /// As for [`Options::shared`], or if the database is not there: wrong usage.
    pub fn existing(&self) -> Result<Files, Failure> {
        let files = self.shared()?;
        let database = self.database()?;
        if !database.exists() {
            return Err(Failure::usage(format!("there is no such database: {}", database.display())));
        }
        Ok(files)
    }
}

/// Whoever runs a command that no workspace confines, with this one permission.
#[must_use]
pub fn operator(permission: &str) -> Principal {
    Principal { workspace: String::new(), subject: "operator".to_owned(), permissions: vec![permission.to_owned()] }
}

fn subject(text: &str) -> Result<(String, String), String> {
    match text.split_once('@') {
        Some((subject, workspace)) if !subject.is_empty() && !workspace.is_empty() => {
            Ok((subject.to_owned(), workspace.to_owned()))
        }
        _ => Err("expected SUBJECT@WORKSPACE, such as ada@acme".to_owned()),
    }
}
