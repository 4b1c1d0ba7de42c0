"""What a call of the node is: the type of the route table's rows, and what rows share.

Dispatch, the reading of parameters, deadlines and the OpenAPI document all come from the rows.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from node.handlers import PAST_CACHES, Handler, HandlerAtOnce
from node.keys import Scope
from node.negotiation import JSON, PACKED
from node.parameters import Choice, Integer, Parameter, Text

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
    Parameter("read", Choice((PAST_CACHES,)), "`actor` goes past caches and replicas."),
)
SCORE = Text(128)
NUMBER = Text(32)
AFTER = Parameter(
    "after", Text(1024, code="invalid_cursor"), "The `next` of the page before; opaque."
)


Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One call.

    scope: what a key must allow; `open` needs none. changes: the call may change a board, so a
    passed deadline leaves its outcome unknown. body: the types that the request's body may have,
    none where the call takes no body. answers: by good status, the types that the answer may have,
    none for no content. codes: the refusals of this call besides those that its shape implies.
    at_once: what may answer without waiting for a board.
    media_type: of a good answer that is text, whatever the client accepts; empty for one of types.
    """

    method: Method
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
    at_once: HandlerAtOnce | None = None
    media_type: str = ""

    def content_type(self, packed: bool) -> str:
        """Return what a good answer's Content-Type is; packed: MessagePack was asked for."""
        return self.media_type or (PACKED if packed else JSON)

    @property
    def segments(self) -> list[str]:
        """The segments of the path; a parameter stands in braces."""
        return self.path.split("/")[1:]
