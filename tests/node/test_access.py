from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from actors.definition import parse_definition
from actors.errors import Refusal
from actors.listing import Listing
from actors.questions import Submit
from node import boards as boards_module
from node.access import Access, Caller, Head, check_reach
from node.config import Config, ConfigError
from node.gateway import Gateway
from node.key_file import FILE, KeyFile, KeysUnreadableError
from node.keys import RATE_MIN, Credential, Scope, covers, hash_of, new_secret
from node.routes import ROUTES, Route
from tests.node.fake_boards import NOW_US, FakeBoards, Raw, call, check_problem, serving
from tests.node.key_samples import add_key, add_signing_key, change_key, revoke, signed

BODY = b"{}"
OPEN = [route for route in ROUTES if route.scope is Scope.OPEN]
GUARDED = [route for route in ROUTES if route.scope is not Scope.OPEN]


def target_of(route: Route, board: str = "arena") -> str:
    """Write a path that a route takes, with what its query needs."""
    path = route.path.replace("{board}", board).replace("{member}", "ada")
    needed = [
        f"{parameter.name}=1"
        for parameter in route.query
        if parameter.required or (route.name == "around" and parameter.name == "rank")
    ]
    return path + ("?" + "&".join(needed) if needed else "")


async def request(gateway: Gateway, route: Route, key: str | None, board: str = "arena") -> Raw:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    body = BODY if route.body else None
    return await call(gateway.port, route.method, target_of(route, board), body, **headers)


def alike(answer: Raw) -> tuple[Any, ...]:
    """Give everything of an answer that another one of its kind must have too."""
    passing = ("x-request-id", "date")
    headers = {name: value for name, value in answer.headers.items() if name not in passing}
    return answer.status, answer.body, headers


# The matrix


def test_every_route_declares_a_scope() -> None:
    """No call is without a scope, and only what tells nothing of a board is open to everyone."""
    assert all(isinstance(route.scope, Scope) for route in ROUTES)
    assert {route.path for route in OPEN} == {"/healthz", "/readyz", "/openapi.json"}
    for route in ROUTES:
        assert route.scope is Scope.ADMIN or not route.changes or route.name == "submitEvents"


