"""The types of requests and of the node's own answers, as clients see them.

The OpenAPI document comes from these and from actors/answers.py. A board decodes and checks the
bodies itself, so these types say what it takes; a test holds the two against each other.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from actors.answers import Entry, Number, Period, Result, Time
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
from actors.queries import LOOKUP_MEMBERS_MAX
from actors.submission import EVENTS_PER_BATCH_MAX, NAME_BYTES_MAX, SOURCE_BYTES_MAX

REASON_CHARACTERS_MAX = 1_000
SEQUENCE_MAX = 2**53 - 1  # the largest integer that every client's double carries

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


class RoutedEvent(Event, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One event, and the board that it counts on."""

    board: BoardName


class RoutedBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Events of up to 100 boards, taken in order; a board that fails fails alone."""

    events: Annotated[list[RoutedEvent], Meta(max_length=EVENTS_PER_BATCH_MAX)]


class RoutedAnswer(msgspec.Struct, frozen=True):
    """The answer to a batch for many boards: one result per event, in order.

    sequences: by board, that of its last event.
    """

    results: list[Result]
    applied: int
    duplicates: int
    rejected: int
    sequences: dict[str, int]


class MemberPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """A member's entry in a board's default window, or why there is none.

    entry: null, and code and detail say why, where the member does not stand there or the board
    cannot answer; the other fields are left out then.
    """

    board: str
    entry: Entry | None
    period: Period | UnsetType = UNSET
    members: int | UnsetType = UNSET
    sequence: int | UnsetType = UNSET
    percentile: float | UnsetType = UNSET
    code: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET


class MemberPlaces(msgspec.Struct, frozen=True):
    """A member's places on some boards, in the order in which these were named."""

    member: str
    boards: list[MemberPlace]


class Lookup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Members to look up; a name given twice counts once."""

    members: Annotated[list[Name], Meta(max_length=LOOKUP_MEMBERS_MAX)]


Reason = Annotated[str, Meta(min_length=1, max_length=REASON_CHARACTERS_MAX)]


class Moderation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who decides, and why: it stands in the audit."""

    actor: Name
    reason: Reason


class ErasureFailure(msgspec.Struct, frozen=True):
    """A board that could not be asked to erase a member: name it in `boards` of another call."""

    board: str
    code: str
    detail: str


class Erasures(msgspec.Struct, frozen=True):
    """Where a member is erased: by board, the sequence of the record that makes it so.

    failed: boards that fail alone, or were not reached in the call's time. To send the call again
    harms nothing; with up to 100 of them as `boards` it is quickest.
    """

    sequences: dict[str, int]
    failed: list[ErasureFailure]


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What comes with a member's entries: at most 1 KiB as JSON. It replaces the one before."""

    display_name: str | UnsetType = UNSET
    avatar_url: str | UnsetType = UNSET
    extra: (
        Annotated[
            dict[str, Any],
            Meta(
                description="What both JSON and MessagePack have: null, booleans, text, lists, maps"
                " whose keys are text, and numbers, integers of up to 64 bits or finite doubles."
            ),
        ]
        | UnsetType
    ) = UNSET


class DisputeOpening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which event is disputed, why, and by whom."""

    sequence: Annotated[int, Meta(ge=1, le=SEQUENCE_MAX)]
    reason: Reason
    opened_by: Name


class DisputeSettling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a dispute ends; one that is upheld voids its event."""

    status: Literal["upheld", "rejected"]
    note: Reason
    actor: Name


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
