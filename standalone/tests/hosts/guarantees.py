"""What holds under any host: guarantees.py COMPONENT DRIVER..., where DRIVER is a command that makes calls under one.

    DRIVER prepare COMPONENT FOLDER    prints the names of the exported functions, keeps in FOLDER what runs need
    DRIVER run FOLDER JOB              makes the calls of JOB, each on a new instance

A run prints a line when it is ready, and begins when its standard input is closed. Then it prints a line of JSON for
each call, `{"ok": ...}` or `{"err": ...}`, with the names of the WIT. If JOB says `lost`, it kills itself with SIGKILL
once the first call has returned, and says nothing of it. `threads` of JOB is how many calls are made at once, by hosts
that can.

Prints a line for each guarantee that held, and ends at the first that did not. SEED in the environment repeats a run's
choices.
"""

import os
import pathlib
import random
import signal
import sys
import tempfile
import time

from harness import CALLER, RUNNING, Host, Run, expect, is_sound, is_to_be_repeated, receipt, refused, succeeded

SEED = int(os.environ.get("SEED", time.time_ns() % 1_000_000_000))
RANDOM = random.Random(SEED)
# Seconds. Nothing here waits longer than a lease or two, so something hangs.
LIMIT = 300


def exactly_the_seven_functions_are_exported(host, folder):
    operations, notes = ["get-operation", "find-operation"], ["create-note", "get-note"]
    automations = ["create-automation", "set-interval", "get-automation"]
    expect("functions", sorted(host.functions), sorted(operations + notes + automations))


TEA = 'Tea, "green"'


def a_repeated_call_is_a_replay_and_a_key_with_another_body_is_refused(host, folder):
    first, again, other = (("create-note", "key", body) for body in [TEA, TEA, "Coffee"])
    answers = host.calls([first, again, other], {"/data": folder})
    made = receipt(answers[0], replayed=False)
    expect("the replay", receipt(answers[1], replayed=True), made)
    refused(answers[2], "key-conflict")
    expect("a replay by another process", receipt(host.call({"/data": folder}, *again), replayed=True), made)
    refused(host.call({"/data": folder}, *other), "key-conflict")
    read = succeeded(host.call({"/data": folder}, "get-note", made[0]))
    expect("the note", read["body"], TEA)
    is_sound(folder, [("key", made[1], TEA)])


def an_edits_retry_is_recognised_and_lost_operations_are_found(host, folder):
    data = {"/data": folder}
    made = succeeded(host.call(data, "create-automation", "make", 60))["automation"]["automation-id"]
    versions = enumerate([1, 2, 2])
    edit, later, stale = (("set-interval", f"edit-{key}", made, version, 30 + key) for key, version in versions)
    reads = [("get-automation", made), ("find-operation", "set_interval", "edit-0")]
    answers = host.calls([edit, later, edit, stale, *reads], data)
    edited, _, again = map(succeeded, answers[:3])
    expect("the retry", (again["automation"], again["receipt"]["replayed"]), (edited["automation"], True))
    refused(answers[3], "version-conflict")
    now, found = map(succeeded, answers[4:])
    expect("the automation", (now["version"], now["interval-minutes"]), (3, 31))
    expect("found by its key", found["operation-id"], edited["receipt"]["operation-id"])
    expect("found by its id", succeeded(host.call(data, "get-operation", found["operation-id"])), found)


def an_answer_lost_after_the_call_returned_is_replayed(host, folder):
    notes = []
    for number in range(3):
        call = ("create-note", f"lost-{number}", f"body {number}")
        run = Run(host, [call], {"/data": folder}, lost=True)
        run.go()
        expect("killed, and nothing said", run.end()[:2], (-signal.SIGKILL, ""))
        _, operation = receipt(host.call({"/data": folder}, *call), replayed=True)
        notes.append((call[1], operation, call[2]))
    is_sound(folder, notes)


def calls_killed_at_random_moments_act_once_when_they_are_repeated(host, folder):
    data, rounds, at_once = {"/data": folder}, 8, 4
    run = Run(host, [("create-note", "first", "body")], data)
    begun = time.monotonic()
    run.go()
    notes, committed = [("first", receipt(run.answers(1)[0], replayed=False)[1], "body")], 0
    window = 2 * (time.monotonic() - begun)
    for number in range(rounds):
        calls = [("create-note", f"killed-{number}-{which}", f"body {which}") for which in range(at_once)]
        killed = [(RANDOM.uniform(0, window), Run(host, [call], data, lost=True)) for call in calls]
        begun = time.monotonic()
        for _, run in killed:
            run.go()
        for moment, run in sorted(killed, key=lambda kill: kill[0]):
            time.sleep(max(0, begun + moment - time.monotonic()))
            run.kill()
        for _, run in killed:
            expect("killed, and nothing said", run.end()[:2], (-signal.SIGKILL, ""))
        late = 0
        for call, answer in zip(calls, host.calls(calls, data)):
            was_committed = succeeded(answer)["receipt"]["replayed"]
            late += was_committed
            notes.append((call[1], receipt(answer, replayed=was_committed)[1], call[2]))
        # Towards as many kills before the commit as after it, however fast the host is.
        window *= 0.6 if late > at_once / 2 else 1.6
        committed += late
    is_sound(folder, notes)
    names = (path.name.split(".") for path in (folder / "counterfoil.db-lock").iterdir())
    # The lower half counts, the first taking of a new lock included.
    taken_over = max(int(name[2]) % 2**32 - 1 for name in names if name[0] in ["free", "held"])
    return f"{rounds * at_once} killed, {committed} after the commit; {taken_over} died with the lock"


