"""A board's process whose clock jumps, over windows' ends and back, and across restarts.

A seed makes a history of submissions, jumps and restarts. What may never change is checked after
every step; what the log says is computed anew at the end, by plain dicts.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from actors.board import Board
from actors.board_actor import BoardActor
from actors.creation import create_board
from actors.listing import LOG
from actors.logged_board import LoggedBoard
from actors.offline import verify
from actors.questions import Ask, Change, Periods, Submit, Top, decode_replies, encode
from persistence import ownership
from persistence.event_log import LmdbEventLog
from persistence.records import EventsRecord, WindowClosedRecord, WindowOpenedRecord
from tests.actors.board_harness import DAY_US, SMALL, at, define, instant, read
from tests.actors.test_board_actor import hosting
from tests.durability.faults import fast_directory
from tests.persistence.log_samples import seeded

BEGIN_US = instant("2026-11-27T21:00:00Z")  # a Friday, three days before a week and a month end
HOUR_US = DAY_US // 24
RETENTION_DAYS = 3
STEPS = 90
WAIT_SECONDS = 300
# Jumps are small for the most part, or a window would close before it holds anything.
JUMPS_US = [
    *[HOUR_US, -HOUR_US, 7 * HOUR_US, -7 * HOUR_US, 1, -1] * 3,
    *(days * DAY_US for days in (1, -1, 2, -2, -2, 6, -9, 30, -35)),
]
OCCASIONS_US = [0, 0, -HOUR_US, HOUR_US, -DAY_US, -2 * DAY_US, DAY_US, 2 * DAY_US]
TOLERANCE_SECONDS = 86_400
FIELDS = {
    "aggregation": "sum",
    "periods": ["all_time", "daily", "weekly", "monthly"],
    "key_retention_days": RETENTION_DAYS,
    "future_tolerance_seconds": TOLERANCE_SECONDS,
}


@dataclass
class Sent:
    """An event that was applied: what was sent, its sequence, and when it was received."""

    event: dict[str, Any]
    sequence: int
    received_at_us: int


@dataclass
class History:
    """A board's process on a clock of its own, and all that it has ever answered."""

    directory: Path
    rng: random.Random
    now_us: int = BEGIN_US
    latest_us: int = BEGIN_US
    sequence: int = 0
    epoch: int = 0
    closed: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    sent: dict[str, Sent] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    actor: BoardActor = field(init=False)

    # The clock

    def jump(self) -> None:
        """Move the clock, often to about where a window ends, or may be closed."""
        host = self.actor._host
        ends = [w.end_us for w in host.board.windows.values() if w.end_us] if host else []
        if ends and self.rng.random() < 0.4:
            graced_us = self.rng.choice([0, host.board.definition.grace_seconds * 1_000_000])
            self.now_us = self.rng.choice(ends) + graced_us + self.rng.choice([-1, 0, 1])
        else:
            self.now_us += self.rng.choice(JUMPS_US)
        self.seen["back" if self.now_us < self.latest_us else "ahead"] += 1
        self.latest_us = max(self.latest_us, self.now_us)

    @property
    def forgettable_us(self) -> int:
        """Before when a key was received that may have been forgotten, by any clock so far."""
        return self.latest_us - RETENTION_DAYS * DAY_US

    # The process

    async def begin(self) -> None:
        """Start the process; its epoch is after every one before, whatever the clock says."""
        self.actor = hosting(self.directory)
        await self.actor.open()
        assert self.actor._host is not None, "the board was not opened"
        epoch = ownership.last_epoch(self.directory)
        assert epoch > self.epoch, "an epoch went back"
        self.epoch = epoch

    async def restart(self) -> None:
        """End the process in order, or where it stands, lose what can be made again, and go on."""
        if self.rng.random() < 0.5:
            await self.actor.close(60)
        else:
            await self.actor.close(0)
        for lost in ("snapshots", "archives"):
            if self.rng.random() < 0.3:
                shutil.rmtree(self.directory / lost, ignore_errors=True)
        if self.rng.random() < 0.5:
            self.jump()
        self.seen["restart"] += 1
        await self.begin()

    async def write(self, question: Submit | Change) -> dict[str, Any]:
        (reply,) = decode_replies(await self.actor.write(encode([Ask(0, question)])))
        return read(reply)

    async def ask(self, question: Any) -> dict[str, Any]:
        """Ask, again while an archive that was lost is being made anew."""
        while True:
            (reply,) = decode_replies(await self.actor.read_slowly(encode([Ask(0, question)])))
            if reply.code != "board_unavailable":
                return read(reply)
            await asyncio.sleep(0.005)

    # Steps

    async def step(self) -> None:
        """Do one thing, and check what may never change."""
        await self.rng.choice([self.submit] * 6 + [self.move] * 4 + [self.restart, self.patch])()
        await self.check()

    async def move(self) -> None:
        """Move the clock, and let the process notice, as it does four times a second."""
        self.jump()
        await self.write(Change(False, self.now_us, b"{}", False))

    async def patch(self) -> None:
        grace_seconds = self.rng.choice([0, 300, 7 * 3_600])
        body = json.dumps({"grace_seconds": grace_seconds}).encode()
        await self.write(Change(False, self.now_us, body, False))

    async def submit(self) -> None:
        """Submit a few events, some of them again."""
        events = []
        for _ in range(self.rng.randint(1, 4)):
            if self.sent and self.rng.random() < 0.4:
                events.append(self.rng.choice(list(self.sent.values())).event)
            else:
                events.append(self.new_event())
        body = json.dumps({"events": events}).encode()
        answer = await self.write(Submit(False, self.now_us, body, False))
        for event, result in zip(events, answer["results"], strict=True):
            self.note(event, result)

    def new_event(self) -> dict[str, Any]:
        key = f"key {len(self.sent)}/{self.rng.random()}"
        event = {
            "member": self.rng.choice("abc"),
            "value": self.rng.randint(1, 9),
            "idempotency_key": key,
        }
        if self.rng.random() < 0.6:
            event["occurred_at"] = at(self.now_us + self.rng.choice(OCCASIONS_US))
        return event

    def note(self, event: dict[str, Any], result: dict[str, Any]) -> None:
        """Check one answer against what is known of the key, and remember it."""
        key, status = event["idempotency_key"], result.get("code", result["status"])
        self.seen[status] += 1
        before = self.sent.get(key)
        if before is None:
            assert status in ("applied", "event_too_old", "occurred_in_future")
        elif before.received_at_us >= self.forgettable_us:
            assert (status, result["sequence"]) == ("duplicate", before.sequence), "key forgotten"
        elif status == "duplicate":
            assert result["sequence"] == before.sequence
        else:
            self.seen["forgotten"] += 1
            assert "occurred_at" not in event or status != "applied", "a key counted twice"
        if status == "applied":
            self.sent[key] = Sent(event, result["sequence"], self.now_us)

    async def check(self) -> None:
        """Check that sequences only rise, and that what is closed stays as it was."""
        answer = await self.ask(Periods(False, self.now_us, None, 1_000, None))
        assert answer["sequence"] >= self.sequence, "a sequence went back"
        self.sequence = answer["sequence"]
        closed = {each["id"]: each for each in answer["periods"] if each["closed"]}
        assert self.closed.keys() <= closed.keys(), "a closed window opened again"
        for window, each in closed.items():
            # Until its archive is there, again, a digest is not at hand.
            members, digest = self.closed.get(window, (each["members"], None))
            digest = digest or each["digest"]
            found = (each["members"], each["digest"] or digest)
            assert found == (members, digest), f"{window} changed after it closed"
            self.closed[window] = found

    # The end

    async def scores(self) -> dict[str, dict[str, int]]:
        """Ask for every window's scores."""
        periods = await self.ask(Periods(False, self.now_us, None, 1_000, None))
        found = {}
        for window in [each["id"] for each in periods["periods"]]:
            top = await self.ask(Top(False, self.now_us, window, None, 100, None))
            found[window] = {entry["member"]: entry["score"] for entry in top["entries"]}
        return found

    async def end(self) -> None:
        """Compare the board with what its log says, whatever any clock says by then."""
        scores = await self.scores()
        assert self.actor._host is not None
        digest = self.actor._host.board.state_digest()
        await self.actor.close(0)
        assert scores == naive_scores(self.directory)
        for self.now_us in (0, BEGIN_US + 4_000 * DAY_US):
            assert replayed_digest(self.directory) == digest, "a replay depends on the clock"
        report = verify(self.directory)
        assert report.is_sound, report.findings


