"""The calls about several boards at once: one match that counts on many, one member's places.

Each board is asked by itself, and fails alone. As in `node.handlers`, a handler knows no HTTP; the
boards are named in bodies and queries here, so it is for these handlers to check that the caller's
key covers them.
"""

from __future__ import annotations

import asyncio
import random
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from actors.answers import BatchAnswer, Result, RulingAnswer
from actors.definition import BOARD_ID
from actors.errors import Refusal, invalid_field
from actors.questions import Erase, Member, Submit
from actors.submission import (
    EVENTS_PER_BATCH_MAX,
    MALFORMED,
    check_member,
    field_of,
    is_too_long,
    without_lone_surrogates,
)
from node import wire
from node.access import FORBIDDEN
from node.handlers import Answer, Call, Context, encode
from node.moderation_handlers import by_caller
from node.problems import deadline_passed

BOARDS_MAX = 100  # in one call; each may have to be brought up
ERASING_AT_ONCE = 4  # boards that one call has brought up to erase a member, together


class _Routed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event with its board; everything else of it is for the board to look at."""

    board: str
    member: Raw
    value: Raw
    idempotency_key: Raw
    occurred_at: Raw | UnsetType = UNSET
    source: Raw | UnsetType = UNSET


class _Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """The event as its board takes it."""

    member: Raw
    value: Raw
    idempotency_key: Raw
    occurred_at: Raw | UnsetType = UNSET
    source: Raw | UnsetType = UNSET


class _RawBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    events: Annotated[list[Raw], Meta(max_length=EVENTS_PER_BATCH_MAX)]


class _Batch(msgspec.Struct, frozen=True):
    events: list[_Event]


class _Placed(NamedTuple):
    """An event's place in the request."""

    place: int
    event: _Event


_ENCODE = (msgspec.json.Encoder().encode, msgspec.msgpack.Encoder().encode)
_ROUTED = (msgspec.json.Decoder(_Routed), msgspec.msgpack.Decoder(_Routed))
_BATCH = (msgspec.json.Decoder(_RawBatch), msgspec.msgpack.Decoder(_RawBatch))


async def submit_events(context: Context, call: Call) -> Answer:
    """Submit one event or a batch, each to the board that it names."""
    packed = call.body_packed
    body = call.body if packed else without_lone_surrogates(call.body)
    try:
        routed = _ROUTED[packed].decode(body)
    except msgspec.ValidationError as error:
        # The first thing a batch meets as a single event is that it has no field `events`.
        if field_of(error) != "events" or "unknown field" not in str(error):
            raise invalid_field(field_of(error), str(error)) from None
    except MALFORMED as error:
        raise Refusal("malformed_body", f"the body cannot be read: {error}") from None
    else:
        _check_board(call, routed.board)
        submission = _submit(call, _ENCODE[packed](_event(routed)), packed=call.packed)
        return 200, await context.boards.submit(routed.board, submission)
    return 200, await _submit_batch(context, call, body)


async def _submit_batch(context: Context, call: Call, body: bytes) -> bytes:
    try:
        raws = _BATCH[call.body_packed].decode(body).events
    except msgspec.ValidationError as error:
        if is_too_long(error) and field_of(error) == "events":
            raise invalid_field("events", f"at most {EVENTS_PER_BATCH_MAX} at once") from None
        raise invalid_field(field_of(error), str(error)) from None
    except MALFORMED as error:
        raise Refusal("malformed_body", f"the body cannot be read: {error}") from None
    results: list[Result | None] = [None] * len(raws)
    by_board: dict[str, list[_Placed]] = {}
    for place, raw in enumerate(raws):
        try:
            routed = _routed(call, raw)
        except Refusal as refusal:
            results[place] = _rejected(refusal)
        else:
            by_board.setdefault(routed.board, []).append(_Placed(place, _event(routed)))
    if len(by_board) > BOARDS_MAX:
        raise invalid_field("events", f"of at most {BOARDS_MAX} boards at once")
    answers = await asyncio.gather(
        *(_ask(context, call, board, placed) for board, placed in by_board.items())
    )
    sequences = {}
    for (board, placed), (found, sequence) in zip(by_board.items(), answers, strict=True):
        if sequence is not None:
            sequences[board] = sequence
        for event, result in zip(placed, found, strict=True):
            results[event.place] = result
    return encode(_summary([result for result in results if result], sequences), call.packed)


def _routed(call: Call, raw: Raw) -> _Routed:
    try:
        routed = _ROUTED[call.body_packed].decode(raw)
    except msgspec.ValidationError as error:
        raise invalid_field(field_of(error), str(error)) from None
    except MALFORMED as error:
        raise invalid_field("body", str(error)) from None
    _check_board(call, routed.board)
    return routed


