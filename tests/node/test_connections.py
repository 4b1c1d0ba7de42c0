from __future__ import annotations

import asyncio
import json
import logging
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from node import descriptors
from node.config import Config
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
from tests.running_node import RunningNode

IDLE = """
import resource, socket, sys
port, count = int(sys.argv[1]), int(sys.argv[2])
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(count)]
print("held", flush=True)
sys.stdin.read()
"""
IDLE_MAX = 10_000
IDLE_BYTES_MAX = 32 * 1024  # of the node's memory for each; 7,500 were measured
HELPER_DESCRIPTORS = 100  # what the process that holds them needs besides


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "malformed_request"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n", 400, "malformed_request"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 2\r\n\r\n", 400, "malformed_request"),
        (b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 5000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100 + b"\r\n", 400, "malformed_request"),
        (b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n", 400, "malformed_request"),
        (b"GET /healthz HTTP/0.9\r\nHost: x\r\n\r\n", 400, "malformed_request"),
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


def private_bytes(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    (resident,) = [line for line in lines if line.startswith("RssAnon:")]
    return int(resident.split()[1]) * 1024


def test_ten_thousand_idle_connections(make_node: Callable[..., RunningNode]) -> None:
    """Ten thousand silent connections leave a node quick to answer others, and cost little."""
    config = make_node().data.with_name("idle.toml")
    config.write_text("header_seconds_max = 600\n")
    node = make_node("data", "--config", str(config)).start()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserved = descriptors.reserved(Config(data_directory="d")) + HELPER_DESCRIPTORS
    count = min(IDLE_MAX, hard - reserved) - 10  # room for those who ask meanwhile
    before = private_bytes(node.process.pid)
    helper = subprocess.Popen(
        [sys.executable, "-c", IDLE, str(node.port), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert helper.stdout is not None
        assert helper.stdout.readline() == b"held\n"
        assert node.call("PUT", "/v1/boards/b", {"aggregation": "sum"})[0] == 201
        event = {"member": "m", "value": 1, "idempotency_key": "k"}
        assert node.call("POST", "/v1/boards/b/events", event)[0] == 200
        assert node.ask("/v1/boards/b/top")["members"] == 1
        grown = private_bytes(node.process.pid) - before
        each = grown // count
        assert each < IDLE_BYTES_MAX, f"{count} idle connections take {each} bytes each"
        assert helper.poll() is None, "they are held all the while"
    finally:
        helper.kill()
        helper.communicate()
    assert node.call("GET", "/readyz")[0] == 200
    assert node.stop() == 0


def test_a_node_takes_the_descriptors_there_are(
    make_node: Callable[..., RunningNode],
) -> None:
    """A node raises its soft limit of descriptors to the hard one when it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1_024, hard), hard))
    try:
        node = make_node().start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    limits = Path(f"/proc/{node.process.pid}/limits").read_text()
    (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
    assert line.split()[3] == line.split()[4]
    assert node.stop() == 0


def test_connections_that_do_not_fit_are_said(caplog: pytest.LogCaptureFixture) -> None:
    """More connections than descriptors are said in the log, and as many are taken as fit."""
    config = Config(data_directory="d", connections_max=1_000, boards_active_max=1)
    reserved = descriptors.reserved(config)
    with caplog.at_level(logging.ERROR):
        assert descriptors.fit_connections(config, 1_000 + reserved) == config
        assert not caplog.records
        fitted = descriptors.fit_connections(config, 999 + reserved)
    assert fitted.connections_max == 999
    (record,) = caplog.records
    for part in ("connections_max", "1000", "999", "ulimit -n", "LimitNOFILE"):
        assert part in record.getMessage()
