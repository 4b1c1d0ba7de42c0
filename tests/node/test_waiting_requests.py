"""Requests whose answers wait: for a board, for their turn, for a client, or for a node's end."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from actors.errors import Refusal
from actors.questions import Question, Top
from node.config import KIB
from node.gateway import Gateway
from node.refusals import WRITTEN_AT_ONCE, Refusals
from tests.node.clients import (
    HEAD,
    LARGE,
    SECONDS_MAX,
    LargeBoards,
    connected,
    load,
    received,
    run,
    slow_readers,
    until,
)
from tests.node.fake_boards import FakeBoards, Raw, check_problem, serving
from tests.node.request_samples import (
    CLOSE,
    EVENTS,
    TOP,
    RowBoards,
    request,
    server_of,
)

# Who does not take the answer, or leaves


class LargeKept(LargeBoards):
    """Boards whose large tops are at hand."""

    def kept_top(self, board: str, question: Top, min_sequence: int | None) -> bytes | None:
        self.calls.append(("kept", board))
        return LARGE


@pytest.mark.parametrize("boards", [LargeBoards(), LargeKept()])
def test_an_answer_nobody_reads_holds_up_the_next(boards: FakeBoards) -> None:
    """The next request of a connection waits until the answer before it was taken."""

    async def act(gateway: Gateway) -> int:
        loop = asyncio.get_running_loop()
        async with connected(gateway, 16 * KIB) as client:
            await loop.sock_sendall(client, HEAD * 2)
            await until(lambda: slow_readers(gateway).unsent_bytes > 0, "the answer waits")
            await loop.sock_sendall(client, request(b"GET", b"/healthz", CLOSE))
            await asyncio.sleep(0.2)
            assert len(boards.calls) == 1
            assert slow_readers(gateway).unsent_bytes <= len(LARGE) + KIB
            answers = await received(client)
            assert len(boards.calls) == 2
            return answers.count(b"HTTP/1.1 200")

    assert run(act, boards) == 3


def test_a_client_that_leaves_gives_back_its_place() -> None:
    """A request whose client is gone ends as it would have, and holds nothing afterwards."""

    async def act(gateway: Gateway) -> None:
        loop = asyncio.get_running_loop()
        for behind in (b"", HEAD, HEAD[:9]):
            asked = len(boards.calls)
            release.clear()
            async with connected(gateway) as client:
                await loop.sock_sendall(client, HEAD + behind)
                await until(lambda n=asked: len(boards.calls) == n + 1, "it is under way")
                assert load(gateway).requests == 1
            await asyncio.sleep(0.05)
            release.set()
            await until(lambda: load(gateway).requests == 0, "its place is given back")
            await until(lambda: not server_of(gateway).connections, "the connection is gone")
            assert len(boards.calls) == asked + 1, "nobody waits for what came behind"

    release = asyncio.Event()
    boards = FakeBoards()
    boards.behave = release.wait
    run(act, boards)


def test_who_leaves_a_stuck_board_holds_a_place_until_the_deadline() -> None:
    """A client that leaves while a board hangs holds its place until the deadline at most."""

    async def act(gateway: Gateway) -> None:
        async with connected(gateway) as client:
            await asyncio.get_running_loop().sock_sendall(client, HEAD)
            await until(lambda: load(gateway).requests == 1, "it is under way")
        await until(lambda: load(gateway).requests == 0, "its place is given back")

    boards = FakeBoards()
    boards.behave = asyncio.Event().wait
    run(act, boards, request_seconds_max=0.3, min_sequence_wait_seconds=0.1)


# Time


def test_expiry_of_an_idle_connection_spares_one_that_is_not() -> None:
    """A connection is hung up on when it was idle for a while, not when an answer takes long."""

    async def act(gateway: Gateway) -> tuple[bytes, float]:
        loop = asyncio.get_running_loop()
        async with connected(gateway) as client:
            await loop.sock_sendall(client, HEAD)
            answer = await asyncio.wait_for(loop.sock_recv(client, 65_536), SECONDS_MAX)
            begun = loop.time()
            assert await received(client) == b""
            return answer, loop.time() - begun

    boards = FakeBoards()
    boards.behave = lambda: asyncio.sleep(0.7)
    answer, idle_seconds = run(act, boards, keepalive_seconds=0.2)
    assert answer.startswith(b"HTTP/1.1 200")
    assert idle_seconds > 0.1


def test_expiry_spares_who_is_still_reading() -> None:
    """An answer that its client takes slowly is not cut when a connection may be idle no longer."""

    async def act(gateway: Gateway) -> bytes:
        async with connected(gateway, 16 * KIB) as client:
            await asyncio.get_running_loop().sock_sendall(client, HEAD)
            await until(lambda: slow_readers(gateway).unsent_bytes > 0, "the answer waits")
            await asyncio.sleep(0.5)
            return await received(client)

    assert Raw(run(act, LargeBoards(), keepalive_seconds=0.1)).body == LARGE


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (HEAD, 503, "board_unavailable"),
        (request(b"POST", EVENTS, b"", b"{}"), 504, "outcome_unknown"),
    ],
)
def test_a_deadline_is_an_answer(data: bytes, status: int, code: str) -> None:
    """A board that does not answer in time is 503, or 504 for a change; the connection goes on."""

    async def act(gateway: Gateway) -> Raw:
        loop = asyncio.get_running_loop()
        async with connected(gateway) as client:
            await loop.sock_sendall(client, data)
            answer = await asyncio.wait_for(loop.sock_recv(client, 65_536), SECONDS_MAX)
            boards.behave = lambda: None
            await loop.sock_sendall(client, request(b"GET", TOP, CLOSE))
            assert (await received(client)).startswith(b"HTTP/1.1 200")
            return Raw(answer)

    boards = FakeBoards()
    boards.behave = asyncio.Event().wait
    deadline = {"request_seconds_max": 0.2, "min_sequence_wait_seconds": 0.1}
    check_problem(run(act, boards, **deadline), status, code)


# Refusals in turn


def test_refusals_of_boards_are_written_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that callers would repeat at once take their turn, few at a time; others do not."""
    at_once: list[int] = []
    write = Refusals._write_some

    def counted(refusals: Refusals) -> None:
        before = len(refusals._waiting)
        write(refusals)
        at_once.append(before - len(refusals._waiting))

    monkeypatch.setattr(Refusals, "_write_some", counted)
    codes = ["board_unavailable", "not_yet", "board_not_found", "overloaded", "period_expired"]

    class Refusing(FakeBoards):
        async def ask(self, board: str, question: Question, min_sequence: int | None) -> bytes:
            raise Refusal(codes[int(board)], "planted")

    async def act(gateway: Gateway) -> list[bytes]:
        loop = asyncio.get_running_loop()
        found = []
        for number in range(len(codes)):
            at_once.clear()
            async with connected(gateway) as client:
                target = b"/v1/boards/%d/top" % number
                await loop.sock_sendall(client, request(b"GET", target, CLOSE))
                found.append((await received(client))[9:12])
            assert sum(at_once) == (found[-1] != b"410")
        at_once.clear()
        clients = 3 * WRITTEN_AT_ONCE
        refusals = [server_of(gateway).refusals.turn() for _ in range(clients)]
        await asyncio.gather(*refusals)
        assert at_once == [WRITTEN_AT_ONCE] * 3
        return found

    assert run(act, Refusing()) == [b"503", b"503", b"404", b"503", b"410"]


