"""Files and directories that survive a power cut: a temporary name, fsync, rename, fsync again.

Owns how a small file is replaced and a directory created so that, after a crash at any point,
either the old or the whole new content is there. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _typeshed import ReadableBuffer

TEMPORARY_SUFFIX = ".tmp"
MODE = 0o666  # of a new file, less what the umask takes away
DIRECTORY_MODE = 0o777  # likewise of a new directory
PRIVATE_MODE = 0o700  # of a directory whose content is its owner's alone
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
WRITE_BYTES_MAX = 16 << 20  # a write releases the GIL; this bounds how long one call holds a buffer


def free_bytes(directory: Path) -> int:
    """Return what the disk that holds `directory` has left for us."""
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable: what was created, renamed or removed in it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path, mode: int = DIRECTORY_MODE) -> None:
    """Create `directory` and the parents that it lacks; all of them are durable on return.

    mode: the permissions of `directory` itself; one that exists keeps its own.
    """
    missing = []
    lacking = directory
    while not lacking.is_dir():
        missing.append(lacking)
        lacking = lacking.parent
    for each in reversed(missing):
        each.mkdir(mode if each == directory else DIRECTORY_MODE, exist_ok=True)
        sync_directory(each)
        sync_directory(each.parent)


def exchange(one: Path, other: Path) -> None:
    """Let two files or directories take each other's place, in one step; not yet durable.

    Raises OSError, also where the file system cannot do that: nothing was changed then.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)}: exchanging {one} and {other}")


def require_exchange(directory: Path) -> None:
    """Raise OSError unless directories in `directory` can be exchanged; leaves nothing there."""
    one, other = directory / "one", directory / "other"
    one.mkdir()
    other.mkdir()
    exchange(one, other)
    one.rmdir()
    other.rmdir()


def write_at(descriptor: int, data: bytes, position: int) -> None:
    """Write all of `data` at `position`, in as many calls as that takes; not yet durable."""
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, data[written:], position + written)


def _create(path: Path, mode: int) -> int:
    """Open a new file to write; whatever had its name is removed, not followed, nor reused."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        return os.open(path, flags, mode)
    except FileExistsError:
        path.unlink()
        return os.open(path, flags, mode)


def write_atomically(path: Path, parts: Iterable[ReadableBuffer], mode: int = MODE) -> None:
    """Write `parts` one after another as the whole content of `path`; durable on return.

    A reader sees the former file or the whole new one. What a crash leaves behind is a file with
    the suffix `.tmp` beside it, which the next write replaces. mode: the file's permissions, from
    before its first byte is written.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    with open(_create(temporary, mode), "wb", buffering=0) as file:
        for part in parts:
            view = memoryview(part).cast("B")
            while view:
                view = view[file.write(view[:WRITE_BYTES_MAX]) :]
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)
