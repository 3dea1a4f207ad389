"""Processes of a host, what they answer, and the rows that they leave. guarantees.py says how a host is driven."""

import json
import os
import signal
import sqlite3
import subprocess
import sys

CALLER = {
    "COUNTERFOIL_SUBJECT": "ada",
    "COUNTERFOIL_WORKSPACE": "acme",
    "COUNTERFOIL_PERMISSIONS": "read,write-notes,write-automations",
}
RUNNING = set()


class Run:
    """One process of a host, ready to call."""

    def __init__(self, host, calls, folders, environment=CALLER, threads=1, lost=False):
        folders = {guest: str(path) for guest, path in folders.items()}
        job = {"calls": calls, "folders": folders, "environment": environment, "threads": threads, "lost": lost}
        pipe = subprocess.PIPE
        command = [*host.driver, "run", host.folder, json.dumps(job)]
        # In a group of its own: a host may be more than one process.
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        RUNNING.add(self)
        if self.process.stdout.readline() != "ready\n":
            sys.exit(f"the host did not start: {self.process.stderr.read()}")

    def go(self):
        self.process.stdin.close()

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)

    def end(self):
        """What it said; returns once all of its processes are gone, each of which has standard error open."""
        said, errors = self.process.stdout.read(), self.process.stderr.read()
        RUNNING.discard(self)
        return self.process.wait(), said, errors

    def answers(self, count):
        status, said, errors = self.end()
        answers = [json.loads(line) for line in said.splitlines()]
        expect("answers", (status, len(answers)), (0, count), errors)
        return answers


class Host:
    def __init__(self, driver, component, folder):
        self.driver, self.folder = driver, str(folder)
        prepared = subprocess.run([*driver, "prepare", component, self.folder], stdout=subprocess.PIPE)
        if prepared.returncode:
            sys.exit("the host does not load the component")
        self.functions = json.loads(prepared.stdout)

    def calls(self, calls, folders, environment=CALLER):
        run = Run(self, calls, folders, environment)
        run.go()
        return run.answers(len(calls))

    def call(self, folders, *call, environment=CALLER):
        return self.calls([call], folders, environment)[0]


def expect(what, seen, expected, detail=""):
    if seen != expected:
        raise AssertionError(f"{what}: expected {expected}, seen {seen}. {detail}")


def succeeded(answer):
    if "ok" not in answer:
        raise AssertionError(f"a call: expected to succeed, seen {answer}")
    return answer["ok"]


def refused(answer, code):
    expect("a refusal", answer.get("err", answer).get("code"), code, answer)
    return answer["err"]["message"]


def is_to_be_repeated(answer):
    return answer.get("err", {}).get("retryable", False)


def receipt(answer, replayed):
    """Note and operation of a note's creation."""
    reply = succeeded(answer)
    expect("replayed", reply["receipt"]["replayed"], replayed)
    return reply["note-id"], reply["receipt"]["operation-id"]


def rows(folder, sql):
    """Read natively, once all hosts are stopped."""
    connection = sqlite3.connect(folder / "counterfoil.db")
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def is_sound(folder, notes):
    """Each key, with its operation and its body, has one note, and there are no others."""
    expect("integrity", rows(folder, "PRAGMA integrity_check"), [("ok",)])
    sql = "SELECT idempotency_key, operation_id, body FROM receipts LEFT JOIN notes USING (operation_id)"
    found = rows(folder, sql)
    expect("receipts and their notes", sorted(found), sorted(notes))
    expect("notes", rows(folder, "SELECT count(*) FROM notes"), [(len(notes),)])
