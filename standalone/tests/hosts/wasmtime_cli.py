"""The component under wasmtime's command line, which WASMTIME names. guarantees.py says what is asked of it."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

WASMTIME = os.environ["WASMTIME"]
WIT = pathlib.Path(__file__).parents[3] / "wit"


def command(folder, call, *options):
    name, *arguments = call
    # JSON's strings and numbers are those of WAVE, in which calls are written.
    invocation = f"{name}({', '.join(json.dumps(argument, ensure_ascii=False) for argument in arguments)})"
    return [WASMTIME, "run", *options, "--invoke", invocation, f"{folder}/component.wasm"]


def cached(folder):
    """The environment in which it keeps in that folder what it has compiled."""
    return {**os.environ, "XDG_CACHE_HOME": folder, "RUST_BACKTRACE": "0"}


def prepare(wasm, folder):
    shutil.copy(wasm, f"{folder}/component.wasm")
    # It lists no functions. So it is asked for every one that is written down in the WIT, in whichever interface.
    written = "".join(path.read_text() for path in WIT.glob("*.wit"))
    found = []
    for name in sorted(set(re.findall(r"([a-z-]+): (?:static )?func", written))):
        called = subprocess.run(command(folder, [name]), env=cached(folder), capture_output=True, text=True)
        # Without its arguments no call of one that is there succeeds either.
        if "No exported func" not in called.stderr:
            found.append(name)
    print(json.dumps(found))


def run(folder, calls, folders, environment, threads, lost):
    options = [f"--dir={path}::{guest}" for guest, path in folders.items()]
    options += [f"--env={name}={value}" for name, value in environment.items()]

    def answer(call):
        called = subprocess.Popen(command(folder, call, *options), env=cached(folder), stdout=subprocess.PIPE)
        if lost:
            # The call has returned, since it begins to say so. The two are one group.
            called.stdout.read(1)
            os.killpg(0, signal.SIGKILL)
        said, _ = called.communicate()
        return value(said.decode())

    print("ready", flush=True)
    sys.stdin.read()
    with ThreadPoolExecutor(threads) as pool:
        for found in pool.map(answer, calls):
            print(json.dumps(found))


def value(text):
    """WAVE as JSON. A record leaves out what is none."""
    closing, json_text = [], ""
    for token in re.findall(r'"(?:[^"\\]|\\.)*"|[\w%-]+\s*[(:]?|[^\s]', text):
        if token in ["ok(", "err("]:
            json_text += f'{{"{token[:-1]}":'
            closing.append("}")
        elif token == "some(":
            closing.append("")
        elif token == ")":
            json_text += closing.pop()
        elif token.endswith(":"):
            json_text += f'"{token[:-1]}":'
        elif token == "none":
            json_text += "null"
        elif re.fullmatch(r"[a-z][a-z-]*", token) and token not in ["true", "false"]:
            json_text += f'"{token}"'
        else:
            json_text += token
    return json.loads(json_text)


if sys.argv[1] == "prepare":
    prepare(*sys.argv[2:])
else:
    run(sys.argv[2], **json.loads(sys.argv[3]))
