"""One short coroutine per call: ask the boards, return a status and a body.

By the time a handler runs, the gateway has read and checked everything around the body. A handler
knows no HTTP: what it cannot answer it raises as a Refusal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec

from actors.errors import Refusal, invalid_field
from actors.questions import (
    Around,
    Change,
    Describe,
    Digest,
    Member,
    Periods,
    Question,
    Rank,
    Submit,
    Top,
)
from node import wire
from node.access import Caller
from node.service import Boards


class Context(msgspec.Struct, frozen=True):
    """What every handler of a node shares. `document` is the OpenAPI document."""

    boards: Boards
    document: dict[str, Any]


class Call(msgspec.Struct, frozen=True):
    """One checked request.

    path and query hold the parameters by name, a query's defaults included. packed: the answer is
    wanted as MessagePack. now_us: the time of receipt, in microseconds since the epoch. caller: who
    makes it; a board that the path names is one of theirs, one named elsewhere is for the handler
    to check.
    """

    path: dict[str, Any]
    query: dict[str, Any]
    packed: bool
    now_us: int
    caller: Caller
    body: bytes = b""
    body_packed: bool = False


Answer: TypeAlias = tuple[int, bytes]
Handler: TypeAlias = Callable[[Context, Call], Awaitable[Answer]]


def _encode(value: Any, packed: bool) -> bytes:
    return msgspec.msgpack.encode(value) if packed else msgspec.json.encode(value)


async def create_board(context: Context, call: Call) -> Answer:
    """Create a board: 201 when it is new, 200 when it is there already."""
    created, body = await context.boards.create(
        call.path["board"],
        call.body,
        definition_packed=call.body_packed,
        packed=call.packed,
        now_us=call.now_us,
    )
    return (201 if created else 200), body


async def list_boards(context: Context, call: Call) -> Answer:
    """List the boards that the caller may ask about, a page at a time."""
    query, covers = call.query, call.caller.covers
    body = await context.boards.list(query["limit"], query["after"], covers, packed=call.packed)
    return 200, body


async def describe_board(context: Context, call: Call) -> Answer:
    """Describe a board."""
    return await _ask(context, call, Describe(call.packed, call.now_us))


async def change_board(context: Context, call: Call) -> Answer:
    """Change what may change of a definition."""
    change = Change(call.packed, call.now_us, call.body, call.body_packed)
    return 200, await context.boards.submit(call.path["board"], change)


async def delete_board(context: Context, call: Call) -> Answer:
    """Remove a board and its data."""
    await context.boards.delete(call.path["board"])
    return 204, b""


async def submit_events(context: Context, call: Call) -> Answer:
    """Submit one event or a batch."""
    source = call.caller.source
    submission = Submit(call.packed, call.now_us, call.body, call.body_packed, source)
    return 200, await context.boards.submit(call.path["board"], submission)


async def top(context: Context, call: Call) -> Answer:
    """Answer the entries from the top."""
    query = call.query
    question = Top(*_window(call), query["limit"], query["after"])
    return await _ask(context, call, question)


async def member(context: Context, call: Call) -> Answer:
    """Answer one member's entry."""
    return await _ask(context, call, Member(*_window(call), call.path["member"]))


async def around(context: Context, call: Call) -> Answer:
    """Answer the entries around a member, a position or a score."""
    query = call.query
    centres = (query["member"], query["rank"], query["score"])
    if sum(centre is not None for centre in centres) != 1:
        raise invalid_field("member", "give exactly one of member, rank and score")
    question = Around(*_window(call), *centres, query["above"], query["below"])
    return await _ask(context, call, question)


async def rank(context: Context, call: Call) -> Answer:
    """Answer where a new member with a score would stand."""
    return await _ask(context, call, Rank(*_window(call), call.query["score"]))


async def digest(context: Context, call: Call) -> Answer:
    """Answer the digest of a window's standings."""
    return await _ask(context, call, Digest(*_window(call)))


async def periods(context: Context, call: Call) -> Answer:
    """Answer a page of a board's windows."""
    query = call.query
    question = Periods(call.packed, call.now_us, query["kind"], query["limit"], query["after"])
    return await _ask(context, call, question)


def _window(call: Call) -> tuple[bool, int, str | None, int | None]:
    """Make what every question about a window begins with."""
    return call.packed, call.now_us, call.query["period"], call.query["revision"]


async def _ask(context: Context, call: Call, question: Question) -> Answer:
    min_sequence = call.query["min_sequence"]
    return 200, await context.boards.ask(call.path["board"], question, min_sequence)


async def healthz(_context: Context, call: Call) -> Answer:
    """Say that the node is alive."""
    return 200, _encode(wire.Status("alive"), call.packed)


async def readyz(context: Context, call: Call) -> Answer:
    """Say that the boards on disk are known and can be brought up on demand."""
    if not context.boards.ready:
        raise Refusal("board_unavailable", "The boards on disk are not known yet.")
    return 200, _encode(wire.Status("ready"), call.packed)


async def openapi(context: Context, call: Call) -> Answer:
    """Answer the OpenAPI document."""
    return 200, _encode(context.document, call.packed)
