"""Stands between a client and a server, keeps what each says, and loses the answers of tools.

It hands on all but answers of tools. Once it has had as many of those as it is told, each of which is durable by then,
it kills the server (`kill`), drops the client's connections (`cut`, of HTTP alone), or goes on saying nothing (`hold`).
With `pass` it hands on everything.

Over stdio it is a program that a client starts in place of the server:

    relay.py ACTION AFTER FOLDER COMMAND...

which appends what is said to the files `client` and `server` in FOLDER, and reports to its pipe `reports` that it has
acted.
"""

import asyncio
import contextlib
import os
import pathlib
import subprocess
import sys
import threading
import urllib.parse

ANSWER = b'"structuredContent"'


def stdio(action, after, folder, *command):
    folder, answers = pathlib.Path(folder), 0
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    threading.Thread(target=requests, args=(server, folder / "client"), daemon=True).start()
    with open(folder / "server", "ab", buffering=0) as said:
        for line in server.stdout:
            said.write(line)
            if action == "pass" or ANSWER not in line:
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
                continue
            answers += 1
            if answers != int(after):
                continue
            if action == "kill":
                server.kill()
            (folder / "reports").write_bytes(b"!")
    # The other thread is not waited for.
    os._exit(server.wait() and 1)


def requests(server, path):
    with open(path, "ab", buffering=0) as said:
        with contextlib.suppress(BrokenPipeError):
            for line in sys.stdin.buffer:
                said.write(line)
                server.stdin.write(line)
                server.stdin.flush()
    with contextlib.suppress(BrokenPipeError):
        server.stdin.close()


class Http:
    def __init__(self, url, action, after, kill):
        self.server, self.action, self.after, self.kill = urllib.parse.urlsplit(url), action, after, kill
        self.heard = {"client": b"", "server": b""}
        self.answers, self.acted, self.open = 0, asyncio.Event(), set()

    async def __aenter__(self):
        self.listener = await asyncio.start_server(self.connection, "127.0.0.1", 0)
        port = self.listener.sockets[0].getsockname()[1]
        self.url = self.server._replace(netloc=f"127.0.0.1:{port}").geturl()
        return self

    async def __aexit__(self, *_):
        self.listener.close()
        self.drop()

    async def has_acted(self):
        await self.acted.wait()

    def said(self, who):
        return self.heard[who].replace(b" ", b"")

    async def connection(self, reader, writer):
        try:
            server_reader, server_writer = await asyncio.open_connection(self.server.hostname, self.server.port)
        except OSError:
            return writer.transport.abort()
        self.open |= {writer.transport, server_writer.transport}
        calls = asyncio.Event()
        try:
            with contextlib.suppress(OSError):
                await asyncio.gather(
                    self.requests(reader, server_writer, calls), self.responses(server_reader, writer, calls)
                )
        finally:
            for transport in [writer.transport, server_writer.transport]:
                transport.abort()
                self.open.discard(transport)

    async def requests(self, reader, writer, calls):
        while data := await reader.read(65536):
            self.heard["client"] += data
            if b'"tools/call"' in data:
                calls.set()
            writer.write(data)
            await writer.drain()
        writer.transport.abort()

    async def responses(self, reader, writer, calls):
        held = b""
        while data := await reader.read(65536):
            self.heard["server"] += data
            if self.action == "pass" or not calls.is_set():
                writer.write(data)
                await writer.drain()
                continue
            # The head of a response may come long before its body.
            held += data
            if ANSWER in held:
                held = b""
                self.answers += 1
                if self.answers == self.after:
                    self.act()
        writer.close()

    def act(self):
        if self.action == "kill":
            self.kill()
        if self.action in ["kill", "cut"]:
            self.drop()
        self.acted.set()

    def drop(self):
        for transport in self.open:
            transport.abort()


if __name__ == "__main__":
    stdio(*sys.argv[1:])
