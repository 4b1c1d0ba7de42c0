"""What the workload does, step by step: a pure function of its seed.

Days pass while a board is created, written to, changed, put away and taken up again, its windows
close and are asked for, keys are repeated, and a second board is created, used and deleted.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from actors.logged_board import BoardOptions
from persistence.event_log import LogOptions
from tests.actors.board_harness import DAY_US, at

BOARD = "b"
BRIEF = "brief"  # the board that is deleted again
BEGIN_US = 20_000 * DAY_US + 6 * 3_600 * 1_000_000  # six o'clock, 2024-10-04
STEP_US = 5 * 3_600 * 1_000_000  # about five writes a day
COMMITS = 14

# Small enough that a short run has several segments, snapshots and archives.
OPTIONS = BoardOptions(
    log=LogOptions(segment_events_max=30, segment_bytes_max=1 << 20, reserved_free_bytes=0),
    snapshot_events=35,
)
DEFINITION = {
    "aggregation": "sum",
    "periods": ["all_time", "daily"],
    "grace_seconds": 3_600,
    "keep_closed_periods": 2,
}
MEMBERS = ("ada", "bob", "cleo", "dev", "eva", "finn")


@dataclass(frozen=True)
class Step:
    """One thing that is done at `at_us`, and again after a crash until it was acknowledged."""

    number: int
    at_us: int
    board: str


@dataclass(frozen=True)
class Create(Step):
    """Create the board."""


@dataclass(frozen=True)
class Write(Step):
    """Submit bodies at once, while a read is under way."""

    bodies: tuple[Any, ...]


@dataclass(frozen=True)
class Patch(Step):
    """Change fields of the definition."""

    fields: dict[str, Any]


@dataclass(frozen=True)
class Reopen(Step):
    """Put the board away, with time for a snapshot or none, and take it up again."""

    snapshot_seconds: float


@dataclass(frozen=True)
class Publish(Step):
    """Ask for the digests of the windows that are closed."""


@dataclass(frozen=True)
class Delete(Step):
    """Delete the board."""


@dataclass
class _Writer:
    """Makes steps and events, one after the other."""

    rng: random.Random
    at_us: int = BEGIN_US
    steps: list[Step] = field(default_factory=list)
    sent: list[dict[str, Any]] = field(default_factory=list)

    def add(self, kind: type[Step], board: str = BOARD, **fields: Any) -> None:
        self.steps.append(kind(number=len(self.steps), at_us=self.at_us, board=board, **fields))

    def event(self, board: str) -> dict[str, Any]:
        """Make an event, now and then a late one, or one that was sent before."""
        sent = [event for event in self.sent if event["idempotency_key"].startswith(f"{board}-")]
        if sent and self.rng.random() < 0.15:
            return self.rng.choice(sent)
        late_us = self.rng.choice([0, 0, 0, 3_600 * 1_000_000, DAY_US])
        event = {
            "member": self.rng.choice(MEMBERS),
            "value": self.rng.randint(-3, 9),
            "idempotency_key": f"{board}-{len(self.sent)}",
            "occurred_at": at(self.at_us - late_us),
        }
        self.sent.append(event)
        return event

    def write(self, board: str = BOARD) -> None:
        """Submit one to three bodies, single events and batches."""
        bodies: list[Any] = []
        for _ in range(self.rng.randint(1, 3)):
            events = [self.event(board) for _ in range(self.rng.randint(1, 6))]
            bodies.append(events[0] if len(events) == 1 else {"events": events})
        self.add(Write, board, bodies=tuple(bodies))


def script(seed: int, commits: int = COMMITS) -> list[Step]:
    """Make the steps of a seed with `commits` rounds of writes."""
    writer = _Writer(random.Random(seed))  # noqa: S311  (a repeatable draw is what is wanted)
    writer.add(Create)
    for commit in range(commits):
        writer.write()
        writer.at_us += STEP_US
        if commit % 5 == 4:
            writer.write()  # the first one of a new day closes what is due
            writer.add(Publish)
        if commit == commits // 4:
            writer.add(Patch, fields={"max_value": 8, "grace_seconds": 1_800})
            writer.add(Reopen, snapshot_seconds=60.0)
        if commit == commits // 2:
            writer.add(Create, BRIEF)
            writer.write(BRIEF)
            writer.add(Reopen, BRIEF, snapshot_seconds=0.0)
            writer.write(BRIEF)
            writer.add(Delete, BRIEF)
        if commit == 3 * commits // 4:
            writer.add(Patch, fields={"keep_closed_periods": 1, "max_value": None})
            writer.add(Reopen, snapshot_seconds=0.0)
    writer.add(Publish)
    return writer.steps
