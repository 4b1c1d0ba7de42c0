"""Windows of a whole node: they close by themselves, once, asked for or not, and stay."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.running_node import RunningNode, wait_until

MakeNode = Callable[..., RunningNode]


def at(seconds: float) -> str:
    """Write an instant some seconds from now."""
    moment = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)
    return moment.isoformat().replace("+00:00", "Z")


def cup(ends_in: float, grace_seconds: int = 0) -> dict[str, Any]:
    return {
        "aggregation": "sum",
        "grace_seconds": grace_seconds,
        "periods": [
            "all_time", {"name": "cup", "start": at(-60), "end": at(ends_in)},
        ],
    }  # fmt: skip


def fill(node: RunningNode, board: str, definition: dict[str, Any]) -> None:
    assert node.call("PUT", f"/v1/boards/{board}", definition)[0] == 201
    events = [
        {"member": f"m{i}", "value": i, "idempotency_key": f"k{i}", "occurred_at": at(-30)}
        for i in range(20)
    ]
    status, answer = node.call("POST", f"/v1/boards/{board}/events", {"events": events})
    assert (status, answer["applied"]) == (200, 20)


def listed(node: RunningNode, board: str, window: str = "cup") -> Any:
    (found,) = [
        period for period in node.ask(f"/v1/boards/{board}/periods")["periods"]
        if period["id"] == window
    ]  # fmt: skip
    return found


def archives(node: RunningNode) -> list[Path]:
    return sorted((node.data / "boards").glob("*/archives/*.archive"))


def instant(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


def test_an_active_board_closes_by_itself(make_node: MakeNode) -> None:
    """A window closes under a second after it is due, while writes go on, and only once."""
    node = make_node().start()
    fill(node, "b", cup(4.0))
    number = 0
    while not listed(node, "b")["closed"]:
        event = {"member": "late", "value": 1, "idempotency_key": f"w{number}"}
        assert node.call("POST", "/v1/boards/b/events", event)[0] == 200
        number += 1
        assert number < 10_000
    closed = listed(node, "b")
    late = instant(closed["closed_at"]) - instant(closed["closes_at"])
    assert dt.timedelta(0) <= late < dt.timedelta(seconds=1)
    top = node.ask("/v1/boards/b/top?period=cup&limit=100")
    assert top["period"]["closed"] is True
    event = {
        "member": "m1", "value": 100, "idempotency_key": "too-late", "occurred_at": at(-30),
    }  # fmt: skip
    status, answer = node.call("POST", "/v1/boards/b/events", event)
    assert (status, [s["period"] for s in answer["standings"]]) == (200, ["all_time"])
    for _ in range(2):
        assert listed(node, "b") == closed
        again = node.ask("/v1/boards/b/top?period=cup&limit=100")
        assert {**again, "sequence": 0} == {**top, "sequence": 0}
        node.kill_all()
        node.start()
    assert node.stop() == 0


def test_passive_boards_close_too(make_node: MakeNode) -> None:
    """Boards that nobody asks for close within a minute, without a process for each of them."""
    config = make_node().data.with_name("few.toml")
    config.write_text("boards_active_max = 2\n")
    node = make_node("data", "--config", str(config)).start()
    boards = [f"b{i:02}" for i in range(12)]
    for board in boards:
        fill(node, board, cup(25.0))
    assert len(archives(node)) == 0
    due = time.monotonic() + 25
    most = 0
    while len(archives(node)) < len(boards):
        assert time.monotonic() < due + 60
        most = max(most, len(node.named("ray::BoardActor")) + len(node.named("ray::Janitor")))
        time.sleep(0.2)
    assert most <= 4
    digests = {board: listed(node, board)["digest"] for board in boards}
    assert len(set(digests.values())) == len(boards), "members' times differ from board to board"
    assert all(listed(node, board)["closed"] for board in boards)
    assert node.stop() == 0


def test_a_node_that_was_down_closes_what_is_due(make_node: MakeNode) -> None:
    """What came due while nothing ran is closed at the next start, also if nobody asks."""
    node = make_node().start()
    fill(node, "asked", cup(5.0))
    fill(node, "unasked", cup(5.0))
    node.kill_all()
    time.sleep(5.5)
    node.start()
    assert listed(node, "asked")["closed"] is True
    unasked = node.data / "boards" / "unasked" / "archives"
    wait_until(lambda: list(unasked.glob("*.archive")), 60, "the other one is closed as well")
    assert node.stop() == 0


def test_archives_are_made_again_from_the_log(make_node: MakeNode) -> None:
    """With only the log left, open windows answer, and each archive comes back with its digest."""
    node = make_node().start()
    fill(node, "b", cup(3.0))
    wait_until(lambda: listed(node, "b")["closed"], 10, "the window closes")
    closed = listed(node, "b")
    assert node.stop() == 0
    for part in ("archives", "snapshots"):
        shutil.rmtree(node.data / "boards" / "b" / part)
    node.start()
    assert node.ask("/v1/boards/b/top")["members"] == 20
    wait_until(lambda: archives(node), 20, "the archive is made again")
    assert listed(node, "b") == closed
    assert node.ask("/v1/boards/b/digest?period=cup")["digest"] == closed["digest"]
    assert node.stop() == 0
    damaged = archives(node)[0]
    content = bytearray(damaged.read_bytes())
    content[-40] ^= 1
    damaged.write_bytes(content)
    node.start()
    answers = []

    def answered() -> bool:
        answers.append(node.call("GET", "/v1/boards/b/top?period=cup"))
        return answers[-1][0] == 200

    wait_until(answered, 20, "the damaged archive is made again")
    assert all(status == 503 for status, _ in answers[:-1])
    assert answers[-1][1]["members"] == 20
    assert node.stop() == 0


def test_a_killed_board_still_closes(make_node: MakeNode) -> None:
    """A board whose process died closes its windows although nobody asks for it again."""
    config = make_node().data.with_name("short.toml")
    config.write_text("board_idle_seconds = 20.0\n")
    node = make_node("data", "--config", str(config)).start()
    fill(node, "b", cup(4.0))
    (board,) = node.named("ray::BoardActor")
    os.kill(board, signal.SIGKILL)
    wait_until(lambda: archives(node), 60, "the window closes")
    assert node.stop() == 0
