"""The right to be forgotten on a whole node: on one board, on all of them, and across a kill."""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.key_samples import add_key
from tests.node.moderated_board import BY, DAY, Board, refused
from tests.running_node import RunningNode, clean_up, wait_until

MakeNode = Callable[..., RunningNode]
NAME = "Đorđe Balašević"
IN_PATH = urllib.parse.quote(NAME)
ERASED_SECONDS_MAX = 120.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """Start the node that the tests share; each has boards of its own."""
    made = RunningNode(tmp_path_factory.mktemp("erased") / "data").start()
    yield made
    clean_up(made)


def on_disk(data: Path) -> list[str]:
    """Name the files of a data directory that hold the name."""
    found = []
    for path in data.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a log that another has taken the place of
            if path.is_file() and NAME.encode() in path.read_bytes():
                found.append(str(path))
    return found


def wait_until_gone(board: Board) -> None:
    def said() -> bool:
        records = board.ask("audit")["records"]
        return [record["action"] for record in records].count("erased") > 0

    wait_until(said, ERASED_SECONDS_MAX, "the audit says that the name is gone")


def played(node: RunningNode, name: str) -> Board:
    """Make a board with a closed day, on which she played among others and was moderated."""
    board = Board(node, name, periods=["all_time", "daily"], mode="backfill")
    for number in range(3):
        board.submit(
            (NAME, number, f"hers-{number}"), ("ada", 1, f"a-{number}"), ("bob", 2, f"b-{number}"),
            occurred_at="2020-03-02T10:00:00Z",
        )  # fmt: skip
    board.rule("PUT", f"/members/{IN_PATH}/profile", {"display_name": NAME})
    board.rule("PATCH", "", {"mode": "live"})
    return board


def test_an_erased_member_is_gone_at_once_and_soon_from_disk(node: RunningNode) -> None:
    """202, then no answer holds the name; in the end no file does; a kill in between delays it."""
    board = played(node, "one")
    assert on_disk(node.data)
    reply = board.rule("POST", f"/members/{IN_PATH}/erase", status=202)
    assert set(reply) == {"board", "sequence"}
    again = board.rule("POST", f"/members/{IN_PATH}/erase", status=202)
    assert again["sequence"] >= reply["sequence"]
    board.killed()
    for query in ("", f"?period={DAY}"):
        scores = dict(board.scores(query))
        assert NAME not in scores
        assert sorted(scores.values()) == [3, 3, 6]
    refused(board.call("GET", f"/members/{IN_PATH}"), 404, "member_not_found")
    refused(board.call("GET", f"/members/{IN_PATH}/events"), 404, "member_not_found")
    assert NAME not in repr(board.seen())
    wait_until_gone(board)
    assert on_disk(node.data) == []
    assert NAME not in repr(board.seen())
    (pseudonym,) = [name for name, _ in board.scores() if name not in ("ada", "bob")]
    events = board.ask(f"members/{urllib.parse.quote(pseudonym)}/events")["events"]
    assert [event["value"] for event in events] == [2, 1, 0]
    again = {"member": NAME, "value": 0, "idempotency_key": "hers-0"}
    status, answer = board.call("POST", "/events", again | {"occurred_at": "2020-03-02T10:00:00Z"})
    assert (status, answer["status"]) == (200, "duplicate")


def test_a_member_is_erased_on_every_board_and_a_board_fails_alone(node: RunningNode) -> None:
    """One call asks all boards, or those that are named; what is not there is named as failed."""
    boards = [played(node, name) for name in ("every-1", "every-2", "every-3")]
    target = f"/v1/members/{IN_PATH}/erase"
    status, answer = node.call("POST", f"{target}?boards=every-1,nowhere", BY)
    assert (status, set(answer["sequences"])) == (202, {"every-1"})
    assert [(each["board"], each["code"]) for each in answer["failed"]] == [
        ("nowhere", "board_not_found")
    ]
    status, answer = node.call("POST", target, BY, packed=True)
    assert status == 202, answer
    assert {"every-1", "every-2", "every-3"} <= set(answer["sequences"])
    assert answer["failed"] == []
    for board in boards:
        refused(board.call("GET", f"/members/{IN_PATH}"), 404, "member_not_found")
        wait_until_gone(board)
    for body, field in (({"actor": "x"}, "reason"), (BY | {"more": 1}, "more")):
        problem = refused(node.call("POST", target, body), 422, "invalid_field")
        assert problem["field"] == field
    for named in ("every-1,UPPER", ",".join(f"b{n}" for n in range(101))):
        problem = refused(node.call("POST", f"{target}?boards={named}", BY), 422, "invalid_field")
        assert problem["field"] == "boards"
    refused(node.call("POST", "/v1/members/%2E%2E/erase", BY), 422, "invalid_field")


def test_a_key_erases_on_the_boards_that_it_covers(make_node: MakeNode) -> None:
    """Without named boards those that the key does not cover are left alone, else it is refused."""
    node = make_node()
    data = node.data
    data.mkdir()
    everywhere = add_key(data, "admin")
    partly = add_key(data, "admin", boards=("arena-*",))
    reader = add_key(data, "submit")
    node.start()
    boards = [Board(node, name, key=everywhere) for name in ("arena-1", "market")]
    for board in boards:
        board.submit((NAME, 1, "k"))
    target = f"/v1/members/{IN_PATH}/erase"
    refused(node.call("POST", target, BY, key=reader), 403, "forbidden")
    refused(node.call("POST", f"{target}?boards=market", BY, key=partly), 403, "forbidden")
    status, answer = node.call("POST", target, BY, key=partly)
    assert (status, list(answer["sequences"]), answer["failed"]) == (202, ["arena-1"], [])
    assert boards[0].call("GET", f"/members/{IN_PATH}")[0] == 404
    assert boards[1].call("GET", f"/members/{IN_PATH}")[0] == 200
    (record, *_) = [each for each in boards[0].ask("audit")["records"] if each["action"] == "erase"]
    assert record["key"] == partly.split("_")[1]


def test_a_board_that_nobody_asks_for_erases_after_a_kill(make_node: MakeNode) -> None:
    """The node brings it up by itself, and the name leaves the disk."""
    node = make_node().start()
    board = Board(node, "alone")
    for number in range(5):
        board.submit((NAME, number, f"k{number}"))

    def wait_gone() -> None:
        wait_until(lambda: not on_disk(node.data), ERASED_SECONDS_MAX, "no file holds the name")

    board.rule("POST", f"/members/{IN_PATH}/erase", status=202)
    node.kill_all()
    held: Any = on_disk(node.data)
    node.start()
    wait_gone()
    assert held, "the kill came before the name was gone"
