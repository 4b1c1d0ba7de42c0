"""Clients that write bytes by hand, for tests of how slow and how many they may be."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import uvloop

from actors.questions import Question
from node.config import MIB
from node.gateway import Gateway
from node.load import Load
from node.protocol import Server
from node.slow_readers import SlowReaders
from tests.node.fake_boards import FakeBoards, call, serving

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
