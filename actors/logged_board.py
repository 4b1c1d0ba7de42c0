"""A board with its log and snapshots, without processes or network: persist, then apply.

Owns the order in which things become true: a plan is made from the board, its record is committed,
then the board applies it. The shells (the Ray actor, the verifier, the benchmarks, the tests)
decide when; they call `commit` from one thread and everything else from where the board lives.
Files of a board's directory: `log/`, `snapshots/`, the owner's mark, and `board.msgpack`, a copy of
the current definition for listings.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from actors.archives import Archives
from actors.board import Board
from actors.definition import Definition, FixedWindow, apply_changes
from actors.exact import parse_time
from actors.intake import Plan, plan, settle
from actors.listing import LOG, keep_listing, refuse_newer_listing, show_listing
from actors.periods import ALL_TIME
from actors.questions import Change, Reply
from actors.submission import Submission
from actors.witnesses import find_witnesses, require_end
from persistence.errors import DamagedError, StorageFullError
from persistence.event_log import LmdbEventLog, LogOptions
from persistence.files import free_bytes, sync_directory
from persistence.ownership import Ownership
from persistence.records import (
    DefinitionRecord,
    OpenedWindow,
    Record,
    WindowClosedRecord,
    WindowOpenedRecord,
)
from persistence.recovery import RecoveryReport, recover
from persistence.snapshot import Column, prune_snapshots, write_snapshot

ARCHIVES = "archives"
SNAPSHOTS = "snapshots"
CLOSINGS_PER_COMMIT_MAX = 64
UNSEALED_MAX = 16  # closed standings that a replay keeps in memory until they are sealed again
CREATION_BYTES = 1 << 20  # what a new board's files take, and more


class BoardOptions(msgspec.Struct, frozen=True):
    """How a board is kept.

    snapshot_events: events logged from one snapshot to the next. archive_cache_bytes_max: of closed
    windows' standings that are kept in memory once asked for.
    """

    log: LogOptions
    snapshot_events: int
    archive_cache_bytes_max: int = 256 << 20


class StateCopy(NamedTuple):
    """A board's state, copied out of the board so that it can be written while the board lives."""

    sequence: int
    header: dict[str, Any]
    columns: Sequence[Column]


def create_board(
    directory: Path, board: str, definition: Definition, now_us: int, options: BoardOptions
) -> Board:
    """Create a board's directory, durably and at once: after a crash it is whole or not there.

    directory: must not exist; its parent must. Errors: FileExistsError, StorageFullError,
    CommitFailedError, OSError.
    """
    if directory.exists():
        raise FileExistsError(str(directory))
    # LMDB maps its lock file; on a full disk its pages are no error but the end of the process.
    if free_bytes(directory.parent) < options.log.reserved_free_bytes + CREATION_BYTES:
        raise StorageFullError("there is no room for another board")
    building = directory.with_name(f".{board}.{secrets.token_hex(8)}")
    building.mkdir()
    try:
        created = Board()
        log = LmdbEventLog(building / LOG, options.log, epoch=1, create=True)
        records = _first_records(board, definition, now_us)
        log.append(records)
        log.close()
        for record in records:
            created.apply(record)
        keep_listing(building, created)
        (building / SNAPSHOTS).mkdir()
        sync_directory(building)
        building.rename(directory)
        sync_directory(directory.parent)
    except BaseException:
        # Under its own name it would be taken for created, although the name may not be durable.
        with contextlib.suppress(OSError):
            directory.rename(building)
        shutil.rmtree(building, ignore_errors=True)
        raise
    return created


def _first_records(board: str, definition: Definition, now_us: int) -> list[Record]:
    """Make what a board begins with: its definition, and the windows that it opens itself."""
    records: list[Record] = [
        DefinitionRecord(
            first_sequence=1,
            recorded_at_us=now_us,
            board=board,
            incarnation=secrets.token_hex(8),
            hash_key=secrets.token_bytes(16),
            created_at_us=now_us,
            definition=definition.to_record(),
        ),
    ]
    return [*records, *first_windows(definition, 2, now_us)]


