"""The boards as another gateway of the node sees them: found through its first process.

Implements `node.service.Boards`. Boards in memory are asked directly, each through a link of its
own; where a board is, and all that is not about one board in memory, the first process says.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from actors.calls import BoardLostError, Calls, connect_calls
from actors.errors import Refusal
from actors.questions import Reply, encode
from node.board_client import LaneLimits
from node.board_link import BoardLink
from node.board_requests import BoardRequests
from node.config import Config
from node.hub_types import Creation, Listing, Place, Told
from node.metrics import BoardFigures, Metrics
from node.tops import PATIENCE_SECONDS

LOCATE_SECONDS = 1.0  # a board that is used is asked for again after this long, so that it stays up

_decode_reply = msgspec.msgpack.Decoder(Reply).decode


class Hub:
    """The node's first process. calls: the connection to it, which lasts as long as the node."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def ask(self, method: str, asked: Any) -> bytes:
        """Have something done there. Errors: Refusal."""
        try:
            answer = await self._calls.call(method, encode(asked))
        except BoardLostError:
            raise Refusal("board_unavailable", "the node is being stopped") from None
        return _decode_reply(answer.payload).unwrap()

    async def locate(self, board: str) -> Place:
        """Learn where a board is, which is up then and stays so for a while. Errors: Refusal."""
        return msgspec.msgpack.decode(await self.ask("locate", board), type=Place)


class SharedBoard(BoardLink):
    """A board that the node's first process keeps in memory."""

    def __init__(
        self, board: str, place: Place, hub: Hub, limits: LaneLimits, metrics: Metrics
    ) -> None:
        super().__init__(limits, metrics)
        self.board = board
        self._place = place
        self._hub = hub
        self._located_at = time.monotonic()
        self._locating = asyncio.Lock()
        self._calls: Calls | None = None

    def is_at(self, place: Place) -> bool:
        """Say whether this is the board that is there, or another of its name was."""
        return self._place.created_at_us == place.created_at_us

    @property
    def located(self) -> bool:
        """Whether the board is known to be up, where it was."""
        lately = time.monotonic() - self._located_at < LOCATE_SECONDS
        return lately and self._calls is not None and not self._calls.closed

    async def reach(self) -> Calls:
        """Return the connection to the process, which is asked for again now and then."""
        if not self.located:
            async with self._locating:
                if not self.located:
                    await self._locate()
        assert self._calls is not None
        return self._calls

    async def _locate(self) -> None:
        """Ask where the board is; one that was reached lately is where it was if nobody says."""
        reached = self._calls is not None and not self._calls.closed
        try:
            async with asyncio.timeout(PATIENCE_SECONDS if reached else None):
                place = await self._hub.locate(self.board)
        except TimeoutError:
            self._located_at = time.monotonic()
        else:
            await self.move(place)

    async def move(self, place: Place) -> None:
        """Connect to where the board is now. Errors: BoardLostError."""
        if not self.is_at(place):
            raise Refusal("board_not_found", f"{self.board} was deleted")
        if self._calls is None or self._calls.closed or self._calls.path != place.path:
            if self._calls is not None:
                self._calls.close()
            self._calls = await connect_calls(place.path)
        self._located_at = time.monotonic()

    def close(self) -> None:
        """Hang up."""
        if self._calls is not None:
            self._calls.close()


class SharedBoards(BoardRequests):
    """All boards of a node, in a gateway that is not its first."""

    def __init__(self, config: Config, hub: Hub, metrics: Metrics) -> None:
        super().__init__(config.min_sequence_wait_seconds)
        self.ready = True  # gateways are started once the boards are known
        self._links_max = config.boards_active_max
        self._hub = hub
        self._metrics = metrics
        self._links: dict[str, SharedBoard] = {}
        self._limits = LaneLimits(
            config.queue_items_max,
            config.queue_bytes_max,
            config.call_items_max,
            config.call_entries_max,
        )

    def link(self, board: str) -> SharedBoard | None:
        """Return the way to a board that was up a moment ago."""
        link = self._links.get(board)
        return link if link is not None and link.located else None

    async def ready_link(self, board: str) -> SharedBoard:
        """Return the way to a board that is up."""
        link = self._links.get(board)
        if link is not None and link.located:
            return link
        try:
            async with asyncio.timeout(None if link is None else PATIENCE_SECONDS):
                place = await self._hub.locate(board)
        except TimeoutError:
            assert link is not None
            return link  # whoever asks it may have to wait, or has a kept answer
        except Refusal as refusal:
            if refusal.code == "board_not_found":
                await self._drop(board, refusal)
            if refusal.code == "board_unavailable" and link is not None:
                return link
            raise
        link = self._links.get(board)
        if link is not None and not link.is_at(place):
            await self._drop(board, Refusal("board_not_found", f"{board} was deleted"))
            link = None
        if link is None:
            await self._make_room()
            link = SharedBoard(board, place, self._hub, self._limits, self._metrics)
            link = self._links.setdefault(board, link)
        with contextlib.suppress(BoardLostError):  # whoever asks it finds where it is then
            await link.move(place)
        return link

    async def _make_room(self) -> None:
        """Let go of links that were used least recently."""
        while len(self._links) >= self._links_max:
            idle = [link for link in self._links.values() if not link.busy]
            if not idle:
                raise Refusal("overloaded", "as many boards as fit into memory are busy")
            oldest = min(idle, key=lambda link: link.used_at)
            await self._drop(oldest.board, Refusal("board_unavailable", "the board was put away"))

    async def _drop(self, board: str, reason: Refusal) -> None:
        link = self._links.pop(board, None)
        if link is not None:
            link.close()
            await link.stop(reason)

    async def changed(self, board: str) -> None:
        """Have the node learn what a change has made of a board's definition."""
        await self._hub.ask("changed", board)

    async def create(
        self, board: str, definition: bytes, *, definition_packed: bool, packed: bool, now_us: int
    ) -> tuple[bool, bytes]:
        """Create a board, durably; returns whether it is new, and its description."""
        asked = Creation(board, definition, definition_packed, packed, now_us)
        answer = await self._hub.ask("create", asked)
        return msgspec.msgpack.decode(answer, type=tuple[bool, bytes])

    async def list(
        self, limit: int, after: str | None, patterns: tuple[str, ...], *, packed: bool
    ) -> bytes:
        """Answer a page of the boards whose ids a pattern matches, in order of their ids."""
        return await self._hub.ask("list", Listing(limit, after, patterns, packed))

    async def ids(self, patterns: tuple[str, ...]) -> Sequence[str]:
        """List the ids of all boards on disk that a pattern matches, in order."""
        answer = await self._hub.ask("ids", patterns)
        return msgspec.msgpack.decode(answer, type=list[str])

    async def delete(self, board: str) -> None:
        """Remove a board, durably. Errors: Refusal."""
        await self._hub.ask("delete", board)
        await self._drop(board, Refusal("board_not_found", f"{board} was deleted"))

    async def measure(self) -> BoardFigures:
        """Tell what the boards and their processes count.

        What is shown of this gateway is what the first process knows from now on: a count that was
        shown once is never followed by a lower one.
        """
        told = Told(self._metrics.gateway, self._metrics.figures())
        return msgspec.msgpack.decode(await self._hub.ask("figures", told), type=BoardFigures)
