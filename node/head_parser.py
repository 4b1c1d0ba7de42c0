"""Requests as they arrive: aiohttp's parser, with a bound on a whole head.

Each request is shown to its connection first, which may answer it past aiohttp.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, cast

from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser, RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.web_protocol import RequestPayloadError

from actors.errors import Refusal
from node.config import KIB, Config

READ_BYTES = 16 * KIB  # taken from a socket at once; twice that of a body waits to be read
HEADER_FRAME_BYTES = 4  # of a header besides its name and value: the colon, a space, the line's end
REQUESTS_AHEAD_MAX = 1  # parsed while the one before is answered; nothing more is read then


def head_bytes(target: str, raw_headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Count the bytes of a head, but for the few of its request line besides the target."""
    return len(target) + sum(
        len(name) + len(value) + HEADER_FRAME_BYTES for name, value in raw_headers
    )


def head_too_large(config: Config) -> Refusal:
    """Make the refusal of too long a head, or part of one."""
    return Refusal(
        "headers_too_large",
        f"The request line and each header take at most {config.header_bytes_max} bytes, and all"
        f" of them together {config.head_bytes_max}.",
    )


class Taker(Protocol):
    """A connection, which is shown each request first. unanswered: those it left to aiohttp."""

    unanswered: int

    def take(self, message: RawRequestMessage, body: StreamReader) -> bool:
        """Answer a request past aiohttp, if that is simple; says whether it is."""


class HeadParser(HttpRequestParser):
    """aiohttp's parser, with a bound on a whole head.

    aiohttp bounds the request line, each header and their number, whose product is half a megabyte
    a connection. unfinished_bytes: of the head that has begun to arrive, up to READ_BYTES less
    where it began behind the end of the request before. keeps_more: whether anything may have come
    behind the request taken last, which is kept until the parser is fed again.
    """

    def __init__(self, connection: Taker, loop: asyncio.AbstractEventLoop, config: Config) -> None:
        super().__init__(
            cast("BaseProtocol", connection),
            loop,
            READ_BYTES,
            max_line_size=config.header_bytes_max,
            max_field_size=config.header_bytes_max,
            max_headers=config.headers_max,
            payload_exception=RequestPayloadError,
            # A compressed body is refused, so nothing may be inflated before that.
            auto_decompress=False,
            max_msg_queue_size=REQUESTS_AHEAD_MAX,
        )
        self.unfinished_bytes = 0
        self.keeps_more = False
        self._alone = True  # no request so far may have come together with what is behind it
        self._connection = connection
        self._head_bytes_max = config.head_bytes_max
        self._newest_body: StreamReader | None = None

    def feed_data(  # type: ignore[override]  # aiohttp's parser in C takes nothing more
        self, data: bytes
    ) -> tuple[Sequence[Any], bool, bytes]:
        """Parse what arrived. Errors: HttpProcessingError, LineTooLong for too long a head."""
        in_body = self._newest_body is not None and not self._newest_body.is_eof()
        try:
            parsed: tuple[Sequence[Any], bool, bytes] = super().feed_data(data)
        except HttpProcessingError:
            self.unfinished_bytes = 0
            raise
        messages = parsed[0]
        if messages:
            self._newest_body = body = messages[-1][1]
            before, self.unfinished_bytes = self.unfinished_bytes, 0
            whole = len(messages) == 1 and self._is_bounded(messages[0][0], before + len(data))
            if whole and self._connection.take(*messages[0]):
                self.message_consumed()
                self._newest_body = None  # it would only be kept in memory
                ends = data.find(b"\r\n\r\n") + 4 + body.total_bytes
                # Only where it began with the data is its end where it seems to be.
                self._alone = self._alone and not before and ends == len(data)
                self.keeps_more = not self._alone
                return (), False, b""
            self._alone = False
            self._connection.unanswered += len(messages)
            return parsed
        if not in_body:
            self.unfinished_bytes += len(data)
            if self.unfinished_bytes > self._head_bytes_max:
                self.unfinished_bytes = 0
                raise LineTooLong(b"", self._head_bytes_max)
        return parsed

    def _is_bounded(self, message: RawRequestMessage, received_bytes: int) -> bool:
        """Say whether a head is within its bound; received_bytes: since the request before."""
        if self._alone:
            return received_bytes <= self._head_bytes_max
        return head_bytes(message.path, message.raw_headers) <= self._head_bytes_max
