"""Moderated boards that are exported and imported again, by the commands, on a whole node."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.moderation import PSEUDONYM_START
from node.importing_rulings import NO_REASON
from tests.node.key_samples import add_key
from tests.node.moderated_board import BY, DAY, Board
from tests.running_node import RANKNODE, RunningNode, clean_up, wait_until

NAME = "Eva Zamykalová"
IN_PATH = "Eva%20Zamykalov%C3%A1"
COMMAND_SECONDS_MAX = 120.0
ERASED_SECONDS_MAX = 120.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """Start the node that the tests share."""
    made = RunningNode(tmp_path_factory.mktemp("exported") / "data").start()
    yield made
    clean_up(made)


@pytest.fixture(scope="module")
def key(node: RunningNode) -> str:
    """Give the node keys, and return one that may do everything."""
    return add_key(node.data, "admin")


def run(*arguments: Any, key: str = "", expected: int = 0) -> str:
    ran = subprocess.run(
        [RANKNODE, *map(str, arguments)],
        env=os.environ | {"RANKNODE_KEY": key},
        capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False,
    )  # fmt: skip
    assert ran.returncode == expected, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr
    return ran.stdout + ran.stderr


def moderated(node: RunningNode, key: str, name: str, **definition: Any) -> Board:
    """Make a board on which moderators did all that they can, the erasure of a name included."""
    board = Board(node, name, key, **definition)
    members = ("ada", "bob", "cyd", "dan", NAME)
    first = board.submit(
        *((member, 10 * place, f"{member}-1") for place, member in enumerate(members, 1)),
        occurred_at="2020-03-02T10:00:00Z",
    )
    if "mode" in definition:
        board.rule("PATCH", "", {"mode": "live"})
    board.rule("POST", f"/events/{first[0]}/void")
    board.rule("PUT", "/members/bob/hidden")
    board.rule("PUT", "/members/cyd/profile", {"display_name": "Cyd", "extra": {"pi": 3.14}})
    for place, status in ((2, "upheld"), (4, "rejected"), (3, "")):
        body = {"sequence": first[place], "reason": f"{NAME} again", "opened_by": "ref"}
        opened = board.rule("POST", "/disputes", body, 201)["id"]
        if status:
            settlement = {"status": status, "note": "seen", "actor": "judge"}
            board.rule("PATCH", f"/disputes/{opened}", settlement)
    board.rule("DELETE", "/members/dan")
    board.submit(("dan", 7, "dan-2"), ("ada", 5, "ada-2"), (NAME, 1, "eva-2"))
    board.rule("PUT", f"/members/{IN_PATH}/hidden", BY | {"actor": NAME})
    board.rule("DELETE", f"/members/{IN_PATH}/hidden")
    board.rule("POST", f"/members/{IN_PATH}/erase", status=202)
    return board


def copy_of(board: Board, name: str) -> Board:
    """Give a board that an import made."""
    copy = Board.__new__(Board)
    copy.node, copy.name, copy.key = board.node, name, board.key
    return copy


def state(board: Board, *windows: str) -> dict[str, Any]:
    """Give what must be equal of two boards of equal events and rulings."""
    tops = {each: board.ask(f"top?limit=1000&{each}")["entries"] for each in windows}
    digests = {each: board.ask(f"digest?{each}")["digest"] for each in windows}
    disputes = board.ask("disputes")["disputes"]
    told = ("status", "member", "opened_by", "windows", "actor")
    audit = [
        tuple(record[field] for field in ("action", "actor", "reason", "member"))
        for record in board.ask("audit?limit=1000")["records"]
        if record["action"] not in ("erase", "erased")
    ]
    audit = [
        (action, actor, "" if reason.startswith(NO_REASON) else reason, member)
        for action, actor, reason, member in audit
    ]
    return {
        "tops": tops, "digests": digests, "audit": audit,
        "disputes": [[each[field] for field in told] for each in disputes],
    }  # fmt: skip


def marks(board: Board) -> tuple[int, str]:
    digest = board.ask("digest")
    return digest["sequence"], digest["digest"]


def test_a_moderated_board_is_exported_and_imported(
    node: RunningNode, key: str, tmp_path: Path
) -> None:
    """It comes back with its rankings and its audit, in closed windows too, and only once."""
    board = moderated(node, key, "whole", periods=["all_time", "daily"], mode="backfill")
    file = tmp_path / "whole.ndjson"
    run("export", "whole", "--data", node.data, "--output", file)
    assert NAME not in file.read_text(), "whether or not the name has left the disk by now"

    def gone() -> bool:
        records = board.ask("audit")["records"]
        return any(record["action"] == "erased" for record in records)

    wait_until(gone, ERASED_SECONDS_MAX, "the audit says that the name is gone")
    run("export", "whole", "--data", node.data, "--output", file)
    assert NAME not in file.read_text()
    told = run("import", "copy", file, "--url", node.url, key=key)
    assert "8 applied, 0 duplicates, 0 rejected\nrulings: 11 applied, 2 skipped\n" in told
    copy = copy_of(board, "copy")
    windows = ("period=all_time", f"period={DAY}")
    expected = state(board, *windows)
    assert state(copy, *windows) == expected
    names = [entry["member"] for entry in expected["tops"]["period=all_time"]]
    assert [name.startswith(PSEUDONYM_START) for name in names].count(True) == 1
    before = marks(copy)
    told = run("import", "copy", file, "--url", node.url, key=key)
    assert "0 applied, 8 duplicates, 0 rejected\nrulings: 0 applied, 13 skipped\n" in told
    assert marks(copy) == before
    run("verify", node.data, "--board", "copy")


def test_a_file_that_was_cut_is_imported_again(node: RunningNode, key: str, tmp_path: Path) -> None:
    """Half of a file, then all of it, is all of it once."""
    board = moderated(node, key, "half", key_retention_days=None)
    file, part = tmp_path / "half.ndjson", tmp_path / "part.ndjson"
    run("export", "half", "--data", node.data, "--output", file)
    lines = file.read_bytes().splitlines(keepends=True)
    middle = next(place for place, each in enumerate(lines) if b'"action":"remove"' in each) + 2
    part.write_bytes(b"".join(lines[:middle]))
    told = run("import", "half-copy", part, "--url", node.url, key=key, expected=1)
    assert " 1 rejected" in told
    assert "half-copy stays in backfill mode" in told
    told = run("import", "half-copy", file, "--url", node.url, key=key)
    assert " 0 rejected" in told
    assert state(copy_of(board, "half-copy"), "") == state(board, "")


def test_rulings_take_an_admin_key(node: RunningNode, key: str, tmp_path: Path) -> None:
    """A key that may submit imports events; at the first ruling the import ends and says why."""
    Board(node, "keyed", key)
    file = tmp_path / "keyed.ndjson"
    event = b'{"member":"ada","value":1,"idempotency_key":"k"}\n'
    ruling = b'{"moderation":{"action":"hide","actor":"mod","reason":"why","member":"ada"}}\n'
    submit = add_key(node.data, "submit")
    file.write_bytes(event)
    assert "1 applied" in run("import", "keyed", file, "--url", node.url, key=submit)
    file.write_bytes(event + ruling)
    told = run("import", "keyed", file, "--url", node.url, key=submit, expected=1)
    assert "forbidden" in told
    assert "Run the import again to resume" in told
