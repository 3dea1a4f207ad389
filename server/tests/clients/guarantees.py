"""What MCP clients that others wrote see of `counterfoil serve`: guarantees.py PROGRAM COMPONENT CLIENT.

CLIENT is a module beside this one. It says how a client is driven (`connect`), which revisions it speaks (`REVISIONS`),
and whether a connection outlives a call (`KEEPS_A_CONNECTION`).

Each transport and revision has a process of its own, all at once. It prints a line for each guarantee that held, and ends
at the first that did not. SEED in the environment repeats a run's choices.
"""

import asyncio
import importlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import access
import crowd
import listing
import retries
from servers import RUNNING, SEED, Place

# Seconds. Nothing here waits longer than a few of them, so something hangs.
LIMIT = 300
GUARANTEES = [*listing.GUARANTEES, *retries.GUARANTEES, *access.GUARANTEES, *crowd.GUARANTEES]


def main(program, component, name):
    print(f"  seed {SEED}", flush=True)
    # Whoever starts it first compiles the component, for which clients do not wait.
    subprocess.run([program, "--component", component, "tools"], stdout=subprocess.DEVNULL, check=True)
    revisions = importlib.import_module(name).REVISIONS
    ways = [(transport, revision) for transport in ["stdio", "http"] for revision in revisions]
    environment = {**os.environ, "SEED": str(SEED)}
    command = [sys.executable, __file__, program, component, name]
    processes = [subprocess.Popen([*command, *way], env=environment) for way in ways]
    sys.exit(any([process.wait() for process in processes]))


def check(program, component, name, transport, revision):
    signal.signal(signal.SIGALRM, hangs)
    signal.alarm(LIMIT)
    client = importlib.import_module(name)
    for guarantee in GUARANTEES:
        if not getattr(guarantee, "can_be_asked", lambda *_: True)(client, transport):
            continue
        what = f"{transport}, {revision}: {guarantee.__name__.replace('_', ' ')}"
        with tempfile.TemporaryDirectory(prefix="counterfoil-clients-") as folder:
            place = Place(pathlib.Path(folder), transport, revision, program, component)
            try:
                detail = asyncio.run(guarantee(client, place))
            except AssertionError as failure:
                log = place.log.read_text() if place.log.exists() else ""
                sys.exit(f"  this did not hold: {what}\n  {failure}\n{log}")
        print(f"  ok: {what}" + (f" ({detail})" if detail else ""), flush=True)


def hangs(*_):
    for process in RUNNING:
        process.kill()
    print(f"  not done after {LIMIT} s", file=sys.stderr)
    os._exit(1)


(check if len(sys.argv) > 4 else main)(*sys.argv[1:])
