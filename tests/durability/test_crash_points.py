"""A process that is killed before, after or inside of any call that changes a file loses nothing.

The workload is run once to learn its calls, and then again for each of them with a kill there. What
the kill left is recovered and checked, and so is the end of the run that goes on from it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import PurePath

import pytest

from tests.durability.cases import (
    KINDS,
    SEED,
    Case,
    Cases,
    calls_of,
    cases,
    kills,
    lost,
    require_all_fired,
    spread,
)
from tests.durability.faults import Action
from tests.durability.trace import DSYNC, Entry, Op

SAMPLE = 60
PLANTED_SAMPLE = 24
RECOVERY_CALLS = 15  # an owner that takes over makes more calls than these
LAST_CALLS = 40  # after which a run has nothing left to do that takes as many
META_PAGES_BYTES = 2 * 4096  # of an LMDB file; only its creation writes both at once
RULE_BREAKS_MIN = 5
OTHER_SEEDS = range(SEED + 1, SEED + 1 + int(os.environ.get("TORTURE_SEEDS", "1")))


@pytest.fixture(scope="module")
def bench() -> Iterator[Cases]:
    with cases(Cases) as made:
        yield made


@pytest.fixture(scope="module")
def trace(bench: Cases) -> list[Entry]:
    return bench.trace()


def test_the_workload_touches_every_kind_of_file(trace: list[Entry]) -> None:
    """Creation, commits, segments, seals, snapshots, archives, owners, deletion are all in it."""
    calls = calls_of(trace)
    assert {kind for _, kind in calls} == KINDS.keys()
    assert {operation for operation, _ in calls} == set(Op) - {Op.LINK, Op.MARK}
    removed = {kind for operation, kind in calls if operation == Op.UNLINK}
    assert {"snapshot", "archive", "deletion"} <= removed
    assert sum(operation == Op.SYNC for operation, kind in calls if kind == "commit") > 20
    renamed = {kind for operation, kind in calls if operation == Op.RENAME}
    assert {"creation", "new segment", "seal", "snapshot", "archive", "listing"} <= renamed


def by_file(trace: Sequence[Entry]) -> dict[str, list[Op]]:
    """List the operations on each kind of file, in their order."""
    operations: dict[str, list[Op]] = defaultdict(list)
    for operation, kind in calls_of(trace):
        operations[kind].append(operation)
    return operations


def test_each_run_makes_the_same_calls(bench: Cases, trace: list[Entry]) -> None:
    """Each run makes the same calls for each kind of file, in the same order: none is left out.

    Only the kinds may trade places, since threads write them: a number names a call, or one near.
    """
    assert by_file(bench.trace()) == by_file(trace)


@pytest.mark.parametrize(
    "most", [SAMPLE, pytest.param(1 << 20, id="all", marks=pytest.mark.durability)]
)
def test_a_kill_at_any_call_loses_nothing(bench: Cases, trace: list[Entry], most: int) -> None:
    """Before, after or inside of any call: what was acknowledged is there, once, and adds up."""
    outcomes = bench.run(spread(kills(calls_of(trace)), most))
    assert lost(outcomes) == []
    hits = require_all_fired(outcomes)
    assert {outcome.ended.code for outcome in outcomes} == {-9}
    assert {"commit", "creation", "snapshot", "archive", "new segment", "listing"} <= hits.keys()
    assert hits["commit"] > SAMPLE // 10


@pytest.mark.parametrize("most", [12, pytest.param(150, marks=pytest.mark.durability)])
def test_a_kill_during_recovery_loses_nothing(bench: Cases, trace: list[Entry], most: int) -> None:
    """One that takes over from a killed process may be killed at any of its calls, too."""
    calls = calls_of(trace)
    points = spread([case for case in kills(calls) if case.at <= len(calls) - LAST_CALLS], most)
    again = [
        Case(point.at, point.action, again_at=1 + number * 7 % RECOVERY_CALLS)
        for number, point in enumerate(points)
    ]
    outcomes = bench.run(again)
    assert lost(outcomes) == []
    require_all_fired(outcomes)
    assert all(outcome.fired == 2 for outcome in outcomes), "a second kill did not fire"


@pytest.mark.durability
@pytest.mark.parametrize("seed", OTHER_SEEDS)
def test_a_kill_in_another_run_loses_nothing(bench: Cases, seed: int) -> None:
    """What holds for one workload holds for others."""
    outcomes = bench.run(spread(kills(calls_of(bench.trace(seed)), seed), SAMPLE, seed))
    assert lost(outcomes) == []
    require_all_fired(outcomes)


@pytest.mark.parametrize(
    ("plant", "kinds", "action", "noticed"),
    [
        ("ack-before-commit", {"commit"}, Action.KILL_BEFORE, "acknowledged and is lost"),
        ("key-outside-transaction", {"head", "another"}, Action.KILL_BEFORE, "count twice"),
        ("head-before-commit", {"commit"}, Action.KILL_BEFORE, "the last commits are lost"),
        ("checksum-unchecked", {"head"}, Action.TEAR, "another record than was committed"),
    ],
)
def test_a_planted_fault_is_noticed(
    bench: Cases, plant: str, kinds: set[str], action: Action, noticed: str
) -> None:
    """A board that is not durable in a way that a kill can show does not pass the test above."""
    calls = calls_of(bench.trace(plant=plant))
    points = [
        Case(number, action, plant=plant)
        for number, (operation, kind) in enumerate(calls, 1)
        if kind in kinds and operation in (Op.WRITE, Op.SYNC)
    ]
    outcomes = bench.run(spread(points, PLANTED_SAMPLE))
    require_all_fired(outcomes)
    found = lost(outcomes)
    assert any(noticed in text for text in found), found


# What a kill cannot show, the order of the calls does: see the model of a disk for all of it.


def careless_commits(trace: Sequence[Entry]) -> int:
    """Count the commits whose meta page was not durable at once, or came before its data was."""
    unsynced: set[str] = set()
    careless = 0
    for entry in trace:
        if entry.op == Op.SYNC:
            unsynced.discard(entry.path)
        elif entry.op == Op.WRITE and entry.path.endswith("/data.mdb"):
            meta = entry.offset < META_PAGES_BYTES and len(entry.data) < META_PAGES_BYTES
            if not meta:
                unsynced.add(entry.path)
            elif entry.path in unsynced or not entry.flags & DSYNC:
                careless += 1
    return careless


def careless_renames(trace: Sequence[Entry]) -> int:
    """Count the files that got their names before their content was synced."""
    unsynced: set[str] = set()
    careless = 0
    for entry in trace:
        if entry.op == Op.WRITE:
            unsynced.add(entry.path)
        elif entry.op == Op.SYNC:
            unsynced.discard(entry.path)
        elif entry.op == Op.RENAME:
            careless += entry.path in unsynced
    return careless


def careless_names(trace: Sequence[Entry]) -> int:
    """Count the names that were given while one given before was not durable, and those left so."""
    pending: set[str] = set()
    careless = 0
    for entry in trace:
        if entry.op == Op.SYNC:
            pending.discard(entry.path)
        elif entry.op == Op.RENAME:
            directory = str(PurePath(entry.target).parent)
            careless += directory in pending
            pending.add(directory)
    return careless + len(pending)


RULES = {
    "sync-off": careless_commits,
    "rename-without-fsync": careless_renames,
    "directory-not-synced": careless_names,
}


@pytest.mark.parametrize("plant", RULES)
def test_syncs_come_before_what_they_are_for(bench: Cases, trace: list[Entry], plant: str) -> None:
    """Data before its meta page, content before its name, a name before the next; plants do not."""
    broken = RULES[plant]
    assert broken(trace) == 0
    assert broken(bench.trace(plant=plant)) >= RULE_BREAKS_MIN
