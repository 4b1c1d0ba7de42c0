"""Backups of a data directory, beside the node that serves it or without one."""

from __future__ import annotations

import errno
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from actors import copying, offline
from actors.board import Board
from actors.creation import create_board
from actors.listing import LOG
from actors.logged_board import LoggedBoard
from actors.queries import NO_STANDINGS_DIGEST
from actors.standings import listing_digest
from node import key_file
from node.cli import main
from node.commands import BOARDS
from persistence import backup
from persistence.errors import CommitFailedError, DamagedError
from persistence.event_log import LmdbEventLog
from persistence.segments import Segment
from tests.actors.board_harness import NOW_US, SMALL, define, event, statuses
from tests.node.test_windows import cup, fill, listed
from tests.running_node import RANKNODE, RunningNode, wait_until

MakeNode = Callable[..., RunningNode]
BATCH = 10
PAUSE_SECONDS = 0.03  # between batches, so that what is checked in the end stays small
BOARDS_KEPT = {"closed", "passive", "closing", "one", "two"}
LINE = re.compile(r"(\S+): sequence (\d+), .+ in .+ s")


class Writer(threading.Thread):
    """A game server that posts batches to one board and notes what was acknowledged."""

    def __init__(self, node: RunningNode, board: str) -> None:
        super().__init__(daemon=True)
        self.node = node
        self.board = board
        self.acknowledged: dict[str, int] = {}
        self.ended = threading.Event()

    def events(self, number: int) -> list[dict[str, Any]]:
        keys = [f"{number}-{place}" for place in range(BATCH)]
        return [{"member": f"m{key}", "value": number, "idempotency_key": key} for key in keys]

    def run(self) -> None:
        number = 0
        while not self.ended.wait(PAUSE_SECONDS):
            events = self.events(number)
            path = f"/v1/boards/{self.board}/events"
            status, answer = self.node.call("POST", path, {"events": events})
            assert status == 200, answer
            for each, result in zip(events, answer["results"], strict=True):
                self.acknowledged[each["idempotency_key"]] = result["sequence"]
            number += 1

    def end(self) -> None:
        self.ended.set()
        self.join(60)
        assert not self.is_alive()


def small_node(make_node: MakeNode, tmp_path: Path) -> RunningNode:
    """Start a node whose segments and snapshots are soon full and due."""
    config = tmp_path / "small.toml"
    config.write_text("segment_events_max = 150\ncommit_events_max = 150\nsnapshot_events = 100\n")
    return make_node("data", "--config", str(config)).start()


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def digests_at(directory: Path, sequence: int) -> dict[str, str]:
    """Replay a board's log up to a sequence; returns what each of its windows digests to."""
    board, digests = Board(), {}
    log = LmdbEventLog.open_readonly(directory / LOG)
    for record in log.read():
        if record.first_sequence <= sequence:
            board.apply(record)
            for name, window in board.unsealed.items():
                columns = window.standings.listing()
                digests[name] = listing_digest(columns, board.definition.decimals).hex()
            board.unsealed.clear()
    log.close()
    assert board.sequence == sequence
    return digests | {name: w.standings.digest.hex() for name, w in board.windows.items()}


def backed_up(node: RunningNode, target: Path, deleted: range) -> dict[str, int]:
    """Run a backup while boards come and go; returns each copied board's sequence."""
    command = [RANKNODE, "backup", target, "--data", node.data]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert node.call("PUT", f"/v1/boards/{target.name}", {"aggregation": "best"})[0] == 201
    for number in deleted:
        assert node.call("DELETE", f"/v1/boards/gone-{number:02}")[0] == 204
    output, _ = running.communicate(timeout=120)
    assert running.returncode == 0, output
    return {name: int(last) for name, last in LINE.findall(output)}


