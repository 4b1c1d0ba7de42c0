"""The calls of moderators and auditors, as rows of the route table."""

from __future__ import annotations

from actors import answers
from node import moderation_handlers as handlers
from node import wire
from node.handlers import Handler
from node.keys import Scope
from node.parameters import Choice, Integer, Parameter, Text
from node.route import AFTER, CHANGE_CODES, READ, READ_CODES, WINDOW_CODES, Method, Route

_LIMIT = Parameter("limit", Integer(1, 1000), "Records in a page.", 100)


def _ruling(
    method: Method,
    path: str,
    name: str,
    summary: str,
    handler: Handler,
    *,
    codes: tuple[str, ...] = (),
    status: int = 200,
) -> Route:
    """Make the route of a call with an actor and a reason."""
    return Route(
        method=method,
        path=path,
        name=name,
        summary=summary,
        handler=handler,
        scope=Scope.ADMIN,
        changes=True,
        body=(wire.Moderation,),
        answers={status: (answers.RulingAnswer,)},
        codes=("board_not_found", *codes, *CHANGE_CODES),
    )


MODERATION_ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/boards/{board}/members/{member}/events",
        name="history",
        summary="A member's events, newest first, a page at a time",
        handler=handlers.history,
        scope=Scope.ADMIN,
        query=(_LIMIT, AFTER, *READ),
        answers={200: (answers.HistoryAnswer,)},
        codes=("member_not_found", *READ_CODES),
    ),
    _ruling(
        "POST",
        "/v1/boards/{board}/events/{sequence}/void",
        "voidEvent",
        "Let an event no longer count, in every window it counted for",
        handlers.void_event,
        codes=("event_not_found",),
    ),
    _ruling(
        "PUT",
        "/v1/boards/{board}/members/{member}/hidden",
        "hideMember",
        "Take a member out of every answer and count; earnings go on unseen",
        handlers.hide_member,
    ),
    _ruling(
        "DELETE",
        "/v1/boards/{board}/members/{member}/hidden",
        "showMember",
        "Bring a hidden member back, with everything earned meanwhile",
        handlers.show_member,
    ),
    _ruling(
        "DELETE",
        "/v1/boards/{board}/members/{member}",
        "removeMember",
        "Let none of a member's events so far count; their keys stay used",
        handlers.remove_member,
        codes=("member_not_found",),
    ),
    _ruling(
        "POST",
        "/v1/boards/{board}/members/{member}/erase",
        "eraseMember",
        "Forget a member's name: at once in every answer, soon on disk",
        handlers.erase_member,
        status=202,
    ),
    Route(
        method="PUT",
        path="/v1/boards/{board}/members/{member}/profile",
        name="setProfile",
        summary="Set what comes with a member's entries; at most 1 KiB",
        handler=handlers.set_profile,
        scope=Scope.ADMIN,
        changes=True,
        body=(wire.Profile,),
        answers={200: (answers.RulingAnswer,)},
        codes=("board_not_found", *CHANGE_CODES),
    ),
    Route(
        method="POST",
        path="/v1/boards/{board}/disputes",
        name="openDispute",
        summary="Dispute an event",
        handler=handlers.open_dispute,
        scope=Scope.SUBMIT,
        changes=True,
        body=(wire.DisputeOpening,),
        answers={201: (answers.DisputeAnswer,)},
        codes=("board_not_found", "event_not_found", *CHANGE_CODES),
    ),
    Route(
        method="GET",
        path="/v1/boards/{board}/disputes",
        name="disputes",
        summary="Disputes, newest first, and how many there are",
        handler=handlers.disputes,
        scope=Scope.ADMIN,
        query=(
            Parameter(
                "status", Choice(("open", "upheld", "rejected")), "Only those of this status."
            ),
            Parameter("period", Text(64), "Only those about events that counted in this window."),
            Parameter("limit", Integer(1, 1000), "Disputes in a page.", 100),
            AFTER,
            *READ,
        ),
        answers={200: (answers.DisputesAnswer,)},
        codes=WINDOW_CODES,
    ),
    Route(
        method="PATCH",
        path="/v1/boards/{board}/disputes/{dispute}",
        name="settleDispute",
        summary="Uphold a dispute, which voids its event, or reject it",
        handler=handlers.settle_dispute,
        scope=Scope.ADMIN,
        changes=True,
        body=(wire.DisputeSettling,),
        answers={200: (answers.DisputeAnswer,)},
        codes=("board_not_found", "dispute_not_found", *CHANGE_CODES),
    ),
    Route(
        method="GET",
        path="/v1/boards/{board}/audit",
        name="audit",
        summary="The records of all moderation, newest first, a page at a time",
        handler=handlers.audit,
        scope=Scope.ADMIN,
        query=(_LIMIT, AFTER, *READ),
        answers={200: (answers.AuditAnswer,)},
        codes=READ_CODES,
    ),
)
