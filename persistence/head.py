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
import time
from pathlib import Path
from typing import NamedTuple

from persistence.errors import DamagedError, FormatTooNewError, written_by_newer
from persistence.files import write_at, write_atomically
from persistence.records import HASH_BYTES

FORMAT_VERSION = 1
_MAGIC_WITHOUT_FORMAT = b"RNKHEAD"
_MAGIC = b"%s%d" % (_MAGIC_WITHOUT_FORMAT, FORMAT_VERSION)
_SLOT = struct.Struct("<8sQQ16s8x")
_CHECKSUM_BYTES = 16
SLOT_BYTES = _SLOT.size + _CHECKSUM_BYTES  # 64: both slots lie in one sector
_BLANK = bytes(SLOT_BYTES)
_READ_ATTEMPTS = 3
_RETRY_SECONDS = 0.01


class Head(NamedTuple):
    """The end of the log as it was after commit number `counter`."""

    counter: int
    last_sequence: int
    last_hash: bytes


class HeadFile:
    """The head file of a log that this process writes: `advance` after each commit, `close`."""

    def __init__(self, path: Path, last_sequence: int, last_hash: bytes) -> None:
        """Create the file, durably, or go on with the one there.

        One of which a slot is lost is created anew: as long as it is, the other slot is all there
        is, and may be the older one.
        """
        head = read_head(path)
        if head is None or _findings(path):
            head = Head(1, last_sequence, last_hash)
            write_atomically(path, [_BLANK, _pack(head)])
        self._counter = head.counter
        self._descriptor = os.open(path, os.O_WRONLY)
        if (head.last_sequence, head.last_hash) != (last_sequence, last_hash):
            self.advance(last_sequence, last_hash)

    def advance(self, last_sequence: int, last_hash: bytes) -> None:
        """Remember the end of the log in the older of the two slots; not yet durable."""
        self._counter += 1
        slot = _pack(Head(self._counter, last_sequence, last_hash))
        write_at(self._descriptor, slot, self._counter % 2 * SLOT_BYTES)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_head(path: Path) -> Head | None:
    """Return the newest valid slot, or None when there is no file.

    Raises DamagedError when there is a file of which no slot is valid, FormatTooNewError.
    """
    try:
        heads = [head for head in _heads(path, path.read_bytes()) if head is not None]
    except FileNotFoundError:
        return None
    if not heads:
        raise DamagedError(f"{path}: neither of its slots is valid")
    return max(heads)


def head_findings(path: Path) -> list[str]:
    """List what is wrong with the file, a slot that the other one makes good included.

    Its writer may be at work: what is found must be found again a moment later.
    """
    for _ in range(_READ_ATTEMPTS - 1):
        if not _findings(path):
            return []
        time.sleep(_RETRY_SECONDS)
    return _findings(path)


def _findings(path: Path) -> list[str]:
    try:
        content = path.read_bytes()
        heads = _heads(path, content)
    except FileNotFoundError:
        return ["is missing: nothing would tell if the log lost its end"]
    except FormatTooNewError as error:
        return [str(error)]
    if len(content) != 2 * SLOT_BYTES:
        return [f"has {len(content)} bytes, not {2 * SLOT_BYTES}"]
    if content[:SLOT_BYTES] == _BLANK and heads[1] is not None and heads[1].counter == 1:
        return []  # as it was created
    return [f"slot {slot} is not what was written" for slot in (0, 1) if heads[slot] is None]


def _heads(path: Path, content: bytes) -> list[Head | None]:
    return [_unpack(path, content[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES)]


def _pack(head: Head) -> bytes:
    content = _SLOT.pack(_MAGIC, *head)
    return content + _checksum(content)


def _unpack(path: Path, slot: bytes) -> Head | None:
    content, checksum = slot[: _SLOT.size], slot[_SLOT.size :]
    if len(slot) != SLOT_BYTES or _checksum(content) != checksum:
        return None
    magic, *fields = _SLOT.unpack(content)
    if magic == _MAGIC:
        return Head(*fields)
    if magic.startswith(_MAGIC_WITHOUT_FORMAT):
        found = magic.removeprefix(_MAGIC_WITHOUT_FORMAT).decode(errors="replace")
        raise written_by_newer(f"{path}: is of format {found}", FORMAT_VERSION)
    return None


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=HASH_BYTES).digest()
