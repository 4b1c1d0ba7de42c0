"""What generators of load were told, held against the log of the node that told them.

Each event that was acknowledged must be in the log once, as it was sent and at the sequence that
was answered, however often it was sent; and where a cup ended meanwhile, it counts on the side of
the closing that its time and its place in the log put it on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from actors.directory import BOARDS
from actors.listing import LOG
from loadtest.generator_notes import Acknowledged
from loadtest.profiles import CUP, SEED
from persistence.event_log import LmdbEventLog
from persistence.records import Event, EventsRecord, Record, WindowClosedRecord


class Cup(NamedTuple):
    """What a node answers of the closed cup: when it ended, and every member's score."""

    ends_us: int
    scores: Mapping[str, int]


@dataclass
class Findings:
    """What was compared, and what was not as it must be.

    acknowledged: events, each key once. sides: how many of them were sent before the cup's end,
    late but within its grace, and after its closing.
    """

    acknowledged: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    misplaced: list[str] = field(default_factory=list)
    sides: Counter[str] = field(default_factory=Counter)


def verify_journals(
    data: Path, boards: Mapping[str, int], journal: Iterable[Acknowledged], cup: Cup | None
) -> Findings:
    """Hold a journal against the logs of a node that has stopped.

    boards: those of the run, and how many events each had before. Complexity: O(events), in memory.
    Errors: the log's.
    """
    told: defaultdict[str, defaultdict[str, list[Acknowledged]]]
    told = defaultdict(lambda: defaultdict(list))
    for event in journal:
        told[event.board][event.key].append(event)
    findings = Findings()
    for board in sorted(told.keys() - boards.keys()):
        findings.lost.append(f"{board}: no board of the run")
    for board, seeds in boards.items():
        log = LmdbEventLog.open_readonly(data / BOARDS / board / LOG)
        try:
            verify_board(log.read(), told[board], seeds, cup, findings)
        finally:
            log.close()
    return findings


def verify_board(
    records: Iterable[Record],
    told: Mapping[str, Sequence[Acknowledged]],
    seeds: int,
    cup: Cup | None,
    findings: Findings,
) -> None:
    """Add what is found about one board; told: by key, once for each time it was acknowledged."""
    logged = _read(records, cup, findings)
    if logged.seeds != seeds:
        findings.lost.append(f"{seeds - logged.seeds} of {seeds} events before the run")
    for key, copies in told.items():
        findings.acknowledged += 1
        event = logged.events.get(key)
        if sum(not copy.duplicate for copy in copies) > 1:
            findings.doubled.append(f"{key}: applied more than once")
        for copy in copies:
            if event is None or not _is(event, copy):
                findings.lost.append(f"{key}: not in the log as {copy.sequence}")
                break
    if cup is not None:
        _verify_cup(logged, told, cup, findings)


@dataclass
class _Logged:
    """What the log of a board holds.

    seeds: how many events from before the run, without which `events` has the others by key.
    closed_at: the sequence at which the cup was closed, and cup_scores what belongs to it.
    """

    seeds: int
    events: dict[str, Event]
    closed_at: int | None
    cup_scores: Counter[str]


def _read(records: Iterable[Record], cup: Cup | None, findings: Findings) -> _Logged:
    seeds: set[str] = set()
    logged = _Logged(0, {}, None, Counter())
    for record in records:
        if isinstance(record, WindowClosedRecord) and record.window == CUP:
            logged.closed_at = record.first_sequence
        elif isinstance(record, EventsRecord):
            for event in map(record.row, range(record.count)):
                key = event.idempotency_key.decode()
                if key in seeds or key in logged.events:
                    findings.doubled.append(f"{key}: in the log as {event.sequence} as well")
                elif key.startswith(SEED):
                    seeds.add(key)
                else:
                    logged.events[key] = event
                if cup is not None and _belongs(event, cup, logged.closed_at):
                    logged.cup_scores[event.member.decode()] += event.values[0]
    logged.seeds = len(seeds)
    return logged


def _belongs(event: Event, cup: Cup, closed_at: int | None) -> bool:
    """Whether an event counts in the cup: it occurred in time, and came before the closing."""
    in_time = event.occurred_at_us < cup.ends_us
    return in_time and (closed_at is None or event.sequence < closed_at)


def _is(event: Event, told: Acknowledged) -> bool:
    return (event.sequence, event.member.decode(), event.values) == (
        told.sequence,
        told.member,
        (told.value,),
    )


def _verify_cup(
    logged: _Logged, told: Mapping[str, Sequence[Acknowledged]], cup: Cup, findings: Findings
) -> None:
    if logged.closed_at is None:
        findings.misplaced.append("the log does not say that the cup was closed")
        return
    for key, event in logged.events.items():
        belongs = _belongs(event, cup, logged.closed_at)
        for copy in told.get(key, ()):
            if not copy.duplicate:
                findings.sides[_side(event, cup, belongs=belongs)] += 1
                if (CUP in copy.windows) != belongs:
                    findings.misplaced.append(f"{key}: counted in {', '.join(copy.windows)}")
    for member in sorted(logged.cup_scores.keys() | cup.scores.keys()):
        ours, theirs = logged.cup_scores[member], cup.scores.get(member, 0)
        if ours != theirs:
            findings.misplaced.append(f"{member}: {theirs} in the cup, {ours} by the log")


def _side(event: Event, cup: Cup, *, belongs: bool) -> str:
    if not belongs:
        return "after"
    return "before" if event.received_at_us < cup.ends_us else "late"
