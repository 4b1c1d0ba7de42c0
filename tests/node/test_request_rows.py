"""Requests in a row on one connection: one by one, in order, and little of them held ahead."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import re
import tracemalloc
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.gateway import Gateway
from node.head_parser import READ_BYTES
from node.protocol import Connection, Reader
from tests.node.clients import (
    HEAD,
    SECONDS_MAX,
    connected,
    load,
    received,
    run,
    until,
)
from tests.node.fake_boards import FakeBoards
from tests.node.request_samples import (
    CHUNKED,
    CLOSE,
    EVENTS,
    TOP,
    RowBoards,
    chunked,
    request,
    server_of,
)

# One after the other


class Sent(NamedTuple):
    """A request of a row, and the status it must get."""

    data: bytes
    status: int


def row(kinds: list[str]) -> list[Sent]:
    """Write requests that follow each other on one connection, each with its number as its id."""
    found = []
    for number, kind in enumerate(kinds):
        of_it = b"X-Request-Id: n%d\r\n" % number
        found.append(
            {
                "top": Sent(request(b"GET", TOP, of_it), 200),
                "event": Sent(request(b"POST", EVENTS, of_it, b"{%s}" % (b" " * number)), 200),
                "chunked": Sent(
                    request(
                        b"POST",
                        EVENTS,
                        of_it + CHUNKED,
                        chunked(b"{" + b" " * number, b"}"),
                    ),
                    200,
                ),
                "large": Sent(request(b"POST", EVENTS, of_it, b" " * 20_000), 200),
                "kept": Sent(request(b"GET", b"/v1/boards/kept/top", of_it), 200),
                "refused": Sent(request(b"GET", b"/nope", of_it), 404),
                "late": Sent(request(b"GET", b"/v1/boards/gone/top", of_it), 404),
                "head": Sent(request(b"HEAD", TOP, of_it), 200),
            }[kind]
        )
    return found


async def answered(gateway: Gateway, sent: list[Sent], writes: list[bytes]) -> list[bytes]:
    """Send requests in these writes; returns the answers' ids after checking what they are."""
    last = request(b"GET", b"/healthz", CLOSE)
    async with connected(gateway) as client:
        loop = asyncio.get_running_loop()

        async def send() -> None:
            for data in [*writes, last]:
                await loop.sock_sendall(client, data)
                await asyncio.sleep(0)

        sending = asyncio.create_task(send())
        answers = await received(client)
        await sending
    ids = re.findall(rb"X-Request-Id: n([0-9]+)", answers)
    statuses = [int(status) for status in re.findall(rb"HTTP/1.1 ([0-9]{3})", answers)]
    assert statuses == [*(each.status for each in sent), 200]
    assert answers.endswith(b'{"status":"alive"}')
    return ids


KINDS = ("top", "event", "chunked", "large", "kept", "refused", "late", "head")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_requests_in_a_row_are_answered_in_their_order(data: st.DataObject) -> None:
    """Whatever comes in a row, in whatever pieces, is answered one by one and in its order."""
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=12))
    sent = row(kinds)
    whole = b"".join(each.data for each in sent)
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=12).map(sorted))
    places = [0, *cuts, len(whole)]
    writes = [whole[begin:end] for begin, end in itertools.pairwise(places)]
    boards = RowBoards()

    async def act(gateway: Gateway) -> list[bytes]:
        return await answered(gateway, sent, writes)

    assert run(act, boards) == [b"%d" % number for number in range(len(kinds))]
    assert boards.most <= 1, "one of a connection's requests is under way at a time"


@pytest.mark.parametrize("kind", KINDS)
def test_requests_at_every_cut(kind: str) -> None:
    """Three requests in two writes are answered in order, wherever the cut between them is."""
    sent = row(["top", kind, "kept"])
    whole = b"".join(each.data for each in sent)
    step = 1 if len(whole) < 1_000 else 997

    async def act(gateway: Gateway) -> None:
        for cut in range(1, len(whole), step):
            assert await answered(gateway, sent, [whole[:cut], whole[cut:]]) == [b"0", b"1", b"2"]

    run(act, RowBoards())


def test_what_comes_during_an_answer_is_answered_after_it() -> None:
    """A request that arrives while others wait behind the one under way is not forgotten."""

    async def act(gateway: Gateway) -> bytes:
        loop = asyncio.get_running_loop()
        async with connected(gateway) as client:
            await loop.sock_sendall(client, HEAD + HEAD)
            await until(lambda: len(boards.calls) == 1, "the first is under way")
            await loop.sock_sendall(client, HEAD)
            (connection,) = server_of(gateway).connections
            await until(lambda: connection._behind == HEAD, "the third waits behind the second")
            release.set()
            await until(lambda: len(boards.calls) == 3, "all of them are asked")
            await loop.sock_sendall(client, request(b"GET", b"/healthz", CLOSE))
            return await received(client)

    release = asyncio.Event()
    boards = FakeBoards()
    boards.behave = release.wait
    assert run(act, boards).count(b"HTTP/1.1 200") == 4


