"""What aiohttp answers by itself, made ours: its errors as problems, and limits it lacks.

aiohttp's low-level server parses HTTP and keeps connections alive. What is changed here: errors of
HTTP itself are problems too; a whole head is bounded in bytes and in time, the first one of a
connection and every later one; little is read ahead of the request being answered; a request that
has no good key or would find no place is turned away before it costs much; an answer that its
client does not take is given up; and there is a bound on connections.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any, cast

from aiohttp import StreamReader, web
from aiohttp.http import HttpRequestParser, RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.web_protocol import RequestHandler, RequestPayloadError

from actors.errors import Refusal
from node import problems
from node.access import Admitted
from node.config import KIB, Config
from node.refusals import Refusals
from node.slow_readers import SlowReaders

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Admit = Callable[[RawRequestMessage, str, bool], bytes | Admitted | None]

REQUEST_ID = "X-Request-Id"

READ_BYTES = 16 * KIB  # taken from a socket at once; twice that of a body waits to be read
REQUESTS_AHEAD_MAX = 1  # parsed while the one before is answered; nothing more is read then

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


def raw_problem(request_id: str, refusal: Refusal, *, close: bool = False) -> bytes:
    """Make the whole answer of a refusal, for when aiohttp's way is too long."""
    problem = problems.problem(refusal)
    particular = "".join(f"{name}: {text}\r\n" for name, text in problem.headers.items())
    head = (
        f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}\r\n"
        f"Content-Type: {problems.CONTENT_TYPE}\r\n"
        f"Content-Length: {len(problem.body)}\r\n"
        f"{REQUEST_ID}: {request_id}\r\n"
        f"{particular}"
        f"Server: ranknode\r\nConnection: {'close' if close else 'keep-alive'}\r\n\r\n"
    )
    return head.encode() + problem.body


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
    where it began behind the end of the request before.
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
        self._connection = connection
        self._head_bytes_max = config.head_bytes_max
        self._newest_body: StreamReader | None = None

    def feed_data(  # type: ignore[override]  # aiohttp's parser in C takes nothing more
        self, data: bytes
    ) -> tuple[Sequence[Any], bool, bytes]:
        """Parse what arrived. Errors: HttpProcessingError, LineTooLong for too long a head."""
        self._connection.write_refusal()  # before anything that comes behind the request refused
        in_body = self._newest_body is not None and not self._newest_body.is_eof()
        try:
            parsed: tuple[Sequence[Any], bool, bytes] = super().feed_data(data)
        except HttpProcessingError:
            self.unfinished_bytes = 0
            raise
        messages = parsed[0]
        if messages:
            self._newest_body = messages[-1][1]
            self.unfinished_bytes = 0
            if len(messages) == 1 and self._connection.turned_away(*messages[0]):
                self.message_consumed()
                return (), False, b""
            self._connection.unanswered += len(messages)
        elif not in_body:
            self.unfinished_bytes += len(data)
            if self.unfinished_bytes > self._head_bytes_max:
                self.unfinished_bytes = 0
                raise LineTooLong(b"", self._head_bytes_max)
        return parsed


