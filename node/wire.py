"""The types of requests and of the node's own answers, as clients see them.

The OpenAPI document comes from these and from actors/answers.py. A board decodes and checks the
bodies itself, so these types say what it takes; a test holds the two against each other.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from actors.answers import Number, Time
from actors.definition import (
    DAY_START,
    FIXED_NAME,
    KINDS,
    Aggregation,
    ClosedPeriods,
    GraceSeconds,
    Mode,
    RankMethod,
    RetentionDays,
    ScoreKey,
    Sources,
    TieRule,
    ToleranceSeconds,
    Weekday,
)
from actors.submission import EVENTS_PER_BATCH_MAX, NAME_BYTES_MAX, SOURCE_BYTES_MAX

Name = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=NAME_BYTES_MAX,
        description=f"NFC text without control characters or surrounding white space, at most"
        f" {NAME_BYTES_MAX} bytes of UTF-8.",
    ),
]
Value = (
    Number
    | Annotated[
        list[Number],
        Meta(min_length=1, max_length=4, description="One number per score key, in order."),
    ]
)
BoardName = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9_-]{0,63}$")]
Instant = Annotated[str, Meta(description="RFC 3339 with an offset.")]

Grace = Annotated[
    GraceSeconds,
    Meta(description="For so long after a window's end late events still count; then it closes."),
]
Tolerance = Annotated[
    ToleranceSeconds, Meta(description="How far in the future an event's `occurred_at` may lie.")
]
Retention = Annotated[
    RetentionDays | None,
    Meta(
        description="For how many days after receipt idempotency keys are remembered, whatever"
        " closes; older events are refused while the board is live. null is for ever."
    ),
]
KeptPeriods = Annotated[
    ClosedPeriods | None,
    Meta(description="How many closed windows of each kind are kept; null keeps all."),
]
BoardMode = Annotated[
    Mode,
    Meta(
        description="In `backfill` no window closes and any past event counts: for history. Back"
        " in `live`, all that is due closes."
    ),
]


class FixedWindow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A window with a name and bounds of its own: its start is included, its end excluded."""

    name: Annotated[
        str,
        Meta(
            pattern=f"^{FIXED_NAME.pattern}$",
            description=f"No kind's name: none of {', '.join(KINDS)}.",
        ),
    ]
    start: Instant
    end: Instant


PeriodKind = Literal["all_time", "daily", "weekly", "monthly", "yearly"]
Periods = Annotated[
    list[PeriodKind | FixedWindow],
    Meta(
        min_length=1,
        max_length=64,
        description="The windows that an event counts in: kinds, a new window of which begins"
        " where the last one ends, and fixed windows; each once. The first is a query's default.",
    ),
]


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One event: what a member did, once."""

    member: Name
    value: Value
    idempotency_key: Name
    occurred_at: (
        Annotated[
            str,
            Meta(description="RFC 3339 with an offset; the time of receipt where it is left out."),
        ]
        | UnsetType
    ) = UNSET
    source: Annotated[str, Meta(min_length=1, max_length=SOURCE_BYTES_MAX)] | UnsetType = UNSET


class Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Many events, taken in order; one that is refused does not touch the others."""

    events: Annotated[list[Event], Meta(max_length=EVENTS_PER_BATCH_MAX)]


class Changes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parts of a definition that may change; what is left out stays."""

    grace_seconds: Grace | UnsetType = UNSET
    future_tolerance_seconds: Tolerance | UnsetType = UNSET
    key_retention_days: Retention | UnsetType = UNSET
    keep_closed_periods: KeptPeriods | UnsetType = UNSET
    min_value: Value | UnsetType | None = UNSET
    max_value: Value | UnsetType | None = UNSET
    sources: Sources | UnsetType | None = UNSET
    mode: BoardMode | UnsetType = UNSET


class Definition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a board ranks, and by which rules."""

    aggregation: Aggregation
    score: Annotated[
        list[ScoreKey], Meta(min_length=1, max_length=4, description="Compared in order.")
    ] = msgspec.field(default_factory=lambda: [ScoreKey("score")])
    tie_rule: TieRule = "earliest"
    rank_method: RankMethod = "ordinal"
    periods: Periods = msgspec.field(default_factory=lambda: ["all_time"])
    timezone: Annotated[
        str,
        Meta(description="A name of the IANA database: the zone by whose clock windows begin."),
    ] = "UTC"
    day_starts_at: Annotated[
        str,
        Meta(
            pattern=f"^{DAY_START.pattern}$",
            description="Local time; weeks, months and years begin with their first day.",
        ),
    ] = "00:00"
    week_starts_on: Annotated[Weekday, Meta(description="The first day of a week.")] = "monday"
    grace_seconds: Grace = 300
    future_tolerance_seconds: Tolerance = 60
    key_retention_days: Retention = 30
    keep_closed_periods: KeptPeriods = None
    min_value: Value | None = None
    max_value: Value | None = None
    sources: Sources | None = None
    mode: BoardMode = "live"


class ListedBoard(Definition, frozen=True, kw_only=True):
    """A board as a list shows it: its definition and its age."""

    board: BoardName
    created_at: Time


class BoardInfo(ListedBoard, frozen=True, kw_only=True):
    """A board with its log position and its members per open window."""

    sequence: int
    members: dict[str, int]


class BoardList(msgspec.Struct, frozen=True):
    """A page of boards, in order of their ids; `next` is null when nothing follows."""

    boards: list[ListedBoard]
    next: str | None


class Status(msgspec.Struct, frozen=True):
    """The state of the node."""

    status: Literal["alive", "ready"]


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request was refused (RFC 9457); always JSON."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    field: str | None = None
    sequence: int | None = None
