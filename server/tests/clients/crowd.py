"""More calls than the server keeps waiting."""

import asyncio
import http.client
import json
import threading
import urllib.parse

from servers import call, expect, holds, keeps_a_connection, note, refused, succeeded

# Calls at once, where one may wait.
CROWD = 16
ROUNDS = 20


async def busy_calls_are_repeated_with_their_keys_and_act_once(client, place):
    notes, busy = {}, 0
    async with place.serving("--queue", "1") as serving, client.connect(serving.caller()) as connection:
        for number in range(ROUNDS):
            calls = [note(f"key-{number}-{which}") for which in range(CROWD)]
            while calls:
                answers = await asyncio.gather(*(connection.call(*each) for each in calls))
                again, pauses = [], [0]
                for each, answer in zip(calls, answers):
                    if answer["isError"]:
                        refusal = refused(answer, "busy")
                        expect("it may be repeated", refusal["retryable"], True)
                        pauses.append(refusal.get("retry_after_ms", 0))
                        expect("it says when", pauses[-1] > 0, True, refusal)
                        again.append(each)
                    else:
                        notes[each[1]["idempotency_key"]] = succeeded(answer)
                busy += len(again)
                calls = again
                await asyncio.sleep(max(pauses) / 1000)
            if busy:
                break
    expect("one was busy at least", busy > 0, True, f"in {ROUNDS} rounds of {CROWD} calls at once")
    holds(place, notes)
    return f"{busy} answers of {len(notes) + busy}"


busy_calls_are_repeated_with_their_keys_and_act_once.can_be_asked = keeps_a_connection

async def a_call_into_a_crowd_is_busy_and_repeated_with_its_key_and_acts_once(client, place):
    async with place.serving("--queue", "1") as serving:
        others, ended = serving.caller(subject="bo@acme"), threading.Event()
        crowd = [asyncio.create_task(asyncio.to_thread(read_in_vain, others, ended)) for _ in range(CROWD)]
        try:
            caller, busy, made = serving.caller(), 0, None
            while not (busy and made):
                # Once it is made, it is busy or a replay.
                answer = await call(client, caller, *note("key"))
                if answer["isError"]:
                    refused(answer, "busy")
                    busy += 1
                else:
                    made = succeeded(answer, replayed=made is not None)
        finally:
            ended.set()
            await asyncio.gather(*crowd)
    holds(place, {"key": made})
    return f"{busy} times"


a_call_into_a_crowd_is_busy_and_repeated_with_its_key_and_acts_once.can_be_asked = lambda client, transport: (
    transport == "http" and not client.KEEPS_A_CONNECTION
)


def read_in_vain(caller, ended):
    """Calls until it is told to end, by hand."""
    address = urllib.parse.urlsplit(caller.url)
    connection = http.client.HTTPConnection(address.hostname, address.port)
    params = {"name": "get_note", "arguments": {"note_id": "00000000-0000-7000-8000-000000000000"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    headers = {
        "Accept": "application/json, text/event-stream",
        "Authorization": f"Bearer {caller.token}",
        "Content-Type": "application/json",
        "MCP-Protocol-Version": "2025-11-25",
    }
    while not ended.is_set():
        connection.request("POST", address.path, body, headers)
        connection.getresponse().read()
    connection.close()


GUARANTEES = [
    busy_calls_are_repeated_with_their_keys_and_act_once,
    a_call_into_a_crowd_is_busy_and_repeated_with_its_key_and_acts_once,
]
