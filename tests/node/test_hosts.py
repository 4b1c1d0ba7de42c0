"""What a page in a browser on this machine can do to a node without keys: nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from node.config import ConfigError, load
from node.keys import Scope
from node.routes import ROUTES
from tests.node.fake_boards import FakeBoards, Raw, call, check_problem, exchange, serving
from tests.node.key_samples import add_key

TOP = "/v1/boards/b/top"
LOOPBACK = ["localhost", "LocalHost:8080", "127.0.0.1", "127.8.9.10:1", "[::1]", "[::1]:8080"]
FOREIGN = ["evil.example", "localhost.evil.example", "evil.example:8080", "192.168.1.4", "[::2]",
           "127.0.0.1.evil.example", "localhost:80:80", "::1", "", "[localhost"]  # fmt: skip


def ask(host: bytes, boards: FakeBoards, data: Path | None = None, **settings: object) -> Raw:
    """Ask for the top with this Host header; the tests' own names are not allowed."""

    async def run() -> Raw:
        request = b"GET %s HTTP/1.1\r\nConnection: close\r\n%s\r\n\r\n" % (TOP.encode(), host)
        allowed = {"hosts_allowed": ()} | settings
        async with serving(boards, data, **allowed) as gateway:
            return await exchange(gateway.port, request)

    return asyncio.run(run())


@pytest.mark.parametrize("host", LOOPBACK)
def test_the_machines_own_names_are_answered(host: str) -> None:
    """Without keys a node answers to every name of the loopback, with any port."""
    boards = FakeBoards()
    assert ask(b"Host: " + host.encode(), boards).status == 200
    assert len(boards.calls) == 1


@pytest.mark.parametrize("host", FOREIGN)
def test_a_rebound_name_is_refused(host: str) -> None:
    """Without keys a Host that is not the machine's own is 403, and no board hears of it."""
    boards = FakeBoards()
    answer = ask(b"Host: " + host.encode(), boards)
    assert "hosts_allowed" in check_problem(answer, 403, "forbidden")["detail"]
    assert boards.calls == []


@pytest.mark.parametrize(
    ("authority", "status"),
    [("localhost:8080", 200), ("[::1]", 200), ("evil.example", 403), ("a@127.0.0.1", 403)],
)
def test_a_host_in_the_target_is_checked_too(authority: str, status: int) -> None:
    """A target that is a whole URL names a host as well, whatever the Host header says."""

    async def run() -> Raw:
        request = (
            f"GET http://{authority}{TOP} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        )
        async with serving(boards, hosts_allowed=()) as gateway:
            return await exchange(gateway.port, request.encode() + b"\r\n")

    boards = FakeBoards()
    assert asyncio.run(run()).status == status
    assert len(boards.calls) == (status == 200)


def test_a_name_can_be_allowed() -> None:
    """hosts_allowed adds names, in any case and with any port, and only those."""
    for host, status in ((b"ranks.lan", 200), (b"RANKS.lan:81", 200), (b"x.ranks.lan", 403)):
        answer = ask(b"Host: " + host, FakeBoards(), hosts_allowed=("Ranks.LAN",))
        assert answer.status == status, host


def test_names_are_read_from_the_environment() -> None:
    """In the environment names are joined by commas; what is no name is refused."""
    environment = {"RANKNODE_HOSTS_ALLOWED": "ranks.lan,10.1.2.3"}
    assert load(None, environment, {"data_directory": "d"}).hosts_allowed == (
        "ranks.lan",
        "10.1.2.3",
    )
    with pytest.raises(ConfigError, match=r"(?i)hosts_allowed"):
        load(None, {"RANKNODE_HOSTS_ALLOWED": "a b"}, {"data_directory": "d"})


def test_a_client_that_is_no_browser_needs_no_host() -> None:
    """HTTP/1.0 without Host is answered: no browser sends that."""

    async def run() -> Raw:
        async with serving(FakeBoards(), hosts_allowed=()) as gateway:
            return await exchange(gateway.port, b"GET %s HTTP/1.0\r\n\r\n" % TOP.encode())

    assert asyncio.run(run()).status == 200


def test_with_keys_every_name_is_answered(tmp_path: Path) -> None:
    """A node with keys may be called by any name: a page has no key."""
    key = add_key(tmp_path, Scope.READ)
    boards = FakeBoards()
    lines = b"Host: ranks.example.com\r\nAuthorization: Bearer " + key.encode()
    assert ask(lines, boards, tmp_path).status == 200
    check_problem(ask(b"Host: ranks.example.com", boards, tmp_path), 401, "unauthenticated")
    assert len(boards.calls) == 1


def test_no_preflight_is_answered() -> None:
    """No path answers OPTIONS, and no answer lets another origin read it."""

    async def run() -> list[tuple[Raw, Raw]]:
        answers = []
        async with serving(boards, hosts_allowed=("test",)) as gateway:
            for route in ROUTES:
                path = route.path.format(board="b", member="m", sequence=1, dispute=1)
                origin = {"Origin": "https://evil.example"}
                preflight = await call(
                    gateway.port,
                    "OPTIONS",
                    path,
                    Access_Control_Request_Method=route.method,
                    Access_Control_Request_Headers="content-type",
                    **origin,
                )
                body = b"{}" if route.body else None
                answers.append(
                    (preflight, await call(gateway.port, route.method, path, body, **origin))
                )
        return answers

    boards = FakeBoards()
    for preflight, answer in asyncio.run(run()):
        check_problem(preflight, 405, "method_not_allowed")
        for headers in (preflight.headers, answer.headers):
            assert not [name for name in headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_what_a_form_can_send_changes_nothing(content_type: str) -> None:
    """A body of a type that needs no preflight is refused by every call that takes one."""

    async def run() -> list[Raw]:
        async with serving(boards) as gateway:
            return [
                await call(
                    gateway.port,
                    route.method,
                    route.path.format(board="b", member="m", sequence=1, dispute=1),
                    b'{"a":"="}',
                    Content_Type=content_type,
                )
                for route in ROUTES
                if route.body
            ]

    boards = FakeBoards()
    for answer in asyncio.run(run()):
        check_problem(answer, 415, "unsupported_media_type")
    assert boards.calls == []


def test_what_needs_no_preflight_changes_nothing() -> None:
    """GET and HEAD change nothing, and POST always takes a body with a type: no other is simple."""
    for route in ROUTES:
        assert not (route.method == "GET" and route.changes), route.path
        assert route.body or route.method != "POST", route.path
