"""What came of a run: rates, latencies and lag as a table and as files, and what went wrong.

Owns the words for what a run fails with. Latencies are exact here; Locust's own files round them.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from loadtest.generator_notes import CPU_SHARE_MAX, Notes, busiest_share
from loadtest.profiles import Call
from loadtest.verify_journal import Findings

VOID = "void"
LAG_PERCENTILES = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 100.0)
NAMED = 5  # of what is found in large numbers, so many are shown

US_PER_MS = 1_000.0


class Percentiles(msgspec.Struct, frozen=True):
    """Times in milliseconds; all NaN, null in a file, where there were none."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    worst_ms: float


class CallFigures(msgspec.Struct, frozen=True):
    """A kind of call. offered: a second, while calls were due; achieved: a second, until the last.

    errors: how many were answered otherwise than with 200, wrongly, or never.
    """

    call: str
    offered: float
    achieved: float
    latency: Percentiles
    errors: int


class GeneratorFigures(msgspec.Struct, frozen=True):
    """A process that made load: shares of a core that it had, at most and on average.

    waited_share: of the time, it was ready and had none.
    """

    cpu_share_most: float
    cpu_share: float
    waited_share: float


class Summary(msgspec.Struct, frozen=True):
    """What a run measured.

    lag: from when an event was due until a read saw it. sides: see `Findings`.
    """

    profile: str
    factor: float
    seconds: float
    calls: list[CallFigures]
    lag: Percentiles
    generators: list[GeneratorFigures]
    acknowledged: int
    sides: dict[str, int]


class Failure(NamedTuple):
    """What a run fails with: a word for what kind it is, and what was found."""

    word: str
    found: str


def percentile(ascending: Sequence[int], percent: float) -> float:
    """Return the value that `percent` of them do not exceed; NaN of none."""
    if not ascending:
        return math.nan
    return ascending[max(0, math.ceil(percent / 100 * len(ascending)) - 1)]


def _percentiles(values_us: Iterable[int]) -> Percentiles:
    ascending = sorted(values_us)
    return Percentiles(*(percentile(ascending, p) / US_PER_MS for p in (50, 95, 99, 100)))


def summarize(
    profile: str, factor: float, seconds: float, notes: Sequence[Notes], findings: Findings
) -> Summary:
    """Sum up what all generators noted."""
    due_seconds = max([seconds, *(each.due_seconds for each in notes)])
    answered_seconds = max([due_seconds, *(each.answered_seconds for each in notes)])
    calls = []
    for call in Call:
        latencies = [us for each in notes for us in each.latencies_us.get(call, ())]
        errors = sum(sum(each.errors.get(call, {}).values()) for each in notes)
        offered = sum(each.offered.get(call, 0) for each in notes)
        if call is Call.VISIBLE:
            offered = len(latencies) + errors
        if offered:
            calls.append(
                CallFigures(
                    call=call,
                    offered=offered / due_seconds,
                    achieved=len(latencies) / answered_seconds,
                    latency=_percentiles(latencies),
                    errors=max(errors, offered - len(latencies)),
                )
            )
    return Summary(
        profile=profile,
        factor=factor,
        seconds=seconds,
        calls=calls,
        lag=_percentiles(us for each in notes for us in each.lags_us),
        generators=[_generator(each) for each in notes],
        acknowledged=findings.acknowledged,
        sides=dict(findings.sides),
    )


def _generator(notes: Notes) -> GeneratorFigures:
    first, last = notes.cpu[0], notes.cpu[-1]
    elapsed = max(last.at_seconds - first.at_seconds, 1e-9)
    return GeneratorFigures(
        cpu_share_most=busiest_share(notes.cpu),
        cpu_share=(last.cpu_seconds - first.cpu_seconds) / elapsed,
        waited_share=(last.waited_seconds - first.waited_seconds) / elapsed,
    )


def failures(summary: Summary, notes: Sequence[Notes], findings: Findings) -> list[Failure]:
    """Name what went wrong, what invalidates the figures last."""
    found = []
    for figures in summary.calls:
        if figures.errors:
            kinds = sorted({kind for each in notes for kind in each.errors.get(figures.call, {})})
            named = "; ".join(kinds) or "never answered"
            found.append(Failure("errors", f"{figures.errors} x {figures.call}: {named}"))
    for word, each in (
        ("lost", findings.lost),
        ("doubled", findings.doubled),
        ("misplaced", findings.misplaced),
    ):
        if each:
            more = f", and {len(each) - NAMED} more" if len(each) > NAMED else ""
            found.append(Failure(word, f"{'; '.join(each[:NAMED])}{more}"))
    said = {answer for each in notes for answer in each.closed_answers}
    if len(said) > 1:
        found.append(Failure("changed", f"the closed cup was answered in {len(said)} ways"))
    for generator in summary.generators:
        if generator.cpu_share_most > CPU_SHARE_MAX:
            share = f"{generator.cpu_share_most:.0%} of a core, above {CPU_SHARE_MAX:.0%}"
            found.append(Failure(VOID, f"the generator took {share}: it is what was measured"))
    return found


def write_files(summary: Summary, notes: Sequence[Notes], directory: Path) -> None:
    """Write summary.json, calls.csv and lag.csv."""
    text = msgspec.json.format(msgspec.json.encode(summary), indent=2)
    (directory / "summary.json").write_bytes(text + b"\n")
    with (directory / "calls.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        latency = Percentiles.__struct_fields__
        writer.writerow(["call", "offered_per_second", "achieved_per_second", *latency, "errors"])
        for call in summary.calls:
            times = msgspec.structs.astuple(call.latency)
            writer.writerow([call.call, call.offered, call.achieved, *times, call.errors])
    ascending = sorted(us for each in notes for us in each.lags_us)
    with (directory / "lag.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["percentile", "lag_ms"])
        for percent in LAG_PERCENTILES:
            writer.writerow([percent, percentile(ascending, percent) / US_PER_MS])


def table(summary: Summary) -> str:
    """Show the summary: a Markdown table and some lines."""
    lines = [
        f"{summary.profile}: {summary.seconds:g} s at factor {summary.factor:g}\n",
        "| call | offered/s | achieved/s | p50 ms | p95 ms | p99 ms | worst ms | errors |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for call in summary.calls:
        rates = f"{call.offered:.1f} | {call.achieved:.1f}"
        lines.append(f"| {call.call} | {rates} | {_shown(call.latency)} | {call.errors} |")
    lines.append(f"| event to visible | | | {_shown(summary.lag)} | |")
    lines.append(f"\n{summary.acknowledged} events were acknowledged")
    if summary.sides:
        sides = ", ".join(f"{count} {side}" for side, count in sorted(summary.sides.items()))
        lines.append(f"of these sent around the cup's end: {sides}")
    for each in summary.generators:
        lines.append(
            f"generator: {each.cpu_share:.0%} of a core, {each.cpu_share_most:.0%} at most,"
            f" waited for one {each.waited_share:.0%} of the time"
        )
        if each.cpu_share + each.waited_share > CPU_SHARE_MAX:
            lines.append("NOTE: it had too little of this machine; latencies are partly its own")
    return "\n".join(lines)


def _shown(times: Percentiles) -> str:
    return " | ".join(f"{ms:.2f}" for ms in msgspec.structs.astuple(times))
