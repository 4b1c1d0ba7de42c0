"""Clients that send or read slowly, or never: each is given up in time, and none holds much."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, cast

import pytest

from node.config import KIB, MIB
from node.gateway import Gateway
from node.head_parser import READ_BYTES
from tests.node.clients import (
    HEAD,
    LARGE,
    POST,
    SECONDS_MAX,
    LargeBoards,
    connected,
    dribble,
    load,
    received,
    run,
    slow_readers,
    until,
)
from tests.node.fake_boards import FakeBoards, Raw, call, check_problem, exchange

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
            assert len(connection._messages) == 0
            assert len(connection._behind) <= READ_BYTES
            assert load(gateway).body_bytes == 0
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        release.set()

    release = asyncio.Event()
    boards = FakeBoards()
    boards.behave = release.wait
    run(act, boards)


def test_a_half_closed_connection_gets_its_answer() -> None:
    """A client that sends a whole request, and then that it sends no more, is answered."""

    async def act(gateway: Gateway) -> bytes:
        async with connected(gateway) as client:
            await asyncio.get_running_loop().sock_sendall(client, HEAD)
            client.shutdown(socket.SHUT_WR)
            return await received(client)

    boards = FakeBoards()
    boards.behave = lambda: asyncio.sleep(0.1)
    answer = run(act, boards, keepalive_seconds=60)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"\r\nConnection: close\r\n" in answer


def test_a_half_closed_connection_is_let_go() -> None:
    """A client that has said it sends no more is let go, in the midst of whatever it was."""

    async def act(gateway: Gateway) -> None:
        for sent in (b"", HEAD[:20], HEAD, POST % 100 + b"{"):
            async with connected(gateway) as client:
                await asyncio.get_running_loop().sock_sendall(client, sent)
                client.shutdown(socket.SHUT_WR)
                await received(client)

    run(act, keepalive_seconds=60, header_seconds_max=60, body_seconds_max=60)
