"""One writer per board: whoever takes a board first makes sure that its former owner is dead.

Owns two files in the board's directory: `owner.lock`, which the owner holds under flock, and
`owner`, which names its process so precisely that no other can be mistaken for it. A lock alone
would not do: a process that was stopped, not killed, holds its locks, LMDB's writer lock among
them, for ever. So a successor that finds the lock held kills the process that `owner` names.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import select
import signal
import time
from pathlib import Path

import msgspec

from persistence.errors import DamagedError, OwnershipError, written_by_newer
from persistence.files import make_directory, sync_directory, write_at

OWNER = "owner"
LOCK = "owner.lock"
OWNER_BYTES = 512
FORMAT_VERSION = 1
_CHECKSUM_DIGITS = 32  # at the end, in hexadecimal; blank in what was written before there was one
TAKE_SECONDS_MAX = 10.0
_RETRY_SECONDS = 0.01
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Process(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process, told apart from every other: a pid alone is soon given to another one.

    start_ticks is when it started, in clock ticks since boot; a pid means the same process only
    within one boot and one pid namespace.
    """

    pid: int
    start_ticks: int
    boot_id: str
    pid_namespace: str


class OwnerRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `owner` holds: the epoch of the last ownership, and its process until released."""

    epoch: int
    process: Process | None
    version: int = FORMAT_VERSION


class _Versioned(msgspec.Struct, frozen=True):
    version: int = FORMAT_VERSION


def this_process() -> Process:
    """Describe the calling process."""
    pid = os.getpid()
    start_ticks = _start_ticks(pid)
    if start_ticks is None:
        raise AssertionError("/proc does not list this process")
    return Process(pid, start_ticks, _BOOT_ID.read_text().strip(), os.readlink("/proc/self/ns/pid"))


class Ownership:
    """The right to write a board's directory, until `release` or the end of the process.

    epoch is larger than that of every ownership before, and fences their writes.
    """

    def __init__(self, directory: Path, lock: int, epoch: int) -> None:
        self.epoch = epoch
        self._directory = directory
        self._lock: int | None = lock

    @classmethod
    def take(cls, directory: Path, seconds_max: float = TAKE_SECONDS_MAX) -> Ownership:
        """Become the owner of `directory`; no former owner is alive on return.

        Raises OwnershipError when that cannot be had within `seconds_max`: the former owner does
        not die, another process holds the lock, or this one already owns the directory.
        """
        make_directory(directory)
        deadline = time.monotonic() + seconds_max
        owner_path = directory / OWNER
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _wait_for_lock(lock, owner_path, deadline)
            # Whoever releases takes its name back before its lock. A living process named here lost
            # its lock some other way, the file having been replaced, and may still be writing.
            former = _end_former_owner(owner_path, deadline)
            # The record keeps epochs rising when the clock is set back, the clock when the record
            # is lost.
            epoch = max(former.epoch + 1 if former else 1, time.time_ns() // 1000)
            _write_owner(owner_path, OwnerRecord(epoch, this_process()))
        except BaseException:
            os.close(lock)
            raise
        return cls(directory, lock, epoch)

    def release(self) -> None:
        """Give the directory up; the process may live on without being killed for it.

        A second call does nothing: the directory may be another's by then.
        """
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        try:
            _write_owner(self._directory / OWNER, OwnerRecord(self.epoch, None))
        finally:
            os.close(lock)


def last_epoch(directory: Path) -> int:
    """Return the epoch of the last ownership of `directory`, 0 where none is known."""
    record = _read_owner(directory / OWNER)
    return record.epoch if record else 0


def leave_epoch(directory: Path, epoch: int) -> None:
    """Write, durably, that `directory` has no owner, and that the next must come after `epoch`."""
    _write_owner(directory / OWNER, OwnerRecord(epoch, None))


def _wait_for_lock(lock: int, owner_path: Path, deadline: float) -> None:
    while not _try_lock(lock):
        _end_former_owner(owner_path, deadline)
        if time.monotonic() > deadline:
            raise OwnershipError(f"{owner_path.parent}: another process holds {LOCK}")
        time.sleep(_RETRY_SECONDS)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _end_former_owner(owner_path: Path, deadline: float) -> OwnerRecord | None:
    """Kill the process that `owner_path` names, unless it is gone or ourselves, and await its end.

    A pidfd stands for one process whatever becomes of its number, so what was identified is what
    is killed. Returns the record.
    """
    record = _read_owner(owner_path)
    former = record.process if record else None
    us = this_process()
    if former is None or former == us or not _shares_pids(former, us):
        return record
    try:
        descriptor = os.pidfd_open(former.pid)
    except ProcessLookupError:
        return record
    try:
        if _start_ticks(former.pid) == former.start_ticks:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            seconds_left = max(deadline - time.monotonic(), 0)
            if not select.select([descriptor], [], [], seconds_left)[0]:
                raise OwnershipError(f"process {former.pid}, the former owner, does not end")
    except ProcessLookupError:
        return record
    except PermissionError as error:
        raise OwnershipError(f"process {former.pid}, the former owner, is not ours") from error
    finally:
        os.close(descriptor)
    return record


def _shares_pids(one: Process, other: Process) -> bool:
    return (one.boot_id, one.pid_namespace) == (other.boot_id, other.pid_namespace)


def _read_owner(owner_path: Path) -> OwnerRecord | None:
    """Return the record, or None where there is none or it is no longer legible.

    It is one sector, which a disk writes whole, so an illegible one is damage; the lock then
    decides alone. Raises FormatTooNewError.
    """
    try:
        return read_owner(owner_path)
    except (FileNotFoundError, DamagedError):
        return None


def read_owner(owner_path: Path) -> OwnerRecord:
    """Return the record. Raises DamagedError, FormatTooNewError, FileNotFoundError."""
    content = owner_path.read_bytes()
    body, checksum = content[:-_CHECKSUM_DIGITS], content[-_CHECKSUM_DIGITS:]
    if len(content) != OWNER_BYTES or (checksum.strip() and checksum != _checksum(body)):
        raise DamagedError(f"{owner_path}: is not what was written")
    try:
        version = msgspec.json.decode(body, type=_Versioned).version
        if version > FORMAT_VERSION:
            raise written_by_newer(f"{owner_path}: is of format {version}", FORMAT_VERSION)
        return msgspec.json.decode(body, type=OwnerRecord)
    except msgspec.DecodeError as error:
        raise DamagedError(f"{owner_path}: {error}") from error


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_CHECKSUM_DIGITS // 2).hexdigest().encode()


def _write_owner(owner_path: Path, record: OwnerRecord) -> None:
    """Write the record over the one before: that needs no room on a disk that is full.

    The name is made durable each time: whoever made the file may have been killed before it was.
    """
    descriptor = os.open(owner_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        body = msgspec.json.encode(record).ljust(OWNER_BYTES - _CHECKSUM_DIGITS)
        write_at(descriptor, body + _checksum(body), 0)
        if os.fstat(descriptor).st_size != OWNER_BYTES:
            os.ftruncate(descriptor, OWNER_BYTES)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_directory(owner_path.parent)


def _start_ticks(pid: int) -> int | None:
    """Return field 22 of /proc/<pid>/stat, or None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command, field 2, is in parentheses and may itself hold spaces and parentheses.
    return int(stat.rpartition(")")[2].split()[19])
