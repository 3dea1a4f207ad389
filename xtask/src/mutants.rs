//! Components with one fault each, for tests that must notice it. Each is made of the sources as they are: a fault names
//! text that must be there exactly once, so that no change elsewhere disarms it unseen.

use crate::{Result, cargo, execute, keep, root, setup, target_folder};
use std::fs;
use std::path::{Path, PathBuf};

struct Mutant {
    name: &'static str,
    file: &'static str,
    text: &'static str,
    fault: &'static str,
}

const MUTANTS: [Mutant; 4] = [
    Mutant {
        name: "synchronous-normal",
        file: "src/storage.rs",
        text: r#""PRAGMA synchronous=FULL;"#,
        fault: r#""PRAGMA synchronous=NORMAL;"#,
    },
    Mutant {
        name: "journal-delete",
        file: "src/storage.rs",
        text: r#"set(&connection, "journal_mode", "truncate")?;"#,
        fault: r#"set(&connection, "journal_mode", "delete")?;"#,
    },
    Mutant {
        name: "journal-off",
        file: "src/storage.rs",
        text: r#"Sharing::SoleAtomic => open_sole(schema, "memory"),"#,
        fault: r#"Sharing::SoleAtomic => open_sole(schema, "off"),"#,
    },
    Mutant {
        name: "no-sync-at-open",
        file: "src/storage/remains.rs",
        text: "for part in [Part::Database, Part::Journal, Part::Wal] {",
        fault: "for part in [Part::Database; 0] {",
    },
];

/// Builds all of them, and returns the folder that has them, each as `NAME.wasm`.
pub fn run() -> Result<PathBuf> {
    let folder = target_folder()?.join("mutants");
    for mutant in &MUTANTS {
        mutant.build(&folder)?;
    }
    Ok(folder)
}

impl Mutant {
    /// Against the target folder as it is, so that nothing but the component is compiled.
    fn build(&self, folder: &Path) -> Result<()> {
        // A library's file has the library's name and no more, so each mutant has a name of its own.
        let library = format!("mutant_{}", self.name.replace('-', "_"));
        let source = folder.join(self.name);
        let named = format!("[lib]\nname = \"{library}\"\n\n[features]\n");
        copy(root(), &source, &|path| {
            let bytes = fs::read(root().join(path))?;
            match path {
                _ if path == Path::new(self.file) => replace(path, bytes, self.text, self.fault),
                _ if path == Path::new("Cargo.toml") => replace(path, bytes, "[features]\n", &named),
                _ => Ok(bytes),
            }
        })?;
        let mut build = cargo(&["rustc", "--quiet", "--locked", "--lib", "--crate-type", "cdylib"]);
        build.args(["--target", setup::TARGET]).arg("--target-dir").arg(target_folder()?);
        execute(build.arg("--manifest-path").arg(source.join("Cargo.toml")))?;
        let built = target_folder()?.join(format!("wasm32-wasip2/debug/{library}.wasm"));
        keep(&built, folder.join(self.name).with_extension("wasm")).map(drop)
    }
}

/// Copies what Cargo may ask for, each file as `content` gives it for its path. One that is there already with these bytes stays
/// as it is, so that nothing is built twice.
fn copy(from: &Path, to: &Path, content: &dyn Fn(&Path) -> Result<Vec<u8>>) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_name() == "target" || entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        if entry.file_type()?.is_dir() {
            copy(&from, &to, content)?;
        } else {
            let content = content(from.strip_prefix(root())?)?;
            if !fs::read(&to).is_ok_and(|there| there == content) {
                fs::write(&to, content)?;
            }
        }
    }
    Ok(())
}

fn replace(path: &Path, bytes: Vec<u8>, what: &str, by: &str) -> Result<Vec<u8>> {
    let text = String::from_utf8(bytes)?;
    match text.matches(what).count() {
        1 => Ok(text.replace(what, by).into_bytes()),
        count => Err(format!("{} has this {count} times, and not once: {what}", path.display()).into()),
    }
}
