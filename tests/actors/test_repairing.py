"""A damaged board is made whole: its longest valid part is kept, and no sequence used again."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.definition import Definition
from actors.offline import read_events, verify
from actors.repairing import DROPPED, UNFINISHED, RepairPlan, carry_out, plan_repair
from node.transfer import event_line
from persistence.errors import DamagedError
from persistence.event_log import LmdbEventLog
from persistence.files import write_atomically
from persistence.ownership import Ownership
from persistence.records import Event
from tests.actors.clocked_board import ClockedBoard
from tests.data.logs.write import BEGINNING, DEFINITION, OPTIONS, play
from tests.durability.faults import fast_directory
from tests.persistence.processes import start

NOW_US = 1_790_000_000_000_000
DATA = "log/00000001/data.mdb"

# For each line with a board and a number: forks a process that repairs the board and ends itself at
# the step of that number, as a kill does. A step is a change of a name, a call of the system by
# ctypes, or the opening of a file for writing. Prints the exit code, and how many steps there were.
KILLED_REPAIRS = """
    import os, sys
    from pathlib import Path
    from tests.actors.test_repairing import repair

    STEPS = {"os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "ctypes.call_function"}

    def repair_until(board, last):
        count = 0

        def step(event, arguments):
            nonlocal count
            if event in STEPS or (event == "open" and arguments[2] & os.O_ACCMODE):
                count += 1
                if count == last:
                    os._exit(9)

        sys.addaudithook(step)
        repair(Path(board))
        os._exit(0 if count >= 20 else 1)

    for line in sys.stdin:
        board, last = line.split()
        child = os.fork()
        if child == 0:
            repair_until(board, int(last))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def write_events(path: Path, definition: Definition, events: Iterator[Event]) -> None:
    write_atomically(path, (event_line(event, definition.decimals) for event in events))


def repair(board: Path, now_us: int = NOW_US) -> RepairPlan:
    """Repair a board as the command does."""
    ownership = Ownership.take(board)
    try:
        plan = plan_repair(board, now_us)
        carry_out(plan, ownership, write_events)
    finally:
        ownership.release()
    return plan


@pytest.fixture
def played(tmp_path: Path) -> tuple[Path, int]:
    """Play a board for some days; gives its directory and the time of its end."""
    board = ClockedBoard(tmp_path, BEGINNING, OPTIONS, **DEFINITION)
    play(board, erases=False)
    board.close()
    return tmp_path / "b", board.now_us


def damage(board: Path, old: bytes = b"4/Ada", new: bytes = b"4/Adb", file: str = DATA) -> None:
    content = (board / file).read_bytes()
    assert old in content
    (board / file).write_bytes(content.replace(old, new))


def keys(events: Iterator[Event]) -> list[str]:
    return [event.idempotency_key.decode() for event in events]


def dropped_keys(plan: RepairPlan) -> list[str]:
    lines = (plan.aside / DROPPED).read_bytes().splitlines()
    return [json.loads(line)["idempotency_key"] for line in lines]


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "lock.mdb"
    }


def reopened(board: Path, now_us: int) -> ClockedBoard:
    return ClockedBoard.existing(board.parent, now_us, OPTIONS)


def test_a_damaged_board_is_repaired(played):
    """What is legible is kept or written out, the lost sequences are nobody's, the board serves."""
    directory, now_us = played
    _, events, last_sequence = read_events(directory)
    sent = keys(events)
    damage(directory)
    assert not verify(directory).is_sound
    log = contents(directory / "log")
    plan = repair(directory)
    assert plan.lost == (45, last_sequence)
    report = verify(directory)
    assert report.findings == ()
    assert [(each.first_sequence, each.last_sequence) for each in report.lost] == [plan.lost]
    kept = keys(read_events(directory)[1])
    dropped = dropped_keys(plan)
    assert len(dropped) == plan.dropped.events > 20
    lost = [key for key in sent if key not in kept + dropped]
    assert kept + lost + dropped == sent
    assert "4/Ada" in lost
    assert contents(plan.aside / "log") == log
    board = reopened(directory, now_us)
    assert board.host.board.definition.mode == "backfill"
    # The definition that holds the board back has the first sequence behind the lost ones.
    answer = board.send([1, 1], now_us, key="new", source="s")
    assert answer["sequence"] == last_sequence + 2
    board.close()


