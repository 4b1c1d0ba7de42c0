"""Figures of a node with three boards: one that works, one that is not open yet, one stuck."""

from __future__ import annotations

from actors.measures import Measures, State
from node.boards import LIMITS
from node.metrics import BoardFigures


def measures_of(board: str) -> Measures:
    """Make what the process of a board would answer."""
    if board == "opening":
        return Measures(resident_bytes=50_000_000)
    made = Measures(
        applied=70,
        duplicates=3,
        refused={"period_closed": 2, "storage_full": 1},
        resident_bytes=90_000_000,
        state=State(
            sequence=1_001, members=1_002, entries=1_003, keys=1_004, state_bytes=1_005,
            open_windows=1_006, closed_windows=1_007, unsealed_windows=1_008,
            sequences_behind_snapshot=1_009, snapshot_age_seconds=12.5,
            disputes={"open": 2, "upheld": 1, "rejected": 0}, erasing=1_010,
            queued_requests=1_011, queued_events=1_012,
        ),
    )  # fmt: skip
    made.lag_seconds.add(0.015, 70)
    made.commit_events.add(70)
    made.commit_seconds.add(0.003)
    return made


FIGURES = BoardFigures(
    on_disk=5,
    damaged=1,
    held_back=0,
    measures={"arena": measures_of("arena"), "opening": measures_of("opening"), "stuck": None},
    process_ends={"arena": 1, "opening": 0, "stuck": 0},
    disk_free_bytes=10**12,
    limits=dict.fromkeys(LIMITS, 100),
)
