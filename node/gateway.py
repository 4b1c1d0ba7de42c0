"""The HTTP gateway: from bytes on a socket to a checked call, and its answer back.

Owns everything around a body: routes, parameters, negotiation, limits, deadlines, request ids. It
must not know what a board is. Per request, in this order: path, method, key, accepted form,
parameters, form and size of the body, the body, the board.
"""

from __future__ import annotations

import asyncio
import functools
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, cast

from aiohttp import web
from aiohttp.http import HttpVersion10, HttpVersion11, RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError
from multidict import CIMultiDictProxy

from actors.errors import Refusal
from node import negotiation, problems
from node.access import ANYONE, NOBODY, Access, Caller, Head
from node.config import Config
from node.deadlines import Deadlines
from node.exchange import PACED, CheckedExchange, Serving
from node.exposition import Exposition
from node.handlers import Call, Context
from node.head_parser import head_bytes, head_too_large
from node.hosts import Hosts
from node.keys import Scope
from node.load import LaneName, Load, Share
from node.metrics import Metrics
from node.openapi import document
from node.parameters import read_query
from node.protocol import Connection, Server
from node.refusals import Refusals
from node.responses import (
    REQUEST_ID,
    new_request_id,
    raw_answer,
    raw_problem,
    respond,
    respond_problem,
)
from node.route import Route
from node.router import Router, read_path
from node.routes import ROUTES
from node.service import Boards

_REQUEST_ID = re.compile("[ -~]{1,128}")
_VERSIONS = (HttpVersion10, HttpVersion11)
_BACKLOG = 1024  # connections the kernel keeps while the loop is busy
QUERIES_KEPT = 1_024  # query strings as they were read, some hundred bytes each
BOARD_SHARE = 0.9  # of a request's time, for one of several boards; the rest is for the answer


def now_us() -> int:
    """Return the time in microseconds since the epoch."""
    return time.time_ns() // 1000


class _Checked(NamedTuple):
    """A request of which everything but the body has been checked. lane: None takes no place."""

    route: Route
    lane: LaneName | None
    path: dict[str, Any]
    query: dict[str, Any]
    packed: bool
    caller: Caller
    body_packed: bool


