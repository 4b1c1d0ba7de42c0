"""Requests as they arrive: aiohttp's parser, with a bound on a whole head.

Each request is shown to its connection first, which may answer it past aiohttp.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aiohttp import StreamReader
from aiohttp.http import HttpRequestParser
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.web_protocol import RequestPayloadError

from actors.errors import Refusal
from node.config import KIB, Config

if TYPE_CHECKING:
    from node.protocol import Connection

READ_BYTES = 16 * KIB  # taken from a socket at once; twice that of a body waits to be read
REQUESTS_AHEAD_MAX = 1  # parsed while the one before is answered; nothing more is read then


def head_too_large(config: Config) -> Refusal:
    """Make the refusal of too long a head, or part of one."""
    return Refusal(
        "headers_too_large",
        f"The request line and each header take at most {config.header_bytes_max} bytes, and all"
        f" of them together {config.head_bytes_max}.",
    )


class HeadParser(HttpRequestParser):
    """aiohttp's parser, with a bound on a whole head.

    aiohttp bounds the request line, each header and their number, whose product is half a megabyte
    a connection. unfinished_bytes: of the head that has begun to arrive, up to READ_BYTES less
    where it began behind the end of the request before. kept_bytes_max: of what came behind the
    newest request at most, which is kept until the parser is fed again.
    """

    def __init__(
        self, connection: Connection, loop: asyncio.AbstractEventLoop, config: Config
    ) -> None:
        super().__init__(
            connection,
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
        self.kept_bytes_max = 0
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
            received_bytes = self.unfinished_bytes + self.kept_bytes_max + len(data)
            self.unfinished_bytes, self.kept_bytes_max = 0, received_bytes
            whole = len(messages) == 1 and received_bytes <= self._head_bytes_max
            if whole and self._connection.take(*messages[0]):
                self.message_consumed()
                ends = data.find(b"\r\n\r\n") + 4 + body.total_bytes
                if received_bytes == ends:
                    self.kept_bytes_max = 0
                return (), False, b""
            self._connection.unanswered += len(messages)
            return parsed
        self.kept_bytes_max = 0
        if not in_body:
            self.unfinished_bytes += len(data)
            if self.unfinished_bytes > self._head_bytes_max:
                self.unfinished_bytes = 0
                raise LineTooLong(b"", self._head_bytes_max)
        return parsed
