"""The HTTP gateway: from bytes on a socket to a checked call, and its answer back.

Owns everything around a body: routes, parameters, negotiation, limits, deadlines, request ids. It
must not know what a board is. Per request, in this order: path, method, key, accepted form,
parameters, form and size of the body, the body, the board.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

from aiohttp import web
from aiohttp.http import HttpVersion10, HttpVersion11, RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from actors.errors import Refusal
from node import negotiation, problems
from node.access import Access, Admitted, Head
from node.config import Config
from node.handlers import Call, Context
from node.hosts import Hosts
from node.keys import Scope
from node.load import LaneName, Load, Share
from node.openapi import document
from node.parameters import read_query
from node.protocol import (
    REQUEST_ID,
    Connection,
    Server,
    head_too_large,
    new_request_id,
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
BOARD_SHARE = 0.9  # of a request's time, for one of several boards; the rest is for the answer
HEADER_FRAME_BYTES = 4  # of a header besides its name and value: the colon, a space, the line's end


def now_us() -> int:
    """Return the time in microseconds since the epoch."""
    return time.time_ns() // 1000


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
    ) -> None:
        self._config = config
        self._access = access
        self._clock_us = clock_us
        self._router = Router(ROUTES)
        board_seconds_max = BOARD_SHARE * config.request_seconds_max
        self._context = Context(boards, document(), board_seconds_max)
        self._hosts = Hosts(config.hosts_allowed)
        self._load = Load(config.requests_max, config.queue_items_max, config.bodies_bytes_max)
        self._runner: web.ServerRunner | None = None
        self.port = config.port

    @property
    def url(self) -> str:
        """The address to reach the gateway at; `port` is the real one once it has started."""
        host = self._config.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    async def start(self) -> None:
        """Listen."""
        server = Server(self._handle, self._admit, self._config)
        self._runner = web.ServerRunner(server, shutdown_timeout=self._config.drain_seconds)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._config.host, self._config.port, backlog=_BACKLOG)
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
        now = self._clock_us()
        request_id = _request_id(request.headers)
        changes = False
        connection = cast("Connection", request.protocol)
        admitted = connection.take_admitted() or Admitted(Share(self._load))
        share = admitted.share
        try:
            self._check_head(request)
            path, query = negotiation.split_target(request.raw_path)
            route, names = self._router.match(request.method, path)
            call = await self._read(request, route, names, query, now, admitted)
            if route.scope is not Scope.OPEN:
                share.enter(_lane(route, names))
            changes = route.changes
            async with asyncio.timeout(self._config.request_seconds_max):
                status, body = await route.handler(self._context, call)
        except Exception as error:  # noqa: BLE001  (the one place where errors become answers)
            problem = problems.of_exception(error, request_id, changes=changes)
        else:
            content_type = negotiation.PACKED if call.packed else negotiation.JSON
            return respond(request_id, status, body, content_type, {})
        finally:
            share.give_back()
        if problem.status in _PACED:
            await connection.refusal_turn()
        response = respond_problem(request_id, problem)
        if problem.status in _HANG_UP:
            response.force_close()
        return response

    def _admit(
        self, message: RawRequestMessage, address: str, crowded: bool
    ) -> bytes | Admitted | None:
        """Decide early about a request that is here as a whole: who makes it, and is there room.

        Who makes it comes first: nobody else may take a place, or learn that there is none. Returns
        the answer of one that is refused, at a fraction of what a request costs, since there may be
        many more of them than could be answered in any other way; who makes it, and its share of
        the load, of one that is let in; None where the rest of the gateway shall decide.
        """
        if message.method == "HEAD" or message.version not in _VERSIONS:
            return None
        if self._access.trusting and not crowded:
            return None
        try:
            path, _ = negotiation.split_target(message.path)
            route, names = self._router.match(message.method, path)
        except Refusal:
            return None
        if route.scope is Scope.OPEN:
            return None
        head = Head(message.method, message.path, message.headers, address)
        share = Share(self._load)
        try:
            self._check_host(message.headers, message.path)
            caller = self._access.admit(
                head,
                route.scope,
                names.get("board"),
                self._clock_us(),
                with_body=bool(route.body),
            )
            share.enter(_lane(route, names))
        except Refusal as refusal:
            return raw_problem(_request_id(message.headers), refusal)
        return Admitted(share, caller)

    def _check_head(self, request: web.BaseRequest) -> None:
        """Check what the head as a whole must keep. Errors: Refusal."""
        head_bytes = len(request.raw_path)
        for name, value in request.raw_headers:
            head_bytes += len(name) + len(value) + HEADER_FRAME_BYTES
        if head_bytes > self._config.head_bytes_max:
            raise head_too_large(self._config)
        if request.version not in _VERSIONS:
            raise Refusal("malformed_request", "Requests are HTTP/1.1 or HTTP/1.0.")
        self._check_host(request.headers, request.raw_path)

    def _check_host(self, headers: Mapping[str, str], target: str) -> None:
        """Check, where there are no keys, that this node is who was meant. Errors: Refusal."""
        if self._access.trusting:
            self._hosts.check(headers.get("Host"))
            self._hosts.check(negotiation.read_authority(target))

    async def _read(
        self,
        request: web.BaseRequest,
        route: Route,
        names: dict[str, str],
        query: str,
        now: int,
        admitted: Admitted,
    ) -> Call:
        """Check everything around the body, then read the body."""
        head = Head(request.method, request.raw_path, request.headers, request.remote or "")
        share, caller = admitted
        if caller is None:
            caller = self._access.admit(
                head, route.scope, names.get("board"), now, with_body=bool(route.body)
            )
        if route.scope is not Scope.OPEN:
            share.check_room(_lane(route, names))
            if not self._context.boards.ready:
                # Before the boards on disk are known, "no such board" could be untrue.
                raise Refusal("board_unavailable", "The boards on disk are not known yet.")
        packed = negotiation.wants_packed(_joined(request, "Accept"))
        path_values = read_path(names)
        query_values: dict[str, Any] = {}
        if query or route.query:
            query_values = read_query(negotiation.parse_query(query), route.query)
        if not route.body:
            return Call(path_values, query_values, packed, now, caller)
        if not request.body_exists:
            raise Refusal("malformed_body", "This call needs a body.")
        body_packed = negotiation.is_packed(request.headers.get("Content-Type"))
        if _joined(request, "Content-Encoding").strip().lower() not in ("", "identity"):
            raise Refusal("unsupported_media_type", "A body is sent without content encoding.")
        body = await self._read_body(request, share)
        self._access.check_body(head, caller, body)
        return Call(path_values, query_values, packed, now, caller, body, body_packed)

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
        if not size:
            raise Refusal("malformed_body", "This call needs a body.")
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


# After these the rest of the body is not worth reading, so the connection cannot be used again.
_HANG_UP = (408, 413, 431)
# What callers without a good key can be told, and those who find no place: written a few a turn.
_PACED = (401, 403, 404, 405, 429, 503)


def _lane(route: Route, names: dict[str, str]) -> LaneName:
    return LaneName(names.get("board", ""), route.changes)


def _request_id(headers: Mapping[str, str]) -> str:
    """Return the caller's id of a request, or a new one."""
    given = headers.get(REQUEST_ID, "")
    return given if _REQUEST_ID.fullmatch(given) else new_request_id()


def _joined(request: web.BaseRequest, header: str) -> str:
    """Return a header that may come several times as if it had come once (RFC 9110, 5.2)."""
    return ",".join(request.headers.getall(header, ()))


async def _continue(request: web.BaseRequest) -> None:
    """Let a client that asked first send its body (RFC 9110, 10.1.1)."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # The answer proper has not begun; aiohttp counts what was written to know that.
        request.writer.output_size = 0
