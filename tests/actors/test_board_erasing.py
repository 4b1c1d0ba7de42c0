"""A board's process that takes a name off the disk while it is used, put away, and failing."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from pathlib import Path
from typing import Any

import pytest

from actors import keeper
from actors.board_actor import BoardActor
from actors.listing import read_listing
from actors.logged_board import LoggedBoard
from actors.offline import verify
from actors.questions import Ask, Audit, Erase, Remove, decode_replies, encode
from persistence import files
from persistence.errors import StorageFullError
from tests.actors.board_harness import NOW_US, SMALL, event, read
from tests.actors.test_board_actor import Gate, directory, hosting, run, top, write

__all__ = ["directory"]

NAME = "nobody-knows-her"


async def erase(actor: BoardActor, member: str = NAME) -> int:
    verdict = Erase(False, NOW_US, "mod", "she asked", None, member)
    (reply,) = decode_replies(await actor.write(encode([Ask(0, verdict)])))
    sequence: int = read(reply)["sequence"]
    return sequence


async def actions(actor: BoardActor) -> list[str]:
    """List what the audit holds, newest first."""
    asks = encode([Ask(0, Audit(False, NOW_US, 100, None))])
    (reply,) = decode_replies(await actor.read_slowly(asks))
    return [record["action"] for record in read(reply)["records"]]


async def erased(actor: BoardActor, names: int = 1) -> None:
    """Return when so many names are said to be gone."""
    while (await actions(actor)).count("erased") < names:  # noqa: ASYNC110  (the board tells nobody)
        await asyncio.sleep(0.01)


def owner_of(actor: BoardActor, step: str) -> object:
    """Give whose method a step of erasing is."""
    host = actor._host
    return next(each for each in (host, host.shown_log, host.log) if hasattr(each, step))


def is_on_disk(directory: Path) -> bool:
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a log that another has taken the place of
            if path.is_file() and NAME.encode() in path.read_bytes():
                return True
    return False


async def played(directory: Path, **options: Any) -> BoardActor:
    """Bring up a board with events of hers in several segments, and a snapshot."""
    actor = hosting(directory, **options)
    for number in range(30):
        await write(actor, event(NAME, number, f"hers-{number}"), event("ada", 1, f"a-{number}"))
    if actor._keeper._snapshot is not None:  # two threads would write one file
        await actor._keeper._snapshot
    actor._host.write_copy(actor._host.copy_state())
    assert is_on_disk(directory)
    return actor


@pytest.mark.parametrize("step", ["write_again", "remove_former", "write_copy"])
def test_reads_and_writes_go_on_while_a_name_is_taken_off_the_disk(directory, step):
    """Each long step holds up nobody, and what is written meanwhile is there at the end."""

    async def scenario():
        actor = await played(directory)
        gate = Gate(owner_of(actor, step), step, shut=True)
        await erase(actor)
        await gate.entered()
        for number in range(60):  # which fill a segment of their own
            (answer,) = await write(actor, event("bob", 1, f"b-{number}"))
            assert answer["status"] == "applied"
        entries = (await top(actor))["entries"]
        assert [entry["score"] for entry in entries] == [435, 60, 30]
        assert NAME not in repr(entries)
        gate.release()
        await erased(actor)
        assert not is_on_disk(directory)
        (answer,) = await write(actor, event("bob", 1, "b-0"))
        assert answer["status"] == "duplicate"
        await actor.close(0)

    run(scenario)
    assert verify(directory).is_sound


@pytest.mark.parametrize("step", ["seal_live", "write_again", "put_log_in_place", "write_copy"])
def test_a_board_that_is_put_away_erases_on_when_it_is_back(directory, step):
    """Putting a board away waits for no erasing; the next process begins it again by itself."""

    async def scenario():
        actor = await played(directory)
        gate = Gate(owner_of(actor, step), step, shut=True)
        await erase(actor)
        await gate.entered()
        closing = asyncio.create_task(actor.close(0))
        await asyncio.sleep(0.05)
        gate.release()
        await closing
        assert is_on_disk(directory) == (step in ("seal_live", "write_again"))
        actor = hosting(directory)
        await actor.open()
        await erased(actor)
        assert not is_on_disk(directory)
        assert [entry["score"] for entry in (await top(actor))["entries"]] == [435, 30]
        await actor.close(0)

    run(scenario)
    assert verify(directory).is_sound


@pytest.mark.parametrize("error", [OSError("no disk"), StorageFullError("no room")], ids=repr)
@pytest.mark.parametrize("step", ["write_again", "put_log_in_place", "write_copy"])
def test_erasing_that_fails_is_tried_again(directory, step, error, monkeypatch, caplog):
    """It costs the board nothing; what failed is logged, without the name."""
    monkeypatch.setattr(keeper, "ERASE_AGAIN_SECONDS", 0.0)

    async def scenario():
        actor = await played(directory)
        owner, failures = owner_of(actor, step), []
        real = getattr(owner, step)

        def fail_first(*arguments: Any) -> Any:
            if len(failures) < 2:
                failures.append(1)
                raise error
            return real(*arguments)

        setattr(owner, step, fail_first)
        await erase(actor)
        await erased(actor)
        assert len(failures) == 2
        assert not is_on_disk(directory)
        await actor.close(0)

    run(scenario)
    assert "erasing a member is tried again" in caplog.text
    assert NAME not in caplog.text
    assert verify(directory).is_sound


def test_an_erasure_that_comes_during_another_gets_a_round_of_its_own(directory):
    """Nothing is said to be gone that was erased after the log had been sealed for another."""

    async def scenario():
        actor = await played(directory)
        await write(actor, event("nobody-knows-him", 5, "his"))
        gate = Gate(actor._host.shown_log, "write_again", shut=True)
        await erase(actor)
        await gate.entered()
        await write(actor, event("nobody-knows-him", 6, "his second"))
        await erase(actor, "nobody-knows-him")
        gate.release()
        await erased(actor, 2)
        assert gate.calls == 2
        names = [path.read_bytes() for path in directory.rglob("*") if path.is_file()]
        assert not any(b"nobody-knows" in content for content in names)
        await actor.close(0)

    run(scenario)
    host = LoggedBoard.open(directory, SMALL)
    assert not host.shown_log.erasing
    host.close()


def test_snapshots_that_are_due_meanwhile_are_of_the_new_log(directory):
    """They hold up no write, and none of the former log is left behind the exchange."""

    async def scenario():
        actor = await played(directory, snapshot_events=5)
        gate = Gate(actor._host.shown_log, "write_again", shut=True)
        copies = Gate(actor._host, "write_copy", shut=True)
        await erase(actor)
        await gate.entered()
        for number in range(12):
            (answer,) = await write(actor, event("bob", 1, f"b-{number}"))
            assert answer["status"] == "applied"
        await copies.entered()
        gate.release()
        (answer,) = await write(actor, event("bob", 1, "while the exchange waits for a snapshot"))
        assert answer["status"] == "applied"
        assert is_on_disk(directory)
        copies.release()
        await erased(actor)
        assert not is_on_disk(directory)
        assert copies.calls > 1
        await actor.close(0)

    run(scenario)
    assert verify(directory).is_sound
    host = LoggedBoard.open(directory, SMALL)
    assert host.report.snapshots_skipped == ()
    assert host.report.snapshot_sequence > 0
    host.close()


def test_what_a_ruling_reads_holds_up_no_commit(directory):
    """A member's events are read before the ruling takes its turn; what comes meanwhile counts."""

    async def scenario():
        actor = await played(directory)
        gate = Gate(actor._host, "walk", shut=True)
        verdict = Remove(False, NOW_US, "mod", "a cheat", None, NAME)
        ruling = asyncio.create_task(actor.write(encode([Ask(0, verdict)])))
        await gate.entered()
        (answer,) = await write(actor, event(NAME, 1_000, "hers meanwhile"))
        assert answer["status"] == "applied"
        gate.release()
        (reply,) = decode_replies(await ruling)
        assert read(reply)["sequence"] > answer["sequence"]
        assert [entry["member"] for entry in (await top(actor))["entries"]] == ["ada"]
        await actor.close(0)

    run(scenario)
    assert verify(directory).is_sound


