//! One lock for all that SQLite locks, on `wasi:filesystem` alone: whoever holds the token of [`token`](crate::token) has
//! it. One that seems to have died with it is overtaken, and may be alive: so each change is made only after a look at
//! the token, and what is changed after that look all the same is no longer the database ([`fence`](crate::fence)).
//!
//! | What happens | What follows |
//! |---|---|
//! | the token is free | renamed to a name of one's own: of several, one succeeds |
//! | it is new: there was none, or it is gone by somebody's hand or a power cut | taken over, with the fence: whoever held the one before may be alive |
//! | it is held, under the same name for the time of a lease | taken over: renamed, then the fence |
//! | its holder reads or changes anything, a quarter of a lease after the last time | renewed: renamed to another name of its own |
//! | its holder finds it gone | lost: nothing more is changed by this holder |
//! | there is none in the folder | after the time of a lease, one is made |
//! | there are two, after a power cut | the one that was renamed less often is removed |
//! | its holder's storage failed | it stays held: what was not stored is written anew by the fence of whoever takes it over |
//!
//! How long a lease is decides only how soon the work of a dead holder is taken up, and how often one that lives is overtaken
//! and the copies are made for nothing. While a disk stores what it is told to, nobody shows a sign of life; so a token says
//! how slow that was.

use crate::fence::{self, FenceError};
use crate::folder;
use crate::token::Token;
use std::time::{Duration, Instant};
use wasip2::filesystem::types::{Descriptor, DescriptorFlags, DescriptorType, ErrorCode, OpenFlags, PathFlags};
use wasip2::random::random::get_random_u64;

/// How long a holder is let alone who shows no sign of life: this, doubled as often as the token's patience says.
const LEASE: Duration = Duration::from_secs(1);

/// How long a call waits for the lock at most. A lease is never longer than a third of it: if nobody could wait for the
/// end of one, nobody would ever take over.
pub const WAIT: Duration = Duration::from_secs(10);

const MOST_PATIENCE: u32 = 2;

pub struct Lock {
    /// The folder of the database. The lock's own is found by its name each time: what it was before it was moved away or
    /// removed is not the lock.
    parent: Descriptor,
    name: String,
    /// The token, while it is ours as far as we know.
    held: Option<Held>,
    /// What others hold, and since when it has been the same.
    watched: Option<(Option<Token>, Instant)>,
}

#[derive(Clone, Copy)]
struct Held {
    token: Token,
    renewed: Instant,
    /// For how long at most it had the same name.
    longest: Duration,
    /// Whether anything was stored, so that this says how slow that is.
    synced: bool,
    is_lost: bool,
}

/// The lock was lost, or it cannot be told whether it was: nothing may be changed.
#[derive(Debug)]
pub struct Lost;

impl Lock {
    /// Opens the lock's folder, made if it is not there.
    ///
    /// # Errors
    ///
    /// A sentence for the caller and the operator.
    pub fn open(parent: Descriptor, name: &str) -> Result<Lock, String> {
        let failed = |error: ErrorCode| {
            let error = error.name();
            format!(
                "{name} cannot be opened or made ({error}): the folder of the database must be there, and writable."
            )
        };
        // Whoever makes it at the same moment may come first.
        for _ in 0..2 {
            match parent.stat_at(PathFlags::empty(), name) {
                Err(ErrorCode::NoEntry) => make(&parent, name).map_err(failed)?,
                Err(error) => return Err(failed(error)),
                Ok(stat) if stat.type_ != DescriptorType::Directory => {
                    return Err(format!(
                        "The database is used by a host that locks files, which this component cannot: {name} is its \
                         mark, to be removed once all such hosts are stopped."
                    ));
                }
                Ok(_) => return Ok(Lock { parent, name: name.to_owned(), held: None, watched: None }),
            }
        }
        Err(failed(ErrorCode::NoEntry))
    }

