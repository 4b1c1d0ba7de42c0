"""A board made again from its log alone, and compared with whatever else claims to know it.

Owns the replay that follows a growing log, and what is compared of it: the standings of a closed
window with the digest in its closing record and with its archive; a state with a snapshot's. What
differs is a Comparison that is not equal, never an error, and the replay goes on. Read only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from actors.archives import Archives
from actors.board import Board
from actors.closed_window import ClosedWindow, revised_by
from actors.counting import Window
from actors.listing import LOG, in_place, log_place
from actors.logged_board import ARCHIVES, SNAPSHOTS
from actors.queries import NO_STANDINGS_DIGEST
from actors.replay import require_identity
from actors.standings import listing_digest
from persistence.archive import read_archive
from persistence.errors import DamagedError, RanknodeError
from persistence.event_log import LmdbEventLog
from persistence.records import EventsRecord, Record, WindowClosedRecord
from persistence.recovery import LOAD_ERRORS, load_snapshot, reason
from persistence.snapshot import list_snapshots
from persistence.verify import APPLY_ERRORS

NOT_THERE = "none"  # stands for the digest of what one of two does not have

Show = Callable[[int, int], None]  # called with the sequences done and their total


class Comparison(NamedTuple):
    """One digest that was rebuilt, and the one that another part of the node has of the same.

    of: a window's id, or what part of the state. sequence: that of the log at which both hold.
    """

    of: str
    sequence: int
    rebuilt: str
    other: str
    against: str

    @property
    def is_equal(self) -> bool:
        """Tell whether the rebuild came to the same."""
        return self.rebuilt == self.other


class Rebuild:
    """A board between nothing and the end of its log.

    `follow` replays what the log holds by now, once and again as it grows. `board` is the state
    reached, `digests` the published digest of each closed window, `events` how many events were
    counted, `differences` the closing records that the standings do not agree with.
    """

    def __init__(self, directory: Path) -> None:
        self.board = Board()
        self.digests: dict[str, str] = {}
        self.events = 0
        self.differences: list[Comparison] = []
        self._directory = directory
        self._place = log_place(directory)
        self._log: LmdbEventLog

    def follow(self, show: Show | None = None, stops: Collection[int] = ()) -> Iterator[int]:
        """Replay what the log holds by now, and pause at each sequence of `stops` and at its end.

        Yields each sequence that is paused at; one that no record ends with is passed by. Nothing
        but this process reads the log meanwhile. Raises DamagedError, which names the record,
        FormatTooNewError, OSError; RanknodeError where the log was written again meanwhile.
        """
        with in_place(self._directory, self._place):
            yield from self._follow(show, stops)

    def _follow(self, show: Show | None, stops: Collection[int]) -> Iterator[int]:
        self._log = LmdbEventLog.open_readonly(self._directory / LOG)
        try:
            if self.board.sequence in stops and self.board.sequence < self._log.last_sequence:
                yield self.board.sequence
            for record in self._log.read(self.board.sequence):
                self._apply(record)
                if show is not None:
                    show(record.last_sequence, self._log.last_sequence)
                if record.last_sequence in stops and record.last_sequence < self._log.last_sequence:
                    yield record.last_sequence
            require_identity(self.board, self._directory)
            yield self.board.sequence
        finally:
            self._log.close()

    def _apply(self, record: Record) -> None:
        try:
            if isinstance(record, WindowClosedRecord):
                record = self._compared(record)
            self.board.apply(record)
        except APPLY_ERRORS as error:
            raise DamagedError(
                f"{self._directory}: the record at sequence {record.first_sequence} cannot be"
                f" applied: {reason(error)}"
            ) from error
        if isinstance(record, EventsRecord):
            self.events += record.count
        for name in revised_by(record):
            self.digests.pop(name, None)
        for name, window in self.board.unsealed.items():
            self.digests[name] = self._published(window)
        self.board.unsealed.clear()

    def _published(self, window: Window) -> str:
        columns = window.standings.listing()
        return listing_digest(columns, self.board.definition.decimals).hex()

    def _compared(self, record: WindowClosedRecord) -> WindowClosedRecord:
        """Compare a closing with the standings that it closes; return it as they would have it."""
        window = self.board.windows.get(record.window)
        if window is None:
            return record  # which the board refuses
        rebuilt = replace(record, members=window.size, digest=window.digest)
        if rebuilt != record:
            ours, theirs = (f"{r.digest.hex()}, {r.members} members" for r in (rebuilt, record))
            self.differences.append(
                Comparison(window.id, record.first_sequence, ours, theirs, "closing record")
            )
        return rebuilt

    def digest(self, window: str) -> str:
        """Return the digest that a query of a window would be answered with now."""
        closed = self.board.closed.get(window)
        if closed is not None:
            return self.digests.get(window) or self._revised(closed)
        found = self.board.windows.get(window)
        return NO_STANDINGS_DIGEST if found is None else found.digest.hex()

    def _revised(self, closed: ClosedWindow) -> str:
        """Return the digest of a window that was revised after its standings had left memory.

        The replay knows the sum of its entries' hashes; the archive of the same sum is listed.
        """
        archives = Archives(self._directory / ARCHIVES, self.board, 0)
        try:
            window, _ = archives.read(closed, closed.revision)
        except (RanknodeError, OSError) as error:
            return reason(error)
        return self._published(window)

    def compare_archives(self) -> Iterator[Comparison]:
        """Compare every closed window with the listing in its archive, where that is there.

        Complexity: O(bytes of the archives), one at a time in memory. Errors: OSError.
        """
        for closed in self.board.closed.values():
            try:
                header, columns = read_archive(
                    self._directory / ARCHIVES, closed.id, closed.revision
                )
                other = listing_digest(columns, self.board.definition.decimals).hex()
                if other != header.digest:
                    other = f"{other}, under the name of {header.digest}"
            except FileNotFoundError:
                continue  # it is written after the closing, and again whenever it is lost
            except (RanknodeError, ValueError) as error:
                other = reason(error)
            sequence = closed.newest.sequence
            yield Comparison(closed.id, sequence, self.digest(closed.id), other, "archive")

    def compare_snapshot(self, path: Path) -> list[Comparison]:
        """Compare the board with its snapshot of this sequence, part by part.

        Called while `follow` pauses there. None where the board's owner has pruned it meanwhile.
        """
        ours = _parts(self.board)
        try:
            theirs = _parts(load_snapshot(path, self._log, Board.load))
        except FileNotFoundError:
            return []
        except LOAD_ERRORS as error:
            theirs = dict.fromkeys(ours, reason(error))
        return [
            Comparison(
                part, self.board.sequence, ours.get(part, NOT_THERE), theirs.get(part, NOT_THERE),
                "snapshot",
            )
            for part in ours | theirs
        ]  # fmt: skip


def _parts(board: Board) -> dict[str, str]:
    """Give the digest of each open window, of the members' flags and heads, the keys, and all."""
    parts = {window.id: window.standings.digest.hex() for window in board.windows.values()}
    parts["members"] = board.members.digest.hex()
    parts["keys"] = board.keys.digest.hex()
    parts["state"] = board.state_digest()
    return parts


def newest_snapshot(directory: Path) -> Path | None:
    """Return the newest snapshot of the board in `directory`, None if it has none."""
    return next(iter(list_snapshots(directory / SNAPSHOTS)), None)
