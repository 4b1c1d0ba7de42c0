"""The trace that `interposer.c` writes: every call that changed a file, in real order."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple


class Op(IntEnum):
    """What a traced call did; truncating is any change of size, creating any opening anew."""

    WRITE = 1
    SYNC = 2
    RENAME = 3
    TRUNCATE = 4
    CREATE = 5
    UNLINK = 6
    MKDIR = 7
    RMDIR = 8
    LINK = 9
    MARK = 10


DSYNC = 1  # flags of an entry: the write was through O_DSYNC or O_SYNC
TRUNCATING = 8  # the file was opened with O_TRUNC
EXCHANGING = 16  # the rename let two names trade places


_HEADER = struct.Struct("<IIIIqqQ")


class Entry(NamedTuple):
    """One call that changed files, after it was done. offset: of a truncation, the new length."""

    op: int
    flags: int
    path: str
    target: str
    offset: int
    result: int
    data: bytes

    @property
    def mark(self) -> int:
        """Return the number of a mark: something was acknowledged."""
        return int.from_bytes(self.data, "little")


def read_trace(path: Path) -> Iterator[Entry]:
    """Yield the entries of a trace in order; one whose writer was killed may end in a part."""
    content = memoryview(path.read_bytes())
    start = 0
    while start + _HEADER.size <= len(content):
        op, flags, path_bytes, target_bytes, offset, result, data_bytes = _HEADER.unpack_from(
            content, start
        )
        ends = [start + _HEADER.size]
        for length in (path_bytes, target_bytes, data_bytes):
            ends.append(ends[-1] + length)
        start = ends[-1]
        if start > len(content):
            return
        name, target, data = (bytes(content[a:b]) for a, b in itertools.pairwise(ends))
        yield Entry(op, flags, name.decode(), target.decode(), offset, result, data)


def pack_entry(entry: Entry) -> bytes:
    """Write an entry as a trace holds it."""
    path, target = entry.path.encode(), entry.target.encode()
    lengths = len(path), len(target)
    header = _HEADER.pack(
        entry.op, entry.flags, *lengths, entry.offset, entry.result, len(entry.data)
    )
    return header + path + target + entry.data
