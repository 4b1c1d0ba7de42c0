"""Requests that are here as a whole: answered past aiohttp, and just as aiohttp would have."""

from __future__ import annotations

import asyncio
import gc
import re
from typing import Any

import pytest
import uvloop

from actors.errors import Refusal
from actors.questions import Question
from node import exchange as exchange_module
from node import negotiation
from node.config import KIB
from node.gateway import Gateway
from node.protocol import Connection
from tests.node.clients import (
    HEAD,
    SECONDS_MAX,
    connected,
    received,
    run,
    until,
)
from tests.node.fake_boards import FakeBoards, Raw, check_problem, exchange, serving
from tests.node.request_samples import (
    CHUNKED,
    CLOSE,
    EVENTS,
    PACKED,
    TOP,
    chunked,
    request,
    server_of,
)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """List of each request that was parsed whether it was taken past aiohttp."""
    found: list[bool] = []
    take = Connection.take

    def noted(connection: Connection, *request: Any) -> bool:
        found.append(take(connection, *request))
        return found[-1]

    monkeypatch.setattr(Connection, "take", noted)
    return found


# Alike in both ways

ALIKE = {
    "top": (request(b"GET", TOP, CLOSE), True),
    "packed": (request(b"GET", TOP, CLOSE + PACKED), True),
    "id": (request(b"GET", TOP, CLOSE + b"X-Request-Id: my own\r\n"), True),
    "absolute": (request(b"GET", b"http://x" + TOP, CLOSE), True),
    "foreign host": (request(b"GET", b"http://elsewhere" + TOP, CLOSE), True),
    "event": (request(b"POST", EVENTS, CLOSE, b"{}"), True),
    "packed event": (
        request(b"POST", EVENTS, CLOSE + b"Content-Type: application/msgpack\r\n", b"\x80"),
        True,
    ),
    "chunked": (
        request(
            b"POST",
            EVENTS,
            CLOSE + CHUNKED,
            chunked(b"{", b" " * 99, b"}"),
        ),
        True,
    ),
    "empty chunked": (
        request(b"POST", EVENTS, CLOSE + CHUNKED, chunked()),
        True,
    ),
    "created": (request(b"PUT", b"/v1/boards/new", CLOSE, b"{}"), True),
    "no content": (request(b"DELETE", b"/v1/boards/b", CLOSE), True),
    "needless body": (request(b"GET", TOP, CLOSE, b"{}"), True),
    "large answer": (request(b"GET", b"/openapi.json", CLOSE), True),
    "alive": (request(b"GET", b"/healthz", CLOSE), True),
    "no path": (request(b"GET", b"/nope", CLOSE), True),
    "no method": (request(b"PUT", TOP, CLOSE, b"{}"), True),
    "bad limit": (request(b"GET", TOP + b"?limit=0", CLOSE), True),
    "no body": (request(b"POST", EVENTS, CLOSE), True),
    "no length": (request(b"POST", EVENTS, CLOSE, b""), True),
    "not acceptable": (request(b"GET", TOP, CLOSE + b"Accept: text/html\r\n"), True),
    "not a type": (request(b"POST", EVENTS, CLOSE + b"Content-Type: text/plain\r\n", b"{}"), True),
    "encoded": (request(b"POST", EVENTS, CLOSE + b"Content-Encoding: gzip\r\n", b"{}"), True),
    "refused": (request(b"GET", b"/v1/boards/gone/top", CLOSE), True),
    "failed": (request(b"GET", b"/v1/boards/broken/top", CLOSE), True),
    "large body": (request(b"POST", EVENTS, CLOSE, b" " * 12_000), True),
    "larger body": (request(b"POST", EVENTS, CLOSE, b" " * 60_000), False),
    "too large a body": (request(b"POST", EVENTS, CLOSE, b" " * 80_000), False),
    "too large in chunks": (
        request(
            b"POST",
            EVENTS,
            CLOSE + CHUNKED,
            chunked(*[b" " * 4_000] * 20),
        ),
        False,
    ),
    "head": (request(b"HEAD", TOP, CLOSE), False),
    "head of nothing": (request(b"HEAD", b"/nope", CLOSE), False),
    "version 1.0": (request(b"GET", TOP, version=0), False),
    "refused 1.0": (request(b"GET", b"/nope", version=0), False),
    "upgrade": (
        request(b"GET", TOP, b"Upgrade: websocket\r\nConnection: upgrade, close\r\n"),
        False,
    ),
}


