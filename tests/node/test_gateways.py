"""Several gateways on one port: one node to its clients, whichever of them answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from tests.running_node import RunningNode, wait_until

GATEWAYS = 3
CONNECTIONS = 60  # that none of three gateways gets any of these has a chance of 10^-10

MakeNode = Callable[..., RunningNode]


class Client:
    """A connection to one of the gateways; `gateway` is what tells it from the others."""

    def __init__(self, node: RunningNode) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=30)
        self.gateway = ""

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        self.connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        text = answer.read()
        self.gateway = answer.headers["X-Request-Id"].partition("-")[0]
        return answer.status, json.loads(text) if text else None


class Clients:
    """Connections to a node, closed at the end."""

    def __init__(self, node: RunningNode) -> None:
        self._node = node
        self._open: list[Client] = []

    def of_each(self) -> list[Client]:
        """Connect to each of the gateways."""
        found: dict[str, Client] = {}
        for _ in range(CONNECTIONS):
            client = Client(self._node)
            self._open.append(client)
            with contextlib.suppress(ConnectionError):  # it came to one that was just killed
                client.call("GET", "/healthz")
                found.setdefault(client.gateway, client)
        return list(found.values())

    def close(self) -> None:
        for client in self._open:
            client.connection.close()


def event(member: str, value: int, key: str) -> dict[str, Any]:
    return {"member": member, "value": value, "idempotency_key": key}


def extra(node: RunningNode) -> list[int]:
    return node.named("node.extra_gateway")


def test_gateways_are_one_node_and_end_with_it(make_node: MakeNode) -> None:
    """Whatever one has done the others show; one that is killed is replaced; none outlives all."""
    node = make_node("data", "--gateways", str(GATEWAYS)).start()
    clients = Clients(node)
    with contextlib.closing(clients):
        wait_until(lambda: len(clients.of_each()) == GATEWAYS, 30, "all gateways answer")
        check_gateways(*clients.of_each(), node)
        killed, kept = extra(node)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: killed not in extra(node), 30, "it is dead")
        wait_until(lambda: len(clients.of_each()) == GATEWAYS, 30, "another one answers")
        assert kept in extra(node)

    # None outlives the first, not even one that is paused
    os.kill(kept, signal.SIGSTOP)
    os.kill(node.process.pid, signal.SIGKILL)
    node.process.wait()
    wait_until(lambda: not node.processes(), 10, "nothing is left")

    # And all of them stop in order
    node.start()
    wait_until(lambda: len(extra(node)) == GATEWAYS - 1, 30, "all are started")
    begun = time.monotonic()
    assert node.stop() == 0
    assert time.monotonic() - begun < 10


def check_gateways(first: Client, second: Client, third: Client, node: RunningNode) -> None:
    """Check that what one does is seen in the others."""
    others = [second, third]

    # Boards and events are everyone's
    assert first.call("PUT", "/v1/boards/b", {"aggregation": "sum"})[0] == 201
    for number, client in enumerate([first, *others]):
        assert client.call("PUT", "/v1/boards/b", {"aggregation": "sum"})[0] == 200
        assert [each["board"] for each in client.call("GET", "/v1/boards")[1]["boards"]] == ["b"]
        sent = event("ada", 1, f"key-{number}")
        status, answer = client.call("POST", "/v1/boards/b/events", sent)
        assert (status, answer["status"]) == (200, "applied")
        for reader in (first, *others):
            for path in ("top", "members/ada"):
                target = f"/v1/boards/b/{path}?min_sequence={answer['sequence']}"
                status, read = reader.call("GET", target)
                assert status == 200
                entry = read["entry"] if "entry" in read else read["entries"][0]
                assert entry["score"] == number + 1
            again = reader.call("POST", "/v1/boards/b/events", sent)[1]
            assert (again["status"], again["sequence"]) == ("duplicate", answer["sequence"])
    matched = {"events": [event("bob", 5, "match") | {"board": "b"}]}
    assert others[0].call("POST", "/v1/events", matched)[1]["applied"] == 1
    assert others[1].call("GET", "/v1/members/bob?boards=b")[1]["boards"][0]["entry"]["score"] == 5
    change = {"min_value": 1}
    assert others[0].call("PATCH", "/v1/boards/b", change)[1]["min_value"] == 1
    assert first.call("GET", "/v1/boards")[1]["boards"][0]["min_value"] == 1

    # A board's process that dies comes up for all of them
    (board,) = node.named("ray::BoardActor")
    os.kill(board, signal.SIGKILL)
    for client in others:
        assert client.call("GET", "/v1/boards/b/members/ada")[1]["entry"]["score"] == GATEWAYS

    # A deleted board is gone for all, and one of its name is another
    assert others[0].call("DELETE", "/v1/boards/b")[0] == 204
    for client in (first, *others):
        assert client.call("GET", "/v1/boards/b/top?read=actor")[0] == 404
    assert others[1].call("PUT", "/v1/boards/b", {"aggregation": "best"})[0] == 201
    for client in (first, *others):
        assert client.call("GET", "/v1/boards/b/top")[1]["entries"] == []
