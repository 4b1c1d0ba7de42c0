"""A call that fails loses nothing: it ends the process, is tried again, or costs only time.

Which of them is said by what the call was for. After an error of a commit, of its sync, its segment
or its head, the board's process ends with code 74: what is on disk is unknown until it is read
again. A snapshot, an archive or a listing that cannot be written is written later. Creating,
deleting and bringing up a board are refused, and may be asked for again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actors.board_actor import ActorOptions
from actors.directory import Directory
from actors.last_words import EXIT_COMMIT_FAILED
from actors.logged_board import LoggedBoard
from persistence.errors import DamagedError
from persistence.head import SLOT_BYTES, head_findings
from persistence.ownership import OWNER, OWNER_BYTES, read_owner
from tests.actors.board_harness import NOW_US, SMALL, define, event, on_disk, submit
from tests.durability.cases import (
    Cases,
    Outcome,
    calls_of,
    cases,
    faults,
    lost,
    require_all_fired,
    spread,
)
from tests.durability.faults import Action
from tests.durability.trace import Op
from tests.durability.workload import EXIT_REFUSED

SAMPLE = 32
MORE = 150
ALL_POINTS = 1 << 20
PARTS = {"commit", "head", "seal", "new segment"}  # of a commit: an error of these ends the process
# What is made again from the log, or asked for again.
SURVIVABLE = {
    "snapshot", "archive", "listing", "owner", "board", "creation", "deletion", "data directory",
}  # fmt: skip
ROOM_TAKERS = {Op.WRITE, Op.CREATE, Op.MKDIR, Op.TRUNCATE, Op.RENAME, Op.SYNC}
INTERRUPTIBLE = {Op.WRITE, Op.CREATE, Op.TRUNCATE, Op.SYNC}

Calls = list[tuple[Op, str]]


@pytest.fixture(scope="module")
def bench() -> Iterator[Cases]:
    with cases(Cases) as made:
        yield made


@pytest.fixture(scope="module")
def calls(bench: Cases) -> Calls:
    return calls_of(bench.trace())


def codes(outcomes: list[Outcome], kinds: set[str]) -> set[int]:
    """Return the codes that processes ended with after a fault of some kinds."""
    return {
        outcome.ended.code
        for outcome in outcomes
        if outcome.hit is not None and outcome.hit[1] in kinds
    }


@pytest.mark.parametrize(
    ("action", "operations", "most"),
    [
        pytest.param(Action.EIO, set(Op), SAMPLE, id="eio"),
        pytest.param(Action.ENOSPC, ROOM_TAKERS, SAMPLE, id="enospc"),
        pytest.param(Action.EIO, set(Op), ALL_POINTS, id="eio-all", marks=pytest.mark.durability),
        pytest.param(
            Action.ENOSPC, ROOM_TAKERS, MORE, id="enospc-more", marks=pytest.mark.durability
        ),
    ],
)
def test_an_error_of_any_call_loses_nothing(
    bench: Cases, calls: Calls, action: Action, operations: set[Op], most: int
) -> None:
    """All that was acknowledged is there, once; a failed commit ends the process with code 74."""
    outcomes = bench.run(spread(faults(calls, action, operations), most))
    assert lost(outcomes) == []
    hits = require_all_fired(outcomes)
    assert codes(outcomes, {"commit", "head", "seal"}) == {EXIT_COMMIT_FAILED}
    assert codes(outcomes, {"new segment"}) <= {0, EXIT_COMMIT_FAILED}  # 0 where it was opened
    assert codes(outcomes, SURVIVABLE) == {0}
    assert {"commit", "snapshot", "archive", "listing"} <= hits.keys()


@pytest.mark.parametrize("most", [SAMPLE, pytest.param(MORE, marks=pytest.mark.durability)])
@pytest.mark.parametrize(
    ("action", "operations"),
    [(Action.EINTR, INTERRUPTIBLE), (Action.SHORT_WRITE, {Op.WRITE})],
    ids=["eintr", "short"],
)
def test_an_interruption_of_any_call_is_harmless(
    bench: Cases, calls: Calls, action: Action, operations: set[Op], most: int
) -> None:
    """A call that was interrupted, or did half, is done again; where LMDB does not, as an error."""
    outcomes = bench.run(spread(faults(calls, action, operations), most))
    assert lost(outcomes) == []
    hits = require_all_fired(outcomes)
    # Threads take turns otherwise than in the trace: the call that was met may be another one.
    met = [each for each in outcomes if each.hit is not None and each.hit[0] in operations]
    assert len(met) > len(outcomes) // 2
    assert codes(met, {"commit", "new segment"}) <= {0, EXIT_COMMIT_FAILED}
    assert codes(met, {"head", "seal"} | SURVIVABLE) == {0}
    assert {"commit", "snapshot"} <= hits.keys()


@pytest.mark.parametrize("most", [SAMPLE, pytest.param(MORE, marks=pytest.mark.durability)])
@pytest.mark.parametrize("action", [Action.EIO, Action.ENOSPC], ids=["eio", "enospc"])
def test_a_disk_that_fails_for_good_loses_nothing(
    bench: Cases, calls: Calls, action: Action, most: int
) -> None:
    """From any call on nothing can be written: what was acknowledged before is there afterwards."""
    outcomes = bench.run(spread(faults(calls, action, set(Op), times=0), most))
    assert lost(outcomes) == []
    require_all_fired(outcomes)
    ended = {outcome.ended.code for outcome in outcomes}
    assert {EXIT_COMMIT_FAILED, EXIT_REFUSED} <= ended <= {0, EXIT_COMMIT_FAILED, EXIT_REFUSED}


def test_an_error_that_is_ignored_is_noticed(bench: Cases, calls: Calls) -> None:
    """A board that goes on after a failed commit does not pass the tests above."""
    plant = "commit-error-ignored"
    points = [
        case
        for case in faults(calls, Action.EIO, {Op.WRITE, Op.SYNC}, plant=plant)
        if calls[case.at - 1][1] == "commit"
    ]
    outcomes = bench.run(spread(points, SAMPLE // 2))
    require_all_fired(outcomes)
    found = lost(outcomes)
    assert any("acknowledged and is lost" in text for text in found), found


# What the points above found, each by itself


@pytest.fixture
def catalogue(tmp_path: Path) -> Directory:
    made = Directory(tmp_path, ActorOptions(SMALL, commit_events_max=1))
    made.scan()
    return made


@contextmanager
def directories_fail(monkeypatch: pytest.MonkeyPatch, *failing: str) -> Iterator[list[str]]:
    """Let every sync of directories of these names fail; yields those that did."""
    failed: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        if name in failing:
            failed.append(name)
            raise OSError(errno.EIO, "the disk failed")
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield failed


def test_a_board_whose_name_is_not_durable_is_not_there(
    catalogue: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A creation that failed at its very end is not taken for one that succeeded when repeated."""
    with directories_fail(monkeypatch, "boards") as failed, pytest.raises(OSError, match="failed"):
        catalogue.create("b", define(), NOW_US)
    assert failed
    assert list((tmp_path / "boards").iterdir()) == []
    catalogue.refresh("b")
    assert "b" not in catalogue.listings
    catalogue.create("b", define(), NOW_US)
    assert "b" in catalogue.listings


