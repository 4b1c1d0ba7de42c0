from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.errors import Refusal
from node.access import check_reach
from node.config import ConfigError
from node.key_file import FILE, KeyFile, KeysUnreadableError
from node.keys import Credential, Scope, hash_of, new_secret
from node.routes import ROUTES, Route
from tests.node.access_samples import alike, keyed, request
from tests.node.fake_boards import (
    FakeBoards,
    Raw,
    call,
    check_problem,
    serving,
)
from tests.node.key_samples import add_key, add_signing_key, change_key, revoke, signed

__all__ = ["keyed"]

NAMING_BOARDS = {"submitRoutedEvents", "memberPlaces"}  # in a body or a query
OPEN = [route for route in ROUTES if route.scope is Scope.OPEN]
GUARDED = [route for route in ROUTES if route.scope is not Scope.OPEN]


# The matrix


def test_every_route_declares_a_scope() -> None:
    """No call is without a scope, and only what tells nothing of a board is open to everyone."""
    assert all(isinstance(route.scope, Scope) for route in ROUTES)
    assert {route.path for route in OPEN} == {"/healthz", "/readyz", "/openapi.json"}
    for route in ROUTES:
        submits = route.name in ("submitEvents", "submitRoutedEvents", "openDispute")
        assert (route.scope is Scope.SUBMIT) == submits
        assert route.scope is Scope.ADMIN or submits or not route.changes


def test_a_call_whose_path_names_no_board_is_known() -> None:
    """Calls that the gateway cannot check by their path check by themselves which boards they show.

    A new one belongs here together with a test that it does.
    """
    without = {route.name for route in GUARDED if "{board}" not in route.path}
    assert without == {"listBoards", "eraseMemberEverywhere", "metrics", *NAMING_BOARDS}


CALLERS = ("none", "bad", "revoked", "expired", "read", "submit", "admin", "elsewhere")


def expected(route: Route, caller: str) -> int:
    """Say what a call must come to."""
    if route.scope is Scope.OPEN:
        return 200
    if caller in ("none", "bad", "revoked", "expired"):
        return 401
    if caller == "elsewhere":
        return 403 if "{board}" in route.path or route.name in NAMING_BOARDS else 200
    allowed = {
        "read": {Scope.READ}, "submit": {Scope.READ, Scope.SUBMIT}, "admin": set(Scope),
    }[caller]  # fmt: skip
    return 200 if route.scope in allowed else 403


def test_every_route_lets_in_whom_it_should(keyed: dict[str, Any]) -> None:
    """Every route of the table answers every kind of caller as its scope and boards say."""
    boards = FakeBoards()
    seen: dict[int, set[Any]] = {401: set(), 403: set()}

    async def run() -> None:
        async with serving(boards, keyed["data"], auth_failures_burst=1000) as gateway:
            for route in ROUTES:
                for caller in CALLERS:
                    boards.calls.clear()
                    answer = await request(gateway, route, keyed[caller])
                    status = expected(route, caller)
                    where = (route.name, caller, answer.body)
                    if status == 200:
                        assert answer.status in route.answers, where
                    else:
                        assert answer.status == status, where
                        assert boards.calls == [], where
                        seen[status].add(repr(alike(answer)))

    asyncio.run(run())
    assert {status: len(answers) for status, answers in seen.items()} == {401: 1, 403: 1}


def test_on_a_node_without_keys_everyone_may_do_everything(tmp_path: Path) -> None:
    """Without a file every call of the table is let in, with a key of somewhere else too."""
    boards = FakeBoards()

    async def run() -> None:
        async with serving(boards, tmp_path) as gateway:
            for route in ROUTES:
                for key in (None, "rnk_x", f"rnk_{'0' * 12}_{new_secret()}"):
                    answer = await request(gateway, route, key)
                    assert answer.status in route.answers, (route.name, answer.body)

    asyncio.run(run())


# Failures are alike


