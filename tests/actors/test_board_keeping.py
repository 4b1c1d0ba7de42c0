"""What a board's process does in the background, and how it puts its board away."""

from __future__ import annotations

import asyncio
import shutil
import threading
from types import SimpleNamespace
from typing import Any

from actors import board_actor
from actors.board_actor import BoardActor
from actors.creation import create_board
from actors.logged_board import LoggedBoard
from actors.questions import Ask, Top, decode_replies, encode
from tests.actors.board_harness import DAY_US, NOW_US, SMALL, at, define, event, read, submit
from tests.actors.test_board_actor import (
    WAIT_SECONDS,
    Gate,
    change,
    directory,
    during_a_commit,
    hosting,
    run,
    top,
    write,
)

__all__ = ["directory"]


async def snapshot_written(actor: BoardActor) -> None:
    """Return when the snapshot that the last write made due is written, or has failed."""
    await actor._writing
    await actor._keeper._snapshot


def test_a_snapshot_stops_neither_reads_nor_writes(directory):
    """While a snapshot is written, reads and writes go on; the next waits until it is done."""

    async def scenario():
        actor = hosting(directory, snapshot_events=3)
        await actor.open()
        gate = Gate(actor._host, "write_copy", shut=True)
        await write(actor, *(event(key=f"a{n}") for n in range(3)))
        await gate.entered()
        for number in range(8):
            (answer,) = await write(actor, event(key=f"b{number}"))
            assert answer["status"] == "applied"
            assert (await top(actor))["entries"][0]["score"] == 4 + number
        assert gate.calls == 1
        gate.release()
        await snapshot_written(actor)
        await write(actor, event(key="c"))
        await snapshot_written(actor)
        assert gate.calls == 2
        assert await actor.close(10)

    run(scenario)
    host = LoggedBoard.open(directory, SMALL)
    assert (host.report.snapshot_sequence, host.report.records_replayed) == (14, 0)
    assert submit(host, event(key="b3"))["status"] == "duplicate"
    host.close()


def test_a_snapshot_that_fails_is_tried_when_due_again(directory, monkeypatch):
    """A snapshot that cannot be written costs nothing but time: the board goes on."""

    async def scenario():
        actor = hosting(directory, snapshot_events=2)
        await actor.open()
        with monkeypatch.context() as broken:

            def fail(_copy):
                raise OSError("the disk is full")

            broken.setattr(actor._host, "write_copy", fail)
            await write(actor, event(key="a"), event(key="b"))
            await snapshot_written(actor)
        await write(actor, event(key="c"), event(key="d"))
        await snapshot_written(actor)
        assert actor._host.snapshot_current
        await actor.close(0)

    run(scenario)


def test_closing_finishes_what_is_queued(directory):
    """What waits when a board is put away is answered; what comes later is refused."""

    async def scenario():
        actor = hosting(directory)
        await actor.open()
        gate = Gate(actor._host, "commit", shut=True)
        writes = (write(actor, event(key=str(number))) for number in range(5))
        tasks = await during_a_commit(actor, gate, *writes, change(actor, sources=["s"]))
        closing = asyncio.create_task(actor.close(10))
        await asyncio.sleep(0)
        (late,) = await write(actor, event(key="late"))
        assert late["code"] == "board_unavailable"
        assert not closing.done()
        gate.release()
        *answers, changed = await asyncio.gather(*tasks)
        assert [answer["status"] for (answer,) in answers] == ["applied"] * 5
        assert changed["sources"] == ["s"]
        assert await closing

    run(scenario)
    host = LoggedBoard.open(directory, SMALL)
    assert host.board.sequence == 8
    assert host.report.records_replayed == 0
    host.close()


def test_closing_takes_no_longer_than_it_may(directory):
    """Without time for a snapshot a board is closed without one, says so, and loses nothing."""

    async def scenario():
        actor = hosting(directory)
        await write(actor, event())
        assert not await actor.close(0)

    run(scenario)
    host = LoggedBoard.open(directory, SMALL)
    assert (host.report.snapshot_sequence, host.report.events_replayed) == (0, 1)
    host.close()


