"""One short coroutine per call: ask the boards, return a status and a body.

By the time a handler runs, the gateway has read and checked everything around the body. A handler
knows no HTTP: what it cannot answer it raises as a Refusal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import msgspec

from actors.errors import Refusal, invalid_field
from actors.questions import (
    Around,
    Bands,
    Change,
    Describe,
    Digest,
    Lookup,
    Member,
    Periods,
    Question,
    Range,
    Rank,
    Submit,
    Top,
)
from actors.submission import MALFORMED, field_of
from node import wire
from node.access import Caller
from node.exposition import Exposition
from node.service import Boards


class Context(msgspec.Struct, frozen=True):
    """What every handler of a node shares.

    document: the OpenAPI document. board_seconds_max: how long one of several boards may take, so
    that the others' answers leave within the request's time. exposition: of what the gateway
    counts.
    """

    boards: Boards
    document: dict[str, Any]
    board_seconds_max: float
    exposition: Exposition


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


PAST_CACHES = "actor"  # of `read`: only the board's own answer will do

Answer: TypeAlias = tuple[int, bytes]
BodyT = TypeVar("BodyT")
Handler: TypeAlias = Callable[[Context, Call], Awaitable[Answer]]
HandlerAtOnce: TypeAlias = Callable[[Context, Call], Answer | None]


def read_body(call: Call, form: type[BodyT]) -> BodyT:
    """Decode a small body. Errors: Refusal malformed_body, invalid_field."""
    decode = msgspec.msgpack.decode if call.body_packed else msgspec.json.decode
    try:
        return decode(call.body, type=form)
    except msgspec.ValidationError as error:
        raise invalid_field(field_of(error), str(error)) from None
    except MALFORMED as error:
        raise Refusal("malformed_body", f"the body cannot be read: {error}") from None


def encode(value: Any, packed: bool) -> bytes:
    """Encode an answer in the form that was asked for."""
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
    query, patterns = call.query, call.caller.boards
    body = await context.boards.list(query["limit"], query["after"], patterns, packed=call.packed)
    return 200, body


async def describe_board(context: Context, call: Call) -> Answer:
    """Describe a board."""
    return await ask_board(context, call, Describe(call.packed, call.now_us))


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
    if query["read"] == PAST_CACHES:
        return await ask_board(context, call, _top_of(call))
    min_sequence = query["min_sequence"]
    return 200, await context.boards.top(call.path["board"], _top_of(call), min_sequence)


def kept_top(context: Context, call: Call) -> Answer | None:
    """Answer as `top` does, from what is at hand; None where the board has to be asked."""
    query = call.query
    if query["read"] == PAST_CACHES:
        return None
    body = context.boards.kept_top(call.path["board"], _top_of(call), query["min_sequence"])
    return None if body is None else (200, body)


def _top_of(call: Call) -> Top:
    return Top(*window_of(call), call.query["limit"], call.query["after"])


async def member(context: Context, call: Call) -> Answer:
    """Answer one member's entry."""
    return await ask_board(context, call, Member(*window_of(call), call.path["member"]))


async def around(context: Context, call: Call) -> Answer:
    """Answer the entries around a member, a position or a score."""
    query = call.query
    centres = (query["member"], query["rank"], query["score"])
    if sum(centre is not None for centre in centres) != 1:
        raise invalid_field("member", "give exactly one of member, rank and score")
    question = Around(*window_of(call), *centres, query["above"], query["below"])
    return await ask_board(context, call, question)


async def rank(context: Context, call: Call) -> Answer:
    """Answer where a new member with a score would stand."""
    return await ask_board(context, call, Rank(*window_of(call), call.query["score"]))


async def range_of_scores(context: Context, call: Call) -> Answer:
    """Answer the entries within a range of scores."""
    query = call.query
    bounds = query["min"], query["max"]
    question = Range(*window_of(call), *bounds, query["limit"], query["after"])
    return await ask_board(context, call, question)


async def bands(context: Context, call: Call) -> Answer:
    """Answer where the top p % end."""
    return await ask_board(context, call, Bands(*window_of(call), call.query["percentiles"]))


async def lookup(context: Context, call: Call) -> Answer:
    """Answer the entries of some members, and how these stand among each other."""
    members = read_body(call, wire.Lookup).members
    return await ask_board(context, call, Lookup(*window_of(call), members))


async def digest(context: Context, call: Call) -> Answer:
    """Answer the digest of a window's standings."""
    return await ask_board(context, call, Digest(*window_of(call)))


async def periods(context: Context, call: Call) -> Answer:
    """Answer a page of a board's windows."""
    query = call.query
    question = Periods(call.packed, call.now_us, query["kind"], query["limit"], query["after"])
    return await ask_board(context, call, question)


def window_of(call: Call) -> tuple[bool, int, str | None, int | None]:
    """Make what every question about a window begins with."""
    return call.packed, call.now_us, call.query["period"], call.query["revision"]


async def ask_board(context: Context, call: Call, question: Question) -> Answer:
    """Ask the board of the path a question, at the sequence that the query names."""
    min_sequence = call.query["min_sequence"]
    return 200, await context.boards.ask(call.path["board"], question, min_sequence)


async def healthz(_context: Context, call: Call) -> Answer:
    """Say that the node is alive."""
    return 200, encode(wire.Status("alive"), call.packed)


async def readyz(context: Context, call: Call) -> Answer:
    """Say that the boards on disk are known and can be brought up on demand."""
    if not context.boards.ready:
        raise Refusal("board_unavailable", "The boards on disk are not known yet.")
    return 200, encode(wire.Status("ready"), call.packed)


async def metrics(context: Context, call: Call) -> Answer:
    """Answer the node's figures, and those of the boards that the caller may ask about."""
    figures = (await context.boards.measure()).about(call.caller.covers)
    return 200, await context.exposition.render(figures)


async def openapi(context: Context, call: Call) -> Answer:
    """Answer the OpenAPI document."""
    return 200, encode(context.document, call.packed)
