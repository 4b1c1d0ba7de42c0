"""What a call knows of its caller, which boards it may name, and what stays secret."""

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

from actors.definition import parse_definition
from actors.listing import Listing
from actors.questions import Submit
from node import boards as boards_module
from node.access import Caller
from node.config import Config
from node.key_file import FILE
from node.keys import covers
from node.moderation_routes import MODERATION_ROUTES
from node.routes import ROUTES
from tests.node.access_samples import BODY, Door, alike, head, keyed, request
from tests.node.fake_boards import (
    NOW_US,
    AcceptingBoards,
    FakeBoards,
    Raw,
    call,
    check_problem,
    serving,
)
from tests.node.key_samples import add_key

__all__ = ["keyed"]

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


# Boards that bodies and queries name


def routed(number: int, board: str) -> dict[str, Any]:
    return {"board": board, "member": "ada", "value": 1, "idempotency_key": f"k{number}"}


def test_a_key_submits_only_to_its_boards(tmp_path: Path) -> None:
    """Of a batch, events for boards that the key is not for are refused one by one."""
    key = add_key(tmp_path, "submit", boards=("arena-*",))
    boards = ["arena-1", "other", "arena-2", "arena", "arena-1"]
    batch = {"events": [routed(number, board) for number, board in enumerate(boards)]}
    fakes = AcceptingBoards()

    async def run() -> tuple[Raw, Raw, Raw]:
        async with serving(fakes, tmp_path) as gateway:
            headers = {"Authorization": f"Bearer {key}"}
            bodies = [msgspec.json.encode(body) for body in (batch, routed(5, "other"))]
            return (
                await call(gateway.port, "POST", "/v1/events", bodies[0], **headers),
                await call(gateway.port, "POST", "/v1/events", bodies[1], **headers),
                await call(gateway.port, "GET", "/v1/boards/other/top", **headers),
            )

    many, single, elsewhere = asyncio.run(run())
    assert many.status == 200, many.body
    results = [result.get("code", result["status"]) for result in many.json()["results"]]
    assert results == ["applied", "forbidden", "applied", "forbidden", "applied"]
    assert (many.json()["applied"], many.json()["rejected"]) == (3, 2)
    check_problem(single, 403, "forbidden")
    assert alike(single) == alike(elsewhere), "a lack of permission looks the same everywhere"
    assert sorted({board for _, board, _ in fakes.calls}) == ["arena-1", "arena-2"]


@pytest.mark.parametrize("named", ["other", "arena-1,other", "other,arena-1"])
def test_a_members_places_are_those_the_key_is_for(named: str, tmp_path: Path) -> None:
    """A query that names a board which the key is not for is 403, before any board is asked."""
    key = add_key(tmp_path, "read", boards=("arena-*",))
    boards = FakeBoards()

    async def run() -> tuple[Raw, Raw]:
        async with serving(boards, tmp_path) as gateway:
            path, headers = "/v1/members/ada?boards=", {"Authorization": f"Bearer {key}"}
            refused = await call(gateway.port, "GET", path + named, **headers)
            assert boards.calls == []
            return refused, await call(gateway.port, "GET", path + "arena-1,arena-2", **headers)

    refused, covered = asyncio.run(run())
    check_problem(refused, 403, "forbidden")
    assert covered.status == 200
    assert [board for _, board, *_ in boards.calls] == ["arena-1", "arena-2"]


def test_the_audit_is_told_the_key(tmp_path: Path) -> None:
    """Every ruling goes to the board with the id of the key that asked for it."""
    rulings = [route for route in ROUTES if route in MODERATION_ROUTES and route.changes]
    key = add_key(tmp_path, "admin")
    boards = FakeBoards()

    async def run() -> None:
        async with serving(boards, tmp_path) as gateway:
            for route in rulings:
                answer = await request(gateway, route, key)
                assert answer.status in route.answers, answer.body

    asyncio.run(run())
    assert [verdict.key for _, _, verdict in boards.calls] == [key.split("_")[1]] * len(rulings)


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
