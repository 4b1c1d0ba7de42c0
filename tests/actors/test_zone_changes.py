"""Zone data that changes under a board: what was opened keeps its bounds, the rest gives way."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from actors.board import Board
from tests.actors.board_harness import DAY_US, instant, replayed
from tests.actors.clocked_board import ClockedBoard, zone_data

HOUR_US = DAY_US // 24
NOON_US = instant("2026-11-30T12:00:00Z")
ZONES = ("UTC", "America/New_York", "Asia/Kathmandu", "Pacific/Apia", "Pacific/Honolulu")
KINDS = ("daily", "weekly")
FIELDS = {
    "aggregation": "sum",
    "periods": [*KINDS],
    "key_retention_days": None,
    "grace_seconds": 0,
    "mode": "backfill",
}


def bounds_of(board: Board, kind: str) -> dict[str, tuple[int, int]]:
    """Return the bounds of the windows of a kind, open and closed."""
    windows: list[Any] = [*board.windows.values(), *board.closed.values()]
    return {w.id: (w.start_us, w.end_us) for w in windows if w.kind == kind}


def play(board: ClockedBoard, instants_us: Iterable[int]) -> int:
    """Let a new member play at each of some instants; returns how many there are."""
    number = board.host.board.sequence
    events = [board.event(1, us, member=f"{number}/{us}") for us in instants_us]
    assert set(board.batch(*events)) == {"applied"}
    return len(events)


@settings(max_examples=40, deadline=None)
@given(
    zones=st.lists(st.sampled_from(ZONES), min_size=2, max_size=3),
    first=st.lists(st.integers(-60, 60), min_size=1, max_size=3, unique=True),
)
def test_windows_still_tile_after_a_change_of_zone_data(zones, first):
    """Opened windows keep their bounds, none overlap, and each instant counts in one of a kind."""
    with tempfile.TemporaryDirectory(prefix="ranknode-test-") as root:
        board = ClockedBoard(Path(root), NOON_US + 90 * DAY_US, **FIELDS)
        played, before = 0, {kind: {} for kind in KINDS}
        for zone in zones[:-1]:
            with zone_data(zone):
                board.reopen()
                played += play(board, [NOON_US + hour * HOUR_US for hour in first])
                before = {kind: bounds_of(board.host.board, kind) for kind in KINDS}
        with zone_data(zones[-1]):
            board.reopen()
            played += play(board, range(NOON_US - 3 * DAY_US, NOON_US + 3 * DAY_US, HOUR_US // 4))
            for kind, known in before.items():
                after = bounds_of(board.host.board, kind)
                assert known.items() <= after.items()
                in_order = sorted(after.values())
                assert all(one[1] == other[0] for one, other in itertools.pairwise(in_order))
                windows = [w for w in board.host.board.windows.values() if w.kind == kind]
                assert sum(len(window.standings) for window in windows) == played
        assert replayed(board.host.log).state_digest() == board.host.board.state_digest()
        board.close()


def test_a_window_keeps_its_bounds_whatever_happens_to_zone_data():
    """An opened window is answered, filled and closed by the bounds that it was opened with."""
    with tempfile.TemporaryDirectory(prefix="ranknode-test-") as root:
        board = ClockedBoard(Path(root), NOON_US, **(FIELDS | {"mode": "live"}))
        board.send(1)
        opened = board.top("daily")["period"]
        with zone_data("America/New_York"):
            board.reopen()
            assert board.top("daily")["period"] == opened
            board.at("2026-11-30T23:59:59.999999Z")
            assert board.counted(1)[0] == "daily:2026-11-30"
            board.at("2026-12-01T00:00:00Z")
            assert board.counted(1)[0] == "daily:2026-12-01"
            # The day after begins where the opened one ended and lasts until the new data's end.
            shown = board.top("daily")["period"]
            assert (shown["start"], shown["end"]) == (opened["end"], "2026-12-02T05:00:00Z")
            assert board.top("daily:2026-11-30")["period"] == opened | {
                "closed": True, "revision": 1,
            }  # fmt: skip
        board.close()
