"""What is done once, however often it is asked for, and whatever becomes of the answers."""

import asyncio
import contextlib
import time

from servers import RANDOM, Lost, Rejected, call, expect, holds, keeps_a_connection, note, refused, succeeded


async def a_repeated_call_is_a_replay_and_other_arguments_are_refused(client, place):
    async with place.serving() as serving:
        ada = serving.caller()
        async with client.connect(ada) as connection:
            made = succeeded(await connection.call(*note("key")))
            again = succeeded(await connection.call(*note("key")), replayed=True)
            refused(await connection.call(*note("key", "Buy bread")), "key_conflict")
        expect("the replay", again, {**made, "replayed": True})
        later = succeeded(await call(client, ada, *note("key")), replayed=True)
        expect("the replay over another connection", later, again)
        read = succeeded(await call(client, ada, "get_note", {"note_id": made["note_id"]}))
        expect("the note", read["body"], "Buy milk")
        other = succeeded(await call(client, ada, *note("another-key")))
        expect("another key's note is another", other["note_id"] != made["note_id"], True)
    holds(place, {"key": made, "another-key": other})


async def an_answer_that_is_lost_after_the_commit_is_replayed(client, place):
    notes = {}
    async with place.serving() as serving:
        ada = serving.caller()
        if place.transport == "http":
            # The connection alone is lost. Over stdio the server ends with it.
            async with serving.relayed(ada, "cut", after=1) as (caller, _):
                await is_lost(call(client, caller, *note("cut")))
            notes["cut"] = succeeded(await call(client, ada, *note("cut")), replayed=True)
        async with serving.relayed(ada, "kill", after=1) as (caller, _):
            await is_lost(call(client, caller, *note("kill")))
    async with place.serving() as serving, client.connect(serving.caller()) as connection:
        found = succeeded(
            await connection.call("find_operation", {"tool": "create_note", "idempotency_key": "kill"})
        )
        notes["kill"] = succeeded(await connection.call(*note("kill")), replayed=True)
        expect("found by its key", found["operation_id"], notes["kill"]["operation_id"])
        expect("its note", found["resource_id"], notes["kill"]["note_id"])
        refused(await connection.call(*note("kill", "Buy bread")), "key_conflict")
    holds(place, notes)


async def is_lost(answer):
    try:
        said = await answer
    except Lost:
        return
    raise AssertionError(f"an answer: expected to be lost, seen {said}")


async def calls_at_once_when_the_server_is_killed_act_once(client, place):
    calls, some = [note(f"key-{number}", f"body {number}") for number in range(100)], 3
    async with place.serving() as serving:
        async with serving.relayed(serving.caller(), "kill", after=some) as (caller, relayed):
            said = []
            # All of it is lost, or each answer.
            with contextlib.suppress(Lost):
                async with client.connect(caller) as connection:
                    answers = (connection.call(*each) for each in calls)
                    said = await asyncio.gather(*answers, return_exceptions=True)
            await relayed.has_acted()
    for answer in said:
        expect("what the client is told", type(answer), Lost, answer)
    async with place.serving() as serving, client.connect(serving.caller()) as connection:
        answers = await asyncio.gather(*(connection.call(*each) for each in calls))
        committed = sum(answer["structuredContent"]["replayed"] for answer in answers)
        expect("at least what was answered was committed", committed >= some, True, committed)
        notes = {}
        for each, answer in zip(calls, answers):
            notes[each[1]["idempotency_key"]] = succeeded(answer, answer["structuredContent"]["replayed"])
    holds(place, notes)
    return f"{committed} of {len(calls)} had committed"


async def a_call_that_the_client_cancels_after_the_commit_acts_once(client, place):
    async with place.serving() as serving:
        ada = serving.caller()
        async with serving.relayed(ada, "hold", after=1) as (caller, relayed):
            async with client.connect(caller) as connection:
                running = asyncio.create_task(connection.call(*note("key")))
                await relayed.has_acted()
                running.cancel()
                (said,) = await asyncio.gather(running, return_exceptions=True)
                expect("what the client is told", type(said), asyncio.CancelledError, said)
        made = succeeded(await call(client, ada, *note("key")), replayed=True)
    holds(place, {"key": made})


