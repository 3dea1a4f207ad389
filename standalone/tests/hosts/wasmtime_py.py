"""The component under wasmtime-py, PyPI's `wasmtime`, found by PYTHONPATH. guarantees.py says what is asked of it."""

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

from wasmtime import Engine, Store, WasiConfig
from wasmtime.component import Component, Linker, Record

ENGINE = Engine()


def prepare(wasm, folder):
    component = Component.from_file(ENGINE, wasm)
    # Compiling takes seconds.
    with open(f"{folder}/compiled", "wb") as compiled:
        compiled.write(component.serialize())
    print(json.dumps(list(component.type.exports(ENGINE))))


def run(folder, calls, folders, environment, threads, lost):
    component = Component.deserialize_file(ENGINE, f"{folder}/compiled")

    def answer(call):
        wasi = WasiConfig()
        wasi.env = list(environment.items())
        for guest, path in folders.items():
            wasi.preopen_dir(path, guest)
        wasi.inherit_stderr()
        store = Store(ENGINE)
        store.set_wasi(wasi)
        linker = Linker(ENGINE)
        linker.add_wasip2()
        name, *arguments = call
        result = linker.instantiate(store, component).get_func(store, name)(store, *arguments)
        if lost:
            os.kill(os.getpid(), signal.SIGKILL)
        return {result.tag: plain(result.payload)}

    print("ready", flush=True)
    sys.stdin.read()
    with ThreadPoolExecutor(threads) as pool:
        for found in pool.map(answer, calls):
            print(json.dumps(found))


def plain(value):
    if isinstance(value, Record):
        return {name: plain(field) for name, field in vars(value).items()}
    return value


if sys.argv[1] == "prepare":
    prepare(*sys.argv[2:])
else:
    run(sys.argv[2], **json.loads(sys.argv[3]))
