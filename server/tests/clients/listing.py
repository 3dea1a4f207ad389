"""What a client is told before it calls anything."""

import re

from servers import call, expect, note, succeeded

WITH_KEY = ["create_note", "create_automation", "set_interval", "start_deployment"]
QUERIES = ["get_note", "get_automation", "get_operation", "find_operation"]
# In this order.
TOOLS = [
    *["create_note", "get_note", "create_automation", "set_interval", "get_automation"],
    *["start_deployment", "cancel_operation", "get_operation", "find_operation"],
]
DESTRUCTIVE = ["set_interval", "cancel_operation"]
OPEN_WORLD = ["start_deployment", "cancel_operation"]


async def the_tools_are_listed_in_one_order_with_schemas_and_annotations(client, place):
    listings = []
    # By two servers.
    for _ in range(2):
        async with place.serving() as serving, client.connect(serving.caller()) as connection:
            listings.append(await connection.tools())
    expect("the second listing", listings[1], listings[0])
    tools = {tool["name"]: tool for tool in listings[0]}
    expect("names", list(tools), TOOLS)
    for name, tool in tools.items():
        given, answered = tool["inputSchema"], tool.get("outputSchema", {})
        expect("snake_case", bool(re.fullmatch("[a-z]+(_[a-z]+)*", name)), True, name)
        expect(f"arguments of {name}", (given["type"], given["additionalProperties"]), ("object", False))
        expect(f"arguments that {name} describes", {*given["required"]} - {*given["properties"]}, set())
        expect(f"its key: {name}", "idempotency_key" in given["required"], name in [*WITH_KEY, "find_operation"])
        expect(f"answers of {name}", answered.get("type"), "object")
        expect(f"missing in {name}", {"status", "replayed", "retryable"} - {*answered["required"]}, set())
        expect(f"annotations of {name}", {**tool["annotations"], "title": tool["title"]}, annotations(name, tool))


def annotations(name, tool):
    return {
        "title": tool["annotations"]["title"],
        "readOnlyHint": name in QUERIES,
        "destructiveHint": name in DESTRUCTIVE,
        "idempotentHint": True,
        "openWorldHint": name in OPEN_WORLD,
    }


async def descriptions_say_how_to_use_a_key(client, place):
    async with place.serving() as serving, client.connect(serving.caller()) as connection:
        tools = {tool["name"]: tool["description"] for tool in await connection.tools()}
    advice = [
        "Generate one idempotency_key",
        "for each intended action and store it before the first attempt",
        "Reuse that key, with the same arguments, for every retry",
        "valid for 30 days",
    ]
    for name in WITH_KEY:
        for words in [*advice, f'find_operation with tool "{name}"']:
            expect(f"{name} says: {words}", words in tools[name], True, tools[name])


async def the_revision_asked_for_is_spoken(client, place):
    async with place.serving() as serving, serving.relayed(serving.caller()) as (caller, relayed):
        succeeded(await call(client, caller, *note("key")))
        asked, answered = relayed.said("client"), relayed.said("server")
    shakes_hands = place.revision == "2025-11-25"
    expect("it shakes hands", b'"method":"initialize"' in asked, shakes_hands, asked)
    expect("it discovers", b'"method":"server/discover"' in asked, not shakes_hands, asked)
    expect("the server agrees", b'"protocolVersion":"2025-11-25"' in answered, shakes_hands, answered)
    expect("calls name it", b'/protocolVersion":"2026-07-28"' in asked, not shakes_hands, asked)
    expect("answers are of it", b'"resultType":"complete"' in answered, not shakes_hands, answered)
    if place.transport == "http":
        header = b"mcp-protocol-version:" + place.revision.encode()
        expect("so does the header", header in asked.lower(), True, asked)


GUARANTEES = [
    the_tools_are_listed_in_one_order_with_schemas_and_annotations,
    descriptions_say_how_to_use_a_key,
    the_revision_asked_for_is_spoken,
]
