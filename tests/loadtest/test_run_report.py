"""What came of a run: the figures, the files, and the words that it fails with."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from loadtest.generator_notes import CpuSample, Notes, busiest_share
from loadtest.run_profile import EXIT_FAILED, EXIT_VOID, Result
from loadtest.run_report import failures, percentile, summarize, table, write_files
from loadtest.verify_journal import Findings

SECONDS = 10.0


def cpu(*shares: float, seconds: float = 1.0) -> list[CpuSample]:
    """Make the samples of a process that had these shares of a core, each for so long."""
    samples = [CpuSample(100.0, 3.0, 0.0)]
    for share in shares:
        last = samples[-1]
        samples.append(
            CpuSample(last.at_seconds + seconds, last.cpu_seconds + share * seconds, 0.0)
        )
    return samples


def notes(**changes: Any) -> Notes:
    fields: dict[str, Any] = {
        "boards": {"b": 3},
        "offered": {"event": 100, "member": 200},
        "latencies_us": {
            "event": [1_000] * 99 + [9_000],
            "member": [500] * 200,
            "visible": [700] * 100,
        },
        "lags_us": [2_000] * 99 + [40_000],
        "errors": {},
        "closed_answers": [],
        "cpu": cpu(*[0.5] * 10),
        "due_seconds": 9.9,
        "answered_seconds": 9.95,
    }
    return Notes(**fields | changes)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def failed(each: list[Notes], findings: Findings) -> list[tuple[str, str]]:
    summary = summarize("steady", 0.2, SECONDS, each, findings)
    return [tuple(failure) for failure in failures(summary, each, findings)]


@pytest.mark.parametrize(
    ("samples", "share"),
    [
        (cpu(*[0.5] * 20), 0.5),
        (cpu(*[0.2] * 10, *[1.0] * 5, *[0.2] * 10), 1.0),
        (cpu(*[0.5] * 10, 1.0, *[0.5] * 10), 0.6),  # a second alone is no window
        (cpu(0.95, 0.95), 0.95),  # a run shorter than the window is judged whole
        (cpu(0.1, *[0.1] * 6, *[0.9] * 5), 0.9),  # the last window counts, too
        (cpu(), 0.0),
        ([], 0.0),
    ],
)
def test_the_busiest_seconds_of_a_generator_are_found(
    samples: list[CpuSample], share: float
) -> None:
    """The highest share over five seconds in a row, wherever in the run they are."""
    assert busiest_share(samples) == pytest.approx(share)


def test_a_generator_that_was_too_busy_makes_the_run_void() -> None:
    """Above 90 % of a core the figures are void, by a word and an exit code of their own."""
    fine, busy = notes(cpu=cpu(*[0.89] * 10)), notes(cpu=cpu(*[0.1] * 10, *[0.92] * 6))
    assert failed([fine], Findings()) == []
    ((word, found),) = failed([fine, busy], Findings())
    assert (word, found.startswith("the generator took 92% of a core")) == ("void", True)
    summary = summarize("steady", 0.2, SECONDS, [busy], Findings())
    void = failures(summary, [busy], Findings())
    assert Result(summary, void).exit_code == EXIT_VOID
    lost = failures(summary, [busy], Findings(lost=["event-1"]))
    assert [failure.word for failure in lost] == ["lost", "void"]
    assert Result(summary, lost).exit_code == EXIT_FAILED
    assert Result(summary, []).exit_code == 0


def test_calls_without_a_right_answer_are_errors() -> None:
    """A refusal is named by its kind, and a call that was due and has no answer is one, too."""
    refused = notes(
        errors={"member": {"RefusedError: 503 overloaded": 3, "ConnectionResetError: gone": 1}},
        offered={"event": 100, "member": 204},
    )
    assert failed([refused], Findings()) == [
        ("errors", "4 x member: ConnectionResetError: gone; RefusedError: 503 overloaded")
    ]
    unsent = notes(offered={"event": 110, "member": 200})
    assert failed([unsent], Findings()) == [("errors", "10 x event: never answered")]
    unseen = notes(errors={"visible": {"a read did not see the event before it": 1}})
    assert failed([unseen], Findings()) == [
        ("errors", "1 x visible: a read did not see the event before it")
    ]


@pytest.mark.parametrize("word", ["lost", "doubled", "misplaced"])
def test_what_the_log_contradicts_is_named_by_its_word(word: str) -> None:
    """Each kind of finding fails the run; many are counted instead of shown."""
    assert failed([notes()], Findings(**{word: ["event-1"]})) == [(word, "event-1")]
    ((_, found),) = failed([notes()], Findings(**{word: [f"event-{n}" for n in range(8)]}))
    assert found.endswith("event-4, and 3 more")


def test_a_closed_cup_that_changed_is_named() -> None:
    """Whatever was said of the closed cup, to whichever process, is one thing."""
    one, other = notes(closed_answers=["first"]), notes(closed_answers=["second"])
    assert failed([one, one], Findings()) == []
    ((word, _),) = failed([one, other], Findings())
    assert word == "changed"


def test_percentiles_are_values_that_were_measured() -> None:
    """The p-th is the least value that p of a hundred do not exceed; of none it is no number."""
    values = list(range(1, 101))
    assert [percentile(values, p) for p in (50, 95, 99, 99.9, 100)] == [50, 95, 99, 100, 100]
    assert percentile([7], 50) == 7
    assert math.isnan(percentile([], 50))


def test_the_summary_adds_up_what_all_processes_noted(tmp_path: Path) -> None:
    """Offered and achieved rates, latencies and lag are those of all; files and table show them."""
    each = [notes(), notes(answered_seconds=20.0)]
    summary = summarize("steady", 0.2, SECONDS, each, Findings(acknowledged=200))
    event, member, visible = summary.calls
    assert (event.call, event.offered, event.achieved, event.errors) == ("event", 20.0, 10.0, 0)
    assert (member.offered, member.achieved) == (40.0, 20.0)
    assert (visible.call, visible.offered) == ("visible", 20.0)
    assert (event.latency.p50_ms, event.latency.p99_ms, event.latency.worst_ms) == (1, 1, 9)
    assert (summary.lag.p50_ms, summary.lag.worst_ms) == (2, 40)
    write_files(summary, each, tmp_path)
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written["calls"][0]["latency"]["worst_ms"] == 9
    assert written["generators"][0]["cpu_share"] == pytest.approx(0.5)
    calls = rows(tmp_path / "calls.csv")
    assert [row["call"] for row in calls] == ["event", "member", "visible"]
    assert float(calls[0]["offered_per_second"]) == 20
    lag = {row["percentile"]: row["lag_ms"] for row in rows(tmp_path / "lag.csv")}
    assert (float(lag["50.0"]), float(lag["100.0"])) == (2, 40)
    shown = table(summary)
    assert "| event | 20.0 | 10.0 | 1.00 | 1.00 | 1.00 | 9.00 | 0 |" in shown
    assert "200 events were acknowledged" in shown
    assert "generator: 50% of a core, 50% at most" in shown


def test_a_generator_that_was_kept_waiting_is_noted() -> None:
    """One that others kept from the cores is not void, but its figures are doubtful."""
    idle, starved = cpu(*[0.2] * 10), cpu(*[0.2] * 10)
    starved[-1] = starved[-1]._replace(waited_seconds=8.0)
    for samples, noted in ((idle, False), (starved, True)):
        each = [notes(cpu=samples)]
        assert failed(each, Findings()) == []
        summary = summarize("steady", 0.2, SECONDS, each, Findings())
        assert ("NOTE" in table(summary)) == noted
