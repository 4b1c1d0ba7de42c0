"""Taking names off a board's disk survives a kill, an error or a power cut at any of its calls.

Whatever comes in between, the state stays the one that was live, nobody is shown a name, and the
work can be done to its end afterwards; then no byte of the names is left, and not before is it said
to be so.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from actors.last_words import EXIT_COMMIT_FAILED
from tests.durability.cases import (
    Case,
    Cases,
    Outcome,
    by_kind,
    calls_of,
    cases,
    faults,
    kills,
    lost,
    require_all_fired,
    spread,
)
from tests.durability.cuts import Laboratory, Run, naming, require_sound, sampled
from tests.durability.disk_model import State, read_state
from tests.durability.erasing_work import EXPECTED, erase, finish, named_files, play
from tests.durability.faults import Action, Zygote, fast_directory
from tests.durability.trace import EXCHANGING, Entry, Op
from tests.durability.workload import EXIT_REFUSED

ALL_POINTS = 1 << 20
OPENING_CALLS = 6  # of an owner that takes over, before it removes what is left of an earlier try
CODES = {0, EXIT_COMMIT_FAILED, EXIT_REFUSED}
WORKS = {"run": erase.__name__, "recover": finish.__name__}  # what takes the place of a workload's
CUT_WORKS = {"run": erase.__name__, "go_on": erase.__name__, "survive": finish.__name__}

Calls = list[tuple[Op, str]]


class Erasures(Cases):
    """Cases of a board in the directory `template` that takes names off its disk."""

    def __init__(self, directory: Path, zygotes: Sequence[Zygote], template: Path) -> None:
        super().__init__(directory, zygotes)
        self._template = template

    def _work(
        self, zygote: Zygote, place: Path, work: str, seed: int, plant: str, *faulty: Any
    ) -> Any:
        data = place / "data"
        if not data.exists():
            shutil.copytree(self._template, data, ignore=shutil.ignore_patterns(EXPECTED))
        state, trace = (*faulty, None, None)[:2]
        return zygote.run(
            WORKS[work],
            {"directory": str(data), "expected": str(self._template / EXPECTED), "plant": plant},
            output=place / "output",
            root=data if state else None,
            state=state,
            trace=trace,
        )


class ErasingLaboratory(Laboratory):
    """Power cuts of a board in the directory `template` that takes names off its disk."""

    def __init__(self, directory: Path, template: Path) -> None:
        found = read_state(template).files
        beginning = State({path: found[path] for path in found if path != EXPECTED})
        super().__init__(directory, beginning=beginning)
        self._expected = str(template / EXPECTED)

    def _job(self, work: str, place: Path, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        plant = arguments.get("plant", "")
        where = {"directory": str(place / "disk"), "expected": self._expected}
        return CUT_WORKS[work], where | {"plant": plant}


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    with fast_directory() as directory:
        play(directory)
        yield directory


@pytest.fixture(scope="module")
def bench(template: Path) -> Iterator[Erasures]:
    with cases(lambda directory, zygotes: Erasures(directory, zygotes, template)) as made:
        yield made


@pytest.fixture(scope="module")
def trace(bench: Erasures) -> list[Entry]:
    return bench.trace()


@pytest.fixture(scope="module")
def calls(trace: list[Entry]) -> Calls:
    return calls_of(trace)


@pytest.fixture(scope="module")
def laboratory(template: Path) -> Iterator[ErasingLaboratory]:
    with fast_directory() as directory, ErasingLaboratory(directory, template) as made:
        yield made


@pytest.fixture(scope="module")
def run(laboratory: ErasingLaboratory) -> Run:
    return laboratory.record(seed=1)


def codes(outcomes: Sequence[Outcome], kinds: set[str]) -> set[int]:
    """Return the codes that processes ended with after a fault of some kinds, links aside.

    A link is named for what it is of, and made for the log that is being built.
    """
    hits = [(each.hit, each.ended.code) for each in outcomes if each.hit is not None]
    return {code for (op, kind), code in hits if kind in kinds and op != Op.LINK}


def test_the_work_touches_every_kind_of_file(template: Path, trace: list[Entry]) -> None:
    """Sealing, linking, writing again, exchanging, removing, archives and snapshots are in it."""
    assert {path.split("/")[2] for path in named_files(template) if "/" in path} >= {
        "log", "snapshots", "archives",
    }  # fmt: skip
    calls = Counter(calls_of(trace))
    for call, least in {
        (Op.LINK, "commit"): 4,
        (Op.LINK, "seal"): 1,
        (Op.LINK, "head"): 1,
        (Op.WRITE, "log being built"): 6,
        (Op.SYNC, "log being built"): 6,
        (Op.RENAME, "log exchange"): 1,
        (Op.UNLINK, "log being built"): 6,
        (Op.RMDIR, "log being built"): 4,
        (Op.RMDIR, "log exchange"): 1,
        (Op.RENAME, "seal"): 1,
        (Op.RENAME, "new segment"): 1,
        (Op.RENAME, "snapshot"): 1,
        (Op.UNLINK, "snapshot"): 1,
        (Op.RENAME, "archive"): 1,
        (Op.UNLINK, "archive"): 1,
        (Op.SYNC, "commit"): 1,
    }.items():
        assert calls[call] >= least, (call, calls)
    assert sum(bool(entry.flags & EXCHANGING) for entry in trace) == 2, "one is to see if it can be"


def test_each_run_makes_the_same_calls(bench: Erasures, calls: Calls) -> None:
    """A number names the same call in each run, so that none is left out."""
    assert calls_of(bench.trace()) == calls


# Kills


@pytest.mark.parametrize(
    "most", [28, pytest.param(ALL_POINTS, id="all", marks=pytest.mark.durability)]
)
def test_a_kill_at_any_call_can_be_made_good(bench: Erasures, calls: Calls, most: int) -> None:
    """Before, after or inside of any call: the board is as it was, and the names go later."""
    outcomes = bench.run(spread(kills(calls), most))
    assert lost(outcomes) == []
    hits = require_all_fired(outcomes)
    assert {outcome.ended.code for outcome in outcomes} == {-9}
    assert hits.keys() >= {"log being built", "snapshot"}


@pytest.mark.parametrize("most", [10, pytest.param(80, marks=pytest.mark.durability)])
def test_a_kill_of_the_next_try_can_be_made_good(bench: Erasures, calls: Calls, most: int) -> None:
    """One that goes on from what a kill left may be killed as well, wherever that is."""
    points = spread([case for case in kills(calls) if case.at > OPENING_CALLS], most)
    again = [
        Case(point.at, point.action, again_at=1 + number * 5 % (2 * OPENING_CALLS))
        for number, point in enumerate(points)
    ]
    outcomes = bench.run(again)
    assert lost(outcomes) == []
    assert [outcome.fired for outcome in outcomes] == [2] * len(again)


# Errors


@pytest.mark.parametrize(
    ("action", "most"),
    [
        pytest.param(Action.EIO, 20, id="eio"),
        pytest.param(Action.ENOSPC, 10, id="enospc"),
        pytest.param(Action.EIO, ALL_POINTS, id="eio-all", marks=pytest.mark.durability),
        pytest.param(Action.ENOSPC, 60, id="enospc-more", marks=pytest.mark.durability),
    ],
)
def test_an_error_of_any_call_can_be_made_good(
    bench: Erasures, calls: Calls, action: Action, most: int
) -> None:
    """No answer is wrong meanwhile; what failed is done again, by this process or its successor."""
    outcomes = bench.run(spread(faults(calls, action, set(Op)), most))
    assert lost(outcomes) == []
    hits = require_all_fired(outcomes)
    assert {outcome.ended.code for outcome in outcomes} <= CODES
    assert codes(outcomes, {"snapshot", "archive", "listing", "log being built"}) == {0}
    assert {each.ended.code for each in outcomes if each.hit and each.hit[0] == Op.LINK} <= {0}
    assert codes(outcomes, {"commit", "seal"}) <= {EXIT_COMMIT_FAILED, EXIT_REFUSED}
    assert hits["log being built"] > 0


def test_an_exchange_that_may_not_be_durable_ends_the_process(
    bench: Erasures, calls: Calls
) -> None:
    """Nothing is committed to a log of which a cut would leave the former one."""
    exchanged = calls.index((Op.RENAME, "log exchange"))
    synced = calls.index((Op.SYNC, "board"), exchanged) + 1
    outcomes = bench.run([Case(synced, Action.EIO)])
    assert require_all_fired(outcomes) == {"board": 1}
    assert lost(outcomes) == []
    assert [outcome.ended.code for outcome in outcomes] == [EXIT_COMMIT_FAILED]


@pytest.mark.parametrize("most", [8, pytest.param(60, marks=pytest.mark.durability)])
def test_a_disk_that_fails_for_good_can_be_left(bench: Erasures, calls: Calls, most: int) -> None:
    """From any call on nothing can be written: what is there then can be gone on from."""
    outcomes = bench.run(spread(faults(calls, Action.EIO, set(Op), times=0), most))
    assert lost(outcomes) == []
    require_all_fired(outcomes)
    assert {outcome.ended.code for outcome in outcomes} <= CODES
    assert EXIT_REFUSED in {outcome.ended.code for outcome in outcomes}


# Power cuts


@pytest.mark.parametrize(
    "most", [12, pytest.param(ALL_POINTS, id="all", marks=pytest.mark.durability)]
)
def test_a_power_cut_anywhere_can_be_made_good(
    laboratory: ErasingLaboratory, run: Run, most: int
) -> None:
    """Cut after any call, the disk holds the one log or the other, whole, and the work goes on."""
    points = sampled(run, run.cut_points, min(most, len(run.cut_points)), "erasing")
    laboratory.cut(run, points, parts=1)
    require_sound(laboratory.verdicts(), len(points))


@pytest.mark.parametrize("most", [5, pytest.param(40, marks=pytest.mark.durability)])
def test_a_successor_survives_a_cut(laboratory: ErasingLaboratory, run: Run, most: int) -> None:
    """What a killed process left is made durable before its successor removes the former log."""
    points = naming(run)
    chosen = sampled(run, points, min(most, len(points)), "erasing after a kill")
    laboratory.crash_then_cut(run, chosen, parts=1)
    laboratory.crash_then_cut(run, exchanges(run), parts=2, later_cuts=most)
    require_sound(laboratory.verdicts(), len(chosen))


def exchanges(run: Run) -> list[int]:
    found = [index for index, entry in enumerate(run.entries) if entry.flags & EXCHANGING]
    return found[1:]  # the first is to see if it can be done


# Planted faults


def test_saying_too_early_that_a_name_is_gone_is_noticed(bench: Erasures) -> None:
    """A board that says so while the former log is still there fails after a kill in between."""
    plant = "finished-too-early"
    calls = calls_of(bench.trace(plant=plant))
    removals = [
        Case(number, Action.KILL_BEFORE, plant=plant)
        for number, call in enumerate(calls, 1)
        if call == (Op.UNLINK, "log being built")
    ]
    outcomes = bench.run(spread(by_kind(calls, removals), 4))
    require_all_fired(outcomes)
    found = lost(outcomes)
    assert len(found) == 4
    assert all("said to be gone, but in" in text for text in found), found


@pytest.mark.parametrize(
    "plant",
    [
        "exchange-not-synced",
        pytest.param("rename-without-fsync", marks=pytest.mark.durability),
        pytest.param("directory-not-synced", marks=pytest.mark.durability),
    ],
)
def test_a_sync_that_is_left_out_is_noticed(template: Path, plant: str) -> None:
    """Neither may the former log be removed, nor the new one be used, before that is durable."""
    with fast_directory() as directory, ErasingLaboratory(directory, template) as laboratory:
        run = laboratory.record(seed=1, plant=plant)
        (exchanged,) = exchanges(run)
        after = [point for point in run.cut_points if point > exchanged]
        laboratory.cut(run, after[:24:4], parts=3)
        verdicts = laboratory.verdicts()
    assert any(verdict.wrong for verdict in verdicts)


@pytest.mark.durability
def test_trusting_an_inherited_exchange_is_noticed(laboratory: ErasingLaboratory, run: Run) -> None:
    """A successor that removes the former log before the exchange is durable may lose both."""
    plant = "inherited-exchange-not-synced"
    laboratory.crash_then_cut(run, exchanges(run), parts=4, plant=plant, later_cuts=30)
    assert any(verdict.wrong for verdict in laboratory.verdicts())
