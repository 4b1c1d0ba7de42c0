"""`ranknode verify --repair`: says what it would give up, asks, and leaves a board that serves."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from actors.creation import create_board
from actors.repairing import DROPPED
from node import runtime
from node.cli import main
from node.runtime import DataLock
from persistence.ownership import Ownership
from tests.actors.board_harness import NOW_US, define
from tests.actors.clocked_board import ClockedBoard
from tests.data.logs.write import BEGINNING, DEFINITION, OPTIONS, play
from tests.running_node import RANKNODE, RunningNode

MakeNode = Callable[..., RunningNode]
DATA = "log/00000001/data.mdb"


def invoke(*arguments: object, stdin: str = "") -> Result:
    return CliRunner().invoke(main, [str(each) for each in ("verify", *arguments)], input=stdin)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Make a data directory with the played board "b"."""
    (tmp_path / "boards").mkdir()
    board = ClockedBoard(tmp_path / "boards", BEGINNING, OPTIONS, **DEFINITION)
    play(board, rules=False)
    board.close()
    return tmp_path


def damage(board: Path, old: bytes, new: bytes) -> None:
    content = (board / DATA).read_bytes()
    assert old in content
    (board / DATA).write_bytes(content.replace(old, new))


def contents(directory: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "lock.mdb"
    }


def test_a_sound_board_is_left_alone(data):
    """Without damage `--repair` says sound, asks nothing, changes nothing, and ends with 0."""
    before = contents(data)
    result = invoke(data, "--repair")
    assert (result.exit_code, result.stdout) == (0, "b: sound\n")
    assert contents(data) == before


def test_nothing_is_repaired_without_consent(data):
    """What would be given up is shown first; who does not agree keeps every file as it is."""
    damage(data / "boards" / "b", b"4/Ada", b"4/Adb")
    before = contents(data / "boards")
    result = invoke(data, "--repair", stdin="n\n")
    assert result.exit_code == 1
    for line in (
        "log/00000001/data.mdb: the record at 41: a record's hash is not that of its content",
        "kept: sequences 1 to 40",
        "dropped: sequences 41 to 77",
        "legible of them: 31 events, received from 2026-03-09T15:00:00Z to 2026-03-13T15:00:00Z",
        "snapshots/00000000000000000047.snapshot",
    ):
        assert line in result.stdout
    assert contents(data / "boards") == before
    assert invoke(data).exit_code == 1


def test_a_damaged_board_is_repaired_once(data):
    """`--yes` repairs and ends with 0; the board is sound then, and says what it lost."""
    damage(data / "boards" / "b", b"4/Ada", b"4/Adb")
    result = invoke(data, "--board", "b", "--repair", "--yes")
    assert result.exit_code == 0, result.stdout
    assert "b: sound\n  sequences 41 to 77 were lost" in result.stdout
    (aside,) = (data / "boards" / "b").glob("damaged-*")
    assert str(aside / DROPPED) in result.stdout
    header, *events = map(json.loads, (aside / DROPPED).read_bytes().splitlines())
    assert header["board"] == "b"
    assert len(events) == 31
    before = contents(data)
    again = invoke(data, "--repair", "--yes")
    assert (again.exit_code, again.stdout.splitlines()[0]) == (0, "b: sound")
    assert contents(data) == before


def test_what_cannot_be_repaired_is_said(data):
    """A board whose definition is nowhere legible stays as it is, and the command ends with 1."""
    board = data / "boards" / "b"
    (board / DATA).write_bytes(b"")
    for path in (board / "snapshots").iterdir():
        path.unlink()
    result = invoke(data, "--repair", "--yes")
    assert result.exit_code == 1
    assert "cannot be repaired" in result.stdout
    assert (board / DATA).read_bytes() == b""


def test_a_board_that_cannot_be_read_holds_no_other_up(data):
    """An error of the disk is said of its board, and the boards behind it have their turn."""
    boards = data / "boards"
    create_board(boards / "a", "a", define(), NOW_US, OPTIONS)
    (boards / "a" / "owner").unlink(missing_ok=True)
    (boards / "a" / "owner").mkdir()
    damage(boards / "b", b"4/Ada", b"4/Adb")
    checked = invoke(data)
    assert checked.exit_code == 1
    assert "a: damaged\n  [Errno 21] Is a directory" in checked.stdout
    assert "b: damaged" in checked.stdout
    repaired = invoke(data, "--repair", "--yes")
    assert repaired.exit_code == 1
    assert "cannot be repaired: [Errno 21] Is a directory" in repaired.stdout
    assert "b: sound\n  sequences 41 to 77 were lost" in repaired.stdout


