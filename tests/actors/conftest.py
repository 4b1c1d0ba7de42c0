"""What the tests of moderation share: boards that must be what their logs say, and their forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.offline import verify
from tests.actors.board_harness import replayed
from tests.actors.clocked_board import ClockedBoard

FORMS = pytest.mark.parametrize(
    ("aggregation", "keys", "tie_rule", "rank_method"),
    [
        ("best", ["desc0"], "earliest", "ordinal"),
        ("best", ["asc2", "desc0", "asc1"], "latest", "dense"),
        ("sum", ["desc0"], "latest", "competition"),
        ("sum", ["desc1", "asc3"], "earliest", "dense"),
        ("latest", ["asc0"], "member", "ordinal"),
        ("latest", ["desc0", "desc0", "asc0", "asc2"], "earliest", "competition"),
    ],
    ids=str,
)

Make = Callable[..., ClockedBoard]


@pytest.fixture
def moderated(tmp_path: Path) -> Iterator[Make]:
    """Make boards at noon; each must end as a replay of its log, sound in every file."""
    boards: list[ClockedBoard] = []

    def made(now: str = "2026-11-30T12:00:00Z", **fields: Any) -> ClockedBoard:
        directory = tmp_path / str(len(boards))
        directory.mkdir()
        fields = {
            "aggregation": "sum", "periods": ["all_time", "daily"], "grace_seconds": 0,
            "key_retention_days": None,
        } | fields  # fmt: skip
        boards.append(ClockedBoard(directory, now, **fields))
        return boards[-1]

    yield made
    for board in boards:
        board.seal()
        board.rebuild()
        board.snapshot()
        state = board.host.board.state_digest()
        assert replayed(board.host.log).state_digest() == state
        board.reopen()
        assert board.host.report.snapshots_skipped == ()
        assert board.host.board.state_digest() == state
        board.close()
        assert verify(board.directory).findings == ()
