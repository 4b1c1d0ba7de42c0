"""What a process that makes load notes: how quick it was answered, what was acknowledged, its CPU.

Owns the files that such processes write into a directory and whoever judges the run reads: one of
notes each, when a run is over, and a journal each, line by line as events are acknowledged.
"""

from __future__ import annotations

import json
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from loadtest.profiles import Call
from loadtest.schedule import Schedule

CPU_SHARE_MAX = 0.9  # beyond it, what is measured is the generator
CPU_WINDOW_SECONDS = 5.0
CPU_SAMPLE_SECONDS = 0.5


class CpuSample(NamedTuple):
    """What a process has had of a core until an instant, and how long it waited for one."""

    at_seconds: float
    cpu_seconds: float
    waited_seconds: float

    @classmethod
    def now(cls) -> CpuSample:
        """Take a sample of this process."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        waited_ns = int(Path("/proc/self/schedstat").read_text().split()[1])
        return cls(time.perf_counter(), used.ru_utime + used.ru_stime, 1e-9 * waited_ns)


def busiest_share(samples: Sequence[CpuSample]) -> float:
    """Return the highest share of a core over any CPU_WINDOW_SECONDS, or all of a shorter run."""
    shares = [0.0]
    last = 0
    for first, begun in enumerate(samples):
        while last < len(samples) - 1 and (
            samples[last].at_seconds - begun.at_seconds < CPU_WINDOW_SECONDS
        ):
            last += 1
        elapsed = samples[last].at_seconds - begun.at_seconds
        if elapsed > 0 and (elapsed >= CPU_WINDOW_SECONDS or first == 0):
            shares.append((samples[last].cpu_seconds - begun.cpu_seconds) / elapsed)
    return max(shares)


class Acknowledged(msgspec.Struct, frozen=True):
    """An event that was answered with 200, as it was sent, and what the answer said.

    windows: those that it counted in then; empty for a duplicate.
    """

    board: str
    key: str
    member: str
    value: int
    sequence: int
    duplicate: bool
    windows: tuple[str, ...]


class Notes(msgspec.Struct):
    """What one process noted of a run.

    boards: those of the run, and how many events they had before. offered: calls that were due, by
    kind. latencies_us: of the answers with 200, from when each call was due. lags_us: from when an
    event was due until a read saw it. errors: how often a kind of call failed in a way.
    closed_answers: what was said of the cup once it was closed. due_seconds, answered_seconds: when
    the last call was due, and when the last answer came, from the begin of the run.
    """

    boards: dict[str, int]
    offered: dict[str, int]
    latencies_us: dict[str, list[int]]
    lags_us: list[int]
    errors: dict[str, dict[str, int]]
    closed_answers: list[str]
    cpu: list[CpuSample]
    due_seconds: float
    answered_seconds: float


def said_of_cup(answer: dict[str, Any]) -> str:
    """Return what an answer says of the closed cup; how far the board's log is, is none of that."""
    said = {name: value for name, value in answer.items() if name != "sequence"}
    return json.dumps(said, sort_keys=True)


class Notebook:
    """Takes the notes of this process; without a directory they go nowhere in the end.

    index: which process this is of those that make the load together.
    """

    def __init__(self, directory: Path | None, index: int) -> None:
        self._path = None if directory is None else directory / f"notes-{index}.json"
        self._journal = None
        if directory is not None:
            self._journal = (directory / f"journal-{index}.ndjson").open("wb")
        self._latencies_us: defaultdict[str, list[int]] = defaultdict(list)
        self._lags_us: list[int] = []
        self._errors: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._closed_answers: set[str] = set()
        self._cpu: list[CpuSample] = []
        self._answered_at = 0.0

    def answered(self, call: Call, due_at: float, now: float, error: str | None) -> None:
        """Note what came of a call; times are those of `time.perf_counter`."""
        self._answered_at = now
        if error is None:
            self._latencies_us[call].append(int(1e6 * (now - due_at)))
        else:
            self._errors[call][error] += 1

    def failed(self, call: Call, error: str) -> None:
        """Note that an answer was not what it must be."""
        self._errors[call][error] += 1

    def acknowledged(self, event: Acknowledged) -> None:
        """Note that an event was."""
        if self._journal is not None:
            self._journal.write(msgspec.json.encode(event) + b"\n")

    def seen(self, due_at: float, now: float) -> None:
        """Note that a read saw an event which was due then."""
        self._lags_us.append(int(1e6 * (now - due_at)))

    def closed(self, answer: dict[str, Any]) -> None:
        """Note what was said of the closed cup."""
        self._closed_answers.add(said_of_cup(answer))

    def sample_cpu(self) -> None:
        """Note what this process has used so far."""
        self._cpu.append(CpuSample.now())

    def write(self, boards: dict[str, int], schedule: Schedule, begun: float) -> None:
        """Write everything down; the run, which began then, is over."""
        if self._path is None or self._journal is None:
            return
        self._journal.close()
        notes = Notes(
            boards=boards,
            offered=dict(schedule.offered),
            latencies_us=self._latencies_us,
            lags_us=self._lags_us,
            errors={call: dict(errors) for call, errors in self._errors.items()},
            closed_answers=sorted(self._closed_answers),
            cpu=self._cpu,
            due_seconds=schedule.due_seconds,
            answered_seconds=max(0.0, self._answered_at - begun),
        )
        self._path.write_bytes(msgspec.json.encode(notes))


def read_notes(directory: Path) -> list[Notes]:
    """Read the notes of every process."""
    paths = sorted(directory.glob("notes-*.json"))
    return [msgspec.json.decode(path.read_bytes(), type=Notes) for path in paths]


def read_journals(directory: Path) -> Iterator[Acknowledged]:
    """Read what was acknowledged to any process, in the order in which each wrote it."""
    decoder = msgspec.json.Decoder(Acknowledged)
    for path in sorted(directory.glob("journal-*.ndjson")):
        with path.open("rb") as lines:
            yield from map(decoder.decode, lines)
