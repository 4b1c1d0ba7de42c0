"""What a board's process counts of its work, for whoever watches the node.

Plain numbers, counted where the work is done for less than a microsecond each, and what can be read
off the board when somebody asks. Counts begin with the process. Nothing here decides anything, and
nothing knows how the numbers are shown.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from actors.intake import Plan, Tally
from actors.logged_board import SNAPSHOTS, LoggedBoard
from actors.rulings import OPEN, REJECTED, UPHELD
from persistence.recovery import RecoveryReport
from persistence.snapshot import list_snapshots

# Upper bounds of buckets. An event is to be visible within 20 ms; a commit is a sync of a disk,
# which takes 0.1 ms of the best and 10 ms of a plain one; work on a whole board takes up to hours.
LAG_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
COMMIT_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0)
WORK_SECONDS = (0.01, 0.05, 0.2, 1.0, 5.0, 20.0, 60.0, 300.0, 1_800.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 5_000)

# What an event can be refused for once it has a board: shown from the start, at zero.
EVENT_REFUSALS = (
    "invalid_field", "malformed_body", "idempotency_conflict", "event_too_old", "value_precision",
    "value_out_of_range", "value_not_allowed", "source_not_allowed", "occurred_in_future",
    "period_closed", "board_unavailable", "storage_full",
)  # fmt: skip

_US = 1_000_000
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Histogram(msgspec.Struct):
    """How many values fell where.

    counts: by bucket; a value belongs to the first bucket whose bound is not below it, and beyond
    the last bound to one more. total: of all values.
    """

    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0

    @classmethod
    def over(cls, bounds: tuple[float, ...]) -> Histogram:
        """Make an empty one."""
        return cls(bounds, [0] * (len(bounds) + 1))

    def add(self, value: float, times: int = 1) -> None:
        """Count a value. Complexity: O(log bounds)."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


def _over(bounds: tuple[float, ...]) -> Any:
    return msgspec.field(default_factory=lambda: Histogram.over(bounds))


class State(msgspec.Struct, frozen=True):
    """An open board as it is when somebody asks.

    members: names that it keeps in memory; entries: places in its open windows, hidden members
    included. unsealed_windows: closed ones that no archive holds yet. sequences_behind_snapshot:
    what the next recovery would replay. snapshot_age_seconds: None where there is no snapshot.
    disputes: how many there are of each status. erasing: names that are not off the disk yet.
    queued_requests, queued_events: what waits for the next commit.
    """

    sequence: int
    members: int
    entries: int
    keys: int
    state_bytes: int
    open_windows: int
    closed_windows: int
    unsealed_windows: int
    sequences_behind_snapshot: int
    snapshot_age_seconds: float | None
    disputes: dict[str, int]
    erasing: int
    queued_requests: int
    queued_events: int


