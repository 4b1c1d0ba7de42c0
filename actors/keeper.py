"""What happens behind an open board's back: snapshots, archives, reading them again, erasing.

Owns four kinds of work that threads do while the board is asked and written to: copying its state
into a snapshot, sealing what closed, fetching what a query needs from disk, and taking erased names
off it. All methods are called on the board's loop. A failure of any of it costs time, never an
event: the log holds all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from actors.archives import Key
from actors.closed_window import ClosedWindow
from actors.errors import Refusal
from actors.logged_board import LoggedBoard, StateCopy
from actors.measures import Measures
from actors.members import give_back
from actors.sealed import NotAtHandError
from persistence.errors import CommitFailedError, DamagedError, FencedError, RanknodeError

ERASED_AT_ONCE = 1_000  # names that one writing of the log takes out
ERASE_AGAIN_SECONDS = 60.0  # after a try that failed, twice as long after each other one
ERASE_AGAIN_SECONDS_MAX = 3_600.0
SEALING_ROUNDS_MAX = 10  # that erasing waits for, while more windows close
MAKING_SECONDS_MAX = 2.0  # what a reader waits for an archive that is being made again
SNAPSHOT_BYTES_PER_SECOND = 100 << 20  # what a plain disk takes, fsync included

_LOG = logging.getLogger("ranknode.board")


Exclusively = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]


class StoppedError(Exception):
    """Raised inside background work that is to end, since the board is put away."""


class Keeper:
    """The background work of one open board.

    on_error: called with what nobody expected. exclusively: has something done while nothing else
    is committed or changes the board; raises StoppedError where that cannot be any more. committer:
    the thread that commits. measures: where the work is counted.
    """

    def __init__(
        self,
        host: LoggedBoard,
        on_error: Callable[[BaseException], None],
        exclusively: Exclusively,
        committer: Executor,
        measures: Measures,
    ) -> None:
        self._host = host
        self._measures = measures
        self._on_error = on_error
        self._exclusively = exclusively
        self._committer = committer
        self._stopping = False
        self._exchanging = False
        self._erasing: asyncio.Task[None] | None = None
        self._erase_at = 0.0
        self._erase_failures = 0
        self._writer = ThreadPoolExecutor(1, "keeper")
        self._reader = ThreadPoolExecutor(1, "archives")
        self._rewriter = ThreadPoolExecutor(1, "erasing")  # which takes long
        self._snapshot: asyncio.Task[None] | None = None
        self._sealing: asyncio.Task[None] | None = None
        self._fetching = asyncio.Lock()
        self._beyond_damage: set[Key] = set()  # archives that the log cannot make again

    async def copy_if_due(self) -> None:
        """Copy the state while the caller lets nothing change, where a snapshot is due."""
        idle = self._snapshot is None or self._snapshot.done()
        if idle and not self._exchanging and self._host.snapshot_due:
            await self._start_snapshot()

    async def _start_snapshot(self) -> None:
        copy = await self._copy()

        async def write() -> None:
            try:
                await self._write(copy)
            except OSError as error:
                # The next snapshot is tried when it is due.
                self._measures.snapshot_failures += 1
                _LOG.error("%s: no snapshot could be written: %s", self._host.directory, error)

        self._snapshot = self._start(write())

    async def _copy(self) -> StateCopy:
        """Copy the state, which nothing may change meanwhile."""
        begun = time.monotonic()
        loop = asyncio.get_running_loop()
        copy = await loop.run_in_executor(self._writer, self._host.copy_state)
        self._measures.copy_seconds.add(time.monotonic() - begun)
        return copy

    async def _write(self, copy: StateCopy) -> None:
        """Write a copied state as the newest snapshot and give its memory back. Errors: OSError."""
        begun = time.monotonic()
        loop = asyncio.get_running_loop()

        def write() -> None:
            try:
                self._host.write_copy(copy)
            finally:
                give_back(copy.columns)  # whoever dropped all of it would hold up the loop

        await loop.run_in_executor(self._writer, write)
        self._measures.snapshot_written(time.monotonic() - begun, time.time_ns() // 1_000)

    def seal_soon(self) -> None:
        """Write the archives of what closed, and of what lost its own; nobody waits for it."""
        self._host.archives.forget_expired()
        idle = self._sealing is None or self._sealing.done()
        if (
            idle
            and not self._exchanging
            and (self._host.board.unsealed or self._rebuildable or self._host.archives.expired)
        ):
            self._sealing = self._start(self._seal())

    @property
    def _rebuildable(self) -> set[Key]:
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
            host.archives.sealed(closed, digest)
        if wanted := self._rebuildable:

            def sealed(closed: ClosedWindow, digest: str) -> None:
                loop.call_soon_threadsafe(host.archives.sealed, closed, digest)

            begun = time.monotonic()
            try:
                await loop.run_in_executor(self._writer, host.make_archives, sealed)
            except DamagedError:
                self._beyond_damage |= wanted & host.archives.missing
                raise
            self._measures.rebuild_seconds.add(time.monotonic() - begun)
        if host.archives.expired:
            await loop.run_in_executor(self._writer, host.archives.remove_expired)

    async def sealed(self) -> None:
        """Return when what is closed has been sealed, or could not be."""
        if self._sealing is not None:
            await asyncio.shield(self._sealing)

    async def fetch(self, wanted: NotAtHandError) -> None:
        """Bring to memory what an answer needs.

        Errors: Refusal board_unavailable while an archive has to be made again, or if it cannot.
        """
        async with self._fetching:
            for window, revision in wanted.revisions:
                await self._fetch(window, revision, wanted.standings)

    async def _fetch(self, window: str, revision: int, standings: bool) -> None:
        host = self._host
        if self._sealing is not None and window in host.board.unsealed:
            await asyncio.shield(self._sealing)
        closed = host.board.closed.get(window)
        if closed is None or revision > closed.revision:
            return
        at_hand = host.archives.standings if standings else host.archives.digest
        if at_hand(window, revision) is not None:
            return
        if not host.archives.is_missing(window, revision):
            loop = asyncio.get_running_loop()
            read = host.archives.read
            try:
                found = await loop.run_in_executor(self._reader, read, closed, revision)
            except (RanknodeError, OSError) as error:
                _LOG.error("%s: %s; it is made again from the log", host.directory, error)
                host.archives.missing.add((window, revision))
            else:
                host.archives.keep(revision, *found)
                return
        if (window, revision) in self._beyond_damage:
            raise Refusal(
                "board_unavailable", "the board's files are damaged; the node's log says how"
            )
        self.seal_soon()
        if self._sealing is not None:
            await asyncio.wait([self._sealing], timeout=MAKING_SECONDS_MAX)
        if host.archives.is_missing(window, revision):
            raise Refusal("board_unavailable", "the window's archive is being made again")

    def erase_soon(self) -> None:
        """Take erased names off the disk, where there are any; nobody waits for it."""
        idle = self._erasing is None or self._erasing.done()
        if idle and self._host.shown_log.erasing and time.monotonic() >= self._erase_at:
            self._erasing = self._start(self._erase())

    async def _erase(self) -> None:
        try:
            while self._host.shown_log.erasing:
                await self._erase_once()
                self._erase_failures = 0
        except StoppedError:
            return
        except (CommitFailedError, FencedError) as error:
            self._on_error(error)
        except (RanknodeError, OSError) as error:
            _LOG.error("%s: erasing a member is tried again: %s", self._host.directory, error)
            wait_seconds = ERASE_AGAIN_SECONDS * 2**self._erase_failures
            self._erase_failures += 1
            self._erase_at = time.monotonic() + min(wait_seconds, ERASE_AGAIN_SECONDS_MAX)

    async def _erase_once(self) -> None:
        """Go through the steps; after a crash between two of them all are gone through again."""
        loop, host = asyncio.get_running_loop(), self._host

        pending: list[bytes] = []
        copies: list[StateCopy] = []

        async def seal() -> None:
            pending.extend(host.board.rulings.erasing[:ERASED_AT_ONCE])
            await loop.run_in_executor(self._committer, host.log.seal_live)

        async def put_in_place() -> None:
            await loop.run_in_executor(self._committer, host.put_log_in_place)

        async def copy() -> None:
            copies.append(await self._copy())

        async def finish() -> None:
            records = host.shown_log.finished(pending, time.time_ns() // 1_000)
            await loop.run_in_executor(self._committer, host.commit, records)
            host.apply_all(records)

        log = host.shown_log
        await self._archives_ready()
        await loop.run_in_executor(self._rewriter, log.require_exchange)
        await self._alone(seal)
        await loop.run_in_executor(self._rewriter, log.write_again, pending, self._checkpoint)
        # No archive is made from a log that changes meanwhile, no snapshot of the former one is
        # written behind the exchange.
        self._exchanging = True
        try:
            await self.sealed()
            if self._snapshot is not None:
                await asyncio.shield(self._snapshot)
            await self._alone(put_in_place)
        finally:
            self._exchanging = False
            self.seal_soon()
        await loop.run_in_executor(self._rewriter, log.remove_former)
        await self._alone(copy)
        await self._write(copies[0])
        await self._alone(finish)

    async def _alone(self, work: Callable[[], Awaitable[None]]) -> None:
        self._checkpoint()
        await self._exclusively(work)

    def _checkpoint(self) -> None:
        if self._stopping:
            raise StoppedError

    async def _archives_ready(self) -> None:
        """Return once the archives without the names are there, and no others."""
        host = self._host
        for _ in range(SEALING_ROUNDS_MAX):
            self._checkpoint()
            if not (host.board.unsealed or self._rebuildable or host.archives.expired):
                return
            self.seal_soon()
            await self.sealed()
        raise RanknodeError("its archives are not made again yet")

    def stop(self) -> None:
        """Have the erasing of names end at its next step; it goes on when the board is next up."""
        self._stopping = True

    async def finish(self, snapshot_seconds: float) -> None:
        """End what is under way, and snapshot if that fits into `snapshot_seconds`."""
        self.stop()
        for task in (self._erasing, self._sealing, self._snapshot):
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
