"""Who may, as of now: also for what was done when they might."""

import contextlib
import http.client
import json
import re
import urllib.parse

from servers import Unauthorized, call, expect, holds, keeps_a_connection, note, refused, succeeded


async def without_its_permission_a_call_is_denied_replays_too(client, place):
    async with place.serving() as serving:
        made = succeeded(await call(client, serving.caller(), *note("key")))
    async with place.serving() as serving:
        async with client.connect(serving.caller(permissions="read")) as connection:
            for key in ["key", "another-key"]:
                refused(await connection.call(*note(key)), "denied")
            expect("what is read", succeeded(await connection.call(*read(made)))["body"], "Buy milk")
        again = succeeded(await call(client, serving.caller(), *note("key")), replayed=True)
    expect("the replay", again["note_id"], made["note_id"])
    holds(place, {"key": made})


def read(made):
    return "get_note", {"note_id": made["note_id"]}


async def a_key_is_its_subjects_and_a_note_its_workspaces(client, place):
    async with place.serving() as serving:
        ada, bo, eve = (serving.caller(subject=subject) for subject in ["ada@acme", "bo@acme", "eve@evil"])
        made = succeeded(await call(client, ada, *note("key")))
        other = succeeded(await call(client, bo, *note("key")))
        expect("the same key of another", other["note_id"] != made["note_id"], True)
        expect("what is read", succeeded(await call(client, bo, *read(made)))["body"], "Buy milk")
        refused(await call(client, eve, *read(made)), "not_found")
        refused(await call(client, serving.caller(permissions="write-notes"), *read(made)), "denied")


async def a_token_that_is_removed_is_refused_at_once_replays_too(client, place):
    async with place.serving() as serving:
        ada, new = serving.caller(), serving.caller()
        async with client.connect(ada) as connection:
            made = succeeded(await connection.call(*note("key")))
            serving.revoke(ada)
            for key in ["key", "another-key"]:
                await is_unauthorized(connection.call(*note(key)))
        await is_unauthorized(call(client, ada, *note("key")))
        again = succeeded(await call(client, new, *note("key")), replayed=True)
        # Made after the server had begun, and after the other was removed.
        newest = serving.caller()
        expect("the newest token's replay", succeeded(await call(client, newest, *note("key")), replayed=True), again)
    expect("the replay", again["note_id"], made["note_id"])
    holds(place, {"key": made})


async def is_unauthorized(answer):
    try:
        said = await answer
    except Unauthorized:
        return
    raise AssertionError(f"an answer: expected 401, seen {said}")


async def without_a_token_that_is_known_there_is_nothing_to_be_had(_, place):
    async with place.serving() as serving:
        body = '{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
        accepted = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        for headers in [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic YWRhOmFkYQ=="}]:
            response, said = request("POST", serving.url, body, {**headers, **accepted})
            expect("the status", response.status, 401, headers)
            expect("nothing of the tools is said", b"create_note" in said, False, said)
            challenge = response.getheader("WWW-Authenticate", "")
            where = re.fullmatch('Bearer .*resource_metadata="(http[^"]+)".*', challenge)
            expect("it says where to ask", bool(where), True, challenge)
            response, said = request("GET", where[1])
            expect("the status there", response.status, 200)
            expect("what it is about", json.loads(said)["resource"], serving.url)


def request(method, url, body=None, headers={}):
    url = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(url.netloc)
    with contextlib.closing(connection):
        connection.request(method, url.path, body, headers)
        response = connection.getresponse()
        return response, response.read()


a_token_that_is_removed_is_refused_at_once_replays_too.can_be_asked = lambda _, transport: transport == "http"
without_a_token_that_is_known_there_is_nothing_to_be_had.can_be_asked = (
    lambda client, transport: keeps_a_connection(client, transport) and transport == "http"
)
a_key_is_its_subjects_and_a_note_its_workspaces.can_be_asked = keeps_a_connection

GUARANTEES = [
    without_its_permission_a_call_is_denied_replays_too,
    a_key_is_its_subjects_and_a_note_its_workspaces,
    a_token_that_is_removed_is_refused_at_once_replays_too,
    without_a_token_that_is_known_there_is_nothing_to_be_had,
]
