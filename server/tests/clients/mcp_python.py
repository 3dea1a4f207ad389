"""PyPI's `mcp`: one connection for many calls."""

import contextlib
import logging

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED

from servers import Lost, Rejected, Unauthorized, expect

# It asks for the newest by itself (`auto`), and for the newest of those before if told to shake hands.
REVISIONS = {"2026-07-28": "auto", "2025-11-25": "legacy"}
KEEPS_A_CONNECTION = True

# Connections are lost on purpose.
logging.disable(logging.CRITICAL)


@contextlib.asynccontextmanager
async def connect(caller):
    statuses = []
    with translated(statuses):
        async with contextlib.AsyncExitStack() as stack:
            if caller.command:
                program, *arguments = caller.command
                log = stack.enter_context(open(caller.log, "a"))
                server = stdio_client(StdioServerParameters(command=program, args=arguments), errlog=log)
            else:
                requests = await stack.enter_async_context(http(caller, statuses))
                server = streamable_http_client(caller.url, http_client=requests)
            client = Client(server, mode=REVISIONS[caller.revision], read_timeout_seconds=30)
            await stack.enter_async_context(client)
            expect("the revision", client.protocol_version, caller.revision)
            yield Connection(client, statuses)


def http(caller, statuses):
    async def keep(response):
        statuses.append(response.status_code)

    headers = {"Authorization": f"Bearer {caller.token}"}
    return httpx2.AsyncClient(headers=headers, timeout=30, event_hooks={"response": [keep]})


class Connection:
    def __init__(self, client, statuses):
        self.client, self.statuses = client, statuses

    async def tools(self):
        with translated(self.statuses):
            listed = await self.client.list_tools(cache_mode="bypass")
        return plain(listed)["tools"]

    async def call(self, tool, arguments):
        with translated(self.statuses):
            return plain(await self.client.call_tool(tool, arguments))


def plain(result):
    return result.model_dump(mode="json", by_alias=True, exclude_unset=True)


@contextlib.contextmanager
def translated(statuses):
    try:
        yield
    except BaseException as error:
        errors = leaves(error)
        # By HTTP the error of one request ends the connection.
        if all(isinstance(each, httpx2.TransportError) for each in errors):
            raise Lost from error
        error = errors[0]
        if not isinstance(error, MCPError):
            raise error
        if 401 in statuses[-1:]:
            raise Unauthorized from error
        if error.code == CONNECTION_CLOSED:
            raise Lost from error
        raise Rejected(error.code, error.message) from error


def leaves(error):
    """It wraps errors in groups."""
    if hasattr(error, "exceptions"):
        return [leaf for each in error.exceptions for leaf in leaves(each)]
    return [error]
