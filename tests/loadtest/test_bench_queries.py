"""The benchmark of queries and histories: it measures what it names, and says what missed its mark.

It runs tiny here; how quick anything is depends on the machine, and `make bench-queries` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.logged_board import BoardOptions
from actors.shown_log import ShownLog
from loadtest import bench_queries
from loadtest.bench_queries import Plan, measure
from loadtest.figures import Figure, missed_marks, of_calls
from loadtest.history_figures import NAME, STEPS, Length, history_figures
from loadtest.query_figures import KINDS, RANK_METHODS
from persistence.event_log import LogOptions

# Several segments, so that a history and an erasure have to go from one to the next.
OPTIONS = BoardOptions(
    LogOptions(segment_events_max=1_000, segment_bytes_max=4 << 20, reserved_free_bytes=0),
    snapshot_events=1_000_000,
)
LENGTH = Length(events=4_000, batch_events=100, members=50, own_events=20)
PLAN = Plan(OPTIONS, members=300, hidden=10, calls=3, length=LENGTH, cold_calls=1, warm_calls=2)


def holds_name(directory: Path) -> bool:
    """Tell whether any file below a directory holds the name of the member that is erased."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert files
    return any(NAME.encode() in path.read_bytes() for path in files)


def test_every_query_is_measured_in_every_form_and_nothing_is_left(tmp_path: Path) -> None:
    """Each query is timed with each rank method, open and closed, hidden members or none."""
    figures = list(measure(tmp_path, PLAN))
    names = [figure.what for figure in figures]
    assert len(set(names)) == len(names)
    for kind in KINDS:
        assert sum(name.endswith(f": {kind}") for name in names) == 4 * len(RANK_METHODS)
    assert sum(name.startswith("history of 20 events among 4,000") for name in names) == 4
    assert all(figure.median_ms > 0 for figure in figures if figure.mark_ms is not None)
    assert list(tmp_path.iterdir()) == []


def test_erasing_is_measured_by_its_steps_until_the_name_is_gone(tmp_path: Path) -> None:
    """The log is as long as stated, each step of erasing has a figure, and the name does leave."""
    board = tmp_path / "histories"
    figures: dict[str, Figure] = {}
    held: list[bool] = []
    for figure in history_figures(tmp_path, OPTIONS, LENGTH, 1, 1):
        figures[figure.what] = figure
        held.append(holds_name(board))
    assert list(figures)[held.index(False)] == "erase: until nothing on disk holds the name"
    assert not any(held[held.index(False) :])
    for step in STEPS:
        assert sum(name.startswith(f"erase: {step}") for name in figures) == 1
    (rewritten,) = [each for name, each in figures.items() if "bytes written again" in name]
    assert rewritten.measured.endswith("in 4 of 6 segments"), "those with events"


def test_a_history_without_all_its_events_is_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The benchmark ends where an answer lacks an event: what is quick must also be right."""
    whole = ShownLog.events_of
    shortened = 0

    def without_newest(*arguments: Any) -> Iterator[Any]:
        nonlocal shortened
        shortened += 1
        events = whole(*arguments)
        next(events)
        return events

    monkeypatch.setattr(ShownLog, "events_of", without_newest)
    with pytest.raises(SystemExit, match="has 19 events"):
        list(history_figures(tmp_path, OPTIONS, LENGTH, 1, 1))
    assert shortened == 1


def test_calls_are_summed_up_by_their_median_and_their_slow_ones() -> None:
    """A figure shows median, 99th percentile and worst; the slower encoding's median counts."""
    seconds = [each / 1_000 for each in range(1, 202)]
    figure = of_calls("rank", 0.5, {False: seconds, True: [0.001]})
    assert figure.measured == (
        "JSON 101.000 / 199.000 / 201.000 ms, MessagePack 1.000 / 1.000 / 1.000 ms"
    )
    assert figure.median_ms == pytest.approx(101)
    assert figure.line == f"| rank | 0.5 ms | {figure.measured} |"


@pytest.mark.parametrize(
    ("mark_ms", "median_ms", "missed"),
    [(0.5, 0.4, False), (0.5, 0.99, False), (0.5, 1.01, True), (None, 1_000.0, False)],
)
def test_a_mark_is_missed_beyond_noise(
    mark_ms: float | None, median_ms: float, missed: bool
) -> None:
    """Twice the mark is noise, more is named, and what has no mark cannot miss it."""
    figures = [Figure("quick", "", 0.5, 0.1), Figure("rank", "", mark_ms, median_ms)]
    assert [each.partition(":")[0] for each in missed_marks(figures)] == ["rank"] * missed


@pytest.mark.parametrize(("median_ms", "code"), [(0.4, 0), (1.5, 1)])
def test_the_command_ends_with_1_where_a_mark_is_missed(
    median_ms: float,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The table holds every figure; a missed mark is named behind it and in the exit code."""
    planned: list[Plan] = []

    def measured(_directory: Path, plan: Plan) -> Iterator[Figure]:
        planned.append(plan)
        yield Figure("rank", "measured", 0.5, median_ms)

    monkeypatch.setattr(bench_queries, "measure", measured)
    monkeypatch.setattr("sys.argv", ["bench_queries", "--members", "7", "--events", "5000"])
    with pytest.raises(SystemExit) as ended:
        bench_queries.main()
    assert ended.value.code == code
    shown = capsys.readouterr().out
    assert "| rank | 0.5 ms | measured |\n" in shown
    assert ("MISSED: rank: 1.500 ms, above 2 x 0.5 ms" in shown) == bool(code)
    assert (planned[0].members, planned[0].length.events) == (7, 5_000)
