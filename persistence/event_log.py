"""The event log on disk: a row of LMDB segments, and a head file beside them.

Owns the directory `log/`: segments `00000001/`, `00000002/`, … and `head`. Records are appended to
the last segment; one that is full is sealed and the next begins. Invariants: every commit is one
synced transaction that first checks the owner's epoch; a segment appears under its name only when
it is whole; a log that ends before its head is refused. What a crash can leave behind (a segment
still under construction, a full one without its seal or its successor) is put right by the next
owner. The contract is `EventLog`; `MemoryEventLog` is its twin for tests.
"""

from __future__ import annotations

import re
import shutil
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from persistence.chained_log import ChainedLog, EventLog, LogOptions, LogStats, decode_at
from persistence.errors import DamagedError, StorageFullError
from persistence.files import free_bytes, make_directory, sync_directory
from persistence.head import Head, HeadFile, read_head
from persistence.memory_log import Fault, MemoryEventLog
from persistence.pages import require_pages
from persistence.records import EMPTY_HASH, previous_hash, record_hash
from persistence.sealing import make_seal, open_checked
from persistence.segments import (
    COMMIT_PAGES,
    DATA,
    NODE_PAGES,
    Seal,
    Segment,
    read_seal,
    write_seal,
)

__all__ = ["EventLog", "Fault", "LmdbEventLog", "LogOptions", "LogStats", "MemoryEventLog"]

HEAD = "head"
CLAIM_BYTES_MIN = 1 << 20  # storing an epoch takes a few pages; less is no room at all
SEALED_OPEN_MAX = 4  # sealed segments mapped at once; a fifth closes the least recently used

_NAME = re.compile(r"[0-9]{8}")
_BUILDING_SUFFIX = ".new"


class _Place(NamedTuple):
    """A segment's place in the log; `seal` is None for the live one, the last."""

    first_sequence: int
    number: int
    seal: Seal | None


