"""What measuring boards as they grow came to: figures, each with the mark that it should keep to.

Owns the names of what has a mark, and the marks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

WORST_READ = "rank reads while a snapshot is made, worst"
BYTES_A_MEMBER = "members and standings"
REPLAY_BATCHES = "replay of the log alone, records of 1,000 events"
OPEN_SNAPSHOT = "open from a snapshot"
GROWTH = "the largest board to the smallest"

REDIS_BYTES_A_MEMBER = 118.0  # of a sorted set with the same members


class Mark(NamedTuple):
    """A bound that a figure should keep to. at_least: it must not be below, else not above."""

    bound: float
    at_least: bool = False

    def kept(self, value: float) -> bool:
        """Tell whether a figure keeps to it."""
        return value >= self.bound if self.at_least else value <= self.bound


MARKS = {
    WORST_READ: Mark(100.0),
    BYTES_A_MEMBER: Mark(0.6 * REDIS_BYTES_A_MEMBER),
    REPLAY_BATCHES: Mark(400_000.0, at_least=True),
    OPEN_SNAPSHOT: Mark(1.0),
    GROWTH: Mark(3.0),
}


class Figure(NamedTuple):
    """A figure. mark: the name of its mark, where it has one. note: what else is to be said."""

    what: str
    value: float
    unit: str
    mark: str = ""
    note: str = ""

    @property
    def missed(self) -> bool:
        """Whether it has a mark and does not keep to it."""
        return bool(self.mark) and not MARKS[self.mark].kept(self.value)

    @property
    def line(self) -> str:
        """The figure as a row of a Markdown table."""
        cells = [self.what, f"{shown(self.value)} {self.unit}", self.note, "", ""]
        if self.mark:
            mark = MARKS[self.mark]
            cells[3] = f"{'≥' if mark.at_least else '≤'} {shown(mark.bound)} {self.unit}"
            cells[4] = "MISSED" if self.missed else "met"
        return f"| {' | '.join(cells)} |\n"


def table(figures: Iterable[Figure]) -> Iterator[str]:
    """Write a Markdown table, a line at a time."""
    yield "| what | measured | | mark | |\n|---|---|---|---|---|\n"
    yield from (figure.line for figure in figures)


def shown(value: float) -> str:
    """Write a number with three digits that matter, whole where it is large."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
