"""Clients that send or read slowly, or never: each is given up in time, and none holds much."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast
from unittest.mock import Mock

import pytest
import uvloop

from actors.questions import Question
from node.config import KIB, MIB
from node.gateway import Gateway
from node.load import Load
from node.protocol import READ_BYTES, Server
from node.refusals import WRITTEN_AT_ONCE
from node.slow_readers import SlowReaders
from tests.node.fake_boards import FakeBoards, Raw, call, check_problem, exchange, serving

HEAD = b"GET /v1/boards/b/top HTTP/1.1\r\nHost: x\r\n\r\n"
POST = (
    b"POST /v1/boards/b/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)
LARGE = b'"' + b"x" * (8 * MIB) + b'"'  # more than two kernels' buffers take
SECONDS_MAX = 20.0  # for what must come about at all


class LargeBoards(FakeBoards):
    """Boards whose every answer is large."""

    async def ask(self, board: str, question: Question, min_sequence: int | None) -> bytes:
        await super().ask(board, question, min_sequence)
        return LARGE


def slow_readers(gateway: Gateway) -> SlowReaders:
    assert gateway._runner is not None
    return cast("Server", gateway._runner.server).slow_readers


def load(gateway: Gateway) -> Load:
    return gateway._load


async def until(condition: Callable[[], bool], _what: str) -> None:
    """Wait for something that must come about."""
    async with asyncio.timeout(SECONDS_MAX):
        while not condition():  # noqa: ASYNC110  (what is waited for is not this test's)
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def connected(
    gateway: Gateway, receive_bytes: int | None = None
) -> AsyncIterator[socket.socket]:
    """Connect a socket that reads nothing by itself, with a small buffer where one is named."""
    with socket.socket() as client:
        if receive_bytes is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", gateway.port))
        yield client


async def received(client: socket.socket) -> bytes:
    """Read until the server hangs up, however it does."""
    data = b""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(SECONDS_MAX):
            while part := await loop.sock_recv(client, 1 << 20):
                data += part
    return data


async def dribble(client: socket.socket, data: bytes) -> bytes:
    """Send a byte now and then until the server has had enough; returns what it answered."""
    loop = asyncio.get_running_loop()

    async def send() -> None:
        with contextlib.suppress(ConnectionError):
            for place in range(len(data)):
                await loop.sock_sendall(client, data[place : place + 1])
                await asyncio.sleep(0.02)

    sending = asyncio.create_task(send())
    try:
        return await received(client)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


def run(
    act: Callable[[Gateway], Awaitable[Any]], boards: FakeBoards | None = None, **settings: Any
) -> Any:
    """Do something with a gateway; afterwards it must answer, and hold nothing any more."""

    async def within() -> Any:
        async with serving(boards or FakeBoards(), **settings) as gateway:
            result = await act(gateway)
            assert (await call(gateway.port, "GET", "/healthz")).status == 200
            await until(lambda: load(gateway).requests == 0, "no request is left")
            assert load(gateway).body_bytes == 0
            await until(lambda: slow_readers(gateway).unsent_bytes == 0, "no answer is left")
            return result

    return uvloop.run(within())  # the loop that a node runs on


# Slow to send


@pytest.mark.parametrize("before", [b"", HEAD])
def test_a_dribbled_head_is_given_up(before: bytes) -> None:
    """A head that comes byte by byte is hung up on in time, the first and every later one."""

    async def act(gateway: Gateway) -> bytes:
        async with connected(gateway) as client:
            if before:
                await asyncio.get_running_loop().sock_sendall(client, before)
            return await dribble(client, b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 5_000)

    answered = run(act, header_seconds_max=0.3, keepalive_seconds=60)
    assert answered.count(b"HTTP/1.1 ") == bool(before)


def test_a_late_head_spares_the_request_before_it() -> None:
    """A request that is being answered gets its answer, though the next one's head is late."""

    async def act(gateway: Gateway) -> bytes:
        async with connected(gateway) as client:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(client, HEAD)
            await until(lambda: load(gateway).requests == 1, "it is under way")
            await loop.sock_sendall(client, b"GET /heal")
            return await received(client)

    boards = FakeBoards()
    boards.behave = lambda: asyncio.sleep(0.5)
    assert run(act, boards, header_seconds_max=0.1).startswith(b"HTTP/1.1 200")


