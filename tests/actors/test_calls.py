"""Calls over a socket: each gets its own answer or learns that there is none, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from random import Random
from typing import Any

import pytest

from actors import calls
from actors.calls import (
    FRAME_BYTES_MAX,
    Answer,
    BoardLostError,
    CallFailedError,
    Calls,
    Method,
    connect_calls,
    serve_calls,
)
from tests.persistence.processes import start

WAIT_SECONDS = 60  # what no machine needs, however busy
HEAD = calls._HEAD
READ = calls._METHODS.index("read")
MIB = 1 << 20

SERVING = """
    import asyncio, sys
    from actors.calls import serve_calls

    async def never(_payload):
        print("called", flush=True)
        await asyncio.Future()

    async def echo(payload):
        return payload

    async def serve():
        await serve_calls(sys.argv[1], {"write": never, "read": echo}, lambda: 7)
        print("serving", flush=True)
        await asyncio.Future()

    asyncio.run(serve())
"""


@pytest.fixture
def path() -> Iterator[str]:
    """Name a socket: where tests' own directories are, a path may be longer than one may be."""
    with tempfile.TemporaryDirectory(prefix="calls-") as directory:
        yield f"{directory}/socket"


def run(scenario: Callable[[], Awaitable[Any]]) -> None:
    """Run a coroutine function to its end, which must come."""

    async def bounded() -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await scenario()

    asyncio.run(bounded())


async def echo(payload: bytes) -> bytes:
    return payload


@contextlib.asynccontextmanager
async def connected(
    path: str, methods: Mapping[str, Method], sequence: Callable[[], int] = lambda: 0
) -> AsyncIterator[Calls]:
    """Serve methods at a path, and connect to them."""
    server = await serve_calls(path, methods, sequence)
    connection = await connect_calls(path)
    try:
        yield connection
    finally:
        connection.close()
        server.close()
        await connection.ended.wait()


async def until(condition: Callable[[], Any]) -> None:
    while not condition():  # noqa: ASYNC110  (nobody tells when it holds)
        await asyncio.sleep(0.001)


# Frames