class Connection(RequestHandler):
    """One connection, as aiohttp sees it. unanswered: requests passed on, and not yet answered."""

    __slots__ = (
        "_admitted",
        "_config",
        "_head_deadline",
        "_refusal",
        "_server",
        "_stream",
        "unanswered",
    )

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop, config: Config) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=config.keepalive_seconds,
            lingering_time=config.linger_seconds,
            read_bufsize=READ_BYTES,
            logger=logging.getLogger("ranknode.http"),
            access_log=None,  # type: ignore[arg-type]  # taken, whatever the annotation says
        )
        self._parser = HeadParser(self, loop, config)
        self._max_msg_queue_size = REQUESTS_AHEAD_MAX
        self._msg_queue_resume_size = 0
        self._config = config
        self._head_deadline: asyncio.TimerHandle | None = None
        self._server = server
        self._admitted: Admitted | None = None
        self._refusal: bytes | None = None
        self.unanswered = 0
        self._stream: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the time within which the first head must come, and count every unsent byte."""
        super().connection_made(transport)
        self._stream = cast("asyncio.Transport", transport)
        self._stream.set_write_buffer_limits(high=0)
        self._await_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop the timers: they would keep the dead connection in memory."""
        self._stop_awaiting_head()
        self._server.slow_readers.end(self._stream)
        self._refusal = None
        admitted = self.take_admitted()
        if admitted is not None:
            admitted.share.give_back()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what arrived, and start the time of a head that has begun."""
        super().data_received(data)
        parser = cast("HeadParser | None", self._parser)
        if parser is None or not parser.unfinished_bytes:
            self._stop_awaiting_head()
        elif self._head_deadline is None:
            self._await_head()

    def turned_away(self, message: RawRequestMessage, body: StreamReader) -> bool:
        """Refuse a request without a good key or a place, if that is simple; says whether it was.

        It is where the request is here as a whole, nothing else is under way on this connection,
        and the client takes its answers.
        """
        if self.unanswered or self._paused or not body.is_eof():
            return False
        if message.should_close or message.upgrade:
            return False
        answer = self._server.admit(message, self._address(), self._server.crowded)
        if not isinstance(answer, bytes):
            self._admitted = answer
            return False
        self._next_keepalive_close_time = self._loop.time() + self._config.keepalive_seconds
        self._refusal = answer
        self._server.refusals.add(self._refuse)
        return True

    def _address(self) -> str:
        """Return the client's address as the requests of this connection give it."""
        peer = self.peername
        return str(peer[0]) if isinstance(peer, list | tuple) else str(peer or "")

    async def refusal_turn(self) -> None:
        """Wait until a refusal may be written that is answered in the usual way."""
        await self._server.refusals.turn()

    def _refuse(self) -> None:
        """Write the refusal, if it was not written yet, and go on with what came behind."""
        if self._refusal is not None:
            self.write_refusal()
            self.data_received(b"")  # the parser keeps what follows a request until asked again

    def write_refusal(self) -> None:
        """Write the refusal of the newest request, if one waits."""
        if self._refusal is not None:
            answer, self._refusal = self._refusal, None
            self._stream.write(answer)

    async def _handle_request(
        self, request: web.BaseRequest, start_time: float | None, request_handler: Handle
    ) -> tuple[web.StreamResponse, bool]:
        try:
            return await super()._handle_request(request, start_time, request_handler)
        finally:
            self.unanswered -= 1

    def take_admitted(self) -> Admitted | None:
        """Give the next request what was decided about it early, if anything was."""
        admitted, self._admitted = self._admitted, None
        return admitted

    def pause_writing(self) -> None:
        """Start the time within which the client must take its answer."""
        super().pause_writing()
        self._server.slow_readers.begin(self._stream)

    def resume_writing(self) -> None:
        """Note that the client has taken its answer."""
        self._server.slow_readers.end(self._stream)
        super().resume_writing()

    def _await_head(self) -> None:
        seconds = self._config.header_seconds_max
        self._head_deadline = asyncio.get_running_loop().call_later(seconds, self._head_is_late)

    def _stop_awaiting_head(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _head_is_late(self) -> None:
        if self._request_in_progress or self._messages:
            self._await_head()  # an earlier request is answered first
        else:
            self._head_deadline = None
            self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is not HTTP, or has too long a head, with a problem, and hang up."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer is under way already")
        request_id = new_request_id()
        if isinstance(exc, LineTooLong):
            response = respond_problem(request_id, problems.problem(head_too_large(self._config)))
        elif status == HTTPStatus.BAD_REQUEST:
            refusal = Refusal(
                "malformed_request",
                "The request cannot be read as HTTP/1.1 with at most"
                f" {self._config.headers_max} headers.",
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
        refusal = Refusal("overloaded", "There are too many connections.")
        stream.write(raw_problem(new_request_id(), refusal, close=True))
        stream.close()


class Reader(asyncio.BufferedProtocol):
    """Between a socket and its connection: takes READ_BYTES at once instead of what there is.

    Loops read up to 256 KiB at once, which a client that nobody reads from would leave in memory.
    The buffer is shared: it is copied before anything else can run.
    """

    __slots__ = ("_buffer", "_connection")

    def __init__(self, connection: Connection, buffer: bytearray) -> None:
        self._connection = connection
        self._buffer = buffer

    def get_buffer(self, _sizehint: int) -> bytearray:
        """Give the loop the memory to read into."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on what was read."""
        self._connection.data_received(bytes(memoryview(self._buffer)[:nbytes]))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass it on, as all of the following."""
        self._connection.connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Pass it on."""
        self._connection.connection_lost(exc)

    def eof_received(self) -> None:
        """Pass it on; the loop then closes the connection."""
        self._connection.eof_received()

    def pause_writing(self) -> None:
        """Pass it on."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        self._connection.resume_writing()


class Server(web.Server):
    """aiohttp's server with our connections.

    admit: decides early about a request from an address, on a server that is crowded or not, with
    an answer or what lets it go on, or leaves it.
    """

    def __init__(self, handle: Handle, admit: Admit, config: Config) -> None:
        super().__init__(handle)
        self.admit = admit
        self.refusals = Refusals()
        self.slow_readers = SlowReaders(config.answer_seconds_max, config.answers_bytes_max)
        self._config = config
        self._buffer = bytearray(READ_BYTES)
        self._crowd = min(config.queue_items_max, config.requests_max)

    @property
    def crowded(self) -> bool:
        """Whether there are as many clients, each with one request at a time, as a bound of them.

        With fewer no request can find its place taken, and only its key is looked at early.
        """
        return len(self._connections) >= self._crowd

    def __call__(self) -> asyncio.BaseProtocol:  # type: ignore[override]  # the loop asks no more
        """Make the protocol of a new connection."""
        if len(self._connections) >= self._config.connections_max:
            return _Excess()
        connection = Connection(self, asyncio.get_running_loop(), self._config)
        return Reader(connection, self._buffer)