def test_a_backup_under_load_serves_the_same(make_node: MakeNode, tmp_path: Path) -> None:
    """What was acknowledged before is in the copy, which digests as its source did, and lives on.

    Meanwhile segments fill, snapshots are written, a window closes, boards come and go.
    """
    node = small_node(make_node, tmp_path)
    for number in range(20):
        node.call("PUT", f"/v1/boards/gone-{number:02}", {"aggregation": "best"})
    fill(node, "closed", cup(1.0))
    fill(node, "passive", cup(3600.0))
    fill(node, "closing", cup(6.0))
    for board in ("one", "two"):
        assert node.call("PUT", f"/v1/boards/{board}", {"aggregation": "sum"})[0] == 201
    writers = [Writer(node, board) for board in ("closing", "one", "two")]
    for writer in writers:
        writer.start()
    wait_until(lambda: all(len(w.acknowledged) > 400 for w in writers), 60, "segments fill")
    wait_until(lambda: listed(node, "closed")["closed"], 20, "a window closes before")
    copies: list[tuple[Path, dict[str, int]]] = []
    while len(copies) < 2 or not listed(node, "closing")["closed"]:
        noted = [dict(writer.acknowledged) for writer in writers]
        target = tmp_path / f"copy-{len(copies)}"
        copied = backed_up(node, target, range(10 * len(copies), min(10 * len(copies) + 10, 20)))
        assert copied.keys() >= BOARDS_KEPT
        for writer, acknowledged in zip(writers, noted, strict=True):
            assert max(acknowledged.values()) <= copied[writer.board]
        copies.append((target, copied))
    for writer in writers:
        writer.end()
    for target, copied in (copies[0], copies[-1]):
        check_the_copy(node, make_node(target.name), copied, writers)
    assert len(list((copies[-1][0] / BOARDS / "one" / LOG).glob("0*"))) > 2
    assert list((copies[-1][0] / BOARDS / "one" / "snapshots").iterdir())
    assert node.stop() == 0


def check_the_copy(
    node: RunningNode, copy: RunningNode, copied: dict[str, int], writers: list[Writer]
) -> None:
    """Serve a copy: every window digests as the source did at that sequence, and it goes on."""
    expected = {
        board: digests_at(node.data / BOARDS / board, copied[board]) for board in BOARDS_KEPT
    }
    for board in copied:
        assert offline.verify(copy.data / BOARDS / board).findings == ()
    for board in BOARDS_KEPT:
        assert digests_at(copy.data / BOARDS / board, copied[board]) == expected[board]
    copy.start()
    for board in BOARDS_KEPT:
        for window, digest in expected[board].items():
            answer = copy.ask(f"/v1/boards/{board}/digest?period={window}")
            came_due = answer["period"]["closed"] and len(digest) == len(NO_STANDINGS_DIGEST)
            assert came_due or answer["digest"] == digest
            # Only a closing is in the copy that is not in its source.
            assert answer["sequence"] - copied[board] in ((0, 1) if board == "closing" else (0,))
    for writer in writers:
        check_it_goes_on(copy, writer, copied[writer.board])
    assert copy.stop() == 0