def test_every_failed_authentication_is_one_answer(keyed: dict[str, Any]) -> None:
    """Missing, malformed, unknown, wrong, revoked, expired, stale: one status, body and headers."""
    target = "/v1/boards/arena/top"
    key_id, private_key = add_signing_key(keyed["data"], "submit")
    stale = signed(key_id, private_key, "GET", target, created=1)
    forged = signed("0" * 12, private_key, "GET", target)
    good = keyed["read"]
    tries: list[dict[str, str]] = [
        {}, stale, forged, signed(key_id, private_key, "GET", "/v1/boards"),
        *({"Authorization": text} for text in (
            "", "Bearer", "Bearer ", good, f"Basic {good}", f"Bearer{good}", f"Bearer {good}x",
            f"Bearer {good},", f"Bearer {good} {good}", f"Bearer rnk_{'0' * 12}_{new_secret()}",
            f"Bearer {keyed['bad']}", f"Bearer {keyed['revoked']}", f"Bearer {keyed['expired']}",
            "Bearer é", "Bearer " + "x" * 5000,
        )),
        {"Authorization": f"Bearer {good}", "authorization": f"Bearer {good}"},
    ]  # fmt: skip
    boards = FakeBoards()

    async def run() -> set[str]:
        async with serving(boards, keyed["data"], auth_failures_burst=1000) as gateway:
            answers = [await call(gateway.port, "GET", target, **headers) for headers in tries]
            for answer in answers:
                check_problem(answer, 401, "unauthenticated")
                assert answer.headers["www-authenticate"] == "Bearer"
            return {repr(alike(answer)) for answer in answers}

    assert len(asyncio.run(run())) == 1
    assert boards.calls == []


def test_a_key_is_read_as_http_has_it(keyed: dict[str, Any]) -> None:
    """The scheme's name is of any case, and spaces before the key do not matter (RFC 9110)."""

    async def run() -> list[int]:
        async with serving(FakeBoards(), keyed["data"]) as gateway:
            return [
                (await call(gateway.port, "GET", "/v1/boards/a/top", Authorization=text)).status
                for text in (f"bearer {keyed['read']}", f"BEARER   {keyed['read']}")
            ]

    assert asyncio.run(run()) == [200, 200]


@pytest.mark.parametrize("board", ["arena", "missing", "NOT-AN-ID", "%2e%2e", "x" * 200])
def test_a_lack_of_permission_tells_nothing_of_the_board(board: str, keyed: dict[str, Any]) -> None:
    """What a key is not for is 403 before a look at it: there, missing, or no board's id at all."""

    def missing() -> None:
        raise Refusal("board_not_found", "there is none")

    boards = FakeBoards()
    boards.behave = missing

    async def run() -> tuple[Raw, Raw, Raw]:
        async with serving(boards, keyed["data"]) as gateway:
            top = f"/v1/boards/{board}/top"
            elsewhere = {"Authorization": f"Bearer {keyed['elsewhere']}"}
            reader = {"Authorization": f"Bearer {keyed['read']}"}
            return (
                await call(gateway.port, "GET", top + "?limit=x", **elsewhere),
                await call(gateway.port, "DELETE", f"/v1/boards/{board}", **reader),
                await call(gateway.port, "GET", "/v1/boards/other/top", **elsewhere),
            )

    by_pattern, by_scope, covered = asyncio.run(run())
    check_problem(by_pattern, 403, "forbidden")
    assert alike(by_pattern) == alike(by_scope)
    check_problem(covered, 404, "board_not_found")


# Changes beside a running node


