"""The route table: every call of the node, declared once.

Dispatch, the reading of parameters, deadlines and the OpenAPI document all come from it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from actors import answers
from node import handlers, wire
from node.handlers import Handler
from node.keys import Scope
from node.parameters import INTEGER_MAX, Choice, Integer, MemberName, Parameter, Text

READ_CODES = ("board_not_found", "board_unavailable", "not_yet", "overloaded")
WINDOW_CODES = (*READ_CODES, "period_not_found", "period_expired")
SCORE_CODES = ("value_precision", "value_out_of_range")  # of a score in a query
CHANGE_CODES = ("overloaded", "board_unavailable", "outcome_unknown", "storage_full")
EVENT_CODES = (
    "idempotency_conflict",
    "event_too_old",
    "period_closed",
    "value_precision",
    "value_out_of_range",
    "value_not_allowed",
    "source_not_allowed",
    "occurred_in_future",
)

WINDOW = (
    Parameter(
        "period",
        Text(64),
        "The window: a kind for the one that contains now, as `daily`, or with the date it begins"
        " on or the word `previous`, as `daily:2026-11-30`; or a fixed window's name. Without it"
        " the board's first.",
    ),
    Parameter(
        "revision", Integer(1), "The revision of a closed window; without it the newest one."
    ),
)
READ = (
    Parameter(
        "min_sequence",
        Integer(0),
        "Wait, for a bounded time, until the board's log has reached this sequence.",
    ),
    Parameter("read", Choice(("actor",)), "`actor` goes past caches and replicas."),
)
SCORE = Text(128)
AFTER = Parameter(
    "after", Text(1024, code="invalid_cursor"), "The `next` of the page before; opaque."
)


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One call.

    scope: what a key must allow; `open` needs none. changes: the call may change a board, so a
    passed deadline leaves its outcome unknown. body: the types that the request's body may have,
    none where the call takes no body. answers: by good status, the types that the answer may have,
    none for no content. codes: the refusals of this call besides those that its shape implies.
    """

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    name: str
    summary: str
    handler: Handler
    scope: Scope
    answers: dict[int, tuple[Any, ...]]
    changes: bool = False
    query: tuple[Parameter, ...] = ()
    body: tuple[type, ...] = ()
    codes: tuple[str, ...] = ()

    @property
    def segments(self) -> list[str]:
        """The segments of the path; a parameter stands in braces."""
        return self.path.split("/")[1:]


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/boards",
        name="listBoards",
        summary="List the boards that the key is for, in order of their ids",
        handler=handlers.list_boards,
        scope=Scope.ADMIN,
        query=(Parameter("limit", Integer(1, 1000), "Boards in a page.", 100), AFTER),
        answers={200: (wire.BoardList,)},
        codes=("overloaded", "board_unavailable"),
    ),
    Route(
        method="PUT",
        path="/v1/boards/{board}",
        name="createBoard",
        summary="Create a board",
        handler=handlers.create_board,
        scope=Scope.ADMIN,
        changes=True,
        body=(wire.Definition,),
        answers={201: (wire.BoardInfo,), 200: (wire.BoardInfo,)},
        codes=("board_exists", *CHANGE_CODES),
    ),
    Route(
        method="GET",
        path="/v1/boards/{board}",
        name="describeBoard",
        summary="Describe a board",
        handler=handlers.describe_board,
        scope=Scope.ADMIN,
        query=READ,
        answers={200: (wire.BoardInfo,)},
        codes=READ_CODES,
    ),
    Route(
        method="PATCH",
        path="/v1/boards/{board}",
        name="changeBoard",
        summary="Change what may change of a definition; once live again, what is due is closed",
        handler=handlers.change_board,
        scope=Scope.ADMIN,
        changes=True,
        body=(wire.Changes,),
        answers={200: (wire.BoardInfo,)},
        codes=("board_not_found", "definition_immutable", *CHANGE_CODES),
    ),
    Route(
        method="DELETE",
        path="/v1/boards/{board}",
        name="deleteBoard",
        summary="Remove a board and its data",
        handler=handlers.delete_board,
        scope=Scope.ADMIN,
        changes=True,
        answers={204: ()},
        codes=("board_not_found", *CHANGE_CODES),
    ),
    Route(
        method="POST",
        path="/v1/boards/{board}/events",
        name="submitEvents",
        summary="Submit one event, or a batch of up to 5,000",
        handler=handlers.submit_events,
        scope=Scope.SUBMIT,
        changes=True,
        body=(wire.Event, wire.Batch),
        answers={200: (answers.EventAnswer, answers.BatchAnswer)},
        codes=("board_not_found", *EVENT_CODES, *CHANGE_CODES),
    ),
    Route(
        method="GET",
        path="/v1/boards/{board}/top",
        name="top",
        summary="The entries from the top, a page at a time",
        handler=handlers.top,
        scope=Scope.READ,
        query=(
            *WINDOW,
            Parameter("limit", Integer(1, 1000), "Entries in a page.", 10),
            AFTER,
            *READ,
        ),
        answers={200: (answers.TopAnswer,)},
        codes=WINDOW_CODES,
    ),
    Route(
        method="GET",
        path="/v1/boards/{board}/members/{member}",
        name="member",
        summary="One member's entry and percentile",
        handler=handlers.member,
        scope=Scope.READ,
        query=(*WINDOW, *READ),
        answers={200: (answers.MemberAnswer,)},
        codes=("member_not_found", *WINDOW_CODES),
    ),
    Route(
        method="GET",
        path="/v1/boards/{board}/around",
        name="around",
        summary="The entries around a member, a position or a score: give exactly one",
        handler=handlers.around,
        scope=Scope.READ,
        query=(
            *WINDOW,
            Parameter("member", MemberName(), "The member in the centre."),
            Parameter(
                "rank",
                Integer(1, INTEGER_MAX),
                "The position in the centre; beyond the end it means the last.",
            ),
            Parameter(
                "score", SCORE, "The centre is where a new member with this score would stand."
            ),
            Parameter("above", Integer(0, 500), "Entries above the centre.", 4),
            Parameter("below", Integer(0, 500), "Entries below the centre.", 4),
            *READ,
        ),
        answers={200: (answers.AroundAnswer,)},
        codes=("member_not_found", *SCORE_CODES, *WINDOW_CODES),
    ),
    Route(
        method="GET",
        path="/v1/boards/{board}/rank",
        name="rank",
        summary="Where a new member with a score would stand",
        handler=handlers.rank,
        scope=Scope.READ,
        query=(
            *WINDOW,
            Parameter("score", SCORE, "One number per score key, joined by commas.", required=True),
            *READ,
        ),
        answers={200: (answers.RankAnswer,)},
        codes=(*SCORE_CODES, *WINDOW_CODES),
    ),
    Route(
        method="GET",
        path="/v1/boards/{board}/digest",
        name="digest",
        summary="A text of a window's standings; of a closed one, the text published at closing",
        handler=handlers.digest,
        scope=Scope.READ,
        query=(*WINDOW, *READ),
        answers={200: (answers.DigestAnswer,)},
        codes=WINDOW_CODES,
    ),
    Route(
        method="GET",
        path="/v1/boards/{board}/periods",
        name="periods",
        summary="The windows that ever held an event and the fixed ones, newest first",
        handler=handlers.periods,
        scope=Scope.READ,
        query=(
            Parameter("kind", Text(32), "Only windows of this kind, or the fixed one so named."),
            Parameter("limit", Integer(1, 1000), "Windows in a page.", 100),
            AFTER,
            *READ,
        ),
        answers={200: (answers.PeriodsAnswer,)},
        codes=(*READ_CODES, "period_not_found"),
    ),
    Route(
        method="GET",
        path="/healthz",
        name="healthz",
        summary="Say that the node is alive",
        handler=handlers.healthz,
        scope=Scope.OPEN,
        answers={200: (wire.Status,)},
    ),
    Route(
        method="GET",
        path="/readyz",
        name="readyz",
        summary="Say that the node can answer for its boards",
        handler=handlers.readyz,
        scope=Scope.OPEN,
        answers={200: (wire.Status,)},
        codes=("board_unavailable",),
    ),
    Route(
        method="GET",
        path="/openapi.json",
        name="openapi",
        summary="This document",
        handler=handlers.openapi,
        scope=Scope.OPEN,
        answers={200: (dict[str, Any],)},
    ),
)
