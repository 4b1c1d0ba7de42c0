"""Snapshots: a header and binary columns in one file, whole or not at all.

Owns the file `<sequence>.snapshot`, how it is written, verified, listed and pruned. What the
header and the columns mean is the board's business. A file is

    preamble  magic, format version, length of the header
    header    MessagePack: sequence, the caller's header, name and length of each column
    columns   each at a multiple of 64 bytes, zeros in between
    checksum  BLAKE2b-256 of all before it

and is only ever seen complete: temporary name, fsync, rename, fsync of the directory.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from persistence.errors import DamagedError, FormatTooNewError
from persistence.files import (
    TEMPORARY_SUFFIX,
    WRITE_BYTES_MAX,
    make_directory,
    sync_directory,
    write_atomically,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Column: TypeAlias = "tuple[str, ReadableBuffer]"

FORMAT_VERSION = 1
SUFFIX = ".snapshot"

_ALIGNMENT = 64  # a cache line, so that a column may be used where it lies
_CHECKSUM_BYTES = 32
_MAGIC = b"RNKSNAP\0"
_PREAMBLE = struct.Struct("<8sII")
_PERSONALISATION = b"ranknode snap"
_NAME = re.compile(r"[0-9]{20}\.snapshot")


class _Contents(msgspec.Struct, frozen=True, array_like=True):
    sequence: int
    header: dict[str, Any]
    columns: list[tuple[str, int]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Contents).decode


@dataclass(frozen=True)
class Snapshot:
    """A verified snapshot; each column is a view of bytes that begins on a 64-byte boundary."""

    sequence: int
    header: dict[str, Any]
    columns: dict[str, memoryview]


def write_snapshot(
    directory: Path, sequence: int, header: dict[str, Any], columns: Sequence[Column]
) -> Path:
    """Write the snapshot of `sequence` into `directory` and return its path; durable on return.

    The columns are contiguous buffers that nobody changes meanwhile. Writing and hashing release
    the GIL, so a thread may do it while the event loop runs. One that exists is replaced.
    """
    views = [(name, memoryview(column).cast("B")) for name, column in columns]
    if len(dict(views)) != len(views):
        raise AssertionError("two columns of a snapshot have one name")
    make_directory(directory)
    path = directory / f"{sequence:020d}{SUFFIX}"
    write_atomically(path, _with_checksum(_parts(sequence, header, views)))
    return path


def _parts(
    sequence: int, header: dict[str, Any], views: Sequence[tuple[str, memoryview]]
) -> Iterator[ReadableBuffer]:
    contents = _encode((sequence, header, [(name, len(view)) for name, view in views]))
    yield _PREAMBLE.pack(_MAGIC, FORMAT_VERSION, len(contents))
    yield contents
    position = _PREAMBLE.size + len(contents)
    for _, view in views:
        yield bytes(-position % _ALIGNMENT)
        yield view
        position += -position % _ALIGNMENT + len(view)


def _with_checksum(parts: Iterator[ReadableBuffer]) -> Iterator[ReadableBuffer]:
    """Pass on the parts, at most WRITE_BYTES_MAX at a time, and the checksum of all of them."""
    digest = _new_digest()
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), WRITE_BYTES_MAX):
            chunk = view[start : start + WRITE_BYTES_MAX]
            digest.update(chunk)
            yield chunk
    yield digest.digest()


def read_snapshot(path: Path) -> Snapshot:
    """Read and verify the snapshot at `path`.

    Raises DamagedError when a byte of it is not as written, FormatTooNewError when a later
    version wrote it, OSError when it cannot be read.
    """
    content = _read_verified(path)
    magic, version, header_bytes = _PREAMBLE.unpack_from(content)
    if magic != _MAGIC:
        raise DamagedError(f"{path}: does not begin as snapshots do")
    if version > FORMAT_VERSION:
        raise FormatTooNewError(f"{path}: a snapshot of format {version}")
    end = _PREAMBLE.size + header_bytes
    try:
        contents = _decode(content[_PREAMBLE.size : end])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedError(f"{path}: its header: {error}") from error
    if path.name != f"{contents.sequence:020d}{SUFFIX}":
        raise DamagedError(f"{path}: holds the snapshot of sequence {contents.sequence}")
    columns = {}
    for name, length in contents.columns:
        start = end + -end % _ALIGNMENT
        end = start + length
        columns[name] = content[start:end]
    if end != len(content):
        raise DamagedError(f"{path}: its columns do not add up to its length")
    return Snapshot(contents.sequence, contents.header, columns)


def _read_verified(path: Path) -> memoryview:
    """Return the file without its checksum, on page-aligned memory that lives with the view."""
    with path.open("rb", buffering=0) as file:
        size = path.stat().st_size
        if size < _PREAMBLE.size + _CHECKSUM_BYTES:
            raise DamagedError(f"{path}: is shorter than any snapshot")
        content = memoryview(mmap.mmap(-1, size))
        digest = _new_digest()
        filled = 0
        while filled < size:
            count = file.readinto(content[filled : filled + WRITE_BYTES_MAX])
            if not count:
                raise DamagedError(f"{path}: was cut while it was read")
            digest.update(content[filled : min(filled + count, size - _CHECKSUM_BYTES)])
            filled += count
    if digest.digest() != content[-_CHECKSUM_BYTES:]:
        raise DamagedError(f"{path}: its checksum is not that of its content")
    return content[:-_CHECKSUM_BYTES]


def list_snapshots(directory: Path) -> list[Path]:
    """Return the paths of the snapshots in `directory`, newest first; none if it is missing."""
    if not directory.is_dir():
        return []
    paths = [path for path in directory.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(paths, reverse=True)


def snapshot_sequence(path: Path) -> int:
    """Return the sequence that a snapshot's name says."""
    return int(path.name.removesuffix(SUFFIX))


def prune_snapshots(directory: Path, keep: int = 2) -> None:
    """Remove all but the `keep` newest snapshots, and what interrupted writes left behind.

    Only for the one writer of the directory, and not while it writes.
    """
    if keep < 1:
        raise AssertionError("the newest snapshot is never pruned")
    doomed = [*list_snapshots(directory)[keep:], *directory.glob(f"*{SUFFIX}{TEMPORARY_SUFFIX}")]
    for path in doomed:
        path.unlink()
    if doomed:
        sync_directory(directory)


def _new_digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=_CHECKSUM_BYTES, person=_PERSONALISATION)
