"""What the tests of access share: calls of every route, and an access without HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from actors.errors import Refusal
from node.access import Access, Caller, Head
from node.config import Config
from node.examples import REQUEST_EXAMPLES
from node.gateway import Gateway
from node.key_file import KeyFile
from node.keys import Credential, Scope, hash_of, new_secret
from node.route import Route
from tests.node.fake_boards import NOW_US, Raw, call
from tests.node.key_samples import add_key, change_key, revoke

BODY = b"{}"


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


def target_of(route: Route, board: str = "arena") -> str:
    """Write a path that a route takes, with what its query needs."""
    names = {"board": board, "member": "ada", "sequence": "1", "dispute": "1"}
    path = route.path.format_map(names)
    needed = [
        f"{parameter.name}={board if parameter.name == 'boards' else 1}"
        for parameter in route.query
        if parameter.required or (route.name == "around" and parameter.name == "rank")
    ]
    return path + ("?" + "&".join(needed) if needed else "")


def body_of(route: Route, board: str = "arena") -> bytes | None:
    """Write a body that a route takes: the document's first example of one."""
    if not route.body:
        return None
    body = next(iter(REQUEST_EXAMPLES[route.name].values()))
    return msgspec.json.encode(body | {"board": board} if "board" in body else body)


async def request(gateway: Gateway, route: Route, key: str | None, board: str = "arena") -> Raw:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    target, body = target_of(route, board), body_of(route, board)
    return await call(gateway.port, route.method, target, body, **headers)


def alike(answer: Raw) -> tuple[Any, ...]:
    """Give everything of an answer that another one of its kind must have too."""
    passing = ("x-request-id", "date")
    headers = {name: value for name, value in answer.headers.items() if name not in passing}
    return answer.status, answer.body, headers


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
