"""npm's `@modelcontextprotocol/inspector`, by its command line: a connection for each call. INSPECTOR names its folder.

It asks for the list of tools before each call, and does not send a name that is not in it. Its package asks for Node 22;
the command line runs on 20 as well.
"""

import asyncio
import contextlib
import json
import os
import tempfile

from servers import Lost, Rejected, Unauthorized

REVISIONS = {"2026-07-28": "modern", "2025-11-25": "legacy"}
KEEPS_A_CONNECTION = False

LAUNCHER = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
KEPT = ["MCP_STORAGE_DIR", "MCP_CATALOG_PATH", "MCP_CLIENT_CONFIG_PATH"]


@contextlib.asynccontextmanager
async def connect(caller):
    yield Connection(caller)


class Connection:
    def __init__(self, caller):
        self.options = ["--protocol-era", REVISIONS[caller.revision], "--format", "json", "--quiet"]
        if caller.command:
            self.server = ["--", *caller.command]
        else:
            self.server = [caller.url, "--header", f"Authorization: Bearer {caller.token}", "--stored-auth-only"]

    async def tools(self):
        return (await self.run("--method", "tools/list"))["tools"]

    async def call(self, tool, arguments):
        return await self.run(
            "--method", "tools/call", "--tool-name", tool, "--tool-args-json", json.dumps(arguments)
        )

    async def run(self, *method):
        program = ["node", os.path.join(os.environ["INSPECTOR"], LAUNCHER), "--cli"]
        command = [*program, *self.options, *method, *self.server]
        pipe = asyncio.subprocess.PIPE
        with tempfile.TemporaryDirectory(prefix="counterfoil-clients-") as folder:
            # Not what whoever runs this keeps for it at home.
            environment = {**os.environ, **{name: f"{folder}/{name}" for name in KEPT}}
            process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=environment)
            try:
                said, errors = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
        if said:
            return json.loads(said)["result"]
        raise translated(json.loads(errors)["error"])


def translated(error):
    if error["code"] == "auth_required":
        return Unauthorized()
    return Lost() if error["code"] in ["error", "unreachable"] else Rejected(error["code"], error["message"])
