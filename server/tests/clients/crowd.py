"""More calls than the server keeps waiting."""

import asyncio

from servers import expect, holds, keeps_a_connection, note, refused, succeeded

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

GUARANTEES = [busy_calls_are_repeated_with_their_keys_and_act_once]
