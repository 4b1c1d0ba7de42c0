"""The process of a board, without Ray: its batches, its reads, and what it does when disks fail."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from actors import board_actor, queries
from actors.board_actor import ActorOptions, BoardActor, OpenReport
from actors.creation import create_board
from actors.last_words import EXIT_COMMIT_FAILED
from actors.logged_board import LoggedBoard
from actors.offline import verify
from actors.questions import Ask, Change, Submit, Top, decode_replies, encode
from persistence import chained_log
from persistence.errors import StorageFullError
from tests.actors.board_harness import NOW_US, SMALL, define, event, exact, read, submit
from tests.persistence.processes import start

WAIT_SECONDS = 180  # what no machine needs, however busy


@pytest.fixture(autouse=True)
def _fixed_clock(monkeypatch):
    monkeypatch.setattr(board_actor, "_now_us", lambda: NOW_US)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    create_board(tmp_path / "b", "b", define(aggregation="sum"), NOW_US, SMALL)
    return tmp_path / "b"


def hosting(directory: Path, commit_events_max: int = 5_000, **board: Any) -> BoardActor:
    options = ActorOptions(msgspec.structs.replace(SMALL, **board), commit_events_max)
    return BoardActor(str(directory), msgspec.msgpack.encode(options))


def run(scenario: Callable[[], Any]) -> None:
    """Run a coroutine function to its end, which must come."""

    async def bounded() -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await scenario()

    asyncio.run(bounded())


async def write(actor: BoardActor, *bodies: Any) -> list[dict[str, Any]]:
    asks = [Ask(0, Submit(False, NOW_US, json.dumps(body).encode(), False)) for body in bodies]
    return list(map(read, decode_replies(await actor.write(encode(asks)))))


async def change(actor: BoardActor, **fields: Any) -> dict[str, Any]:
    question = Change(False, NOW_US, json.dumps(fields).encode(), False)
    (reply,) = decode_replies(await actor.write(encode([Ask(0, question)])))
    return read(reply)


async def top(actor: BoardActor, min_sequence: int = 0) -> dict[str, Any]:
    asks = [Ask(min_sequence, Top(False, NOW_US, None, None, 1_000, None))]
    (reply,) = decode_replies(await actor.read(encode(asks)))
    return read(reply)


class Gate:
    """Stands before a method: counts its calls, and holds them while it is shut."""

    def __init__(self, owner: object, method: str, shut: bool = False) -> None:
        self.calls = 0
        self._entered = threading.Event()
        self._open = threading.Event()
        if not shut:
            self._open.set()
        real = getattr(owner, method)

        def held(*arguments: Any) -> Any:
            self.calls += 1
            self._entered.set()
            assert self._open.wait(WAIT_SECONDS)
            return real(*arguments)

        setattr(owner, method, held)

    async def entered(self) -> None:
        """Return when a call stands at the gate."""
        assert await asyncio.to_thread(self._entered.wait, WAIT_SECONDS)

    def release(self) -> None:
        self._open.set()


async def during_a_commit(actor: BoardActor, gate: Gate, *work: Any) -> list[asyncio.Task[Any]]:
    """Start the first of some writes, and once its commit is at the gate the others behind it."""
    first = asyncio.create_task(work[0])
    await gate.entered()
    others = [asyncio.create_task(each) for each in work[1:]]
    await asyncio.sleep(0)
    assert len(actor._queue) == len(others)
    return [first, *others]


# Batches


@pytest.mark.parametrize(("commit_events_max", "commits"), [(5_000, 2), (10, 8)])
def test_what_gathers_during_a_commit_goes_out_together(directory, commit_events_max, commits):
    """64 concurrent writes need one commit and one more, or as few as the limit of one allows."""

    async def scenario():
        actor = hosting(directory, commit_events_max)
        await actor.open()
        gate = Gate(actor._host, "commit", shut=True)
        writes = (write(actor, event(key=str(number))) for number in range(64))
        tasks = await during_a_commit(actor, gate, *writes)
        gate.release()
        answers = [answer for (answer,) in await asyncio.gather(*tasks)]
        assert [answer["sequence"] for answer in answers] == list(range(3, 67))
        assert gate.calls == commits
        assert (await top(actor))["entries"][0]["score"] == 64
        await actor.close(0)

    run(scenario)


def test_a_change_takes_its_place_in_the_queue(directory):
    """A PATCH between submissions holds for those after it and not for those before."""

    async def scenario():
        actor = hosting(directory)
        await actor.open()
        gate = Gate(actor._host, "commit", shut=True)
        tasks = await during_a_commit(
            actor,
            gate,
            write(actor, event(key="j")),
            write(actor, event(key="k")),
            change(actor, sources=["s"]),
            write(actor, {"events": [event(key="l"), event(key="m", source="s")]}),
        )
        gate.release()
        (first,), (second,), changed, (batch,) = await asyncio.gather(*tasks)
        third, fourth = batch["results"]
        assert (first["status"], second["status"]) == ("applied", "applied")
        assert (changed["sources"], changed["sequence"]) == (["s"], 5)
        assert (third["code"], fourth["status"]) == ("source_not_allowed", "applied")
        assert gate.calls == 4
        await actor.close(0)

    run(scenario)


def test_a_request_without_shape_costs_no_commit(directory):
    """What is refused by itself is answered beside the others, and makes no commit of its own."""

    async def scenario():
        actor = hosting(directory)
        await actor.open()
        gate = Gate(actor._host, "commit")
        found = await write(actor, {"member": 1}, event(), event(key="k", value=2), [])
        assert [answer.get("code", answer["status"]) for answer in found] == [
            "invalid_field", "applied", "idempotency_conflict", "invalid_field",
        ]  # fmt: skip
        assert (await change(actor, colour=1))["code"] == "invalid_field"
        assert (await change(actor))["sequence"] == 3
        assert gate.calls == 1
        await actor.close(0)

    run(scenario)


def test_rubbish_does_not_end_the_board(directory):
    """MessagePack that no event is made of is refused, and the board goes on."""

    async def scenario():
        actor = hosting(directory)
        body = b"\x83\xa6member\xa1a\xafidempotency_key\xa1k\xa5value\xa1\xff"
        payload = encode([Ask(0, Submit(False, NOW_US, body, True))])
        (reply,) = decode_replies(await actor.write(payload))
        assert reply.code == "invalid_field"
        assert (await write(actor, event()))[0]["status"] == "applied"
        await actor.close(0)

    run(scenario)


# Reads


def test_reads_are_answered_while_a_commit_is_in_flight(directory):
    """A read does not wait for a commit, and does not see what is not yet on disk."""

    async def scenario():
        actor = hosting(directory)
        await actor.open()
        gate = Gate(actor._host, "commit", shut=True)
        writing = asyncio.create_task(write(actor, event()))
        await gate.entered()
        for _ in range(3):
            assert (await top(actor))["members"] == 0
        assert not writing.done()
        gate.release()
        await writing
        assert (await top(actor))["members"] == 1
        await actor.close(0)

    run(scenario)


def test_a_read_waits_for_a_sequence(directory):
    """min_sequence is not_yet until the board is there; waiting ends when it is, or in time."""

    async def scenario():
        actor = hosting(directory)
        assert (await top(actor, 2))["sequence"] == 2
        assert (await top(actor, 3))["code"] == "not_yet"
        await actor.wait_for(3, seconds=0.01)
        waiting = asyncio.create_task(actor.wait_for(3, seconds=WAIT_SECONDS))
        await write(actor, event())
        await waiting
        assert (await top(actor, 3))["members"] == 1
        await actor.close(0)

    run(scenario)


def test_one_broken_question_spoils_no_other(directory, monkeypatch):
    """Refused and failing questions are answered in their places; the others get their answers."""

    async def scenario():
        actor = hosting(directory)
        real = queries.answer
        bug = Top(False, NOW_US, None, None, 3, None)

        def answer(board: Any, sealed: Any, question: Any) -> bytes:
            if question == bug:
                raise ZeroDivisionError
            return real(board, sealed, question)

        monkeypatch.setattr(queries, "answer", answer)
        good = Top(False, NOW_US, None, None, 1, None)
        refused = Top(False, NOW_US, "daily", None, 1, None)
        asks = [Ask(0, question) for question in (good, bug, refused, good)]
        replies = decode_replies(await actor.read(encode(asks)))
        assert [reply.code for reply in replies] == ["", "internal_error", "period_not_found", ""]
        assert exact(replies[0].body) == exact(replies[3].body)
        await actor.close(0)

    run(scenario)


# Disks that fail

FAILING_BOARD = """
    import asyncio, json, sys
    from actors import board_actor
    from actors.logged_board import LoggedBoard
    from persistence.errors import CommitFailedError, FencedError
    from persistence.event_log import LmdbEventLog
    from tests.actors import test_board_actor as tests
    from tests.actors.board_harness import event

    directory, fault = sys.argv[1:]

    async def main():
        actor = tests.hosting(directory)
        (first,) = await tests.write(actor, event(key="first"))
        print("acknowledged", first["status"], flush=True)
        store, settle = LmdbEventLog._store, LoggedBoard.settle
        def fail(self, *arguments):
            if fault == "after":
                store(self, *arguments)
            raise FencedError("another owner") if fault == "fenced" else OSError("the disk failed")
        if fault == "bug":
            def fail_settling(self, planned):
                raise ZeroDivisionError
            LoggedBoard.settle = fail_settling
        else:
            LmdbEventLog._store = fail
        print("acknowledged", await tests.write(actor, event(key="second")), flush=True)

    asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("fault", "second"),
    [("before", "applied"), ("after", "duplicate"), ("fenced", "applied"), ("bug", "duplicate")],
)
def test_a_failed_commit_ends_the_process(fault, second, directory):
    """After a failed commit nothing is acknowledged: the process ends, the next one recovers."""
    process = start(FAILING_BOARD, directory, fault)
    try:
        printed, _ = process.communicate(timeout=WAIT_SECONDS)
    finally:
        process.kill()
    assert process.returncode == EXIT_COMMIT_FAILED == 74
    assert printed == "acknowledged applied\n"
    assert verify(directory).is_sound
    host = LoggedBoard.open(directory, SMALL)
    assert submit(host, event(key="first"))["status"] == "duplicate"
    assert submit(host, event(key="second"))["status"] == second
    host.close()