class Wire(asyncio.Transport):
    """Carries what is written during a turn of the loop to `far`, in pieces of `size` bytes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.far: asyncio.Protocol
        self.pieces = 0
        self._size = size
        self._written = b""

    def write(self, data: Any) -> None:
        if not self._written:
            asyncio.get_running_loop().call_soon(self._carry)
        self._written += data

    def _carry(self) -> None:
        data, self._written = self._written, b""
        for place in range(0, len(data), self._size):
            self.pieces += 1
            self.far.data_received(data[place : place + self._size])


def wired(methods: Mapping[str, Method], size: int) -> tuple[Calls, Wire, Wire]:
    """Connect a gateway's end and a board's; returns the former, and the wires there and back."""
    near, far = Calls(), calls._Answering(methods, lambda: 0, lambda: 0)
    there, back = Wire(size), Wire(size)
    there.far, back.far = far, near
    near.connection_made(there)
    far.connection_made(back)
    return near, there, back


@pytest.mark.parametrize("size", [1, 2, HEAD.size - 1, HEAD.size, HEAD.size + 1, 100, MIB])
def test_frames_arrive_however_they_are_cut(size: int) -> None:
    """Cut at every byte or many in one piece, each frame is read as it was written."""

    async def scenario() -> None:
        near, there, back = wired({"read": echo, "write": echo}, size)
        payloads = [bytes(range(length % 256)) * (1 + length % 3) for length in range(80)]
        answers = await asyncio.gather(
            *(near.call(("read", "write")[i % 2], each) for i, each in enumerate(payloads))
        )
        assert [answer.payload for answer in answers] == payloads
        carried = sum(HEAD.size + len(payload) for payload in payloads)
        assert there.pieces == -(-carried // size)
        assert back.pieces >= there.pieces
        assert (near._received, near._under_way) == (b"", {})

    run(scenario)


def test_large_payloads_arrive(path: str) -> None:
    """A payload far above what a socket holds goes both ways as it is, small ones beside it."""
    large = Random(1).randbytes(24 * MIB)  # noqa: S311  (it decides nothing)

    async def scenario() -> None:
        async with connected(path, {"read": echo}) as connection:
            found = await asyncio.gather(
                connection.call("read", large),
                *(connection.call("read", b"%d" % n) for n in range(50)),
                connection.call("read", large[::-1]),
            )
            assert found[0].payload == large
            assert found[-1].payload == large[::-1]
            assert [each.payload for each in found[1:-1]] == [b"%d" % n for n in range(50)]

    run(scenario)


def test_many_calls_are_answered_in_any_order(path: str) -> None:
    """Each of many calls under way gets its own answer, whichever comes first."""
    count = 500

    async def scenario() -> None:
        gates = [asyncio.Event() for _ in range(count)]
        begun = 0
        ended: list[int] = []

        async def wait(payload: bytes) -> bytes:
            nonlocal begun
            begun += 1
            await gates[int(payload)].wait()
            ended.append(int(payload))
            return payload

        async with connected(path, {"read": wait}) as connection:
            asking = [asyncio.create_task(connection.call("read", b"%d" % n)) for n in range(count)]
            await until(lambda: begun == count)
            order = Random(2).sample(range(count), count)  # noqa: S311  (it decides nothing)
            for number in order:
                gates[number].set()
                await asyncio.sleep(0)
            answers = await asyncio.gather(*asking)
            assert [answer.payload for answer in answers] == [b"%d" % n for n in range(count)]
            assert ended == order

    run(scenario)


def test_numbers_come_round() -> None:
    """A connection that has carried more calls than there are numbers goes on from the first."""

    async def scenario() -> None:
        near, _, _ = wired({"read": echo}, MIB)
        near._numbers = itertools.count((1 << 32) - 2)
        answers = await asyncio.gather(*(near.call("read", b"%d" % n) for n in range(4)))
        assert [answer.payload for answer in answers] == [b"0", b"1", b"2", b"3"]

    run(scenario)


def test_nothing_is_remembered_of_calls_that_were_answered() -> None:
    """A connection takes no more memory for all the calls that it has carried."""
    count = 20_000

    async def scenario() -> None:
        near, _, _ = wired({"read": echo}, MIB)

        async def carry() -> None:
            for _ in range(count):
                await near.call("read", b"x")

        await near.call("read", b"x")
        tracemalloc.start()
        try:
            await carry()
            grown, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert grown < 4 * count, f"{grown} bytes are left of {count} calls"

    run(scenario)


# What goes wrong


def test_who_gives_up_leaves_nothing_behind(path: str) -> None:
    """A late answer to a call that was given up is dropped; the connection carries others."""

    async def scenario() -> None:
        going = asyncio.Event()
        answered = 0

        async def wait(payload: bytes) -> bytes:
            nonlocal answered
            await going.wait()
            answered += 1
            return payload

        async with connected(path, {"write": wait, "read": echo}) as connection:
            asking = [asyncio.create_task(connection.call("write")) for _ in range(10)]
            assert (await connection.call("read", b"x")).payload == b"x"
            for task in asking[1:]:
                task.cancel()
            await asyncio.wait(asking[1:])
            assert len(connection._under_way) == 1
            going.set()
            assert (await asking[0]).payload == b""
            await until(lambda: answered == 10)  # given up by the caller, not by the board
            assert (await connection.call("read", b"y")).payload == b"y"
            assert connection._under_way == {}

    run(scenario)


def test_a_method_that_raises_fails_its_call_alone(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake of the program is told to who called and to the log; other calls go on."""

    async def scenario() -> None:
        async def fail(_payload: bytes) -> bytes:
            await asyncio.sleep(0)
            raise ZeroDivisionError("planted")

        async with connected(path, {"write": fail, "read": echo}) as connection:
            found = await asyncio.gather(
                connection.call("write"),
                connection.call("read", b"x"),
                connection.call("locate"),  # which gateways are asked, and boards are not
                return_exceptions=True,
            )
            assert isinstance(found[0], CallFailedError)
            assert "ZeroDivisionError('planted')" in str(found[0])
            assert found[1] == Answer(b"x", 0, 0)
            assert isinstance(found[2], CallFailedError)
            assert (await connection.call("read", b"y")).payload == b"y"

    run(scenario)
    assert "a call of write failed" in caplog.text
    assert "planted" in caplog.text


def test_a_name_that_is_none_is_sent_nowhere(path: str) -> None:
    """A method that does not exist is the caller's mistake, and nothing is left waiting for it."""

    async def scenario() -> None:
        async with connected(path, {"read": echo}) as connection:
            with pytest.raises(ValueError, match="not in tuple"):
                await connection.call("reed")
            assert connection._under_way == {}
            assert (await connection.call("read", b"x")).payload == b"x"

    run(scenario)


