"""Faults to plant in the product, each the kind of mistake that a durability test must notice.

A plant changes modules of its own process, so it is for processes that do nothing else.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lmdb

from actors import board_actor, logged_board
from actors.board import DAY_US, Board
from actors.board_actor import BoardActor
from actors.keyset import KeySet
from actors.logged_board import LoggedBoard
from actors.questions import Reply
from actors.shown_log import ERASING
from persistence import event_log, head, ownership
from persistence.errors import CommitFailedError
from persistence.event_log import LmdbEventLog
from persistence.records import EventsRecord, Record

KEYS = "keys"
COMMIT_DELAY_SECONDS = 0.001  # in which acknowledgements reach the journal


def sync_off() -> None:
    """Commit without a sync."""
    real = lmdb.open

    def careless(*arguments: Any, **options: Any) -> Any:
        return real(*arguments, **options | {"sync": False, "metasync": False})

    lmdb.open = careless


def ack_before_commit() -> None:
    """Answer while the commit is still to come."""

    async def submit_early(self: BoardActor, host: LoggedBoard, jobs: list[Any]) -> list[Reply]:
        planned = host.plan([job.work for job in jobs], board_actor._now_us())
        replies = host.settle(planned)
        for job, reply in zip(jobs, replies, strict=True):
            job.reply.set_result(reply)
        await asyncio.sleep(COMMIT_DELAY_SECONDS)
        if planned.record is not None:
            await self._commit(host, [planned.record])
        return replies

    BoardActor._submit = submit_early  # type: ignore[method-assign]


def commit_error_ignored() -> None:
    """Go on after a commit that failed as if it had not."""

    async def commit_whatever(
        self: BoardActor, host: LoggedBoard, records: Sequence[Record]
    ) -> None:
        def commit() -> None:
            try:
                host.commit(records)
            except CommitFailedError:
                host.log._failed = False
                host.log._end = records[-1].last_sequence, host.log.last_hash

        await asyncio.get_running_loop().run_in_executor(self._writer, commit)

    BoardActor._commit = commit_whatever  # type: ignore[method-assign]


def key_outside_transaction() -> None:
    """Keep keys in a file of their own, written after the commit of their events."""
    commit, recover = LoggedBoard.commit, logged_board.recover_board

    def commit_then_keep(self: LoggedBoard, records: Sequence[Record]) -> None:
        commit(self, records)
        with (self.directory / KEYS).open("a") as file:
            file.writelines(f"{record.first_sequence}\n" for record in records)

    def recover_keys(log: LmdbEventLog, snapshots: Path, archives: Path) -> tuple[Board, Any]:
        board, report = recover(log, snapshots, archives)
        path = log.directory.parent / KEYS
        kept = set(map(int, path.read_text().split())) if path.exists() else set()
        board.keys = KeySet(board.identity.hash_key)
        for record in log.read():
            if isinstance(record, EventsRecord) and record.first_sequence in kept:
                day = record.recorded_at_us // DAY_US
                board.keys.add(record.key_ends, record.keys, record.first_sequence, day)
        return board, report

    LoggedBoard.commit = commit_then_keep  # type: ignore[method-assign]
    logged_board.recover_board = recover_keys


def head_before_commit() -> None:
    """Remember the end of the log before the log ends there."""
    store = LmdbEventLog._store

    def store_late(
        self: LmdbEventLog, items: Sequence[tuple[int, bytes]], end: tuple[int, bytes]
    ) -> None:
        assert self._head_file is not None
        self._head_file.advance(*end)
        store(self, items, end)

    LmdbEventLog._store = store_late  # type: ignore[method-assign]


def checksum_unchecked() -> None:
    """Take the slots of a head for what they say, whatever their checksums are."""
    real = head._unpack

    def trusting(path: Path, slot: bytes) -> head.Head | None:
        content = slot[: head._SLOT.size]
        return real(path, content + head._checksum(content))

    head._unpack = trusting


def _skip_syncs_of(skipped: Callable[[int], bool]) -> None:
    real = os.fsync

    def careless(descriptor: int) -> None:
        if not skipped(os.fstat(descriptor).st_mode):
            real(descriptor)

    os.fsync = careless  # type: ignore[assignment]


def rename_without_fsync() -> None:
    """Give files their names before their content is on disk."""
    _skip_syncs_of(stat.S_ISREG)


def directory_not_synced() -> None:
    """Leave it to the system when names become durable."""
    _skip_syncs_of(stat.S_ISDIR)


def inherited_names_not_synced() -> None:
    """Take the names that a killed process left for durable, and sync only those of one's own."""
    real = os.fsync
    inheriting = {"_open_as_owner", "scan", "purge", "refresh"}

    def careless(descriptor: int) -> None:
        frame = sys._getframe(2)  # of whoever called `sync_directory`, or `Directory._sync`
        if frame.f_code.co_name == "_sync" and frame.f_back is not None:
            frame = frame.f_back
        if frame.f_code.co_name not in inheriting:
            real(descriptor)

    os.fsync = careless  # type: ignore[assignment]


def exchange_not_synced() -> None:
    """Take two logs for exchanged before that is durable."""
    real = event_log.sync_directory

    def careless(directory: Path) -> None:
        if sys._getframe(1).f_code.co_name != "put_in_place" or directory.name == ERASING:
            real(directory)

    event_log.sync_directory = careless


def inherited_exchange_not_synced() -> None:
    """Take for durable which of two logs a killed process left in use."""
    ownership.sync_directory = lambda _: None


def finished_too_early() -> None:
    """Say that a name is gone while the log that holds it is still to be removed."""
    erase = LoggedBoard.erase_names

    def say_so_first(self: LoggedBoard, now_us: int) -> None:
        remove = self.shown_log.remove_former

        def saying_so() -> None:
            records = self.shown_log.finished(self.board.rulings.erasing, 0)
            self.commit(records)
            self.apply_all(records)
            remove()

        self.shown_log.remove_former = saying_so  # type: ignore[method-assign]
        erase(self, now_us)

    LoggedBoard.erase_names = say_so_first  # type: ignore[method-assign]


READING = {"checksum-unchecked"}  # what is planted in how files are read, so in the check too

PLANTS: dict[str, Callable[[], None]] = {
    "sync-off": sync_off,
    "ack-before-commit": ack_before_commit,
    "commit-error-ignored": commit_error_ignored,
    "key-outside-transaction": key_outside_transaction,
    "head-before-commit": head_before_commit,
    "checksum-unchecked": checksum_unchecked,
    "rename-without-fsync": rename_without_fsync,
    "directory-not-synced": directory_not_synced,
    "inherited-names-not-synced": inherited_names_not_synced,
    "exchange-not-synced": exchange_not_synced,
    "inherited-exchange-not-synced": inherited_exchange_not_synced,
    "finished-too-early": finished_too_early,
}
