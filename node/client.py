"""A client of one node for the commands: JSON over HTTP, retried where that is safe.

Every call that the commands make is: reads, events whose keys make a repetition a duplicate, and
rulings, which are idempotent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from node.config import API_KEY
from persistence.errors import RanknodeError

KEY_STATUSES = frozenset({401, 403})
RETRIED_STATUSES = frozenset({429, 503, 504})
ATTEMPTS_MAX = 8
BACK_OFF_SECONDS_FIRST = 0.25
BACK_OFF_SECONDS_MAX = 8.0
ANSWER_SECONDS_MAX = 60.0

_HEADER_TEXT = re.compile("[!-~]*")

Pause = Callable[[float], Awaitable[None]]


class NodeError(RanknodeError):
    """Raised when the node refused a request, or could not be reached in all attempts.

    status is 0 where no answer came; code is one of the contract's codes then, or empty.
    """

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}" if code else detail)
        self.status = status
        self.code = code
        self.detail = detail


class _Problem(msgspec.Struct):
    code: str = ""
    detail: str = ""


def board_path(board: str, *rest: str) -> str:
    """Make the path of a board, or of something below it."""
    return "/v1/boards/" + "/".join(quote(segment, safe="") for segment in (board, *rest))


class Client:
    """Speak to a node: `async with Client(url) as client`.

    pause: waits between attempts. key: the bearer key to call with; None calls without. Errors:
    NodeError for a key that no header could hold.
    """

    def __init__(self, url: str, pause: Pause = asyncio.sleep, *, key: str | None = None) -> None:
        if key is not None and _HEADER_TEXT.fullmatch(key) is None:
            # The key is not repeated: most of it may be right.
            raise NodeError(
                0, "", f"the key (--key or {API_KEY}) holds a space, a line's end or no ASCII"
            )
        self._url = url.rstrip("/")
        self._key = key
        self._pause = pause
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX)
        self._session = aiohttp.ClientSession(timeout=timeout)
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send a request and return the answer's body.

        Repeated with growing pauses while the node is busy or cannot be reached; the pause is the
        longer of the back-off's and the node's Retry-After. Raises NodeError.
        """
        back_off_seconds = BACK_OFF_SECONDS_FIRST
        for attempt in range(1, ATTEMPTS_MAX + 1):
            retry_after_seconds = 0.0
            try:
                status, answer, retry_after_seconds = await self._attempt(method, path, body)
            except aiohttp.InvalidURL:
                raise NodeError(0, "", f"{self._url} is no URL of a node") from None
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as e:
                error = NodeError(0, "", f"{self._url} cannot be reached: {e or 'timed out'}")
            else:
                if status < 400:
                    return answer
                error = _refusal(status, answer)
                if status not in RETRIED_STATUSES:
                    raise error
            if attempt == ATTEMPTS_MAX:
                break
            await self._pause(max(back_off_seconds, retry_after_seconds))
            back_off_seconds = min(2 * back_off_seconds, BACK_OFF_SECONDS_MAX)
        raise error

    async def _attempt(
        self, method: str, path: str, body: bytes | None
    ) -> tuple[int, bytes, float]:
        if self._session is None:
            raise RuntimeError("the client is used inside `async with` only")
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        # The path is encoded already; encoded=True keeps yarl from doing it again.
        url = URL(self._url + path, encoded=True)
        async with self._session.request(method, url, data=body, headers=headers) as response:
            text = response.headers.get("Retry-After", "")
            seconds = min(float(text), BACK_OFF_SECONDS_MAX) if text.isdecimal() else 0.0
            return response.status, await response.read(), seconds


def _refusal(status: int, answer: bytes) -> NodeError:
    try:
        problem = msgspec.json.decode(answer, type=_Problem)
    except msgspec.DecodeError:
        problem = _Problem()
    detail = problem.detail or f"the node answered {status}"
    if status in KEY_STATUSES:
        detail += f" Set {API_KEY} to a key that may do this."
    return NodeError(status, problem.code, detail)
