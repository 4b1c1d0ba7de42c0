"""Boards that were written once and committed: they are read for ever as they were.

tests/data/logs/write.py wrote them and says how.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from actors.offline import read_events, verify
from tests.actors.board_harness import replayed
from tests.actors.clocked_board import ClockedBoard, zone_data
from tests.data.logs.write import LOGS, MEMBERS, OPTIONS, expectation

# Their snapshots are of a form that is passed over, and their digest is of a state of that form.
EARLIER = {"format-1"}
NAMES = sorted(path.parent.name for path in LOGS.glob("*/expected.json"))


@pytest.fixture(params=NAMES)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """Copy a written board; gives its directory and what it must say."""
    shutil.copytree(LOGS / request.param / "b", tmp_path / "b")
    text = (LOGS / request.param / "expected.json").read_text("utf-8")
    expected = json.loads(text, parse_float=Decimal)
    if request.param in EARLIER:
        expected["state_digest"] = None
    return tmp_path, expected


@pytest.fixture(params=[None, "Asia/Tokyo", "Pacific/Apia"])
def zone(request: pytest.FixtureRequest) -> contextlib.AbstractContextManager[None]:
    """Give the zone data of today, and others in their place."""
    return contextlib.nullcontext() if request.param is None else zone_data(request.param)


@pytest.mark.parametrize(
    "lost", [(), ("snapshots",), ("archives",), ("archives", "snapshots")], ids="+".join
)
def test_a_written_board_answers_as_it_did(written, zone, lost):
    """State, standings and published digests are as recorded, whatever was lost but the log."""
    directory, expected = written
    with zone:
        for name in lost:
            shutil.rmtree(directory / "b" / name)
        board = ClockedBoard.existing(directory, expected["now_us"], OPTIONS)
        is_read = expected["state_digest"] is not None
        loaded, skipped = board.host.report.snapshot_sequence, board.host.report.snapshots_skipped
        assert (loaded > 0) == (is_read and "snapshots" not in lost)
        assert (skipped != ()) == (not is_read and "snapshots" not in lost)
        assert {why for _, why in skipped} <= {"is of an earlier form"}
        found = expectation(board)
        state_digest = found["state_digest"]
        assert {name: found[name] for name in expected} == expected | {"state_digest": state_digest}
        assert expected["state_digest"] in (None, state_digest)
        assert replayed(board.host.log).state_digest() == state_digest
        board.close()


def test_a_written_board_is_sound(written, zone):
    """The verifier finds nothing, and changes no file."""
    directory, expected = written
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    with zone:
        report = verify(directory / "b")
    assert report.findings == ()
    assert expected["state_digest"] in (None, report.state_digest)
    assert before.items() <= {p: p.read_bytes() for p in before}.items()


def test_a_written_log_gives_its_events_back(written):
    """Each event comes back once, in order, with its member and key."""
    directory, expected = written
    _, events, last_sequence = read_events(directory / "b")
    rows = list(events)
    assert last_sequence == expected["top"]["all_time"]["sequence"]
    assert [row.sequence for row in rows] == sorted({row.sequence for row in rows})
    assert sorted({row.member.decode() for row in rows}) == expected.get("members", sorted(MEMBERS))
    assert len({row.idempotency_key for row in rows}) == len(rows)
