"""Requests written by hand, and boards for rows of them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from actors.errors import Refusal
from actors.questions import Question, Top
from node.gateway import Gateway
from tests.node.fake_boards import FakeBoards

CLOSE = b"Connection: close\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
PACKED = b"Accept: application/msgpack\r\n"
EVENTS = b"/v1/boards/b/events"
TOP = b"/v1/boards/b/top"


def request(
    method: bytes, target: bytes, headers: bytes = b"", body: bytes | None = None, version: int = 1
) -> bytes:
    """Write a request; a body is announced by its length unless the headers announce it."""
    if body is not None and b"Transfer-Encoding" not in headers:
        headers += b"Content-Length: %d\r\n" % len(body)
    if body is not None and b"Content-Type" not in headers:
        headers += b"Content-Type: application/json\r\n"
    head = b"%s %s HTTP/1.%d\r\nHost: x\r\n%s\r\n" % (method, target, version, headers)
    return head + (body or b"")


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))


def server_of(gateway: Gateway) -> Any:
    return cast("Any", gateway._runner).server


class RowBoards(FakeBoards):
    """Boards that note how many calls are under way at most; one's top is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = self.most = 0
        self.behave = self._take_time

    async def _take_time(self) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1

    def kept_top(self, board: str, question: Top, min_sequence: int | None) -> bytes | None:
        return b'{"kept":true}' if board == "kept" else None

    async def ask(self, board: str, question: Question, min_sequence: int | None) -> bytes:
        answer = await super().ask(board, question, min_sequence)
        if board == "gone":
            raise Refusal("board_not_found", "there is no board 'gone'")
        return answer