def test_a_board_that_could_not_be_deleted_can_be_tried_again(
    catalogue: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion that failed is not taken for one that succeeded when it is repeated."""
    catalogue.create("b", define(), NOW_US)
    with directories_fail(monkeypatch, "deleted") as failed, pytest.raises(OSError, match="failed"):
        catalogue.delete("b")
    assert failed
    assert "b" in catalogue.listings
    catalogue.delete("b")
    assert "b" not in catalogue.listings
    catalogue.scan()
    assert "b" not in catalogue.listings


def test_a_board_that_is_gone_is_not_made_by_opening_it(tmp_path: Path) -> None:
    """Opening a board whose directory is missing says so, and leaves nothing behind."""
    with pytest.raises(DamagedError, match="is missing"):
        LoggedBoard.open(tmp_path / "b", SMALL)
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_takes_several_calls_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Owner and head are written whole also where the system takes a part at a time."""
    real = os.pwrite
    parts = []

    def pwrite(descriptor: int, data: bytes, position: int) -> int:
        parts.append(len(data))
        return real(descriptor, data[: (len(data) + 1) // 2], position)

    monkeypatch.setattr(os, "pwrite", pwrite)
    host = on_disk(tmp_path / "b")
    assert submit(host, event())["status"] == "applied"
    host.close()
    assert len(parts) > parts.count(OWNER_BYTES) + parts.count(SLOT_BYTES)
    assert read_owner(tmp_path / "b" / OWNER).process is None
    assert head_findings(tmp_path / "b" / "log" / "head") == []
