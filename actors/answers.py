"""What a board answers: the types of the contract's answers, encoded once, beside the board.

A score with decimals is sent as its shortest exact text, so a field of type Number holds an int or,
for JSON, raw text; the annotations say what a client sees.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

Number = int | float
Score = Number | list[Number]
Time = Annotated[str, msgspec.Meta(description="RFC 3339 in UTC, with Z")]


class Period(msgspec.Struct, frozen=True):
    """The window that an answer is about."""

    id: str
    start: Time | None
    end: Time | None
    closed: bool
    revision: int | None


class Entry(msgspec.Struct, frozen=True):
    """One member's place. position is 1-based; rank follows the board's rank_method.

    profile: left out where the member has none.
    """

    rank: int
    position: int
    member: str
    score: Score
    achieved_at: Time
    profile: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class BoardAnswer(msgspec.Struct, frozen=True):
    """The root of all answers about a window of a board."""

    board: str
    period: Period
    members: int
    sequence: int


class TopAnswer(BoardAnswer, frozen=True):
    """A page of entries, best first.

    stale, age_seconds: given where the board could not be reached, and this is its answer of then.
    """

    entries: list[Entry]
    next: str | None
    stale: bool | msgspec.UnsetType = msgspec.UNSET
    age_seconds: float | msgspec.UnsetType = msgspec.UNSET


class MemberAnswer(BoardAnswer, frozen=True):
    """One member's entry and percentile."""

    entry: Entry
    percentile: float


class AroundAnswer(BoardAnswer, frozen=True):
    """The entries around a place, best first."""

    entries: list[Entry]


class RankAnswer(BoardAnswer, frozen=True):
    """Where a new member with the asked score would stand."""

    rank: int
    position: int


class RangeAnswer(BoardAnswer, frozen=True):
    """A page of the entries within a range of scores, best first; count is of all of them."""

    entries: list[Entry]
    count: int
    next: str | None


class Band(msgspec.Struct, frozen=True):
    """The last member inside the top `percentile` %; null where nobody stands."""

    percentile: Number
    position: int | None
    score: Score | None


class BandsAnswer(BoardAnswer, frozen=True):
    """Bands, in the order they were asked for."""

    bands: list[Band]


class LocalEntry(Entry, frozen=True, kw_only=True):
    """An entry among those that were looked up: local_rank follows the board's rank_method."""

    local_rank: int


class LookupAnswer(BoardAnswer, frozen=True):
    """The members that stand, best first, and those that do not, in the order they were named."""

    entries: list[LocalEntry]
    missing: list[str]


class DigestAnswer(BoardAnswer, frozen=True):
    """A text that depends on every member's name, score and achieved_at and on nothing else."""

    digest: str


class PeriodItem(msgspec.Struct, frozen=True):
    """A window in the list of a board's windows. members: how many stand, or stood, in it."""

    id: str
    start: Time | None
    end: Time | None
    closes_at: Time | None
    closed: bool
    closed_at: Time | None
    members: int
    digest: str | None
    revision: int | None


class PeriodsAnswer(msgspec.Struct, frozen=True):
    """A page of a board's windows, newest first. upcoming: the next boundary of each period."""

    board: str
    sequence: int
    periods: list[PeriodItem]
    upcoming: dict[str, Time]
    next: str | None


class Standing(msgspec.Struct, frozen=True):
    """A member's place in one window, right after its event."""

    period: str
    score: Score
    rank: int
    improved: bool


class EventAnswer(msgspec.Struct, frozen=True):
    """The answer to one event: status is applied or duplicate."""

    status: str
    sequence: int
    standings: list[Standing]


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event's result in a batch: applied or duplicate with its sequence, or rejected.

    A rejected event carries what the problem would have said, had it come alone.
    """

    status: str
    sequence: int | None = None
    code: str | None = None
    detail: str | None = None
    field: str | None = None


class BatchAnswer(msgspec.Struct, frozen=True):
    """The answer to a batch: one result per event, in order."""

    results: list[Result]
    applied: int
    duplicates: int
    rejected: int
    sequence: int


class RulingAnswer(msgspec.Struct, frozen=True):
    """The answer to moderation: sequence is that of the record that makes it so."""

    board: str
    sequence: int


class HistoryItem(msgspec.Struct, frozen=True):
    """One event of a member. voided: it no longer counts, by itself or with the whole member."""

    sequence: int
    value: Score
    occurred_at: Time
    received_at: Time
    source: str | None
    idempotency_key: str
    voided: bool


class HistoryAnswer(msgspec.Struct, frozen=True):
    """A page of a member's events, newest first."""

    board: str
    sequence: int
    member: str
    events: list[HistoryItem]
    next: str | None


Action = Literal[
    "void", "hide", "unhide", "remove", "profile", "dispute", "uphold", "reject", "erase", "erased"
]


class AuditItem(msgspec.Struct, frozen=True):
    """One record of moderation. key: the id of the API key that asked for it.

    event_sequence: of the event that it is about; dispute: the id of one opened or settled.
    """

    sequence: int
    at: Time
    action: Action
    actor: str
    reason: str
    key: str | None
    member: str
    event_sequence: int | None
    dispute: str | None


class AuditAnswer(msgspec.Struct, frozen=True):
    """A page of the records of all moderation, newest first."""

    board: str
    sequence: int
    records: list[AuditItem]
    next: str | None


DisputeStatus = Literal["open", "upheld", "rejected"]


class DisputeItem(msgspec.Struct, frozen=True):
    """A dispute about one event. windows: the ids of those that the event counted in.

    note, actor and settled_at are null while it is open.
    """

    id: str
    status: DisputeStatus
    event_sequence: int
    member: str
    windows: list[str]
    reason: str
    opened_by: str
    opened_at: Time
    note: str | None
    actor: str | None
    settled_at: Time | None


class DisputeAnswer(DisputeItem, frozen=True, kw_only=True):
    """A dispute that was opened or settled; sequence is that of the record."""

    board: str
    sequence: int


class DisputesAnswer(msgspec.Struct, frozen=True):
    """A page of disputes, newest first; count is of all that were asked for."""

    board: str
    sequence: int
    disputes: list[DisputeItem]
    count: int
    next: str | None