def first_windows(
    definition: Definition, first_sequence: int, now_us: int
) -> list[WindowOpenedRecord]:
    """Make the records of the windows that a board opens itself; events open the others."""
    windows = []
    for period in definition.periods:
        if isinstance(period, FixedWindow):
            start_us, end_us = parse_time(period.start), parse_time(period.end)
            windows.append(OpenedWindow(period.name, start_us, end_us))
        elif period == ALL_TIME.id:
            windows.append(OpenedWindow(ALL_TIME.id, None, None))
    return [
        WindowOpenedRecord(
            first_sequence=first_sequence + place,
            recorded_at_us=now_us,
            **msgspec.structs.asdict(window),
        )
        for place, window in enumerate(windows)
    ]


class _Replay:
    """A board that is being recovered: it gives up closed standings that an archive holds.

    Those that none holds are kept, a few of them; the others are `Archives.missing` later.
    """

    def __init__(self, directory: Path, board: Board | None = None) -> None:
        self.board = board or Board()
        self._archives = Archives(directory / ARCHIVES, self.board, 0)

    @property
    def sequence(self) -> int:
        return self.board.sequence

    def apply(self, record: Record) -> None:
        self.board.apply(record)
        if isinstance(record, WindowClosedRecord) and record.window in self.board.unsealed:
            full = len(self.board.unsealed) > UNSEALED_MAX
            if full or self._archives.holds(self.board.closed[record.window]):
                del self.board.unsealed[record.window]

    def state_digest(self) -> str:
        return self.board.state_digest()

    def dump(self) -> tuple[dict[str, Any], list[Column]]:
        return self.board.dump()


