//! What a commit asks of storage: syncs, and calls across the component's boundary. The same in every run.

use crate::Bench;
use crate::contenders::{Result, principal};
use crate::report::{Report, Row, Spread};
use crate::work::{Call, note};
use host_example::{Error, Files, Instance, Invocation, LockLevel, Part, Sharing, Storage, StorageFile};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

#[derive(Default)]
struct Counts {
    calls: AtomicUsize,
    reads: AtomicUsize,
    writes: AtomicUsize,
    written: AtomicUsize,
    syncs: AtomicUsize,
}

impl Counts {
    fn take(&self) -> [(&'static str, usize); 5] {
        let take = |count: &AtomicUsize| count.swap(0, Relaxed);
        [
            ("calls of storage", take(&self.calls)),
            ("reads", take(&self.reads)),
            ("writes", take(&self.writes)),
            ("bytes written", take(&self.written)),
            ("syncs", take(&self.syncs)),
        ]
    }
}

pub fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let Some(place) = bench.places.iter().find(|place| !place.is_disk) else { return Ok(()) };
    for is_sole in [true, false] {
        let folder = place.folder()?;
        let file = folder.path().join("counted.db");
        let files = if is_sole { Files::sole(&file, Duration::ZERO)? } else { Files::shared(&file)? };
        let counts = Arc::new(Counts::default());
        let storage = Counted(files, Arc::clone(&counts));
        let mut instance = bench.host()?.instance(|_| Some(principal()), storage)?;
        for _ in 0..20 {
            call(&mut instance, [Call::note()])?;
        }
        let mode = if is_sole { "sole" } else { "shared" };
        let mut count = |work: &str, calls: Vec<Call>| {
            let callers = calls.len();
            counts.take();
            call(&mut instance, calls)?;
            for (unit, count) in counts.take() {
                let (work, place) = (format!("{work}, {mode}"), place.kind.clone());
                let value = Spread::of([count as f64]);
                report.rows.push(Row { work, place, callers, contender: "component", unit, value });
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        };
        count("new, one commit", vec![note("replayed", "body")])?;
        count("replay", vec![note("replayed", "body")])?;
        count("new, one commit", (0..64).map(|_| Call::note()).collect())?;
    }
    bench.say("counts");
    Ok(())
}

fn call(instance: &mut Instance, calls: impl IntoIterator<Item = Call>) -> Result<()> {
    let invocation = |call: Call| Invocation { tool: call.tool.to_owned(), arguments: call.arguments };
    let calls: Vec<_> = calls.into_iter().map(invocation).collect();
    match instance.call(&calls)?.iter().find(|reply| reply.refused) {
        Some(refused) => Err(refused.body.clone().into()),
        None => Ok(()),
    }
}

struct Counted(Files, Arc<Counts>);

struct CountedFile(Box<dyn StorageFile>, Arc<Counts>);

fn count(counter: &AtomicUsize, by: usize) {
    counter.fetch_add(by, Relaxed);
}

impl Storage for Counted {
    fn sharing(&self) -> std::result::Result<Sharing, String> {
        self.0.sharing()
    }

    fn open(&mut self, part: Part, create: bool) -> std::result::Result<Box<dyn StorageFile>, Error> {
        count(&self.1.calls, 1);
        Ok(Box::new(CountedFile(self.0.open(part, create)?, Arc::clone(&self.1))))
    }

    fn exists(&mut self, part: Part) -> std::result::Result<bool, Error> {
        count(&self.1.calls, 1);
        self.0.exists(part)
    }

    fn remove(&mut self, part: Part) -> std::result::Result<(), Error> {
        count(&self.1.calls, 1);
        self.0.remove(part)
    }
}

impl StorageFile for CountedFile {
    fn read(&mut self, offset: u64, length: u32) -> std::result::Result<Vec<u8>, Error> {
        count(&self.1.calls, 1);
        count(&self.1.reads, 1);
        self.0.read(offset, length)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> std::result::Result<(), Error> {
        count(&self.1.calls, 1);
        count(&self.1.writes, 1);
        count(&self.1.written, bytes.len());
        self.0.write(offset, bytes)
    }

    fn size(&mut self) -> std::result::Result<u64, Error> {
        count(&self.1.calls, 1);
        self.0.size()
    }

    fn set_size(&mut self, size: u64) -> std::result::Result<(), Error> {
        count(&self.1.calls, 1);
        self.0.set_size(size)
    }

    fn sync(&mut self) -> std::result::Result<(), Error> {
        count(&self.1.calls, 1);
        count(&self.1.syncs, 1);
        self.0.sync()
    }

    fn lock(&mut self, level: LockLevel) -> std::result::Result<LockLevel, Error> {
        count(&self.1.calls, 1);
        self.0.lock(level)
    }

    fn unlock(&mut self, level: LockLevel) -> std::result::Result<(), Error> {
        count(&self.1.calls, 1);
        self.0.unlock(level)
    }

    fn is_reserved(&mut self) -> std::result::Result<bool, Error> {
        count(&self.1.calls, 1);
        self.0.is_reserved()
    }
}
