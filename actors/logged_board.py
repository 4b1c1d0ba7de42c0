"""A board with its log and snapshots, without processes or network: persist, then apply.

Owns the order in which things become true: a plan is made from the board, its record is committed,
then the board applies it. The shells (the Ray actor, the verifier, the benchmarks, the tests)
decide when; they call `commit` from one thread and everything else from where the board lives.
Files of a board's directory: `log/`, `snapshots/`, the owner's mark, and `board.msgpack`, a copy of
the current definition for listings.
"""

from __future__ import annotations

import itertools
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from actors.board import Board
from actors.definition import Definition, apply_changes, from_record
from actors.intake import Plan, plan, settle
from actors.questions import Change, Reply
from actors.submission import Submission
from persistence.errors import DamagedError, RanknodeError, StorageFullError
from persistence.event_log import LmdbEventLog, LogOptions
from persistence.files import free_bytes, sync_directory, write_atomically
from persistence.ownership import Ownership
from persistence.records import DefinitionRecord, Event, EventsRecord, Record, WindowOpenedRecord
from persistence.recovery import RecoveryReport, recover
from persistence.snapshot import Column, prune_snapshots, write_snapshot
from persistence.verify import BoardReport, Finding, verify_board

LISTING = "board.msgpack"
LOG = "log"
SNAPSHOTS = "snapshots"
CREATION_BYTES = 1 << 20  # what a new board's files take, and more


class BoardOptions(msgspec.Struct, frozen=True):
    """How a board is kept. snapshot_events: events logged from one snapshot to the next."""

    log: LogOptions
    snapshot_events: int


class Listing(msgspec.Struct, frozen=True):
    """What a listing shows of a board without waking it."""

    board: str
    incarnation: str
    created_at_us: int
    definition: Definition


class StateCopy(NamedTuple):
    """A board's state, copied out of the board so that it can be written while the board lives."""

    sequence: int
    header: dict[str, Any]
    columns: Sequence[Column]


def create_board(
    directory: Path, board: str, definition: Definition, now_us: int, options: BoardOptions
) -> Board:
    """Create a board's directory, durably and at once: after a crash it is whole or not there.

    directory: must not exist; its parent must. Errors: FileExistsError, StorageFullError, OSError.
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
        log = LmdbEventLog(building / LOG, options.log, epoch=1)
        records = _first_records(board, definition, now_us)
        log.append(records)
        log.close()
        for record in records:
            created.apply(record)
        _keep_listing(building, created)
        (building / SNAPSHOTS).mkdir()
        sync_directory(building)
        building.rename(directory)
        sync_directory(directory.parent)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return created


def _first_records(board: str, definition: Definition, now_us: int) -> list[Record]:
    """Make what a board begins with: its definition, and the opening of all_time."""
    return [
        DefinitionRecord(
            first_sequence=1,
            recorded_at_us=now_us,
            board=board,
            incarnation=secrets.token_hex(8),
            hash_key=secrets.token_bytes(16),
            created_at_us=now_us,
            definition=definition.to_record(),
        ),
        WindowOpenedRecord(
            first_sequence=2, recorded_at_us=now_us, window="all_time", start_us=None, end_us=None
        ),
    ]


def _keep_listing(directory: Path, board: Board) -> None:
    """Write what a listing shows, where that is not what is there: a full disk must not matter."""
    path, encoded = directory / LISTING, msgspec.msgpack.encode(_listing(board))
    if not path.exists() or path.read_bytes() != encoded:
        write_atomically(path, [encoded])


def _listing(board: Board) -> Listing:
    identity = board.identity
    return Listing(identity.board, identity.incarnation, identity.created_at_us, board.definition)


def read_listing(directory: Path) -> Listing:
    """Read what a listing shows. Errors: OSError, msgspec.MsgspecError."""
    return msgspec.msgpack.decode((directory / LISTING).read_bytes(), type=Listing)


class LoggedBoard:
    """One board, open for writing by this process alone.

    Opening: `open`, `report`. Writing: `plan` → `commit` → `settle`, or `change` for the
    definition. Reading: `board`. Keeping: `snapshot_due`, `copy_state`, `write_copy`, `close`.
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
        ownership = Ownership.take(directory)
        try:
            log = LmdbEventLog(directory / LOG, options.log, epoch=ownership.epoch)
            try:
                recovered = recover(log, directory / SNAPSHOTS, Board, Board.load)
                require_identity(recovered[0], directory)
                _keep_listing(directory, recovered[0])
            except BaseException:
                log.close()
                raise
        except BaseException:
            ownership.release()
            raise
        return cls(directory, options, ownership, log, recovered)

    def plan(self, submissions: Sequence[Submission], recorded_at_us: int) -> Plan:
        """Decide what becomes of submissions, changing nothing."""
        return plan(self.board, self.log.event, submissions, recorded_at_us)

    def commit(self, records: Sequence[Record]) -> None:
        """Write records to the log; they are on disk when it returns. Errors: the log's."""
        self.log.append(records)

    def settle(self, planned: Plan) -> list[Reply]:
        """Apply a plan whose record is on disk and answer its submissions."""
        improved = {} if planned.record is None else self.board.apply(planned.record)
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

    def apply_definition(self, record: DefinitionRecord) -> None:
        """Apply a change that is on disk, and show it in listings."""
        self.board.apply(record)
        _keep_listing(self.directory, self.board)

    @property
    def snapshot_due(self) -> bool:
        """Whether replaying what no snapshot holds would take longer than it should."""
        return self.board.sequence - self._copied_sequence >= self._options.snapshot_events

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


