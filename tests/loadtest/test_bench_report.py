"""The report of the benchmark side by side: medians, ratios, marks, and what was left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest import bench
from loadtest.bench_marks import (
    BYTES,
    CPU,
    EACH,
    MARKS,
    P50,
    P99,
    RATE,
    SHOWN,
    UNIFORM,
    WORKS,
    Case,
    Mark,
    Results,
    Verdict,
    verdicts,
)
from loadtest.bench_report import document, plot
from loadtest.bench_systems import PYTHON, RANKNODE, REDIS, rotated
from loadtest.machine import file_system, number_in


def results_of(figures: dict[Case, dict[str, list[float]]]) -> Results:
    results = Results()
    for case, measures in figures.items():
        for measure, rounds in measures.items():
            for figure in rounds:
                results.note(case, measure, figure)
    return results


EVENT = Case("event", EACH, 32, RANKNODE)
EVENT_OF_PEER = EVENT._replace(system=PYTHON)
MEMORY = Case("memory", "", None, RANKNODE)


def test_ratios_are_medians_of_paired_rounds() -> None:
    """A disturbance of one round, which both met, moves neither the figure nor the ratio."""
    results = results_of(
        {
            EVENT: {RATE: [200.0, 20.0, 210.0]},
            EVENT_OF_PEER: {RATE: [100.0, 10.0, 100.0]},
        }
    )
    assert results.figure(EVENT, RATE) == 200
    assert results.ratio(EVENT, RATE, PYTHON) == 2
    assert results.ratio(EVENT._replace(connections=128), RATE, PYTHON) is None
    assert results.ratio(EVENT, P99, PYTHON) is None


def test_a_peer_of_a_single_case_is_what_every_setting_is_compared_with() -> None:
    """Where a peer has one case only, all settings of the node are compared with that."""
    batches = Case("batches", "of any length", None, RANKNODE)
    peer = Case("batches", "", None, REDIS)
    results = results_of({batches: {RATE: [30.0]}, peer: {RATE: [20.0]}})
    assert results.ratio(batches, RATE, REDIS) == 1.5


@pytest.mark.parametrize(
    ("at_least", "measured", "missed"),
    [
        (True, 1.5, False),
        (True, 1.49, True),
        (False, 1.5, False),
        (False, 1.51, True),
        (True, None, False),
    ],
)
def test_a_mark_is_a_bound_from_below_or_above(
    at_least: bool, measured: float | None, missed: bool
) -> None:
    """The bound itself keeps the mark, what is beyond misses it, and nothing measured does not."""
    mark = Mark("event", EACH, 32, RATE, 1.5, at_least, PYTHON)
    assert Verdict(mark, measured).missed == missed


def test_every_mark_is_held_against_its_own_figure() -> None:
    """Marks against peers take ratios, others the figures; works that were not run have none."""
    results = results_of(
        {
            EVENT: {RATE: [150.0]},
            EVENT_OF_PEER: {RATE: [100.0]},
            Case("visible", SHOWN, None, RANKNODE): {P99: [21.0]},
        }
    )
    found = verdicts(results, ("event", "visible"))
    assert [(each.mark.connections, each.measured, each.missed) for each in found] == [
        (32, 1.5, False),
        (128, None, False),
        (None, 21.0, True),
    ]
    assert {mark.work for mark in MARKS} == set(WORKS)


def test_the_document_says_what_was_measured_missed_and_left_out() -> None:
    """Figures, ratios, marks and skipped peers stand in the document, with the machine."""
    results = results_of(
        {
            EVENT: {RATE: [1300.0], P50: [12.345], CPU: [0.5]},
            EVENT_OF_PEER: {RATE: [1000.0], CPU: [0.25]},
            MEMORY: {BYTES: [67.9]},
        }
    )
    works = ("memory", "event")
    found = verdicts(results, works)
    text = "".join(document("- kernel: 1\n", works, results, found, {REDIS: "it is not there"}))
    assert text.startswith("# Side by side\n\n- kernel: 1\n")
    for line in (
        "Skipped: Redis: it is not there.",
        "| ranknode | 67.9 |",
        "| ranknode, one a request, 32 connections | 1,300 (1.30x) | 12.3 | 0.50 |",
        "| Python service, one a request, 32 connections | 1,000 |  | 0.25 |",
        "| per second | ≥ 1.4x Python service | 1.30x | MISSED |",
        "| memory: ranknode | bytes a member | ≤ 0.6x Redis |  | not measured |",
    ):
        assert f"{line}\n" in text, line


def test_each_kind_of_work_that_was_measured_is_drawn(tmp_path: Path) -> None:
    """Lines over connections or bars are drawn, without a figure in places, and nothing else is."""
    ranks = {
        Case("rank", UNIFORM, connections, system): {RATE: [float(connections)], P50: [1.0]}
        for connections in (1, 32)
        for system in (RANKNODE, PYTHON)
    }
    results = results_of({MEMORY: {BYTES: [67.9]}} | ranks)
    paths = plot(results, WORKS, tmp_path)
    assert [path.name for path in paths] == ["bench-memory.png", "bench-rank.png"]
    assert sorted(paths) == sorted(tmp_path.iterdir())
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


@pytest.mark.parametrize(("bytes_a_member", "code"), [(60.0, 0), (90.0, 1)])
def test_the_command_writes_its_report_and_ends_with_1_where_a_mark_is_missed(
    bytes_a_member: float,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is asked for is what is measured; the report is printed and written; the code tells."""
    plans = []

    def measured(_directory: Path, plan: bench.Plan) -> tuple[Results, dict[str, str]]:
        plans.append(plan)
        figures = {
            MEMORY: {BYTES: [bytes_a_member]},
            MEMORY._replace(system=REDIS): {BYTES: [120.0]},
        }
        return results_of(figures), {}

    monkeypatch.setattr(bench, "measure", measured)
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results")
    monkeypatch.setattr("sys.argv", ["bench", "--only", "top,memory", "--members", "70"])
    monkeypatch.setattr(bench.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == code
    assert plans == [bench.Plan(("memory", "top"), members=70)]
    text = (tmp_path / "results" / "bench.md").read_text()
    assert text in capsys.readouterr().out
    assert ("MISSED" in text) == bool(code)


@pytest.mark.parametrize("arguments", [["--only", "rank,rest"], ["--members", "9"]])
def test_what_cannot_be_measured_is_refused(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown kind of work, and fewer members than a page of the top has, are refused."""
    monkeypatch.setattr("sys.argv", ["bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_everything_takes_turns() -> None:
    """Over as many rounds as there are systems each is the first once."""
    assert [rotated("abc", number) for number in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]


def test_the_machine_is_described_by_what_holds_the_data() -> None:
    """The file system is that of the nearest mount above; versions are numbers, or missing."""
    mounts = "disk / ext4 rw 0 0\nshm /srv/fast tmpfs rw 0 0\n"
    assert file_system(Path("/srv/fast/data"), mounts) == "tmpfs"
    assert file_system(Path("/srv/slow/data"), mounts) == "ext4"
    assert number_in("Redis server v=7.0.15 sha=0") == "7.0.15"
    assert number_in("") == "not installed"
