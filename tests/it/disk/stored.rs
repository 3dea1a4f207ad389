//! What is on a [`Disk`], and what is left of it: by a killed process all that it wrote; by a machine without power what was
//! synced, and of each later change whatever sectors the seed says, and likewise of the folder's entries.

use super::{Call, Disk};
use host_example::{Part, Sharing};
use test_support::{SECTOR, sectors};

/// What is on the disk, and in the system's memory.
#[derive(Clone, Default)]
pub(super) struct Stored {
    pub(super) contents: Vec<Content>,
    /// The folder: which content each part's name leads to, now and after a power cut.
    pub(super) names: [Option<usize>; 3],
    pub(super) synced_names: [Option<usize>; 3],
    pub(super) died_in_sync: bool,
    /// What was changed last.
    pub(super) changed: usize,
    /// Controls: so many syncs do nothing, and a removal does not last.
    pub(super) lies: u32,
    pub(super) forgets_removals: bool,
}

#[derive(Clone, Default)]
pub(super) struct Content {
    pub(super) synced: Vec<u8>,
    pub(super) current: Vec<u8>,
    pub(super) since: Vec<Change>,
}

#[derive(Clone)]
pub(super) enum Change {
    Write(usize, Vec<u8>),
    Size(usize),
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::Write(offset, written) => put(bytes, *offset, written),
            Change::Size(size) => bytes.resize(*size, 0),
        }
    }
}

/// A disk in the middle of a call.
pub struct Moment {
    /// The number of the call, from 1.
    pub at: u64,
    pub call: Call,
    pub(super) sharing: Sharing,
    pub(super) stored: Stored,
}

impl Moment {
    /// If the process is killed in this call, and the machine goes on.
    pub fn killed(&self) -> Disk {
        let stored = match self.sharing {
            // What was not synced was never stored.
            Sharing::SoleAtomic => self.stored.power_cut(self.sharing, 0),
            _ => self.stored.clone(),
        };
        Disk::with(self.sharing, stored)
    }

    /// If the process is killed in the middle of a write, of which the beginning is there.
    pub fn killed_within(&self) -> impl Iterator<Item = Disk> {
        let quarters = if self.call == Call::Write && self.sharing != Sharing::SoleAtomic { 1..4 } else { 0..0 };
        quarters.filter_map(|quarter| {
            let mut stored = self.stored.clone();
            let content = &mut stored.contents[stored.changed];
            let Some(Change::Write(_, bytes)) = content.since.last_mut() else { return None };
            let written = bytes.len() * quarter / 4 / SECTOR * SECTOR;
            if written == 0 {
                return None;
            }
            bytes.truncate(written);
            content.current = content.synced.clone();
            content.since.iter().for_each(|change| change.apply(&mut content.current));
            Some(Disk::with(self.sharing, stored))
        })
    }

    /// See [`Disk::power_cut`].
    pub fn power_cut(&self, seed: u64) -> Disk {
        Disk::with(self.sharing, self.stored.power_cut(self.sharing, seed))
    }
}

impl Disk {
    /// A disk with this database and nothing else on it.
    pub fn of(sharing: Sharing, database: Vec<u8>) -> Disk {
        let content = Content { synced: database.clone(), current: database, since: Vec::new() };
        let names = [Some(0), None, None];
        Disk::with(sharing, Stored { contents: vec![content], names, synced_names: names, ..Stored::default() })
    }

    /// What a power cut leaves. Seed 0 drops all that was not synced, seed 1 keeps it, others choose at random.
    pub fn power_cut(&self, seed: u64) -> Disk {
        let state = self.state();
        Disk::with(state.sharing, state.stored.power_cut(state.sharing, seed))
    }

    /// The file as it is read now.
    pub fn database(&self) -> Vec<u8> {
        let state = self.state();
        let content = state.stored.names[Part::Database as usize].map(|content| &state.stored.contents[content]);
        content.map(|content| content.current.clone()).unwrap_or_default()
    }

    /// The same for disks on which the same is found, now and after a power cut.
    pub fn fingerprint(&self) -> u64 {
        let state = self.state();
        let mut print = 0;
        for name in state.stored.names.iter().chain(&state.stored.synced_names) {
            print = mix(print);
            let Some(content) = name.map(|content| &state.stored.contents[content]) else { continue };
            let is_synced = content.synced == content.current;
            for bytes in [&content.synced, &content.current].into_iter().take(2 - usize::from(is_synced)) {
                // In larger steps than a hasher's, which is not optimised here.
                let (words, rest) = bytes.as_chunks::<16>();
                for word in words {
                    let word = u128::from_ne_bytes(*word) ^ u128::from(print);
                    let product = (word | 1).wrapping_mul(0x9FB2_1C65_1E98_DF25_9E37_79B9_7F4A_7C15);
                    print = (product >> 64) as u64 ^ word as u64;
                }
                print = rest.iter().fold(mix(print ^ bytes.len() as u64), |print, byte| mix(print ^ u64::from(*byte)));
            }
        }
        print
    }
}

impl Stored {
    pub(super) fn used(&self) -> usize {
        self.names.iter().flatten().map(|&content| self.contents[content].current.len()).sum()
    }

    pub(super) fn change(&mut self, content: usize, change: Change) {
        self.changed = content;
        let content = &mut self.contents[content];
        change.apply(&mut content.current);
        content.since.push(change);
    }

    pub(super) fn sync(&mut self, part: Part, content: usize, syncs_folder: bool) {
        if self.lies > 0 {
            self.lies -= 1;
            return;
        }
        if self.names[part as usize] == Some(content) {
            self.synced_names[part as usize] = Some(content);
        }
        if syncs_folder {
            self.synced_names = self.names;
        }
        let content = &mut self.contents[content];
        // Not simply a copy of what is in memory: a part of that may have been forgotten.
        for change in std::mem::take(&mut content.since) {
            change.apply(&mut content.synced);
        }
    }

    fn power_cut(&self, sharing: Sharing, seed: u64) -> Stored {
        let mut random = mix(seed) | 1;
        let mut choose = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            seed == 1 || (seed > 1 && random >> 40 & 1 == 1)
        };
        // Under sole-atomic nothing lands before the sync, and in it all or nothing.
        let all = choose() && self.died_in_sync;
        let mut keep = || if sharing == Sharing::SoleAtomic { all } else { choose() };
        let mut names = self.synced_names;
        for (name, now) in names.iter_mut().zip(self.names) {
            if keep() {
                *name = now;
            }
        }
        let contents = self.contents.iter().map(|content| {
            let mut bytes = content.synced.clone();
            for change in &content.since {
                match change {
                    Change::Size(size) if keep() => bytes.resize(*size, 0),
                    Change::Size(_) => {}
                    Change::Write(offset, written) => {
                        for sector in sectors(*offset, written.len()) {
                            if keep() {
                                put(&mut bytes, offset + sector.start, &written[sector]);
                            }
                        }
                    }
                }
            }
            Content { synced: bytes.clone(), current: bytes, since: Vec::new() }
        });
        Stored { contents: contents.collect(), names, synced_names: names, ..Stored::default() }
    }
}

fn put(bytes: &mut Vec<u8>, offset: usize, written: &[u8]) {
    let end = offset + written.len();
    if offset == bytes.len() {
        return bytes.extend_from_slice(written);
    }
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(written);
}

/// Seeds that are near each other make images that are not (the finaliser of SplitMix64).
pub fn mix(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}
