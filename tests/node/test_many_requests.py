"""More requests than a node answers at once: who is refused, and in which order."""

from __future__ import annotations

import asyncio
import re
from typing import Any, cast
from unittest.mock import Mock

import pytest

from node.gateway import Gateway
from node.refusals import WRITTEN_AT_ONCE
from tests.node.clients import (
    HEAD,
    SECONDS_MAX,
    connected,
    load,
    received,
    run,
    until,
)
from tests.node.fake_boards import FakeBoards, Raw, call, check_problem


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
        await until(lambda: load(gateway).requests == 0, "its place is given back")

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
