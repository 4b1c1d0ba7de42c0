"""One segment of a log: an LMDB environment of records, and the seal of one that is full.

Owns how an environment is created, checked, opened, read and written. A segment's directory holds
LMDB's `data.mdb` and `lock.mdb` and, once it is full, the file `sealed`. In the environment, a
key is the first sequence of its record, 8 bytes big-endian. Two more keys sort before all of them:
one zero byte holds the epoch of the log's owner; two hold the hash that the next segment goes on
from, in a segment that was written again since that one began.

LMDB trusts its file: an offset out of place may end the process. So each environment is walked
by lmdb's own offline verifier, which never maps the file, before its tree is used. Records carry
their own hash, the epoch a checksum. Knows nothing of the segments before and after.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import msgspec

from persistence.errors import (
    CommitFailedError,
    DamagedError,
    FencedError,
    written_by_newer,
)
from persistence.files import sync_directory
from persistence.pages import page_findings, require_meta, require_pages
from persistence.records import Event, link_of, peek
from persistence.value_file import VERSION, read_value, write_value

DATA = "data.mdb"
SEALED = "sealed"
SCAN_BYTES_MAX = 4 << 20  # what one short read transaction of a scan copies out, about
EMPTY_SEGMENT_BYTES = 1 << 20  # what LMDB's pages take besides those of the records, and more
NODE_PAGES = 2  # pages one more record may dirty besides those of its value
COMMIT_PAGES = 64  # pages of one commit besides its records: the tree's spine, the free list

_EPOCH_KEY = b"\0"
_FOLLOWED_KEY = b"\0\0"
_FIRST_KEY = bytes(8)  # at or before the key of every record
# The checksum, the last 8 bytes, covers all before it whatever the format, which the length tells.
_EPOCH = struct.Struct("<Q8s")
_EPOCH_CHECKSUM_BYTES = 8
_STRUCTURE_ATTEMPTS = 3  # a walk beside a writer may meet a meta page half written


class Seal(msgspec.Struct, frozen=True):
    """What a full segment holds. last_hash, the end of a chain of hashes, vouches for all of it.

    first_previous_hash is the hash that the chain goes on from, pages what the tree occupies.
    followed_hash is what the next segment goes on from where that is not last_hash, since this one
    was written again; empty otherwise.
    """

    first_sequence: int
    last_sequence: int
    records: int
    first_previous_hash: bytes
    last_hash: bytes
    pages: int
    followed_hash: bytes = b""
    version: int = VERSION

    @property
    def end(self) -> tuple[int, bytes]:
        """Return the last sequence and the hash that the next segment goes on from."""
        return self.last_sequence, self.followed_hash or self.last_hash


def read_seal(directory: Path) -> Seal | None:
    """Return the seal of the segment in `directory`, None if it has none.

    Raises DamagedError, FormatTooNewError.
    """
    try:
        return read_value(directory / SEALED, Seal)
    except FileNotFoundError:
        return None


def write_seal(directory: Path, seal: Seal) -> None:
    """Seal the segment in `directory`; durable on return."""
    write_value(directory / SEALED, seal)


def link_files(source: Path, target: Path) -> None:
    """Make the directory `target` another place of the segment in `source`; durable on return."""
    target.mkdir()
    for path in source.iterdir():
        os.link(path, target / path.name)
    sync_directory(target)


class Segment:
    """An open environment.

    Opening: `open_live` to write or to read beside a writer, `open_sealed`; `create`.
    Reading, each in one short transaction: `entries`, `pages`, `epoch`, `locate`, `fetch`,
    `peek`, `ends`, `chunk`. Writing: `raise_epoch`, `put`, `fenced`. Reads are safe from any thread
    beside one writing thread.
    """

    def __init__(self, directory: Path, environment: lmdb.Environment) -> None:
        self.directory = directory
        self._environment = environment
        self.page_bytes = environment.stat()["psize"]

    @classmethod
    def open_live(cls, directory: Path, map_bytes: int, *, writable: bool) -> Segment:
        """Open a segment that a process may be writing: this one, or another."""
        environment = _open(directory, map_bytes, readonly=not writable, lock=True)
        try:
            # An open read transaction keeps the pages of this commit, and of all later ones, from
            # being used again while the verifier reads them.
            with environment.begin():
                for _ in range(_STRUCTURE_ATTEMPTS):
                    findings = page_findings(directory / DATA)
                    if not findings:
                        break
            environment.reader_check()  # frees the places of readers that were killed
        except lmdb.Error as error:
            findings = [str(error)]
        if findings:
            environment.close()
            raise DamagedError(f"{directory}: {findings[0]}")
        return cls(directory, environment)

    @classmethod
    def open_sealed(cls, directory: Path, *, checked: bool) -> Segment:
        """Open a segment that nobody writes any more; checked if this process has walked it."""
        findings = [] if checked else page_findings(directory / DATA)
        if findings:
            raise DamagedError(f"{directory}: {findings[0]}")
        return cls(directory, _open(directory, 0, readonly=True, lock=False))

    @classmethod
    def create(cls, directory: Path, map_bytes: int, epoch: int) -> None:
        """Create an empty segment in `directory`, which must be empty; its files are durable.

        Raises CommitFailedError.
        """
        try:
            environment = _environment(directory, map_bytes, readonly=False, lock=True)
        except lmdb.Error as error:
            raise CommitFailedError(f"{directory}: {error}") from error
        with environment:
            cls(directory, environment)._store_epoch(epoch)

    def close(self) -> None:
        """Close the environment; no transaction may be open."""
        self._environment.close()

    @property
    def entries(self) -> int:
        """Return how many records the segment holds."""
        others = 2 if self.followed_hash else 1
        return self._environment.stat()["entries"] - others

    @property
    def followed_hash(self) -> bytes:
        """Return the hash that the next segment goes on from; empty where it is the last one's."""
        with self._read() as transaction:
            value = transaction.get(_FOLLOWED_KEY) or b""
        content, checksum = value[:-_EPOCH_CHECKSUM_BYTES], value[-_EPOCH_CHECKSUM_BYTES:]
        if value and _checksum(content) != checksum:
            raise DamagedError(f"{self.directory / DATA}: the hash that follows it is not legible")
        return content

    @property
    def pages(self) -> int:
        """Return how many pages the file has come to use, free ones included."""
        return self._environment.info()["last_pgno"] + 1

    @property
    def map_pages(self) -> int:
        """Return how many pages the file can come to use."""
        return self._environment.info()["map_size"] // self.page_bytes

    @property
    def epoch(self) -> int:
        """Return the epoch of the log's owner."""
        with self._read() as transaction:
            return self._epoch_in(transaction)

    def locate(self, sequence: int) -> int | None:
        """Return the first sequence of the last record that begins at or before `sequence`."""
        with self._read() as transaction, transaction.cursor() as cursor:
            return _sequence(cursor.key()) if _seek(cursor, sequence) else None

    def fetch(self, first_sequence: int) -> bytes | None:
        """Return the bytes of the record that begins at `first_sequence`, None if none does."""
        with self._read() as transaction:
            return transaction.get(_key(first_sequence))

    def peek(self, sequence: int) -> Event | None:
        """Return the event that has `sequence`, unverified; None where it is no event.

        Only the pages that the event lies on are read, and only the event is copied. Raises
        DamagedError where no record holds `sequence`.
        """
        with (
            self._damage_named(),
            self._environment.begin(buffers=True) as transaction,
            transaction.cursor() as cursor,
        ):
            if not _seek(cursor, sequence):
                raise DamagedError(f"{self.directory / DATA}: no record holds sequence {sequence}")
            return peek(cursor.value(), sequence)

    def ends(self) -> tuple[tuple[int, bytes], tuple[int, bytes]] | None:
        """Return first sequence and bytes of the first and the last record, None if empty."""
        with self._read() as transaction, transaction.cursor() as cursor:
            if not cursor.set_range(_FIRST_KEY):
                return None
            first = _sequence(cursor.key()), cursor.value()
            cursor.last()
            return first, (_sequence(cursor.key()), cursor.value())

    def chunk(self, from_sequence: int) -> list[tuple[int, bytes]]:
        """Return about SCAN_BYTES_MAX of the records that begin there or later, in order.

        Each as first sequence and bytes; none means that no record is left.
        """
        found: list[tuple[int, bytes]] = []
        found_bytes = 0
        with self._read() as transaction, transaction.cursor() as cursor:
            if cursor.set_range(_key(from_sequence)):
                for key, value in cursor:
                    found.append((_sequence(key), value))
                    found_bytes += len(value)
                    if found_bytes >= SCAN_BYTES_MAX:
                        break
        return found

    def require_chain(self, after: tuple[int, bytes], until: int) -> tuple[int, bytes]:
        """Follow the hashes that the records name, from `after` on; return where that ends.

        after: a sequence and the hash of the record that ends with it. Records that begin after
        `until` are left out. What the walk has seen is one row, and so is each of its records once
        it is decoded and has the hash that it names. Raises DamagedError where the row breaks.
        Complexity: O(records).
        """
        sequence, chain = after
        with (
            self._damage_named(),
            self._environment.begin(buffers=True) as transaction,
            transaction.cursor() as cursor,
        ):
            found = cursor.set_range(_key(sequence + 1))
            while found and (first_sequence := _sequence(bytes(cursor.key()))) <= until:
                link = link_of(cursor.value())
                place = (first_sequence, link.first_sequence, link.previous_hash)
                if place != (sequence + 1, sequence + 1, chain):
                    raise DamagedError(
                        f"{self.directory / DATA}: the record at sequence {first_sequence}"
                        f" does not follow that of {sequence}"
                    )
                sequence, chain = link.last_sequence, link.hash
                found = cursor.next()
        return sequence, chain

    def raise_epoch(self, epoch: int) -> int:
        """Become the writer: store `epoch`, which must be higher than the one there; return that.

        Waits for the transaction of another writer. Raises FencedError if `epoch` is not higher.
        """
        with self._write() as transaction:
            former = self._epoch_in(transaction)
            if epoch <= former:
                raise FencedError(f"{self.directory}: epoch {epoch} is not after {former}")
            transaction.put(_EPOCH_KEY, _pack_epoch(epoch))
        return former

    def put(self, items: Sequence[tuple[int, bytes]], epoch: int) -> None:
        """Commit records in one transaction; they are on disk when it returns.

        Raises FencedError when another owner has taken over, CommitFailedError when LMDB fails:
        whether the records are on disk is then unknown.
        """
        with self._write() as transaction:
            self._require_epoch(transaction, epoch)
            for first_sequence, data in items:
                if not transaction.put(_key(first_sequence), data, append=True):
                    raise AssertionError(f"sequence {first_sequence} is not the log's next")

    def put_followed_hash(self, followed_hash: bytes) -> None:
        """Commit the hash that the next segment goes on from. Raises CommitFailedError."""
        with self._write() as transaction:
            transaction.put(_FOLLOWED_KEY, followed_hash + _checksum(followed_hash))

    @contextmanager
    def fenced(self, epoch: int) -> Iterator[None]:
        """Hold the writer's lock, as the owner that has `epoch`, without writing."""
        transaction = self._environment.begin(write=True)
        try:
            self._require_epoch(transaction, epoch)
            yield
        finally:
            transaction.abort()

    def _store_epoch(self, epoch: int) -> None:
        with self._write() as transaction:
            transaction.put(_EPOCH_KEY, _pack_epoch(epoch))

    def _require_epoch(self, transaction: lmdb.Transaction[bytes], epoch: int) -> None:
        stored = self._epoch_in(transaction)
        if stored != epoch:
            raise FencedError(f"{self.directory}: epoch {stored} has replaced {epoch}")

    def _epoch_in(self, transaction: lmdb.Transaction[bytes]) -> int:
        value = transaction.get(_EPOCH_KEY) or b""
        content, checksum = value[:-_EPOCH_CHECKSUM_BYTES], value[-_EPOCH_CHECKSUM_BYTES:]
        if _checksum(content) != checksum:
            raise DamagedError(f"{self.directory / DATA}: its epoch is not legible")
        if len(value) != _EPOCH.size:
            raise written_by_newer(
                f"{self.directory / DATA}: its epoch takes {len(value)} bytes", _EPOCH.size
            )
        epoch: int = _EPOCH.unpack(value)[0]
        return epoch

    @contextmanager
    def _read(self) -> Iterator[lmdb.Transaction[bytes]]:
        with self._damage_named(), self._environment.begin() as transaction:
            yield transaction

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except lmdb.Error as error:
            raise DamagedError(f"{self.directory / DATA}: {error}") from error

    @contextmanager
    def _write(self) -> Iterator[lmdb.Transaction[bytes]]:
        try:
            transaction = self._environment.begin(write=True)
            try:
                yield transaction
            except BaseException:
                transaction.abort()
                raise
            commit(transaction)
        except lmdb.Error as error:
            raise CommitFailedError(f"{self.directory}: {error}") from error