class Gateway:
    """Serve the boards over HTTP, from `start` to `stop`.

    Nothing is logged per request. Errors: OSError from `start` when the port is taken.
    """

    def __init__(
        self,
        boards: Boards,
        config: Config,
        access: Access,
        clock_us: Callable[[], int] = now_us,
        metrics: Metrics | None = None,
    ) -> None:
        self._config = config
        self._access = access
        self._clock_us = clock_us
        self._router = Router(ROUTES)
        # What players' apps ask has few forms, apart from whom it is about.
        self._read_query = functools.lru_cache(QUERIES_KEPT)(_query_reader(ROUTES))
        board_seconds_max = BOARD_SHARE * config.request_seconds_max
        self._metrics = metrics if metrics is not None else Metrics()
        self._context = Context(boards, document(), board_seconds_max, Exposition(self._metrics))
        self._hosts = Hosts(config.hosts_allowed)
        self._load = Load(config.requests_max, config.queue_items_max, config.bodies_bytes_max)
        self._serving = Serving(
            self._context,
            Deadlines(config.request_seconds_max),
            Refusals(),
            self._metrics,
        )
        self._runner: web.ServerRunner | None = None
        self.port = config.port

    @property
    def url(self) -> str:
        """The address to reach the gateway at; `port` is the real one once it has started."""
        host = self._config.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    async def start(self) -> None:
        """Listen."""
        server = Server(
            self._handle, self._begin, self._config, self._serving.refusals, self._metrics.refused
        )
        self._metrics.watch(self._load, lambda: len(server.connections), server.slow_readers)
        self._runner = web.ServerRunner(server, shutdown_timeout=self._config.drain_seconds)
        await self._runner.setup()
        site = web.TCPSite(
            self._runner,
            self._config.host,
            self._config.port,
            backlog=_BACKLOG,
            reuse_port=self._config.gateways > 1,
        )
        try:
            await site.start()
        except OSError:
            await self.stop()
            raise
        self.port = site.port

    async def stop(self) -> None:
        """Stop listening, let the requests under way end within `drain_seconds`, hang up."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request in aiohttp's own way: one whose body is still to come, and rare ones."""
        now, begun = self._clock_us(), time.monotonic()
        request_id = _request_id(request.headers)
        checked = None
        share = Share(self._load)
        try:
            self._check_head(request)
            head = Head(request.method, request.raw_path, request.headers, request.remote or "")
            checked = self._check(head, share, now)
            body = await self._read_body(request, share) if checked.route.body else b""
            call = self._call(head, checked, body, now)
            if checked.lane is not None:
                share.enter(checked.lane)
            async with asyncio.timeout(self._config.request_seconds_max):
                status, answer = await checked.route.handler(self._context, call)
        except Exception as error:  # noqa: BLE001  (another place where errors become answers)
            changes = share.entered and checked is not None and checked.route.changes
            problem = problems.of_exception(error, request_id, changes=changes)
        else:
            self._metrics.answered(checked.route.name, status, time.monotonic() - begun)
            content_type = checked.route.content_type(call.packed)
            response = respond(request_id, status, answer, content_type, {})
            if "Upgrade" in request.headers:
                response.force_close()  # what comes behind such a request is not parsed
            return response
        finally:
            share.give_back()
        self._metrics.refused(problem.code)
        if checked is not None:
            elapsed = time.monotonic() - begun
            self._metrics.answered(checked.route.name, problem.status, elapsed)
        if problem.status in PACED:
            await cast("Connection", request.protocol).refusal_turn()
        response = respond_problem(request_id, problem)
        if problem.status in _HANG_UP:
            response.force_close()
        return response

    def _begin(
        self, message: RawRequestMessage, body: bytes, address: str
    ) -> CheckedExchange | bytes:
        """Check a request that is here as a whole, up to its handler.

        Returns the answer of one that is refused, at a fraction of what a request costs, since
        there may be many more of them than could be answered in any other way; else what answers
        it. Who makes it comes first: nobody else may take a place, or learn that there is none.
        """
        now, begun = self._clock_us(), time.monotonic()
        request_id = _request_id(message.headers)
        share = Share(self._load)
        try:
            head = Head(message.method, message.path, message.headers, address)
            checked = self._check(head, share, now)
            if checked.route.body:
                share.add_body_bytes(len(body))
            call = self._call(head, checked, body, now)
            at_once = checked.route.at_once
            answer = None if at_once is None else at_once(self._context, call)
            if answer is not None:
                share.give_back()
                self._metrics.answered(checked.route.name, answer[0], time.monotonic() - begun)
                content_type = checked.route.content_type(call.packed)
                return raw_answer(request_id, *answer, content_type, close=message.should_close)
            if checked.lane is not None:
                share.enter(checked.lane)
        except Exception as error:  # noqa: BLE001  (the last place where errors become answers)
            share.give_back()
            problem = problems.of_exception(error, request_id, changes=False)
            self._metrics.refused(problem.code)
            return raw_problem(request_id, problem, close=message.should_close)
        return CheckedExchange(self._serving, checked.route, call, share, request_id, begun)

    def _check_head(self, request: web.BaseRequest) -> None:
        """Check what the head as a whole must keep. Errors: Refusal."""
        if head_bytes(request.raw_path, request.raw_headers) > self._config.head_bytes_max:
            raise head_too_large(self._config)
        if request.version not in _VERSIONS:
            raise Refusal("malformed_request", "Requests are HTTP/1.1 or HTTP/1.0.")

    def _check(self, head: Head, share: Share, now: int) -> _Checked:
        """Check everything around the body. Errors: Refusal."""
        path, query = negotiation.split_target(head.target)
        route, names = self._router.match(head.method, path)
        board = names.get("board")
        caller = self._access.admit(head, route.scope, board, now, with_body=bool(route.body))
        lane = None
        if route.scope is not Scope.OPEN:
            lane = LaneName(board or "", route.changes)
            share.check_room(lane)
            if not self._context.boards.ready:
                # Before the boards on disk are known, "no such board" could be untrue.
                raise Refusal("board_unavailable", "The boards on disk are not known yet.")
        if caller is ANYONE or (caller is NOBODY and self._access.trusting):
            # Where there are no keys, this node must be who was meant.
            self._hosts.check(head.headers.get("Host"))
            self._hosts.check(negotiation.read_authority(head.target))
        packed = not route.media_type and negotiation.wants_packed(_joined(head.headers, "Accept"))
        path_values = read_path(names)
        query_values = self._read_query(route.name, query)
        body_packed = False
        if route.body:
            if not _announces_body(head.headers):
                raise Refusal("malformed_body", "This call needs a body.")
            body_packed = negotiation.is_packed(head.headers.get("Content-Type"))
            if _joined(head.headers, "Content-Encoding").strip().lower() not in ("", "identity"):
                raise Refusal("unsupported_media_type", "A body is sent without content encoding.")
        return _Checked(route, lane, path_values, query_values, packed, caller, body_packed)

    def _call(self, head: Head, checked: _Checked, body: bytes, now: int) -> Call:
        """Make the call of a checked request and its body. Errors: Refusal."""
        if checked.route.body:
            if not body:
                raise Refusal("malformed_body", "This call needs a body.")
            self._access.check_body(head, checked.caller, body)
        return Call(
            checked.path,
            checked.query,
            checked.packed,
            now,
            checked.caller,
            body,
            checked.body_packed,
        )

    async def _read_body(self, request: web.BaseRequest, share: Share) -> bytes:
        """Read the body within its bounds of size and time, and within the node's of memory."""
        bytes_max = self._config.body_bytes_max
        too_large = Refusal("body_too_large", f"A body takes at most {bytes_max} bytes.")
        if (request.content_length or 0) > bytes_max:
            raise too_large
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._config.body_seconds_max):
                await _continue(request)
                while chunk := await request.content.readany():
                    chunks.append(chunk)
                    size += len(chunk)
                    share.add_body_bytes(len(chunk))
                    if size > bytes_max:
                        raise too_large
        except TimeoutError:
            detail = f"The body did not arrive within {self._config.body_seconds_max:g} seconds."
            raise Refusal("request_timeout", detail) from None
        except (RequestPayloadError, HttpProcessingError, ConnectionError) as error:
            raise Refusal("malformed_body", "The body ended early or is badly framed.") from error
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


