"""Rubbish for every call of a running node: no answer tells of its insides, no log of its callers.

The calls and their parameters come from the route table, so a new one is in here by itself.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import pytest

from node.routes import ROUTES, Route
from tests.running_node import RunningNode

SECRET = "hunter2hunter2"  # noqa: S105  (stands for what a caller would not want to find in a log)
ALLOWED_FAILURES = {503, 504, 507}
BOARDS = ("good", "cut", "flipped", "hollow", "missing")
SEGMENTS = ("%00", "%ff", "%zz", "..", "%2e%2e%2fetc%2fpasswd", "x" * 300, "%F0%9F%8F%81", "a b",
            "%7f", "-1", "9" * 100, "%ED%A0%80", "{board}", SECRET)  # fmt: skip
VALUES = ("", "-1", "0", "9" * 400, "1e400", "NaN", "true", "null", "[]", "%00", "%ff", "%",
          "'", "1,2", "daily:9999-99-99", "daily:2026-02-30", "../..", "x" * 2_000,
          SECRET)  # fmt: skip
JSON_BODIES = (
    b"{", b"null", b"[]", b"7", b'""', b"\xff\xfe", b"\x00", b"{}", b'{"events":1}',
    b'{"events":[]}', b'{"events":[1,null,{}]}', b"[" * 50_000, b'{"a":' * 50_000,
    b'{"member":"\\ud800"}',
    b'{"member":"m","value":1e999,"idempotency_key":"k"}',
    b'{"member":"m","value":%s,"idempotency_key":"k"}' % (b"9" * 5_000),
    b'{"member":"m","value":NaN,"idempotency_key":"k"}',
    b'{"member":"m\\u0000","value":1,"idempotency_key":"k"}',
    b'{"member":"m","value":true,"idempotency_key":"k","occurred_at":"9999-99-99T00:00:00Z"}',
    b'{"member":"m","value":[[[1]]],"idempotency_key":{}}',
    b'{"aggregation":"%s"}' % SECRET.encode(),
    b'{"aggregation":"best","periods":["all_time"],"timezone":"../../etc/passwd"}',
    b'{"aggregation":"best","periods":[{"name":"x","start":"1","end":"0"}]}',
    b'{"aggregation":"best","score":[]}', b'{"min_value":"%s"}' % SECRET.encode(),
    b'{"actor":7,"reason":[]}', b'{"%s":1}' % SECRET.encode(),
    b'{"actor":"%s\\u0000","reason":"%s"}' % (SECRET.encode(), SECRET.encode()),
    b'{"status":"%s","note":"n","actor":"m"}' % SECRET.encode(),
    b'{"display_name":"%s"}' % (SECRET.encode() * 100), b'{"extra":{"%s":1e999}}' % SECRET.encode(),
    b'{"events":[{"board":"%s"},{"board":"good","member":"\\ud800"}]}' % SECRET.encode(),
    b'{"events":[{}', b'{"members":["%s\\u0000"]}' % SECRET.encode(),
)  # fmt: skip
PACKED_BODIES = (
    b"\xc1", b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
    b"\xdc\xff\xff", b"\x93\x01", b"\x91" * 50_000, b"\x81" * 50_000, b"\xc7\x01\x05x",
    b"\xd6\xff\x00\x00\x00\x00", b"\x81\xa5extra\x81\xa1a\xc4\x01x", b"\x81\xa5extra\x81\x01\x01",
    b"\x81\xa5extra\x81\xa1a\xc7\x01\x05x", b"\x81\xa5extra\x81\x81\x01\x02\x03",
    b"\x81\xa5extra\x81\xa1a" + b"\x91" * 900 + b"\xc0", b"\x81\xa6events\x91\x81",
    b"\x81\xa6member\xa1\xff", b"\x81\xc0\xc0", b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", b"\xc0",
    b"\x83\xa6member\xa1m\xa5value\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00\xafidempotency_key\xa1k",
)  # fmt: skip
HEADERS = (
    f"Accept: {SECRET}", "Accept: application/msgpack", "Content-Type: text/plain",
    "Content-Encoding: gzip", f"X-Request-Id: {'x' * 500}", "X-Request-Id: \x7f\xff",
    f"Authorization: Bearer rnk_x_{SECRET}", f"Authorization: {SECRET}", "Expect: 200-ok",
    f"Cookie: session={SECRET}", "Upgrade: websocket\r\nConnection: upgrade, close",
    "Transfer-Encoding: gzip", "Content-Length: -1", "Host: [", f"If-Match: {SECRET}",
)  # fmt: skip
INSIDES = re.compile(
    rb"Traceback|\.py\b|\.mdb|\.msgpack\b|\.snapshot\b|\b(?:actors|persistence|node)\.[a-z]"
    rb"|\b(?:aiohttp|uvloop|asyncio|msgspec|lmdb|ray|python|llhttp|pydantic)\b"
    rb"|Error\(|Exception|0x[0-9a-f]{6,}|File \"",
    re.IGNORECASE,
)

MakeNode = Callable[..., RunningNode]


def request(
    method: str, target: str, body: bytes | None = None, packed: bool = False, extra: str = ""
) -> bytes:
    kind = "msgpack" if packed else "json"
    lines = [f"{method} {target} HTTP/1.1"]
    if not extra.startswith("Host"):
        lines.append("Host: localhost")
    lines += ["Connection: close"] * ("Connection" not in extra)
    if body is not None:
        lines += [f"Content-Type: application/{kind}"] * (not extra.startswith("Content-Type"))
        lines += [f"Content-Length: {len(body)}"] * ("-Length" not in extra and "Tra" not in extra)
    lines += [extra] * bool(extra)
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def paths_of(route: Route, board: str) -> Iterator[str]:
    """Yield the route's path for a board, then with rubbish in each parameter."""
    path = route.path.replace("{board}", board)
    sound = {"{member}": "m1", "{sequence}": "2", "{dispute}": "1"}
    parameters = re.findall(r"\{[a-z]+\}", path)

    def fill(rubbish: dict[str, str]) -> str:
        return re.sub(r"\{[a-z]+\}", lambda m: rubbish.get(m[0], sound.get(m[0], "1")), path)

    yield fill({})
    for parameter in parameters:
        for segment in SEGMENTS:
            yield fill({parameter: segment})