def test_a_dribbled_body_is_given_up() -> None:
    """A body that comes byte by byte is 408 in time, however steadily it comes."""

    async def act(gateway: Gateway) -> bytes:
        async with connected(gateway) as client:
            return await dribble(client, POST % 5_000 + b" " * 5_000)

    boards = FakeBoards()
    settings = {"header_seconds_max": 20, "body_seconds_max": 0.3, "linger_seconds": 0.1}
    check_problem(Raw(run(act, boards, **settings)), 408, "request_timeout")
    assert boards.calls == []


@pytest.mark.parametrize("ends", [True, False])
def test_a_head_is_bounded_as_a_whole(ends: bool) -> None:
    """Headers that are short and few enough, but too much together, are 431 at the bound."""
    line = b"X-Filler: " + b"x" * 1_000 + b"\r\n"
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    request = head + 20 * line + b"\r\n" * ends

    async def act(gateway: Gateway) -> Raw:
        return await exchange(gateway.port, request)

    check_problem(run(act, head_bytes_max=16 * KIB, headers_max=64), 431, "headers_too_large")
    if ends:
        assert run(act, head_bytes_max=32 * KIB, headers_max=64).status == 200


def test_bodies_are_bounded_together() -> None:
    """Bodies take their bound of memory at most, until they are answered; the next is 503."""

    async def act(gateway: Gateway) -> tuple[Raw, Raw]:
        body = b" " * 60_000
        async with connected(gateway) as slow:
            await asyncio.get_running_loop().sock_sendall(slow, POST % 60_000 + body[1:])
            await until(lambda: load(gateway).body_bytes == 59_999, "the bytes are counted")
            refused = await call(gateway.port, "POST", "/v1/boards/b/events", body)
            assert load(gateway).body_bytes == 59_999
            await asyncio.get_running_loop().sock_sendall(slow, b" ")
            return refused, Raw(await received(slow))

    boards = FakeBoards()
    refused, accepted = run(act, boards, bodies_bytes_max=100_000, body_bytes_max=90_000)
    check_problem(refused, 503, "overloaded")
    assert accepted.status == 200
    assert len(boards.calls) == 1


# Slow to read


@pytest.mark.parametrize("reads", [False, True])
def test_an_answer_nobody_takes_is_given_up(reads: bool) -> None:
    """A client that reads nothing, or a little now and then, is hung up on in time."""

    async def act(gateway: Gateway) -> int:
        loop = asyncio.get_running_loop()
        async with connected(gateway, 16 * KIB) as client:
            await loop.sock_sendall(client, HEAD)
            await until(lambda: slow_readers(gateway).unsent_bytes > 0, "the answer waits")
            size = 0
            with contextlib.suppress(ConnectionError):
                while slow_readers(gateway).hung_up == 0:
                    await asyncio.sleep(0.02)
                    size += len(await loop.sock_recv(client, 1_000)) if reads else 0
            return size

    assert run(act, LargeBoards(), answer_seconds_max=0.5) < len(LARGE)


def test_a_slow_reader_in_time_gets_everything() -> None:
    """An answer that waits for its client arrives as a whole once it is read."""

    async def act(gateway: Gateway) -> bytes:
        async with connected(gateway, 16 * KIB) as client:
            closing = HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
            await asyncio.get_running_loop().sock_sendall(client, closing)
            await until(lambda: slow_readers(gateway).unsent_bytes > 0, "the answer waits")
            assert (await call(gateway.port, "GET", "/healthz")).status == 200
            return await received(client)

    assert Raw(run(act, LargeBoards())).body == LARGE


def test_waiting_answers_are_bounded_together() -> None:
    """Beyond their bound of memory the answers that have waited longest are given up."""

    async def act(gateway: Gateway) -> None:
        readers = slow_readers(gateway)
        loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as stack:
            for number in range(1, 11):
                client = await stack.enter_async_context(connected(gateway, 16 * KIB))
                await loop.sock_sendall(client, HEAD)
                await until(
                    lambda n=number: len(readers._waiting) + readers.hung_up == n, "it waits"
                )
                assert readers.unsent_bytes <= 20 * MIB
            assert readers.hung_up >= 3
            # The newest is there still, and is answered in full.
            data = b""
            while len(data) < len(LARGE):
                data += await asyncio.wait_for(loop.sock_recv(client, 1 << 20), SECONDS_MAX)
            assert data.startswith(b"HTTP/1.1 200")

    run(act, LargeBoards(), answers_bytes_max=20 * MIB)


