"""A board's process at its socket: what it answers there, and what is left of it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from actors import board_actor
from actors.board_actor import ActorOptions, BoardActor
from actors.calls import (
    BoardLostError,
    connect_calls,
)
from actors.creation import create_board
from actors.questions import Ask, Submit, Top, decode_replies, encode
from tests.actors.board_harness import NOW_US, SMALL, define, event, read
from tests.actors.test_calls import run


@pytest.fixture
def path() -> Iterator[str]:
    """Name a socket: where tests' own directories are, a path may be longer than one may be."""
    with tempfile.TemporaryDirectory(prefix="calls-") as directory:
        yield f"{directory}/socket"


@pytest.fixture
def actor(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> BoardActor:
    monkeypatch.setattr(board_actor, "_now_us", lambda: NOW_US)
    create_board(tmp_path / "b", "b", define(aggregation="sum"), NOW_US, SMALL)
    options = ActorOptions(SMALL, 5_000, str(Path(path).parent))
    return BoardActor(str(tmp_path / "b"), msgspec.msgpack.encode(options))


def test_a_board_is_asked_over_its_socket(actor: BoardActor) -> None:
    """Every method answers there as it does otherwise, with the sequences that it was made at."""

    async def scenario() -> None:
        connection = await connect_calls(await actor.listen())
        top = encode([Ask(0, Top(False, NOW_US, None, None, 10, None))])
        body = json.dumps(event("ada", 5)).encode()
        # Nobody has opened it: the first call does, and knew of no sequence when it began.
        submission = encode([Ask(0, Submit(False, NOW_US, body, False))])
        written = await connection.call("write", submission)
        assert (written.since, written.until) == (0, 3)
        assert read(decode_replies(written.payload)[0])["status"] == "applied"
        for method in ("read", "read_slowly"):
            answer = await connection.call(method, top)
            assert (answer.since, answer.until) == (3, 3)
            assert read(decode_replies(answer.payload)[0])["sequence"] == 3
        assert (await connection.call("wait_for", encode((3, 30.0)))).payload == b""
        assert msgspec.msgpack.decode((await connection.call("measure")).payload)
        await connection.call("close", encode(0.0))
        connection.close()
        await connection.ended.wait()

    run(scenario)


def test_nothing_is_left_of_a_socket(actor: BoardActor, path: str) -> None:
    """A board that was put away leaves no file of its socket, and nobody reaches it any more."""
    directory = Path(path).parent

    async def scenario() -> None:
        where = await actor.listen()
        assert [str(file) for file in directory.iterdir()] == [where]
        connection = await connect_calls(where)
        await actor.open()
        await connection.call("close", encode(0.0))
        assert list(directory.iterdir()) == []
        with pytest.raises(BoardLostError):
            await connect_calls(where)
        connection.close()
        await connection.ended.wait()

    run(scenario)


def test_a_socket_left_by_another_is_replaced(actor: BoardActor, path: str) -> None:
    """A killed process leaves its socket; one that gets its number serves there all the same."""
    left = Path(path).with_name(f"{os.getpid()}.calls")
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(left))
    assert left.is_socket()

    async def scenario() -> None:
        connection = await connect_calls(await actor.listen())
        assert connection.path == str(left)
        assert (await connection.call("measure")).payload
        await connection.call("close", encode(0.0))
        connection.close()
        await connection.ended.wait()

    run(scenario)


def test_a_board_that_is_put_away_leaves_writes_to_the_next(actor: BoardActor) -> None:
    """A write that comes while the board is being put away ends with the process, unanswered."""

    async def scenario() -> None:
        connection = await connect_calls(await actor.listen())
        body = json.dumps(event("ada", 5)).encode()
        submission = encode([Ask(0, Submit(False, NOW_US, body, False))])
        actor._closing = True
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.call("write", submission), 0.2)
        await actor._close(encode(0.0))
        connection.close()

    run(scenario)
