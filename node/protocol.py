"""What aiohttp answers by itself, made ours: its errors as problems, and limits it lacks.

aiohttp's low-level server parses HTTP and keeps connections alive. What is changed here: errors of
HTTP itself are problems too; a whole head is bounded in bytes and in time, the first one of a
connection and every later one; little is read ahead of the request being answered; a request that
is here as a whole goes past aiohttp, whose way costs several times as much; an answer that its
client does not take is given up; and there is a bound on connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Protocol, cast

from aiohttp import StreamReader, web
from aiohttp.http import HttpVersion11, RawRequestMessage
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

from actors.errors import Refusal
from node import problems
from node.config import Config
from node.head_parser import READ_BYTES, REQUESTS_AHEAD_MAX, HeadParser, head_too_large
from node.refusals import Refusals
from node.responses import new_request_id, raw_problem, respond_problem
from node.slow_readers import SlowReaders

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Exchange(Protocol):
    """A request that has been checked, and will be answered."""

    async def answer(self, task: asyncio.Task[None], closes: Callable[[], bool]) -> bytes:
        """Return the whole answer.

        task: what awaits it. closes: says, once it is there, whether the connection ends after it.
        """

    def give_up(self) -> None:
        """Let go of what the request holds, in the place of `answer`."""


Begin = Callable[[RawRequestMessage, bytes, str], Exchange | bytes]


class Connection(RequestHandler):
    """One connection, as aiohttp sees it. unanswered: requests passed on, and not yet answered.

    Most requests are here as a whole when their head is, and are answered past aiohttp, whose way
    costs several times as much: one at a time, and what comes behind it waits.
    """

    __slots__ = (
        "_behind",
        "_closes",
        "_config",
        "_exchange",
        "_freed",
        "_head_deadline",
        "_server",
        "_stream",
        "_taken",
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
        self._taken = False  # a request is, and its client has not got the whole answer
        self._exchange: asyncio.Task[None] | None = None  # that makes the answer
        self._freed: asyncio.Future[None] | None = None  # for who waits until nothing is taken
        self._behind = b""  # what came meanwhile
        self._closes = False  # after it
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
        self._behind = b""
        self._free()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what arrived, and start the time of a head that has begun."""
        if not self._taken:
            self._feed(data)
        elif data:
            if not self._behind:
                self._stream.pause_reading()
            self._behind += data

    def _feed(self, data: bytes) -> None:
        super().data_received(data)
        parser = cast("HeadParser | None", self._parser)
        if parser is None or not parser.unfinished_bytes:
            self._stop_awaiting_head()
        elif self._head_deadline is None:
            self._await_head()

    def take(self, message: RawRequestMessage, body: StreamReader) -> bool:
        """Answer a request past aiohttp, if that is simple; says whether it is.

        It is where the request is here as a whole, nothing else is under way on this connection,
        and the client takes its answers.
        """
        if self.unanswered or self._paused or not body.is_eof() or body.exception() is not None:
            return False
        if message.upgrade or message.version != HttpVersion11 or message.method == "HEAD":
            return False
        if body.total_bytes > self._config.body_bytes_max:
            return False
        self._taken = True
        self._closes = self._closes or message.should_close
        answer = self._server.begin(message, body.read_nowait(), self._address())
        if isinstance(answer, bytes):
            self._server.refusals.add(partial(self._finish, answer))
        else:
            self._exchange = self._loop.create_task(self._answer(answer))
        return True

    async def _answer(self, exchange: Exchange) -> None:
        """Write an answer once it is there."""
        if self._stream.is_closing():
            exchange.give_up()
            return
        assert self._exchange is not None
        try:
            content = await exchange.answer(self._exchange, lambda: self._closes)
        except BaseException:
            self.force_close()  # nobody shall wait for what does not come
            raise
        self._finish(content)

    def _finish(self, answer: bytes) -> None:
        """Write an answer, and go on with what came behind its request once the client has it."""
        if not self._stream.is_closing():
            self._stream.write(answer)
            if not self._paused:
                self._go_on()

    def _go_on(self) -> None:
        """Take the next request, or what has come of it, after one that was answered."""
        self._free()
        self._next_keepalive_close_time = self._loop.time() + self._config.keepalive_seconds
        if self._closes:
            self.force_close()
            return
        if cast("HeadParser", self._parser).keeps_more:
            self._feed(b"")
        if self._behind and not self._taken:
            behind, self._behind = self._behind, b""
            if not (self._buffer_paused or self._reading_paused):
                self._stream.resume_reading()
            self._feed(behind)

    def _free(self) -> None:
        """Note that nothing is taken any more."""
        self._taken = False
        self._exchange = None
        if self._freed is not None and not self._freed.done():
            self._freed.set_result(None)

    def ends_after_answer(self) -> bool:
        """Note that the client sends no more; says whether it waits for an answer."""
        self._closes = True
        return self._taken

    def close(self) -> None:
        """Close the connection after the request under way."""
        if not self._taken and not self.unanswered:
            super().close()
        self._closes = True

    async def shutdown(self, timeout: float | None = 15.0) -> None:  # noqa: ASYNC109  (aiohttp's)
        """Close the connection, at the latest after `timeout` seconds."""
        if self._taken or self.unanswered:
            self._freed = self._loop.create_future()
            await asyncio.wait([self._freed], timeout=timeout)
            if self._exchange is not None:
                self._exchange.cancel()
        await super().shutdown(timeout)

    def _process_keepalive(self) -> None:
        if self._taken:
            self._next_keepalive_close_time = self._loop.time() + self._config.keepalive_seconds
        super()._process_keepalive()

    def _address(self) -> str:
        """Return the client's address as the requests of this connection give it."""
        peer = self.peername
        return str(peer[0]) if isinstance(peer, list | tuple) else str(peer or "")

    async def refusal_turn(self) -> None:
        """Wait until a refusal may be written that is answered in the usual way."""
        await self._server.refusals.turn()

    async def _handle_request(
        self, request: web.BaseRequest, start_time: float | None, request_handler: Handle
    ) -> tuple[web.StreamResponse, bool]:
        try:
            answered = await super()._handle_request(request, start_time, request_handler)
        finally:
            self.unanswered -= 1
        if self._closes and not self.unanswered:
            self._free()
            super().close()
        elif answered[0].keep_alive and not self._messages:
            self.data_received(b"")  # the parser keeps what came behind a body that came late
        return answered

    def pause_writing(self) -> None:
        """Start the time within which the client must take its answer."""
        super().pause_writing()
        self._server.slow_readers.begin(self._stream)

    def resume_writing(self) -> None:
        """Note that the client has taken its answer."""
        self._server.slow_readers.end(self._stream)
        super().resume_writing()
        if self._taken:
            self._go_on()

    def _await_head(self) -> None:
        seconds = self._config.header_seconds_max
        self._head_deadline = asyncio.get_running_loop().call_later(seconds, self._head_is_late)

    def _stop_awaiting_head(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _head_is_late(self) -> None:
        if self._request_in_progress or self._messages or self._taken:
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
            problem = problems.problem(head_too_large(self._config))
        elif status == HTTPStatus.BAD_REQUEST:
            refusal = Refusal(
                "malformed_request",
                "The request cannot be read as HTTP/1.1 with at most"
                f" {self._config.headers_max} headers.",
            )
            problem = problems.problem(refusal)
        else:
            error = exc if isinstance(exc, Exception) else RuntimeError(message or "no cause")
            problem = problems.of_exception(error, request_id, changes=False)
        self._server.refused(problem.code)
        response = respond_problem(request_id, problem)
        response.force_close()
        return response


class _Excess(asyncio.Protocol):
    """A connection above the bound: told so, and closed before anything is read."""

    def __init__(self, refused: Callable[[str], None]) -> None:
        self._refused = refused

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)
        refusal = Refusal("overloaded", "There are too many connections.")
        self._refused(refusal.code)
        stream.write(raw_problem(new_request_id(), problems.problem(refusal), close=True))
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

    def eof_received(self) -> bool:
        """Have the loop close the connection, or leave that to the answer that is under way."""
        return self._connection.ends_after_answer()

    def pause_writing(self) -> None:
        """Pass it on."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        self._connection.resume_writing()


class Server(web.Server):
    """aiohttp's server with our connections.

    handle: answers a request in aiohttp's way. begin: checks one that is here as a whole, with its
    body and the address it came from; returns what answers it, or the refusal. refused: counts the
    refusals that are made here.
    """

    def __init__(
        self,
        handle: Handle,
        begin: Begin,
        config: Config,
        refusals: Refusals,
        refused: Callable[[str], None],
    ) -> None:
        super().__init__(handle)
        self.refused = refused
        self.begin = begin
        self.refusals = refusals
        self.slow_readers = SlowReaders(config.answer_seconds_max, config.answers_bytes_max)
        self._config = config
        self._buffer = bytearray(READ_BYTES)

    def __call__(self) -> asyncio.BaseProtocol:  # type: ignore[override]  # the loop asks no more
        """Make the protocol of a new connection."""
        if len(self._connections) >= self._config.connections_max:
            return _Excess(self.refused)
        connection = Connection(self, asyncio.get_running_loop(), self._config)
        return Reader(connection, self._buffer)
