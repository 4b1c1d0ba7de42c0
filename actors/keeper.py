"""What happens behind an open board's back: snapshots, archives, and reading them again.

Owns three kinds of work that threads do while the board is asked and written to: copying its state
into a snapshot, sealing what closed, and fetching what a query needs from disk. All methods are
called on the board's loop. A failure of any of it costs time, never an event: the log holds all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from actors.errors import Refusal
from actors.logged_board import LoggedBoard
from actors.sealed import NotAtHandError
from persistence.errors import DamagedError, RanknodeError

SNAPSHOT_BYTES_PER_SECOND = 100 << 20  # what a plain disk takes, fsync included

_LOG = logging.getLogger("ranknode.board")


class Keeper:
    """The background work of one open board. on_error: called with what nobody expected."""

    def __init__(self, host: LoggedBoard, on_error: Callable[[BaseException], None]) -> None:
        self._host = host
        self._on_error = on_error
        self._writer = ThreadPoolExecutor(1, "keeper")
        self._reader = ThreadPoolExecutor(1, "archives")
        self._snapshot: asyncio.Task[None] | None = None
        self._sealing: asyncio.Task[None] | None = None
        self._fetching = asyncio.Lock()
        self._beyond_damage: set[str] = set()  # windows whose archives the log cannot make again

    async def copy_if_due(self) -> None:
        """Copy the state while the caller lets nothing change, where a snapshot is due."""
        if self._host.snapshot_due and (self._snapshot is None or self._snapshot.done()):
            await self._start_snapshot()

    async def _start_snapshot(self) -> None:
        loop = asyncio.get_running_loop()
        copy = await loop.run_in_executor(self._writer, self._host.copy_state)

        async def write() -> None:
            try:
                await loop.run_in_executor(self._writer, self._host.write_copy, copy)
            except OSError as error:
                # The next snapshot is tried when it is due.
                _LOG.error("%s: no snapshot could be written: %s", self._host.directory, error)

        self._snapshot = self._start(write())

    def seal_soon(self) -> None:
        """Write the archives of what closed, and of what lost its own; nobody waits for it."""
        self._host.archives.forget_expired()
        if (self._sealing is None or self._sealing.done()) and (
            self._host.board.unsealed or self._rebuildable or self._host.archives.expired
        ):
            self._sealing = self._start(self._seal())

    @property
    def _rebuildable(self) -> set[str]:
        return self._host.archives.missing - self._beyond_damage

    async def _seal(self) -> None:
        try:
            await self._seal_once()
            while self._host.board.unsealed:  # what closed meanwhile
                await self._seal_once()
        except (RanknodeError, OSError) as error:
            # What is not sealed now is made again at the next closing, or the next start.
            _LOG.error("%s: an archive could not be written: %s", self._host.directory, error)

    async def _seal_once(self) -> None:
        loop, host = asyncio.get_running_loop(), self._host
        while unsealed := list(host.board.unsealed.values()):
            closed = host.board.closed[unsealed[0].id]
            digest = await loop.run_in_executor(
                self._writer, host.archives.seal, closed, unsealed[0]
            )
            host.archives.sealed(closed.id, digest)
        if wanted := self._rebuildable:

            def sealed(window: str, digest: str) -> None:
                loop.call_soon_threadsafe(host.archives.sealed, window, digest)

            try:
                await loop.run_in_executor(self._writer, host.rebuild_archives, sealed)
            except DamagedError:
                self._beyond_damage |= wanted & host.archives.missing
                raise
        if host.archives.expired:
            await loop.run_in_executor(self._writer, host.archives.remove_expired)

    async def fetch(self, wanted: NotAtHandError) -> None:
        """Bring to memory what an answer needs.

        Errors: Refusal board_unavailable while an archive has to be made again, or if it cannot.
        """
        async with self._fetching:
            for window in wanted.windows:
                await self._fetch(window, wanted.standings)

    async def _fetch(self, window: str, standings: bool) -> None:
        host = self._host
        if self._sealing is not None and window in host.board.unsealed:
            await asyncio.shield(self._sealing)
        closed = host.board.closed.get(window)
        at_hand = host.archives.standings if standings else host.archives.digest
        if closed is None or at_hand(window) is not None:
            return
        if window not in host.archives.missing:
            loop = asyncio.get_running_loop()
            try:
                found = await loop.run_in_executor(self._reader, host.archives.read, closed)
            except (RanknodeError, OSError) as error:
                _LOG.error("%s: %s; it is made again from the log", host.directory, error)
                host.archives.missing.add(window)
            else:
                host.archives.keep(*found)
                return
        if window in self._beyond_damage:
            raise Refusal(
                "board_unavailable", "the board's files are damaged; the node's log says how"
            )
        self.seal_soon()
        raise Refusal("board_unavailable", "the window's archive is being made again")

    async def finish(self, snapshot_seconds: float) -> None:
        """End what is under way, and snapshot if that fits into `snapshot_seconds`."""
        for task in (self._sealing, self._snapshot):
            if task is not None:
                await task
        host = self._host
        useful = not host.board.unsealed and not host.snapshot_current
        if useful and host.board.nbytes < snapshot_seconds * SNAPSHOT_BYTES_PER_SECOND:
            await self._start_snapshot()
            assert self._snapshot is not None
            await self._snapshot

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_error(error)
