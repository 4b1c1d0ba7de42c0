"""What a benchmark measured: lines of a table, each with the mark that it should keep to.

A mark holds for the median. The machine may be a shared one and at times much slower, so one counts
as missed only beyond NOISE_FACTOR times itself.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

NOISE_FACTOR = 2.0

TABLE_HEAD = "| what | mark | measured |\n|---|---|---|"
ENCODINGS = {False: "JSON", True: "MessagePack"}  # by whether it is packed


class Figure(NamedTuple):
    """A line of the table.

    mark_ms: what `median_ms`, the higher one of those measured, should not exceed; None where
    nothing is promised.
    """

    what: str
    measured: str
    mark_ms: float | None = None
    median_ms: float = 0.0

    @property
    def missed(self) -> bool:
        """Whether the mark was missed by more than noise explains."""
        return self.mark_ms is not None and self.median_ms > NOISE_FACTOR * self.mark_ms

    @property
    def line(self) -> str:
        """The figure as a row of a Markdown table."""
        mark = "" if self.mark_ms is None else f"{self.mark_ms:g} ms"
        return f"| {self.what} | {mark} | {self.measured} |"


def of_calls(what: str, mark_ms: float | None, seconds: Mapping[bool, Sequence[float]]) -> Figure:
    """Sum up what calls took, by whether they were packed: median, 99th percentile and worst."""
    parts = []
    for packed, each in seconds.items():
        worst_last = sorted(each)
        p99 = worst_last[math.ceil(0.99 * len(each)) - 1]
        shown = " / ".join(
            f"{1e3 * value:.3f}" for value in (statistics.median(each), p99, worst_last[-1])
        )
        parts.append(f"{ENCODINGS[packed]} {shown} ms")
    median = max(map(statistics.median, seconds.values()))
    return Figure(what, ", ".join(parts), mark_ms, 1e3 * median)


def missed_marks(figures: Iterable[Figure]) -> list[str]:
    """Name what missed its mark by more than noise explains."""
    return [
        f"{each.what}: {each.median_ms:.3f} ms, above {NOISE_FACTOR:g} x {each.mark_ms:g} ms"
        for each in figures
        if each.missed
    ]