    /// Takes the lock without waiting, from one who seems dead if need be and allowed; false if others have it. Returns with
    /// files that nobody else changes.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read, or the database not be copied: the lock is not held.
    pub fn acquire(&mut self, may_take_over: bool) -> Result<bool, ErrorCode> {
        let Some(token) = self.token()? else { return Ok(false) };
        let now = Instant::now();
        let since = match self.watched {
            Some((watched, since)) if watched == token => since,
            _ => now,
        };
        self.watched = Some((token, since));
        let waited = now - since;
        match token {
            Some(token) if !token.is_held && !token.is_new() => self.take(token, token.taken()),
            Some(token) if token.is_new() || may_take_over && waited >= lease(token.patience) => {
                if !self.take(token, token.taken_over())? {
                    return Ok(false);
                }
                match fence::raise(self) {
                    Ok(()) => Ok(true),
                    // It stays held, for whoever comes next to take over: set free, it would be taken without a fence.
                    Err(error) => {
                        self.held = None;
                        match error {
                            FenceError::Lost => Ok(false),
                            FenceError::Failed(error) => Err(error),
                        }
                    }
                }
            }
            None if waited >= LEASE => {
                // Whose the copies are lost the lock with it, and a folder that is not empty keeps its name.
                fence::remove_copies(self)?;
                if self.names()?.is_some_and(|names| names.iter().any(|name| Token::parse(name).is_none())) {
                    eprintln!("counterfoil: the folder {} has no lock in it, and other files: remove it", self.name);
                    return Err(ErrorCode::NotEmpty);
                }
                make(&self.parent, &self.name)?;
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    fn take(&mut self, from: Token, to: Token) -> Result<bool, ErrorCode> {
        match self.rename(from, to) {
            Ok(()) => {
                let (renewed, longest) = (Instant::now(), Duration::ZERO);
                self.held = Some(Held { token: to, renewed, longest, synced: false, is_lost: false });
                self.watched = None;
                Ok(true)
            }
            // Somebody else was first.
            Err(ErrorCode::NoEntry) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Which files of the database are those of this holder: they are new after each takeover. None while it is not held.
    pub fn generation(&self) -> Option<u64> {
        Some(self.held?.token.takeovers)
    }

    /// Looks whether the lock is still held, before each change and after those that count, and keeps it so.
    pub fn check(&mut self) -> Result<(), Lost> {
        let Some(Held { token, renewed, longest, synced, is_lost: false }) = self.held else { return Err(Lost) };
        let now = Instant::now();
        let is_ours = if now - renewed > LEASE / 4 {
            let next = token.renamed();
            let longest = longest.max(now - renewed);
            self.held = Some(Held { token: next, renewed: now, longest, synced, is_lost: false });
            self.rename(token, next).is_ok()
        } else {
            self.parent.stat_at(PathFlags::empty(), &self.path(&token.to_string())).is_ok()
        };
        if let Some(held) = &mut self.held {
            held.is_lost = !is_ours;
        }
        if is_ours { Ok(()) } else { Err(Lost) }
    }

    /// Keeps the lock where nothing is changed for long. That it was lost matters at the next change.
    pub fn keep(&mut self) {
        if self.held.is_some_and(|held| held.renewed.elapsed() > LEASE / 4) {
            drop(self.check());
        }
    }

    /// Something was stored while it is held.
    pub fn synced(&mut self) {
        if let Some(held) = &mut self.held {
            held.synced = true;
        }
    }

    /// Leaves it held: whoever takes it over raises a fence, which one who finds it free does not.
    pub fn abandon(&mut self) {
        self.held = None;
    }

    /// Lets go of it, if it is still held.
    pub fn release(&mut self) {
        if let Some(Held { token, renewed, longest, synced, is_lost: false }) = self.held.take() {
            let patience = patience(longest.max(renewed.elapsed()));
            // One that stored nothing has not learnt that the disk is faster now.
            let patience = if synced { patience } else { patience.max(token.patience) };
            // If that fails, it was lost, or it will be taken over.
            let _lost = self.rename(token, token.released(patience));
        }
    }

    fn rename(&self, from: Token, to: Token) -> Result<(), ErrorCode> {
        self.parent.rename_at(&self.path(&from.to_string()), &self.parent, &self.path(&to.to_string()))
    }

    /// The token that counts, if there is one; none if that cannot be told at this moment.
    ///
    /// A power cut can bring an old name back beside the new one. It is removed before anybody takes the new one: later, it
    /// would be taken for the only one by whoever looks while the other is renamed.
    fn token(&self) -> Result<Option<Option<Token>>, ErrorCode> {
        let Some(names) = self.names()? else { return Ok(None) };
        let mut tokens: Vec<_> = names.iter().filter_map(|name| Token::parse(name)).collect();
        tokens.sort_by_key(|token| token.renames);
        let newest = tokens.pop();
        for old in &tokens {
            self.remove(&old.to_string())?;
        }
        Ok(tokens.is_empty().then_some(newest))
    }

    /// Removes a file of the lock's folder, which may be gone already.
    pub fn remove(&self, name: &str) -> Result<(), ErrorCode> {
        match self.parent.unlink_file_at(&self.path(name)) {
            Err(ErrorCode::NoEntry) => Ok(()),
            removed => removed,
        }
    }

    /// What is in the folder; none if something was renamed meanwhile, since its new name may be missing.
    pub fn names(&self) -> Result<Option<Vec<String>>, ErrorCode> {
        let entries = match folder::open(&self.parent, &self.name).and_then(|folder| folder.read_directory()) {
            // The folder itself was removed.
            Err(ErrorCode::NoEntry) => return Ok(Some(Vec::new())),
            entries => entries?,
        };
        let mut names = Vec::new();
        loop {
            match entries.read_directory_entry() {
                Ok(Some(entry)) => names.push(entry.name),
                Ok(None) => return Ok(Some(names)),
                // So says wasmtime.
                Err(ErrorCode::NoEntry) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// The folder of the database, and what is called by that name in the lock's.
    pub fn parent(&self) -> &Descriptor {
        &self.parent
    }

    pub fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.name)
    }
}

fn lease(patience: u32) -> Duration {
    (LEASE * (1 << patience.min(MOST_PATIENCE))).min(WAIT / 3)
}

/// The least with which one is not overtaken who stands still for so long, and as long again.
fn patience(still: Duration) -> u32 {
    (0..MOST_PATIENCE).find(|patience| lease(*patience) >= still * 2).unwrap_or(MOST_PATIENCE)
}

/// The folder gets its name with the token in it. Where the name is taken by a folder that is not empty, or by a file,
/// renaming fails: so there is never a second token, and never a folder beside a host's mark.
fn make(parent: &Descriptor, name: &str) -> Result<(), ErrorCode> {
    let draft = format!("{name}.{:016x}", get_random_u64());
    parent.create_directory_at(&draft)?;
    let token = format!("{draft}/{}", Token::new());
    let flags = OpenFlags::CREATE | OpenFlags::EXCLUSIVE;
    let made = parent.open_at(PathFlags::empty(), &token, flags, DescriptorFlags::WRITE).and_then(|file| {
        drop(file);
        parent.rename_at(&draft, parent, name)
    });
    if made.is_err() {
        let _left = parent.unlink_file_at(&token);
        let _left = parent.remove_directory_at(&draft);
    }
    match made {
        // What is in the way is looked at next.
        Err(ErrorCode::Exist | ErrorCode::NotEmpty | ErrorCode::NotDirectory) => Ok(()),
        made => made,
    }
}
