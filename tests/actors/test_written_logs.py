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
from tests.data.logs.write import LOGS, OPTIONS, expectation

NAMES = sorted(path.parent.name for path in LOGS.glob("*/expected.json"))


@pytest.fixture(params=NAMES)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """Copy a written board; gives its directory and what it must say."""
    shutil.copytree(LOGS / request.param / "b", tmp_path / "b")
    text = (LOGS / request.param / "expected.json").read_text("utf-8")
    return tmp_path, json.loads(text, parse_float=Decimal)


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
        assert board.host.report.snapshots_skipped == ()
        assert (board.host.report.snapshot_sequence > 0) == ("snapshots" not in lost)
        assert expectation(board) == expected
        assert replayed(board.host.log).state_digest() == expected["state_digest"]
        board.close()


def test_a_written_board_is_sound(written, zone):
    """The verifier finds nothing, and changes no file."""
    directory, expected = written
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    with zone:
        report = verify(directory / "b")
    assert report.findings == ()
    assert report.state_digest == expected["state_digest"]
    assert before.items() <= {p: p.read_bytes() for p in before}.items()


def test_a_written_log_gives_its_events_back(written):
    """Each event comes back once, in order, with its member and key."""
    directory, expected = written
    _, events, last_sequence = read_events(directory / "b")
    rows = list(events)
    assert last_sequence == expected["top"]["all_time"]["sequence"]
    assert [row.sequence for row in rows] == sorted({row.sequence for row in rows})
    members = {row.member.decode() for row in rows}
    assert members == {entry["member"] for entry in expected["top"]["all_time"]["entries"]}
    assert len({row.idempotency_key for row in rows}) == len(rows)