# After these the rest of the body is not worth reading, so the connection cannot be used again.
_HANG_UP = (408, 413, 431)


def _query_reader(routes: Iterable[Route]) -> Callable[[str, str], dict[str, Any]]:
    """Make what reads the query strings of routes, by their names. Errors: Refusal."""
    declared = {route.name: route.query for route in routes}

    def read(name: str, query: str) -> dict[str, Any]:
        if not query and not declared[name]:
            return {}
        return read_query(negotiation.parse_query(query), declared[name])

    return read


def _request_id(headers: Mapping[str, str]) -> str:
    """Return the caller's id of a request, or a new one."""
    given = headers.get(REQUEST_ID, "")
    return given if _REQUEST_ID.fullmatch(given) else new_request_id()


def _joined(headers: CIMultiDictProxy[str], name: str) -> str:
    """Return a header that may come several times as if it had come once (RFC 9110, 5.2)."""
    if name not in headers:
        return ""
    return ",".join(headers.getall(name))


def _announces_body(headers: CIMultiDictProxy[str]) -> bool:
    """Say whether a body follows these headers (RFC 9112, 6.3). Errors: Refusal."""
    coding = _joined(headers, "Transfer-Encoding")
    if coding and coding.strip().lower() != "chunked":
        raise Refusal("unsupported_media_type", "A body is sent without transfer coding.")
    return bool(coding) or headers.get("Content-Length", "0") != "0"


async def _continue(request: web.BaseRequest) -> None:
    """Let a client that asked first send its body (RFC 9110, 10.1.1)."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # The answer proper has not begun; aiohttp counts what was written to know that.
        request.writer.output_size = 0
