"""Answers on their way out: as aiohttp's responses, and as bytes for when its way is too long.

Every answer carries the id of its request, and none tells what it was made with.
"""

from __future__ import annotations

import itertools
import secrets
from http import HTTPStatus

from aiohttp import web
from aiohttp.helpers import rfc822_formatted_time

from node import problems

REQUEST_ID = "X-Request-Id"

_CLOSE = "Connection: close\r\n"
_PHRASES = {status.value: status.phrase for status in HTTPStatus}

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


def raw_problem(request_id: str, problem: problems.Problem, *, close: bool = False) -> bytes:
    """Make the whole answer of a refusal, for when aiohttp's way is too long."""
    particular = "".join(f"{name}: {text}\r\n" for name, text in problem.headers.items())
    content_type = problems.CONTENT_TYPE
    return _raw(request_id, problem.status, problem.body, content_type, particular, close)


def raw_answer(
    request_id: str, status: int, body: bytes, content_type: str, *, close: bool = False
) -> bytes:
    """Make the whole answer of a request, as `respond` does, for when aiohttp's way is too long."""
    return _raw(request_id, status, body, content_type, "", close)


def _raw(
    request_id: str, status: int, body: bytes, content_type: str, particular: str, close: bool
) -> bytes:
    """Write an answer to the byte as aiohttp writes it."""
    described = ""
    if body:
        described = f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    elif status != HTTPStatus.NO_CONTENT:
        described = "Content-Length: 0\r\n"
    head = (
        f"HTTP/1.1 {status} {_PHRASES[status]}\r\n{particular}{REQUEST_ID}: {request_id}\r\n"
        f"Server: ranknode\r\n{described}Date: {rfc822_formatted_time()}\r\n"
        f"{_CLOSE if close else ''}\r\n"
    )
    return head.encode() + body
