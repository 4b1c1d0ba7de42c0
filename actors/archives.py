"""The closed windows of one board: sealed into archives, and read back when asked for.

Owns the way between a closed window's standings and its archive files, one a revision, and what of
them is kept in memory: every digest (text of 64 characters), and the standings asked for last, up
to a bound of bytes. An archive holds hidden members too; hiding lies over what was read. `seal`,
`read` and `remove_expired` may run in threads; everything else is called where the board lives.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

from actors.board import Board
from actors.closed_window import ClosedWindow
from actors.counting import Window
from actors.standings import from_listing, listing_digest
from persistence.archive import (
    ArchiveHeader,
    read_archive,
    read_archive_header,
    remove_archives,
    remove_unfinished,
    write_archive,
)
from persistence.errors import DamagedError, RanknodeError

Key = tuple[str, int]  # a window's id and the number of a revision


class _Served(NamedTuple):
    """Standings that were read; overlay: the digest of the hidden members that are aside."""

    window: Window
    overlay: bytes


class Archives:
    """What is at hand of a board's closed windows; the `Sealed` of its queries.

    missing: the revisions whose archive is lost or damaged, to be made again from the log. expired:
    whether there may be archives on disk of windows that are no longer kept.
    """

    def __init__(self, directory: Path, board: Board, bytes_max: int) -> None:
        self.missing: set[Key] = set()
        self.expired = False
        self._directory = directory
        self._board = board
        self._bytes_max = bytes_max
        self._digests: dict[Key, str] = {}
        self._read: OrderedDict[Key, _Served] = OrderedDict()

    def standings(self, window: str, revision: int) -> Window | None:
        """Give the standings of a revision, if they are in memory, with hidden members aside.

        Complexity: O(1), and O(hidden members x log members) when these have changed.
        """
        closed = self._board.closed[window]
        unsealed = self._board.unsealed.get(window)
        if unsealed is not None and revision == closed.revision and not closed.hidden:
            return unsealed
        served = self._read.get((window, revision))
        if served is None:
            return None
        self._read.move_to_end((window, revision))
        if served.overlay != self._board.rulings.hidden.digest:
            self._read[window, revision] = self._laid_over(served.window)
        return served.window

    def _laid_over(self, window: Window) -> _Served:
        """Take aside those who are hidden now, and bring back those who no longer are."""
        hidden = self._board.rulings.hidden
        for name in window.hidden_names():
            if name not in hidden:
                window.show(window.members.find(name))
        for name in hidden:
            slot = window.members.find(name)
            if slot >= 0:
                window.hide(slot)
        return _Served(window, hidden.digest)

    def is_missing(self, window: str, revision: int) -> bool:
        """Tell whether a revision's archive must be made again before it can be asked."""
        return (window, revision) in self.missing

    def lose(self, window: str, revision: int) -> None:
        """Note that a revision's archive must be made again; the thread that plans rulings may."""
        # Not in place: whoever looks through it meanwhile goes on with the former one.
        self.missing = self.missing | {(window, revision)}

    def digest(self, window: str, revision: int) -> str | None:
        """Give the published digest of a revision if it is in memory."""
        return self._digests.get((window, revision))

    def survey(self) -> None:
        """Learn which archives are there, without their standings, and remove what is expired.

        Complexity: O(revisions of closed windows), a small read each. Errors: OSError.
        """
        remove_unfinished(self._directory)
        for closed in self._board.closed.values():
            for revision in closed.kept:
                unsealed = closed.id in self._board.unsealed and revision == closed.revision
                if not unsealed and not self.holds(closed, revision):
                    self.missing.add((closed.id, revision))
        self.remove_expired()

    def holds(self, closed: ClosedWindow, revision: int) -> bool:
        """Tell whether the archive of a revision is there, by its header; note its digest."""
        try:
            header = read_archive_header(self._directory, closed.id, revision)
            self._require(header, closed, revision)
        except (RanknodeError, FileNotFoundError):
            return False
        self._digests[closed.id, revision] = header.digest
        return True

    def seal(self, closed: ClosedWindow, window: Window) -> str:
        """Write the newest revision's standings to its archive, durably; returns their digest.

        Complexity: O(members). Errors: OSError.
        """
        columns = window.standings.listing()
        digest = listing_digest(columns, self._board.definition.decimals).hex()
        header = ArchiveHeader(
            incarnation=self._board.identity.incarnation,
            window=closed.id,
            revision=closed.revision,
            sequence=closed.newest.sequence,
            members=closed.newest.members,
            digest=digest,
        )
        write_archive(self._directory, header, columns)
        return digest

    def sealed(self, closed: ClosedWindow, digest: str) -> None:
        """Note that a revision's archive is there; its standings may leave memory."""
        known = self._board.closed.get(closed.id)
        if known is not None and known.revision == closed.revision:
            self._board.unsealed.pop(closed.id, None)
        self.missing.discard((closed.id, closed.revision))
        self._digests[closed.id, closed.revision] = digest

    def read(self, closed: ClosedWindow, revision: int) -> tuple[Window, str]:
        """Read a revision's standings, hidden members among them, and digest from its archive.

        Complexity: O(members). Errors: DamagedError where the archive is not what was sealed,
        OSError.
        """
        header, columns = read_archive(self._directory, closed.id, revision)
        self._require(header, closed, revision)
        rules, sealed = self._board.rules(), closed.revisions[revision - 1]
        try:
            members, standings = from_listing(columns, self._board.identity.hash_key, **rules)
        except ValueError as error:
            raise DamagedError(f"the archive of {closed.id}: {error}") from error
        if standings.digest != (sealed.digest or standings.digest):
            raise DamagedError(f"the archive of {closed.id} holds other standings than were closed")
        bounds = (closed.id, closed.start_us, closed.end_us)
        window = Window(bounds, closed.opened_sequence, members, rules, standings)
        return window, header.digest

    def keep(self, revision: int, window: Window, digest: str) -> None:
        """Keep standings that were read, in place of those asked for least recently."""
        key = (window.id, revision)
        self._digests[key] = digest
        self._read[key] = self._laid_over(window)
        self._read.move_to_end(key)
        while len(self._read) > 1 and self.nbytes > self._bytes_max:
            self._read.popitem(last=False)

    def forget_expired(self) -> None:
        """Drop from memory what belongs to windows or revisions that are no longer kept."""
        kept = self._kept()
        expired = [key for key in self._digests if key not in kept]
        for key in expired:
            del self._digests[key]
            self._read.pop(key, None)
        self.missing &= kept
        self.expired = self.expired or bool(expired)

    def remove_expired(self) -> None:
        """Remove the archives of what is no longer kept, after those being written.

        Called by the thread that seals. Errors: OSError.
        """
        kept = self._kept()
        sources = {(window, revision - 1) for window, revision in self.missing} - kept
        self.expired = bool(sources)  # until what is to be made from them is there
        remove_archives(self._directory, kept | sources)

    def _kept(self) -> set[Key]:
        return {
            (closed.id, revision)
            for closed in list(self._board.closed.values())
            for revision in closed.kept
        }

    @property
    def nbytes(self) -> int:
        """Bytes of the standings that were read and are kept."""
        windows = [served.window for served in self._read.values()]
        return sum(window.members.nbytes + window.nbytes for window in windows)

    def _require(self, header: ArchiveHeader, closed: ClosedWindow, revision: int) -> None:
        """Raise DamagedError unless an archive is of this board and this revision."""
        sealed = closed.revisions[revision - 1]
        identity = (self._board.identity.incarnation, sealed.sequence, sealed.members)
        if (header.incarnation, header.sequence, header.members) != identity:
            raise DamagedError(f"the archive of {closed.id} is of another board or closing")