def test_a_repair_that_was_made_is_not_made_again(played):
    """A second repair of a repaired board plans nothing, and what was set aside stays."""
    directory, _ = played
    damage(directory)
    plan = repair(directory)
    aside = contents(plan.aside)
    again = plan_repair(directory, NOW_US + 1)
    assert (again.damage, again.set_aside, again.lost) == (None, (), None)
    damage(directory, b"3/Ada", b"3/Adb")
    second = repair(directory, NOW_US + 1)
    assert second.damage is not None
    assert contents(plan.aside) == aside
    assert second.aside != plan.aside
    assert verify(directory).findings == ()
    assert len(verify(directory).lost) == 1  # the first loss lies within the second


@pytest.mark.parametrize("kept", [{DROPPED}, {DROPPED, "log"}, {"snapshots"}, {DROPPED, "notes"}])
def test_what_a_user_left_of_an_earlier_repair_is_kept(played, kept):
    """Whatever was removed by hand of what was set aside, a later repair leaves the rest alone."""
    directory, _ = played
    damage(directory)
    plan = repair(directory)
    assert {path.name for path in plan.aside.iterdir()} >= {DROPPED, "log", "snapshots"}
    (plan.aside / "notes").write_text("for later")
    for path in plan.aside.iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    left = contents(plan.aside)
    assert left
    damage(directory, b"3/Ada", b"3/Adb")
    assert repair(directory, NOW_US + 1).damage is not None
    assert contents(plan.aside) == left


def test_an_unfinished_directory_with_anything_else_in_it_is_kept(played):
    """Only what a repair itself builds is removed with what it left unfinished."""
    directory, _ = played
    mine, unfinished, empty = (directory / f"damaged-{name}" for name in ("a", "b", "c"))
    for path in (mine, unfinished):
        path.mkdir()
        (path / UNFINISHED).touch()
        (path / DROPPED).write_text("{}")
    (mine / "notes").write_text("for later")
    empty.mkdir()
    damage(directory)
    repair(directory)
    assert (mine / DROPPED).exists()
    assert not unfinished.exists()
    assert not empty.exists()


def test_what_follows_from_the_log_is_made_again(played):
    """Damaged snapshots, archives, listing, head and owner cost nothing, and the log stays."""
    directory, now_us = played
    board = reopened(directory, now_us)
    state = board.host.board.state_digest()
    board.close()
    damaged = [
        *directory.glob("snapshots/*"),
        directory / "archives" / "cup.1.archive",
        directory / "board.msgpack",
        directory / "log" / "head",
        directory / "owner",
    ]
    for path in damaged:
        content = bytearray(path.read_bytes())
        content[20] ^= 4
        path.write_bytes(content)
    (directory / "archives" / "stray.7.archive").write_bytes(b"?")
    found = {finding.file for finding in verify(directory).findings}
    assert found >= {str(path.relative_to(directory)) for path in damaged}
    assert "archives/stray.7.archive" in found
    plan = repair(directory)
    assert (plan.damage, plan.lost) == (None, None)
    assert sorted(path.name for path in plan.aside.rglob("*.*")) == sorted(
        path.name for path in plan.set_aside
    )
    report = verify(directory)
    assert (report.findings, report.state_digest) == ((), state)
    assert (directory / "archives" / "cup.1.archive").exists()


def test_a_head_ahead_of_the_log_costs_its_sequences(played):
    """A log that was put back behind its head goes on after the head, and after its snapshots."""
    directory, now_us = played
    before = directory.with_name("before")
    shutil.copytree(directory / "log", before)
    board = reopened(directory, now_us)
    sequence = board.send([5, 5], now_us, key="lost")["sequence"]
    board.snapshot()
    board.close()
    after = (directory / "log" / "head").read_bytes()
    shutil.rmtree(directory / "log")
    shutil.copytree(before, directory / "log")
    with pytest.raises(DamagedError, match=r"snapshot: is of sequence .* lost"):
        reopened(directory, now_us)
    with pytest.raises(DamagedError, match="lost"):
        read_events(directory)
    (directory / "log" / "head").write_bytes(after)
    with pytest.raises(DamagedError, match="lost"):
        reopened(directory, now_us)
    plan = repair(directory)
    assert plan.lost is not None
    assert plan.lost[1] == sequence
    board = reopened(directory, now_us)
    assert board.send([5, 5], now_us, key="lost")["sequence"] == sequence + 1
    board.close()


