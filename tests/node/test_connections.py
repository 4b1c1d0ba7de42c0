from __future__ import annotations

import asyncio
import json

import pytest

from tests.node.fake_boards import (
    ANSWER,
    FakeBoards,
    Raw,
    ask_once,
    call,
    check_problem,
    exchange,
    serving,
)


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "malformed_request"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n", 400, "malformed_request"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 2\r\n\r\n", 400, "malformed_request"),
        (b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 5000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100 + b"\r\n", 400, "malformed_request"),
        (b"\x16\x03\x01\x02\x00", 400, "malformed_request"),
    ],
)
def test_what_is_not_http_is_a_problem_too(data: bytes, status: int, code: str) -> None:
    """Bad syntax and a head that is too long are problems, and the connection ends."""

    async def run() -> Raw:
        async with serving(FakeBoards(), header_bytes_max=4096) as gateway:
            return await exchange(gateway.port, data)

    check_problem(asyncio.run(run()), status, code)


def test_a_silent_connection_is_closed() -> None:
    """A connection that never sends its first request is hung up on, whatever it dribbles."""

    async def run() -> bytes:
        async with serving(FakeBoards(), header_seconds_max=0.1) as gateway:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(b"GET /healthz HT")
            received = await asyncio.wait_for(reader.read(), 10)
            writer.close()
            await writer.wait_closed()
            return received

    assert asyncio.run(run()) == b""


def test_connections_above_the_bound_are_refused() -> None:
    """One connection more than `connections_max` is told that the server is busy."""

    async def run() -> tuple[Raw, Raw]:
        async with serving(FakeBoards(), connections_max=1) as gateway:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            first = await asyncio.wait_for(reader.readuntil(b"}"), 10)
            second = await exchange(gateway.port, b"")
            writer.close()
            await writer.wait_closed()
            return Raw(first), second

    first, second = asyncio.run(run())
    assert first.status == 200
    check_problem(second, 503, "overloaded")


def test_requests_follow_each_other_on_one_connection() -> None:
    """A refused request does not end its connection, so a client's pool survives mistakes."""

    async def run() -> bytes:
        async with serving(FakeBoards()) as gateway:
            refused = b"GET /v1/boards/b/top?limit=0 HTTP/1.1\r\nHost: x\r\n\r\n"
            last = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(refused + last)
            received = await asyncio.wait_for(reader.read(), 10)
            writer.close()
            await writer.wait_closed()
            return received

    received = asyncio.run(run())
    assert received.startswith(b"HTTP/1.1 422")
    assert received.endswith(b'{"status":"alive"}')


@pytest.mark.parametrize("ready", [True, False])
def test_health_and_readiness_differ(ready: bool) -> None:
    """A node is alive before it is ready; readiness is 503 until the boards are known."""
    boards = FakeBoards()
    boards.ready = ready
    alive, _ = ask_once("GET", "/healthz", boards=boards)
    assert alive.json() == {"status": "alive"}
    answer, _ = ask_once("GET", "/readyz", boards=boards)
    if ready:
        assert answer.json() == {"status": "ready"}
    else:
        check_problem(answer, 503, "board_unavailable")


@pytest.mark.parametrize(("method", "body"), [("GET", None), ("PUT", b"{}"), ("DELETE", None)])
def test_before_the_boards_are_known_none_is_denied(method: str, body: bytes | None) -> None:
    """A board is not said to be missing, nor touched, before the node knows what is on disk."""
    boards = FakeBoards()
    boards.ready = False
    answer, _ = ask_once(method, "/v1/boards/b", body, boards=boards)
    check_problem(answer, 503, "board_unavailable")
    assert boards.calls == []


def test_requests_under_way_end_before_the_gateway_stops() -> None:
    """Stopping waits for what is being answered and takes nothing new."""

    async def run() -> Raw:
        boards = FakeBoards()
        asked, release = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            asked.set()
            await release.wait()

        boards.behave = wait
        async with serving(boards) as gateway:
            under_way = asyncio.create_task(call(gateway.port, "GET", "/v1/boards/b/top"))
            await asked.wait()
            stopping = asyncio.create_task(gateway.stop())
            await asyncio.sleep(0.05)
            with pytest.raises(OSError, match="Connect call failed"):
                await call(gateway.port, "GET", "/healthz")
            release.set()
            await stopping
            return await under_way

    answer = asyncio.run(run())
    assert answer.status == 200
    assert json.loads(answer.body) == ANSWER