@pytest.mark.parametrize(
    "frame",
    [
        HEAD.pack(0, 1, len(calls._METHODS), 0, 0, 0),
        HEAD.pack(0, 1, 255, 0, 0, 0),
        HEAD.pack(FRAME_BYTES_MAX + 1, 1, READ, 0, 0, 0),
        HEAD.pack((1 << 32) - 1, 1, READ, 0, 0, 0) + b"x" * 100,
    ],
)
def test_what_is_no_call_ends_its_connection_alone(frame: bytes, path: str) -> None:
    """A board hangs up on an unknown method or too long a frame, and serves the others."""

    async def scenario() -> None:
        mistakes: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: mistakes.append(context)
        )
        async with connected(path, {"read": echo}) as connection:
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(HEAD.pack(1, 9, READ, 0, 0, 0) + b"x")
            answer = await reader.readexactly(HEAD.size + 1)
            assert answer == HEAD.pack(1, 9, 0, 0, 0, 0) + b"x"
            writer.write(frame)
            assert await reader.read() == b""
            writer.close()
            assert (await connection.call("read", b"y")).payload == b"y"
        assert mistakes == []

    run(scenario)


def test_too_long_an_answer_is_no_answer(path: str) -> None:
    """Who gets more than may be hangs up, and everyone who waits there learns of it."""

    async def scenario() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(2 * HEAD.size)
            writer.write(HEAD.pack(FRAME_BYTES_MAX + 1, 0, 0, 0, 0, 0))
            assert await reader.read() == b""
            writer.close()

        async with await asyncio.start_unix_server(answer, path):
            connection = await connect_calls(path)
            found = await asyncio.gather(
                connection.call("read"), connection.call("write"), return_exceptions=True
            )
            assert [type(each) for each in found] == [BoardLostError, BoardLostError]
            assert connection.closed

    run(scenario)


def test_the_end_of_a_process_fails_its_calls(path: str) -> None:
    """A killed process's calls under way fail, later ones at once, and nobody connects again."""
    process = start(SERVING, path)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert process.stdout.readline() == "serving\n"

        async def scenario() -> None:
            connection = await connect_calls(path)
            assert await connection.call("read", b"x") == Answer(b"x", 7, 7)
            asking = [asyncio.create_task(connection.call("write")) for _ in range(20)]
            for _ in asking:
                line = await asyncio.to_thread(process.stdout.readline)  # type: ignore[union-attr]
                assert line == "called\n"
            assert not any(task.done() for task in asking)
            process.kill()
            found = await asyncio.gather(*asking, return_exceptions=True)
            assert {type(each) for each in found} == {BoardLostError}
            await connection.ended.wait()
            assert connection.closed
            with pytest.raises(BoardLostError, match="has ended"):
                await connection.call("read", b"x")
            assert connection._under_way == {}
            await asyncio.to_thread(process.wait)
            with pytest.raises(BoardLostError, match="cannot be reached"):
                await connect_calls(path)

        run(scenario)
    finally:
        process.kill()
        process.communicate()


def test_a_call_between_hanging_up_and_its_notice_fails_too(path: str) -> None:
    """A call made after `close`, before the loop has said so, is not left waiting."""

    async def scenario() -> None:
        async with connected(path, {"read": echo}) as connection:
            connection.close()
            with pytest.raises(BoardLostError):
                await connection.call("read", b"x")

    run(scenario)


def test_nobody_listens_at_a_path_that_is_none(path: str) -> None:
    """Where no process listens yet, or any more, connecting says so as a lost board."""

    async def scenario() -> None:
        with pytest.raises(BoardLostError, match="cannot be reached"):
            await connect_calls(path)

    run(scenario)


# Sequences


def test_an_answer_says_between_which_sequences_it_was_made(path: str) -> None:
    """`since` is the board's sequence when the method began, `until` when it had its answer."""

    async def scenario() -> None:
        sequence = 10

        async def grow(payload: bytes) -> bytes:
            nonlocal sequence
            sequence += 1
            await asyncio.sleep(0.01)
            sequence += len(payload)
            return b""

        async with connected(path, {"write": grow, "read": echo}, lambda: sequence) as connection:
            assert await connection.call("read") == Answer(b"", 10, 10)
            assert await connection.call("write", b"abc") == Answer(b"", 10, 14)
            first, second = await asyncio.gather(
                connection.call("write", b"a"), connection.call("write", b"b")
            )
            assert (first.since, second.since) == (14, 15)
            assert (first.until, second.until) == (17, 18)
            sequence = (1 << 64) - 1
            assert (await connection.call("read")).until == (1 << 64) - 1

    run(scenario)
