"""Power cuts at every call: what a strict disk may hold then is recovered, checked and used.

The disk is that of `disk_model.py`. A cut never is damage: each state must open, hold all that was
acknowledged, once, with its sequence, and serve its next owner.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durability import faults
from tests.durability.cuts import Laboratory, Run, naming, require_sound, sampled
from tests.durability.disk_model import EVERYTHING, NOTHING, Disk, State
from tests.durability.faults import Action, fast_directory
from tests.durability.trace import Op, read_trace

SEEDS = [1, 2]

# Sampled in `make test`, all of them in `make test-durability`.
CUTS = 40
CRASHES = 8
RECOVERIES = 6
PLANTED_CUTS = 20

# What a run must have written to, so that each of these was cut at, too.
WRITTEN = {
    "head": r"boards/b/log/head",
    "head's first name": r"boards/\.b\.\w+/log/head\.tmp",
    "owner": r"boards/b/owner",
    "listing": r"boards/b/board\.msgpack\.tmp",
    "first segment": r"boards/\.b\.\w+/log/00000001\.new/data\.mdb",
    "live segment": r"boards/b/log/00000001/data\.mdb",
    "next segment": r"boards/b/log/00000002\.new/data\.mdb",
    "seal": r"boards/b/log/00000001/sealed\.tmp",
    "snapshot": r"boards/b/snapshots/\d+\.snapshot\.tmp",
    "archive": r"boards/b/archives/.*\.archive\.tmp",
}
RENAMED = {
    "a board's creation": (r"boards/\.b\.\w+", r"boards/b"),
    "a board's deletion": (r"boards/brief", r"deleted/brief\.\w+"),
    "a segment": (r"boards/b/log/00000002\.new", r"boards/b/log/00000002"),
    "a snapshot": (r".*\.snapshot\.tmp", r".*\.snapshot"),
}
REMOVED = {"an archive": r".*\.archive", "a snapshot": r".*\.snapshot"}


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    with fast_directory() as directory, Laboratory(directory) as made:
        yield made


@pytest.fixture(scope="module")
def runs(laboratory: Laboratory) -> list[Run]:
    """Run the workload by each seed."""
    return [laboratory.record(seed) for seed in SEEDS]


def built_upon(run: Run) -> list[int]:
    """List the entries that gave a board or a segment its name, which others write below."""
    return [
        index
        for index, entry in enumerate(run.entries)
        if entry.op == Op.RENAME and re.search(r"/boards/\w+(/log/\d+)?$", entry.target)
    ]


# The traces that are cut


def test_a_run_touches_every_kind_of_file(runs: list[Run]):
    """Each file that a board consists of is written, and each change of names made, in the runs."""
    for run in runs:
        root = f"{run.root}/"
        calls = [
            (Op(entry.op), entry.path.removeprefix(root), entry.target.removeprefix(root))
            for entry in run.entries
        ]
        for what, path in WRITTEN.items():
            assert any(op == Op.WRITE and re.fullmatch(path, p) for op, p, _ in calls), what
        for what, (path, target) in RENAMED.items():
            assert any(
                op == Op.RENAME and re.fullmatch(path, p) and re.fullmatch(target, t)
                for op, p, t in calls
            ), what
        for what, path in REMOVED.items():
            assert any(op == Op.UNLINK and re.fullmatch(path, p) for op, p, _ in calls), what


def test_a_trace_tells_all_that_is_on_disk(runs: list[Run]):
    """The model, fed with a whole trace, holds what the directory holds, byte for byte.

    Except for LMDB's lock files, which are written through mappings and hold nothing durable.
    """
    for run in runs:
        disk = Disk(str(run.root))
        for entry in run.entries:
            disk.apply(entry)
        assert _without_locks(disk.after_cut(EVERYTHING)) == _without_locks(run.left)


def _without_locks(state: State) -> dict[str, bytes | None]:
    return {
        path: b"" if path.endswith("/lock.mdb") else content
        for path, content in state.files.items()
    }


def test_nothing_is_pending_when_it_is_acknowledged(runs: list[Run]):
    """At an acknowledgement the live segment, the truth, is on disk to its last byte."""
    acknowledgements = 0
    for run in runs:
        disk = Disk(str(run.root))
        marks = [index for index, entry in enumerate(run.entries) if entry.op == Op.MARK]
        for _ in run.after(disk, marks):
            durable = disk.after_cut(NOTHING).files
            for path, content in disk.after_cut(EVERYTHING).files.items():
                if re.fullmatch(r"boards/b/log/\d+/(data\.mdb|sealed)", path):
                    assert durable.get(path) == content, path
            acknowledgements += 1
    assert acknowledgements > 100


# Cuts


def test_a_power_cut_loses_nothing(laboratory: Laboratory, runs: list[Run]):
    """Cut at calls of every part of a run, a board is whole: acknowledged, once, and usable."""
    for run in runs:
        laboratory.cut(run, sampled(run, run.cut_points, CUTS // len(runs), "cuts"), parts=1)
    require_sound(laboratory.verdicts(), CUTS)


def test_a_successor_of_a_killed_owner_survives_a_cut(laboratory: Laboratory, runs: list[Run]):
    """What a killed owner had not made durable is, before its successor acknowledges upon it."""
    for run in runs:
        sample = sampled(run, naming(run), CRASHES // len(runs), "crashes")
        laboratory.crash_then_cut(run, sorted({*sample, *built_upon(run)}), parts=0)
    require_sound(laboratory.verdicts(), CRASHES)


def test_a_recovery_survives_a_cut(laboratory: Laboratory, runs: list[Run]):
    """A second cut, while what the first one left is recovered and gone on with, loses nothing."""
    for run in runs:
        chosen = sampled(run, run.cut_points, RECOVERIES // len(runs), "recoveries")
        laboratory.cut_recovery(run, chosen, parts=1)
    require_sound(laboratory.verdicts(), RECOVERIES)


@pytest.mark.durability
def test_a_power_cut_anywhere_loses_nothing():
    """Cut after every single call of a run, a board is whole."""
    with fast_directory() as directory, Laboratory(directory) as laboratory:
        run = laboratory.record(seed=3)
        laboratory.cut(run, run.cut_points, parts=1)
        require_sound(laboratory.verdicts(), len(run.cut_points))


@pytest.mark.durability
def test_a_cut_after_any_crash_or_cut_loses_nothing():
    """Killed after every change of a name, or cut anywhere, a board survives the cut after it."""
    with fast_directory() as directory, Laboratory(directory) as laboratory:
        run = laboratory.record(seed=4)
        laboratory.crash_then_cut(run, naming(run), parts=1)
        laboratory.cut_recovery(run, sampled(run, run.cut_points, 40, "recoveries"), parts=1)
        require_sound(laboratory.verdicts(), len(naming(run)))


# What others build upon


TAKE = """
    import sys
    from pathlib import Path
    from persistence.ownership import Ownership
    Ownership.take(Path(sys.argv[1]))
