//! Whom the component believes about who is calling, and where it looks for the folder of the database.

use crate::plain::Deployment;
use host_example::types::RefusalCode::{Denied, NotFound, Unavailable};
use host_example::types::{NoteCreated, Refusal, RefusalCode};
use std::fs::{self, File};
use std::path::Path;
use tempfile::tempdir;

const CALLER: [&str; 3] = ["COUNTERFOIL_SUBJECT", "COUNTERFOIL_WORKSPACE", "COUNTERFOIL_PERMISSIONS"];
const DIR: &str = "COUNTERFOIL_DIR";

/// The message.
#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, Refusal>, code: RefusalCode) -> String {
    let refusal = outcome.unwrap_err();
    assert_eq!((refusal.code, refusal.retryable), (code, false), "{refusal:?}");
    refusal.message
}

#[track_caller]
fn made(outcome: Result<NoteCreated, Refusal>) -> NoteCreated {
    let note = outcome.unwrap();
    assert!(!note.receipt.replayed);
    note
}

#[track_caller]
fn replayed(outcome: Result<NoteCreated, Refusal>, first: &NoteCreated) {
    let mut note = outcome.unwrap();
    assert!(std::mem::replace(&mut note.receipt.replayed, false));
    assert_eq!(note, *first);
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn a_call_for_nobody_is_denied_and_makes_no_file() {
    let folder = tempdir().unwrap();
    let deployment = Deployment::new(folder.path());
    for variable in CALLER {
        for nobody in [deployment.without(variable), deployment.with(variable, ""), deployment.with(variable, " \t")] {
            let message = refused(nobody.create_note("key", "body"), Denied);
            assert_eq!(message, "The host named no caller.", "{variable}");
        }
    }
    assert_eq!(names(folder.path()), Vec::<String>::new());
}

/// B6: the caller comes before the receipt.
#[test]
fn a_replay_for_nobody_is_denied() {
    let folder = tempdir().unwrap();
    let deployment = Deployment::new(folder.path());
    let first = made(deployment.create_note("key", "body"));

    for variable in CALLER {
        for nobody in [deployment.without(variable), deployment.with(variable, ""), deployment.with(variable, " ")] {
            refused(nobody.create_note("key", "body"), Denied);
            refused(nobody.call(|tools, store| tools.call_get_note(store, &first.note_id)), Denied);
        }
    }

    replayed(deployment.create_note("key", "body"), &first);
}

#[test]
fn the_permissions_are_those_of_this_calls_environment() {
    let folder = tempdir().unwrap();
    let permitted = |names| Deployment::new(folder.path()).with("COUNTERFOIL_PERMISSIONS", names);
    let first = made(permitted("write-notes").create_note("key", "body"));

    // Blanks around a name are none of it; a part of a name is not the name.
    for revoked in ["read", "write-note", "write-notes-not", "Write-Notes", "write notes", ",", "read write-notes"] {
        refused(permitted(revoked).create_note("key", "body"), Denied);
        refused(permitted(revoked).create_note("other", "body"), Denied);
    }
    for granted in ["write-notes", " read , write-notes ", "write-notes,", "read,\twrite-notes"] {
        replayed(permitted(granted).create_note("key", "body"), &first);
    }
    let read = |names| permitted(names).call(|tools, store| tools.call_get_note(store, &first.note_id));
    refused(read("write-notes"), Denied);
    assert_eq!(read("read").unwrap().body, "body");
}

/// A3 and B9.
#[test]
fn a_key_is_its_subjects_and_a_note_its_workspaces() {
    let folder = tempdir().unwrap();
    let ada = Deployment::new(folder.path());
    let (bo, cy) = (ada.with("COUNTERFOIL_SUBJECT", "bo"), ada.with("COUNTERFOIL_WORKSPACE", "other"));
    let first = made(ada.create_note("key", "Ada's"));
    let read = |by: &Deployment, id: &str| by.call(|tools, store| tools.call_get_note(store, id));
    let find = |by: &Deployment| by.call(|tools, store| tools.call_find_operation(store, "create_note", "key"));

    for other in [&bo, &cy] {
        refused(find(other), NotFound);
    }
    let absent = read(&cy, "01890a5d-ac96-774b-bcce-b302099a8057").unwrap_err();
    assert_eq!((absent.code, read(&cy, &first.note_id).unwrap_err()), (NotFound, absent));
    assert_eq!(read(&bo, &first.note_id).unwrap().body, "Ada's");

    let others = [made(bo.create_note("key", "Bo's")), made(cy.create_note("key", "Cy's"))];
    assert!(others.iter().all(|other| other.note_id != first.note_id));
    replayed(ada.create_note("key", "Ada's"), &first);
}

#[test]
fn the_only_folder_needs_no_name() {
    let folder = tempdir().unwrap();
    let deployment = Deployment::without_folders().folder(folder.path(), "whatever it is called");
    let first = made(deployment.create_note("key", "body"));
    for blank in ["", "  "] {
        replayed(deployment.with(DIR, blank).create_note("key", "body"), &first);
    }
    assert!(folder.path().join("counterfoil.db").is_file());
}

#[test]
fn of_no_folder_and_of_several_one_must_be_named() {
    let (one, two) = (tempdir().unwrap(), tempdir().unwrap());
    let none = Deployment::without_folders();
    let both = none.clone().folder(one.path(), "/one").folder(two.path(), "/two");

    for unnamed in [&none, &both, &both.with(DIR, " ")] {
        let message = refused(unnamed.create_note("key", "body"), Unavailable);
        assert!(message.contains(DIR), "{message}");
    }
    assert_eq!([names(one.path()), names(two.path())], [const { Vec::<String>::new() }; 2]);

    made(both.with(DIR, "/two").create_note("key", "body"));
    assert_eq!(names(one.path()), Vec::<String>::new());
    assert!(two.path().join("counterfoil.db").is_file());
}

/// Guest paths of folders that the host opens, and what the variable then may say.
#[test]
fn a_folder_is_found_by_the_name_under_which_the_component_sees_it_and_so_is_one_below() {
    for (name, itself, below) in [
        ("/data", ["/data", "/data/"], ["/data/below/it", "/data/below/it/"]),
        ("/data/", ["/data", "/data/"], ["/data/below/it", "/data//below/it"]),
        ("data", ["data", "data/"], ["data/below/it", "data/below/it/"]),
        (".", [".", "./"], ["below/it", "./below/it"]),
        ("/", ["/", "//"], ["/below/it", "/below/it/"]),
        ("/a b/c", ["/a b/c", "/a b/c/"], ["/a b/c/below/it", "/a b/c/below/./it"]),
    ] {
        let (folder, other) = (tempdir().unwrap(), tempdir().unwrap());
        fs::create_dir_all(folder.path().join("below/it")).unwrap();
        // Another one whose name begins likewise.
        let deployment = Deployment::without_folders().folder(other.path(), "/data-2").folder(folder.path(), name);

        for (paths, place) in [(itself, folder.path()), (below, &folder.path().join("below/it"))] {
            let first = made(deployment.with(DIR, paths[0]).create_note("key", "body"));
            assert!(place.join("counterfoil.db").is_file(), "{name}: {}", paths[0]);
            replayed(deployment.with(DIR, paths[1]).create_note("key", "body"), &first);
        }
        assert_eq!(names(other.path()), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn of_two_folders_one_in_the_other_the_nearer_is_taken() {
    let (outer, inner) = (tempdir().unwrap(), tempdir().unwrap());
    fs::create_dir(outer.path().join("inner")).unwrap();
    for swapped in [false, true] {
        let mut folders = [(outer.path(), "/data"), (inner.path(), "/data/inner")];
        if swapped {
            folders.reverse();
        }
        let deployment = Deployment::without_folders().folder(folders[0].0, folders[0].1);
        let deployment = deployment.folder(folders[1].0, folders[1].1).with(DIR, "/data/inner");
        assert_eq!(deployment.create_note("key", "body").unwrap().receipt.replayed, swapped);
    }
    assert!(inner.path().join("counterfoil.db").is_file());
    assert_eq!(names(outer.path()), ["inner"]);
}

#[test]
fn a_path_that_leads_nowhere_or_outside_is_refused() {
    let around = tempdir().unwrap();
    let folder = around.path().join("data");
    fs::create_dir_all(folder.join("below")).unwrap();
    fs::create_dir(around.path().join("data-2")).unwrap();
    File::create(folder.join("file")).unwrap();
    std::os::unix::fs::symlink(around.path().join("data-2"), folder.join("link")).unwrap();
    let deployment = Deployment::new(&folder);

    for path in [
        "/",
        "/other",
        "/data-2",
        "/dat",
        "data",
        ".",
        "/data/..",
        "/data/../data-2",
        "/data/below/../../data-2",
        "/data/absent",
        "/data/file",
        "/data/file/",
        "/data/link",
    ] {
        let message = refused(deployment.with(DIR, path).create_note("key", "body"), Unavailable);
        assert!(message.contains(DIR) && message.contains(path), "{path}: {message}");
    }

    assert_eq!(names(&folder), ["below", "file", "link"]);
    assert_eq!(names(around.path()), ["data", "data-2"]);
    assert_eq!(names(&around.path().join("data-2")), Vec::<String>::new());
}
