"""How a board's process closes windows by itself, and answers from what is on disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors import board_actor
from actors.board_actor import NOT_AT_HAND, BoardActor
from actors.creation import create_board
from actors.logged_board import LoggedBoard
from actors.offline import verify
from actors.questions import Ask, Periods, Question, Submit, Top, decode_replies, encode
from tests.actors.board_harness import (
    DAY_US,
    SMALL,
    define,
    event,
    instant,
    on_disk,
    read,
    statuses,
)
from tests.actors.test_board_actor import Gate, change, hosting, run

NOON_US = instant("2026-11-30T12:00:00Z")
MIDNIGHT_US = instant("2026-12-01T00:00:00Z")
DAY = "daily:2026-11-30"
FIELDS = {"aggregation": "sum", "periods": ["all_time", "daily"], "grace_seconds": 0}
MEMBERS = 1_000_000
BATCH = 5_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Give the board's process a clock to be moved by hand, which it looks at often."""
    clock = SimpleNamespace(now_us=NOON_US)
    monkeypatch.setattr(board_actor, "_now_us", lambda: clock.now_us)
    monkeypatch.setattr(board_actor, "TICK_SECONDS", 0.001)
    return clock


@pytest.fixture
def directory(tmp_path: Path, clock: SimpleNamespace) -> Iterator[Path]:
    """Make a board with a daily window that nobody played in; it must be sound at the end."""
    create_board(tmp_path / "b", "b", define(**FIELDS), NOON_US, SMALL)
    yield tmp_path / "b"
    assert verify(tmp_path / "b").is_sound


async def asked(method: Any, question: Question) -> dict[str, Any]:
    (reply,) = decode_replies(await method(encode([Ask(0, question)])))
    return read(reply)


def top_of(period: str, now_us: int, limit: int = 3) -> Top:
    return Top(False, now_us, period, None, limit, None)


async def write(actor: BoardActor, now_us: int, *bodies: Any) -> list[dict[str, Any]]:
    asks = [Ask(0, Submit(False, now_us, json.dumps(body).encode(), False)) for body in bodies]
    return list(map(read, decode_replies(await actor.write(encode(asks)))))


async def until(reached: Callable[[], bool]) -> None:
    """Return when the process, which tells nobody what it does by itself, has come so far."""
    while not reached():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def closed(actor: BoardActor, window: str = DAY) -> None:
    """Return when the board's process has closed a window by itself."""
    await until(lambda: window in actor._host.board.closed)


async def sealed(actor: BoardActor) -> None:
    """Return when all that is closed is sealed."""
    await until(lambda: not actor._host.board.unsealed and not actor._host.archives.missing)


def test_a_window_closes_by_itself(directory, clock):
    """When a window is due it closes without any request, once, and is sealed."""

    async def scenario():
        actor = hosting(directory)
        await write(actor, clock.now_us, event(key="k"))
        clock.now_us = MIDNIGHT_US - 1
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert DAY in actor._host.board.windows
        clock.now_us = MIDNIGHT_US
        await closed(actor)
        await sealed(actor)
        sequence = actor._host.board.sequence
        clock.now_us = NOON_US  # back again
        (late,) = await write(actor, clock.now_us, event(key="late"))
        assert (late["status"], [s["period"] for s in late["standings"]]) == (
            "applied", ["all_time"],
        )  # fmt: skip
        assert actor._host.board.sequence == sequence + 1
        await actor.close(0)

    run(scenario)


def test_what_came_due_is_closed_before_the_first_answer(directory, clock):
    """A board that is opened after a boundary has closed it before it reads or writes anything."""

    async def scenario():
        actor = hosting(directory)
        await write(actor, clock.now_us, event(key="k"))
        await actor.close(0)
        clock.now_us = MIDNIGHT_US
        reading, writing = hosting(directory), hosting(directory)
        answer = await asked(reading.read, top_of(DAY, clock.now_us))
        assert answer["period"]["closed"]
        await reading.close(0)
        clock.now_us = MIDNIGHT_US + DAY_US
        late = event(key="late", occurred_at=MIDNIGHT_US)
        (answer,) = await write(writing, clock.now_us, late)
        assert [standing["period"] for standing in answer["standings"]] == ["all_time"]
        await writing.close(0)

    run(scenario)


def test_a_change_answers_when_what_is_due_is_closed(directory, clock):
    """The PATCH from backfill to live answers after all that is due is closed."""

    async def scenario():
        actor = hosting(directory)
        await change(actor, mode="backfill", key_retention_days=None)
        for day in range(5):
            occurred_at = NOON_US - day * DAY_US
            await write(actor, clock.now_us, event(key=f"k{day}", occurred_at=occurred_at))
        clock.now_us = MIDNIGHT_US
        answer = await change(actor, mode="live")
        assert answer["members"] == {"all_time": 1}
        assert len(actor._host.board.closed) == 5
        assert answer["sequence"] == actor._host.board.sequence
        await actor.close(0)

    run(scenario)