"""
LOCK = """
    import sys
    from pathlib import Path
    from node.runtime import DataLock
    DataLock(Path(sys.argv[1]))
"""


def traced(directory: Path, code: str, argument: Path, kill_after: int = 0) -> bool:
    """Run code, traced below `directory` / "disk"; tell whether it came to its end."""
    with faults.State(directory / "state") as state:
        state.arm(kill_after, Action.KILL_AFTER)
        environment = faults.environment(directory / "disk", state.path, directory / "trace")
        child = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), argument],
            env=environment | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            check=False,
        )
        assert child.returncode in (0, -signal.SIGKILL)
        assert state.fired == (child.returncode != 0)
        return child.returncode == 0


def replay(directory: Path, found: State) -> Disk:
    """Make the disk that the traces so far lead to."""
    disk = Disk(str(directory / "disk"), found)
    for entry in read_trace(directory / "trace"):
        disk.apply(entry)
    return disk


def test_an_epoch_is_durable_whoever_made_its_file():
    """Killed at any call, an owner leaves a mark that is durable once its successor is there."""
    kills = 0
    ended = False
    while not ended:
        with fast_directory() as directory:
            board = directory / "disk" / "b"
            board.mkdir(parents=True)
            ended = traced(directory, TAKE, board, kill_after=kills + 1)
            assert traced(directory, TAKE, board)
            found = State({"b": None})
            durable = replay(directory, found).after_cut(NOTHING)
            assert durable.files["b/owner"] == (board / "owner").read_bytes()
            kills += not ended
    assert kills >= 4


def test_a_data_directory_is_durable_before_it_is_used():
    """A node's first start makes the names of its data directory durable, of each part of them."""
    with fast_directory() as directory:
        (directory / "disk").mkdir()
        assert traced(directory, LOCK, directory / "disk" / "deep" / "data")
        durable = replay(directory, State({})).after_cut(NOTHING)
        assert set(durable.files) == {"deep", "deep/data"}


# Planted faults


@pytest.mark.parametrize(
    ("plant", "wrong_min"),
    [
        ("sync-off", 15),
        ("rename-without-fsync", 15),
        ("directory-not-synced", 6),
        ("head-before-commit", 2),
        ("ack-before-commit", 1),
    ],
)
def test_planted_faults_are_caught(plant: str, wrong_min: int):
    """A product that leaves out a sync, or acknowledges too early, fails the check of these tests.

    wrong_min: how many states must show it, of some sixty; at most half of what was seen.
    """
    with fast_directory() as directory, Laboratory(directory, steps=0) as laboratory:
        run = laboratory.record(SEEDS[0], plant)
        laboratory.cut(run, sampled(run, run.cut_points, PLANTED_CUTS, plant), parts=1)
        verdicts = laboratory.verdicts()
    assert sum(bool(verdict.wrong) for verdict in verdicts) >= wrong_min


def test_trusting_inherited_names_is_caught(laboratory: Laboratory, runs: list[Run]):
    """A successor that takes a killed owner's names for durable loses what it wrote below them."""
    (run, *_) = runs
    built = built_upon(run)
    laboratory.crash_then_cut(run, built, parts=0, plant="inherited-names-not-synced")
    verdicts = laboratory.verdicts()
    assert {verdict.where.split(",")[0] for verdict in verdicts if verdict.wrong} == {
        f"after {index}" for index in built
    }
