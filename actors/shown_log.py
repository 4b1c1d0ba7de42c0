"""A board's log as it may be shown, without the names of erased members, and how these leave it.

Owns what is read of the log by those who answer and plan, and the log that takes its place: names
are replaced as they are read until the log that is on disk holds none.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from actors.board import Board
from actors.erasing import Forgettings, find_forgettings, plan_rewriting
from actors.forgetting import Forgetting
from persistence.errors import CommitFailedError, DamagedError, RanknodeError
from persistence.event_log import LmdbEventLog
from persistence.files import require_exchange, sync_directory
from persistence.records import Event, EventsRecord, Record, RulingRecord
from persistence.rewriting import write_again
from persistence.rulings import ErasureFinished

ERASING = "erasing"  # where a second log lies: one that is being built, or a former one

_LOG = logging.getLogger("ranknode.board")


class ShownLog:
    """The log of a board that this process owns.

    Reading: `event`, `events_at`, `events_of`, `ruling_at`, from any thread; `names_of`. Taking
    names off the disk: `require_exchange`; after the log was sealed `write_again`, `put_in_place`,
    `remove_former`; then a snapshot, and what `finished` makes is committed.
    """

    def __init__(self, directory: Path, board: Board, log: LmdbEventLog) -> None:
        """Find the names that the log holds; a log that was not put in place is removed.

        Complexity: O(names x log n).
        """
        self._built = directory / ERASING
        self._board = board
        self._log = log
        self._forgettings = Forgettings()
        # The owner's mark was synced beside it: it cannot come back after a power cut.
        if self._built.exists():
            self.remove_former()
        try:
            self._forgettings = find_forgettings(board, log)
        except DamagedError as error:
            _LOG.error("%s: erasing a member waits for a repair: %s", log.directory, error)

    def forget(self, name: bytes, erased: bytes, sequence: int) -> None:
        """Show a name no more that the record with `sequence` erases; erased: the pseudonym."""
        forgetting = Forgetting(name, erased, sequence, self._board.identity.hash_key)
        self._forgettings = Forgettings((*self._forgettings.each, forgetting))

    def drop_finished(self) -> None:
        """Give up the names that the log holds no more. Complexity: O(names)."""
        erasing = set(self._board.rulings.erasing) if self._forgettings.each else set()
        each = tuple(each for each in self._forgettings.each if each.pseudonym in erasing)
        self._forgettings = Forgettings(each)

    @property
    def erasing(self) -> bool:
        """Whether there is a name of which nobody has said yet that it has left the disk."""
        return bool(self._board.rulings.erasing)

    def names_of(self, member: bytes) -> list[bytes]:
        """List what a member may be called on disk."""
        return self._forgettings.names_of(member)

    def event(self, sequence: int) -> Event:
        """Read an event. Errors: the log's."""
        return self._forgettings.event(self._log.event(sequence))

    def events_at(self, sequence: int) -> EventsRecord:
        """Read the record that holds an event. Errors: the log's; LookupError for no event."""
        record = self._forgettings.record(self._log.record_at(sequence))
        if isinstance(record, EventsRecord):
            return record
        raise LookupError(f"sequence {sequence} is not an event")

    def events_of(self, member: bytes, limit: int | None = None, head: int = 0) -> Iterator[Event]:
        """Yield a member's events, newest first; otherwise as the log's.

        head: the sequence to begin with, the newest event's where it is 0.
        """
        slot = self._board.members.find(member)
        sequence = head or (self._board.members.head(slot) if slot >= 0 else 0)
        forgettings = self._forgettings
        for event in self._log.events_of(forgettings.names_of(member), sequence, limit):
            yield forgettings.event(event)

    def ruling_at(self, sequence: int) -> Record:
        """Read a record. Errors: the log's."""
        return self._forgettings.record(self._log.record_at(sequence))

    def require_exchange(self) -> None:
        """Raise OSError where the file system could not put another log in the log's place."""
        if self._built.exists():
            shutil.rmtree(self._built)  # what could not be put in its place
        self._built.mkdir()
        try:
            require_exchange(self._built)
        finally:
            shutil.rmtree(self._built)

    def write_again(self, pseudonyms: Sequence[bytes], checkpoint: Callable[[], None]) -> None:
        """Build a log without names beside the one in use; for a background thread.

        pseudonyms: of those whose names go, who were erased before the log was sealed. checkpoint:
        called often; may raise, to stop. Complexity: O(log). Errors: DamagedError,
        StorageFullError, RanknodeError, OSError.
        """

        def records() -> Iterator[Record]:
            for record in self._log.read():
                yield record
                checkpoint()

        gone = [each for each in self._forgettings.each if each.pseudonym in pseudonyms]
        rewriting = plan_rewriting(records(), Forgettings(tuple(gone)))
        names = [each.name for each in gone]
        try:
            write_again(
                self._log, self._built, rewriting.changed, rewriting.record, checkpoint, names
            )
        except BaseException as error:
            shutil.rmtree(self._built, ignore_errors=True)  # its room may be what is missing
            if isinstance(error, CommitFailedError):  # of the new log, not of the one in use
                raise RanknodeError(f"the new log: {error}") from error
            raise

    def put_in_place(self) -> None:
        """Go on with the log that was built, in the place of the former one.

        Called by the thread that commits. Errors: as `LmdbEventLog.put_in_place`.
        """
        self._log.put_in_place(self._built)

    def remove_former(self) -> None:
        """Remove the log that still holds the names. Errors: OSError."""
        shutil.rmtree(self._built)
        sync_directory(self._built.parent)

    def finished(self, pseudonyms: Sequence[bytes], now_us: int) -> list[Record]:
        """Make the records which say that names have left the disk.

        That is once a snapshot was written and the others were removed.
        """
        return [
            RulingRecord(
                first_sequence=self._board.sequence + place,
                recorded_at_us=now_us,
                actor="",
                reason="",
                key=None,
                ruling=ErasureFinished(pseudonym),
            )
            for place, pseudonym in enumerate(pseudonyms, 1)
        ]