def replayed_digest(directory: Path) -> str:
    log = LmdbEventLog.open_readonly(directory / LOG)
    board = Board()
    for record in log.read():
        board.apply(record)
    log.close()
    return board.state_digest()


def naive_scores(directory: Path) -> dict[str, dict[str, int]]:
    """Sum the log's events by window: each counts in those that are open at its place in it."""
    log = LmdbEventLog.open_readonly(directory / LOG)
    bounds: dict[str, tuple[int | None, int | None]] = {}
    scores: dict[str, Counter[str]] = {}
    for record in log.read():
        if isinstance(record, WindowOpenedRecord):
            bounds[record.window] = (record.start_us, record.end_us)
        elif isinstance(record, WindowClosedRecord):
            del bounds[record.window]
        elif isinstance(record, EventsRecord):
            for opened in record.opened:
                assert opened.window not in scores, f"{opened.window} was opened again"
                bounds[opened.window] = (opened.start_us, opened.end_us)
            for event in map(record.row, range(record.count)):
                for window, (start_us, end_us) in bounds.items():
                    begun = start_us is None or start_us <= event.occurred_at_us
                    if begun and (end_us is None or event.occurred_at_us < end_us):
                        counted = scores.setdefault(window, Counter())
                        counted[event.member.decode()] += event.values[0]
    log.close()
    return {window: dict(counted) for window, counted in scores.items()}


