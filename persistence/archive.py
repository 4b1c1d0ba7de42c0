"""Archives: the sealed standings of closed windows, one immutable file a window and revision.

Owns the files `<window>.<revision>.archive` of a board's directory: how they are named, written,
verified, listed and removed. What the columns mean is the board's business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from persistence.column_file import Column, Columns, read_columns, read_header, write_columns
from persistence.errors import DamagedError
from persistence.files import TEMPORARY_SUFFIX, make_directory, sync_directory

SUFFIX = ".archive"
_MAGIC = b"RNKARCH\0"


class ArchiveHeader(msgspec.Struct, frozen=True):
    """Whose standings an archive holds.

    incarnation: of the board. sequence: of the record that closed the window, or of the last one
    that this revision follows. digest: the published one, SHA-256 in hexadecimal.
    """

    incarnation: str
    window: str
    revision: int
    sequence: int
    members: int
    digest: str


class Archive(NamedTuple):
    """A verified archive."""

    header: ArchiveHeader
    columns: Columns


def archive_path(directory: Path, window: str, revision: int) -> Path:
    """Name the archive of a window's revision."""
    return directory / f"{window}.{revision}{SUFFIX}"


def write_archive(directory: Path, header: ArchiveHeader, columns: Sequence[Column]) -> Path:
    """Write an archive and return its path; durable on return. Errors: OSError."""
    make_directory(directory)
    path = archive_path(directory, header.window, header.revision)
    write_columns(path, _MAGIC, msgspec.to_builtins(header), columns)
    return path


def read_archive_header(directory: Path, window: str, revision: int) -> ArchiveHeader:
    """Read whose standings an archive holds, and nothing else of it.

    Raises DamagedError, FormatTooNewError, OSError.
    """
    path = archive_path(directory, window, revision)
    return _checked(path, window, revision, read_header(path, _MAGIC))


def read_archive(directory: Path, window: str, revision: int) -> Archive:
    """Read and verify an archive. Raises DamagedError, FormatTooNewError, OSError."""
    path = archive_path(directory, window, revision)
    header, columns = read_columns(path, _MAGIC)
    return Archive(_checked(path, window, revision, header), columns)


def _checked(path: Path, window: str, revision: int, header: object) -> ArchiveHeader:
    try:
        checked = msgspec.convert(header, ArchiveHeader)
    except msgspec.ValidationError as error:
        raise DamagedError(f"{path}: its header: {error}") from error
    if (checked.window, checked.revision) != (window, revision):
        raise DamagedError(f"{path}: holds revision {checked.revision} of {checked.window}")
    return checked


def list_archives(directory: Path) -> Iterator[tuple[str, int]]:
    """Yield window and revision of each archive in `directory`; none if it is missing."""
    for path in directory.glob(f"*{SUFFIX}"):
        window, _, revision = path.name.removesuffix(SUFFIX).rpartition(".")
        if window and revision.isdecimal():
            yield window, int(revision)


def remove_archives(directory: Path, kept: Collection[tuple[str, int]]) -> None:
    """Remove all archives but those `kept`, by window and revision.

    Called by the one thread that writes archives. Errors: OSError.
    """
    doomed = [archive for archive in list_archives(directory) if archive not in kept]
    for window, revision in doomed:
        archive_path(directory, window, revision).unlink(missing_ok=True)
    if doomed:
        sync_directory(directory)


def remove_unfinished(directory: Path) -> None:
    """Remove what interrupted writes left behind, before anything is written; durable on return.

    Errors: OSError.
    """
    unfinished = list(directory.glob(f"*{SUFFIX}{TEMPORARY_SUFFIX}"))
    for path in unfinished:
        path.unlink(missing_ok=True)
    if unfinished:
        sync_directory(directory)
