//! Bearer tokens: a TOML file of their hashes, and of whose they are. It is read at each request, so that what stands in it
//! now is what holds.

use host_example::Principal;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use subtle::ConstantTimeEq;
use tracing::{error, info};

/// The most bytes of a file: about 1,000 tokens.
const MAX_FILE: u64 = 256 << 10;

/// What every token begins with, for people and for programs that look for secrets in texts.
const PREFIX: &str = "counterfoil_";

#[derive(Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    #[serde(default)]
    token: Vec<Entry>,
}

/// One token, as it stands in the file.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// For people: which token this is.
    pub name: String,
    /// Of the whole token, in hexadecimal digits. A token is 256 random bits, which nobody guesses, however fast the hash.
    pub sha256: String,
    pub subject: String,
    pub workspace: String,
    /// RFC 3339, such as `2027-01-31T00:00:00Z`. None: until it is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    // The last, so that what is cut off is no entry.
    pub permissions: Vec<String>,
}

/// An entry that was checked.
struct Token {
    hash: [u8; 32],
    expires: Option<SystemTime>,
    principal: Principal,
}

pub struct Tokens {
    file: PathBuf,
    /// What the file held when it was last looked at, and what that came to.
    last: Mutex<(Result<Vec<u8>, String>, Known)>,
}

type Known = Arc<Result<Vec<Token>, String>>;

impl Tokens {
    /// # Errors
    ///
    /// If the file cannot be read, or not all of it is understood.
    pub fn load(file: PathBuf) -> Result<Tokens, String> {
        let bytes = read(&file)?;
        let known = understand(&file, &bytes)?;
        info!(tokens = known.len(), "tokens read");
        Ok(Tokens { file, last: Mutex::new((Ok(bytes), Arc::new(Ok(known)))) })
    }

    /// Whose the token is, by the file as it is now; none if it is nobody's, or has expired.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or understood: then nobody is let in.
    pub fn principal(&self, token: &str) -> Result<Option<Principal>, String> {
        let known = self.known();
        let tokens = known.as_ref().as_ref().map_err(String::clone)?;
        let hash: [u8; 32] = Sha256::digest(token).into();
        let mut found = None;
        // Each is looked at, and each for as long, so that the time tells nothing of what stands in the file.
        for token in tokens {
            if bool::from(token.hash.ct_eq(&hash)) {
                found = Some(token);
            }
        }
        let now = SystemTime::now();
        Ok(found.filter(|token| token.expires.is_none_or(|end| now < end)).map(|token| token.principal.clone()))
    }

    /// Bytes are compared, and not times of change: two changes can bear the same time.
    fn known(&self) -> Known {
        let bytes = read(&self.file);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != bytes {
            let known = bytes.as_ref().map_err(String::clone).and_then(|bytes| understand(&self.file, bytes));
            match &known {
                Ok(tokens) => info!(tokens = tokens.len(), "tokens read again"),
                Err(error) => error!(%error, "nobody is let in"),
            }
            *last = (bytes, Arc::new(known));
        }
        Arc::clone(&last.1)
    }

    /// All that any token has.
    pub fn permissions(&self) -> Vec<String> {
        let known = self.known();
        let all = known.iter().flatten().flat_map(|token| &token.principal.permissions);
        all.cloned().collect::<BTreeSet<_>>().into_iter().collect()
    }
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    let wrong = |error: io::Error| format!("cannot read {}: {error}", file.display());
    // Opening a pipe would wait for ever.
    if !file.metadata().map_err(wrong)?.is_file() {
        return Err(format!("{} is not a regular file", file.display()));
    }
    let mut bytes = Vec::new();
    File::open(file).and_then(|opened| opened.take(MAX_FILE + 1).read_to_end(&mut bytes)).map_err(wrong)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(format!("{} has more than {MAX_FILE} bytes", file.display()));
    }
    Ok(bytes)
}

