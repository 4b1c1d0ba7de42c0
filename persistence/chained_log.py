"""The log's contract, and the half of it that does not depend on where the bytes lie.

Owns the order of records: sequences without gaps, each hash over its predecessor's, one commit per
append, none after a failed one; and the cache of decoded records. Knows no file.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, Protocol

import msgspec

from persistence.errors import CommitFailedError, DamagedError, FormatTooNewError
from persistence.records import (
    EMPTY_HASH,
    Event,
    EventsRecord,
    Record,
    decode,
    encode,
    link_of,
    peek,
    previous_hash,
    record_hash,
)


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a log.

    segment_events_max: a segment that holds as many is sealed before the next commit.
    segment_bytes_max: the size of a segment's memory map; it is sealed when 3/4 are used.
    reserved_free_bytes: what a write leaves free on the disk, so that the rest of the node lives.
    record_cache_bytes_max: decoded records kept for look-ups of single events.
    """

    segment_events_max: int = 1_000_000
    segment_bytes_max: int = 1 << 30
    reserved_free_bytes: int = 64 << 20
    record_cache_bytes_max: int = 32 << 20


class LogStats(msgspec.Struct, frozen=True):
    """What a log occupies, and how many commits it made since it was opened."""

    segments: int
    bytes: int
    commits: int


class EventLog(Protocol):
    """An append-only row of records that take the sequences 1, 2, 3, … without gaps.

    One thread appends; any thread reads. A record is visible to readers once it is durable.
    """

    @property
    def first_sequence(self) -> int:
        """Return the first sequence that is kept, or would be next in an empty log."""

    @property
    def last_sequence(self) -> int:
        """Return the last sequence, 0 when the log is empty."""

    @property
    def last_hash(self) -> bytes:
        """Return the hash of the last record: it vouches for the whole log."""

    @property
    def stats(self) -> LogStats:
        """Return what the log occupies."""

    def append(self, records: Sequence[Record]) -> int:
        """Commit records, all or none, that continue the sequence; return the bytes written.

        They are durable when it returns. Raises StorageFullError before anything is written;
        FencedError when another owner has taken over; CommitFailedError when the commit itself
        failed, and from then on at every call: what is on disk is unknown until it is opened
        again. Records out of sequence are an AssertionError.
        """

    def check_room(self, bytes_needed: int) -> None:
        """Raise StorageFullError unless an append of `bytes_needed` has room."""

    def read(self, after_sequence: int = 0) -> Iterator[Record]:
        """Yield the records after `after_sequence`, up to the last one there is at the call.

        Each is verified, and to follow the one before. Raises ValueError when `after_sequence`
        is not where a record ends, DamagedError when a record is not what was written.
        """

    def record_at(self, sequence: int) -> Record:
        """Return the record that holds `sequence`; LookupError if none does."""

    def event(self, sequence: int) -> Event:
        """Return the event that has `sequence`; LookupError if no event has."""

    def hash_at(self, sequence: int) -> bytes:
        """Return the hash of the record that ends with `sequence`; ValueError if none does.

        It vouches for the log up to there. Where that was written again, it is not the hash that
        the next record follows: a state of what was there before is not one of what is there now.
        """

    def close(self) -> None:
        """Close the log; everything appended is durable already."""