# Stopping


def test_a_stopping_node_answers_what_is_under_way_and_hangs_up() -> None:
    """A stop waits for the request under way, and takes none of those behind it, nor idle ones."""

    async def within() -> tuple[bytes, bytes]:
        async with (
            serving(boards) as gateway,
            connected(gateway) as idle,
            connected(gateway) as busy,
        ):
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(idle, request(b"GET", b"/healthz"))
            assert (await loop.sock_recv(idle, 65_536)).startswith(b"HTTP/1.1 200")
            await loop.sock_sendall(busy, HEAD * 3)
            await until(lambda: len(boards.calls) == 1, "it is under way")
            stopping = asyncio.create_task(gateway.stop())
            left = await received(idle)
            assert not stopping.done()
            release.set()
            await stopping
            return left, await received(busy)

    release = asyncio.Event()
    boards = FakeBoards()
    boards.behave = release.wait
    left, answers = uvloop.run(within())
    assert left == b""
    assert answers.count(b"HTTP/1.1 200") == 1
    assert len(boards.calls) == 1


def test_a_stop_waits_for_those_who_are_still_reading() -> None:
    """An answer that its client is taking when the node stops arrives as a whole."""

    async def within() -> bytes:
        async with serving(LargeBoards()) as gateway, connected(gateway, 16 * KIB) as client:
            await asyncio.get_running_loop().sock_sendall(client, HEAD)
            await until(lambda: slow_readers(gateway).unsent_bytes > 0, "the answer waits")
            stopping = asyncio.create_task(gateway.stop())
            await asyncio.sleep(0.2)
            assert not stopping.done()
            answer = await received(client)
            await stopping
            return answer

    assert Raw(uvloop.run(within())).body == LARGE


