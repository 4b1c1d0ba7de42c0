"""What is legible of a damaged segment: its records, found by what they are, not by where.

Owns the search of a segment's file for records, whatever became of LMDB's pages around them: each
lies in one piece and ends with a hash over itself. What is found was not necessarily committed: a
file may also hold what a crash kept from its commit. So where a hash is known to have been
committed, the row that leads to it is the log. Read only; nothing is mapped.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from persistence.errors import DamagedError
from persistence.records import (
    EVENTS_PER_RECORD_MAX,
    HASH_BYTES,
    HEADER_BYTES,
    MAGIC,
    decode,
    link_of,
    record_bytes,
)

BLOCK_BYTES = 8 << 20  # searched at once

End: TypeAlias = "tuple[int, bytes]"  # a sequence, and the hash of the record that ends with it


class Found(NamedTuple):
    """A record that is intact, and where it lies."""

    first_sequence: int
    last_sequence: int
    previous_hash: bytes
    hash: bytes
    file: Path
    offset: int
    size: int

    @property
    def start(self) -> End:
        """Return the end that the record follows."""
        return self.first_sequence - 1, self.previous_hash

    @property
    def end(self) -> End:
        """Return the end that the record makes."""
        return self.last_sequence, self.hash

    def read(self) -> bytes:
        """Return the record's bytes. Errors: OSError."""
        with self.file.open("rb", buffering=0) as file:
            return os.pread(file.fileno(), self.size, self.offset)


class Finds(NamedTuple):
    """What one file holds: its intact records, and the sequences that damaged ones claim to have.

    Both in order of their first sequence; each record is there once.
    """

    records: list[Found]
    claims: list[tuple[int, int]]


def find_records(path: Path) -> Finds:
    """Search the file at `path` for records; a file that is missing holds none.

    Complexity: O(bytes). Raises FormatTooNewError, since what a newer version wrote is not this
    one's to repair, and OSError.
    """
    finds: dict[bytes, Found] = {}
    claims = []
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Finds([], [])
    try:
        position = 0
        while (position := _find_magic(descriptor, position)) >= 0:
            data = _read_candidate(descriptor, position)
            try:
                decode(data)
            except DamagedError:
                claims += _claims(data)
                position += 1
            else:
                found = Found(*link_of(data), path, position, len(data))
                finds.setdefault(found.hash, found)
                position += len(data)
    finally:
        os.close(descriptor)
    return Finds(sorted(finds.values()), sorted(claims))


def _find_magic(descriptor: int, position: int) -> int:
    """Return where a record may begin, at or after `position`; -1 where none can any more."""
    while block := os.pread(descriptor, BLOCK_BYTES, position):
        at = block.find(MAGIC)
        if at >= 0:
            return position + at
        if len(block) < len(MAGIC):
            return -1
        position += len(block) - len(MAGIC) + 1  # it may lie across two blocks
    return -1


def _read_candidate(descriptor: int, position: int) -> bytes:
    start = os.pread(descriptor, HEADER_BYTES + HASH_BYTES, position)
    size = record_bytes(start) if len(start) >= HEADER_BYTES else 0
    return os.pread(descriptor, size, position) if size else start


def _claims(damaged: bytes) -> list[tuple[int, int]]:
    """Give the sequences that a damaged record claims, where they are plausible."""
    try:
        link = link_of(damaged)
    except DamagedError:
        return []
    count = link.last_sequence - link.first_sequence + 1
    plausible = link.first_sequence >= 1 and 1 <= count <= EVENTS_PER_RECORD_MAX
    return [(link.first_sequence, link.last_sequence)] if plausible else []


def row_to(records: Iterable[Found], start: End, end: End) -> list[Found] | None:
    """Return the row of records that leads from `start` to `end`, None if it is not whole.

    There is at most one, since each record names its predecessor. Complexity: O(records).
    """
    by_end = {record.end: record for record in records}
    row: list[Found] = []
    while end != start:
        record = by_end.get(end)
        if record is None:
            return None
        row.append(record)
        end = record.start
    return row[::-1]


def longest_row(records: Sequence[Found], start: End) -> list[Found]:
    """Return the row of records from `start` that reaches the highest sequence.

    records: in order of their first sequence. Complexity: O(records).
    """
    following: defaultdict[End, list[Found]] = defaultdict(list)
    reach: dict[bytes, int] = {}
    for record in reversed(records):
        after = [reach[later.hash] for later in following[record.end]]
        reach[record.hash] = max(after, default=record.last_sequence)
        following[record.start].append(record)
    row: list[Found] = []
    while candidates := following.get(start):
        best = max(candidates, key=lambda record: reach[record.hash])
        row.append(best)
        start = best.end
    return row


def after(records: Sequence[Found], sequence: int) -> list[Found]:
    """List the records that begin after `sequence`, without overlaps.

    Of several that begin with one sequence, the one that another follows was committed.
    records: in order of their first sequence. Complexity: O(records).
    """
    followed = {record.previous_hash for record in records}
    rest: list[Found] = []
    for record in records:
        if record.first_sequence <= sequence:
            continue
        if not rest or record.first_sequence > rest[-1].last_sequence:
            rest.append(record)
        elif record.hash in followed and rest[-1].hash not in followed:
            rest[-1] = record
    return rest