def test_a_full_disk_refuses_writes_only(directory, monkeypatch):
    """Without room writes are storage_full and reads go on; with room again the same key counts."""

    async def scenario():
        actor = hosting(directory)
        await write(actor, event(key="before"))

        def full(_bytes_needed: int) -> None:
            raise StorageFullError("the disk is full")

        monkeypatch.setattr(actor._host.log, "check_room", full)
        found = await write(actor, event(), {"events": [event("bo", key="l")]})
        assert [answer["code"] for answer in found] == ["storage_full"] * 2
        assert (await change(actor, sources=["s"]))["code"] == "storage_full"
        assert (await write(actor, event(key="before")))[0]["status"] == "duplicate"
        assert (await top(actor))["entries"][0]["score"] == 1
        monkeypatch.undo()
        (again,) = await write(actor, event())
        assert (again["status"], again["sequence"]) == ("applied", 4)
        await actor.close(0)
        assert verify(directory).is_sound

    run(scenario)


def test_a_key_that_cannot_be_confirmed_is_refused_alone(directory, monkeypatch, caplog):
    """A retry that needs a damaged record is refused; what is written beside it counts.

    The damage is logged once and verified once, however often it is hit.
    """
    lookups = []
    real = chained_log.decode_at

    def decode_at(first_sequence: int, *rest: Any) -> Any:
        lookups.append(first_sequence)
        return real(first_sequence, *rest)

    async def play() -> None:
        actor = hosting(directory)
        for tens in range(5):
            await write(actor, {"events": [event(key=f"old{tens}{ones}") for ones in range(10)]})
        assert await actor.close(WAIT_SECONDS)

    async def scenario():
        actor = hosting(directory)
        assert (await top(actor))["entries"][0]["score"] == 50
        monkeypatch.setattr(chained_log, "decode_at", decode_at)
        for again in range(2):
            batch = [*(event(key=f"old1{n}") for n in range(10)), event(key=f"new{again}")]
            alone, together, other = await write(
                actor,
                event(key="old15"),
                {"events": [*batch, event(key="old45")]},
                event(key=f"other{again}"),
            )
            assert alone["code"] == "board_unavailable"
            *refused, applied, duplicate = together["results"]
            assert [each["code"] for each in refused] == ["board_unavailable"] * 10
            assert (applied["status"], duplicate["status"]) == ("applied", "duplicate")
            assert other["status"] == "applied"
        assert (await top(actor))["entries"][0]["score"] == 54
        await actor.close(0)

    run(play)
    data = directory / "log" / "00000001" / "data.mdb"
    content = data.read_bytes()
    assert b"old15" in content
    data.write_bytes(content.replace(b"old15", b"old!5"))
    run(scenario)
    assert lookups.count(13) == 1
    (told,) = [each.message for each in caplog.records if "is damaged" in each.message]
    assert f"{data}: the record at sequence 13: " in told
    assert not verify(directory).is_sound