def read_events(directory: Path) -> tuple[Definition, Iterator[Event], int]:
    """Read a board's events from its log, beside a running node.

    Returns the current definition, the events in order of their sequences, and how many there may
    be at most.
    """
    log = LmdbEventLog.open_readonly(directory / LOG)
    listing = listing_of_log(log, directory)

    def events() -> Iterator[Event]:
        try:
            for record in log.read():
                if isinstance(record, EventsRecord):
                    yield from map(record.row, range(record.count))
        finally:
            log.close()

    return listing.definition, events(), log.last_sequence


def listing_of_log(log: LmdbEventLog, directory: Path) -> Listing:
    """Make a board's listing from its log. Complexity: O(log). Errors: DamagedError."""
    newest = None
    for record in log.read():
        if isinstance(record, DefinitionRecord):
            newest = record
    if newest is None or newest.board != directory.name:
        raise DamagedError(f"{directory}: holds no log of a board of that name")
    return Listing(
        newest.board, newest.incarnation, newest.created_at_us, from_record(newest.definition)
    )


def rebuild_listing(directory: Path) -> Listing:
    """Make a listing that cannot be read again, from the log, and keep it.

    Errors: DamagedError, FormatTooNewError, OSError.
    """
    log = LmdbEventLog.open_readonly(directory / LOG)
    try:
        listing = listing_of_log(log, directory)
    finally:
        log.close()
    write_atomically(directory / LISTING, [msgspec.msgpack.encode(listing)])
    return listing


class _AuditedBoard(Board):
    """A board that looks for a second use of a key before it applies a record."""

    def audit(self, record: Record, log: LmdbEventLog) -> list[str]:
        """List the keys of a record that were used before, within their retention."""
        if not isinstance(record, EventsRecord):
            return []
        again = _repeated_keys(record)
        for index, sequence in self.keys.find_all(record.key_ends, record.keys):
            event = record.row(index)
            if log.event(sequence).idempotency_key == event.idempotency_key:
                again.append((event.sequence, sequence))
        return [f"event {later} uses the key of event {earlier} again" for later, earlier in again]


def _repeated_keys(record: EventsRecord) -> list[tuple[int, int]]:
    """List the sequences of the events whose key the same record holds before, and of the first."""
    keys = bytes(record.keys)
    first_uses: dict[bytes, int] = {}
    again = []
    for sequence, (start, end) in enumerate(
        itertools.pairwise([0, *record.key_ends]), record.first_sequence
    ):
        first = first_uses.setdefault(keys[start:end], sequence)
        if first != sequence:
            again.append((sequence, first))
    return again


def verify(directory: Path, progress: Callable[[int, int], None] | None = None) -> BoardReport:
    """Check a board's files offline: log, keys, snapshots, listing. Writes nothing."""
    report = verify_board(directory, _AuditedBoard, _AuditedBoard.load, progress=progress)
    try:
        log = LmdbEventLog.open_readonly(directory / LOG, check_head=False)
    except (RanknodeError, OSError):
        return report  # which says so already
    try:
        if listing_of_log(log, directory) == read_listing(directory):
            return report
        what = "is not what the log says"
    except (RanknodeError, OSError, msgspec.MsgspecError) as error:
        what = str(error)
    finally:
        log.close()
    return replace(report, findings=(*report.findings, Finding(LISTING, None, what)))
