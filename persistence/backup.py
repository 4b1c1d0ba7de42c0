"""A copy of a board's files, made while its owner goes on writing.

Owns how each kind of file is copied so that the copy is whole: snapshots and archives by their
checksum, sealed segments as they are, the live segment record by record, the head from what was
copied; and that a backup is seen under its name only once all of it is durable. Never writes to
what it copies, LMDB's `lock.mdb` apart, which holds nothing that lasts. Which files a board has,
and in what order they are copied, is the caller's business.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from persistence.column_file import verified_chunks
from persistence.errors import CommitFailedError, DamagedError, RanknodeError, StorageFullError
from persistence.event_log import HEAD, LmdbEventLog, LogOptions
from persistence.files import (
    PRIVATE_MODE,
    TEMPORARY_SUFFIX,
    free_bytes,
    make_directory,
    sync_directory,
    write_atomically,
)
from persistence.head import HeadFile
from persistence.records import Record
from persistence.segments import (
    DATA,
    EMPTY_SEGMENT_BYTES,
    SCAN_BYTES_MAX,
    Seal,
    Segment,
    write_seal,
)

PARTIAL_SUFFIX = ".partial"

Show: TypeAlias = Callable[[int], None]  # called with each number of bytes that was copied
LogEnd: TypeAlias = "tuple[int, bytes]"  # the last sequence, and its record's hash


class BoardGoneError(RanknodeError):
    """Raised when the board that is being copied was deleted meanwhile."""


class BackupExistsError(RanknodeError):
    """Raised for a target that is there already, or a broken backup of that name."""


class TargetError(RanknodeError):
    """Raised when what is copied cannot be written, or read back: the whole backup is concerned."""


class _SourceError(Exception):
    """Carries an error of a source through the write of its target that it broke off."""

    def __init__(self, error: OSError | DamagedError) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def writing() -> Iterator[None]:
    """Raise TargetError for what goes wrong in the block, but for what `_read` found at the source.

    One that is full, fails or returns other bytes would spoil any other board as well.
    """
    try:
        yield
    except _SourceError as error:
        raise error.error from None
    except (OSError, CommitFailedError, DamagedError) as error:
        raise TargetError(f"the backup cannot be written: {error}") from error


@contextmanager
def building(target: Path) -> Iterator[Path]:
    """Make `target` appear under its name, durable, once the block has filled it.

    Yields the directory to fill, `TARGET.partial`, which only its owner may read. It is left as it
    is when the block fails. Raises BackupExistsError.
    """
    partial = target.with_name(target.name + PARTIAL_SUFFIX)
    if os.path.lexists(target):
        raise BackupExistsError(f"{target} exists; a backup is never written over anything")
    make_directory(target.parent)
    try:
        partial.mkdir(mode=PRIVATE_MODE)
    except FileExistsError:
        raise BackupExistsError(
            f"{partial} is under way, or left of a backup that broke off; remove it if so"
        ) from None
    yield partial
    sync_directory(partial)
    partial.rename(target)
    sync_directory(target.parent)


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Raise BoardGoneError if `directory` is removed, or another takes its name, in the block.

    A TargetError is passed on: it has nothing to do with the board.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise BoardGoneError(f"{directory} was deleted") from None
    try:
        try:
            yield
        except TargetError:
            raise
        except (RanknodeError, OSError) as error:
            if _is_still(directory, descriptor):
                raise
            raise BoardGoneError(f"{directory} was deleted") from error
        if not _is_still(directory, descriptor):
            raise BoardGoneError(f"{directory} was deleted")
    finally:
        os.close(descriptor)


def _is_still(directory: Path, descriptor: int) -> bool:
    """Tell whether a path leads to an open directory; as it is open, no other has its inode."""
    try:
        return os.path.samestat(directory.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def require_room(directory: Path, bytes_needed: int) -> None:
    """Raise StorageFullError unless `bytes_needed` fit, and leave a node on that disk its own."""
    free = free_bytes(directory) - LogOptions().reserved_free_bytes
    if bytes_needed > free:
        raise StorageFullError(
            f"{directory}: {bytes_needed} bytes for {max(free, 0)} that may be used"
        )


def file_bytes(directory: Path) -> int:
    """Return what the files below `directory` hold; those that vanish meanwhile do not count."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total


