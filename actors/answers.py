"""What a board answers: the types of the contract's answers, encoded once, beside the board.

A score with decimals is sent as its shortest exact text, so a field of type Number holds an int or,
for JSON, raw text; the annotations say what a client sees.
"""

from __future__ import annotations

from typing import Annotated

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
    """One member's place. position is 1-based; rank follows the board's rank_method."""

    rank: int
    position: int
    member: str
    score: Score
    achieved_at: Time


class BoardAnswer(msgspec.Struct, frozen=True):
    """The root of all answers about a window of a board."""

    board: str
    period: Period
    members: int
    sequence: int


class TopAnswer(BoardAnswer, frozen=True):
    """A page of entries, best first."""

    entries: list[Entry]
    next: str | None


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