class LoggedBoard:
    """One board, open for writing by this process alone.

    Opening: `open`, `report`. Writing: `plan` → `commit` → `settle`; `changed_definition` and
    `closings` → `commit` → `apply_all`. Reading: `board`, `archives`. Keeping: `snapshot_due`,
    `copy_state`, `write_copy`, `rebuild_archives`, `close`.
    """

    def __init__(
        self,
        directory: Path,
        options: BoardOptions,
        ownership: Ownership,
        log: LmdbEventLog,
        recovered: tuple[Board, RecoveryReport],
    ) -> None:
        self.directory = directory
        self.log = log
        self.board, self.report = recovered
        self.archives = Archives(directory / ARCHIVES, self.board, options.archive_cache_bytes_max)
        self.archives.survey()
        self._options = options
        self._ownership = ownership
        # A copy that could not be written counts for what is due, not for what is kept.
        self._copied_sequence = self._kept_sequence = self.report.snapshot_sequence

    @classmethod
    def open(cls, directory: Path, options: BoardOptions) -> LoggedBoard:
        """Become the board's one owner and recover its state from disk.

        Complexity: O(snapshot + newer events). Errors: DamagedError, OwnershipError,
        FormatTooNewError, OSError.
        """
        if not directory.is_dir():
            raise DamagedError(f"{directory}: is missing")
        ownership = Ownership.take(directory)
        try:
            refuse_newer_listing(directory)
            log = LmdbEventLog(directory / LOG, options.log, epoch=ownership.epoch)
            try:
                board, report = _recover(directory, log)
                require_identity(board, directory)
                witnesses = find_witnesses(directory / SNAPSHOTS, directory / ARCHIVES)
                require_end(witnesses, board.identity.incarnation, board.sequence)
                show_listing(directory, board)
                return cls(directory, options, ownership, log, (board, report))
            except BaseException:
                log.close()
                raise
        except BaseException:
            ownership.release()
            raise

    def plan(self, submissions: Sequence[Submission], recorded_at_us: int) -> Plan:
        """Decide what becomes of submissions, changing nothing."""
        return plan(self.board, self.log.event, submissions, recorded_at_us)

    def commit(self, records: Sequence[Record]) -> None:
        """Write records to the log; they are on disk when it returns. Errors: the log's."""
        self.log.append(records)

    def settle(self, planned: Plan) -> list[Reply]:
        """Apply a plan whose record is on disk and answer its submissions."""
        improved = {} if planned.record is None else self.board.apply(planned.record)
        if planned.record is not None and planned.record.opened:
            show_listing(self.directory, self.board)
        return settle(self.board, planned, improved)

    def changed_definition(self, change: Change) -> DefinitionRecord | None:
        """Make the record of a change, or None where nothing changes. Errors: Refusal."""
        definition = apply_changes(self.board.definition, change.body, change.body_packed)
        if definition == self.board.definition:
            return None
        return DefinitionRecord(
            first_sequence=self.board.sequence + 1,
            recorded_at_us=change.now_us,
            definition=definition.to_record(),
            **self.board.identity._asdict(),
        )

    def closings(self, now_us: int) -> list[Record]:
        """Make the records that close what is due, the earliest first, as many as one commit takes.

        History that goes live may have thousands of windows due at once: call it until none is.
        """
        return [
            WindowClosedRecord(
                first_sequence=self.board.sequence + 1 + place,
                recorded_at_us=now_us,
                window=window.id,
                members=len(window.standings),
                digest=window.standings.digest,
            )
            for place, window in enumerate(self.board.due(now_us)[:CLOSINGS_PER_COMMIT_MAX])
        ]

    def apply_all(self, records: Sequence[Record]) -> None:
        """Apply changes and closings that are on disk, and show them in listings."""
        for record in records:
            self.board.apply(record)
        show_listing(self.directory, self.board)

    def close_due(self, now_us: int) -> None:
        """Close what is due, at once, where nobody else uses the board. Errors: the log's."""
        while records := self.closings(now_us):
            self.commit(records)
            self.apply_all(records)

    def seal_all(self) -> None:
        """Seal what is closed, at once, where nobody else uses the board. Errors: OSError."""
        for name, window in list(self.board.unsealed.items()):
            self.archives.sealed(name, self.archives.seal(self.board.closed[name], window))
        self.archives.forget_expired()
        if self.archives.expired:
            self.archives.remove_expired()

    def rebuild_archives(self, sealed: Callable[[str, str], object]) -> None:
        """Make missing archives again by replaying the log aside; for a background thread.

        sealed: called with each window and its digest as soon as its archive is there.
        Complexity: O(log). Errors: DamagedError, OSError.
        """
        wanted = set(self.archives.missing)
        aside = Board()
        for record in self.log.read():
            aside.apply(record)
            if isinstance(record, WindowClosedRecord):
                window = aside.unsealed.pop(record.window, None)
                closed = self.board.closed.get(record.window)
                if window is not None and closed is not None and record.window in wanted:
                    sealed(record.window, self.archives.seal(closed, window))

    @property
    def snapshot_due(self) -> bool:
        """Whether replaying what no snapshot holds would take longer than it should.

        Not while closed standings are only in memory: a snapshot does not hold them.
        """
        return (
            not self.board.unsealed
            and self.board.sequence - self._copied_sequence >= self._options.snapshot_events
        )

    @property
    def snapshot_current(self) -> bool:
        """Whether the newest snapshot holds everything."""
        return self.board.sequence == self._kept_sequence

    def copy_state(self) -> StateCopy:
        """Copy the state; the board must not change meanwhile, it may be read."""
        header, columns = self.board.dump()
        header["log_hash"] = self.log.last_hash
        self._copied_sequence = self.board.sequence
        return StateCopy(self.board.sequence, header, columns)

    def write_copy(self, copy: StateCopy) -> None:
        """Write a copied state as a snapshot, durably, and drop all but the last two."""
        snapshots = self.directory / SNAPSHOTS
        write_snapshot(snapshots, copy.sequence, copy.header, copy.columns)
        prune_snapshots(snapshots)
        self._kept_sequence = copy.sequence

    def close(self) -> None:
        """Give the board up; everything acknowledged is on disk already."""
        self.log.close()
        self._ownership.release()


def _recover(directory: Path, log: LmdbEventLog) -> tuple[Board, RecoveryReport]:
    def load(header: dict[str, Any], columns: dict[str, memoryview]) -> _Replay:
        return _Replay(directory, Board.load(header, columns))

    replay, report = recover(log, directory / SNAPSHOTS, lambda: _Replay(directory), load)
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
