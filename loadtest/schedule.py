"""When each call of a run is due: times that are fixed in advance, whatever the answers.

Calls arrive as those of players who know nothing of each other: with exponentially distributed
gaps, at a rate that is constant within a phase. Whoever is free takes the next call, waits for its
time, and counts its latency from there, so that a stall delays all calls that are due meanwhile
instead of hiding them. Knows no clock.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from loadtest.profiles import Call, Profile

DRAW = 2  # one seed for all runs: two of them offer the same


class Arrival(NamedTuple):
    """A call that is due.

    due_seconds: from the begin of the run. number: of the event or read. seconds: when the event
    is as a game has it; one that is sent several times is due several times, with one number.
    """

    due_seconds: float
    call: Call
    number: int
    seconds: float


def arrivals(profile: Profile, factor: float, seconds: float) -> list[Arrival]:
    """Draw the calls of a run, in order of their times. Complexity: O(n log n)."""
    draw = random.Random(DRAW)
    due = []
    number = 0
    for call, rate, surges in profile.streams:
        for at in _times(draw, profile, factor * rate, seconds, surges=surges):
            again = profile.sent_after_seconds if call is Call.EVENT else (0.0,)
            due += [Arrival(at + after, call, number, at) for after in again]
            number += 1
    due.sort()
    return due


def _times(
    draw: random.Random, profile: Profile, rate: float, seconds: float, *, surges: bool
) -> Iterator[float]:
    begins = 0.0
    for share, times in profile.phases:
        ends = begins + seconds * share
        phase_rate = rate * times if surges else rate
        at = begins + draw.expovariate(phase_rate)
        while at < ends:
            yield at
            at += draw.expovariate(phase_rate)
        begins = ends


class Schedule:
    """The calls that one process is to make: each `processes`-th, from `index` on.

    offered: how many of each kind. due_seconds: when the last one is due.
    """

    def __init__(self, due: Sequence[Arrival], index: int = 0, processes: int = 1) -> None:
        mine = due[index::processes]
        self.offered: Counter[str] = Counter(arrival.call for arrival in mine)
        self.due_seconds = mine[-1].due_seconds if mine else 0.0
        self._next = iter(mine)

    def take(self) -> Arrival | None:
        """Hand out the next call, to one taker; None once all are taken."""
        return next(self._next, None)