# Opening and closing


def test_a_board_that_cannot_be_opened_says_why_and_is_tried_again(directory, monkeypatch):
    """An unopened board answers board_unavailable, backs off twice as long each time, and opens."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(
        board_actor, "time", SimpleNamespace(monotonic=lambda: clock.now, time_ns=lambda: 0)
    )
    openings = []
    real = LoggedBoard.open
    monkeypatch.setattr(LoggedBoard, "open", lambda *each: openings.append(1) or real(*each))
    head = directory / "log" / "head"
    sound = head.read_bytes()
    head.write_bytes(bytes(len(sound)))

    async def scenario():
        actor = hosting(directory)
        report = msgspec.msgpack.decode(await actor.open(), type=OpenReport)
        assert "head" in report.failure
        for expected in (2, 4, 8, 16, 32, 60, 60):
            found = [await top(actor), *await write(actor, event())]
            assert {answer["code"] for answer in found} == {"board_unavailable"}
            assert {answer["retry_after_seconds"] for answer in found} == {expected}
            clock.now += expected - 0.001
            tries = len(openings)
            await top(actor)
            assert len(openings) == tries
            clock.now += 0.001
            await top(actor)
            assert len(openings) == tries + 1
        head.write_bytes(sound)
        assert (await top(actor))["code"] == "board_unavailable"
        clock.now += 60
        assert (await write(actor, event()))[0]["status"] == "applied"
        report = msgspec.msgpack.decode(await actor.open(), type=OpenReport)
        assert report.failure == ""
        assert "sequence 2" in report.recovered
        await actor.close(0)

    run(scenario)


def test_a_board_is_opened_once(directory, monkeypatch):
    """Many first requests at once open the board once."""
    openings = []
    real = LoggedBoard.open
    monkeypatch.setattr(LoggedBoard, "open", lambda *each: openings.append(1) or real(*each))

    async def scenario():
        actor = hosting(directory)
        await asyncio.gather(*(top(actor) for _ in range(10)), write(actor, event()), actor.open())
        assert len(openings) == 1
        await actor.close(0)

    run(scenario)
