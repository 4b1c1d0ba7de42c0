"""A board of a running node, for tests of what moderators do to it over HTTP."""

from __future__ import annotations

from typing import Any

from tests.running_node import READY_SECONDS_MAX, RunningNode, wait_until

BY = {"actor": "mod-1", "reason": "speed hack"}
DAY = "daily:2020-03-02"  # of the events that a closed window holds
SEEN_BY_ALL = (
    "top?limit=100", f"top?period={DAY}", f"top?period={DAY}&revision=1",
    f"top?period={DAY}&revision=2", f"digest?period={DAY}", f"digest?period={DAY}&revision=1",
    "members/cyd", "members/bob", f"members/ada?period={DAY}", "around?member=dan&above=2&below=2",
    "rank?score=15", "range?min=5&max=30", "bands?percentiles=50,100", "periods",
    "members/ada/events", "members/bob/events", "members/cyd/events?limit=1", "disputes", "audit",
    "audit?limit=3",
)  # fmt: skip


class Board:
    """One board of a node, over HTTP."""

    def __init__(self, node: RunningNode, name: str, key: str | None = None, **more: Any) -> None:
        self.node, self.name, self.key = node, name, key
        status, body = self.call("PUT", "", {"aggregation": "sum"} | more)
        assert status == 201, body
        self._await_up()

    def _await_up(self) -> None:
        def answers() -> bool:
            return self.call("GET", "/top")[0] == 200

        wait_until(answers, READY_SECONDS_MAX, f"{self.name} is up")

    def call(self, method: str, rest: str, body: Any = None, **how: Any) -> tuple[int, Any]:
        return self.node.call(
            method, f"/v1/boards/{self.name}{rest}", body, **{"key": self.key} | how
        )

    def submit(self, *events: tuple[Any, ...], **more: Any) -> list[int]:
        """Submit events of a member, a value and a key; returns their sequences."""
        batch = [
            {"member": member, "value": value, "idempotency_key": key} | more
            for member, value, key in events
        ]
        status, answer = self.call("POST", "/events", {"events": batch})
        assert (status, answer["applied"]) == (200, len(events)), answer
        return [result["sequence"] for result in answer["results"]]

    def rule(self, method: str, rest: str, body: Any = BY, status: int = 200) -> Any:
        """Make a call of a moderator, which must come to a status."""
        found, answer = self.call(method, rest, body)
        assert found == status, answer
        return answer

    def ask(self, rest: str) -> Any:
        status, answer = self.call("GET", f"/{rest}")
        assert status == 200, answer
        return answer

    def scores(self, query: str = "") -> list[tuple[str, int]]:
        return [(entry["member"], entry["score"]) for entry in self.ask(f"top{query}")["entries"]]

    def seen(self) -> dict[str, Any]:
        """Ask everything, in both forms; a problem is its code."""
        found: dict[str, Any] = {}
        for rest in SEEN_BY_ALL:
            for packed in (False, True):
                status, answer = self.call("GET", f"/{rest}", packed=packed)
                found[f"{rest} {packed}"] = answer if status == 200 else answer["code"]
        return found

    def killed(self) -> None:
        """Kill the whole node, start it again, and wait for this board."""
        self.node.kill_all()
        self.node.start()
        self._await_up()


def refused(answer: tuple[int, Any], status: int, code: str) -> Any:
    assert (answer[0], answer[1].get("code")) == (status, code), answer
    return answer[1]