def test_who_pipelines_and_never_reads_is_not_read_from() -> None:
    """Requests behind an answer that nobody takes stay in the kernel, and cost nothing here."""

    async def act(gateway: Gateway) -> None:
        loop = asyncio.get_running_loop()
        async with connected(gateway, 16 * KIB) as client:
            sending = asyncio.create_task(loop.sock_sendall(client, HEAD * 200_000))
            await until(lambda: slow_readers(gateway).unsent_bytes > 0, "the answer waits")
            await asyncio.sleep(0.2)
            assert not sending.done()
            assert len(boards.calls) == 1
            await until(lambda: slow_readers(gateway).hung_up == 1, "it is hung up on")
            with pytest.raises(ConnectionError):
                await sending

    boards = LargeBoards()
    run(act, boards, answer_seconds_max=1.0)


@pytest.mark.parametrize("behind", [POST % MIB + b" " * MIB, HEAD * 20_000])
def test_little_is_read_ahead(behind: bytes) -> None:
    """While a request is answered, one more is read at most, and no more of its body than waits."""

    async def act(gateway: Gateway) -> None:
        loop = asyncio.get_running_loop()
        async with connected(gateway) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * KIB)
            sending = asyncio.create_task(loop.sock_sendall(client, HEAD + behind * 50))
            await until(lambda: len(boards.calls) == 1, "the first is being answered")
            await asyncio.sleep(0.2)
            assert not sending.done()
            (connection,) = cast("Any", gateway._runner).server.connections
            ahead = connection._messages
            assert len(ahead) == 1
            assert ahead[0][1].total_bytes <= 4 * READ_BYTES
            assert load(gateway).body_bytes == 0
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        release.set()

    release = asyncio.Event()
    boards = FakeBoards()
    boards.behave = release.wait
    run(act, boards)


def test_a_half_closed_connection_is_let_go() -> None:
    """A client that has said it sends no more is let go, in the midst of whatever it was."""

    async def act(gateway: Gateway) -> None:
        for sent in (b"", HEAD[:20], HEAD, POST % 100 + b"{"):
            async with connected(gateway) as client:
                await asyncio.get_running_loop().sock_sendall(client, sent)
                client.shutdown(socket.SHUT_WR)
                await received(client)

    run(act, keepalive_seconds=60, header_seconds_max=60, body_seconds_max=60)


# Too many at once


@pytest.mark.parametrize("whole", [True, False])
def test_requests_are_bounded_for_the_node(whole: bool) -> None:
    """Beyond the bound every call is 503 at once, whole or in parts, but what is always open."""

    async def act(gateway: Gateway) -> list[Raw]:
        under_way = asyncio.create_task(call(gateway.port, "GET", "/v1/boards/b/top"))
        await until(lambda: load(gateway).requests == 1, "it is under way")
        refused = []
        closing = b"" if whole else b"Connection: close\r\n"
        for request in (
            b"GET /v1/boards/c/top HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine\r\n%s\r\n" % closing,
            b"PUT /v1/boards/c HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nX-Request-Id: mine\r\n"
            b"%s\r\n{}" % closing,
        ):
            async with connected(gateway) as client:
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(client, request)
                data = await asyncio.wait_for(loop.sock_recv(client, 65_536), SECONDS_MAX)
                refused.append(Raw(data))
        for path in ("/healthz", "/readyz", "/openapi.json"):
            assert (await call(gateway.port, "GET", path)).status == 200
        assert (await call(gateway.port, "HEAD", "/v1/boards/c/top")).status == 503
        assert len(boards.calls) == 1
        release.set()
        assert (await under_way).status == 200
        assert (await call(gateway.port, "GET", "/v1/boards/c/top")).status == 200
        return refused

    release = asyncio.Event()
    boards = FakeBoards()
    boards.behave = release.wait
    for refused in run(act, boards, requests_max=1):
        problem = check_problem(refused, 503, "overloaded")
        assert problem["detail"]
        assert refused.headers["x-request-id"] == "mine"
        assert int(refused.headers["content-length"]) == len(refused.body)


def test_one_lane_leaves_room_for_others() -> None:
    """The reads of a board that hangs fill their own lane, and no other board's or kind's."""

    async def act(gateway: Gateway) -> None:
        hanging = [
            asyncio.create_task(call(gateway.port, "GET", "/v1/boards/b/top")) for _ in range(3)
        ]
        await until(lambda: load(gateway).requests == 3, "they hang")
        refused = await call(gateway.port, "GET", "/v1/boards/b/members/m")
        check_problem(refused, 503, "overloaded")
        boards.behave = lambda: None
        for method, path, body in (
            ("GET", "/v1/boards/c/top", None),
            ("POST", "/v1/boards/b/events", b"{}"),
            ("GET", "/v1/boards", None),
        ):
            assert (await call(gateway.port, method, path, body)).status == 200
        release.set()
        assert {(await answer).status for answer in hanging} == {200}

    release = asyncio.Event()
    boards = FakeBoards()
    boards.behave = release.wait
    run(act, boards, queue_items_max=3, call_items_max=3)