class ChainedLog(ABC):
    """What every form of the log shares; a form stores and finds bytes by first sequence."""

    def __init__(self, options: LogOptions) -> None:
        self.options = options
        self._end = (0, EMPTY_HASH)  # sequence and hash, replaced together
        self._commits = 0
        self._failed = False
        self._cache_lock = threading.Lock()
        self._cache: OrderedDict[int, tuple[Record, int]] = OrderedDict()
        self._cache_bytes = 0
        self._damaged: dict[int, str] = {}  # by first sequence, as found: never verified again

    @property
    def last_sequence(self) -> int:
        """Return the last sequence, 0 when the log is empty."""
        return self._end[0]

    @property
    def last_hash(self) -> bytes:
        """Return the hash of the last record: it vouches for the whole log."""
        return self._end[1]

    @property
    @abstractmethod
    def first_sequence(self) -> int:
        """Return the first sequence that is kept, or would be next in an empty log."""

    @abstractmethod
    def check_room(self, bytes_needed: int) -> None:
        """Raise StorageFullError unless an append of `bytes_needed` has room."""

    @abstractmethod
    def _store(self, items: Sequence[tuple[int, bytes]], end: tuple[int, bytes]) -> None:
        """Commit encoded records; `end` is the log's last sequence and hash with them."""

    @abstractmethod
    def _file_of(self, sequence: int) -> str:
        """Name the file that holds `sequence`, for whoever reads an error."""

    @abstractmethod
    def _locate(self, sequence: int) -> int:
        """Return the first sequence of the record that holds `sequence`, which is in the log."""

    @abstractmethod
    def _fetch(self, first_sequence: int) -> bytes:
        """Return the bytes of the record that begins there; DamagedError if none does."""

    @abstractmethod
    def _scan(self, from_sequence: int) -> Iterator[tuple[int, bytes]]:
        """Yield the records from the one that begins there on, in order."""

    def append(self, records: Sequence[Record]) -> int:
        """Commit records, all or none, that continue the sequence; return the bytes written."""
        sequence, chain = self._end
        items = []
        for record in records:
            if record.first_sequence != sequence + 1:
                raise AssertionError(f"{record.first_sequence} does not follow {sequence}")
            data = encode(record, chain)
            items.append((record.first_sequence, data))
            sequence, chain = record.last_sequence, record_hash(data)
        return self._commit(items, (sequence, chain))

    def append_copies(self, copies: Sequence[bytes]) -> int:
        """Commit records as another log holds them, byte for byte, that continue this one.

        As `append` otherwise. Whoever copies has verified them.
        """
        sequence, chain = self._end
        items = []
        for data in copies:
            link = link_of(data)
            if (link.first_sequence, link.previous_hash) != (sequence + 1, chain):
                raise AssertionError(f"{link.first_sequence} does not follow {sequence}")
            items.append((link.first_sequence, data))
            sequence, chain = link.last_sequence, link.hash
        return self._commit(items, (sequence, chain))

    def _commit(self, items: Sequence[tuple[int, bytes]], end: tuple[int, bytes]) -> int:
        if self._failed:
            raise CommitFailedError("an earlier commit failed; the log must be opened again")
        if not items:
            return 0
        bytes_written = sum(len(data) for _, data in items)
        self.check_room(bytes_written)
        try:
            self._store(items, end)
        except (CommitFailedError, OSError) as error:
            self._failed = True
            raise CommitFailedError(f"the commit after sequence {self._end[0]}: {error}") from error
        self._end = end
        self._commits += 1
        return bytes_written

    def read(self, after_sequence: int = 0) -> Iterator[Record]:
        """Yield the records after `after_sequence`, up to the last one there is at the call."""
        last_sequence = self.last_sequence
        chain = self._chain_at(after_sequence) if after_sequence < last_sequence else None
        if after_sequence > last_sequence:
            raise ValueError(f"sequence {after_sequence} is after the log's end, {last_sequence}")
        return self._read(after_sequence, last_sequence, chain)

    def _read(self, sequence: int, last_sequence: int, chain: bytes | None) -> Iterator[Record]:
        if sequence == last_sequence:
            return
        for first_sequence, data in self._scan(sequence + 1):
            record = self._decoded(first_sequence, data)
            if first_sequence != sequence + 1 or previous_hash(data) != chain:
                raise DamagedError(
                    f"{self._file_of(first_sequence)}: the record at sequence {first_sequence}"
                    f" does not follow that of {sequence}"
                )
            yield record
            sequence = record.last_sequence
            chain = self._hash_behind(sequence, record_hash(data))
            if sequence >= last_sequence:
                return
        raise DamagedError(
            f"{self._file_of(sequence)}: the records after sequence {sequence} are missing"
        )

    def _hash_behind(self, _sequence: int, last_hash: bytes) -> bytes:
        """Return the hash that is followed by what comes behind a record that ends there."""
        return last_hash

    def hash_at(self, sequence: int) -> bytes:
        """Return the hash of the record that ends with `sequence`; ValueError if none does."""
        return self._chain_at(sequence)

    def _chain_at(self, sequence: int) -> bytes:
        """Return the hash that is followed behind `sequence`; ValueError if no record ends there.

        The last hash before the first sequence kept is known from the record after it.
        """
        last_sequence, last_hash = self._end
        if sequence == last_sequence:
            return last_hash
        if not self.first_sequence - 1 <= sequence < last_sequence:
            raise ValueError(f"sequence {sequence} is not in the log")
        if self._locate(sequence + 1) != sequence + 1:
            raise ValueError(f"sequence {sequence} is inside a record")
        data = self._fetch(sequence + 1)
        self._decoded(sequence + 1, data)
        return previous_hash(data)

    def event(self, sequence: int) -> Event:
        """Return the event that has `sequence`; LookupError if no event has."""
        record = self.record_at(sequence)
        if isinstance(record, EventsRecord):
            return record.row(sequence - record.first_sequence)
        raise LookupError(f"sequence {sequence} is not an event")

    def events_of(
        self, names: Collection[bytes], head: int, limit: int | None = None
    ) -> Iterator[Event]:
        """Yield a member's events, the newest first, from that with sequence `head` on.

        names: what the member may be called in them.

        With a limit at most so many, without checking their records' hashes: each lies in a record
        of its own, all of whose bytes the hash covers. Complexity: O(log n) an event then, else
        O(bytes of its record). Raises DamagedError where the chain leads to another member, or not
        to earlier events.
        """
        sequence, yielded = head, 0
        while sequence and (limit is None or yielded < limit):
            event = self._chained(sequence) if limit is None else self._peek(sequence)
            if event.member not in names or not event.previous_sequence < sequence:
                raise DamagedError(f"sequence {sequence} is not an event of {names!r}")
            yield event
            sequence, yielded = event.previous_sequence, yielded + 1

    def _chained(self, sequence: int) -> Event:
        try:
            return self.event(sequence)
        except LookupError as error:
            raise DamagedError(str(error)) from error

    def _peek(self, sequence: int) -> Event:
        if not self.first_sequence <= sequence <= self.last_sequence:
            raise DamagedError(f"sequence {sequence} is not in the log")
        event = self._peek_at(sequence)
        if event is None:
            raise DamagedError(f"sequence {sequence} is not an event")
        return event

    def _peek_at(self, sequence: int) -> Event | None:
        """Peek at the record that holds `sequence`; a form may do without a copy of its bytes."""
        return peek(self._fetch(self._locate(sequence)), sequence)

    def record_at(self, sequence: int) -> Record:
        """Return the record that holds `sequence`; LookupError if none does.

        Complexity: O(log n) while it is cached, else O(bytes of the record), to verify it.
        """
        if not self.first_sequence <= sequence <= self.last_sequence:
            raise LookupError(f"sequence {sequence} is not in the log")
        with self._cache_lock:
            first_sequence = self._locate(sequence)
            cached = self._cache.get(first_sequence)
            if cached is None:
                data = self._fetch(first_sequence)
                cached = (self._decoded_once(first_sequence, data), len(data))
                self._cache[first_sequence] = cached
                self._cache_bytes += len(data)
            self._cache.move_to_end(first_sequence)
            # The newest stays, however large: a batch asks for each of its events in turn.
            while self._cache_bytes > self.options.record_cache_bytes_max and len(self._cache) > 1:
                _, (_, size) = self._cache.popitem(last=False)
                self._cache_bytes -= size
        record = cached[0]
        if sequence > record.last_sequence:
            raise DamagedError(
                f"{self._file_of(sequence)}: no record holds sequence {sequence}, between two that"
                " are there"
            )
        return record

    def _forget_cached(self) -> None:
        """Drop what is known of records, since other bytes took the place of theirs."""
        with self._cache_lock:
            self._cache.clear()
            self._cache_bytes = 0
            self._damaged.clear()

    def _decoded_once(self, first_sequence: int, data: bytes) -> Record:
        """Decode a record, unless that found it damaged before: whoever asks may ask often."""
        damage = self._damaged.get(first_sequence)
        if damage is not None:
            raise DamagedError(damage)
        try:
            return self._decoded(first_sequence, data)
        except DamagedError as error:
            self._damaged[first_sequence] = str(error)
            raise

    def _decoded(self, first_sequence: int, data: bytes) -> Record:
        return decode_at(first_sequence, data, _FileOf(self, first_sequence))


class _FileOf(NamedTuple):
    """The file that holds a sequence: naming it takes longer than to decode a small record."""

    log: ChainedLog
    sequence: int

    def __str__(self) -> str:
        return self.log._file_of(self.sequence)


def decode_at(first_sequence: int, data: bytes, file: object) -> Record:
    """Decode the record found where, in `file`, one that begins at `first_sequence` belongs."""
    try:
        return decode_as(first_sequence, data)
    except (DamagedError, FormatTooNewError) as error:
        where = f"{file}: the record at sequence {first_sequence}"
        raise type(error)(f"{where}: {error}") from error


def decode_as(first_sequence: int, data: bytes) -> Record:
    """Decode a record that must begin at `first_sequence`; errors say only what is wrong."""
    record = decode(data)
    if record.first_sequence != first_sequence:
        raise DamagedError(f"it is the record of sequence {record.first_sequence}")
    return record