async def calls_that_the_client_cancels_at_random_moments_act_once(client, place):
    calls = [note(f"key-{number}", f"body {number}") for number in range(40)]

    async def cancelled(connection, each, moment):
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(connection.call(*each), moment)

    async with place.serving() as serving, client.connect(serving.caller()) as connection:
        begun = time.monotonic()
        succeeded(await connection.call(*calls[0]), replayed=False)
        window = 10 * (time.monotonic() - begun)
        moments = [RANDOM.uniform(0, window) for _ in calls]
        said = await asyncio.gather(*(cancelled(connection, *each) for each in zip(calls, moments)))
        answers = await asyncio.gather(*(connection.call(*each) for each in calls))
        notes, committed = {}, 0
        for each, first, answer in zip(calls, said, answers):
            was_committed = answer["structuredContent"]["replayed"]
            committed += was_committed
            notes[each[1]["idempotency_key"]] = succeeded(answer, was_committed)
            if first:
                expect("what was answered is replayed", was_committed, True, first)
    holds(place, notes)
    return f"{said.count(None)} of {len(calls)} cancelled, {committed} had committed"


async def a_tool_that_is_not_there_is_an_error_of_the_protocol(client, place):
    async with place.serving() as serving, client.connect(serving.caller()) as connection:
        try:
            said = await connection.call("create_notes", {"idempotency_key": "key", "body": "Buy milk"})
        except Rejected as rejected:
            expect("the code", rejected.args[0], -32602)
        else:
            raise AssertionError(f"an unknown tool: expected an error of the protocol, seen {said}")
        made = succeeded(await connection.call(*note("key")))
    holds(place, {"key": made})


async def what_became_of_an_operation_is_no_error_whatever_it_is(client, place):
    async with place.serving() as serving:
        ada = serving.caller(permissions="read,deploy")
        deployment = {"idempotency_key": "deploy-7", "service": "web", "revision": "7"}
        started = succeeded(await call(client, ada, "start_deployment", deployment))
        expect("its state", started["state"], "accepted")
        operation = started["operation_id"]
        cancelled = succeeded(await call(client, ada, "cancel_operation", {"operation_id": operation}))
        expect("its state", cancelled["state"], "cancelled")
        found = succeeded(await call(client, ada, "get_operation", {"operation_id": operation}))
        expect("its state", found["state"], "cancelled")
        refused(await call(client, ada, "get_operation", {"operation_id": "operation"}), "invalid_argument")
        unknown = {"tool": "start_deployment", "idempotency_key": "deploy-8"}
        refused(await call(client, ada, "find_operation", unknown), "not_found")


calls_at_once_when_the_server_is_killed_act_once.can_be_asked = keeps_a_connection
a_call_that_the_client_cancels_after_the_commit_acts_once.can_be_asked = keeps_a_connection
calls_that_the_client_cancels_at_random_moments_act_once.can_be_asked = keeps_a_connection
a_tool_that_is_not_there_is_an_error_of_the_protocol.can_be_asked = keeps_a_connection
what_became_of_an_operation_is_no_error_whatever_it_is.can_be_asked = keeps_a_connection

GUARANTEES = [
    a_repeated_call_is_a_replay_and_other_arguments_are_refused,
    an_answer_that_is_lost_after_the_commit_is_replayed,
    calls_at_once_when_the_server_is_killed_act_once,
    a_call_that_the_client_cancels_after_the_commit_acts_once,
    calls_that_the_client_cancels_at_random_moments_act_once,
    a_tool_that_is_not_there_is_an_error_of_the_protocol,
    what_became_of_an_operation_is_no_error_whatever_it_is,
]
