//! A file system in memory, as `wasi:filesystem` sees one: what a kill leaves is all that was done, what a power cut leaves
//! is what was synced and, of all else, what the seed says.

use std::collections::BTreeMap;
use test_support::sectors;
use wasmtime_wasi::p2::bindings::filesystem::types::ErrorCode;

/// The number of a file or folder, whatever names lead to it.
pub type Node = usize;

pub const ROOT: Node = 0;

#[derive(Clone)]
enum Content {
    File { synced: Vec<u8>, current: Vec<u8>, since: Vec<Change> },
    Folder { synced: BTreeMap<String, Node>, current: BTreeMap<String, Node> },
}

#[derive(Clone)]
enum Change {
    Write(usize, Vec<u8>),
    Size(usize),
}

#[derive(Clone)]
pub struct Disk {
    nodes: Vec<Content>,
    /// A control: a file that is renamed over another puts its content into that one, for whoever has it open.
    pub keeps_files: bool,
    /// A control: what sync does nothing to.
    pub lie: Option<Lie>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    All,
    Folders,
}

pub type Outcome<T> = Result<T, ErrorCode>;

impl Disk {
    pub fn new() -> Disk {
        Disk { nodes: vec![folder(BTreeMap::new())], keeps_files: false, lie: None }
    }

    fn entries(&self, folder: Node) -> Outcome<&BTreeMap<String, Node>> {
        match &self.nodes[folder] {
            Content::Folder { current, .. } => Ok(current),
            Content::File { .. } => Err(ErrorCode::NotDirectory),
        }
    }

    fn entries_mut(&mut self, folder: Node) -> Outcome<&mut BTreeMap<String, Node>> {
        match &mut self.nodes[folder] {
            Content::Folder { current, .. } => Ok(current),
            Content::File { .. } => Err(ErrorCode::NotDirectory),
        }
    }

    /// A path of one or more names.
    fn find(&self, folder: Node, path: &str) -> Outcome<Node> {
        path.split('/').try_fold(folder, |folder, name| match name {
            "." => Ok(folder),
            _ => self.entries(folder)?.get(name).copied().ok_or(ErrorCode::NoEntry),
        })
    }

    pub fn is_folder(&self, node: Node) -> bool {
        matches!(self.nodes[node], Content::Folder { .. })
    }

    pub fn open(&mut self, folder: Node, path: &str, create: bool, exclusive: bool, is_folder: bool) -> Outcome<Node> {
        match self.find(folder, path) {
            Ok(_) if exclusive => Err(ErrorCode::Exist),
            Ok(node) if is_folder && !self.is_folder(node) => Err(ErrorCode::NotDirectory),
            Err(ErrorCode::NoEntry) if create => {
                let file = Content::File { synced: Vec::new(), current: Vec::new(), since: Vec::new() };
                self.add(folder, path, file)
            }
            found => found,
        }
    }

    pub fn create_folder(&mut self, parent: Node, name: &str) -> Outcome<()> {
        if self.find(parent, name).is_ok() {
            return Err(ErrorCode::Exist);
        }
        self.add(parent, name, folder(BTreeMap::new())).map(drop)
    }

    fn add(&mut self, folder: Node, path: &str, content: Content) -> Outcome<Node> {
        let node = self.nodes.len();
        let (folder, name) = self.parent(folder, path)?;
        self.entries_mut(folder)?.insert(name.to_owned(), node);
        self.nodes.push(content);
        Ok(node)
    }

