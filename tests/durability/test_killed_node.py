"""Whatever is killed, what was acknowledged is there once, and nothing is left running."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.running_node import RunningNode, wait_until

EXIT_RAY_LOST = 75
EVENTS_BEFORE_KILL = 40


class Journal(threading.Thread):
    """A game server that posts events one after the other and notes what was acknowledged."""

    def __init__(self, node: RunningNode, name: str) -> None:
        super().__init__(daemon=True)
        self.node = node
        self.name = name
        self.acknowledged: dict[str, int] = {}
        self.ended = threading.Event()

    def event(self, key: str) -> dict[str, Any]:
        return {"member": f"m{hash(key) % 7}", "value": 1, "idempotency_key": key}

    def run(self) -> None:
        number = 0
        while not self.ended.is_set():
            key = f"{self.name}-{number}"
            try:
                status, body = self.node.call("POST", "/v1/boards/b/events", self.event(key), 15)
            except OSError:
                time.sleep(0.05)
                continue
            if status == 200:
                self.acknowledged[key] = body["sequence"]
                number += 1
            else:
                assert status in (503, 504), body


def journals(node: RunningNode) -> list[Journal]:
    """Create the board and start writers; returns when each has been acknowledged often."""
    assert node.call("PUT", "/v1/boards/b", {"aggregation": "sum"})[0] == 201
    writers = [Journal(node, f"w{i}") for i in range(4)]
    for writer in writers:
        writer.start()
    wait_until(
        lambda: all(len(w.acknowledged) >= EVENTS_BEFORE_KILL for w in writers), 30, "writers work"
    )
    return writers


def end(writers: list[Journal]) -> None:
    for writer in writers:
        writer.ended.set()
    for writer in writers:
        writer.join(30)
        assert not writer.is_alive()


def check_each_is_there_once(node: RunningNode, writers: list[Journal]) -> None:
    """Send every acknowledged event again: a duplicate with its sequence; the sum is the count."""
    for writer in writers:
        keys = list(writer.acknowledged)
        events = [writer.event(key) for key in keys]
        status, answer = node.call("POST", "/v1/boards/b/events", {"events": events})
        assert status == 200
        for key, result in zip(keys, answer["results"], strict=True):
            assert result == {"status": "duplicate", "sequence": writer.acknowledged[key]}
    top = node.ask("/v1/boards/b/top?limit=100")
    total = sum(entry["score"] for entry in top["entries"])
    acknowledged = sum(len(writer.acknowledged) for writer in writers)
    # What a writer had in flight when it was told to end may be counted without its knowing.
    assert acknowledged <= total <= acknowledged + len(writers)
    assert total == top["sequence"] - 2


@pytest.mark.parametrize("whole_session", [False, True])
def test_killed_node(make_node: Callable[..., RunningNode], whole_session: bool) -> None:
    """After kill -9 of the node, alone or with all it started, nothing acknowledged is lost."""
    node = make_node().start()
    writers = journals(node)
    if whole_session:
        node.kill_all()
    else:
        node.process.kill()
        node.process.wait()
        wait_until(lambda: not node.processes(), 5, "the guard leaves nothing running")
    node.start()
    end(writers)
    check_each_is_there_once(node, writers)
    assert node.stop() == 0


def test_killed_board(make_node: Callable[..., RunningNode]) -> None:
    """After kill -9 of a board's process the node brings it up again by itself."""
    node = make_node().start()
    writers = journals(node)
    (board,) = node.named("ray::BoardActor")
    os.kill(board, signal.SIGKILL)
    noted = [len(writer.acknowledged) for writer in writers]
    wait_until(
        lambda: all(len(w.acknowledged) > n + 5 for w, n in zip(writers, noted, strict=True)),
        30,
        "the board answers again",
    )
    end(writers)
    check_each_is_there_once(node, writers)
    assert node.process.poll() is None
    assert node.stop() == 0


@pytest.mark.parametrize("victim", ["gcs_server", "raylet", "guard"])
def test_killed_service(make_node: Callable[..., RunningNode], victim: str) -> None:
    """Without one of Ray's services, or its guard, a node ends, and its next start answers."""
    node = make_node().start()
    writers = journals(node)
    if victim == "guard":
        os.kill(node.guard(), signal.SIGKILL)
    else:
        os.kill(node.named(f"/{victim} ")[0], signal.SIGKILL)
    assert node.process.wait(10) == EXIT_RAY_LOST
    wait_until(lambda: not node.processes(), 5, "nothing is left running")
    node.start()
    end(writers)
    check_each_is_there_once(node, writers)
    assert node.stop() == 0


def test_paused_board(make_node: Callable[..., RunningNode]) -> None:
    """A board that was stopped, and its node killed, does not stand in its successor's way."""
    node = make_node().start()
    writers = journals(node)
    (board,) = node.named("ray::BoardActor")
    os.kill(board, signal.SIGSTOP)
    node.process.kill()
    node.process.wait()
    node.start()
    end(writers)
    check_each_is_there_once(node, writers)
    assert board not in node.processes()
    assert node.stop() == 0


def test_planted_fault_is_noticed(make_node: Callable[..., RunningNode]) -> None:
    """The check of these tests fails for an acknowledgement that no disk holds."""
    node = make_node().start()
    writers = journals(node)
    end(writers)
    writers[0].acknowledged["never-sent"] = 1
    with pytest.raises(AssertionError):
        check_each_is_there_once(node, writers)
    assert node.stop() == 0
