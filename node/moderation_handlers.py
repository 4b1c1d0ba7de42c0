"""The calls of moderators and auditors: bodies into verdicts, and what the log tells.

As in `node.handlers`, a handler knows no HTTP and raises what it cannot answer as a Refusal.
"""

from __future__ import annotations

from typing import Any

from actors.errors import invalid_field
from actors.exact import check_name
from actors.questions import (
    Audit,
    Disputes,
    Erase,
    Hide,
    History,
    OpenDispute,
    Remove,
    SetProfile,
    SettleDispute,
    Verdict,
    Void,
)
from actors.submission import NAME_BYTES_MAX
from node import wire
from node.handlers import Answer, Call, Context, ask_board, read_body
from node.profiles import encode_profile


async def _rule(context: Context, call: Call, verdict: Verdict) -> bytes:
    return await context.boards.submit(call.path["board"], verdict)


def by_caller(
    call: Call, *, answer_packed: bool | None = None
) -> tuple[bool, int, str, str, str | None]:
    """Make what every verdict begins with, from a body of actor and reason.

    answer_packed: whether the answer is to be MessagePack; None: as the call asks for it.
    """
    body = read_body(call, wire.Moderation)
    head = _head(call, "actor", body.actor, body.reason)
    return head if answer_packed is None else (answer_packed, *head[1:])


def _head(
    call: Call, field: str, actor: str, reason: str
) -> tuple[bool, int, str, str, str | None]:
    """Make what every verdict begins with; field: where the actor's name stands."""
    try:
        check_name(actor, NAME_BYTES_MAX)
    except ValueError as error:
        raise invalid_field(field, str(error)) from None
    return call.packed, call.now_us, actor, reason, call.caller.key_id


async def void_event(context: Context, call: Call) -> Answer:
    """Let an event no longer count."""
    return 200, await _rule(context, call, Void(*by_caller(call), call.path["sequence"]))


async def hide_member(context: Context, call: Call) -> Answer:
    """Take a member out of every answer."""
    return 200, await _rule(context, call, Hide(*by_caller(call), call.path["member"], True))


async def show_member(context: Context, call: Call) -> Answer:
    """Bring a hidden member back."""
    return 200, await _rule(context, call, Hide(*by_caller(call), call.path["member"], False))


async def remove_member(context: Context, call: Call) -> Answer:
    """Let none of a member's events so far count."""
    return 200, await _rule(context, call, Remove(*by_caller(call), call.path["member"]))


async def erase_member(context: Context, call: Call) -> Answer:
    """Forget a member's name; that it is off the disk is a record of its own."""
    return 202, await _rule(context, call, Erase(*by_caller(call), call.path["member"]))


async def set_profile(context: Context, call: Call) -> Answer:
    """Set what is shown with a member's entries."""
    profile = encode_profile(read_body(call, wire.Profile))
    head = (call.packed, call.now_us, "", "", call.caller.key_id)
    return 200, await _rule(context, call, SetProfile(*head, call.path["member"], profile))


async def open_dispute(context: Context, call: Call) -> Answer:
    """Dispute an event."""
    body = read_body(call, wire.DisputeOpening)
    head = _head(call, "opened_by", body.opened_by, body.reason)
    return 201, await _rule(context, call, OpenDispute(*head, body.sequence))


async def settle_dispute(context: Context, call: Call) -> Answer:
    """Settle a dispute; one that is upheld voids its event."""
    body = read_body(call, wire.DisputeSettling)
    head = _head(call, "actor", body.actor, body.note)
    verdict = SettleDispute(*head, call.path["dispute"], body.status)
    return 200, await _rule(context, call, verdict)


async def disputes(context: Context, call: Call) -> Answer:
    """Answer a page of the disputes."""
    query = call.query
    question = Disputes(
        call.packed, call.now_us, query["status"], query["period"], query["limit"], query["after"]
    )
    return await ask_board(context, call, question)


async def history(context: Context, call: Call) -> Answer:
    """Answer a page of a member's events."""
    return await ask_board(context, call, History(*_page(call), call.path["member"]))


async def audit(context: Context, call: Call) -> Answer:
    """Answer a page of the records of moderation."""
    return await ask_board(context, call, Audit(*_page(call)))


def _page(call: Call) -> tuple[bool, int, int, Any]:
    return call.packed, call.now_us, call.query["limit"], call.query["after"]