def test_keys_take_effect_without_a_restart(tmp_path: Path) -> None:
    """Made, changed, rotated, revoked: each counts from the next request on."""

    async def run() -> list[tuple[str, int]]:
        statuses = []
        async with serving(FakeBoards(), tmp_path) as gateway:

            async def note(what: str, key: str | None, path: str = "/v1/boards/arena/top") -> None:
                headers = {} if key is None else {"Authorization": f"Bearer {key}"}
                answer = await call(gateway.port, "GET", path, **headers)
                statuses.append((what, answer.status))

            await note("without keys", None)
            key = add_key(tmp_path, "read")
            await note("the first key ends that", None)
            await note("and is good", key)
            change_key(tmp_path, key, boards=("other",))
            await note("for other boards now", key)
            await note("for those it is", key, "/v1/boards/other/top")
            secret = new_secret()
            new = f"{key[:-64]}{secret}"
            change_key(tmp_path, key, boards=("*",), credentials=(Credential(hash_of(secret)),))
            await note("the old secret", key)
            await note("the new secret", new)
            revoke(tmp_path, key)
            await note("revoked", new)
            (tmp_path / FILE).unlink()
            await note("gone", new)
            await note("gone, without", None)
            await note("open all the same", None, "/healthz")
        return statuses

    assert asyncio.run(run()) == [
        ("without keys", 200), ("the first key ends that", 401), ("and is good", 200),
        ("for other boards now", 403), ("for those it is", 200), ("the old secret", 401),
        ("the new secret", 200), ("revoked", 401), ("gone", 503), ("gone, without", 503),
        ("open all the same", 200),
    ]  # fmt: skip


@pytest.mark.parametrize("content", [b"", b'{"version":2,"keys":[]}', b'{"version":1}'])
def test_keys_that_cannot_be_read_let_nobody_in(content: bytes, tmp_path: Path) -> None:
    """While the file is damaged every call but the open ones is 503, whatever key it brings."""
    key = add_key(tmp_path, "admin")
    (tmp_path / FILE).write_bytes(content)
    boards = FakeBoards()

    async def run() -> None:
        async with serving(boards, tmp_path) as gateway:
            for route in ROUTES:
                for given in (None, key):
                    boards.calls.clear()
                    answer = await request(gateway, route, given)
                    if route.scope is Scope.OPEN:
                        assert answer.status == 200
                    else:
                        problem = check_problem(answer, 503, "board_unavailable")
                        assert "keys" in problem["detail"]
                        assert FILE not in problem["detail"]
                    assert boards.calls == []

    asyncio.run(run())


# Where a node may listen


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "ranknode.example.com", ""])  # noqa: S104  (nothing binds)
def test_without_keys_a_node_stays_on_its_machine(host: str, tmp_path: Path) -> None:
    """Beyond loopback a node needs keys, and the error says how to make one."""
    with pytest.raises(ConfigError, match=r"^host: .*ranknode key create"):
        check_reach(host, KeyFile(tmp_path))
    for loopback in ("127.0.0.1", "::1", "localhost"):
        check_reach(loopback, KeyFile(tmp_path))
    key = add_key(tmp_path, "admin")
    check_reach(host, KeyFile(tmp_path))
    revoke(tmp_path, key)
    check_reach(host, KeyFile(tmp_path))
    (tmp_path / FILE).write_bytes(b"{")
    check_reach(host, KeyFile(tmp_path))


def test_keys_are_watched_from_the_start(tmp_path: Path) -> None:
    """A file that was there when the node started must stay, whoever called meanwhile or not."""
    add_key(tmp_path, "admin")
    keys = KeyFile(tmp_path)
    check_reach("127.0.0.1", keys)
    (tmp_path / FILE).unlink()
    with pytest.raises(KeysUnreadableError):
        keys.current()


def test_any_host_is_a_keyed_nodes(tmp_path: Path) -> None:
    """With keys a node is reached by whatever name its network gives it."""

    async def status() -> int:
        async with serving(FakeBoards(), tmp_path, hosts_allowed=()) as gateway:
            headers = {"Authorization": f"Bearer {key}", "Host": "ranks.example.com"}
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            lines = ["GET /v1/boards/b/top HTTP/1.1", *(f"{n}: {v}" for n, v in headers.items())]
            writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode())
            answer = Raw(await asyncio.wait_for(reader.read(), 10))
            writer.close()
            await writer.wait_closed()
            return answer.status

    key = f"rnk_{'0' * 12}_{new_secret()}"
    assert asyncio.run(status()) == 403
    key = add_key(tmp_path, "read")
    assert asyncio.run(status()) == 200
