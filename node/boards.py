"""The boards of a node: which are in memory, and the way of each request to its board.

Owns which boards are in memory: brought up on first use, put away when idle or when too many are
up. Implements `node.service.Boards`. A change in one board's life (create, bring up, put away,
delete) holds that board's lock.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import bisect
import errno
import logging
import os
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec

from actors.board import Board
from actors.definition import Definition, parse_definition
from actors.directory import Directory
from actors.errors import Refusal
from actors.exact import format_time
from actors.listing import Listing
from actors.queries import describe
from actors.questions import (
    Describe,
)
from node.active_board import ActiveBoard
from node.board_client import LaneLimits
from node.board_requests import BoardRequests
from node.config import Config
from node.hub_types import Place
from node.keys import covers
from node.metrics import BoardFigures, GatewayFigures, Metrics, gather_measures
from node.passive_closings import PassiveClosings
from node.restarts import Restarts
from persistence.errors import CommitFailedError, StorageFullError

_LOG = logging.getLogger("ranknode")
_ENCODE = (msgspec.json.Encoder().encode, msgspec.msgpack.Encoder().encode)

Result = TypeVar("Result")

IDLE_CHECKS_PER_PERIOD = 10
START_SHARE = 0.8  # of a request's time; the rest is for the request itself
LIMITS = (  # what figures of the node are held against
    "boards_active_max",
    "bodies_bytes_max",
    "connections_max",
    "queue_items_max",
    "requests_max",
    "reserved_free_bytes",
    "snapshot_events",
)


class NodeBoards(BoardRequests):
    """All boards of a node, as the handlers ask for them.

    gateways: what other gateways of the node told of themselves last, by their names.
    """

    def __init__(
        self, config: Config, directory: Directory, metrics: Metrics | None = None
    ) -> None:
        super().__init__(config.min_sequence_wait_seconds)
        self.ready = False
        self.gateways: dict[str, GatewayFigures] = {}
        self._config = config
        self._metrics = metrics if metrics is not None else Metrics()
        self._directory = directory
        self._active: dict[str, ActiveBoard] = {}
        self._restarts: dict[str, Restarts] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._starting = asyncio.Semaphore(os.cpu_count() or 1)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._limits = LaneLimits(
            config.queue_items_max,
            config.queue_bytes_max,
            config.call_items_max,
            config.call_entries_max,
        )

    async def start(self) -> None:
        """Learn which boards are on disk, and put idle ones away from now on."""
        await asyncio.to_thread(self._directory.scan)
        self._spawn(self._put_idle_away())
        self._spawn(PassiveClosings(self._directory, self._claim, self._warm).run())
        self.ready = True

    async def close(self, seconds: float) -> None:
        """Put all boards away, each with a snapshot where that fits into half of `seconds`."""
        self.ready = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        boards = list(self._active.values())
        self._active.clear()
        await asyncio.gather(*(board.put_away(seconds / 2, seconds) for board in boards))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def link(self, board: str) -> ActiveBoard | None:
        """Return a board that is in memory."""
        return self._active.get(board)

    async def changed(self, board: str) -> None:
        """Learn what a change has made of a board's definition."""
        await asyncio.to_thread(self._directory.refresh, board)

    async def locate(self, board: str) -> Place:
        """Bring a board up for another gateway; returns where its process can be called.

        It may be put away while it is called: that call is lost, and the gateway asks again where
        the board is. Errors: Refusal.
        """
        active = await self.ready_link(board)
        active.used_at = time.monotonic()
        path = (await active.reach()).path
        return Place(path, self._directory.listing(board).created_at_us)

    async def create(
        self, board: str, definition: bytes, *, definition_packed: bool, packed: bool, now_us: int
    ) -> tuple[bool, bytes]:
        """Create a board, durably; returns whether it is new, and its description."""
        wanted = parse_definition(definition, definition_packed)
        while True:
            created = await self._whole(self._create(board, wanted, now_us))
            if created is not None:
                if not self._starting.locked():
                    self._spawn(self._warm(board))
                return True, _ENCODE[packed](describe(created, packed))
            try:
                return False, await self.ask(board, Describe(packed, now_us), None)
            except Refusal as refusal:
                # Deleted between the two? Then it is created after all.
                if refusal.code != "board_not_found":
                    raise

    async def _create(self, board: str, wanted: Definition, now_us: int) -> Board | None:
        """Create a board; None where it exists with this very definition. Errors: Refusal."""
        async with self._lock(board):
            await asyncio.to_thread(self._directory.refresh, board)
            listing = self._directory.listings.get(board)
            if listing is None and board not in self._directory.damaged:
                try:
                    return await asyncio.to_thread(self._directory.create, board, wanted, now_us)
                except StorageFullError as error:
                    raise Refusal("storage_full", str(error)) from error
                except (OSError, CommitFailedError) as error:
                    raise _disk_failed(board, error) from error
            if self._directory.listing(board).definition != wanted:
                raise Refusal("board_exists", f"{board} exists with another definition")
            return None

    async def list(
        self, limit: int, after: str | None, patterns: tuple[str, ...], *, packed: bool
    ) -> bytes:
        """Answer a page of the boards whose ids a pattern matches, in order of their ids.

        Complexity: O(boards).
        """
        ids = sorted(each for each in self._directory.listings if covers(patterns, each))
        start = 0 if after is None else bisect.bisect_right(ids, _read_board_cursor(after))
        page = ids[start : start + limit]
        following = _write_board_cursor(page[-1]) if ids[start + limit :] else None
        boards = [_listed(self._directory.listings[board], packed) for board in page]
        return _ENCODE[packed]({"boards": boards, "next": following})

    async def ids(self, patterns: tuple[str, ...]) -> Sequence[str]:
        """List the ids of all boards on disk that a pattern matches, in order."""
        known = {*self._directory.listings, *self._directory.damaged}
        return sorted(each for each in known if covers(patterns, each))

    async def delete(self, board: str) -> None:
        """Remove a board, durably; its space is freed soon after. Errors: Refusal."""
        await self._whole(self._delete(board))

    async def _delete(self, board: str) -> None:
        async with self._lock(board):
            if board not in self._directory.damaged:
                self._directory.listing(board)
            active = self._active.pop(board, None)
            if active is not None:
                await active.end(Refusal("board_not_found", f"{board} was deleted"))
            self._restarts.pop(board, None)
            try:
                await asyncio.to_thread(self._directory.delete, board)
            except OSError as error:
                raise _disk_failed(board, error) from error
        self._spawn(self._purge())

    async def _purge(self) -> None:
        try:
            await asyncio.to_thread(self._directory.purge)
        except OSError as error:
            _LOG.error("what was deleted is removed at the next start: %s", error)

    async def measure(self) -> BoardFigures:
        """Tell what the boards and their processes count, of what answers in time."""
        active = dict(self._active)
        measures = await gather_measures({board: each.measure for board, each in active.items()})
        restarts = {board: self._restarts[board] for board in active if board in self._restarts}
        directory = self._directory
        return BoardFigures(
            on_disk=len({*directory.listings, *directory.damaged}),
            damaged=len(directory.damaged),
            held_back=sum(each.wait_seconds > 0 for each in restarts.values()),
            measures=measures,
            process_ends={board: each.ends_in_all for board, each in restarts.items()},
            disk_free_bytes=await asyncio.to_thread(directory.free_bytes),
            limits={name: getattr(self._config, name) for name in LIMITS},
            gateways=self.gateways,
        )

    # Life

    def _lock(self, board: str) -> asyncio.Lock:
        """Give the lock of a board's life, which lasts while anyone holds or awaits it."""
        lock = self._locks.get(board)
        if lock is None:
            lock = self._locks[board] = asyncio.Lock()
        return lock

    async def ready_link(self, board: str) -> ActiveBoard:
        """Return a board that is up; nothing may be awaited between this and using it.

        Errors: Refusal, board_unavailable where it is not up in time: nothing was sent then.
        """
        seconds = START_SHARE * self._config.request_seconds_max
        try:
            async with asyncio.timeout(seconds):
                while (active := self._active.get(board)) is None:
                    await self._whole(self._up(board))
        except TimeoutError:
            raise Refusal(
                "board_unavailable", "the board is still being brought up", retry_after_seconds=2
            ) from None
        return active

    async def _whole(self, change: Coroutine[Any, Any, Result]) -> Result:
        """Wait for a change of a board's life, which goes on to its end whoever gives up waiting.

        One that was broken off would leave a process to nobody, or a lock before its work is done.
        """
        task = asyncio.create_task(change)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits has it, or has given up

    async def _up(self, board: str) -> ActiveBoard:
        """Bring a board up if it is not, a few at a time."""
        self._directory.listing(board)
        async with self._lock(board):
            self._directory.listing(board)
            active = self._active.get(board)
            if active is None:
                async with self._starting:
                    await self._make_room()
                    # A board that keeps failing stays held back, put away meanwhile or not.
                    restarts = self._restarts.setdefault(board, Restarts())
                    active = ActiveBoard(
                        board, self._directory, self._limits, restarts, self._metrics
                    )
                    self._active[board] = active
                    await active.started()
            return active

    @asynccontextmanager
    async def _claim(self, board: str) -> AsyncIterator[bool]:
        """Keep a board as it is; yields whether it is there and not in memory."""
        async with self._lock(board):
            yield board in self._directory.listings and board not in self._active

    async def _warm(self, board: str) -> None:
        """Bring a board up though nobody asks for it: a new one, or one that has work to do."""
        try:
            await self._up(board)
        except Refusal:  # it was deleted meanwhile, or there is no room: whoever asks will hear
            return

    async def _make_room(self) -> None:
        """Put the board away that was used least recently. Errors: Refusal where all are busy."""
        while len(self._active) >= self._config.boards_active_max:
            idle = [each for each in self._active.values() if each.settled and not each.busy]
            if not idle:
                raise Refusal("overloaded", "as many boards as fit into memory are busy")
            await self._put_away(min(idle, key=lambda active: active.used_at))

    async def _put_away(self, active: ActiveBoard) -> None:
        del self._active[active.board]
        # Whoever asks for it meanwhile waits for its lock and brings it up again.
        async with self._lock(active.board):
            await active.put_away(
                self._config.request_seconds_max / 2, self._config.request_seconds_max
            )
            # Its listing says when its next window is due, now that it cannot see to that itself.
            await asyncio.to_thread(self._directory.refresh, active.board)

    async def _put_idle_away(self) -> None:
        idle_seconds = self._config.board_idle_seconds
        while True:
            await asyncio.sleep(idle_seconds / IDLE_CHECKS_PER_PERIOD)
            oldest = time.monotonic() - idle_seconds
            for active in list(self._active.values()):
                if active.used_at < oldest and active.settled and not active.busy:
                    await self._put_away(active)


def _disk_failed(board: str, error: Exception) -> Refusal:
    """Log why a board could not be created or deleted; it is as it was, and may be tried again."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return Refusal("storage_full", "there is no room on the board's disk")
    _LOG.error("board %s: its disk failed: %s", board, error)
    return Refusal("board_unavailable", "the board's disk failed; the node's log says how")


def _listed(listing: Listing, packed: bool) -> dict[str, Any]:
    return {
        "board": listing.board,
        "created_at": format_time(listing.created_at_us),
        **listing.definition.to_answer(packed),
    }


def _write_board_cursor(board: str) -> str:
    return base64.urlsafe_b64encode(board.encode()).rstrip(b"=").decode()


def _read_board_cursor(text: str) -> str:
    try:
        padded = text + "=" * (-len(text) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        raise Refusal("invalid_cursor", "after is no cursor of this list") from None
