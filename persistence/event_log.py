"""The event log on disk: a row of LMDB segments, and a head file beside them.

Owns the directory `log/`: segments `00000001/`, `00000002/`, … and `head`. Records are appended to
the last segment; one that is full is sealed and the next begins. Invariants: every commit is one
synced transaction that first checks the owner's epoch; a segment appears under its name only when
it is whole; a log that ends before its head is refused. What a crash can leave behind (a segment
still under construction, a full one without its seal or its successor) is put right by the next
owner. The contract is `EventLog`; `MemoryEventLog` is its twin for tests.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from persistence.chained_log import ChainedLog, EventLog, LogOptions, LogStats
from persistence.errors import CommitFailedError, DamagedError, StorageFullError
from persistence.files import exchange, free_bytes, make_directory, sync_directory
from persistence.head import Head, HeadFile, read_head
from persistence.log_places import LogPlaces, segment_numbers, segment_path
from persistence.memory_log import Fault, MemoryEventLog
from persistence.records import Event
from persistence.sealed_segments import SealedSegments
from persistence.sealing import make_seal
from persistence.segments import (
    COMMIT_PAGES,
    DATA,
    NODE_PAGES,
    Seal,
    Segment,
    link_files,
    read_seal,
    write_seal,
)

__all__ = ["EventLog", "Fault", "LmdbEventLog", "LogOptions", "LogStats", "MemoryEventLog"]

HEAD = "head"
CLAIM_BYTES_MIN = 1 << 20  # storing an epoch takes a few pages; less is no room at all

_BUILDING_SUFFIX = ".new"


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
        self._sealed = SealedSegments(strict=strict)
        self._followed: tuple[int, bytes] | None = None  # where the live segment was walked to
        self._head_file: HeadFile | None = None
        self.claimed = False
        self._live: Segment
        self._places: LogPlaces
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
            self._sealed.close()
            self._live.close()
            if self._head_file is not None:
                self._head_file.close()
                self._head_file = None

    @property
    def first_sequence(self) -> int:
        """Return the first sequence that is kept, or would be next in an empty log."""
        return self._places.each[0].first_sequence

    @property
    def last_hash(self) -> bytes:
        """Return the hash of the last record as it is now: it vouches for the whole log."""
        return self._places.whole_hash(*self._end)

    @property
    def end(self) -> tuple[int, bytes]:
        """Return the last sequence and the hash that the next record follows."""
        return self._end

    def hash_at(self, sequence: int) -> bytes:
        """Return the hash of the record that ends with `sequence`; ValueError if none does."""
        return self._places.whole_hash(sequence, self._chain_at(sequence))

    @property
    def stats(self) -> LogStats:
        """Return what the log occupies."""
        sealed = sum(place.seal.pages for place in self._places.each if place.seal)
        pages = self._live.pages + sealed
        return LogStats(
            segments=len(self._places.each),
            bytes=pages * self._live.page_bytes,
            commits=self._commits,
        )

    @property
    def epoch(self) -> int:
        """Return the epoch of the log's owner, as it is on disk. Errors: DamagedError."""
        return self._live.epoch

    @property
    def segments(self) -> list[tuple[Path, Seal | None]]:
        """Return the directory and the seal of each segment; the last, live one has none."""
        places = self._places
        return [(places.path(index), place.seal) for index, place in enumerate(places.each)]

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
            found = self._chain_at(head.last_sequence)
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
        events = self.last_sequence - self._places.live.first_sequence + 1
        used, available = self._live.pages, self._live.map_pages
        return events > 0 and (
            events >= self.options.segment_events_max
            or used >= available * 3 // 4
            or used + pages_needed > available
        )

    def _begin_segment(self, epoch: int) -> None:
        """Seal the live segment and go on in the next, under the lock of the former's writer."""
        number = self._places.live.number + 1
        with self._live.fenced(epoch):
            seal = make_seal(self._live)
            write_seal(self._live.directory, seal)
            self._create_segment(number, epoch)
        successor = Segment.open_live(
            segment_path(self.directory, number), self.options.segment_bytes_max, writable=True
        )
        with self._segments_lock:
            self._live.close()
            self._live = successor
            self._places = self._places.begun(seal)

    def seal_live(self) -> None:
        """Seal the live segment, unless it is empty, and go on in the next.

        Raises as `append` does.
        """
        if self._failed:
            raise CommitFailedError("an earlier commit failed; the log must be opened again")
        if self._epoch is None:
            raise AssertionError("the log was opened for reading")
        self.check_room(0)
        if self._places.live.first_sequence > self.last_sequence:
            return
        try:
            self._begin_segment(self._epoch)
        except (CommitFailedError, OSError) as error:
            self._failed = True
            raise CommitFailedError(f"sealing at {self._end[0]}: {error}") from error

    def put_in_place(self, built: Path) -> None:
        """Exchange the log's directory with another, in one step; the former is at `built` then.

        built: holds segments that take the place of the first ones of the log, each with the same
        sequences and the same end, as their seals say. The others are linked. For the thread that
        appends; reads wait. Raises FencedError, DamagedError, OSError: nothing was changed then;
        CommitFailedError: which of the two a power cut would leave is unknown.
        """
        if self._epoch is None:
            raise AssertionError("the log was opened for reading")
        with self._live.fenced(self._epoch), self._segments_lock:
            for place in self._places.each:
                path = segment_path(built, place.number)
                if path.exists():
                    seal = read_seal(path)
                    if seal is None or place.seal is None or seal.end != place.seal.end:
                        raise DamagedError(f"{path}: does not end as what it replaces")
                else:
                    link_files(segment_path(self.directory, place.number), path)
            os.link(self.directory / HEAD, built / HEAD)
            sync_directory(built)
            exchange(built, self.directory)
            self._sealed.forget()
            try:
                sync_directory(self.directory.parent)
                self._places = LogPlaces.survey(self.directory, self._live, seals=True)
            except (DamagedError, OSError) as error:
                self._failed = True
                raise CommitFailedError(f"{self.directory}: {error}") from error
        self._forget_cached()

    def _create_segment(self, number: int, epoch: int) -> None:
        """Make an empty segment appear under its name, whole."""
        path = segment_path(self.directory, number)
        building = path.with_name(path.name + _BUILDING_SUFFIX)
        building.mkdir()
        Segment.create(building, self.options.segment_bytes_max, epoch)
        sync_directory(building)
        building.rename(path)
        sync_directory(self.directory)

    # Opening

    def _open_as_reader(self, head: Head | None) -> None:
        numbers = segment_numbers(self.directory)
        if not numbers:
            raise DamagedError(f"{self.directory}: holds no log")
        path = segment_path(self.directory, numbers[-1])
        self._live = Segment.open_live(path, 0, writable=False)
        try:
            self._look_around(head)
        except BaseException:
            self.close()
            raise

    def _open_as_owner(self, epoch: int, head: Head | None, create: bool) -> None:
        """Become the writer, finishing what a crash left behind."""
        if not create and not segment_numbers(self.directory):
            raise DamagedError(f"{self.directory}: holds no log")
        make_directory(self.directory)
        for debris in self.directory.glob(f"*{_BUILDING_SUFFIX}"):
            shutil.rmtree(debris)
        if not segment_numbers(self.directory):
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
        number = segment_numbers(self.directory)[-1]
        self._followed = None
        self._live = Segment.open_live(
            segment_path(self.directory, number), self.options.segment_bytes_max, writable=True
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
                if segment_numbers(self.directory)[-1] == number:
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
        seals = self._epoch is not None
        self._places = LogPlaces.survey(self.directory, self._live, seals=seals)
        self._end = self._places.end(self._live)
        if self._strict:
            start = self._places.before_live
            self._followed = self._live.require_chain(self._followed or start, self.last_sequence)
            if self._followed != self._end:
                raise DamagedError(f"{self._live.directory / DATA}: does not reach its own end")
        if head is not None:
            self.require_head(head)

    def _hash_behind(self, sequence: int, last_hash: bytes) -> bytes:
        return self._places.hash_behind(sequence, last_hash)

    # Reading

    def _locate(self, sequence: int) -> int:
        with self._segments_lock:
            found = self._segment_at(self._places.index(sequence)).locate(sequence)
        if found is None:
            raise DamagedError(f"{self._file_of(sequence)}: no record holds sequence {sequence}")
        return found

    def _fetch(self, first_sequence: int) -> bytes:
        with self._segments_lock:
            data = self._segment_at(self._places.index(first_sequence)).fetch(first_sequence)
        if data is None:
            raise DamagedError(
                f"{self._file_of(first_sequence)}: no record begins at {first_sequence}"
            )
        return data

    def _peek_at(self, sequence: int) -> Event | None:
        with self._segments_lock:
            return self._segment_at(self._places.index(sequence)).peek(sequence)

    def _scan(self, from_sequence: int) -> Iterator[tuple[int, bytes]]:
        index = self._places.index(from_sequence)
        while index < len(self._places.each):
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

    def followed_hash(self, index: int) -> bytes:
        """Return what a segment itself remembers of the hash that the next one goes on from.

        index: into `segments`. Errors: DamagedError.
        """
        with self._segments_lock:
            return self._segment_at(index).followed_hash

    def _scan_place(self, index: int, from_sequence: int) -> Iterator[tuple[int, bytes]]:
        """Yield what one segment holds; it is read a chunk at a time, so that others may go on."""
        while True:
            with self._segments_lock:
                chunk = self._segment_at(index).chunk(from_sequence)
            if not chunk:
                return
            yield from chunk
            from_sequence = chunk[-1][0] + 1

    def check_sealed(self) -> None:
        """Walk the sealed segments that nobody has read yet, so that whoever does need not wait.

        For a background thread; ends when the log is closed. Damage is noted for whoever meets it.
        """
        for index in range(len(self._places.each) - 1):
            with self._segments_lock:
                if self._head_file is None:
                    return
                with suppress(DamagedError):
                    self._segment_at(index)

    def _segment_at(self, index: int) -> Segment:
        """Return the open segment at `index`; the caller holds `_segments_lock`."""
        seal = self._places.each[index].seal
        if seal is None:
            return self._live
        return self._sealed.get(self._places.path(index), seal)

    def _file_of(self, sequence: int) -> str:
        return str(self._places.path(self._places.index(sequence)) / DATA)
