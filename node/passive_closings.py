"""Windows of passive boards close too: who is due is known from the listings.

Owns the round over boards that are not in memory. A listing says when its board's next window is
due; after a crash it may be wrong, so every board with windows that end is visited once at start.
One from whose disk a name has still to be erased, which may take long, is brought up to do that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import ray.exceptions

from actors.directory import Directory
from actors.listing import Listing
from actors.periods import ALL_TIME

ROUND_SECONDS = 5.0
RETRY_SECONDS = 60.0  # until a board that could not be visited is tried again

_LOG = logging.getLogger("ranknode")


class PassiveClosings:
    """The round.

    claim: holds a board's life, and tells whether it is passive meanwhile. wake: brings it up.
    """

    def __init__(
        self,
        directory: Directory,
        claim: Callable[[str], AbstractAsyncContextManager[bool]],
        wake: Callable[[str], Awaitable[None]],
    ) -> None:
        self._directory = directory
        self._claim = claim
        self._wake = wake
        self._janitor: Any = None
        self._unvisited = {
            board for board, listing in directory.listings.items() if _has_windows(listing)
        }
        self._retry_at: dict[str, float] = {}

    async def run(self) -> None:
        """Visit boards that are due, for ever."""
        while True:
            for board in self._due():
                await self._visit(board)
            for board, listing in list(self._directory.listings.items()):
                if listing.erasing:
                    await self._wake(board)
            await asyncio.sleep(ROUND_SECONDS)

    def _due(self) -> list[str]:
        now, now_us = time.monotonic(), time.time_ns() // 1_000
        listings = self._directory.listings
        self._unvisited &= listings.keys()
        self._retry_at = {b: at for b, at in self._retry_at.items() if b in listings}
        return [
            board
            for board, listing in listings.items()
            if (board in self._unvisited or (listing.next_due_us or now_us + 1) <= now_us)
            and self._retry_at.get(board, now) <= now
        ]

    async def _visit(self, board: str) -> None:
        async with self._claim(board) as passive:
            # One that is up closes its own windows, and says when it is put away what is due next.
            self._unvisited.discard(board)
            if not passive:
                return
            if self._janitor is None:
                self._janitor = self._directory.start_janitor()
            try:
                failure: str = await self._janitor.close_due.remote(self._directory.path(board))
            except ray.exceptions.RayError as error:
                failure = self._directory.last_words(board) or str(error).partition("\n")[0]
                self._janitor = None
            if failure:
                _LOG.error("windows of board %s could not be closed: %s", board, failure)
                self._unvisited.add(board)
                self._retry_at[board] = time.monotonic() + RETRY_SECONDS
            else:
                self._retry_at.pop(board, None)
            await asyncio.to_thread(self._directory.refresh, board)


def _has_windows(listing: Listing) -> bool:
    return any(period != ALL_TIME.kind for period in listing.definition.periods)