    fn parent<'a>(&self, folder: Node, path: &'a str) -> Outcome<(Node, &'a str)> {
        match path.rsplit_once('/') {
            Some((parent, name)) => Ok((self.find(folder, parent)?, name)),
            None => Ok((folder, path)),
        }
    }

    pub fn rename(&mut self, from: Node, old: &str, to: Node, new: &str) -> Outcome<()> {
        let ((from, old), (to, new)) = (self.parent(from, old)?, self.parent(to, new)?);
        let node = self.find(from, old)?;
        if let Ok(there) = self.find(to, new) {
            match (self.is_folder(node), self.is_folder(there)) {
                (true, false) => return Err(ErrorCode::NotDirectory),
                (false, true) => return Err(ErrorCode::IsDirectory),
                (true, true) if !self.entries(there)?.is_empty() => return Err(ErrorCode::NotEmpty),
                _ => {}
            }
            if let (true, Content::File { current, .. }) = (self.keeps_files, &self.nodes[node]) {
                let bytes = current.clone();
                self.set_size(there, 0)?;
                self.write(there, 0, bytes)?;
                return self.unlink(from, old);
            }
        }
        self.entries_mut(from)?.remove(old);
        self.entries_mut(to)?.insert(new.to_owned(), node);
        Ok(())
    }

    pub fn unlink(&mut self, folder: Node, path: &str) -> Outcome<()> {
        let (folder, name) = self.parent(folder, path)?;
        self.entries_mut(folder)?.remove(name).map(drop).ok_or(ErrorCode::NoEntry)
    }

    pub fn names(&self, folder: Node) -> Outcome<Vec<String>> {
        Ok(self.entries(folder)?.keys().cloned().collect())
    }

    pub fn stat(&self, folder: Node, path: &str) -> Outcome<Node> {
        self.find(folder, path)
    }

    pub fn size(&self, node: Node) -> u64 {
        match &self.nodes[node] {
            Content::File { current, .. } => current.len() as u64,
            Content::Folder { .. } => 0,
        }
    }

    pub fn read(&self, node: Node, offset: u64, length: u64) -> Outcome<(Vec<u8>, bool)> {
        let Content::File { current, .. } = &self.nodes[node] else { return Err(ErrorCode::IsDirectory) };
        let from = current.len().min(offset as usize);
        let to = current.len().min(from + length as usize);
        Ok((current[from..to].to_vec(), to == current.len()))
    }

    pub fn write(&mut self, node: Node, offset: u64, bytes: Vec<u8>) -> Outcome<u64> {
        let length = bytes.len() as u64;
        self.change(node, Change::Write(offset as usize, bytes))?;
        Ok(length)
    }

    pub fn set_size(&mut self, node: Node, size: u64) -> Outcome<()> {
        self.change(node, Change::Size(size as usize))
    }

    fn change(&mut self, node: Node, change: Change) -> Outcome<()> {
        let Content::File { current, since, .. } = &mut self.nodes[node] else { return Err(ErrorCode::IsDirectory) };
        change.apply(current);
        since.push(change);
        Ok(())
    }

    pub fn sync(&mut self, node: Node) -> Outcome<()> {
        if self.lie == Some(Lie::All) || self.lie == Some(Lie::Folders) && self.is_folder(node) {
            return Ok(());
        }
        match &mut self.nodes[node] {
            Content::File { synced, since, .. } => {
                for change in since.drain(..) {
                    change.apply(synced);
                }
            }
            Content::Folder { synced, current } => synced.clone_from(current),
        }
        Ok(())
    }

    /// What a power cut leaves. Seed 0 drops all that was not synced, seed 1 keeps it, others choose at random, sector by
    /// sector and name by name.
    pub fn power_cut(&self, seed: u64) -> Disk {
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut keep = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            seed == 1 || (seed > 1 && random >> 40 & 1 == 1)
        };
        let nodes = self.nodes.iter().map(|content| match content {
            Content::File { synced, since, .. } => {
                let mut bytes = synced.clone();
                for change in since {
                    change.tear(&mut bytes, &mut keep);
                }
                Content::File { synced: bytes.clone(), current: bytes, since: Vec::new() }
            }
            Content::Folder { synced, current } => {
                let mut names = synced.clone();
                for name in synced.keys().chain(current.keys()) {
                    if synced.get(name) != current.get(name) && keep() {
                        match current.get(name) {
                            Some(node) => names.insert(name.clone(), *node),
                            None => names.remove(name),
                        };
                    }
                }
                folder(names)
            }
        });
        Disk { nodes: nodes.collect(), keeps_files: false, lie: None }
    }
}

fn folder(names: BTreeMap<String, Node>) -> Content {
    Content::Folder { synced: names.clone(), current: names }
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::Write(offset, written) => put(bytes, *offset, written),
            Change::Size(size) => bytes.resize(*size, 0),
        }
    }

    fn tear(&self, bytes: &mut Vec<u8>, keep: &mut impl FnMut() -> bool) {
        match self {
            Change::Size(size) if keep() => bytes.resize(*size, 0),
            Change::Size(_) => {}
            Change::Write(offset, written) => {
                for sector in sectors(*offset, written.len()) {
                    if keep() {
                        put(bytes, offset + sector.start, &written[sector]);
                    }
                }
            }
        }
    }
}

fn put(bytes: &mut Vec<u8>, offset: usize, written: &[u8]) {
    let end = offset + written.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(written);
}
