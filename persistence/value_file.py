"""A small value in a file of its own: MessagePack with a format version, then a checksum.

Owns that container: seals and listings are such files. A value's struct has the field `version`;
its fields are written by name, so that one more can be added. The place of the checksum, the last
16 bytes, and what it covers hold for every version, so that a newer file is told from a damaged
one.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TypeVar

import msgspec

from persistence.errors import DamagedError, written_by_newer
from persistence.files import write_atomically

CHECKSUM_BYTES = 16
VERSION = 1  # of every value so far; those without one are as old


class _Versioned(msgspec.Struct, frozen=True):
    version: int = VERSION


ValueT = TypeVar("ValueT", bound=msgspec.Struct)


def write_value(path: Path, value: msgspec.Struct) -> None:
    """Write `value` as the whole content of `path`; durable on return. Errors: OSError."""
    write_atomically(path, [pack_value(value)])


def pack_value(value: msgspec.Struct) -> bytes:
    """Return the content of a file that holds `value`."""
    body = msgspec.msgpack.encode(value)
    return body + _checksum(body)


def read_value(path: Path, kind: type[ValueT]) -> ValueT:
    """Read the value that `path` holds. Raises DamagedError, FormatTooNewError, OSError."""
    content = path.read_bytes()
    body, checksum = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
    if _checksum(body) != checksum:
        raise DamagedError(f"{path}: its checksum is not that of its content")
    return decode_value(path, body, kind)


def decode_value(path: Path, body: bytes, kind: type[ValueT]) -> ValueT:
    """Decode a value whose bytes were found to be intact. Raises DamagedError, FormatTooNewError.

    path: where they come from.
    """
    try:
        version = msgspec.msgpack.decode(body, type=_Versioned).version
        if version > VERSION:
            raise written_by_newer(f"{path}: is of format {version}", VERSION)
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedError(f"{path}: {error}") from error


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=CHECKSUM_BYTES).digest()