def needed_by(route: Route) -> str:
    """Write the query without which the call is refused for that alone."""
    names = [parameter.name for parameter in route.query if parameter.required]
    names += ["rank"] * (route.name == "around")
    return "&".join(f"{name}=1" for name in names)


def requests_of(route: Route, board: str) -> Iterator[bytes]:
    """Yield the sound request of a route, and every rubbish one."""
    needed = needed_by(route)
    sound, *odd = paths_of(route, board)
    body = b"{}" if route.body else None
    for path in (sound, *odd, route.path, sound + "/", sound.replace("/v1", "/v1%2f")):
        yield request(route.method, f"{path}?{needed}", body)
    if board == "good":
        for segment in SEGMENTS:
            yield request(route.method, route.path.replace("{board}", segment), body)
    for parameter in route.query:
        others = "&".join(p for p in needed.split("&") if not p.startswith(parameter.name))
        for value in VALUES:
            yield request(route.method, f"{sound}?{others}&{parameter.name}={value}", body)
    yield request(route.method, f"{sound}?{SECRET}={SECRET}", body)
    for extra in HEADERS:
        yield request(route.method, f"{sound}?{needed}", body, extra=extra)
    if route.body:
        for packed, bodies in ((False, JSON_BODIES), (True, PACKED_BODIES)):
            for rubbish in bodies:
                yield request(route.method, sound, rubbish, packed)
                yield request(route.method, sound, rubbish, not packed)
    for method in ("OPTIONS", "TRACE", "CONNECT", "BREW", "\x01"):
        yield request(method, sound)


def answer(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 30) as client:
        client.sendall(data)
        received = b""
        while part := client.recv(1 << 20):
            received += part
    return received


@pytest.fixture
def node(make_node: MakeNode) -> RunningNode:
    """Start a node with a sound board, and damaged ones."""
    node = make_node().start()
    for board in BOARDS[:-1]:
        assert node.call("PUT", f"/v1/boards/{board}", {"aggregation": "sum"})[0] == 201
        events = [
            {"member": f"m{i}", "value": i, "idempotency_key": f"{SECRET}-{i}"} for i in range(50)
        ]
        assert node.call("POST", f"/v1/boards/{board}/events", {"events": events})[0] == 200
    assert node.stop() == 0
    boards = node.data / "boards"
    for board in ("cut", "flipped"):
        shutil.rmtree(boards / board / "snapshots")
    log = boards / "cut" / "log" / "00000001" / "data.mdb"
    os.truncate(log, log.stat().st_size // 2)
    log = boards / "flipped" / "log" / "00000001" / "data.mdb"
    content = bytearray(log.read_bytes())
    content[content.index(b"m1m2m3")] ^= 1
    log.write_bytes(content)
    shutil.rmtree(boards / "hollow")
    (boards / "hollow").mkdir()
    return node.start()


def test_answers_and_logs_keep_secrets(node: RunningNode) -> None:
    """Whatever is sent to any call, no answer shows the node's insides, and no log the body."""
    insides = [str(node.data).encode(), str(node.directory).encode(), b"/site-packages"]
    insides += [aiohttp.__version__.encode(), f"Python/{platform.python_version()}".encode()]
    statuses: dict[int, int] = {}
    found: list[Any] = []
    for route in sorted(ROUTES, key=lambda route: route.name == "deleteBoard"):
        boards = BOARDS if "{board}" in route.path else ("good",)
        for board in boards:
            if (route.name, board) == ("deleteBoard", "good"):
                assert node.ask("/v1/boards/good/top?limit=1")["members"] >= 50
            for data in requests_of(route, board):
                received = answer(node.port, data)
                status = int(received[9:12] or 0)
                statuses[status] = statuses.get(status, 0) + 1
                head = data[:200]
                if status == 0 or (status >= 500 and status not in ALLOWED_FAILURES):
                    found.append((status, head, received[:500]))
                # The figures say which versions run here, to those who may see them.
                figures = route.name == "metrics" and status == 200
                shown = None if figures else INSIDES.search(received)
                if shown or any(inside in received for inside in insides):
                    found.append((shown, head, received[:500]))
                if b"\r\nServer: ranknode\r\n" not in received:
                    found.append(("Server", head, received[:500]))
    assert found == []
    assert statuses.keys() >= {200, 400, 404, 405, 406, 415, 422, 503}, "the rubbish is refused"
    assert node.ask("/readyz") == {"status": "ready"}
    assert node.stop() == 0
    log = node.output.read_text()
    assert SECRET not in log
    assert "Traceback" not in log
    assert "cannot be brought up" in log, "the log says what the answers do not"