class LmdbEventLog(ChainedLog):
    """An EventLog in LMDB.

    directory: the log's own. epoch: that of the caller's ownership, higher than of any owner
    before; None opens the log read-only, beside its writer or without one, as it is at that
    moment, and changes nothing. create: whether its first segment is made where it has none; a
    log that is missing is damage to everyone but who makes its board. strict: whether a log that
    lost its end, or whose chain of hashes breaks, is refused; only the verifier, who reports it,
    does without.

    claimed: whether this process may write. An owner that found the disk full may not, since it
    could not store its epoch: the log can be read, every append raises StorageFullError, and once
    there is room the log must be opened again.

    Opening raises DamagedError, FencedError, FormatTooNewError, OSError.
    """

    def __init__(
        self,
        directory: Path,
        options: LogOptions | None = None,
        epoch: int | None = None,
        *,
        create: bool = False,
        strict: bool = True,
    ) -> None:
        super().__init__(options or LogOptions())
        self.directory = directory
        self._strict = strict
        self._epoch = epoch
        self._segments_lock = threading.Lock()  # no environment is closed while one is read
        self._sealed_open: OrderedDict[int, Segment] = OrderedDict()
        self._sealed_checked: set[int] = set()
        self._sealed_damaged: dict[int, str] = {}  # what walking one found; it takes long
        self._followed: tuple[int, bytes] | None = None  # where the live segment was walked to
        self._head_file: HeadFile | None = None
        self.claimed = False
        self._live: Segment
        self._places: list[_Place] = []
        # A reader looks at the head first: its writer may go on between the two.
        head = read_head(directory / HEAD) if strict else None
        if epoch is None:
            self._open_as_reader(head)
        else:
            self._open_as_owner(epoch, head, create)

    @classmethod
    def open_readonly(
        cls, directory: Path, options: LogOptions | None = None, *, strict: bool = True
    ) -> LmdbEventLog:
        """Open the log as it is now, for reading only; its writer may be at work."""
        return cls(directory, options, strict=strict)

    def close(self) -> None:
        """Close the log; everything appended is durable already."""
        with self._segments_lock:
            for segment in (*self._sealed_open.values(), self._live):
                segment.close()
            self._sealed_open.clear()
            if self._head_file is not None:
                self._head_file.close()
                self._head_file = None

    @property
    def first_sequence(self) -> int:
        """Return the first sequence that is kept, or would be next in an empty log."""
        return self._places[0].first_sequence

    @property
    def stats(self) -> LogStats:
        """Return what the log occupies."""
        pages = self._live.pages + sum(place.seal.pages for place in self._places if place.seal)
        return LogStats(
            segments=len(self._places), bytes=pages * self._live.page_bytes, commits=self._commits
        )

    @property
    def epoch(self) -> int:
        """Return the epoch of the log's owner, as it is on disk. Errors: DamagedError."""
        return self._live.epoch

    @property
    def segments(self) -> list[tuple[Path, Seal | None]]:
        """Return the directory and the seal of each segment; the last, live one has none."""
        return [(self._path(place.number), place.seal) for place in self._places]

    def check_room(self, bytes_needed: int) -> None:
        """Raise StorageFullError unless an append of `bytes_needed` has room."""
        if self._epoch is not None and not self.claimed:
            raise StorageFullError("there was no room to write when the log was opened")
        free = free_bytes(self.directory) - self.options.reserved_free_bytes
        if bytes_needed + COMMIT_PAGES * self._live.page_bytes > free:
            raise StorageFullError(f"{bytes_needed} bytes for {max(free, 0)} that may be used")

    @property
    def claimable(self) -> bool:
        """Whether the disk has room to become the log's writer, and to write then."""
        claim_bytes = COMMIT_PAGES * self._live.page_bytes
        return free_bytes(self.directory) > self.options.reserved_free_bytes + claim_bytes

    def require_head(self, head: Head) -> None:
        """Raise DamagedError unless the log holds what the head remembers."""
        if head.last_sequence > self.last_sequence:
            raise DamagedError(
                f"{self.directory}: the log ends at sequence {self.last_sequence}, but"
                f" {head.last_sequence} was committed; the last commits are lost"
            )
        try:
            found = self.hash_at(head.last_sequence)
        except ValueError:
            found = b""
        if found != head.last_hash:
            raise DamagedError(
                f"{self.directory}: at sequence {head.last_sequence} the log holds another record"
                " than was committed"
            )

    # Writing

    def _store(self, items: Sequence[tuple[int, bytes]], end: tuple[int, bytes]) -> None:
        if self._epoch is None or self._head_file is None:
            raise AssertionError("the log was opened for reading")
        page_bytes = self._live.page_bytes
        pages = COMMIT_PAGES + sum(len(data) // page_bytes + NODE_PAGES for _, data in items)
        if pages > self.options.segment_bytes_max // page_bytes:
            raise StorageFullError(f"no segment has room for {pages} pages in one commit")
        if self._is_full(pages):
            self._begin_segment(self._epoch)
        self._live.put(items, self._epoch)
        self._head_file.advance(*end)

    def _is_full(self, pages_needed: int) -> bool:
        events = self.last_sequence - self._places[-1].first_sequence + 1
        used, available = self._live.pages, self._live.map_pages
        return events > 0 and (
            events >= self.options.segment_events_max
            or used >= available * 3 // 4
            or used + pages_needed > available
        )

    def _begin_segment(self, epoch: int) -> None:
        """Seal the live segment and go on in the next, under the lock of the former's writer."""
        place = self._places[-1]
        with self._live.fenced(epoch):
            seal = make_seal(self._live)
            write_seal(self._live.directory, seal)
            self._create_segment(place.number + 1, epoch)
        successor = Segment.open_live(
            self._path(place.number + 1), self.options.segment_bytes_max, writable=True
        )
        with self._segments_lock:
            self._live.close()
            self._live = successor
            self._places = [
                *self._places[:-1],
                place._replace(seal=seal),
                _Place(seal.last_sequence + 1, place.number + 1, None),
            ]

    def _create_segment(self, number: int, epoch: int) -> None:
        """Make an empty segment appear under its name, whole."""
        path = self._path(number)
        building = path.with_name(path.name + _BUILDING_SUFFIX)
        building.mkdir()
        Segment.create(building, self.options.segment_bytes_max, epoch)
        sync_directory(building)
        building.rename(path)
        sync_directory(self.directory)

    # Opening

    def _open_as_reader(self, head: Head | None) -> None:
        numbers = self._numbers()
        if not numbers:
            raise DamagedError(f"{self.directory}: holds no log")
        self._live = Segment.open_live(self._path(numbers[-1]), 0, writable=False)
        try:
            self._look_around(head)
        except BaseException:
            self.close()
            raise

    def _open_as_owner(self, epoch: int, head: Head | None, create: bool) -> None:
        """Become the writer, finishing what a crash left behind."""
        if not create and not self._numbers():
            raise DamagedError(f"{self.directory}: holds no log")
        make_directory(self.directory)
        for debris in self.directory.glob(f"*{_BUILDING_SUFFIX}"):
            shutil.rmtree(debris)
        if not self._numbers():
            if head is not None and head.last_sequence:
                raise DamagedError(f"{self.directory}: every segment is missing")
            self._create_segment(1, 0)
        # A former owner may have been killed between making a segment and its name durable. What
        # is written to it from here on must not vanish with that name.
        sync_directory(self.directory)
        while not self._claim(epoch, head):
            self._live.close()

    def _claim(self, epoch: int, head: Head | None) -> bool:
        """Raise the epoch of the last segment; tell whether it is the one to write to."""
        number = self._numbers()[-1]
        self._followed = None
        self._live = Segment.open_live(
            self._path(number), self.options.segment_bytes_max, writable=True
        )
        try:
            # The epoch's commit reuses the older meta page, which may be all that is left of a
            # damaged log. So nothing is written before the log is found to be whole.
            self._look_around(head)
            if free_bytes(self.directory) < CLAIM_BYTES_MIN:
                return True
            former_epoch = self._live.raise_epoch(epoch)
            if read_seal(self._live.directory) is not None:
                # Sealed without a successor, or by a writer that was faster than we were. Now
                # that its epoch is raised, no one else can go on from here.
                if self._numbers()[-1] == number:
                    self._create_segment(number + 1, former_epoch)
                return False
            self._look_around(head)  # at what a former writer may have added since
            self._head_file = HeadFile(self.directory / HEAD, *self._end)
            self.claimed = True
        except BaseException:
            self.close()
            raise
        return True

    def _look_around(self, head: Head | None) -> None:
        """Find where the log begins and ends; raise DamagedError unless it is whole."""
        self._places = self._survey()
        self._end = self._find_end()
        if self._strict:
            start = self._places[-1].first_sequence - 1, self._chain_before_live()
            self._followed = self._live.require_chain(self._followed or start, self.last_sequence)
            if self._followed != self._end:
                raise DamagedError(f"{self._live.directory / DATA}: does not reach its own end")
        if head is not None:
            self.require_head(head)

    def _survey(self) -> list[_Place]:
        """Find the segments and that each follows the one before, by their seals."""
        live_number = int(self._live.directory.name)
        numbers = [number for number in self._numbers() if number <= live_number]
        if numbers != list(range(1, live_number + 1)):
            raise DamagedError(f"{self.directory}: segments are missing, there are {numbers}")
        places = []
        next_sequence, chain = 1, EMPTY_HASH
        for number in numbers[:-1]:
            seal = read_seal(self._path(number)) or self._seal_again(number)
            if (seal.first_sequence, seal.first_previous_hash) != (next_sequence, chain):
                raise DamagedError(f"{self._path(number)}: does not follow the segment before")
            require_pages(self._path(number) / DATA, seal.pages)
            places.append(_Place(next_sequence, number, seal))
            next_sequence, chain = seal.last_sequence + 1, seal.last_hash
        ends = self._live.ends()
        if ends and (ends[0][0], previous_hash(ends[0][1])) != (next_sequence, chain):
            raise DamagedError(f"{self._live.directory}: does not follow the segment before")
        return [*places, _Place(next_sequence, live_number, None)]

    def _seal_again(self, number: int) -> Seal:
        """Make the seal of a segment that has a successor, but whose own seal was lost."""
        segment = Segment.open_sealed(self._path(number), checked=False)
        try:
            seal = make_seal(segment)
        finally:
            segment.close()
        if self._epoch is not None:
            write_seal(self._path(number), seal)
        return seal

    def _find_end(self) -> tuple[int, bytes]:
        ends = self._live.ends()
        if ends:
            first_sequence, data = ends[1]
            file = self._live.directory / DATA
            return decode_at(first_sequence, data, file).last_sequence, record_hash(data)
        return self._places[-1].first_sequence - 1, self._chain_before_live()

    def _chain_before_live(self) -> bytes:
        seal = self._places[-2].seal if len(self._places) > 1 else None
        return seal.last_hash if seal else EMPTY_HASH

    # Reading

    def _locate(self, sequence: int) -> int:
        with self._segments_lock:
            found = self._segment_at(self._index(sequence)).locate(sequence)
        if found is None:
            raise DamagedError(f"{self._file_of(sequence)}: no record holds sequence {sequence}")
        return found

    def _fetch(self, first_sequence: int) -> bytes:
        with self._segments_lock:
            data = self._segment_at(self._index(first_sequence)).fetch(first_sequence)
        if data is None:
            raise DamagedError(
                f"{self._file_of(first_sequence)}: no record begins at {first_sequence}"
            )
        return data

    def _scan(self, from_sequence: int) -> Iterator[tuple[int, bytes]]:
        index = self._index(from_sequence)
        while index < len(self._places):
            yield from self._scan_place(index, from_sequence)
            index += 1

    def scan_segment(self, index: int) -> Iterator[tuple[int, bytes]]:
        """Yield first sequence and bytes of the records of one segment, as they are on disk.

        index: into `segments`. Only up to the log's last sequence, unverified.
        """
        for first_sequence, data in self._scan_place(index, 0):
            if first_sequence > self.last_sequence:
                return
            yield first_sequence, data

    def _scan_place(self, index: int, from_sequence: int) -> Iterator[tuple[int, bytes]]:
        """Yield what one segment holds; it is read a chunk at a time, so that others may go on."""
        while True:
            with self._segments_lock:
                chunk = self._segment_at(index).chunk(from_sequence)
            if not chunk:
                return
            yield from chunk
            from_sequence = chunk[-1][0] + 1

    def _index(self, sequence: int) -> int:
        return bisect_right(self._places, sequence, key=lambda place: place.first_sequence) - 1

    def _segment_at(self, index: int) -> Segment:
        """Return the open segment at `index`; the caller holds `_segments_lock`."""
        place = self._places[index]
        if place.seal is None:
            return self._live
        segment = self._sealed_open.get(place.number)
        if segment is None:
            checked = place.number in self._sealed_checked
            if self._strict and not checked:
                segment = self._open_checked(place.number, place.seal)
            else:
                segment = Segment.open_sealed(self._path(place.number), checked=checked)
            self._sealed_checked.add(place.number)
            self._sealed_open[place.number] = segment
            if len(self._sealed_open) > SEALED_OPEN_MAX:
                self._sealed_open.popitem(last=False)[1].close()
        self._sealed_open.move_to_end(place.number)
        return segment

    def _open_checked(self, number: int, seal: Seal) -> Segment:
        """Open a sealed segment that is walked first, once: what was found damaged stays so."""
        damage = self._sealed_damaged.get(number)
        if damage is not None:
            raise DamagedError(damage)
        try:
            return open_checked(self._path(number), seal)
        except DamagedError as error:
            self._sealed_damaged[number] = str(error)
            raise

    def _numbers(self) -> list[int]:
        if not self.directory.is_dir():
            return []
        names = (path.name for path in self.directory.iterdir())
        return sorted(int(name) for name in names if _NAME.fullmatch(name))

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:08d}"

    def _file_of(self, sequence: int) -> str:
        return str(self._path(self._places[self._index(sequence)].number) / DATA)