def check_it_goes_on(copy: RunningNode, writer: Writer, last_sequence: int) -> None:
    """Send everything again: what the copy has is a duplicate, what it lacks is new, once."""
    path = f"/v1/boards/{writer.board}/events"
    numbers = range(len(writer.acknowledged) // BATCH)
    sent = [each for number in numbers for each in writer.events(number)]
    for first in range(0, len(sent), 1000):
        batch = sent[first : first + 1000]
        for _ in range(2):
            status, answer = copy.call("POST", path, {"events": batch})
            assert status == 200
        for each, result in zip(batch, answer["results"], strict=True):
            assert result["status"] == "duplicate"
            sequence = writer.acknowledged[each["idempotency_key"]]
            assert (
                result["sequence"] == sequence or min(result["sequence"], sequence) > last_sequence
            )


# Without a node


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Make a data directory with the boards a, b and c, of a few segments each."""
    folder = tmp_path / "data" / BOARDS
    folder.mkdir(parents=True)
    for name in ("a", "b", "c"):
        create_board(folder / name, name, define(), NOW_US, SMALL)
        board = LoggedBoard.open(folder / name, SMALL)
        for first in range(0, 90, 15):
            statuses(board, *(event(f"m{n}", n, f"k{n}") for n in range(first, first + 15)))
        board.write_copy(board.copy_state())
        board.close()
    return tmp_path / "data"


def test_a_backup_says_what_it_holds(data: Path, tmp_path: Path) -> None:
    """A line for each board with its sequence, bytes and time, and one for all."""
    result = invoke("backup", tmp_path / "copy", "--data", data)
    assert result.exit_code == 0, result.output
    *boards, total = result.stdout.splitlines()
    assert [LINE.fullmatch(line).group(1, 2) for line in boards] == [  # type: ignore[union-attr]
        ("a", "92"), ("b", "92"), ("c", "92"),
    ]  # fmt: skip
    assert re.fullmatch(r"3 boards, .+ in .+ s, .+/s: \S+copy", total)
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == [BOARDS]


def change(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


def test_a_damaged_board_is_left_out(data: Path, tmp_path: Path) -> None:
    """A damaged board is refused with its record's name and ends with 1; the others are copied."""
    change(data / BOARDS / "b" / LOG / "00000001" / "data.mdb", b"k20k21", b"k20k20")
    result = invoke("backup", tmp_path / "copy", "--data", data)
    assert result.exit_code == 1, result.output
    damaged = data / BOARDS / "b" / LOG / "00000001"
    assert f"b: not copied: {damaged}" in result.stdout
    assert "the record at sequence 18: " in result.stdout
    assert sorted(path.name for path in (tmp_path / "copy" / BOARDS).iterdir()) == ["a", "c"]
    assert invoke("verify", tmp_path / "copy").exit_code == 0


def test_what_can_be_made_again_is_left_out_with_a_word(data: Path, tmp_path: Path) -> None:
    """A damaged snapshot is said, and no failure: the copy comes up from its log."""
    (snapshot,) = (data / BOARDS / "b" / "snapshots").iterdir()
    snapshot.write_bytes(snapshot.read_bytes()[:-1])
    result = invoke("backup", tmp_path / "copy", "--data", data)
    assert result.exit_code == 0, result.output
    assert f"left out, and made again when it is needed: {snapshot}" in result.stdout
    assert invoke("verify", tmp_path / "copy").exit_code == 0


def test_a_board_deleted_meanwhile_is_no_failure(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A board that is deleted before its turn, or during it, is said to be."""
    copy_log = copying.copy_log

    def deleting(source: Path, *rest: Any) -> Any:
        for name in ("b", "c"):
            if source.parent.name != "a" and (data / BOARDS / name).exists():
                (data / BOARDS / name).rename(tmp_path / name)
        return copy_log(source, *rest)

    monkeypatch.setattr(copying, "copy_log", deleting)
    result = invoke("backup", tmp_path / "copy", "--data", data)
    assert result.exit_code == 0, result.output
    assert "b: was deleted meanwhile\nc: was deleted meanwhile\n" in result.stdout
    assert [path.name for path in (tmp_path / "copy" / BOARDS).iterdir()] == ["a"]


def test_keys_are_copied_for_their_owner_alone(data: Path, tmp_path: Path) -> None:
    """The API keys are in the copy as they are, which nobody else may read."""
    for scope in ("read", "admin"):
        assert invoke("key", "create", "--data", data, "--scope", scope).exit_code == 0
    assert invoke("backup", tmp_path / "copy", "--data", data).exit_code == 0
    copy = tmp_path / "copy" / key_file.FILE
    assert copy.read_bytes() == (data / key_file.FILE).read_bytes()
    assert copy.stat().st_mode & 0o777 == 0o600


def test_damaged_keys_do_not_open_the_copy(data: Path, tmp_path: Path) -> None:
    """Keys that cannot be read are copied all the same, lest the copy let everyone in; it is 1."""
    (data / key_file.FILE).write_bytes(b"{")
    result = invoke("backup", tmp_path / "copy", "--data", data)
    assert result.exit_code == 1, result.output
    assert f"{key_file.FILE}: copied as it is, but" in result.stdout
    assert (tmp_path / "copy" / key_file.FILE).read_bytes() == b"{"


def test_a_full_disk_ends_the_backup(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room the whole backup ends; what is left has another name, and that is said."""
    monkeypatch.setattr(backup, "free_bytes", lambda _: 1 << 20)
    result = invoke("backup", tmp_path / "copy", "--data", data)
    assert result.exit_code == 1, result.output
    assert f"The broken backup is left in {tmp_path}/copy.partial; remove it." in result.stderr
    assert not (tmp_path / "copy").exists()
    again = invoke("backup", tmp_path / "copy", "--data", data)
    assert again.exit_code == 1
    assert "copy.partial is under way, or left" in again.stderr


def failing(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: Exception, place: Path
) -> list[str]:
    """Let a function fail for whatever lies below `place`; returns a list of what failed."""
    function, fired = getattr(owner, name), []

    def fail(*arguments: Any, **options: Any) -> Any:
        if any(str(getattr(each, "directory", each)).startswith(str(place)) for each in arguments):
            fired.append(name)
            raise error
        return function(*arguments, **options)

    monkeypatch.setattr(owner, name, fail)
    return fired


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (backup, "make_directory"), (backup, "write_atomically"), (backup, "write_seal"),
        (backup, "HeadFile"), (backup, "sync_directory"), (Segment, "create"), (Segment, "put"),
        (Segment, "open_live"), (copying, "check_log"), (copying, "leave_epoch"),
        (copying, "write_listing"), (copying, "file_bytes"), (copying, "list_snapshots"),
    ],
)  # fmt: skip
def test_an_error_of_the_target_ends_the_backup(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """Where the target fails, whatever the error, no backup gets its name for all but a board."""
    error: Exception = OSError(errno.EIO, "Input/output error")
    if owner is Segment:
        error = (DamagedError if name == "open_live" else CommitFailedError)("Input/output error")
    place = tmp_path / "copy.partial" / BOARDS / "b"
    fired = failing(monkeypatch, owner, name, error, place)
    result = invoke("backup", tmp_path / "copy", "--data", data)
    assert result.exit_code == 1
    assert fired == [name]
    assert "Input/output error" in result.stderr
    assert f"The broken backup is left in {tmp_path}/copy.partial; remove it." in result.stderr
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("name", ["verified_chunks", "_chunks"])
def test_an_error_of_the_source_leaves_its_board_out(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A board whose files cannot be read is named and left out, whole; the others are copied."""
    chunks, fired = getattr(backup, name), []

    def broken(path: Path) -> Iterator[bytes]:
        yield from itertools.islice(chunks(path), 1)
        if path.is_relative_to(data / BOARDS / "b"):
            fired.append(name)
            raise OSError(errno.EIO, "Input/output error")
        yield from itertools.islice(chunks(path), 1, None)

    monkeypatch.setattr(backup, name, broken)
    result = invoke("backup", tmp_path / "copy", "--data", data)
    assert result.exit_code == 1
    assert fired == [name]
    assert "b: not copied: [Errno 5] Input/output error" in result.stdout
    assert sorted(path.name for path in (tmp_path / "copy" / BOARDS).iterdir()) == ["a", "c"]
    assert invoke("verify", tmp_path / "copy").exit_code == 0


def test_what_was_not_copied_is_named_at_its_source(data: Path, tmp_path: Path) -> None:
    """A user is told of the files that they have, not of those in a directory that goes away."""
    (data / BOARDS / "b").rename(data / BOARDS / "d")
    result = invoke("backup", tmp_path / "copy", "--data", data)
    assert result.exit_code == 1
    assert f"d: not copied: {data / BOARDS / 'd'}: holds no log of a board" in result.stdout
    assert "partial" not in result.output


@pytest.mark.parametrize(
    "target", ["data/boards/x", "data/boards", "data/deleted/x", "data/x", "there"]
)
def test_a_target_in_the_way_is_refused(data: Path, tmp_path: Path, target: str) -> None:
    """A target that exists, or lies in the data, is refused before anything is written."""
    (tmp_path / "there").mkdir()
    before = sorted(tmp_path.rglob("*"))
    result = invoke("backup", tmp_path / target, "--data", data)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


HANGING = """
import sys, time
from actors import copying
from persistence import backup

def hang(*arguments):
    print("here", flush=True)
    time.sleep(600)

owner = {"copying": copying, "backup": backup, "Path": backup.Path}[sys.argv[1]]
setattr(owner, sys.argv[2], hang)
sys.argv[1:3] = []
from node.cli import main
main()
"""
STEPS = (
    "copying copy_column_files", "copying copy_log", "backup write_seal", "backup _copy_records",
    "copying leave_epoch", "copying check_log", "copying write_listing", "Path rename",
)  # fmt: skip


def hanging(step: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a command that stands still before a step, and wait until it does."""
    command = [sys.executable, "-c", HANGING, *step.split(), *map(str, arguments)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    while (line := running.stdout.readline()) != "here\n":
        assert line, "it ended before that step"
    return running


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_backup_has_no_target(data: Path, tmp_path: Path, step: str) -> None:
    """After kill -9 at any step nothing has the target's name, and a fresh backup is sound."""
    target = tmp_path / "copy"
    running = hanging(step, "backup", target, "--data", data)
    running.kill()
    running.communicate()
    assert not target.exists()
    left = tmp_path / "copy.partial"
    refused = invoke("backup", target, "--data", data)
    assert refused.exit_code == 1
    assert str(left) in refused.stderr
    shutil.rmtree(left)
    assert invoke("backup", target, "--data", data).exit_code == 0
    assert invoke("verify", target).exit_code == 0


def test_an_interrupted_backup_says_what_is_left(data: Path, tmp_path: Path) -> None:
    """Ctrl-C leaves the broken backup under its other name, and says so."""
    script = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n" + HANGING
    command = [sys.executable, "-c", script, "copying", "copy_log"]
    running = subprocess.Popen(
        [*command, "backup", tmp_path / "copy", "--data", data],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stdout is not None
    assert running.stdout.readline() == "here\n"
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate()
    assert running.returncode == 1
    assert f"The broken backup is left in {tmp_path}/copy.partial; remove it." in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "copy").exists()


def test_a_backup_that_stands_still_holds_nobody_up(make_node: MakeNode, tmp_path: Path) -> None:
    """Writes go on, over segment changes, beside a backup that stopped, and after it is killed."""
    node = small_node(make_node, tmp_path)
    assert node.call("PUT", "/v1/boards/b", {"aggregation": "sum"})[0] == 201
    writer = Writer(node, "b")
    writer.start()
    wait_until(lambda: len(writer.acknowledged) > 200, 60, "segments fill")
    for step in ("copying copy_log", "backup _copy_records", "copying check_log"):
        running = hanging(step, "backup", tmp_path / "copy", "--data", node.data)
        try:
            os.kill(running.pid, signal.SIGSTOP)
            noted = len(writer.acknowledged)
            wait_until(lambda n=noted: len(writer.acknowledged) > n + 300, 60, "writes go on")
        finally:
            running.kill()
            running.communicate()
        noted = len(writer.acknowledged)
        wait_until(lambda n=noted: len(writer.acknowledged) > n + 100, 60, "writes still go on")
        shutil.rmtree(tmp_path / "copy.partial")
    writer.end()
    assert not (tmp_path / "copy").exists()
    assert offline.verify(node.data / BOARDS / "b").findings == ()
    assert node.stop() == 0