def copy_column_files(source: Path, target: Path, suffix: str, show: Show) -> list[str]:
    """Copy snapshots or archives, those of a directory that end with `suffix`, durably.

    Each is checked against its checksum on the way. One that vanishes meanwhile is not missed: its
    owner had no more use for it. One that is damaged is left out, since its owner can do without
    it and makes it again. Returns why files were left out. Raises TargetError, OSError.
    """
    with writing():
        make_directory(target)
    left_out = []
    for path in sorted(source.glob(f"*{suffix}")):
        copy = target / path.name
        try:
            with writing():
                write_atomically(copy, _read(verified_chunks(path), show))
        except FileNotFoundError:
            _discard(copy)
        except DamagedError as error:
            _discard(copy)
            left_out.append(str(error))
    return left_out


def _discard(copy: Path) -> None:
    """Remove what a write that was cut short has left behind."""
    with writing():
        copy.with_name(copy.name + TEMPORARY_SUFFIX).unlink(missing_ok=True)


def copy_log(source: Path, target: Path, epoch: int, show: Show) -> LogEnd:
    """Copy the log as it is now into `target`, durably; returns where the copy ends.

    epoch: what the copy's next owner must be after. The log's owner may go on writing, sealing and
    beginning segments. Raises DamagedError for a log that could not be opened, TargetError, and
    OSError of the log's own disk. What was copied is not verified yet: see `check_log`.
    """
    with writing():
        make_directory(target)
    log = LmdbEventLog.open_readonly(source)
    try:
        for index, (path, seal) in enumerate(log.segments):
            copy = target / path.name
            with writing():
                copy.mkdir()
            if seal is None:
                _copy_records(log, index, copy, epoch, show)
            else:
                _copy_sealed(path, copy, seal, show)
        head, end = log.end, (log.last_sequence, log.last_hash)
    finally:
        log.close()
    with writing():
        HeadFile(target / HEAD, *head).close()
        sync_directory(target)
    return end


def _copy_sealed(source: Path, target: Path, seal: Seal, show: Show) -> None:
    """Copy a segment that nobody writes any more, byte by byte."""
    with writing():
        write_atomically(target / DATA, _read(_chunks(source / DATA), show))
        write_seal(target, seal)


def _copy_records(log: LmdbEventLog, index: int, target: Path, epoch: int, show: Show) -> None:
    """Copy a live segment up to the log's end, by way of its records.

    LMDB's own copy would hold one read transaction throughout, for which the segment keeps every
    page that its writer would use again: for good, should the copying process be killed. Here
    each transaction lasts for SCAN_BYTES_MAX of records, and none takes the writer's lock.
    """
    map_bytes = 2 * (log.segments[index][0] / DATA).stat().st_size + EMPTY_SEGMENT_BYTES
    with writing():
        Segment.create(target, map_bytes, epoch)
        segment = Segment.open_live(target, map_bytes, writable=True)
    try:
        for items, items_bytes in _batches(log.scan_segment(index)):
            with writing():
                segment.put(items, epoch)
            show(items_bytes)
    finally:
        segment.close()
    with writing():
        sync_directory(target)


def _batches(
    items: Iterator[tuple[int, bytes]],
) -> Iterator[tuple[list[tuple[int, bytes]], int]]:
    """Gather records, SCAN_BYTES_MAX or a little more at a time; each batch with its bytes."""
    batch: list[tuple[int, bytes]] = []
    batch_bytes = 0
    for item in items:
        batch.append(item)
        batch_bytes += len(item[1])
        if batch_bytes >= SCAN_BYTES_MAX:
            yield batch, batch_bytes
            batch, batch_bytes = [], 0
    if batch:
        yield batch, batch_bytes


def check_log(directory: Path, end: LogEnd) -> Iterator[Record]:
    """Yield the records of a copied log, all that its next owner will rely on being verified.

    That is the pages, the seals, the head, and of each record its hash, order and chain, which
    must lead to `end`, the hash that vouches for the whole log. Raises DamagedError, which names
    the record, and FormatTooNewError.
    """
    log = LmdbEventLog.open_readonly(directory)
    try:
        if (log.last_sequence, log.last_hash) != end:
            raise DamagedError(f"{directory}: ends at {log.last_sequence}, not {end[0]}")
        yield from log.read()
    finally:
        log.close()


def require_sound(directory: Path) -> None:
    """Raise DamagedError, which names file and record, unless every record of a log is sound.

    Tells, of a copy that is not, whether its source is to blame.
    """
    log = LmdbEventLog.open_readonly(directory)
    try:
        for _ in log.read():
            pass
    finally:
        log.close()


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(SCAN_BYTES_MAX):
            yield chunk


def _read(chunks: Iterator[bytes], show: Show) -> Iterator[bytes]:
    """Pass on what is read of a source, which whoever writes it must not take for its own error."""
    try:
        for chunk in chunks:
            yield chunk
            show(len(chunk))
    except (OSError, DamagedError) as error:
        raise _SourceError(error) from error
