"""The closed windows of one board: sealed into archives, and read back when asked for.

Owns the way between a closed window's standings and its archive file, and what of it is kept in
memory: every digest (text of 64 characters), and the standings asked for last, up to a bound of
bytes. `seal`, `read` and `remove_expired` may run in threads; everything else is called where the
board lives.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from actors.board import Board, ClosedWindow
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


class Archives:
    """What is at hand of a board's closed windows; the `Sealed` of its queries.

    missing: the windows whose archive is lost or damaged, to be made again from the log. expired:
    whether there may be archives on disk of windows that are no longer kept.
    """

    def __init__(self, directory: Path, board: Board, bytes_max: int) -> None:
        self.missing: set[str] = set()
        self.expired = False
        self._directory = directory
        self._board = board
        self._bytes_max = bytes_max
        self._digests: dict[str, str] = {}
        self._read: OrderedDict[str, Window] = OrderedDict()

    def standings(self, window: str) -> Window | None:
        """Give a closed window's standings if they are in memory."""
        found = self._board.unsealed.get(window) or self._read.get(window)
        if window in self._read:
            self._read.move_to_end(window)
        return found

    def is_missing(self, window: str) -> bool:
        """Tell whether a closed window's archive must be made again before it can be asked."""
        return window in self.missing

    def digest(self, window: str) -> str | None:
        """Give a closed window's published digest if it is in memory."""
        return self._digests.get(window)

    def survey(self) -> None:
        """Learn which archives are there, without their standings, and remove what is expired.

        Complexity: O(closed windows), a small read each. Errors: OSError.
        """
        remove_unfinished(self._directory)
        self.remove_expired()
        for closed in self._board.closed.values():
            if closed.id not in self._board.unsealed and not self.holds(closed):
                self.missing.add(closed.id)

    def holds(self, closed: ClosedWindow) -> bool:
        """Tell whether the archive of a window is there, by its header; note its digest."""
        try:
            header = read_archive_header(self._directory, closed.id, closed.revision)
            self._require(header, closed)
        except (RanknodeError, FileNotFoundError):
            return False
        self._digests[closed.id] = header.digest
        return True

    def seal(self, closed: ClosedWindow, window: Window) -> str:
        """Write a closed window's standings to its archive, durably; returns their digest.

        Complexity: O(members). Errors: OSError.
        """
        columns = window.standings.listing()
        digest = listing_digest(columns, self._board.definition.decimals).hex()
        header = ArchiveHeader(
            incarnation=self._board.identity.incarnation,
            window=closed.id,
            revision=closed.revision,
            sequence=closed.sequence,
            members=closed.members,
            digest=digest,
        )
        write_archive(self._directory, header, columns)
        return digest

    def sealed(self, window: str, digest: str) -> None:
        """Note that a window's archive is there; its standings may leave memory."""
        self._board.unsealed.pop(window, None)
        self.missing.discard(window)
        self._digests[window] = digest

    def read(self, closed: ClosedWindow) -> tuple[Window, str]:
        """Read a window's standings and digest from its archive.

        Complexity: O(members). Errors: DamagedError where the archive is not what was sealed,
        OSError.
        """
        header, columns = read_archive(self._directory, closed.id, closed.revision)
        self._require(header, closed)
        rules = self._board.rules()
        try:
            members, standings = from_listing(columns, self._board.identity.hash_key, **rules)
        except ValueError as error:
            raise DamagedError(f"the archive of {closed.id}: {error}") from error
        if (len(standings), standings.digest) != (closed.members, closed.digest):
            raise DamagedError(f"the archive of {closed.id} holds other standings than were closed")
        window = Window(closed.id, closed.kind, closed.start_us, closed.end_us, members, standings)
        return window, header.digest

    def keep(self, window: Window, digest: str) -> None:
        """Keep standings that were read, in place of those asked for least recently."""
        self._digests[window.id] = digest
        self._read[window.id] = window
        self._read.move_to_end(window.id)
        while len(self._read) > 1 and self.nbytes > self._bytes_max:
            self._read.popitem(last=False)

    def forget_expired(self) -> None:
        """Drop from memory what belongs to windows that are no longer kept."""
        closed = self._board.closed
        expired = [window for window in self._digests if window not in closed]
        for window in expired:
            del self._digests[window]
            self._read.pop(window, None)
        self.missing &= closed.keys()
        self.expired = self.expired or bool(expired)

    def remove_expired(self) -> None:
        """Remove the archives of windows that are no longer kept, after those being written.

        Called by the thread that seals. Errors: OSError.
        """
        self.expired = False
        kept = {(closed.id, closed.revision) for closed in list(self._board.closed.values())}
        remove_archives(self._directory, kept)

    @property
    def nbytes(self) -> int:
        """Bytes of the standings that were read and are kept."""
        return sum(w.members.nbytes + w.standings.nbytes for w in self._read.values())

    def _require(self, header: ArchiveHeader, closed: ClosedWindow) -> None:
        """Raise DamagedError unless an archive is of this board and this closing."""
        identity = (self._board.identity.incarnation, closed.sequence, closed.members)
        if (header.incarnation, header.sequence, header.members) != identity:
            raise DamagedError(f"the archive of {closed.id} is of another board or closing")
