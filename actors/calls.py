"""Calls of a board's process, over a socket of its machine.

Ray starts the process, watches it and tells of its end; what players wait for goes this way, since
a call of Ray's costs a millisecond and one of these a tenth of it. A call is one frame there and
one back, many may be under way at once, and they are answered in any order. The socket stands in a
directory that is open to its user alone. Whoever loses the connection does not know whether what it
asked was done.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, cast

from persistence.errors import RanknodeError

FRAME_BYTES_MAX = 1 << 30  # far above what the bounds of a call's questions and answers come to

# Of a frame: bytes that follow, the call's number, the kind; of an answer also the board's sequence
# when the call began and when it ended, and that of its last ruling.
_HEAD = struct.Struct("<IIBQQQ")
_METHODS = (
    "read", "write", "read_slowly", "wait_for", "measure", "close",  # of a board's process
    "locate", "create", "list", "ids", "delete", "changed", "figures", "count",  # of a node's
)  # fmt: skip
_ANSWERED, _FAILED = 0, 1
_NUMBERS = 1 << 32  # of calls; far more than are under way when they come round again

_LOG = logging.getLogger("ranknode.board")

Method = Callable[[bytes], Awaitable[bytes]]


class Answer(NamedTuple):
    """What a call came to.

    since, until: the board's sequence when it began, and when it ended. ruled: that of the board's
    last ruling.
    """

    payload: bytes
    since: int
    until: int
    ruled: int = 0


class BoardLostError(RanknodeError):
    """Raised when a call got no answer: the board's process ended, it may or may not have acted."""


class CallFailedError(RanknodeError):
    """Raised when a board's process met a mistake of the program in a call, and lives on."""


class _Frames(asyncio.Protocol):
    """One end of a connection: bytes to frames and back."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by name

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self.ended.set()

    def data_received(self, data: bytes) -> None:
        self._received += data
        start = 0
        while len(self._received) - start >= _HEAD.size:
            length, number, kind, *told = _HEAD.unpack_from(self._received, start)
            if length > FRAME_BYTES_MAX:
                self.close()
                return
            begin, end = start + _HEAD.size, start + _HEAD.size + length
            if len(self._received) < end:
                break
            with memoryview(self._received) as view:
                payload = bytes(view[begin:end])
            start = end
            self._take(number, kind, Answer(payload, *told))
        if start:
            del self._received[:start]

    def _take(self, number: int, kind: int, content: Answer) -> None:
        raise NotImplementedError

    def _send(self, number: int, kind: int, content: Answer) -> None:
        if self._transport is not None:
            payload, *told = content
            self._transport.write(_HEAD.pack(len(payload), number, kind, *told) + payload)

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()


class _Answering(_Frames):
    """The board's end of one gateway's connection."""

    def __init__(
        self, methods: Mapping[str, Method], sequence: Callable[[], int], ruled: Callable[[], int]
    ) -> None:
        super().__init__()
        self._methods = methods
        self._sequence = sequence
        self._ruled = ruled
        self._tasks: set[asyncio.Task[None]] = set()

    def _take(self, number: int, kind: int, content: Answer) -> None:
        if kind >= len(_METHODS):
            self.close()  # whoever asks for what there is not speaks another language
            return
        task = asyncio.create_task(self._answer(number, _METHODS[kind], content.payload))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, method: str, payload: bytes) -> None:
        since = self._sequence()
        try:
            answer = await self._methods[method](payload)
            content = Answer(answer, since, self._sequence(), self._ruled())
            self._send(number, _ANSWERED, content)
        except Exception as error:  # noqa: BLE001  (whoever called must hear of it)
            _LOG.exception("a call of %s failed", method)
            self._send(number, _FAILED, Answer(repr(error).encode(), 0, 0))


class Calls(_Frames):
    """A gateway's end of a connection to a board's process."""

    def __init__(self) -> None:
        super().__init__()
        self.path = ""
        self._numbers = itertools.count()
        self._under_way: dict[int, asyncio.Future[Answer]] = {}

    @property
    def closed(self) -> bool:
        """Whether the other end is gone."""
        return self._transport is None

    async def call(self, method: str, payload: bytes = b"") -> Answer:
        """Call a method of the process, by its name.

        Errors: BoardLostError where the process ended before it answered; CallFailedError.
        """
        if self._transport is None:
            raise BoardLostError("the connection to the board's process has ended")
        kind = _METHODS.index(method)
        number = next(self._numbers) % _NUMBERS
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._under_way[number] = answer
        self._send(number, kind, Answer(payload, 0, 0))
        try:
            return await answer
        finally:
            del self._under_way[number]

    def _take(self, number: int, kind: int, content: Answer) -> None:
        answer = self._under_way.get(number)
        if answer is None or answer.done():
            return  # whoever asked has given it up
        if kind == _ANSWERED:
            answer.set_result(content)
        else:
            answer.set_exception(CallFailedError(content.payload.decode(errors="replace")))

    def connection_lost(self, error: Exception | None) -> None:
        """Tell everyone who waits; what became of their calls is unknown."""
        super().connection_lost(error)
        for answer in self._under_way.values():
            if not answer.done():
                answer.set_exception(BoardLostError("the board's process hung up"))


async def serve_calls(
    path: str,
    methods: Mapping[str, Method],
    sequence: Callable[[], int],
    ruled: Callable[[], int] = lambda: 0,
) -> asyncio.Server:
    """Listen for gateways at `path`, a socket that is made.

    sequence: tells the board's, ruled that of its last ruling; 0 while it is not open. Errors:
    OSError.
    """
    loop = asyncio.get_running_loop()
    return await loop.create_unix_server(lambda: _Answering(methods, sequence, ruled), path)


async def connect_calls(path: str) -> Calls:
    """Connect to the process that listens at `path`.

    Errors: BoardLostError where none does any more.
    """
    try:
        _, calls = await asyncio.get_running_loop().create_unix_connection(Calls, path)
    except OSError as error:
        raise BoardLostError(f"the board's process cannot be reached: {error}") from error
    calls.path = path
    return calls