def test_a_call_whose_path_names_no_board_is_known() -> None:
    """Calls that the gateway cannot check by their path check by themselves which boards they show.

    A new one belongs here together with a test that it does.
    """
    assert {route.name for route in GUARDED if "{board}" not in route.path} == {"listBoards"}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Make a data directory with a key of each kind."""
    data = tmp_path_factory.mktemp("keyed")
    keys: dict[str, Any] = {
        scope: add_key(data, scope) for scope in ("read", "submit", "admin")
    } | {"elsewhere": add_key(data, "admin", boards=("other", "arena-*"))}
    keys["revoked"] = add_key(data, "admin")
    revoke(data, keys["revoked"])
    keys["expired"] = add_key(data, "admin")
    secret = hash_of(keys["expired"].split("_")[2])
    change_key(data, keys["expired"], credentials=(Credential(secret, NOW_US),))
    return keys | {"data": data, "bad": keys["admin"][:-64] + new_secret(), "none": None}


CALLERS = ("none", "bad", "revoked", "expired", "read", "submit", "admin", "elsewhere")


def expected(route: Route, caller: str) -> int:
    """Say what a call must come to."""
    if route.scope is Scope.OPEN:
        return 200
    if caller in ("none", "bad", "revoked", "expired"):
        return 401
    if caller == "elsewhere":
        return 403 if "{board}" in route.path else 200
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


# Rates


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def head(key: str | None, address: str = "10.0.0.1") -> Head:
    headers = CIMultiDict({"Authorization": f"Bearer {key}"} if key else {})
    return Head("GET", "/v1/boards/arena/top", CIMultiDictProxy(headers), address)


class Door:
    """An access over the keys of a directory; `knock` says what a request came to."""

    def __init__(self, data: Path, **settings: Any) -> None:
        self.clock = Clock()
        self._access = Access(
            KeyFile(data), Config(data_directory=str(data), **settings), self.clock
        )

    def admit(self, head: Head) -> Caller:
        return self._access.admit(head, Scope.READ, "arena", NOW_US, with_body=False)

    def knock(self, key: str | None, address: str = "10.0.0.1") -> str:
        return self.knock_with(head(key, address))[0]

    def knock_with(self, head: Head) -> tuple[str, Any]:
        try:
            self.admit(head)
        except Refusal as refusal:
            return refusal.code, refusal.extra.get("retry_after_seconds")
        return "ok", None


def test_failures_from_one_address_slow_down(tmp_path: Path) -> None:
    """Ten failures, then one a second, with the seconds to wait; other addresses do not notice."""
    add_key(tmp_path, "read")
    door = Door(tmp_path)
    answers = [door.knock_with(head("rnk_x")) for _ in range(12)]
    assert answers == [("unauthenticated", None)] * 10 + [("rate_limited", 1)] * 2
    assert door.knock(None, "10.0.0.2") == "unauthenticated"
    door.clock.now += 1
    assert [door.knock(None) for _ in range(2)] == ["unauthenticated", "rate_limited"]


def test_a_good_key_passes_from_an_address_that_fails(tmp_path: Path) -> None:
    """One client with an old key does not lock out the others behind its address."""
    good = add_key(tmp_path, "read")
    door = Door(tmp_path)
    for _ in range(20):
        door.knock("rnk_x")
    assert door.knock("rnk_x") == "rate_limited"
    assert [door.knock(good) for _ in range(100)] == ["ok"] * 100


def test_a_refused_key_is_no_failure(tmp_path: Path) -> None:
    """Lacking permission is not failing to say who one is: it does not use up the failures."""
    elsewhere = add_key(tmp_path, "read", boards=("other",))
    door = Door(tmp_path)
    assert {door.knock(elsewhere) for _ in range(50)} == {"forbidden"}
    assert door.knock("rnk_x") == "unauthenticated"


@pytest.mark.parametrize(
    ("first", "second", "one"),
    [
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("::1", "::2", True),
        ("", "10.0.0.1", False),
    ],
)
def test_an_address_is_what_one_client_has(
    first: str, second: str, one: bool, tmp_path: Path
) -> None:
    """Of IPv6 the network counts that one client has to itself, of IPv4 the address."""
    add_key(tmp_path, "read")
    door = Door(tmp_path, auth_failures_burst=1)
    assert door.knock(None, first) == "unauthenticated"
    assert (door.knock(None, second) == "rate_limited") is one


def test_a_flood_from_many_addresses_is_bounded(tmp_path: Path) -> None:
    """The table of failing addresses does not grow beyond its bound."""
    add_key(tmp_path, "read")
    door = Door(tmp_path, auth_failures_addresses_max=50)
    for number in range(1000):
        door.knock(None, f"10.0.{number // 256}.{number % 256}")
    assert len(door._access._failures) == 50


def test_a_key_has_its_rate(tmp_path: Path) -> None:
    """Beyond its own rate a key is refused with the seconds to wait, and others are not."""
    slow = add_key(tmp_path, "read", requests_per_second=0.25)
    two = add_key(tmp_path, "read", requests_per_second=2.0)
    usual = add_key(tmp_path, "read")
    door = Door(tmp_path, key_requests_per_second=1.0, key_requests_burst=5)
    assert [door.knock_with(head(slow)) for _ in range(2)] == [("ok", None), ("rate_limited", 4)]
    assert [door.knock(two) for _ in range(3)] == ["ok", "ok", "rate_limited"]
    assert [door.knock(usual) for _ in range(6)] == ["ok"] * 5 + ["rate_limited"]
    door.clock.now += 4
    assert [door.knock(key) for key in (slow, two, usual)] == ["ok"] * 3


def test_another_rate_counts_at_once(tmp_path: Path) -> None:
    """A key whose rate is raised does not wait for its old one; other keys' counts stay."""
    key = add_key(tmp_path, "read", requests_per_second=1.0)
    other = add_key(tmp_path, "read", requests_per_second=1.0)
    door = Door(tmp_path)
    for each in (key, other):
        assert [door.knock(each) for _ in range(2)] == ["ok", "rate_limited"]
    change_key(tmp_path, key, requests_per_second=100.0)
    assert [door.knock(key) for _ in range(50)] == ["ok"] * 50
    assert door.knock(other) == "rate_limited"


def test_a_refusal_by_rate_says_when_to_come_back(tmp_path: Path) -> None:
    """Over HTTP it is 429 with Retry-After, of whole seconds and at least one."""
    key = add_key(tmp_path, "read", requests_per_second=0.01)

    async def run() -> list[Raw]:
        async with serving(FakeBoards(), tmp_path, auth_failures_burst=1) as gateway:
            return [
                await call(gateway.port, "GET", "/v1/boards/a/top", Authorization=text)
                for text in (f"Bearer {key}", f"Bearer {key}", "Bearer x", "Bearer x")
            ]

    first, by_key, failed, by_address = asyncio.run(run())
    assert first.status == 200
    check_problem(by_key, 429, "rate_limited")
    assert 95 <= int(by_key.headers["retry-after"]) <= 100
    check_problem(failed, 401, "unauthenticated")
    check_problem(by_address, 429, "rate_limited")
    assert by_address.headers["retry-after"] == "1"


def test_the_lowest_rate_asks_for_a_wait_that_is_bounded(tmp_path: Path) -> None:
    """However low a rate may be set, a refusal by it is a 429 with a time that can be waited."""
    key = add_key(tmp_path, "read", requests_per_second=RATE_MIN)
    settings = {"auth_failures_burst": 1, "auth_failures_per_second": RATE_MIN}

    async def run() -> list[Raw]:
        async with serving(FakeBoards(), tmp_path, **settings) as gateway:
            return [
                await call(gateway.port, "GET", "/v1/boards/a/top", Authorization=text)
                for text in (f"Bearer {key}", f"Bearer {key}", "Bearer x", "Bearer x")
            ]

    _, by_key, _, by_address = asyncio.run(run())
    for answer in (by_key, by_address):
        check_problem(answer, 429, "rate_limited")
        assert int(answer.headers["retry-after"]) <= 1_000


