"""What a board's process counts of its work."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from actors import board_actor, measures
from actors.board_actor import BoardActor
from actors.creation import create_board
from actors.measures import SIZES, Histogram, Measures
from actors.questions import Ask, OpenDispute, Submit, decode_replies, encode
from persistence.errors import StorageFullError
from tests.actors.board_harness import DAY_US, NOW_US, SMALL, at, define, event, read
from tests.actors.test_board_actor import (
    Gate,
    change,
    directory,
    during_a_commit,
    hosting,
    run,
    write,
)

__all__ = ["directory"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now_us=NOW_US)
    monkeypatch.setattr(board_actor, "_now_us", lambda: made.now_us)
    return made


async def measured(actor: BoardActor) -> Measures:
    return msgspec.msgpack.decode(await actor.measure(), type=Measures)


def refusals(found: Measures) -> dict[str, int]:
    """Give the codes that were counted; those that may come are there from the start, at zero."""
    return {code: count for code, count in found.refused.items() if count}


def test_a_value_falls_into_the_first_bucket_that_reaches_it():
    """A value on a bound belongs below it, one beyond the last bound to the last bucket."""
    histogram = Histogram.over((1, 2, 4))
    for value in (0, 1, 2, 3, 4, 5):
        histogram.add(value)
    histogram.add(2, times=3)
    assert histogram.counts == [2, 4, 2, 1]
    assert histogram.total == 21


def test_every_event_is_counted_as_what_became_of_it(directory, clock):
    """Applied, repeated and refused events are told apart, alone and in batches."""

    async def scenario():
        actor = hosting(directory)
        await write(actor, event(key="a"), {"events": [event(key="b"), event(key="c")]})
        await write(actor, event(key="a"), {"events": [event(key="b"), event(key="d")]})
        await write(
            actor,
            event(value=2, key="a"),
            {"events": [event(value=0.5, key="e"), event(value=7, key="b"), event(key="f")]},
        )
        found = await measured(actor)
        assert (found.applied, found.duplicates) == (5, 2)
        assert refusals(found) == {"idempotency_conflict": 2, "value_precision": 1}
        assert sum(found.commit_events.counts) == 3
        assert found.commit_events.total == 5
        assert sum(found.commit_seconds.counts) == 3
        assert found.commit_seconds.total > 0
        await actor.close(0)

    run(scenario)


def test_the_lag_of_an_event_is_from_its_receipt_until_it_is_visible(directory, clock):
    """Each event that counts has its own lag; repetitions have none, and no lag is negative."""

    async def scenario():
        actor = hosting(directory)
        clock.now_us = NOW_US + 30_000
        await write(actor, event(key="a"), {"events": [event(key="b"), event(key="c")]})
        await write(actor, event(key="a"))
        clock.now_us = NOW_US - 1
        await write(actor, {"events": [event(key="b"), event(key="d")]})
        lag = (await measured(actor)).lag_seconds
        assert sum(lag.counts) == 4
        assert lag.counts[0] == 1
        assert lag.total == pytest.approx(0.09)
        await actor.close(0)

    run(scenario)


def test_a_batch_that_finds_no_room_is_counted_as_refused(directory, clock, monkeypatch):
    """On a full disk every event of a batch is refused, and nothing else is counted of it."""

    async def scenario():
        actor = hosting(directory)
        await write(actor, event(key="before"))

        def full(_bytes_needed: int) -> None:
            raise StorageFullError("the disk is full")

        monkeypatch.setattr(actor._host.log, "check_room", full)
        await write(actor, {"events": [event(key="a"), event(key="b")]}, event(key="c"))
        found = await measured(actor)
        assert (found.applied, refusals(found)) == (1, {"storage_full": 3})
        await actor.close(0)

    run(scenario)


def test_a_damaged_record_is_counted_once(directory, clock):
    """However often a damaged record is come upon, it is one."""

    async def play():
        actor = hosting(directory)
        await write(actor, event(key="legible"))
        await write(actor, event(key="behind"))
        assert await actor.close(60)

    async def scenario():
        actor = hosting(directory)
        for _ in range(3):
            (answer,) = await write(actor, event(key="legible"))
            assert answer["code"] == "board_unavailable"
        found = await measured(actor)
        assert found.damaged_records == 1
        assert refusals(found) == {"board_unavailable": 3}
        await actor.close(0)

    run(play)
    data = directory / "log" / "00000001" / "data.mdb"
    content = data.read_bytes()
    assert b"legible" in content
    data.write_bytes(content.replace(b"legible", b"illegib"))
    run(scenario)


def test_the_state_is_as_the_board_is(directory, clock):
    """Members, windows, keys, disputes and what no snapshot holds are those of the board."""

    async def scenario():
        actor = hosting(directory)
        assert (await measured(actor)).state is None
        await write(actor, *(event(f"m{n}", key=str(n)) for n in range(5)))
        dispute = OpenDispute(False, NOW_US, "ada", "odd", None, 3)
        (reply,) = decode_replies(await actor.write(encode([Ask(0, dispute)])))
        assert read(reply)["status"] == "open"
        board = actor._host.board
        state = (await measured(actor)).state
        assert (state.sequence, state.members, state.entries, state.keys) == (8, 5, 5, 5)
        assert (state.open_windows, state.closed_windows, state.unsealed_windows) == (1, 0, 0)
        assert state.sequences_behind_snapshot == board.sequence
        assert state.snapshot_age_seconds is None
        assert state.disputes == {"open": 1, "upheld": 0, "rejected": 0}
        assert (state.erasing, state.queued_requests, state.queued_events) == (0, 0, 0)
        assert state.state_bytes == board.nbytes
        await actor.close(0)

    run(scenario)


def test_what_waits_for_a_commit_is_seen(directory, clock):
    """The queue of a board that commits is counted in requests and in events."""

    async def scenario():
        actor = hosting(directory)
        await actor.open()
        gate = Gate(actor._host, "commit", shut=True)
        batch = {"events": [event(key=f"b{n}") for n in range(7)]}
        tasks = await during_a_commit(
            actor, gate, write(actor, event(key="a")), write(actor, batch), write(actor, batch)
        )
        state = (await measured(actor)).state
        assert (state.queued_requests, state.queued_events) == (2, 14)
        gate.release()
        await asyncio.gather(*tasks)
        await actor.close(0)

    run(scenario)


def test_snapshots_and_recoveries_are_measured(directory, clock, monkeypatch):
    """A snapshot says how long it took and when it was; the next process what it replayed."""

    async def fill():
        actor = hosting(directory, snapshot_events=3)
        await write(actor, *(event(key=str(n)) for n in range(3)))
        await actor._writing
        await actor._keeper._snapshot
        found = await measured(actor)
        assert sum(found.copy_seconds.counts) == sum(found.write_seconds.counts) == 1
        assert found.snapshot_failures == 0
        assert found.state.sequences_behind_snapshot == 0
        assert found.resident_bytes > 1 << 20

        def fail(_copy: Any) -> None:
            raise OSError("the disk is full")

        monkeypatch.setattr(actor._host, "write_copy", fail)
        await write(actor, *(event(key=f"late{n}") for n in range(4)))
        await actor._writing
        await actor._keeper._snapshot
        found = await measured(actor)
        assert (found.snapshot_failures, sum(found.write_seconds.counts)) == (1, 1)
        assert found.state.sequences_behind_snapshot == 4
        await actor.close(0)

    async def recover():
        actor = hosting(directory)
        await actor.open()
        found = await measured(actor)
        assert (found.replayed_events, found.applied) == (4, 0)
        assert found.load_seconds > 0
        (path,) = (directory / "snapshots").iterdir()
        assert found.snapshot_at_us == path.stat().st_mtime_ns // 1_000
        clock.now_us = found.snapshot_at_us + 5_000_000
        assert (await measured(actor)).state.snapshot_age_seconds == 5.0
        await actor.close(0)

    run(fill)
    run(recover)


def test_making_lost_archives_again_is_measured(tmp_path, clock):
    """Work that a replay of the log does in the background is counted when it is done."""
    cup = {"name": "cup", "start": at(NOW_US), "end": at(NOW_US + DAY_US)}
    create_board(tmp_path / "b", "b", define(periods=[cup], grace_seconds=0), NOW_US, SMALL)

    async def scenario():
        for archives_lost in (False, True):
            actor = hosting(tmp_path / "b")
            await actor.open()
            if not archives_lost:
                await write(actor, event(key="a"))
                clock.now_us += DAY_US
                await change(actor)
            await actor._keeper._sealing
            found = await measured(actor)
            assert sum(found.rebuild_seconds.counts) == int(archives_lost)
            assert (found.state.closed_windows, found.state.unsealed_windows) == (1, 0)
            await actor.close(60)
            shutil.rmtree(tmp_path / "b" / "archives")

    run(scenario)


def test_a_board_that_cannot_be_opened_is_measured_too(directory, clock):
    """A process without an open board answers, and says that it has none."""
    head = directory / "log" / "head"
    head.write_bytes(bytes(len(head.read_bytes())))

    async def scenario():
        actor = hosting(directory)
        assert b"head" in await actor.open()
        found = await measured(actor)
        assert found.state is None
        assert found.resident_bytes > 0
        await actor.close(0)

    run(scenario)


def test_measures_cross_to_the_gateway_whole():
    """What is decoded is what was encoded, bounds of buckets included."""
    sent = Measures(applied=3, refused={"period_closed": 2})
    sent.commit_events.add(4_000)
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=Measures)
    assert msgspec.to_builtins(received) == msgspec.to_builtins(sent)
    assert list(received.commit_events.bounds) == list(SIZES)


def test_a_board_without_snapshots_has_no_time_of_one(tmp_path: Path):
    """Where no snapshot is there is no age, rather than a wrong one."""
    assert measures.snapshot_time_us(tmp_path) is None


def test_a_body_that_is_none_is_not_counted_as_events(directory, clock):
    """A body that is refused as a whole never reaches a commit; the gateway counts its refusal."""

    async def scenario():
        actor = hosting(directory)
        asks = [Ask(0, Submit(False, NOW_US, b"{", False))]
        (answer,) = map(read, decode_replies(await actor.write(encode(asks))))
        assert answer["code"] == "malformed_body"
        found = await measured(actor)
        assert (found.applied, found.duplicates, refusals(found)) == (0, 0, {})
        assert sum(found.commit_seconds.counts) == 0
        await actor.close(0)

    run(scenario)
