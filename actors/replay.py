"""Bringing a board up from its disk: the newest snapshot that holds, then the records after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from actors.archives import Archives
from actors.board import Board
from actors.joining import joined
from persistence.errors import DamagedError
from persistence.event_log import LmdbEventLog
from persistence.records import Record, WindowClosedRecord
from persistence.recovery import RecoveryReport, recover
from persistence.snapshot import Column

UNSEALED_MAX = 16  # closed standings that are kept in memory at once until they are sealed again


class _Replay:
    """A board that is being recovered: it gives up closed standings that an archive holds.

    Those that none holds are kept, a few of them; the others are `Archives.missing` later.
    """

    def __init__(self, archives: Path, board: Board | None = None) -> None:
        self.board = board or Board()
        self._archives = Archives(archives, self.board, 0)

    @property
    def sequence(self) -> int:
        return self.board.sequence

    def apply(self, record: Record) -> None:
        self.board.apply(record)
        if isinstance(record, WindowClosedRecord) and record.window in self.board.unsealed:
            full = len(self.board.unsealed) > UNSEALED_MAX
            if full or self._archives.holds(self.board.closed[record.window], 1):
                del self.board.unsealed[record.window]

    def state_digest(self) -> str:
        return self.board.state_digest()

    def dump(self) -> tuple[dict[str, Any], list[Column]]:
        return self.board.dump()


def recover_board(
    log: LmdbEventLog, snapshots: Path, archives: Path
) -> tuple[Board, RecoveryReport]:
    """Recover the board of a log; snapshots and archives: where these are. Errors: DamagedError."""

    def load(header: dict[str, Any], columns: dict[str, memoryview]) -> _Replay:
        return _Replay(archives, Board.load(header, columns))

    replay, report = recover(log, snapshots, lambda: _Replay(archives), load, joined=joined)
    return replay.board, report


def require_identity(board: Board, directory: Path) -> None:
    """Raise DamagedError unless the log in `directory` is that of the board it is named for."""
    if board.sequence == 0:
        raise DamagedError(f"{directory}: its log does not begin with a definition")
    if board.identity.board != directory.name:
        raise DamagedError(f"{directory}: holds the log of board {board.identity.board}")


def describe_recovery(report: RecoveryReport) -> str:
    """Tell in a line how a board came up and how long that took."""
    skipped = "".join(f"; {name} was skipped: {why}" for name, why in report.snapshots_skipped)
    return (
        f"sequence {report.last_sequence}, from snapshot {report.snapshot_sequence} in"
        f" {report.load_seconds:.3f} s and {report.events_replayed} events in"
        f" {report.replay_seconds:.3f} s{skipped}"
    )