/// What is wrong is told without a token, should one stand in the file.
fn understand(file: &Path, bytes: &[u8]) -> Result<Vec<Token>, String> {
    parse(file, bytes).map_err(|error| {
        let where_to_look = format!("{}: a token itself stands in it, where its hash belongs", file.display());
        if error.contains(PREFIX) { where_to_look } else { error }
    })
}

fn parse(file: &Path, bytes: &[u8]) -> Result<Vec<Token>, String> {
    let wrong = |why: String| format!("{}: {why}", file.display());
    let text = str::from_utf8(bytes).map_err(|error| wrong(error.to_string()))?;
    // The error's own text would show a part of the file.
    let listed: Listed = toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        wrong(format!("line {}: {}", before.matches('\n').count() + 1, error.message()))
    })?;
    let (mut names, mut hashes) = (HashSet::new(), HashSet::new());
    let mut tokens = Vec::new();
    for Entry { name, sha256, subject, workspace, expires, permissions } in listed.token {
        let wrong = |why: &str| wrong(format!("the token named {name:?}: {why}"));
        let hash = hash(&sha256).ok_or_else(|| wrong("sha256: expected 64 hexadecimal digits"))?;
        if subject.is_empty() || workspace.is_empty() {
            return Err(wrong("subject and workspace must not be empty"));
        }
        if !names.insert(name.clone()) {
            return Err(wrong("there is another one of this name: choose another, or remove that entry"));
        }
        if !hashes.insert(hash) {
            return Err(wrong("another one has the same hash"));
        }
        let expires = expires.map(|time| humantime::parse_rfc3339(&time));
        let expires = expires.transpose().map_err(|_| wrong("expires: expected such as 2027-01-31T00:00:00Z"))?;
        tokens.push(Token { hash, expires, principal: Principal { workspace, subject, permissions } });
    }
    Ok(tokens)
}

fn hash(text: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(hash)
}

/// Makes a token, adds it to the file, which is made if it is not there, and returns it. It is kept nowhere.
///
/// # Errors
///
/// If the file cannot be understood with it, such as when the name is there already, or cannot be written.
pub fn add(file: &Path, name: &str, principal: &Principal, lifetime: Option<Duration>) -> Result<String, String> {
    let token = new_token().map_err(|error| format!("the system gives no random numbers: {error}"))?;
    let end =
        |lifetime| SystemTime::now().checked_add(lifetime).ok_or("the token would not expire: name a shorter time");
    let expires = lifetime.map(end).transpose()?;
    let entry = Entry {
        name: name.to_owned(),
        sha256: format!("{:x}", Sha256::digest(&token)),
        subject: principal.subject.clone(),
        workspace: principal.workspace.clone(),
        expires: expires.map(|time| humantime::format_rfc3339_seconds(time).to_string()),
        permissions: principal.permissions.clone(),
    };
    let stanza = toml::to_string(&Listed { token: vec![entry] }).map_err(|error| error.to_string())?;
    let failed = |error| format!("cannot write {}: {error}", file.display());
    let mut opened = OpenOptions::new().create(true).append(true).mode(0o600).open(file).map_err(failed)?;
    // Whoever adds one at the same time waits.
    opened.lock().map_err(failed)?;
    let before = read(file)?;
    let stanza = if before.is_empty() { stanza } else { format!("\n{stanza}") };
    let whole = [&before, stanza.as_bytes()].concat();
    if whole.len() as u64 > MAX_FILE {
        return Err(format!("{} is full: remove entries that nobody uses any more", file.display()));
    }
    understand(file, &whole)?;
    // Durable, so that nobody is given a token that the file does not hold.
    let written = opened.write_all(stanza.as_bytes()).and_then(|()| opened.sync_all()).and_then(|()| sync_folder(file));
    written.map_err(|error| {
        // A part of an entry would make the whole file one that is not understood.
        drop(opened.set_len(before.len() as u64));
        failed(error)
    })?;
    Ok(token)
}

fn new_token() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().fold(PREFIX.to_owned(), |token, byte| format!("{token}{byte:02x}")))
}

fn sync_folder(file: &Path) -> io::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}
