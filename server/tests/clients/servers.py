"""Servers as they are given to clients, the callers that they know, and the rows that they leave."""

import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import secrets
import signal
import sqlite3
import subprocess
import sys
import time

import relay

SEED = int(os.environ.get("SEED", time.time_ns() % 1_000_000_000))
RANDOM = random.Random(SEED)
# Killed if something hangs.
RUNNING = set()


@dataclasses.dataclass
class Endpoint:
    """What a client is told: a command to start, or an address with a token."""

    revision: str
    log: pathlib.Path
    command: list = None
    url: str = None
    token: str = None
    # Of the token, in the file.
    name: str = None


class Lost(Exception):
    """The connection ended without an answer."""


class Rejected(Exception):
    """The call was answered by an error of the protocol, not by a tool."""


class Unauthorized(Exception):
    """HTTP's status 401."""


class Place:
    """A folder with one database, and servers of it, one after the other."""

    def __init__(self, folder, transport, revision, program, component):
        self.folder, self.transport, self.revision = folder, transport, revision
        self.program = [program, "--component", component]
        self.log = folder / "server.log"
        self.server = [*self.program, "--db", str(folder / "notes.db")]

    @contextlib.asynccontextmanager
    async def serving(self, *options):
        serving = (Http if self.transport == "http" else Stdio)(self, options)
        try:
            yield serving
        except BaseException:
            serving.kill()
            raise
        finally:
            serving.stop()


class Stdio:
    """The client starts the server, so that each connection has its own."""

    def __init__(self, place, options):
        self.place, self.options = place, options

    def caller(self, subject="ada@acme", permissions="read,write-notes"):
        command = [*self.place.server, "--as", subject, "--allow", permissions, "serve", *self.options]
        return Endpoint(self.place.revision, self.place.log, command=command)

    @contextlib.asynccontextmanager
    async def relayed(self, caller, action="pass", after=0):
        """The same for the client, by way of relay.py."""
        folder, reports = self.place.folder, self.place.folder / "reports"
        os.mkfifo(reports)
        command = [sys.executable, relay.__file__, action, str(after), str(folder), *caller.command]
        # Open for both, so that neither end waits for the other.
        report = os.open(reports, os.O_RDWR)
        try:
            yield dataclasses.replace(caller, command=command), Relayed(folder, report)
        finally:
            os.close(report)
            reports.unlink()

    def stop(self):
        pass

    kill = stop


class Relayed:
    def __init__(self, folder, report):
        self.folder, self.report = folder, report

    async def has_acted(self):
        loop, acted = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self.report, acted.set)
        try:
            await acted.wait()
        finally:
            loop.remove_reader(self.report)

    def said(self, who):
        """By client or server, as bytes without spaces."""
        return (self.folder / who).read_bytes().replace(b" ", b"")


class Http:
    def __init__(self, place, options):
        self.place = place
        self.tokens, self.url = place.folder / "tokens.toml", None
        # A file with an entry at least, so that it is there when the server begins.
        self.caller()
        command = [*place.server, "serve", "--http", "127.0.0.1:0", "--tokens", str(self.tokens), *options]
        with open(place.log, "a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        RUNNING.add(self.process)
        line = self.process.stdout.readline()
        begin, _, url = line.strip().partition("http://")
        if begin != "listening on ":
            self.kill()
            sys.exit(f"the server did not start: {line}\n{place.log.read_text()}")
        self.url = f"http://{url}"

    def caller(self, subject="ada@acme", permissions="read,write-notes"):
        """With a token of its own, made while the server runs."""
        name = secrets.token_hex(8)
        command = [*self.place.program, "--as", subject, "--allow", permissions, "token", "new"]
        command += ["--tokens", str(self.tokens), "--name", name]
        token = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        return Endpoint(self.place.revision, self.place.log, url=self.url, token=token, name=name)

    def revoke(self, caller):
        entries = self.tokens.read_text().split("[[token]]")
        kept = [entry for entry in entries if f'name = "{caller.name}"' not in entry]
        expect("entries that are removed", len(entries) - len(kept), 1)
        new = self.tokens.with_suffix(".new")
        new.write_text("[[token]]".join(kept))
        os.chmod(new, 0o600)
        new.replace(self.tokens)

    @contextlib.asynccontextmanager
    async def relayed(self, caller, action="pass", after=0):
        async with relay.Http(caller.url, action, after, self.kill) as relayed:
            yield dataclasses.replace(caller, url=relayed.url), relayed

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        was_killed = self.process.poll() == -signal.SIGKILL
        self.process.terminate()
        status = self.process.wait()
        RUNNING.discard(self.process)
        if not was_killed:
            expect("the server's exit", status, 0)


def keeps_a_connection(client, _):
    """Otherwise it starts a process for each call: then only what depends on the client is asked."""
    return client.KEEPS_A_CONNECTION


async def call(client, caller, tool, arguments):
    """One call over a connection of its own."""
    async with client.connect(caller) as connection:
        return await connection.call(tool, arguments)


def note(key, body="Buy milk"):
    return "create_note", {"idempotency_key": key, "body": body}


def expect(what, seen, expected, detail=""):
    if seen != expected:
        raise AssertionError(f"{what}: expected {expected}, seen {seen}. {detail}")


def succeeded(answer, replayed=False):
    body = answer["structuredContent"]
    expect("an error", (answer.get("isError", False), body["status"]), (False, "succeeded"), answer)
    expect("replayed", body["replayed"], replayed, answer)
    expect("the text", json.loads(answer["content"][-1]["text"]), body)
    return body


def refused(answer, code):
    body = answer["structuredContent"]
    expect("an error", (answer["isError"], body["status"], body.get("code")), (True, "refused", code), answer)
    expect("the text", json.loads(answer["content"][-1]["text"]), body)
    return body


def holds(place, notes):
    """The file has a note and a receipt for each key, with its ids, and no others. Asked once no server runs."""
    connection = sqlite3.connect(f"file:{place.folder}/notes.db?mode=ro", uri=True)
    with contextlib.closing(connection):
        sql = "SELECT idempotency_key, note_id, operation_id FROM receipts LEFT JOIN notes USING (operation_id)"
        found = sorted(connection.execute(sql))
        count = connection.execute("SELECT count(*) FROM notes").fetchone()[0]
    expected = sorted((key, answer["note_id"], answer["operation_id"]) for key, answer in notes.items())
    expect("receipts with their notes, and notes", (found, count), (expected, len(notes)))
