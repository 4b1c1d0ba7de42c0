"""What aiohttp answers by itself, made ours: its errors as problems, and limits it lacks.

aiohttp's low-level server parses HTTP and keeps connections alive. This subclass changes three
things: errors of HTTP itself are problems too, a connection must send its first request within a
time, and there is a bound on connections.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

from actors.errors import Refusal
from node import problems
from node.config import Config

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

REQUEST_ID = "X-Request-Id"

_prefix = secrets.token_hex(8)
_numbers = itertools.count(1)


def new_request_id() -> str:
    """Make an id that no other request has: random per process, then counted."""
    return f"{_prefix}-{next(_numbers):x}"


def respond(
    request_id: str, status: int, body: bytes, content_type: str, headers: dict[str, str]
) -> web.Response:
    """Make a response; the Server header is set so that aiohttp does not put its versions there."""
    response = web.Response(status=status, body=body or None, headers=headers)
    response.headers[REQUEST_ID] = request_id
    response.headers["Server"] = "ranknode"
    if body:
        response.headers["Content-Type"] = content_type
    return response


def respond_problem(request_id: str, problem: problems.Problem) -> web.Response:
    """Make the response of a problem."""
    return respond(request_id, problem.status, problem.body, problems.CONTENT_TYPE, problem.headers)


class Connection(RequestHandler):
    """One connection."""

    __slots__ = ("_header_seconds_max", "_opening", "begun")

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop, config: Config) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=config.keepalive_seconds,
            max_line_size=config.header_bytes_max,
            max_field_size=config.header_bytes_max,
            max_headers=config.headers_max,
            lingering_time=config.linger_seconds,
            # A compressed body is refused, so nothing may be inflated before that.
            auto_decompress=False,
            logger=logging.getLogger("ranknode.http"),
            access_log=None,  # type: ignore[arg-type]  # taken, whatever the annotation says
        )
        self.begun = False
        self._opening: asyncio.TimerHandle | None = None
        self._header_seconds_max = config.header_seconds_max

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the time within which the first request must come.

        aiohttp's own timer of idle connections starts after the first answer and covers the rest.
        """
        super().connection_made(transport)
        loop = asyncio.get_running_loop()
        self._opening = loop.call_later(self._header_seconds_max, self._close_unless_begun)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop the timer: it would keep the dead connection in memory."""
        if self._opening is not None:
            self._opening.cancel()
        super().connection_lost(exc)

    def _close_unless_begun(self) -> None:
        if not self.begun:
            self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is not HTTP, or has too long a head, with a problem, and hang up."""
        self.begun = True
        if request.writer.output_size > 0:
            raise ConnectionError("the answer is under way already")
        request_id = new_request_id()
        if isinstance(exc, LineTooLong):
            refusal = Refusal(
                "headers_too_large",
                f"The request line and each header take at most {self.max_line_size} bytes.",
            )
            response = respond_problem(request_id, problems.problem(refusal))
        elif status == HTTPStatus.BAD_REQUEST:
            refusal = Refusal(
                "malformed_request",
                f"The request cannot be read as HTTP/1.1 with at most {self.max_headers} headers.",
            )
            response = respond_problem(request_id, problems.problem(refusal))
        else:
            error = exc if isinstance(exc, Exception) else RuntimeError(message or "no cause")
            problem = problems.of_exception(error, request_id, changes=False)
            response = respond_problem(request_id, problem)
        response.force_close()
        return response


class _Excess(asyncio.Protocol):
    """A connection above the bound: told so, and closed before anything is read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)
        problem = problems.problem(Refusal("overloaded", "There are too many connections."))
        head = (
            f"HTTP/1.1 {problem.status} Service Unavailable\r\n"
            f"Content-Type: {problems.CONTENT_TYPE}\r\n"
            f"Content-Length: {len(problem.body)}\r\n"
            f"{REQUEST_ID}: {new_request_id()}\r\n"
            f"Retry-After: {problem.headers['Retry-After']}\r\n"
            "Server: ranknode\r\nConnection: close\r\n\r\n"
        )
        stream.write(head.encode() + problem.body)
        stream.close()


class Server(web.Server):
    """aiohttp's server with our connections."""

    def __init__(self, handle: Handle, config: Config) -> None:
        super().__init__(handle)
        self._config = config

    def __call__(self) -> RequestHandler:
        """Make the protocol of a new connection."""
        if len(self._connections) >= self._config.connections_max:
            return _Excess()  # type: ignore[return-value]  # the loop asks for a protocol only
        return Connection(self, asyncio.get_running_loop(), self._config)