def test_what_is_no_directory_is_left_out(data):
    """What has a board's name and is none is said and left alone, and nothing waits for it."""
    boards = data / "boards"
    (boards / "a").symlink_to("nowhere")
    (boards / "c").write_bytes(b"?")
    (boards / "d").symlink_to("b")
    for options in ([], ["--repair", "--yes"]):
        result = invoke(data, *options)
        assert (result.exit_code, result.stdout) == (0, "b: sound\n")
        for name in "acd":
            assert f"{name}: left out, as by a node: it is no directory" in result.stderr


def test_a_board_that_changed_meanwhile_is_not_repaired(data, monkeypatch):
    """What is carried out is what was shown: a plan that comes out otherwise then is refused."""
    damage(data / "boards" / "b", b"4/Ada", b"4/Adb")
    before = contents(data / "boards" / "b" / "log")
    take, changed = Ownership.take, []

    def taken(directory):
        damage(directory, b"3/Ada", b"3/Adb")
        changed.append(contents(directory / "log"))
        return take(directory)

    monkeypatch.setattr(Ownership, "take", taken)
    result = invoke(data, "--repair", "--yes")
    assert result.exit_code == 1
    assert "cannot be repaired: it changed meanwhile; run this again" in result.stdout
    assert [contents(data / "boards" / "b" / "log")] == changed != [before]


def test_a_served_board_is_not_repaired(data, monkeypatch):
    """While a node serves the data nothing is repaired, and the node is left alone."""
    monkeypatch.setattr(runtime, "LOCK_SECONDS_MAX", 0.1)
    damage(data / "boards" / "b", b"4/Ada", b"4/Adb")
    before = contents(data / "boards")
    lock = DataLock(data)
    try:
        result = invoke(data, "--repair", "--yes")
    finally:
        lock.release()
    assert result.exit_code == 1
    assert "another node runs" in result.stderr
    assert contents(data / "boards") == before


def test_yes_alone_is_refused(data):
    """`--yes` without `--repair` is a typing error, not a verification."""
    assert invoke(data, "--yes").exit_code == 2


def run(*arguments: object) -> str:
    command = [RANKNODE, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def scores(node: RunningNode) -> dict[str, Any]:
    entries = node.ask("/v1/boards/b/top?limit=100")["entries"]
    return {entry["member"]: entry["score"] for entry in entries}


def test_a_repaired_board_takes_its_events_back(make_node: MakeNode) -> None:
    """A damaged board is held back and says why in the log; repaired, it takes its events once."""
    node = make_node().start()
    definition = {"aggregation": "sum", "periods": ["all_time", "daily"]}
    assert node.call("PUT", "/v1/boards/b", definition)[0] == 201
    for number in range(60):
        event = {"member": f"m{number % 7}", "value": number, "idempotency_key": f"key/{number}"}
        status, answer = node.call("POST", "/v1/boards/b/events", event)
        assert status == 200
    last_sequence = answer["sequence"]
    before = scores(node)
    assert node.stop() == 0
    board = node.data / "boards" / "b"
    for path in (board / "snapshots").iterdir():
        path.unlink()
    damage(board, b"key/20", b"kex/20")

    node.start()
    status, problem = node.call("GET", "/v1/boards/b/top")
    assert (status, problem["code"]) == (503, "board_unavailable")
    assert not re.search(r"data\.mdb|/|record", problem["detail"])
    assert node.stop() == 0
    said = node.output.read_text()
    assert re.search(r"board b cannot be brought up: .*/00000001/data\.mdb: the record at", said)

    assert "legible of them: 39 events" in run("verify", node.data, "--repair", "--yes")
    (dropped,) = board.glob(f"damaged-*/{DROPPED}")
    node.start()
    assert sum(scores(node).values()) == sum(range(20))
    imported = ("import", "b", dropped, "--url", node.url, "--backfill")
    assert "39 applied, 0 duplicates, 0 rejected" in run(*imported)
    after = scores(node)
    assert after == before | {"m6": before["m6"] - 20}
    assert "0 applied, 39 duplicates, 0 rejected" in run(*imported)
    event = {"member": "m6", "value": 20, "idempotency_key": "key/20"}
    status, answer = node.call("POST", "/v1/boards/b/events", event)
    assert (status, answer["status"]) == (200, "applied")
    assert answer["sequence"] > last_sequence
    assert scores(node) == before
    assert node.ask("/v1/boards/b")["mode"] == "live"
    assert node.stop() == 0
    assert "b: sound" in run("verify", node.data)