def test_a_large_window_is_sealed_while_others_are_answered(tmp_path, clock):
    """While 50,000 members are sealed, reads of that window and of others, and writes, go on."""
    host = on_disk(tmp_path / "b", now_us=NOON_US, **FIELDS)
    for first in range(0, MEMBERS, BATCH):
        events = [event(f"m{n}", n % 1_000, f"k{n}") for n in range(first, first + BATCH)]
        assert set(statuses(host, *events, now_us=NOON_US)) == {"applied"}
    host.close()

    async def scenario():
        actor = hosting(tmp_path / "b")
        await actor.open()
        before = await asked(actor.read, top_of(DAY, clock.now_us, 1_000))
        gate = Gate(actor._host.archives, "seal", shut=True)
        clock.now_us = MIDNIGHT_US
        await closed(actor)
        await gate.entered()
        listing = asyncio.create_task(
            asked(actor.read_slowly, Periods(False, clock.now_us, "daily", 10, None))
        )
        for number in range(5):
            during = await asked(actor.read, top_of(DAY, clock.now_us, 1_000))
            assert during["entries"] == before["entries"]
            assert during["period"]["closed"]
            (answer,) = await write(actor, clock.now_us, event(key=f"next{number}"))
            assert [s["period"] for s in answer["standings"]] == ["all_time", "daily:2026-12-01"]
        assert not listing.done()
        assert DAY in actor._host.board.unsealed
        gate.release()
        (*_, item) = (await listing)["periods"]
        assert (item["id"], item["members"], len(item["digest"])) == (DAY, MEMBERS, 64)
        await sealed(actor)
        question = top_of(DAY, clock.now_us, 1_000)
        assert (await asked(actor.read, question))["code"] == NOT_AT_HAND
        after = await asked(actor.read_slowly, question)
        assert (after["entries"], after["members"]) == (before["entries"], MEMBERS)
        assert await asked(actor.read, question) == after
        await actor.close(0)

    run(scenario)
    assert verify(tmp_path / "b").is_sound


@pytest.mark.parametrize("damage", ["lost", "changed", "lost while open"])
def test_an_archive_is_made_again(damage, directory, clock):
    """A lost or damaged archive is unavailable until it is made again, with the same digest."""

    async def scenario():
        actor = hosting(directory)
        await write(actor, clock.now_us, event(key="k"), event("bo", 7, "l"))
        clock.now_us = MIDNIGHT_US
        await closed(actor)
        await sealed(actor)
        digest = actor._host.archives.digest(DAY, 1)
        (path,) = (directory / "archives").iterdir()
        if damage != "lost while open":
            await actor.close(0)
        if damage == "changed":
            path.write_bytes(path.read_bytes()[:-1] + b"?")
        else:
            path.unlink()
        if damage != "lost while open":
            actor = hosting(directory)
        # Sooner or later it answers again; until then it says that it cannot.
        answer = await asked(actor.read_slowly, top_of(DAY, clock.now_us))
        while "code" in answer:
            assert answer["code"] == "board_unavailable"
            await sealed(actor)
            answer = await asked(actor.read_slowly, top_of(DAY, clock.now_us))
        assert [entry["member"] for entry in answer["entries"]] == ["bo", "ada"]
        await sealed(actor)
        assert actor._host.archives.digest(DAY, 1) == digest
        assert list((directory / "archives").iterdir()) == [path]
        await actor.close(0)

    run(scenario)


def test_a_board_that_ends_before_it_sealed_seals_later(directory, clock, monkeypatch):
    """An archive that could not be written costs nothing: the next process writes it."""

    async def scenario():
        actor = hosting(directory)
        await write(actor, clock.now_us, event(key="k"))
        clock.now_us = MIDNIGHT_US

        def full(*_: object) -> str:
            raise OSError(28, "planted")

        with monkeypatch.context() as broken:
            broken.setattr(actor._host.archives, "seal", full)
            await closed(actor)
            assert (await asked(actor.read, top_of(DAY, clock.now_us)))["members"] == 1
            await actor.close(10)
        assert not (directory / "archives").exists()
        actor = hosting(directory)
        await actor.open()
        await sealed(actor)
        assert (await asked(actor.read_slowly, top_of(DAY, clock.now_us)))["members"] == 1
        await actor.close(0)

    run(scenario)
    host = LoggedBoard.open(directory, SMALL)
    assert host.archives.missing == set()
    host.close()


def test_expiring_beside_sealing_disturbs_neither(directory, clock):
    """Windows that expire while archives are written are removed after that, and end nothing."""

    async def scenario():
        actor = hosting(directory)
        await change(actor, mode="backfill", key_retention_days=None)
        days = 120
        history = [event(key=f"k{day}", occurred_at=NOON_US - day * DAY_US) for day in range(days)]
        (answer,) = await write(actor, NOON_US, {"events": history})
        assert answer["applied"] == days, answer
        clock.now_us = MIDNIGHT_US
        answer = await change(actor, mode="live")
        assert answer["mode"] == "live", answer
        assert len(actor._host.board.closed) == days
        for kept in range(days - 10, 0, -10):
            reply = await change(actor, keep_closed_periods=kept)
            assert reply["keep_closed_periods"] == kept
            await asyncio.sleep(0.002)
        await sealed(actor)
        await until(lambda: not actor._host.archives.expired)
        listed = await asked(actor.read_slowly, Periods(False, clock.now_us, "daily", 1_000, None))
        assert len(listed["periods"]) == 10
        assert all(period["digest"] for period in listed["periods"])
        await actor.close(0)
        assert len(list((directory / "archives").iterdir())) == 10

    run(scenario)


def test_a_board_opened_without_room_closes_once_there_is_some(directory, clock, monkeypatch):
    """A board that could not become its log's writer closes what is due when there is room."""
    with monkeypatch.context() as full:
        full.setattr("persistence.event_log.free_bytes", lambda _: 0)

        async def opened() -> BoardActor:
            actor = hosting(directory)
            await actor.open()
            return actor

        actor_of: list[BoardActor] = []

        async def scenario():
            actor_of.append(await opened())
            actor = actor_of[0]
            assert not actor._host.log.claimed
            (refused,) = await write(actor, NOON_US, event(key="k"))
            assert refused["code"] == "storage_full"
            full.undo()
            (applied,) = await write(actor, NOON_US, event(key="k"))
            assert applied["status"] == "applied"
            clock.now_us = MIDNIGHT_US
            await closed(actor)
            await actor.close(0)

        run(scenario)