@pytest.mark.parametrize("committed", [False, True])
def test_the_listing_says_so_before_a_name_has_to_go(directory, committed):
    """Whatever ends the process then, the node knows of a board that has a name to erase."""

    async def scenario():
        actor = await played(directory)
        host = actor._host
        planned = host.plan_ruling(Erase(False, NOW_US, "mod", "she asked", None, NAME))
        if committed:
            host.commit([planned.record])
        assert read_listing(directory).erasing
        await actor.close(0)

    run(scenario)
    host = LoggedBoard.open(directory, SMALL)
    assert host.shown_log.erasing == read_listing(directory).erasing == committed
    host.close()


def test_a_file_system_that_cannot_exchange_is_found_out_first(directory, monkeypatch, caplog):
    """Nothing is sealed or written for a log that could not be put in its place."""
    monkeypatch.setattr(keeper, "ERASE_AGAIN_SECONDS", 0.0)
    refusals = []

    def refuse(*_: Path) -> None:
        refusals.append(1)
        raise OSError(errno.EINVAL, "cannot exchange")

    async def scenario():
        actor = await played(directory)
        segments = len(actor._host.log.segments)
        with monkeypatch.context() as without:
            without.setattr(files, "exchange", refuse)
            await erase(actor)
            while len(refusals) < 3:  # noqa: ASYNC110  (the board tells nobody)
                await asyncio.sleep(0.01)
            assert len(actor._host.log.segments) == segments
        await erased(actor)
        await actor.close(0)

    run(scenario)
    assert "cannot exchange" in caplog.text
    assert not is_on_disk(directory)
