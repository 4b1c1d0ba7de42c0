from __future__ import annotations

import asyncio

import msgspec
import pytest

from actors.questions import Submit
from tests.node.fake_boards import (
    ANSWER,
    NOW_US,
    FakeBoards,
    Raw,
    ask_once,
    check_problem,
    exchange,
    serving,
)


@pytest.mark.parametrize(
    ("accept", "packed"),
    [
        ("application/msgpack", True),
        ("application/json", False),
        ("*/*", False),
        ("application/*", False),
        ("text/html, */*;q=0.1", False),
        ("application/json;q=0.5, application/msgpack", True),
        ("application/msgpack;q=0.5, application/json", False),
        ("application/msgpack, application/json", False),
        ("APPLICATION/MSGPACK; q=1.000", True),
        ("application/json;q=0, */*", True),
        ("", False),
    ],
)
def test_accept_chooses_the_form(accept: str, packed: bool) -> None:
    """The answer follows Accept by weight and exactness; JSON is the default and wins a draw."""
    answer, boards = ask_once("GET", "/v1/boards/b/top", Accept=accept)
    assert boards.calls[0][2].packed is packed
    if packed:
        assert answer.headers["content-type"] == "application/msgpack"
        assert msgspec.msgpack.decode(answer.body) == ANSWER
    else:
        assert answer.headers["content-type"] == "application/json"
        assert answer.json() == ANSWER


@pytest.mark.parametrize(
    "accept", ["text/html", "application/x-msgpack", "*/*;q=0", "application/json;q=0"]
)
def test_another_form_is_not_acceptable(accept: str) -> None:
    """An Accept that allows neither form is 406, as a JSON problem."""
    answer, boards = ask_once("GET", "/v1/boards/b/top", Accept=accept)
    check_problem(answer, 406, "not_acceptable")
    assert boards.calls == []


def test_a_problem_is_json_whatever_is_accepted() -> None:
    """Errors are always JSON, for a client of MessagePack too."""
    answer, _ = ask_once("GET", "/v1/boards/b/top?limit=0", Accept="application/msgpack")
    check_problem(answer, 422, "invalid_field")


@pytest.mark.parametrize(
    ("content_type", "packed"),
    [
        ("application/json", False),
        ("application/json; charset=utf-8", False),
        ('Application/JSON;charset="UTF-8"', False),
        ("application/msgpack", True),
    ],
)
def test_a_body_comes_in_two_forms(content_type: str, packed: bool) -> None:
    """A body's form is told by Content-Type and passed to the board with its bytes untouched."""
    body = b" {\xff} "
    _, boards = ask_once("POST", "/v1/boards/b/events", body, Content_Type=content_type)
    assert boards.calls == [("submit", "b", Submit(False, NOW_US, body, packed))]


@pytest.mark.parametrize(
    "headers",
    [
        {"Content_Type": "text/plain"},
        {"Content_Type": "application/json; charset=latin-1"},
        {"Content_Type": "application/jsonx"},
        {"Content_Type": ""},
        {"Content_Encoding": "gzip"},
        {"Content_Encoding": "identity, br"},
    ],
)
def test_another_form_of_body_is_unsupported(headers: dict[str, str]) -> None:
    """A body in another type, charset or content encoding is 415 and never reaches the board."""
    answer, boards = ask_once("POST", "/v1/boards/b/events", b"{}", **headers)
    check_problem(answer, 415, "unsupported_media_type")
    assert boards.calls == []


def test_a_body_without_a_type_is_unsupported() -> None:
    """A body whose form is not told is 415; an empty one is malformed, whatever its form."""

    async def run() -> tuple[Raw, Raw]:
        head = b"POST /v1/boards/b/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        async with serving(FakeBoards()) as gateway:
            return (
                await exchange(gateway.port, head + b"Content-Length: 2\r\n\r\n{}"),
                await exchange(gateway.port, head + b"Content-Length: 0\r\n\r\n"),
            )

    with_body, without = asyncio.run(run())
    check_problem(with_body, 415, "unsupported_media_type")
    check_problem(without, 400, "malformed_body")


@pytest.mark.parametrize("size", [99, 100])
def test_a_body_up_to_the_bound_is_taken(size: int) -> None:
    """A body of exactly the bound is fine."""
    answer, boards = ask_once(
        "POST", "/v1/boards/b/events", b"x" * size, settings={"body_bytes_max": 100}
    )
    assert answer.status == 200
    assert boards.calls[0][2].body == b"x" * size


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_above_the_bound_is_too_large(chunked: bool) -> None:
    """One byte more than the bound is 413, with a length or in chunks, and nobody is asked."""
    framing = (
        b"Transfer-Encoding: chunked\r\n\r\n65\r\n" + b"x" * 101 + b"\r\n0\r\n\r\n"
        if chunked
        else b"Content-Length: 101\r\n\r\n" + b"x" * 101
    )

    async def run() -> Raw:
        head = b"POST /v1/boards/b/events HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        async with serving(boards, body_bytes_max=100) as gateway:
            return await exchange(gateway.port, head + framing)

    boards = FakeBoards()
    check_problem(asyncio.run(run()), 413, "body_too_large")
    assert boards.calls == []


@pytest.mark.parametrize(
    ("rest", "status", "code"),
    [
        (b"Content-Length: 10\r\n\r\n{", 408, "request_timeout"),
        (b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "malformed_request"),
        (b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "malformed_body"),
        (
            b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            415,
            "unsupported_media_type",
        ),
    ],
)
def test_a_slow_or_broken_body_is_a_problem(rest: bytes, status: int, code: str) -> None:
    """A body that does not arrive in time, is badly framed, coded or empty is not awaited."""

    async def run() -> Raw:
        head = (
            b"POST /v1/boards/b/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\n"
        )
        async with serving(boards, body_seconds_max=0.1, linger_seconds=0.1) as gateway:
            return await exchange(gateway.port, head + rest)

    boards = FakeBoards()
    check_problem(asyncio.run(run()), status, code)
    assert boards.calls == []


@pytest.mark.parametrize("ending", [b"zz\r\n", None])
def test_a_body_that_breaks_off_later_reaches_nobody(ending: bytes | None) -> None:
    """A body whose rest is badly framed, or never comes because the client left, is dropped."""

    async def run() -> bytes:
        async with serving(boards, body_seconds_max=0.2, linger_seconds=0.1) as gateway:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(
                b"POST /v1/boards/b/events HTTP/1.1\r\nHost: x\r\n"
                b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
            )
            await asyncio.sleep(0.05)
            if ending is not None:
                writer.write(ending)
                received = await asyncio.wait_for(reader.read(), 10)
            else:
                received = b""
            writer.close()
            await writer.wait_closed()
            return received

    boards = FakeBoards()
    received = asyncio.run(run())
    assert boards.calls == []
    if ending is not None:
        check_problem(Raw(received), 408, "request_timeout")


def test_a_client_that_waits_for_continue_gets_it() -> None:
    """Expect: 100-continue is answered before the body is read, so curl does not wait."""

    async def run() -> tuple[bytes, bytes]:
        async with serving(FakeBoards()) as gateway:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(
                b"POST /v1/boards/b/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                b"Content-Type: application/json\r\nContent-Length: 2\r\n"
                b"Expect: 100-continue\r\n\r\n"
            )
            interim = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            writer.write(b"{}")
            final = await asyncio.wait_for(reader.read(), 10)
            writer.close()
            await writer.wait_closed()
            return interim, final

    interim, final = asyncio.run(run())
    assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert Raw(final).status == 200