class MixedBoards(FakeBoards):
    """Boards of which one is gone, and one fails in a way that nobody foresaw."""

    async def ask(self, board: str, question: Question, min_sequence: int | None) -> bytes:
        if board == "gone":
            raise Refusal("board_not_found", "there is no board 'gone'")
        if board == "broken":
            raise ZeroDivisionError("planted")
        return await super().ask(board, question, min_sequence)


def without_id_and_date(answer: bytes) -> bytes:
    head, end, body = answer.partition(b"\r\n\r\n")
    head = re.sub(rb"X-Request-Id: [0-9a-f]{16}-[0-9a-f]+", b"X-Request-Id: *", head)
    head, dates = re.subn(rb"Date: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", b"Date: *", head)
    assert dates == 1
    body = re.sub(rb'"request_id":"[^"]*"', b"", body)
    return head + end + body


@pytest.mark.parametrize("name", ALIKE)
def test_answers_are_alike_in_both_ways(
    name: str, taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past aiohttp or through it, an answer is the same to the byte, but for its id and date."""
    data, simple = ALIKE[name]
    settings_ = {"body_bytes_max": 64 * KIB, "bodies_bytes_max": 1 << 20}

    async def ask(gateway: Gateway) -> bytes:
        async with connected(gateway) as client:
            await asyncio.get_running_loop().sock_sendall(client, data)
            return await received(client)

    found = run(ask, MixedBoards(), **settings_)
    assert taken[0] is simple
    monkeypatch.setattr(Connection, "take", lambda *_: False)
    through = run(ask, MixedBoards(), **settings_)
    assert without_id_and_date(found) == without_id_and_date(through)


@pytest.mark.parametrize("name", ALIKE)
def test_every_answer_says_who_made_it_and_when(name: str) -> None:
    """Each answer, good or bad, has a date, an id, and the server's name without any versions."""
    data, _ = ALIKE[name]

    async def ask(gateway: Gateway) -> Raw:
        return await exchange(gateway.port, data)

    headers = run(ask, MixedBoards()).headers
    assert headers["server"] == "ranknode"
    assert headers["date"].endswith(" GMT")
    assert re.fullmatch("my own|[0-9a-f]{16}-[0-9a-f]+", headers["x-request-id"])
    assert (headers["x-request-id"] == "my own") == (name == "id")


def test_a_connection_too_many_is_told_so_in_the_same_form() -> None:
    """Also who is refused before anything is read hears by whom, when, and under which id."""

    async def ask() -> Raw:
        async with serving(FakeBoards(), connections_max=1) as gateway, connected(gateway):
            await until(lambda: len(server_of(gateway).connections) == 1, "it is connected")
            return await exchange(gateway.port, b"")

    answer = uvloop.run(ask())
    check_problem(answer, 503, "overloaded")
    assert answer.headers["date"].endswith(" GMT")


# Mistakes


def test_a_mistake_in_the_checks_is_an_answer_too(caplog: pytest.LogCaptureFixture) -> None:
    """What nobody foresaw is 500 and logged with the request's id; the connection goes on."""

    def fail(_accept: str) -> bool:
        raise ZeroDivisionError("planted")

    async def act(gateway: Gateway) -> bytes:
        loop = asyncio.get_running_loop()
        async with connected(gateway) as client:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(negotiation, "wants_packed", fail)
                await loop.sock_sendall(client, HEAD)
                answer = await asyncio.wait_for(loop.sock_recv(client, 65_536), SECONDS_MAX)
            await loop.sock_sendall(client, request(b"GET", TOP, CLOSE))
            assert (await received(client)).startswith(b"HTTP/1.1 200")
            return answer

    answer = Raw(run(act))
    check_problem(answer, 500, "internal_error")
    assert "planted" in caplog.text
    assert answer.headers["x-request-id"] in caplog.text


def test_an_answer_that_cannot_be_made_hangs_up() -> None:
    """A client whose answer will never come is not left waiting for it."""

    def fail(*_: Any, **__: Any) -> bytes:
        raise ZeroDivisionError("planted")

    async def act(gateway: Gateway) -> bytes:
        mistakes: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, each: mistakes.append(each))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exchange_module, "raw_answer", fail)
            async with connected(gateway) as client:
                await asyncio.get_running_loop().sock_sendall(client, HEAD)
                found = await received(client)
        gc.collect()
        await until(lambda: len(mistakes) == 1, "it is not hidden either")
        return found

    assert run(act) == b""
