"""A header and binary columns in one file, whole or not at all: what snapshots and archives share.

Owns the container: how it is written, verified and read. What the header and the columns mean is
the caller's business. A file is

    preamble  magic of its kind, format version, length of the header
    header    MessagePack: the caller's header, name and length of each column
    seal      BLAKE2b-128 of all before it, so that a header can be read alone
    columns   each at a multiple of 64 bytes, zeros in between
    checksum  BLAKE2b-256 of all before it

and is only ever seen complete: temporary name, fsync, rename, fsync of the directory.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from persistence.errors import DamagedError, written_by_newer
from persistence.files import WRITE_BYTES_MAX, write_atomically

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Column: TypeAlias = "tuple[str, ReadableBuffer]"
Columns: TypeAlias = "dict[str, memoryview]"

FORMAT_VERSION = 1
HEADER_BYTES_MAX = 16 << 20
CHUNK_BYTES = 1 << 20  # read at once of a file that is only passed on

_ALIGNMENT = 64  # a cache line, so that a column may be used where it lies
_SEAL_BYTES = 16
_CHECKSUM_BYTES = 32
_PREAMBLE = struct.Struct("<8sII")
_PERSONALISATION = b"ranknode snap"


class _Contents(msgspec.Struct, frozen=True, array_like=True):
    header: dict[str, Any]
    columns: list[tuple[str, int]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Contents).decode


def write_columns(
    path: Path, magic: bytes, header: dict[str, Any], columns: Sequence[Column]
) -> None:
    """Write the file at `path`, replacing one that exists; durable on return.

    magic: 8 bytes. The columns are contiguous buffers that nobody changes meanwhile. Writing and
    hashing release the GIL, so a thread may do it while the event loop runs. Errors: OSError.
    """
    views = [(name, memoryview(column).cast("B")) for name, column in columns]
    if len(dict(views)) != len(views):
        raise AssertionError("two columns of a file have one name")
    write_atomically(path, _with_checksum(_parts(magic, header, views)))


def _parts(
    magic: bytes, header: dict[str, Any], views: Sequence[tuple[str, memoryview]]
) -> Iterator[ReadableBuffer]:
    contents = _encode((header, [(name, len(view)) for name, view in views]))
    if len(contents) > HEADER_BYTES_MAX:
        raise AssertionError(f"a header of {len(contents)} bytes is over the limit")
    head = _PREAMBLE.pack(magic, FORMAT_VERSION, len(contents)) + contents
    yield head + _digest(_SEAL_BYTES, head).digest()
    position = len(head) + _SEAL_BYTES
    for _, view in views:
        yield bytes(-position % _ALIGNMENT)
        yield view
        position += -position % _ALIGNMENT + len(view)


def _with_checksum(parts: Iterator[ReadableBuffer]) -> Iterator[ReadableBuffer]:
    """Pass on the parts, at most WRITE_BYTES_MAX at a time, and the checksum of all of them."""
    digest = _digest(_CHECKSUM_BYTES)
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), WRITE_BYTES_MAX):
            chunk = view[start : start + WRITE_BYTES_MAX]
            digest.update(chunk)
            yield chunk
    yield digest.digest()


def read_header(path: Path, magic: bytes) -> dict[str, Any]:
    """Read and verify the header of the file at `path`, and nothing else of it.

    Raises DamagedError, FormatTooNewError, OSError.
    """
    with path.open("rb", buffering=0) as file:
        preamble = file.read(_PREAMBLE.size)
        if len(preamble) < _PREAMBLE.size:
            raise DamagedError(f"{path}: is shorter than any file of its kind")
        length = _header_bytes(path, magic, preamble)
        rest = file.read(length + _SEAL_BYTES)
    return _contents(path, preamble + rest, length).header


def read_columns(path: Path, magic: bytes) -> tuple[dict[str, Any], Columns]:
    """Read and verify the file at `path`; each column begins on a 64-byte boundary of memory.

    Raises DamagedError when a byte of it is not as written, FormatTooNewError when a later
    version wrote it, OSError when it cannot be read.
    """
    content = _read_verified(path)
    length = _header_bytes(path, magic, content[: _PREAMBLE.size])
    end = _PREAMBLE.size + length + _SEAL_BYTES
    contents = _contents(path, content[:end], length)
    columns = {}
    for name, column_bytes in contents.columns:
        start = end + -end % _ALIGNMENT
        end = start + column_bytes
        columns[name] = content[start:end]
    if end != len(content):
        raise DamagedError(f"{path}: its columns do not add up to its length")
    return contents.header, columns


def _header_bytes(path: Path, magic: bytes, preamble: ReadableBuffer) -> int:
    found, version, length = _PREAMBLE.unpack_from(preamble)
    if found != magic:
        raise DamagedError(f"{path}: does not begin as files of its kind do")
    if version > FORMAT_VERSION:
        raise written_by_newer(f"{path}: is of format {version}", FORMAT_VERSION)
    if length > HEADER_BYTES_MAX:
        raise DamagedError(f"{path}: no header has {length} bytes")
    return int(length)


def _contents(path: Path, head: ReadableBuffer, length: int) -> _Contents:
    """Decode the header in a file's first bytes, which its seal follows."""
    view = memoryview(head)
    end = _PREAMBLE.size + length
    if len(view) < end + _SEAL_BYTES:
        raise DamagedError(f"{path}: was cut inside its header")
    if _digest(_SEAL_BYTES, view[:end]).digest() != view[end : end + _SEAL_BYTES]:
        raise DamagedError(f"{path}: its header's seal is not that of its content")
    try:
        return _decode(view[_PREAMBLE.size : end])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedError(f"{path}: its header: {error}") from error


def _read_verified(path: Path) -> memoryview:
    """Return the file without its checksum, on page-aligned memory that lives with the view."""
    with path.open("rb", buffering=0) as file:
        size = path.stat().st_size
        if size < _PREAMBLE.size + _SEAL_BYTES + _CHECKSUM_BYTES:
            raise DamagedError(f"{path}: is shorter than any file of its kind")
        content = memoryview(mmap.mmap(-1, size))
        digest = _digest(_CHECKSUM_BYTES)
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


def verified_chunks(path: Path) -> Iterator[bytes]:
    """Yield the file at `path` piece by piece, in bounded memory, for whoever copies it.

    Raises DamagedError behind the last piece when they are not what was written, and OSError.
    """
    digest, checksum = _digest(_CHECKSUM_BYTES), b""
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
            unhashed = checksum + chunk  # the last bytes seen may be those of the checksum
            digest.update(unhashed[:-_CHECKSUM_BYTES])
            checksum = unhashed[-_CHECKSUM_BYTES:]
    if digest.digest() != checksum:
        raise DamagedError(f"{path}: its checksum is not that of its content")


def _digest(size: int, content: ReadableBuffer = b"") -> hashlib.blake2b:
    return hashlib.blake2b(content, digest_size=size, person=_PERSONALISATION)
