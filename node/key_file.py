"""The keys on disk: `keys.json` in the data directory, written by commands, watched by the node.

Owns the file. It holds hashes and public keys, nothing that opens a node, and yet is for its owner
alone (mode 0600): it says who may do what. It is replaced whole, so a reader never sees half of it,
and two commands at once wait for each other. The node asks for the file's state at each request:
what a command wrote counts from the next request on.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from node.keys import Key
from persistence.errors import DamagedError, FormatTooNewError, RanknodeError
from persistence.files import PRIVATE_MODE, make_directory, write_atomically

FILE = "keys.json"
NODE_LOCK = "node.lock"  # made by the node itself, so its owner is the node's user
VERSION = 1
MODE = 0o600
KEYS_MAX = 1_000
FILE_BYTES_MAX = 8 << 20  # a thousand keys with every field at its longest take four
LEADS_NOWHERE = "it is a link that leads nowhere"
LOCK_SECONDS_MAX = 10.0
LOCK_RETRY_SECONDS = 0.02

_LOG = logging.getLogger("ranknode")


class KeysError(RanknodeError):
    """Raised for what the user of a key command can put right."""


class KeysUnreadableError(RanknodeError):
    """Raised when the keys are not known: the file is damaged, unreadable, or gone."""


class _Versioned(msgspec.Struct, frozen=True):
    version: int


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    keys: list[Key]


def decode(content: bytes) -> dict[str, Key]:
    """Read the content of a file; the keys by their ids.

    Errors: FormatTooNewError, DamagedError; neither holds anything of the content but field names.
    """
    try:
        version = msgspec.json.decode(content, type=_Versioned).version
        if version > VERSION:
            raise FormatTooNewError(
                f"it has version {version}, from a newer ranknode; this one reads {VERSION}"
            )
        if version < 1:
            raise DamagedError(f"there is no version {version}")
        listed = msgspec.json.decode(content, type=_File).keys
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(f"it holds no keys: {error}") from None
    keys = {key.id: key for key in listed}
    if len(keys) != len(listed):
        raise DamagedError("an id is there twice")
    if len(keys) > KEYS_MAX:
        raise DamagedError(f"there are more than {KEYS_MAX} keys")
    return keys


def encode(keys: Mapping[str, Key]) -> bytes:
    """Write the content of a file, one key a line."""
    lines = b",\n".join(map(msgspec.json.encode, keys.values()))
    return b'{"version":%d,"keys":[\n%b\n]}\n' % (VERSION, lines)


class _Mark(NamedTuple):
    """What tells one state of the file from every other, without reading it."""

    inode: int
    changed_ns: int
    size: int


def _mark(found: os.stat_result) -> _Mark:
    return _Mark(found.st_ino, found.st_mtime_ns, found.st_size)


def _read(path: Path) -> tuple[_Mark, bytes]:
    """Read the file, and what it was marked with then. Errors: OSError, DamagedError."""
    # Without O_NONBLOCK to open a pipe is to wait for who writes to it.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise DamagedError("it is no regular file")
        mark = _mark(found)
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise DamagedError(f"it is larger than {FILE_BYTES_MAX} bytes")
    return mark, content


class KeyFile:
    """The keys of a data directory as a node sees them, from request to request.

    Without a file there are no keys, and everyone may do everything. Once a file was seen that is
    over for as long as the node runs: one that is damaged, unreadable or gone lets nobody in. Says
    in the log what changed, once per change.
    """

    def __init__(self, data_directory: Path) -> None:
        self._path = data_directory / FILE
        self._mark: _Mark | None = None
        self._keys: Mapping[str, Key] | None = None
        self._failure = ""

    def current(self) -> Mapping[str, Key] | None:
        """Return the keys by their ids; None where there never was a file.

        Complexity: one stat, unless the file changed. Errors: KeysUnreadableError.
        """
        try:
            found = self._look()
            if found is None:
                if self._keys is None and not self._failure:
                    return None
                self._fail(None, "it is gone")
            elif (mark := _mark(found)) != self._mark:
                self._load(mark)
        except FileNotFoundError:
            self._fail(None, LEADS_NOWHERE)
        except OSError as error:
            # Perhaps it can be read the next time, though nothing about it has changed.
            self._fail(None, error.strerror or type(error).__name__)
        if self._failure:
            raise KeysUnreadableError(self._failure)
        return self._keys

    def _look(self) -> os.stat_result | None:
        """Look at the file, or where a link in its place leads; None where there is neither.

        Errors: OSError, FileNotFoundError for a link that leads nowhere.
        """
        try:
            found = os.lstat(self._path)
        except FileNotFoundError:
            return None
        return os.stat(self._path) if stat.S_ISLNK(found.st_mode) else found

    def _load(self, found: _Mark) -> None:
        """Read what changed. Errors: OSError."""
        try:
            found, content = _read(self._path)
            keys = decode(content)
        except (DamagedError, FormatTooNewError) as error:
            self._fail(found, str(error))
            return
        self._mark, self._failure = found, ""
        self._keys = MappingProxyType(keys)
        good = sum(key.revoked_at_us is None for key in keys.values())
        _LOG.info("API keys: %d, besides %d revoked", good, len(keys) - good)

    def _fail(self, mark: _Mark | None, failure: str) -> None:
        if failure != self._failure or mark != self._mark:
            _LOG.error("no call that needs a key is let in: %s: %s", self._path, failure)
        self._mark, self._failure = mark, failure


def read_keys(data_directory: Path) -> dict[str, Key]:
    """Read the keys for a command; none where there is no file. Errors: RanknodeError, OSError."""
    path = data_directory / FILE
    try:
        return decode(_read(path)[1])
    except FileNotFoundError:
        if not data_directory.is_dir():
            raise KeysError(f"{data_directory} is no directory") from None
        if path.is_symlink():
            raise KeysError(f"{path}: {LEADS_NOWHERE}") from None
        return {}
    except (DamagedError, FormatTooNewError) as error:
        raise KeysError(f"{path}: {error}") from None


@contextlib.contextmanager
def changing_keys(data_directory: Path, *, make: bool = False) -> Iterator[dict[str, Key]]:
    """Give the keys to be changed; they are durable, and in force, when the block ends.

    make: the directory is created if it is missing. Nothing is written if it raises. Whoever comes
    meanwhile waits, for a bounded time. Errors: KeysError, OSError.
    """
    if make:
        make_directory(data_directory, PRIVATE_MODE)
    elif not data_directory.is_dir():
        raise KeysError(f"{data_directory} is no directory")
    _check_user(data_directory)
    # A lock on the directory itself, since the file is replaced by each change.
    directory = os.open(data_directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(directory)
        keys = read_keys(data_directory)
        yield keys
        content = encode(keys)
        decode(content)
        write_atomically(data_directory / FILE, [content], MODE)
    finally:
        os.close(directory)


def _check_user(data_directory: Path) -> None:
    """Refuse to write a file that the node of this directory could not read. Errors: KeysError."""
    with contextlib.suppress(FileNotFoundError):
        user = (data_directory / NODE_LOCK).stat().st_uid
        if user != os.geteuid():
            raise KeysError(
                f"the node over {data_directory} runs as the user with id {user}, who could not"
                " read keys of another one; run this as that user"
            )


def _lock(directory: int) -> None:
    deadline = time.monotonic() + LOCK_SECONDS_MAX
    while True:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise KeysError("another command is changing the keys; try again") from None
            time.sleep(LOCK_RETRY_SECONDS)
        else:
            return
