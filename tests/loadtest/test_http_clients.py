"""The clients that load a server: what they count, what follows an answer, and where they run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress
from functools import partial
from typing import Any

import pytest

from loadtest.client_process import ClientProcess
from loadtest.http_clients import Outcome, Request, closed_loop, open_loop

HEAD_END = b"\r\n\r\n"


async def against_a_server(
    answers: Callable[[bytes], list[bytes]], run: Callable[[int], Coroutine[Any, Any, Outcome]]
) -> Outcome:
    """Run clients against a server that answers a request in the pieces that `answers` makes."""
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                for piece in answers(await reader.readuntil(HEAD_END)):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        outcome = await run(server.sockets[0].getsockname()[1])
        await asyncio.gather(*filter(None, serving))
        return outcome


def answer_of(body: bytes, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def test_what_follows_an_answer_is_sent_at_once_and_counted() -> None:
    """The body of a 200 makes the next request, timed from the first one's intended start."""
    bodies: list[bytes] = []
    waits: list[float] = []

    def look(body: bytes, intended: float) -> None:
        bodies.append(body)
        waits.append(time.perf_counter() - intended)

    def follow(body: bytes, _intended: float) -> Request:
        return Request(b"GET /%s HTTP/1.1\r\n\r\n" % body, None, look)

    def answers(request: bytes) -> list[bytes]:
        path = request.split()[1][1:]
        whole = answer_of(b"seen" if path == b"answered" else b"answered")
        return [whole[:20], whole[20:]]

    first = Request(b"GET /first HTTP/1.1\r\n\r\n", 7, follow)
    run = partial(open_loop, clients=4, seconds=0.1, rate=100.0, make=lambda _number: first)
    outcome = asyncio.run(against_a_server(answers, run))
    assert outcome.following == 10
    assert outcome.statuses == {200: 20}
    assert (outcome.lost, outcome.unsent) == (0, 0)
    assert outcome.acknowledged == [7] * 10
    assert bodies == [b"seen"] * 10
    assert min(waits) > 0
    assert len(outcome.seconds) == 20


def test_nothing_follows_a_refusal() -> None:
    """An answer other than 200 makes no request, and the client goes on with its next."""
    followed: list[bytes] = []

    def follow(body: bytes, _intended: float) -> None:
        followed.append(body)

    request = Request(b"GET / HTTP/1.1\r\n\r\n", None, follow)
    run = partial(closed_loop, clients=2, seconds=0.1, make=lambda _number: request)
    outcome = asyncio.run(against_a_server(lambda _request: [answer_of(b"full", 503)], run))
    assert outcome.statuses[503] == outcome.answered > 2
    assert (followed, outcome.following) == ([], 0)
    assert outcome.cpu_seconds > 0


async def doubled(number: int) -> int:
    return 2 * number


def test_a_client_process_runs_one_thing_after_the_other() -> None:
    """What runs there answers here, as often as it is asked; an error there ends the benchmark."""
    with ClientProcess() as clients:
        assert [clients.run(partial(doubled, number), 1.0) for number in (1, 2)] == [2, 4]
        with pytest.raises(SystemExit, match="clients failed"):
            clients.run(partial(doubled, None), 1.0)  # type: ignore[arg-type]