LATE = {  # a request, and how much of its end comes late
    "half a body": (request(b"POST", EVENTS, b"", b" " * 100), 50),
    "the last of its chunks": (request(b"POST", EVENTS, CHUNKED, chunked(b" " * 50)), 7),
}


@pytest.mark.parametrize("target", [b"/healthz", b"/nope", TOP, b"/v1/boards/kept/top"])
@pytest.mark.parametrize("part", LATE)
def test_what_comes_with_the_end_of_a_body_is_answered(part: str, target: bytes) -> None:
    """A request in one piece with the rest of a body that came late is not forgotten behind it."""
    late, size = LATE[part]

    async def act(gateway: Gateway) -> bytes:
        loop = asyncio.get_running_loop()
        async with connected(gateway) as client:
            await loop.sock_sendall(client, late[:-size])
            await until(lambda: load(gateway).body_bytes == 50, "its body has begun")
            await loop.sock_sendall(client, late[-size:] + request(b"GET", target, CLOSE))
            return await received(client)

    assert run(act, RowBoards()).count(b"HTTP/1.1 ") == 2


@pytest.mark.parametrize("body", [b"{}", b" " * 20_000])
def test_nothing_behind_the_last_request_is_acted_on(body: bytes) -> None:
    """What follows a request that ends its connection is not acted on, whichever way that went."""

    async def act(gateway: Gateway) -> bytes:
        async with connected(gateway) as client:
            data = request(b"POST", EVENTS, CLOSE, body) + request(b"DELETE", b"/v1/boards/b")
            await asyncio.get_running_loop().sock_sendall(client, data)
            return await received(client)

    boards = FakeBoards()
    assert run(act, boards).startswith(b"HTTP/1.1 200")
    assert [each[0] for each in boards.calls] == ["submit"]


@pytest.mark.parametrize("before", [b"", HEAD, HEAD + HEAD])
def test_a_head_is_bounded_behind_others_too(before: bytes) -> None:
    """Too long a head is 431 also where it comes in one write with those before it."""
    line = b"X-Filler: " + b"x" * 1_000 + b"\r\n"
    long = b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + 20 * line + b"\r\n"

    async def act(gateway: Gateway) -> bytes:
        async with connected(gateway) as client:
            await asyncio.get_running_loop().sock_sendall(client, before + long)
            return await received(client)

    statuses = re.findall(rb"HTTP/1.1 ([0-9]{3})", run(act, RowBoards(), headers_max=64))
    assert statuses == [b"200"] * (len(before) // len(HEAD)) + [b"431"]


# What is held meanwhile


@pytest.mark.parametrize("target", [TOP, b"/v1/boards/kept/top", b"/nope", b"/v1/boards/gone/top"])
def test_little_is_held_of_a_long_row(target: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many requests a client sends ahead, a few reads' bytes of them are held at most."""
    one = request(b"GET", target)
    count = 3_000
    read = parsed = held = 0

    def counting(reader: Reader, nbytes: int) -> None:
        nonlocal read
        read += nbytes
        update(reader, nbytes)

    def noting(*arguments: Any) -> bool:
        nonlocal parsed, held
        parsed += len(one)
        held = max(held, read - parsed)
        return take(*arguments)

    update, take = Reader.buffer_updated, Connection.take
    monkeypatch.setattr(Reader, "buffer_updated", counting)
    monkeypatch.setattr(Connection, "take", noting)

    async def act(gateway: Gateway) -> bytes:
        loop = asyncio.get_running_loop()
        async with connected(gateway) as client:
            data = one * count + request(b"GET", b"/healthz", CLOSE)
            sending = asyncio.create_task(loop.sock_sendall(client, data))
            answers = await received(client)
            await sending
            return answers

    assert run(act, RowBoards()).count(b"HTTP/1.1 ") == count + 1
    assert READ_BYTES < held <= 2 * READ_BYTES + len(one), "and the row was read ahead of"


def test_an_idle_connection_keeps_nothing_of_its_requests() -> None:
    """What a connection takes while it waits does not depend on how much it has asked before."""
    count, size = 100, 10_000

    class LongBoards(FakeBoards):
        async def submit(self, board: str, question: Any) -> bytes:
            await super().submit(board, question)
            self.calls.clear()
            return b'"' + b"x" * size + b'"'

    async def act(gateway: Gateway) -> list[int]:
        async def ask(client: Any, data: bytes, ends: bytes) -> None:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(client, data)
            answer = b""
            while not answer.endswith(ends):
                part = await asyncio.wait_for(loop.sock_recv(client, 65_536), SECONDS_MAX)
                assert part
                answer += part

        found = []
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(gateway)) for _ in range(count)]
            for data, ends in (
                (request(b"GET", b"/healthz"), b"}"),
                (request(b"POST", EVENTS, b"", b" " * size), b'x"'),
                (HEAD * 3, b"1}"),
            ):
                for client in clients:
                    await ask(client, data, ends)
                gc.collect()
                found.append(tracemalloc.get_traced_memory()[0])
        return found

    tracemalloc.start()
    try:
        before, after, last = run(act, LongBoards())
    finally:
        tracemalloc.stop()
    assert (after - before) // count < size // 4
    assert (last - before) // count < size // 4
