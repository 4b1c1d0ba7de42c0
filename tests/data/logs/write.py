"""Write a board's directory as the current version writes it, and beside it what it must say.

    .venv/bin/python -m tests.data.logs.write NAME

makes tests/data/logs/NAME/ with the board `b` and `expected.json`, which tests/actors/
test_written_logs.py reads back for ever. Run it once for a format of records, snapshots or
archives, under a new name, and commit what it made; what is there is never written again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from actors.logged_board import BoardOptions
from actors.questions import Disputes
from persistence.event_log import LogOptions
from persistence.records import EventsRecord
from tests.actors.board_harness import DAY_US
from tests.actors.clocked_board import ClockedBoard
from tests.actors.verdicts import dispute, erase, hide, profile, remove, settle, show, void

LOGS = Path(__file__).parent
NOT_KEPT = ("lock.mdb", "owner.lock")  # of processes, not of the board
OPTIONS = BoardOptions(
    log=LogOptions(segment_events_max=60, segment_bytes_max=1 << 20, reserved_free_bytes=0),
    snapshot_events=1_000,
)
# New York sets its clocks forward on March 8, 2026: that day has 23 hours.
BEGINNING = "2026-03-05T15:00:00Z"
DEFINITION: dict[str, Any] = {
    "aggregation": "sum",
    "score": [
        {"name": "points", "decimals": 1},
        {"name": "seconds", "direction": "asc", "decimals": 3},
    ],
    "rank_method": "competition",
    "periods": [
        "daily", "all_time", "weekly", "monthly", "yearly",
        {"name": "cup", "start": "2026-03-06T00:00:00Z", "end": "2026-03-08T12:00:00Z"},
        {"name": "final", "start": "2026-06-01T00:00:00Z", "end": "2026-06-08T00:00:00Z"},
        {"name": "never-played", "start": "2026-03-01T00:00:00Z", "end": "2026-03-02T00:00:00Z"},
    ],
    "timezone": "America/New_York",
    "day_starts_at": "02:30",
    "week_starts_on": "sunday",
    "grace_seconds": 3_600,
    "keep_closed_periods": 4,
}  # fmt: skip
DAYS = 9
MEMBERS = ("mary1934", "Ada", "ada", "Zoë", "名前", "🎮", "x/%2F")


def play(board: ClockedBoard, *, rules: bool = True, erases: bool = True) -> None:
    """Play for some days: in time, late, twice, in batches, with changes and rulings in between.

    rules: whether there are rulings; erases: whether some of them erase members.
    """
    beginning_us = board.now_us
    sequences: dict[str, int] = {}
    for day in range(DAYS):
        board.at(beginning_us + day * DAY_US)
        for number, member in enumerate(MEMBERS[: 3 + day % 5]):
            value = [(7 * day + 3 * number) % 11 - 0.5 * (number % 2), number + day / 8]
            occurred_at = board.now_us - number * 3_600_000_000
            key = f"{day}/{member}"
            answer = board.send(value, occurred_at, member=member, key=key, source="s")
            sequences[key] = answer["sequence"]
        again = {"member": "Ada", "value": [1, 1.25], "idempotency_key": f"batch/{day}"}
        board.batch(again, again, board.event([0, 0], member="ada", key=f"zero/{day}"))
        if day == 3:
            board.patch(grace_seconds=600, sources=["s"])
            board.seal()
        if day == 4:
            board.patch(sources=None)
        if rules:
            moderate(board, day, sequences)
        if rules and erases:
            forget(board, day)
        if day in (4, 7):
            board.seal()
            board.snapshot()
    board.seal()
    board.rebuild()


def moderate(board: ClockedBoard, day: int, sequences: dict[str, int]) -> None:
    """Rule on members and events, by key, of open and closed windows, before snapshots and after.

    "Zoë" is hidden while windows close, "名前" is removed, two closed days are revised.
    """
    if day == 1:
        profile(board, "Ada", b'{"display_name":"Ada L.","extra":{"level":1.50}}')
        hide(board, "Zoë")
        hide(board, "ada")
        void(board, sequences["0/ada"])
    if day == 4:
        show(board, "ada")
        dispute(board, sequences["3/mary1934"])
        remove(board, "名前")
    if day == 6:
        void(board, sequences["5/Ada"])
        settle(board, dispute(board, sequences["6/ada"]), "rejected")
    if day == 8:
        settle(board, dispute(board, sequences["5/mary1934"]), "upheld")
        profile(board, "🎮", b"{}")
        void(board, sequences["7/ada"])


def forget(board: ClockedBoard, day: int) -> None:
    """Erase two members; the name of one of them is still on disk when the board ends."""
    if day == 7:
        erase(board, "Zoë")
        board.host.erase_names(board.now_us)
    if day == 8:
        erase(board, "x/%2F")


def expectation(board: ClockedBoard) -> dict[str, Any]:
    """Say what the board must answer, by the ids of its windows."""
    listed = board.periods(limit=1_000)["periods"]
    return {
        "now_us": board.now_us,
        "state_digest": board.host.board.state_digest(),
        "periods": listed,
        "top": {item["id"]: board.top(item["id"]) for item in listed},
        "digest": {item["id"]: board.digest(item["id"]) for item in listed},
        "revisions": {
            item["id"]: [
                [board.digest(item["id"], number), board.top(item["id"], revision=number)]
                for number in kept_revisions(board, item["id"])
            ]
            for item in listed
        },
        "members": members(board),
        "disputes": board.ask(Disputes(False, board.now_us, None, None, 100, None)),
    }


def kept_revisions(board: ClockedBoard, window: str) -> list[int]:
    """List the former revisions of a window that still answer."""
    closed = board.host.board.closed.get(window)
    return [] if closed is None else [each for each in closed.kept if each < closed.revision]


def members(board: ClockedBoard) -> list[str]:
    """List the members of all events, as they are called now."""
    events = (
        board.host.shown_log.event(record.first_sequence + row)
        for record in board.host.log.read()
        if isinstance(record, EventsRecord)
        for row in range(record.count)
    )
    return sorted({event.member.decode() for event in events})


def main(name: str) -> None:
    """Write the directory `name`, which must not exist."""
    directory = LOGS / name
    directory.mkdir()
    board = ClockedBoard(directory, BEGINNING, OPTIONS, **DEFINITION)
    play(board)
    expected = expectation(board)
    board.close()
    for path in [path for path in directory.rglob("*") if path.name in NOT_KEPT]:
        path.unlink()
    text = json.dumps(expected, default=float, ensure_ascii=False, indent=1)
    (directory / "expected.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