def test_a_damaged_beginning_is_made_again(played):
    """A board whose very first record is damaged gets its definition from a copy of it."""
    directory, now_us = played
    board = reopened(directory, now_us)
    definition = board.host.board.definition
    board.close()
    damage(directory, b"America/New_York", b"America/New_Yorc")
    plan = repair(directory)
    assert plan.survey.end[0] == 0
    board = reopened(directory, now_us)
    assert {"all_time", "final"} <= board.host.board.windows.keys()
    assert board.host.board.definition.timezone == definition.timezone
    assert "all_time" in board.counted([1, 1], now_us, key="again")
    board.close()


def test_a_board_without_any_definition_is_refused(played):
    """Where no definition is legible nothing is touched."""
    directory, _ = played
    damage(directory, b"America/New_York", b"America/New_Yorc")
    for path in (directory / "snapshots").iterdir():
        path.unlink()
    content = (directory / DATA).read_bytes()
    (directory / DATA).write_bytes(content.replace(b"grace_seconds", b"grace_secondz"))
    before = contents(directory / "log")
    with pytest.raises(DamagedError, match="definition"):
        repair(directory)
    assert contents(directory / "log") == before


@pytest.mark.parametrize("planted", [False, True])
def test_a_board_without_its_log_is_found_and_repaired(played, planted):
    """A log that is gone, or empty, is a finding; the next begins with a snapshot's definition."""
    directory, now_us = played
    shutil.rmtree(directory / "log")
    if planted:
        LmdbEventLog(directory / "log", OPTIONS.log, epoch=9, create=True).close()
    what = "does not begin with a definition" if planted else "holds no log"
    with pytest.raises(DamagedError, match=what):
        reopened(directory, now_us)
    assert (directory / "log").exists() == planted
    report = verify(directory)
    assert f"log: {what}" in [str(each) for each in report.findings]
    assert report.state_digest is None
    plan = repair(directory)
    assert plan.lost is not None
    assert verify(directory).is_sound
    board = reopened(directory, now_us)
    assert board.send([5, 5], now_us, key="next")["sequence"] > plan.lost[1]
    board.close()


def test_another_boards_log_is_not_repaired(played):
    """A directory that holds another board's log is left as it is."""
    directory, _ = played
    other = directory.rename(directory.with_name("other"))
    assert not verify(other).is_sound
    with pytest.raises(DamagedError, match="board b"):
        repair(other)


def test_a_kill_leaves_the_damaged_board_or_the_repaired_one(played):
    """Wherever a repair is killed, the log is the damaged or the repaired one; again ends it.

    Then what was dropped lies beside the damaged log, once and whole, and nothing is half built.
    """
    directory, now_us = played
    damage(directory)
    damaged = contents(directory / "log")
    dropped = written_events(directory, now_us)
    seen = []
    with fast_directory() as fast, start(KILLED_REPAIRS) as killer:
        scratch = fast / "scratch" / "b"
        assert killer.stdin is not None
        assert killer.stdout is not None
        for last in itertools.count(1):
            shutil.rmtree(scratch.parent, ignore_errors=True)
            shutil.copytree(directory, scratch)
            killer.stdin.write(f"{scratch} {last}\n")
            killer.stdin.flush()
            exit_code = int(killer.stdout.readline())
            if exit_code != 9:
                break
            seen.append(contents(scratch / "log") == damaged)
            if not seen[-1]:
                reopened(scratch, now_us).close()
            repair(scratch, NOW_US + 1)
            assert verify(scratch).findings == ()
            assert contents_of_logs_set_aside(scratch) == [damaged]
            assert [path.read_bytes() for path in scratch.rglob(DROPPED)] == [dropped]
            assert not list(scratch.rglob(f"{UNFINISHED}*"))
    assert exit_code == 0
    assert seen == sorted(seen, reverse=True)  # damaged until one step, repaired from there on
    assert {True, False} == set(seen)


def written_events(board: Path, now_us: int) -> bytes:
    """Return what a repair writes of the events that it drops."""
    plan = plan_repair(board, now_us)
    path = board.with_name(DROPPED)
    write_events(path, plan.definition, plan.events())
    return path.read_bytes()


def contents_of_logs_set_aside(board: Path) -> list[dict[str, bytes]]:
    return [contents(path) for path in board.glob("damaged-*/log")]