def test_a_board_that_was_never_opened_closes(directory):
    """Closing before the first request opens nothing, and nothing is opened after it."""

    async def scenario():
        actor = hosting(directory)
        assert not await actor.close(10)
        assert (await top(actor))["code"] == "board_unavailable"
        assert (await write(actor, event()))[0]["code"] == "board_unavailable"

    run(scenario)
    LoggedBoard.open(directory, SMALL).close()


def test_what_closes_while_archives_are_made_again_is_sealed_too(tmp_path, monkeypatch):
    """A window that closes during a rebuild of lost archives gets its own right after it."""
    cups = [
        {"name": f"cup{day}", "start": at(NOW_US), "end": at(NOW_US + day * DAY_US)}
        for day in (1, 2)
    ]
    definition = define(periods=cups, grace_seconds=0)
    create_board(tmp_path / "b", "b", definition, NOW_US, SMALL)
    clock = SimpleNamespace(now_us=NOW_US + DAY_US)
    monkeypatch.setattr(board_actor, "_now_us", lambda: clock.now_us)

    async def scenario():
        actor = hosting(tmp_path / "b")
        await actor.open()
        await actor.close(60)
        shutil.rmtree(tmp_path / "b" / "archives")
        gates = []
        real = LoggedBoard.rebuild_archives

        def held(self: LoggedBoard, *arguments: Any) -> None:
            gates.append(threading.Event())
            assert gates[-1].wait(WAIT_SECONDS)
            real(self, *arguments)

        monkeypatch.setattr(LoggedBoard, "rebuild_archives", held)
        actor = hosting(tmp_path / "b")
        await actor.open()
        while not gates:  # noqa: ASYNC110  (the thread tells nobody that it waits)
            await asyncio.sleep(0.001)
        clock.now_us += DAY_US
        await change(actor)  # writes nothing, but closes what is due first
        assert set(actor._host.board.unsealed) == {"cup2"}
        gates[0].set()
        await actor._keeper._sealing
        assert actor._host.board.unsealed == {}
        assert len(list((tmp_path / "b" / "archives").iterdir())) == 2
        await actor.close(0)

    run(scenario)


def test_an_archive_that_damage_keeps_from_being_made_is_told_so(tmp_path, monkeypatch):
    """Where the log cannot make a lost archive again, the answer says so, and nobody tries on."""
    cup = {"name": "cup", "start": at(NOW_US), "end": at(NOW_US + DAY_US)}
    create_board(tmp_path / "b", "b", define(periods=[cup], grace_seconds=0), NOW_US, SMALL)
    clock = SimpleNamespace(now_us=NOW_US)
    monkeypatch.setattr(board_actor, "_now_us", lambda: clock.now_us)
    rebuilds = []
    real = LoggedBoard.rebuild_archives
    monkeypatch.setattr(
        LoggedBoard, "rebuild_archives", lambda *each: rebuilds.append(1) or real(*each)
    )

    async def ask(actor: BoardActor) -> dict[str, Any]:
        asks = [Ask(0, Top(False, clock.now_us, "cup", None, 10, None))]
        (reply,) = decode_replies(await actor.read_slowly(encode(asks)))
        return read(reply)

    async def play():
        actor = hosting(tmp_path / "b")
        await write(actor, event(key="legible"))
        clock.now_us += DAY_US
        await change(actor)
        await actor._keeper._sealing
        assert (await ask(actor))["members"] == 1
        assert await actor.close(WAIT_SECONDS)

    async def scenario():
        actor = hosting(tmp_path / "b")
        await actor.open()
        await actor._keeper._sealing
        for _ in range(3):
            answer = await ask(actor)
            assert answer["code"] == "board_unavailable"
            assert "files are damaged" in answer["detail"]
            actor._keeper.seal_soon()
        assert len(rebuilds) == 1
        await actor.close(0)

    run(play)
    data = tmp_path / "b" / "log" / "00000001" / "data.mdb"
    content = data.read_bytes()
    assert b"legible" in content
    data.write_bytes(content.replace(b"legible", b"illegib"))
    shutil.rmtree(tmp_path / "b" / "archives")
    run(scenario)