# What a call knows of its caller


def test_a_call_knows_its_key(tmp_path: Path) -> None:
    """A call carries its key's id, boards and source; without keys there is no id."""
    key = add_key(tmp_path, "submit", boards=("arena",), source="s")
    caller = Door(tmp_path).admit(head(key))
    assert caller == Caller(key.split("_")[1], ("arena",), "s")
    assert Door(tmp_path / "none").admit(head(None)) == Caller(None, ("*",), None)


def test_a_keys_source_goes_with_its_events(tmp_path: Path) -> None:
    """The board is told the source that the key's events have."""
    boards = FakeBoards()
    key = add_key(tmp_path, "submit", source="match-server-3")

    async def run() -> Raw:
        async with serving(boards, tmp_path) as gateway:
            path = "/v1/boards/arena/events"
            return await call(gateway.port, "POST", path, BODY, Authorization=f"Bearer {key}")

    assert asyncio.run(run()).status == 200
    assert boards.calls == [
        ("submit", "arena", Submit(False, NOW_US, BODY, False, "match-server-3"))
    ]


# The list of boards


@pytest.fixture
def listed() -> boards_module.NodeBoards:
    """Make the boards of a node that knows thirty, none of them in memory."""
    definition = parse_definition(b'{"aggregation":"sum"}', False)
    ids = [f"{prefix}-{number:02}" for prefix in ("a", "b", "c") for number in range(10)]
    directory = SimpleNamespace(
        listings={board: Listing(board, "i", NOW_US, definition) for board in reversed(ids)}
    )

    async def make() -> boards_module.NodeBoards:
        return boards_module.NodeBoards(Config(data_directory="unused"), directory)  # type: ignore[arg-type]

    return asyncio.run(make())


@contextlib.asynccontextmanager
async def serving_listed(
    listed: boards_module.NodeBoards, data: Path
) -> AsyncIterator[Callable[[str], Any]]:
    listed.ready = True
    async with serving(listed, data) as gateway:  # type: ignore[arg-type]

        async def get(key: str, query: str) -> dict[str, Any]:
            path = f"/v1/boards?{query}"
            answer = await call(gateway.port, "GET", path, Authorization=f"Bearer {key}")
            assert answer.status == 200, answer.body
            found: dict[str, Any] = answer.json()
            return found

        yield get  # type: ignore[misc]


@pytest.mark.parametrize(
    ("patterns", "limit"),
    [(("b-*",), 3), (("b-*", "c-05"), 4), (("*",), 7), (("?-09",), 1), (("b-*",), 10), (("x",), 5)],
)
def test_the_list_holds_what_the_key_is_for(
    patterns: tuple[str, ...], limit: int, tmp_path: Path, listed: boards_module.NodeBoards
) -> None:
    """GET /v1/boards shows the boards a key covers and no other, in pages that are right."""
    key = add_key(tmp_path, "admin", boards=patterns)

    async def run() -> list[list[str]]:
        pages, after = [], ""
        async with serving_listed(listed, tmp_path) as get:
            while after is not None:
                page = await get(key, f"limit={limit}" + (f"&after={after}" if after else ""))
                pages.append([board["board"] for board in page["boards"]])
                after = page["next"]
        return pages

    pages = asyncio.run(run())
    wanted = sorted(board for board in listed._directory.listings if covers(patterns, board))
    assert [board for page in pages for board in page] == wanted
    assert all(len(page) == limit for page in pages[:-1])
    assert pages[-1] or not wanted, "no empty page follows a full one"


# Secrets


def test_no_answer_and_no_line_holds_a_secret(
    keyed: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever becomes of a call, neither its answer nor the log repeats the key it came with."""
    keys = [keyed[name] for name in ("read", "admin", "elsewhere", "revoked", "bad")]

    def fail() -> None:
        raise ValueError("a bug")

    async def run() -> list[bytes]:
        answers = []
        boards = FakeBoards()
        async with serving(boards, keyed["data"], auth_failures_burst=3) as gateway:
            for behave in (lambda: None, fail):
                boards.behave = behave
                for route in ROUTES:
                    for key in keys:
                        answer = await request(gateway, route, key)
                        answers.append(answer.body + repr(answer.headers).encode())
        return answers

    with caplog.at_level(logging.DEBUG):
        answers = asyncio.run(run())
    assert any(record.levelno >= logging.ERROR for record in caplog.records)
    content = (keyed["data"] / FILE).read_bytes()
    for key in keys:
        secret = key.split("_")[2]
        assert secret not in caplog.text
        assert all(secret.encode() not in text for text in [*answers, content])
    stored = msgspec.json.decode(content)
    for each in stored["keys"]:
        for credential in each["credentials"]:
            assert all(credential["value"].encode() not in text for text in answers)