def commit(transaction: lmdb.Transaction[bytes]) -> None:
    """Commit a write transaction: the one call after which its records are on disk."""
    transaction.commit()


def _open(directory: Path, map_bytes: int, *, readonly: bool, lock: bool) -> lmdb.Environment:
    """Open an environment that exists, once its page size, which LMDB divides by, is plausible."""
    path = directory / DATA
    require_meta(path)
    try:
        environment = _environment(directory, map_bytes, readonly=readonly, lock=lock)
    except lmdb.Error as error:
        raise DamagedError(f"{path}: {error}") from error
    try:
        require_pages(path, environment.info()["last_pgno"] + 1)
    except BaseException:
        environment.close()
        raise
    return environment


def _environment(
    directory: Path, map_bytes: int, *, readonly: bool, lock: bool
) -> lmdb.Environment:
    """Open with every option spelled out: durability must not depend on a default.

    map_bytes 0 takes what the file says.
    """
    return lmdb.open(
        str(directory),
        map_size=map_bytes,
        subdir=True,
        readonly=readonly,
        create=False,
        sync=True,
        metasync=True,
        writemap=False,
        map_async=False,
        meminit=True,
        lock=lock,
        readahead=True,
        max_readers=126,
        max_dbs=0,
        max_spare_txns=1,
        lib_version=0,
    )


def _seek(cursor: lmdb.Cursor[Any], sequence: int) -> bool:
    """Move to the last record that begins at or before `sequence`; tell whether there is one."""
    wanted = _key(sequence)
    found = bool(cursor.set_range(wanted))
    if not found:
        found = cursor.last()
    elif cursor.key() != wanted:
        found = cursor.prev()
    return found and bytes(cursor.key()) >= _FIRST_KEY


def _key(sequence: int) -> bytes:
    return sequence.to_bytes(8, "big")


def _sequence(key: bytes) -> int:
    if len(key) != 8:
        raise DamagedError(f"a key of {len(key)} bytes among the records")
    return int.from_bytes(key, "big")


def _pack_epoch(epoch: int) -> bytes:
    return _EPOCH.pack(epoch, _checksum(epoch.to_bytes(8, "little")))


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_EPOCH_CHECKSUM_BYTES).digest()
