"""What an event costs the process of its board, stage by stage, without the wait for the disk.

Owns the work: batches of new events, the same once more, and single events of as many requests as
one commit gathers. Figures are microseconds of processor time an event, medians of rounds, so that
neither the disk nor whoever shares the machine counts. Names and keys have 24 bytes.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import thread_time
from typing import Any, TypeVar

import msgspec

from actors.exact import format_time
from actors.logged_board import LoggedBoard
from actors.questions import Submit
from actors.submission import parse_submission
from loadtest.filled_boards import (
    BEGUN_US,
    VALUE_MAX,
    create,
    default_options,
    draw_names,
    fill_with_members,
)
from persistence.records import EMPTY_HASH, encode

BATCH = 1_000
SINGLES = 128
FILLING_BATCH = 5_000
NOW_US = BEGUN_US + 3_600 * 1_000_000
STAGES = ("parse", "plan", "encode", "commit", "settle")
# The writer's thread encodes a record again as it commits it, so that `commit` holds both.
COUNTED = ("parse", "plan", "commit", "settle")

_T = TypeVar("_T")


class IntakeBench:
    """A board of `members` on disk, and how long each stage took, by kind of work."""

    def __init__(self, directory: Path, members: int) -> None:
        self._draw = random.Random(members)
        self._names = draw_names(self._draw, members)
        self._keys = 0
        self.host: LoggedBoard = create(directory, default_options(), aggregation="sum")
        fill_with_members(self.host, self._draw, self._names, FILLING_BATCH)
        self.figures: dict[str, dict[str, list[float]]] = {}

    def event(self) -> dict[str, Any]:
        """Draw a new event of any of the members."""
        self._keys += 1
        return {
            "member": self._draw.choice(self._names).decode(),
            "value": self._draw.randrange(VALUE_MAX),
            "idempotency_key": f"match-{self._keys:018d}",
            "occurred_at": format_time(NOW_US - self._draw.randrange(1_000_000)),
        }

    def round(self) -> None:
        """Do each kind of work once."""
        batch = [msgspec.json.encode({"events": [self.event() for _ in range(BATCH)]})]
        singles = [msgspec.json.encode(self.event()) for _ in range(SINGLES)]
        self._submit(f"batches of {BATCH:,}", batch, BATCH)
        self._submit(f"batches of {BATCH:,}, sent again", batch, BATCH)
        self._submit(f"{SINGLES} single events", singles, SINGLES)
        self._submit(f"{SINGLES} single events, sent again", singles, SINGLES)

    def _submit(self, work: str, bodies: Sequence[bytes], events: int) -> None:
        taken = self.figures.setdefault(work, {stage: [] for stage in STAGES})

        def timed(stage: str, do: Callable[[], _T]) -> _T:
            started = thread_time()
            done = do()
            taken[stage].append((thread_time() - started) / events * 1e6)
            return done

        questions = [Submit(False, NOW_US, body, False) for body in bodies]
        submissions = timed("parse", lambda: list(map(parse_submission, questions)))
        planned = timed("plan", lambda: self.host.plan(submissions, NOW_US))
        records = [] if planned.record is None else [planned.record]
        timed("encode", lambda: [encode(record, EMPTY_HASH) for record in records])
        timed("commit", lambda: self.host.commit(records))
        timed("settle", lambda: self.host.settle(planned))


def intake_table(members: int, rounds: int) -> str:
    """Measure, and return a Markdown table: a row for each kind of work, a column for each stage.

    encode: a part of commit, given by itself.
    """
    with tempfile.TemporaryDirectory() as directory:
        bench = IntakeBench(Path(directory) / "b", members)
        try:
            for _ in range(rounds):
                bench.round()
        finally:
            bench.host.close()
    lines = [
        f"| µs an event, {members:,} members | {' | '.join(STAGES)} | in all |",
        "|---" * (len(STAGES) + 2) + "|",
    ]
    for work, taken in bench.figures.items():
        medians = {stage: statistics.median(taken[stage]) for stage in STAGES}
        total = sum(medians[stage] for stage in COUNTED)
        cells = [f"{medians[stage]:.2f}" for stage in STAGES]
        lines.append(f"| {work} | {' | '.join(cells)} | {total:.2f} |")
    return "\n".join(lines)