def _check_board(call: Call, board: str) -> None:
    """Refuse what names no board, or one that the caller may not submit to."""
    if not BOARD_ID.fullmatch(board):
        raise invalid_field("board", f"must match {BOARD_ID.pattern}")
    if not call.caller.covers(board):
        raise Refusal("forbidden", FORBIDDEN)


def _event(routed: _Routed) -> _Event:
    return _Event(
        routed.member, routed.value, routed.idempotency_key, routed.occurred_at, routed.source
    )


def _submit(call: Call, body: bytes, *, packed: bool) -> Submit:
    return Submit(packed, call.now_us, body, call.body_packed, call.caller.source)


async def _ask(
    context: Context, call: Call, board: str, placed: list[_Placed]
) -> tuple[list[Result], int | None]:
    """Submit a board's part; what refuses all of it refuses each of its events."""
    body = _ENCODE[call.body_packed](_Batch([event for _, event in placed]))
    try:
        async with asyncio.timeout(context.board_seconds_max):
            answer = await context.boards.submit(board, _submit(call, body, packed=True))
    except TimeoutError:
        return [_rejected(deadline_passed(changes=True))] * len(placed), None
    except Refusal as refusal:
        return [_rejected(refusal)] * len(placed), None
    found = msgspec.msgpack.decode(answer, type=BatchAnswer)
    return found.results, found.sequence


def _rejected(refusal: Refusal) -> Result:
    field = refusal.extra.get("field")
    return Result(
        "rejected",
        code=refusal.code,
        detail=refusal.detail,
        field=None if field is None else str(field),
    )


def _summary(results: list[Result], sequences: dict[str, int]) -> wire.RoutedAnswer:
    counts = dict.fromkeys(("applied", "duplicate", "rejected"), 0)
    for result in results:
        counts[result.status] += 1
    return wire.RoutedAnswer(
        results, counts["applied"], counts["duplicate"], counts["rejected"], sequences
    )


async def member(context: Context, call: Call) -> Answer:
    """Answer a member's entry in the default window of each of some boards."""
    boards = _named(call)
    places = await asyncio.gather(*(_place(context, call, board) for board in boards))
    answer = {"member": call.path["member"], "boards": places}
    return 200, encode(answer, call.packed)


async def _place(context: Context, call: Call, board: str) -> Any:
    question = Member(call.packed, call.now_us, None, None, call.path["member"])
    try:
        async with asyncio.timeout(context.board_seconds_max):
            return Raw(await context.boards.ask(board, question, None))
    except TimeoutError:
        refusal = deadline_passed(changes=False)
    except Refusal as error:
        refusal = error
    return wire.MemberPlace(board, None, code=refusal.code, detail=refusal.detail)


def _named(call: Call) -> list[str]:
    """List the boards that the query names, each once. Errors: Refusal."""
    boards = list(dict.fromkeys(call.query["boards"].split(",")))
    if len(boards) > BOARDS_MAX:
        raise invalid_field("boards", f"at most {BOARDS_MAX} at once")
    for board in boards:
        if not BOARD_ID.fullmatch(board):
            raise invalid_field("boards", f"each must match {BOARD_ID.pattern}")
        if not call.caller.covers(board):
            raise Refusal("forbidden", FORBIDDEN)
    return boards


async def erase_member(context: Context, call: Call) -> Answer:
    """Erase a member on every board that the caller's key covers, or on those that are named.

    What is not reached in time is listed as failed. The order changes from call to call, so that a
    call that is repeated comes to all of them in the end.
    """
    verdict = Erase(*by_caller(call, answer_packed=True), call.path["member"])
    check_member(verdict.member)
    if call.query["boards"]:
        boards = _named(call)
    else:
        boards = [*await context.boards.ids(call.caller.boards)]
    random.shuffle(boards)
    ends = asyncio.get_running_loop().time() + context.board_seconds_max
    turns = asyncio.Semaphore(ERASING_AT_ONCE)

    async def erase(board: str) -> int | Refusal:
        try:
            async with asyncio.timeout_at(ends):
                await turns.acquire()
        except TimeoutError:
            return Refusal("board_unavailable", "the call's time was over before its turn came")
        try:
            async with asyncio.timeout_at(ends):
                answer = await context.boards.submit(board, verdict)
        except TimeoutError:
            return deadline_passed(changes=True)
        except Refusal as refusal:
            return refusal
        finally:
            turns.release()
        return msgspec.msgpack.decode(answer, type=RulingAnswer).sequence

    outcomes = dict(sorted(zip(boards, await asyncio.gather(*map(erase, boards)), strict=True)))
    answer = wire.Erasures(
        {board: each for board, each in outcomes.items() if not isinstance(each, Refusal)},
        [
            wire.ErasureFailure(board, each.code, each.detail)
            for board, each in outcomes.items()
            if isinstance(each, Refusal)
        ],
    )
    return 202, encode(answer, call.packed)
