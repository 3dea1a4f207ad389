//! Every call to storage of a scene fails, once or from there on, or reads less than there is.

use super::cut::{Found, brief};
use super::scene::{Clean, Scene};
use super::stage::Stage;
use crate::disk::{Call, Fault};
use crate::harness::Client;
use host_example::Error;
use host_example::types::Refusal;
use std::collections::HashSet;

/// What can go wrong in a call. The host hands on what may leave things as they were (no room to open or to write, a file
/// that must not be written), and makes the rest `io`.
fn faults(call: Call, at: u64) -> Vec<Fault> {
    let errors: &[Error] = match call {
        Call::Open => &[Error::Io, Error::NoSpace, Error::ReadOnly],
        Call::Write => &[Error::Io, Error::NoSpace],
        // Each in its turn, since they come to the same.
        _ => &[[Error::Io, Error::NoSpace, Error::ReadOnly][at as usize % 3]],
    };
    let mut faults: Vec<_> =
        errors.iter().flat_map(|&error| [Fault::Fail(at, error), Fault::FailFrom(at, error)]).collect();
    match call {
        Call::Read => faults.extend([Fault::Short(at), Fault::ShortFrom(at)]),
        Call::Write => faults.push(Fault::NoRoomFrom(at)),
        _ => {}
    }
    // What changes nothing fails once or from there on, in turn: an instance that has failed does not go on.
    if call < Call::Open {
        faults = faults.into_iter().skip(at as usize % 2).step_by(2).collect();
    }
    faults
}

/// Fails every call of the scene.
pub fn fail_everywhere(stage: &Stage, scene: &Scene) -> Found {
    let clean = scene.clean(stage);
    assert!(!clean.moments.is_empty(), "nothing is tried in {}", scene.name);
    let mut found = Found { scenes: 1, calls: clean.calls, ..Found::default() };
    let mut seen = HashSet::new();
    for moment in &clean.moments {
        for fault in faults(moment.call, moment.at) {
            found.recoveries += 1;
            if let Err(what) = fail(stage, scene, &clean, fault, &mut seen) {
                let (name, call) = (&scene.name, moment.call);
                found.bad.push(format!("{name}: {fault:?} of {} ({call:?}): {}", clean.calls, brief(&what)));
            }
        }
    }
    found
}

fn fail(
    stage: &Stage,
    scene: &Scene,
    clean: &Clean,
    fault: Fault,
    seen: &mut HashSet<(u64, usize)>,
) -> Result<(), String> {
    let disk = scene.disk.copy(scene.disk.storage_mode());
    disk.fault(fault);
    let mut client = stage.client(&disk);
    let life = scene.live(stage, &disk, &mut client);
    let failed = matches!(fault, Fault::Fail(at, Error::Io) | Fault::FailFrom(at, Error::Io) if at <= disk.calls());
    if failed && !client.instance.is_spent() {
        return Err("the host trusts an instance whose storage failed".to_owned());
    }
    // What was answered is durable whatever failed.
    let cut = disk.power_cut(0);
    // One goes on as it is; one is closed while storage fails, one when it no longer does, and the next call opens it.
    let turn = disk.calls() % 3;
    if turn == 1 && !client.instance.is_spent() {
        close(&mut client)?;
    }
    disk.fault(Fault::None);
    if turn == 2
        && !client.instance.is_spent()
        && let Some(refusal) = close(&mut client)?
    {
        return Err(format!("close is refused: {refusal:?}"));
    }
    if let Some(error) =
        life.stopped.as_ref().filter(|error| !["unavailable", "unconfirmed", "partly"].contains(&error.0))
    {
        return Err(format!("{:?} is answered {error:?}", scene.steps[life.answers.len()]));
    }
    if seen.insert((cut.fingerprint(), life.answers.len())) {
        scene.recover(stage, clean, &cut, &life).map_err(|what| format!("after a power cut: {what}"))?;
    }
    if client.instance.is_spent() {
        let refused = client.instance.restored().map_err(|trap| format!("{trap:?}"))?;
        if !refused.as_ref().is_err_and(|refusal| refusal.retryable) {
            return Err(format!("an instance that is spent answers {refused:?}"));
        }
        drop(client);
        client = stage.client(&disk);
    }
    scene.go_on(stage, clean, &disk, client, &life)
}

/// A refusal, if it may be asked again.
fn close(client: &mut Client) -> Result<Option<Refusal>, String> {
    let refusal = client.instance.close().map_err(|trap| format!("{trap:?}"))?.err();
    match refusal {
        Some(refusal) if !refusal.retryable => Err(format!("close is refused for good: {refusal:?}")),
        refusal => Ok(refusal),
    }
}
