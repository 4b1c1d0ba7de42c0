"""What the systems came to side by side: the figures of all rounds, and the marks for them.

Owns the names of what is measured, and how figures of several rounds become one: by medians, and
where systems are compared by the median of the rounds' ratios, since what disturbs a round disturbs
both.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import NamedTuple

from loadtest.bench_systems import NODE, PYTHON, RANKNODE, REDIS

RATE, P50, P99, CPU = "per second", "p50, ms", "p99, ms", "clients' share of a core"
BYTES, ALLOCATED, RESIDENT = "bytes a member", "used_memory a member", "resident bytes a member"
SECONDS, EVENTS = "seconds", "events/s"
NATIVE = "Redis alone, 50 native clients"
SHOWN, ANSWERED = "until a read shows the event", "until the event is answered"
BESIDE = "rank reads beside"
FROM_SNAPSHOT, FROM_LOG = "board's process, from a snapshot", "board's process, from the log alone"
WHOLE_NODE = "whole node, from a snapshot"
UNIFORM, ZIPF, EACH = "uniform ids", "Zipf ids", "one a request"
IN_BATCHES, IN_LONG_LOG = "batches of 1,000", "batches of 1,000, many logged before"


class Case(NamedTuple):
    """What was measured: a kind of work, in a setting, over connections where it has any."""

    work: str
    setting: str
    connections: int | None
    system: str


class Mark(NamedTuple):
    """What a measure of the node should keep to.

    bound: of the measure, or of its ratio to that of `against`. at_least: it must not be below;
    otherwise, not above.
    """

    work: str
    setting: str
    connections: int | None
    measure: str
    bound: float
    at_least: bool
    against: str | None = None
    system: str = RANKNODE


MARKS = (
    *(
        mark
        for ids in (UNIFORM, ZIPF)
        for connections, factor in ((32, 1.6), (128, 2.5))
        for mark in (
            Mark("rank", ids, connections, RATE, factor, True, PYTHON),
            Mark("rank", ids, connections, P50, 1.0, False, PYTHON),
            Mark("rank", ids, connections, P99, 1.0, False, PYTHON),
        )
    ),
    Mark("top", "limit 10", 32, RATE, 1.0, True, NODE),
    Mark("event", EACH, 32, RATE, 1.4, True, PYTHON),
    Mark("event", EACH, 128, RATE, 2.0, True, PYTHON),
    Mark("batches", IN_BATCHES, None, EVENTS, 1.5, True, NATIVE),
    Mark("batches", IN_LONG_LOG, None, EVENTS, 1.5, True, NATIVE),
    Mark("memory", "", None, BYTES, 0.6, False, REDIS),
    Mark("restart", "", None, SECONDS, 1.0, False, system=FROM_SNAPSHOT),
    Mark("restart", "", None, EVENTS, 400_000.0, True, system=FROM_LOG),
    Mark("visible", SHOWN, None, P99, 20.0, False),
)

# What each kind of work is, and what its figures are compared with.
WORKS = {
    "memory": ("Memory of the members, keys not counted", REDIS),
    "restart": ("Restart until the first right answer", None),
    "rank": ("HTTP: rank of a member", PYTHON),
    "top": ("HTTP: top 10", PYTHON),
    "event": ("HTTP: durable event", PYTHON),
    "batches": ("Durable events: over HTTP in batches, and Redis alone", NATIVE),
    "visible": ("Event to visible, in an open loop", None),
}


class Results:
    """Figures of every case and measure, a round after the other."""

    def __init__(self) -> None:
        self._figures: dict[Case, dict[str, list[float]]] = {}

    def note(self, case: Case, measure: str, figure: float) -> None:
        """Add a round's figure."""
        self._figures.setdefault(case, {}).setdefault(measure, []).append(figure)

    def cases(self, work: str) -> list[Case]:
        """List the cases of a kind of work, in order of their first figures."""
        return [case for case in self._figures if case.work == work]

    def measures(self, work: str) -> list[str]:
        """List what was measured of any of its cases."""
        return list(
            dict.fromkeys(each for case in self.cases(work) for each in self._figures[case])
        )

    def figure(self, case: Case, measure: str) -> float | None:
        """Return the median of the rounds, None where it was not measured."""
        rounds = self._figures.get(case, {}).get(measure)
        return statistics.median(rounds) if rounds else None

    def ratio(self, case: Case, measure: str, against: str) -> float | None:
        """Return the median of a measure's ratios to that of another system.

        That of its own setting and connections, or else of any: Redis alone has no setting.
        """
        ours = self._figures.get(case, {}).get(measure)
        theirs = self._figures.get(case._replace(system=against), {}).get(measure)
        if theirs is None:
            others = [each for each in self.cases(case.work) if each.system == against]
            theirs = self._figures[others[0]].get(measure) if len(others) == 1 else None
        if not ours or not theirs:
            return None
        return statistics.median(a / b for a, b in zip(ours, theirs, strict=False))


class Verdict(NamedTuple):
    """What became of a mark. measured: the figure or ratio; None where it was not measured."""

    mark: Mark
    measured: float | None

    @property
    def missed(self) -> bool:
        """Whether it was measured, and the mark not kept to."""
        if self.measured is None:
            return False
        below = self.measured < self.mark.bound
        return below if self.mark.at_least else self.measured > self.mark.bound


def verdicts(results: Results, works: Iterable[str]) -> list[Verdict]:
    """Hold the figures of some kinds of work against their marks."""
    found = []
    for mark in MARKS:
        if mark.work not in works:
            continue
        case = Case(mark.work, mark.setting, mark.connections, mark.system)
        if mark.against is None:
            measured = results.figure(case, mark.measure)
        else:
            measured = results.ratio(case, mark.measure, mark.against)
        found.append(Verdict(mark, measured))
    return found
