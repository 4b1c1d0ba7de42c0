"""The head file: where the log ended, kept beside it, so that a log that lost its end is noticed.

LMDB has no checksums, and its newest meta page decides what its content is: one flipped bit there
and it silently falls back to the commit before. The head file remembers the last sequence and
hash in two slots, written in turn after each commit, so that a torn write costs one slot only.
It is not fsynced: a power cut can only leave it behind the log, which is harmless, while a log
behind its head is one that lost a durable commit. Removing the file is how an operator accepts
a log as it is.
"""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path
from typing import NamedTuple

from persistence.errors import DamagedError
from persistence.files import write_atomically
from persistence.records import HASH_BYTES

_MAGIC = b"RNKHEAD1"
_SLOT = struct.Struct("<8sQQ16s8x")
_CHECKSUM_BYTES = 16
SLOT_BYTES = _SLOT.size + _CHECKSUM_BYTES  # 64: both slots lie in one sector


class Head(NamedTuple):
    """The end of the log as it was after commit number `counter`."""

    counter: int
    last_sequence: int
    last_hash: bytes


class HeadFile:
    """The head file of a log that this process writes: `advance` after each commit, `close`."""

    def __init__(self, path: Path, last_sequence: int, last_hash: bytes) -> None:
        """Create the file, durably, or go on with the one there."""
        head = read_head(path)
        if head is None:
            head = Head(1, last_sequence, last_hash)
            write_atomically(path, [bytes(SLOT_BYTES), _pack(head)])
        self._counter = head.counter
        self._descriptor = os.open(path, os.O_WRONLY)
        if (head.last_sequence, head.last_hash) != (last_sequence, last_hash):
            self.advance(last_sequence, last_hash)

    def advance(self, last_sequence: int, last_hash: bytes) -> None:
        """Remember the end of the log in the older of the two slots; not yet durable."""
        self._counter += 1
        slot = _pack(Head(self._counter, last_sequence, last_hash))
        written = os.pwrite(self._descriptor, slot, self._counter % 2 * SLOT_BYTES)
        if written != SLOT_BYTES:
            raise OSError(f"the head file took {written} of {SLOT_BYTES} bytes")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_head(path: Path) -> Head | None:
    """Return the newest valid slot, or None when there is no file.

    Raises DamagedError when there is a file of which no slot is valid.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    slots = [content[:SLOT_BYTES], content[SLOT_BYTES : 2 * SLOT_BYTES]]
    heads = [head for head in map(_unpack, slots) if head is not None]
    if not heads:
        raise DamagedError(f"{path}: neither of its slots is valid")
    return max(heads)


def _pack(head: Head) -> bytes:
    content = _SLOT.pack(_MAGIC, *head)
    return content + _checksum(content)


def _unpack(slot: bytes) -> Head | None:
    content, checksum = slot[: _SLOT.size], slot[_SLOT.size :]
    if len(slot) != SLOT_BYTES or _checksum(content) != checksum:
        return None
    magic, *fields = _SLOT.unpack(content)
    return Head(*fields) if magic == _MAGIC else None


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=HASH_BYTES).digest()
