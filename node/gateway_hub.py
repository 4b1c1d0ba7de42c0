"""What a node's first process does for its other gateways: it tells where boards are, and more.

Only the first process starts and ends boards' processes. Another gateway asks it where a board is,
every second as long as it uses the board, and then speaks to the board itself; what is not about
one board in memory it has done here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from actors.calls import Method, serve_calls
from actors.errors import Refusal
from actors.questions import Reply, encode
from actors.replies import refused
from node.boards import NodeBoards
from node.hub_types import SOCKET, Creation, Listing, Told
from node.metrics import Metrics


class GatewayHub:
    """Serves the other gateways of a node at a socket in `directory`."""

    def __init__(self, boards: NodeBoards, directory: str, metrics: Metrics) -> None:
        self.path = f"{directory}/{SOCKET}"
        self._boards = boards
        self._metrics = metrics
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Take calls. Errors: OSError."""
        boards = self._boards

        async def locate(board: str) -> bytes:
            return encode(await boards.locate(board))

        async def create(asked: Creation) -> bytes:
            created = await boards.create(
                asked.board,
                asked.definition,
                definition_packed=asked.definition_packed,
                packed=asked.packed,
                now_us=asked.now_us,
            )
            return encode(created)

        async def list_boards(asked: Listing) -> bytes:
            limit, after, patterns, packed = asked
            return await boards.list(limit, after, patterns, packed=packed)

        async def ids(patterns: tuple[str, ...]) -> bytes:
            return encode(await boards.ids(patterns))

        async def delete(board: str) -> bytes:
            await boards.delete(board)
            return b""

        async def changed(board: str) -> bytes:
            await boards.changed(board)
            return b""

        async def figures(told: Told) -> bytes:
            boards.gateways[told.gateway] = told.figures
            own = {self._metrics.gateway: self._metrics.figures()}
            found = await boards.measure()
            return encode(msgspec.structs.replace(found, gateways={**found.gateways, **own}))

        async def count(told: Told) -> bytes:
            boards.gateways[told.gateway] = told.figures
            return b""

        methods = {
            "locate": _answering(locate, str),
            "create": _answering(create, Creation),
            "list": _answering(list_boards, Listing),
            "ids": _answering(ids, tuple[str, ...]),
            "delete": _answering(delete, str),
            "changed": _answering(changed, str),
            "figures": _answering(figures, Told),
            "count": _answering(count, Told),
        }
        self._server = await serve_calls(self.path, methods, lambda: 0)

    async def stop(self) -> None:
        """Take no more calls."""
        if self._server is not None:
            self._server.close()


def _answering(act: Callable[[Any], Awaitable[bytes]], form: Any) -> Method:
    """Make a method that reads what it is given, and answers with a Reply."""
    decode = msgspec.msgpack.Decoder(form).decode

    async def answer(payload: bytes) -> bytes:
        try:
            return encode(Reply(await act(decode(payload))))
        except Refusal as refusal:
            return encode(refused(refusal))

    return answer