def test_a_refused_client_keeps_its_connection() -> None:
    """Refusals follow each other on one connection as answers do, and the next request is taken."""

    async def act(gateway: Gateway) -> bytes:
        under_way = asyncio.create_task(call(gateway.port, "GET", "/v1/boards/b/top"))
        await until(lambda: load(gateway).requests == 1, "it is under way")
        loop = asyncio.get_running_loop()
        async with connected(gateway) as client:
            data = b""
            for count in range(1, 4):
                await loop.sock_sendall(client, HEAD)
                while data.count(b"HTTP/1.1 503") < count or not data.endswith(b"}"):
                    data += await asyncio.wait_for(loop.sock_recv(client, 65_536), SECONDS_MAX)
            release.set()
            await under_way
            closing = HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
            await loop.sock_sendall(client, closing)
            return data + await received(client)

    release = asyncio.Event()
    boards = FakeBoards()
    boards.behave = release.wait
    answers = run(act, boards, requests_max=1)
    assert answers.count(b"HTTP/1.1 503") == 3
    assert answers.count(b"HTTP/1.1 200") == 1


def test_refusals_stay_in_order() -> None:
    """Of requests sent in one go each gets its own answer in its turn, refused or not."""

    async def act(gateway: Gateway) -> list[bytes]:
        under_way = asyncio.create_task(call(gateway.port, "GET", "/v1/boards/b/top"))
        await until(lambda: load(gateway).requests == 1, "it is under way")
        paths = [b"/v1/boards/b/top", b"/healthz", b"/v1/boards/c/top", b"/v1/boards/d/top"]
        data = b"".join(
            b"GET %s HTTP/1.1\r\nHost: x\r\nX-Request-Id: n%d\r\n\r\n" % (path, number)
            for number, path in enumerate(paths * 5)
        )
        closing = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        async with connected(gateway) as client:
            await asyncio.get_running_loop().sock_sendall(client, data + closing)
            answers = await received(client)
        release.set()
        await under_way
        assert answers.count(b"HTTP/1.1 503") == 15
        return re.findall(rb"X-Request-Id: n([0-9]+)", answers)

    release = asyncio.Event()
    boards = FakeBoards()
    boards.behave = release.wait
    assert run(act, boards, requests_max=1) == [b"%d" % number for number in range(20)]


def test_who_leaves_at_once_keeps_no_place() -> None:
    """A client that is gone before its request is looked at gives back the place taken for it."""

    async def act(gateway: Gateway) -> None:
        server = cast("Any", gateway._runner).server
        connection = server()._connection
        connection.connection_made(Mock(spec=asyncio.Transport))
        connection.data_received(HEAD)
        assert load(gateway).requests == 1
        connection.connection_lost(None)
        assert load(gateway).requests == 0
        await asyncio.sleep(0)

    boards = FakeBoards()
    run(act, boards, requests_max=1)
    assert boards.calls == []


def test_a_refusal_goes_before_what_comes_behind() -> None:
    """A request that arrives while the refusal of the one before waits is answered after it."""

    async def act(gateway: Gateway) -> None:
        under_way = asyncio.create_task(call(gateway.port, "GET", "/v1/boards/b/top"))
        await until(lambda: load(gateway).requests == 1, "it is under way")
        server = cast("Any", gateway._runner).server
        for _ in range(20 * WRITTEN_AT_ONCE):
            server.refusals.add(lambda: None)  # of others, whose turn comes first
        connection = server()._connection
        transport = Mock(spec=asyncio.Transport)
        transport.is_closing.return_value = False
        written: list[bytes] = []
        transport.write.side_effect = written.append
        transport.writelines.side_effect = lambda parts: written.append(b"".join(parts))
        connection.connection_made(transport)
        connection.data_received(HEAD)
        assert written == [], "it is not written while reading"
        connection.data_received(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: len(written) == 2, "both are answered")
        assert [answer[9:12] for answer in written] == [b"503", b"200"]
        connection.connection_lost(None)
        release.set()
        await under_way

    release = asyncio.Event()
    boards = FakeBoards()
    boards.behave = release.wait
    run(act, boards, requests_max=1)