def test_a_stop_does_not_wait_for_ever() -> None:
    """A request that does not end within `drain_seconds` is given up, and its place given back."""

    async def within() -> int:
        async with serving(boards, drain_seconds=0.2) as gateway, connected(gateway) as client:
            await asyncio.get_running_loop().sock_sendall(client, HEAD)
            await until(lambda: len(boards.calls) == 1, "it is under way")
            async with asyncio.timeout(SECONDS_MAX):
                await gateway.stop()
            assert await received(client) == b""
            return load(gateway).requests

    boards = FakeBoards()
    boards.behave = asyncio.Event().wait
    assert uvloop.run(within()) == 0


@pytest.mark.parametrize("target", [b"/nope", b"/v1/boards/kept/top"])
def test_a_stop_lets_out_what_waits_its_turn(target: bytes) -> None:
    """An answer that is ready and has only to wait its turn is written before the node hangs up."""

    async def within() -> bytes:
        async with serving(RowBoards()) as gateway, connected(gateway) as client:
            for _ in range(50 * WRITTEN_AT_ONCE):
                server_of(gateway).refusals.add(lambda: None)  # of others, whose turn comes first
            await asyncio.get_running_loop().sock_sendall(client, request(b"GET", target))
            await until_taken(gateway)
            await gateway.stop()
            return await received(client)

    answer = Raw(uvloop.run(within()))
    assert answer.status in (200, 404)
    assert len(answer.body) == int(answer.headers["content-length"])


async def until_taken(gateway: Gateway) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        # Only yielding: on the clock, its turn would have come meanwhile.
        while not any(each._taken for each in server_of(gateway).connections):  # noqa: ASYNC110
            await asyncio.sleep(0)


def test_a_body_under_way_is_taken_by_a_stopping_node() -> None:
    """A request whose body is still coming when the node stops is answered, and hung up after."""
    body = b'{"member": "ada", "value": 1, "idempotency_key": "k"}'

    async def within() -> bytes:
        loop = asyncio.get_running_loop()
        async with (
            serving(boards, drain_seconds=SECONDS_MAX) as gateway,
            connected(gateway) as client,
        ):
            head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            length = b"Content-Length: %d\r\n\r\n" % len(body)
            await loop.sock_sendall(client, head % EVENTS + length + body[:10])
            await until(lambda: load(gateway).body_bytes == 10, "it is under way")
            stopping = asyncio.create_task(gateway.stop())
            await asyncio.sleep(0.1)
            await loop.sock_sendall(client, body[10:])
            answer = await received(client)
            await stopping
            return answer

    boards = FakeBoards()
    assert uvloop.run(within()).startswith(b"HTTP/1.1 200")
    assert len(boards.calls) == 1