def without_a_caller_or_its_permission_a_call_is_denied_replays_too(host, folder):
    call, data = ("create-note", "key", "body"), {"/data": folder}
    made = receipt(host.call(data, *call), replayed=False)
    without = {name: value for name, value in CALLER.items() if name != "COUNTERFOIL_SUBJECT"}
    calls = [call, ("create-note", "another", "body")]
    for environment in [without, {**CALLER, "COUNTERFOIL_SUBJECT": ""}, {**CALLER, "COUNTERFOIL_PERMISSIONS": "read"}]:
        for answer in host.calls(calls, data, environment):
            refused(answer, "denied")
    expect("with the permission again", receipt(host.call(data, *call), replayed=True), made)
    is_sound(folder, [("key", made[1], "body")])


def a_folder_must_be_named_unless_it_is_the_only_one(host, folder):
    one, two, below = folder / "one", folder / "two", folder / "two" / "below" / "it"
    one.mkdir()
    below.mkdir(parents=True)
    call, both = ("create-note", "key", "body"), {"/one": one, "/two": two}
    for folders in [{}, both]:
        message = refused(host.call(folders, *call), "unavailable")
        expect("the message names the variable", "COUNTERFOIL_DIR" in message, True, message)
    refused(host.call(both, *call, environment={**CALLER, "COUNTERFOIL_DIR": "/three"}), "unavailable")
    for path, place in [("/one", one), ("/two/below/it", below)]:
        answer = host.call(both, *call, environment={**CALLER, "COUNTERFOIL_DIR": path})
        is_sound(place, [("key", receipt(answer, replayed=False)[1], "body")])
    expect("folders with a database", {path.parent for path in folder.rglob("counterfoil.db")}, {one, below})


def calls_made_at_once_act_once_per_key(host, folder):
    data, processes, shared = {"/data": folder}, 4, 6
    jobs = []
    for process in range(processes):
        calls = [("create-note", f"shared-{key}", RANDOM.choice(["this", "that"])) for key in range(shared)]
        calls += [("create-note", f"own-{process}-{key}", "own") for key in range(shared)]
        RANDOM.shuffle(calls)
        jobs.append(calls + RANDOM.sample(calls, shared))
    runs = [Run(host, calls, data, threads=2) for calls in jobs]
    for run in runs:
        run.go()
    answers = [pair for run, calls in zip(runs, jobs) for pair in zip(calls, run.answers(len(calls)))]
    # Some may have waited too long for the lock, or lost it to others on a machine that stood still.
    again = [call for call, answer in answers if is_to_be_repeated(answer)]
    answers = [pair for pair in answers if not is_to_be_repeated(pair[1])] + list(zip(again, host.calls(again, data)))
    made = {}
    for (_, key, body), answer in answers:
        if "ok" in answer:
            made.setdefault(key, set()).add((answer["ok"]["receipt"]["operation-id"], body))
    for key, found in made.items():
        expect(f"operations and bodies of {key}", len(found), 1, found)
    made = {key: found.pop() for key, found in made.items()}
    for (_, key, body), answer in answers:
        if key in made and body == made[key][1]:
            succeeded(answer)
        else:
            refused(answer, "key-conflict")
    fresh = sorted(call[1] for call, answer in answers if "ok" in answer and not answer["ok"]["receipt"]["replayed"])
    expect("answers that are no replays, a key", len(set(fresh)), len(fresh), fresh)
    keys = {key for calls in jobs for _, key, _ in calls}
    expect("keys with such an answer", {*fresh, *(key for _, key, _ in again)}, keys)
    is_sound(folder, [(key, *found) for key, found in made.items()])
    refusals = sum("err" in answer for _, answer in answers)
    return (
        f"{len(answers)} calls by {processes} processes: {len(fresh)} acted, {refusals} refused, "
        f"{len(again)} to be repeated, the others replayed"
    )


GUARANTEES = [
    exactly_the_seven_functions_are_exported,
    a_repeated_call_is_a_replay_and_a_key_with_another_body_is_refused,
    an_edits_retry_is_recognised_and_lost_operations_are_found,
    an_answer_lost_after_the_call_returned_is_replayed,
    calls_killed_at_random_moments_act_once_when_they_are_repeated,
    without_a_caller_or_its_permission_a_call_is_denied_replays_too,
    a_folder_must_be_named_unless_it_is_the_only_one,
    calls_made_at_once_act_once_per_key,
]


def hangs(*_):
    sys.exit(f"  not done after {LIMIT} s")


def main(component, *driver):
    signal.signal(signal.SIGALRM, hangs)
    signal.alarm(LIMIT)
    print(f"  seed {SEED}", flush=True)
    with tempfile.TemporaryDirectory(prefix="counterfoil-hosts-") as temporary:
        try:
            check(driver, component, pathlib.Path(temporary))
        finally:
            for run in RUNNING:
                run.kill()


def check(driver, component, temporary):
    kept = temporary / "kept"
    kept.mkdir()
    host = Host(driver, component, kept)
    for guarantee in GUARANTEES:
        folder = temporary / guarantee.__name__
        folder.mkdir()
        name = guarantee.__name__.replace("_", " ")
        try:
            detail = guarantee(host, folder)
        except AssertionError as failure:
            sys.exit(f"  this did not hold: {name}\n  {failure}")
        print(f"  ok: {name}" + (f" ({detail})" if detail else ""), flush=True)


main(*sys.argv[1:])