def live_through(directory: Path, seed: int, patch: pytest.MonkeyPatch) -> Counter[str]:
    """Make a history from a seed and check it; returns what came up in it."""
    history = History(directory / "b", seeded(seed))
    real = time.time_ns
    patch.setattr(time, "time_ns", lambda: history.now_us * 1_000)
    options = msgspec.structs.replace(SMALL, archive_cache_bytes_max=1)
    create_board(history.directory, "b", define(**FIELDS), history.now_us, options)

    async def scenario() -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await history.begin()
            for _ in range(STEPS):
                await history.step()
            await history.end()

    try:
        asyncio.run(scenario())
    finally:
        patch.setattr(time, "time_ns", real)
    history.seen["closed"] = len(history.closed)
    return history.seen


def check_histories(seeds: range, patch: pytest.MonkeyPatch) -> None:
    """Live through histories; all together they must meet everything that can come up."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        with fast_directory() as directory:
            seen += live_through(directory, seed, patch)
    for what in (
        "ahead", "back", "restart", "closed", "forgotten",
        "applied", "duplicate", "event_too_old", "occurred_in_future",
    ):  # fmt: skip
        assert seen[what] > 0, f"no history had {what}: {seen}"


def test_clock_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    """No clock changes a closed window, a sequence, an epoch, or a key within its retention."""
    check_histories(range(12), monkeypatch)


@pytest.mark.durability
def test_many_clock_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for many more histories."""
    count = 100 * int(os.environ.get("TORTURE_SEEDS", "1"))
    check_histories(range(1_000, 1_000 + count), monkeypatch)


# Planted faults


def test_an_epoch_by_the_clock_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same check fails for owners that forget the epoch before theirs."""
    former = SimpleNamespace(epoch=-1, process=None)
    monkeypatch.setattr(ownership, "_end_former_owner", lambda *_: former)
    with pytest.raises(AssertionError, match=r"an epoch went back|was not opened"):
        check_histories(range(4), monkeypatch)


def test_a_window_that_opens_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same check fails for a board that forgets what it closed."""
    real = LoggedBoard.plan

    def forgetful(self: LoggedBoard, *arguments: Any) -> Any:
        self.board.closed.clear()
        return real(self, *arguments)

    monkeypatch.setattr(LoggedBoard, "plan", forgetful)
    with pytest.raises((AssertionError, KeyError)):
        check_histories(range(4), monkeypatch)


def test_a_key_that_is_forgotten_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same check fails for a board that forgets keys within their retention."""
    real = LoggedBoard.plan

    def forgetful(self: LoggedBoard, *arguments: Any) -> Any:
        self.board.keys = type(self.board.keys)(self.board.identity.hash_key)
        return real(self, *arguments)

    monkeypatch.setattr(LoggedBoard, "plan", forgetful)
    with pytest.raises(AssertionError, match=r"key forgotten|a key counted twice"):
        check_histories(range(4), monkeypatch)