class Measures(msgspec.Struct):
    """Everything that a board's process tells of itself, since it began.

    lag_seconds: by event that counts, from its receipt by the gateway until it was visible, on the
    clock of the machine. commit_seconds: by commit of whatever kind, as those who wait for it see
    it. commit_events: by commit of events. refused: events, by the code of their refusal.
    copy_seconds: by snapshot, how long writes waited for the state to be copied; write_seconds:
    until the copy was on disk. rebuild_seconds: by making of lost archives from the log. load_,
    replay_seconds, replayed_events: of the recovery that the process began with. state: None while
    the board is not open.
    """

    lag_seconds: Histogram = _over(LAG_SECONDS)
    commit_seconds: Histogram = _over(COMMIT_SECONDS)
    commit_events: Histogram = _over(SIZES)
    applied: int = 0
    duplicates: int = 0
    refused: dict[str, int] = msgspec.field(
        default_factory=lambda: dict.fromkeys(EVENT_REFUSALS, 0)  # one that appears is no increase
    )
    damaged_records: int = 0
    copy_seconds: Histogram = _over(WORK_SECONDS)
    write_seconds: Histogram = _over(WORK_SECONDS)
    snapshot_failures: int = 0
    snapshot_at_us: int | None = None
    rebuild_seconds: Histogram = _over(WORK_SECONDS)
    load_seconds: float = 0.0
    replay_seconds: float = 0.0
    replayed_events: int = 0
    resident_bytes: int = 0
    state: State | None = None

    def recovered(self, report: RecoveryReport, snapshot_at_us: int | None) -> None:
        """Note how the board came up, and when its newest snapshot was written."""
        self.load_seconds = report.load_seconds
        self.replay_seconds = report.replay_seconds
        self.replayed_events = report.events_replayed
        self.snapshot_at_us = snapshot_at_us

    def settled(self, planned: Plan, now_us: int) -> None:
        """Count what became of a batch, which is visible now.

        Complexity: O(submissions), O(events) where any of them is no new event.
        """
        applied = 0 if planned.record is None else planned.record.count
        self.applied += applied
        if applied:
            self.commit_events.add(applied)
        counts = [len(submission.events) for submission in planned.submissions]
        if applied != sum(counts):
            counts = [self._count(planned.tally(*rows)) for _, *rows in planned.parts()]
        for submission, count in zip(planned.submissions, counts, strict=True):
            if count:
                # A clock that was set back meanwhile is no lag.
                lag_us = max(now_us - submission.received_at_us, 0)
                self.lag_seconds.add(lag_us / _US, count)

    def _count(self, tally: Tally) -> int:
        """Count the events of one submission that do not count; returns how many do."""
        self.duplicates += tally.duplicates
        for refusal in tally.refusals.values():
            self.refuse(refusal.code, 1)
        return tally.applied

    def refuse(self, code: str, events: int) -> None:
        """Count events that were refused."""
        self.refused[code] = self.refused.get(code, 0) + events

    def snapshot_written(self, seconds: float, now_us: int) -> None:
        """Note that a copied state is on disk, and how long that took."""
        self.write_seconds.add(seconds)
        self.snapshot_at_us = now_us


class Observer:
    """Reads off an open board what nobody counts. One belongs to one board."""

    def __init__(self) -> None:
        self._rulings = -1
        self._disputes: dict[str, int] = {}
        self._erasing = 0

    def look(self, host: LoggedBoard, age_seconds: float | None, queued: Sequence[int]) -> State:
        """Describe a board; queued: how many events each request has that waits for a commit.

        Complexity: O(windows), O(disputes + erasures) after a ruling.
        """
        board = host.board
        self._follow(host)
        return State(
            sequence=board.sequence,
            members=len(board.members),
            entries=sum(window.size for window in board.windows.values()),
            keys=len(board.keys),
            state_bytes=board.nbytes,
            open_windows=len(board.windows),
            closed_windows=len(board.closed),
            unsealed_windows=len(board.unsealed),
            sequences_behind_snapshot=host.sequences_behind_snapshot,
            snapshot_age_seconds=age_seconds,
            disputes=self._disputes,
            erasing=self._erasing,
            queued_requests=len(queued),
            queued_events=sum(queued),
        )

    def _follow(self, host: LoggedBoard) -> None:
        """Count what rulings made of disputes and erasures, if there was any since."""
        rulings = host.board.rulings
        if len(rulings.records) == self._rulings:
            return
        self._rulings = len(rulings.records)
        statuses = Counter(dispute.status for _, dispute in rulings.disputes.items())
        self._disputes = {status: statuses[status] for status in (OPEN, UPHELD, REJECTED)}
        self._erasing = len(rulings.erasing)


def snapshot_time_us(directory: Path) -> int | None:
    """Return when the newest snapshot of the board in `directory` was written; None without one.

    Errors: OSError.
    """
    for path in list_snapshots(directory / SNAPSHOTS):
        return path.stat().st_mtime_ns // 1_000
    return None


def resident_bytes() -> int:
    """Return the memory that this process has in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
