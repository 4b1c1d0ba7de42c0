"""The benchmark of boards as they grow: it measures what it names, and says what missed its mark.

It runs tiny here; how much anything takes depends on the machine, and `make bench-large`,
`bench-boards`, `bench-sizes` and `bench-replay` say.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.logged_board import BoardOptions, LoggedBoard
from loadtest import bench_boards, replay_figures
from loadtest.bench_boards import Work
from loadtest.board_marks import GROWTH, MARKS, REPLAY_BATCHES, WORST_READ, Figure, table
from loadtest.filled_boards import create, fill_with_numbered, numbered_name
from loadtest.large_figures import Traffic, large_figures, traffic_for
from loadtest.many_figures import Boards, many_figures
from loadtest.process_memory import memory_of
from loadtest.replay_figures import KINDS
from loadtest.size_figures import OPERATIONS, SIZES, size_figures
from persistence.event_log import LogOptions

OPTIONS = BoardOptions(
    LogOptions(segment_events_max=10_000, segment_bytes_max=4 << 20, reserved_free_bytes=0),
    snapshot_events=1_000_000,
)


def noted(figures: Iterator[Figure]) -> dict[str, Figure]:
    """Measure; no two figures may have one name."""
    found: dict[str, Figure] = {}
    for figure in figures:
        assert figure.what not in found
        assert figure.value >= 0
        found[figure.what] = figure
    return found


@pytest.mark.benchmark
def test_a_large_board_is_read_before_beside_and_after_a_snapshot(tmp_path: Path) -> None:
    """A node serves the board that was filled, and reads are timed in every phase of a snapshot."""
    traffic = Traffic(
        reads_rate=100.0,
        quiet_seconds=1.0,
        events_seconds=0.5,
        snapshot_seconds_max=10.0,
        clients=8,
    )
    found = noted(large_figures(tmp_path, OPTIONS, 2_000, traffic))
    for when in ("before any event", "beside events", "while a snapshot is made", "after it"):
        assert f"rank reads {when}, median" in found
    assert found["rank reads while a snapshot is made, worst"].mark == WORST_READ
    assert "recovered from the log alone" in found
    assert "recovered from the snapshot" in found
    rss, uss = (found[f"board's process at rest: {kind}"].value for kind in ("rss", "uss"))
    assert rss > uss > 0
    snapshots = list((tmp_path / "data/boards/large/snapshots").iterdir())
    assert len(snapshots) == 2, "that of the recovery, and the one that was watched"


def test_more_members_get_more_time_for_their_snapshot() -> None:
    """The clients go on until the snapshot of a board of any size can be there."""
    assert traffic_for(25_000_000).snapshot_seconds_max > traffic_for(1_000).snapshot_seconds_max


@pytest.mark.benchmark
def test_boards_beyond_those_in_memory_are_brought_up_in_turn(tmp_path: Path) -> None:
    """Never more boards than allowed have a process, and at the end none has."""
    plan = Boards(boards=3, active=2, members=20, idle_seconds=5.0)
    found = noted(many_figures(tmp_path, OPTIONS, plan))
    assert found["brought up, first use to answer, worst"].note == "2 boards"
    assert found["the same, another put away for it, worst"].note == "1 boards"
    assert found["all processes of boards: pss"].value > found["a board's process: pss"].value
    assert found["all put away after the last use"].value > 0


def test_each_operation_is_measured_at_each_size(tmp_path: Path) -> None:
    """An operation has a figure for each size, and one for its growth, which has the mark."""
    found = noted(size_figures(tmp_path, OPTIONS, 2_000, rounds=2))
    for name in OPERATIONS:
        assert sum(what.startswith(f"{name}, ") for what in found) == SIZES
        assert found[f"{name}: {GROWTH}"].mark == GROWTH


def test_boards_come_up_from_records_of_every_kind(tmp_path: Path) -> None:
    """Each kind of restart is measured, and the log of single events has a record for each."""
    found = noted(replay_figures.replay_figures(tmp_path, OPTIONS, 2_000))
    assert list(found) == [kind.what for kind in KINDS]
    (singly,) = [place for place, kind in enumerate(KINDS) if kind.singly]
    host = LoggedBoard.open(tmp_path / f"replay-{singly}", OPTIONS)
    assert host.report.records_replayed >= host.report.events_replayed == 400
    host.close()


def test_a_board_that_comes_up_as_another_is_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The benchmark ends where a replay came to another state: what is quick must be right."""
    whole = LoggedBoard.open
    opened = 0

    def another(directory: Path, options: BoardOptions) -> LoggedBoard:
        nonlocal opened
        opened += 1
        host = whole(directory, options)
        host.board.sequence += opened > 1  # the first time it is opened to be filled
        return host

    monkeypatch.setattr(replay_figures.LoggedBoard, "open", another)
    with pytest.raises(SystemExit, match="as another board"):
        list(replay_figures.replay_figures(tmp_path, OPTIONS, 100))
    assert opened == 2


def test_numbered_members_are_all_there(tmp_path: Path) -> None:
    """Filling counts each member once, in records of the size that is asked for."""
    host = create(tmp_path / "b", OPTIONS)
    draw = random.Random(1)  # noqa: S311  (nothing secret is drawn)
    fill_with_numbered(host, draw, 25, batch_events=10)
    assert len(host.board.members) == host.board.windows["all_time"].size == 25
    assert host.board.members.find(numbered_name(24)) == 24
    assert [record.count for record in host.log.read(2)] == [10, 10, 5]
    host.close()


def test_a_process_has_no_more_for_itself_than_is_resident() -> None:
    """Memory that would be free without a process is part of its share, and that of all of it."""
    memory = memory_of(os.getpid())
    assert 0 < memory.uss <= memory.pss <= memory.rss
    assert 0 < memory.anonymous <= memory.rss


@pytest.mark.parametrize(
    ("name", "value", "missed"),
    [(WORST_READ, 99.0, False), (WORST_READ, 101.0, True), (REPLAY_BATCHES, 399_999.0, True),
     (REPLAY_BATCHES, 400_000.0, False)],
)  # fmt: skip
def test_a_figure_is_held_against_its_mark(name: str, value: float, missed: bool) -> None:
    """A bound holds from above or from below, as its mark says, and the table says which."""
    figure = Figure("what", value, "ms", name)
    assert figure.missed == missed
    assert figure.line.endswith("| MISSED |\n" if missed else "| met |\n")
    assert ("≥" in figure.line) == MARKS[name].at_least
    assert not Figure("what", value, "ms").missed


@pytest.mark.parametrize(("value", "code"), [(1.0, 0), (1_000.0, 1)])
def test_the_command_ends_with_1_where_a_mark_is_missed(
    value: float,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The table is printed and written, and a missed mark is in the exit code."""
    planned: list[int] = []

    def measure(_directory: Path, members: int) -> Iterator[Figure]:
        planned.append(members)
        yield Figure("a figure", value, "ms", WORST_READ)

    monkeypatch.setitem(bench_boards.WORKS, "large", Work("A board", 5, measure))
    monkeypatch.setattr(bench_boards, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench_boards", "large", "--members", "7"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        bench_boards.main()
    assert ended.value.code == code
    written = (tmp_path / "boards-large.md").read_text()
    assert written in capsys.readouterr().out
    assert "".join(table([Figure("a figure", value, "ms", WORST_READ)])) in written
    assert planned == [7]
