"""The traffic of games, as data: who plays on which boards, what is called how often, and when.

Owns what the number of a call stands for: its board, its member, its value. Rates are those of
factor 1, five million daily players; they and the players are scaled together. Knows no client and
no clock: time is seconds after a run's begin.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, NamedTuple

from actors.exact import format_time

DAILY_PLAYERS = 5_000_000
CUP = "cup"  # the window that ends within a run
CUP_AGE_SECONDS = 3_600  # what it has lasted when a run begins
CUP_GRACE_SECONDS = 1
CUP_PAGE = 1_000  # entries that are read of it at once
LATE_EVERY = 8  # where there is a cup, one event of so many is sent late
LATE_SECONDS_MAX = 3  # by so much at most: some are within the grace, some are not
VALUE_MAX = 100
FRIENDS = 20
AROUND = 4  # entries above a member, and below

SEED = "seed-"  # what the keys of events before a run begin with

_BITS = 32
_MIX = 2_654_435_761  # a prime near 2^32 over the golden ratio: spreads consecutive numbers


class Call(StrEnum):
    """The kinds of calls. VISIBLE is not scheduled: it follows an event, and must see it."""

    EVENT = "event"
    TOP = "top"
    MEMBER = "member"
    AROUND = "around"
    FRIENDS = "friends"
    CUP = "cup"
    VISIBLE = "visible"


class Stream(NamedTuple):
    """Calls of a kind. rate: a second; surges: whether it follows a profile's phases."""

    call: Call
    rate: float
    surges: bool = True


class Phase(NamedTuple):
    """A share of a run, and how many times the ordinary rate there is then; all sum up to 1."""

    share: float
    times: float


class Board(NamedTuple):
    """A board, and how many players it has, who each have one event before the run begins."""

    name: str
    players: int


class Profile(NamedTuple):
    """Traffic.

    players: of the first board, the hot one where there are several; the others share as many
    events as `hot_share` leaves them, and have their players accordingly. sent_after_seconds: when
    each event is sent, counted from its time: once, or again with the same key. cup_share: after
    which share of the run the cup ends; None where there is none.
    """

    name: str
    streams: tuple[Stream, ...]
    phases: tuple[Phase, ...] = (Phase(1.0, 1.0),)
    players: int = DAILY_PLAYERS
    boards: int = 1
    hot_share: float = 1.0
    sent_after_seconds: tuple[float, ...] = (0.0,)
    cup_share: float | None = None


_SURGE = (Phase(0.4, 1.0), Phase(0.2, 5.0), Phase(0.4, 1.0))


def _rank_reads(rate: float) -> tuple[Stream, ...]:
    """Mix reads of ranks as players cause them: most want their own."""
    return (
        Stream(Call.MEMBER, 5 / 9 * rate),
        Stream(Call.AROUND, 2 / 9 * rate),
        Stream(Call.FRIENDS, 2 / 9 * rate),
    )


# Each event is read once as soon as it is acknowledged, so nine reads are left of ten.
PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "steady",
            (Stream(Call.EVENT, 500), *_rank_reads(4_500), Stream(Call.TOP, 50, surges=False)),
            _SURGE,
        ),
        Profile(
            "boundary",
            (Stream(Call.EVENT, 500), Stream(Call.MEMBER, 500), Stream(Call.CUP, 50, surges=False)),
            _SURGE,
            players=5_000,
            cup_share=0.5,
        ),
        Profile(
            "retry-storm",
            (Stream(Call.EVENT, 2_000), Stream(Call.MEMBER, 500)),
            players=500_000,
            sent_after_seconds=(0.0, 0.0, 0.25),
        ),
        Profile(
            "hot-board",
            (Stream(Call.EVENT, 1_000), *_rank_reads(9_000)),
            players=1_000_000,
            boards=10,
            hot_share=0.95,
        ),
    )
}


class Traffic:
    """A profile at a factor, in one run: what the calls of each number say.

    run: names its boards, so that each run has its own. seconds: how long it lasts. begins_at: in
    seconds since the epoch; what depends on the clock is counted from it.
    """

    def __init__(
        self, profile: Profile, factor: float, seconds: float, run: str, begins_at: float
    ) -> None:
        self.profile = profile
        self.run = run
        self.seconds = seconds
        self.begins_at = begins_at
        hot = max(FRIENDS, round(profile.players * factor))
        other_share = (1 - profile.hot_share) / profile.hot_share / max(1, profile.boards - 1)
        others = max(FRIENDS, math.ceil(hot * other_share))
        self.boards = [
            Board(f"{profile.name}-{run}-{index}", others if index else hot)
            for index in range(profile.boards)
        ]

    @property
    def cup_ends_us(self) -> int | None:
        """When the cup ends, in microseconds since the epoch; None where there is none."""
        if self.profile.cup_share is None:
            return None
        return int(1e6 * (self.begins_at + self.profile.cup_share * self.seconds))

    def definition(self) -> dict[str, Any]:
        """Define a board; its first period is that of all time."""
        ends_us = self.cup_ends_us
        if ends_us is None:
            return {"aggregation": "sum", "periods": ["all_time", "daily"]}
        start = format_time(int(1e6 * (self.begins_at - CUP_AGE_SECONDS)))
        cup = {"name": CUP, "start": start, "end": format_time(ends_us)}
        periods = ["all_time", cup]
        return {"aggregation": "sum", "periods": periods, "grace_seconds": CUP_GRACE_SECONDS}

    def board(self, number: int) -> Board:
        """Return the board of an event or a read."""
        place = _mixed(number) / (1 << _BITS)
        if place < self.profile.hot_share or len(self.boards) == 1:
            return self.boards[0]
        return self.boards[1 + number % (len(self.boards) - 1)]

    def event(self, number: int, seconds: float) -> dict[str, Any]:
        """Return the event of a number, whose time is `seconds`: always the same one.

        It says when it occurred where there is a cup, and there a late one has come to pass before.
        """
        event = {
            "member": self.member(number),
            "value": 1 + number % VALUE_MAX,
            "idempotency_key": f"event-{number:018d}",
        }
        if self.profile.cup_share is not None:
            late = _mixed(number) % LATE_SECONDS_MAX + 0.5 if number % LATE_EVERY == 0 else 0.0
            event["occurred_at"] = format_time(int(1e6 * (self.begins_at + seconds - late)))
        return event

    def member(self, number: int) -> str:
        """Return the member that an event or a read is of."""
        return member_name(self._player(number))

    def friends(self, number: int) -> list[str]:
        """Return whom a member compares with: themselves among others, strewn over the board."""
        players = self.board(number).players
        step = players // FRIENDS
        first = self._player(number)
        return [member_name((first + place * step) % players) for place in range(FRIENDS)]

    def _player(self, number: int) -> int:
        return _mixed(number + 1) % self.board(number).players


def _mixed(number: int) -> int:
    return number * _MIX % (1 << _BITS)


def member_name(player: int) -> str:
    """Name the member that a player is; 24 bytes."""
    return f"player-{player:017d}"


def seed_event(player: int) -> dict[str, Any]:
    """Return the event that a player has before a run begins."""
    return {
        "member": member_name(player),
        "value": 1 + player % VALUE_MAX,
        "idempotency_key": f"{SEED}{player:019d}",
    }
