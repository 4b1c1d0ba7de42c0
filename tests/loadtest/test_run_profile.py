"""Small runs of `make loadtest` on a node.

What they are checked for is their outcome; how quick a node is, depends on the machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from loadtest import run_profile, run_report
from loadtest.generator_notes import Acknowledged, read_journals, read_notes
from loadtest.profiles import PROFILES, Call
from loadtest.run_profile import EXIT_FAILED, EXIT_VOID, Plan, Result
from loadtest.run_report import VOID, Failure, Percentiles, Summary, failures
from loadtest.schedule import Arrival, arrivals
from loadtest.verify_journal import Findings, verify_journals

STEADY = Plan(PROFILES["steady"], factor=0.01, seconds=8.0)
BOUNDARY = Plan(PROFILES["boundary"], factor=0.02, seconds=6.0, processes=2)
FILES = {
    "calls.csv", "lag.csv", "locust.html", "locust.log", "locust_exceptions.csv",
    "locust_failures.csv", "locust_stats.csv", "locust_stats_history.csv", "summary.json",
}  # fmt: skip


class Finished(NamedTuple):
    """A run that is over, and what it left below its directory."""

    directory: Path
    result: Result
    due: list[Arrival]

    @property
    def events(self) -> int:
        return sum(arrival.call is Call.EVENT for arrival in self.due)


def finished(plan: Plan, directory: Path) -> Finished:
    results = directory / "results"
    results.mkdir()
    (results / "former.txt").touch()
    result = run_profile.run_profile(plan, directory, results)
    return Finished(directory, result, arrivals(plan.profile, plan.factor, plan.seconds))


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return finished(STEADY, tmp_path_factory.mktemp("steady"))


def test_every_call_is_made_and_every_event_is_there(steady: Finished) -> None:
    """No call fails, each event is acknowledged and in the log once, and all files are written."""
    result = steady.result
    # A machine that is busy otherwise may leave too little for the generator.
    assert [failure for failure in result.failures if failure.word != VOID] == []
    assert result.summary.acknowledged == steady.events > 0
    offered = {call.call: round(call.offered * STEADY.seconds) for call in result.summary.calls}
    assert offered.pop(Call.VISIBLE) == steady.events
    assert sum(offered.values()) == len(steady.due)
    paths = list((steady.directory / "results").iterdir())
    assert {path.name for path in paths} == FILES
    assert all(path.stat().st_size for path in paths)


def test_planted_faults_are_found_in_a_real_log(steady: Finished) -> None:
    """One event more than was sent is lost, one at another sequence too; applied twice, doubled."""
    (notes,) = read_notes(steady.directory / "notes")
    journal = list(read_journals(steady.directory / "notes"))
    assert len(journal) == steady.events
    data, boards, first = steady.directory / "data", notes.boards, journal[0]

    def verified(*planted: Acknowledged, seeds: int = 0) -> Findings:
        more = {board: count + seeds for board, count in boards.items()}
        return verify_journals(data, more, [*journal, *planted], None)

    assert verified() == Findings(acknowledged=steady.events)
    never_sent = Acknowledged(first.board, "event-x", first.member, 1, 10**6, False, ())
    assert verified(never_sent).lost == ["event-x: not in the log as 1000000"]
    elsewhere = Acknowledged(
        first.board, first.key, first.member, first.value, first.sequence + 1, True, ()
    )
    assert verified(elsewhere).lost == [f"{first.key}: not in the log as {first.sequence + 1}"]
    assert verified(first).doubled == [f"{first.key}: applied more than once"]
    assert verified(seeds=1).lost == [f"1 of {sum(boards.values()) + 1} events before the run"]


def test_a_real_generator_can_make_a_run_void(
    steady: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processor time is measured: where hardly any is allowed, the run is void."""
    monkeypatch.setattr(run_report, "CPU_SHARE_MAX", 1e-6)
    notes = read_notes(steady.directory / "notes")
    found = failures(steady.result.summary, notes, Findings())
    assert [failure.word for failure in found] == [VOID]


@pytest.mark.benchmark
def test_a_window_closes_under_load_with_what_belongs_to_it(tmp_path: Path) -> None:
    """Events on either side of the closing count where they belong; what is closed stays so."""
    run = finished(BOUNDARY, tmp_path)
    assert [failure for failure in run.result.failures if failure.word != VOID] == []
    summary = run.result.summary
    assert len(summary.generators) == BOUNDARY.processes
    assert summary.acknowledged == sum(summary.sides.values()) == run.events
    assert min(summary.sides["before"], summary.sides["after"]) > 0
    notes = read_notes(tmp_path / "notes")
    assert {answer for each in notes for answer in each.closed_answers} != set()


NONE = Percentiles(1.0, 1.0, 1.0, 1.0)
SUMMARY = Summary("boundary", 0.1, 5.0, [], NONE, [], 7, {})


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([], 0),
        ([Failure(VOID, "the generator was busy")], EXIT_VOID),
        ([Failure("lost", "event-1"), Failure(VOID, "the generator was busy")], EXIT_FAILED),
    ],
)
def test_the_command_says_what_went_wrong(
    found: list[Failure],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each failure is shown by its word, after the table; the exit code tells void from failed."""
    planned: list[Plan] = []

    def run(plan: Plan, _directory: Path, results: Path) -> Result:
        planned.append(plan)
        assert results == Path("loadtest/results/boundary")
        return Result(SUMMARY, found)

    monkeypatch.setattr(run_profile, "run_profile", run)
    options = ["--profile", "boundary", "--factor", "0.1", "--seconds", "5", "--processes", "2"]
    monkeypatch.setattr("sys.argv", ["run_profile", *options])
    with pytest.raises(SystemExit) as ended:
        run_profile.main()
    assert ended.value.code == code
    assert planned == [Plan(PROFILES["boundary"], 0.1, 5.0, 2)]
    shown = capsys.readouterr().out
    assert shown.startswith("boundary: 5 s at factor 0.1\n")
    for word, text in found:
        assert f"{word.upper()}: {text}\n" in shown
