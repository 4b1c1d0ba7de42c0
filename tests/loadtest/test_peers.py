"""The peers of the benchmark: what they answer, and what becomes of those that cannot be had."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Self

import pytest
from aiohttp.test_utils import TestClient, TestServer

from loadtest.peers import processes
from loadtest.peers.processes import NODE_SERVICE, AbsentError
from loadtest.peers.python_service import Service

REGISTRY = "https://registry.npmjs.org/"


class FakeRedis:
    """One ranking, ann before bob, and a script that counts a key once."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.counted: list[tuple[str, int]] = []
        self._asked: list[Any] = []

    def register_script(self, _text: str) -> Any:
        async def count(keys: list[str], args: list[Any]) -> list[Any]:
            if keys[0] in self.keys:
                return [0]
            self.keys.add(keys[0])
            self.counted.append((args[0], args[1]))
            return [1, "1-0", "25"]

        return count

    def pipeline(self, *, transaction: bool) -> FakeRedis:
        assert not transaction
        self._asked = []
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def zrevrank(self, _board: str, member: str) -> None:
        self._asked.append({"ann": 0, "bob": 1}.get(member))

    def zscore(self, _board: str, member: str) -> None:
        self._asked.append({"ann": 20.0, "bob": 10.0}.get(member))

    async def execute(self) -> list[Any]:
        return self._asked

    async def zrevrange(self, _board: str, first: int, last: int, *, withscores: bool) -> list[Any]:
        assert withscores
        return [("ann", 20.0), ("bob", 10.0)][first : last + 1]


def calls(client: FakeRedis, *requests: tuple[str, str, Any]) -> list[tuple[int, Any]]:
    """Send requests to the service in Python one after the other; returns what it answers."""

    async def run() -> list[tuple[int, Any]]:
        fake: Any = client
        answers = []
        async with TestClient(TestServer(Service(fake).application())) as http:
            for method, path, body in requests:
                async with http.request(method, path, json=body) as answer:
                    answers.append((answer.status, await answer.json()))
        return answers

    return asyncio.run(run())


def test_the_python_service_answers_ranks_and_the_top_as_the_node_does() -> None:
    """Ranks count from 1, best first; an unknown member and a limit that is none are refused."""
    ann = {"rank": 1, "position": 1, "member": "ann", "score": 20}
    bob = {"rank": 2, "position": 2, "member": "bob", "score": 10}
    answers = calls(
        FakeRedis(),
        ("GET", "/v1/boards/b/members/bob?read=actor", None),
        ("GET", "/v1/boards/b/members/cid", None),
        ("GET", "/v1/boards/b/top?limit=10", None),
        ("GET", "/v1/boards/b/top?limit=1", None),
        ("GET", "/v1/boards/b/top?limit=0", None),
    )
    assert answers == [
        (200, {"board": "b", "entry": bob}),
        (404, {"code": "member_not_found"}),
        (200, {"board": "b", "entries": [ann, bob]}),
        (200, {"board": "b", "entries": [ann]}),
        (422, {"code": "invalid_field", "field": "limit"}),
    ]


def test_the_python_service_counts_an_event_once_and_refuses_what_is_none() -> None:
    """A key counts once; what is no event, or names or values of another type, count never."""
    event = {"member": "ann", "value": 5, "idempotency_key": "k"}
    wrong = [
        {},
        [],
        event | {"value": True},
        event | {"member": ""},
        event | {"idempotency_key": 7},
    ]
    client = FakeRedis()
    bodies = [event, event, *wrong]
    answers = calls(client, *(("POST", "/v1/boards/b/events", body) for body in bodies))
    standings = [{"period": "all_time", "score": 25}]
    assert answers[:2] == [
        (200, {"status": "applied", "sequence": "1-0", "standings": standings}),
        (200, {"status": "duplicate"}),
    ]
    assert [status for status, _ in answers[2:]] == [422] * len(wrong)
    assert client.counted == [("ann", 5)]
    assert client.keys == {"b:key:k"}


def test_the_lock_file_of_the_node_service_names_every_content_and_no_strange_host() -> None:
    """Each package is fixed by a hash of its content, and comes from the public registry if any."""
    packages = json.loads((NODE_SERVICE / "package-lock.json").read_text())["packages"]
    installed = {name: each for name, each in packages.items() if name}
    assert {"node_modules/fastify", "node_modules/ioredis"} <= installed.keys()
    for name, each in installed.items():
        assert each["integrity"].startswith("sha512-"), name
        assert each.get("resolved", REGISTRY).startswith(REGISTRY), name


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program of the test's in npm's place; it is nowhere until the test writes it."""
    path = tmp_path / "npm"
    monkeypatch.setattr(processes, "NODE_INSTALLED", tmp_path / "installed")
    monkeypatch.setattr(processes, "_program", lambda name: str(tmp_path / name))
    return path


def test_what_cannot_be_installed_is_absent_and_says_why(npm: Path) -> None:
    """Where npm fails its own word is the reason, and the next run tries again."""
    npm.write_text("#!/bin/sh\necho 'npm error code ENOTFOUND' >&2\nexit 1\n")
    npm.chmod(0o700)
    for _ in range(2):
        with pytest.raises(AbsentError, match="npm ci failed: npm error code ENOTFOUND"):
            processes._install_node_service()


def test_what_is_installed_is_not_installed_again(npm: Path) -> None:
    """One lock file is installed once; its service is renewed all the same."""
    runs = npm.with_name("runs")
    npm.write_text(f"#!/bin/sh\necho run >> {runs}\n")
    npm.chmod(0o700)
    service = processes.NODE_INSTALLED / "service.js"
    for _ in range(2):
        processes._install_node_service()
        assert service.read_bytes() == (NODE_SERVICE / "service.js").read_bytes()
        service.write_text("another")
    assert runs.read_text() == "run\n"


def test_what_is_not_on_the_path_is_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Redis is told so by the name of what it lacks."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(AbsentError, match="redis-server is not installed"),
        processes.running_redis(tmp_path / "redis", processes.REDIS_PLAIN),
    ):
        pytest.fail("it runs")
    assert not (tmp_path / "redis").exists()
