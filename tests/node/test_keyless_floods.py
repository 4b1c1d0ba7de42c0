"""Crowds without a good key: they take nobody's place, and keep nobody waiting."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from node.gateway import Gateway
from node.refusals import WRITTEN_AT_ONCE, Refusals
from node.routes import ROUTES
from tests.node.fake_boards import FakeBoards, Raw, check_problem, serving
from tests.node.key_samples import add_key, add_signing_key, signed

SECONDS_MAX = 20.0  # for what must come about at all
TOP = "/v1/boards/arena/top"
EVENTS = "/v1/boards/arena/events"
FLOOD = """
import selectors, socket, sys
port, count, request = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
selector = selectors.DefaultSelector()
for _ in range(count):
    client = socket.create_connection(("127.0.0.1", port))
    client.setblocking(False)
    client.send(request)
    selector.register(client, selectors.EVENT_READ)
answers = 0
while True:
    for key, _ in selector.select():
        assert key.fileobj.recv(65536)[9:12] in (b"401", b"404", b"429")
        key.fileobj.send(request)
        answers += 1
        if answers == 2 * count:
            print("begun", flush=True)
"""
FLOODERS = 300
FRESH_CLIENTS = 10


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def written(method: str, target: str, headers: dict[str, str], body: bytes | None = None) -> bytes:
    """Write a request whose connection stays open."""
    lines = [f"{method} {target} HTTP/1.1", "Host: test"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


class Client:
    """A client that keeps its connection."""

    def __init__(self, gateway: Gateway) -> None:
        self._port = gateway.port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, *parts: bytes) -> Raw:
        """Send a request, in one go or in parts, and read its answer."""
        async with asyncio.timeout(SECONDS_MAX):
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            for part in parts:
                writer.write(part)
                await asyncio.sleep(0.02 if len(parts) > 1 else 0)
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(Raw(head).headers.get("content-length", "0"))
            return Raw(head + await reader.readexactly(size))

    def end(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


def run(
    act: Callable[[Gateway, Callable[[], Client]], Awaitable[Any]],
    data: Path,
    boards: FakeBoards | None = None,
    **settings: Any,
) -> Any:
    """Do something with a gateway and clients; afterwards no request may hold a place."""

    async def within() -> Any:
        clients: list[Client] = []
        async with serving(boards or FakeBoards(), data, **settings) as gateway:

            def client() -> Client:
                clients.append(Client(gateway))
                return clients[-1]

            try:
                result = await act(gateway, client)
            finally:
                for each in clients:
                    each.end()
            assert gateway._load.requests == 0
            return result

    return uvloop.run(within())  # the loop that a node runs on


def in_parts(request: bytes) -> tuple[bytes, ...]:
    head, end, body = request.partition(b"\r\n\r\n")
    return (head + end, body) if body else (head, end)


@pytest.mark.parametrize("whole", [True, False])
def test_who_may_not_call_takes_no_place(whole: bool, tmp_path: Path) -> None:
    """Crowds without a key, or with one that is not for the call, leave the places to others."""
    good = written("POST", EVENTS, bearer(add_key(tmp_path, "submit")), b"{}")
    elsewhere = bearer(add_key(tmp_path, "submit", boards=("other",)))
    crowd = [written("POST", EVENTS, {}, b"{}"), written("POST", EVENTS, elsewhere, b"{}")]

    async def act(_: Gateway, client: Callable[[], Client]) -> tuple[Counter[int], list[int]]:
        requests = [request if whole else in_parts(request) for request in crowd * 20]
        flood = [
            client().ask(*(request if isinstance(request, tuple) else (request,)))
            for request in requests
        ]
        answers = await asyncio.gather(*flood, client().ask(good), client().ask(good))
        statuses = [answer.status for answer in answers]
        return Counter(statuses[:-2]), statuses[-2:]

    settings = {"requests_max": 2, "auth_failures_burst": 1_000}
    refused, served = run(act, tmp_path, **settings)
    assert refused == {401: 20, 403: 20}
    assert served == [200, 200]


@pytest.mark.parametrize("whole", [True, False])
def test_only_who_may_call_learns_that_there_is_no_room(whole: bool, tmp_path: Path) -> None:
    """While every place is taken the answers to others are the same as ever: 401, 403 and 429."""
    good = bearer(add_key(tmp_path, "submit"))
    reader = bearer(add_key(tmp_path, "read"))
    slow = bearer(add_key(tmp_path, "submit", requests_per_second=0.01))
    release = asyncio.Event()
    boards = FakeBoards()
    boards.behave = release.wait

    async def act(gateway: Gateway, client: Callable[[], Client]) -> list[Raw]:
        async def ask(headers: dict[str, str]) -> Raw:
            request = written("POST", EVENTS, headers, b"{}")
            return await client().ask(*([request] if whole else in_parts(request)))

        hanging = asyncio.create_task(client().ask(written("GET", TOP, good)))
        async with asyncio.timeout(SECONDS_MAX):
            while not boards.calls:  # noqa: ASYNC110  (what is waited for is not this test's)
                await asyncio.sleep(0.01)
        callers = ({}, {}, bearer("rnk_x"), reader, slow, slow, good)
        answers = [await ask(headers) for headers in callers]
        assert gateway._load.requests == 1
        release.set()
        assert (await hanging).status == 200
        return answers

    answers = run(act, tmp_path, boards, requests_max=1, auth_failures_burst=2)
    expected = [
        (401, "unauthenticated"), (401, "unauthenticated"), (429, "rate_limited"),
        (403, "forbidden"), (503, "overloaded"), (429, "rate_limited"), (503, "overloaded"),
    ]  # fmt: skip
    for answer, (status, code) in zip(answers, expected, strict=True):
        check_problem(answer, status, code)
        assert answer.headers.get("www-authenticate") == ("Bearer" if status == 401 else None)


def test_what_is_decided_early_is_decided_alike(tmp_path: Path) -> None:
    """Every call of the table has one status and body for a caller, whole or sent in parts."""
    keys: list[dict[str, str]] = [{}, bearer("rnk_x")]
    keys += [bearer(add_key(tmp_path, scope)) for scope in ("read", "submit", "admin")]
    keys.append(bearer(add_key(tmp_path, "admin", boards=("other",))))
    signing = add_signing_key(tmp_path, "submit")
    seen: Counter[int] = Counter()

    async def act(_: Gateway, client: Callable[[], Client]) -> None:
        for route in ROUTES:
            target = route.path.replace("{board}", "arena").replace("{member}", "ada")
            body = b"{}" if route.body else None
            for headers in (*keys, signed(*signing, route.method, target, body)):
                request = written(route.method, target, headers, body)
                early = await client().ask(request)
                late = await client().ask(*in_parts(request))
                where = (route.name, headers)
                same_body = early.body == late.body or route.name == "metrics"  # it counts both
                assert (early.status, same_body) == (late.status, True), where
                seen[early.status] += 1

    run(act, tmp_path, auth_failures_burst=1_000)
    assert {200, 401, 403} <= set(seen)


def test_a_foreign_host_takes_no_place(tmp_path: Path) -> None:
    """On a node without keys, what is refused for its Host leaves the places to others."""
    good = written("POST", EVENTS, {}, b"{}")
    foreign = good.replace(b"Host: test", b"Host: elsewhere.example")

    async def act(_: Gateway, client: Callable[[], Client]) -> list[int]:
        flood = [client().ask(foreign) for _ in range(20)]
        answers = await asyncio.gather(*flood, client().ask(good))
        return [answer.status for answer in answers]

    assert run(act, tmp_path, requests_max=1) == [403] * 20 + [200]


def test_a_call_counts_once_against_its_keys_rate(tmp_path: Path) -> None:
    """What is decided early is not decided, nor counted, again."""
    request = written("GET", TOP, bearer(add_key(tmp_path, "read")))

    async def act(_: Gateway, client: Callable[[], Client]) -> list[int]:
        caller = client()
        return [(await caller.ask(request)).status for _ in range(6)]

    settings = {"key_requests_per_second": 0.01, "key_requests_burst": 5}
    assert run(act, tmp_path, **settings) == [200] * 5 + [429]


def test_a_signed_body_is_checked_after_an_early_decision(tmp_path: Path) -> None:
    """Another body than the one that was signed is refused, though the head was good."""
    key_id, private_key = add_signing_key(tmp_path, "submit")
    boards = FakeBoards()
    headers = signed(key_id, private_key, "POST", EVENTS, b"{}")

    async def act(_: Gateway, client: Callable[[], Client]) -> list[int]:
        bodies = (b"{}", b"[]")
        return [
            (await client().ask(written("POST", EVENTS, headers, body))).status for body in bodies
        ]

    assert run(act, tmp_path, boards) == [200, 401]
    assert len(boards.calls) == 1


def test_refusals_in_the_usual_way_take_turns() -> None:
    """No more of them than of the early ones go on in one turn of the loop; all do in the end."""

    async def act() -> list[int]:
        refusals, done = Refusals(), 0

        async def wait() -> None:
            nonlocal done
            await refusals.turn()
            done += 1

        waiting = [asyncio.create_task(wait()) for _ in range(3 * WRITTEN_AT_ONCE)]
        counts = [done]
        while done < len(waiting):
            await asyncio.sleep(0)
            counts.append(done)
        return counts

    async def bounded() -> list[int]:
        async with asyncio.timeout(SECONDS_MAX):
            return await act()

    counts = asyncio.run(bounded())
    steps = [after - before for before, after in itertools.pairwise(counts)]
    assert max(steps) == WRITTEN_AT_ONCE
    assert sum(steps) == 3 * WRITTEN_AT_ONCE


@pytest.fixture
def flood() -> Iterator[Callable[[Gateway, bytes], subprocess.Popen[bytes]]]:
    """Start floods by a process of their own, which ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(gateway: Gateway, request: bytes) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", FLOOD, str(gateway.port), str(FLOODERS), request.decode()]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "request_of_many",
    [
        written("POST", EVENTS, {}, b"{}"),
        written("HEAD", TOP, {}),
        written("GET", "/nowhere", {}),
    ],
    ids=["whole", "the usual way", "nowhere"],
)
def test_a_flood_without_keys_leaves_room_for_newcomers(
    request_of_many: bytes,
    tmp_path: Path,
    flood: Callable[[Gateway, bytes], subprocess.Popen[bytes]],
) -> None:
    """A client that connects during the flood is answered within the deadline of a request."""
    good = written("GET", TOP, bearer(add_key(tmp_path, "read")))

    async def act(gateway: Gateway, client: Callable[[], Client]) -> list[int]:
        flooding = flood(gateway, request_of_many)
        assert flooding.stdout is not None
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(SECONDS_MAX):
            assert await loop.run_in_executor(None, flooding.stdout.readline) == b"begun\n"
        statuses = []
        for _ in range(FRESH_CLIENTS):
            async with asyncio.timeout(gateway._config.request_seconds_max):
                statuses.append((await client().ask(good)).status)
        assert flooding.poll() is None, "the flood goes on all the while"
        return statuses

    assert run(act, tmp_path) == [200] * FRESH_CLIENTS
