"""A board in memory, as its node sees it: the life of its process, and its lanes.

Owns the process from its start to its end, over and over: it is started, opens its board, is waited
for, and when it ended is followed by another, at once or after a pause (`node.restarts`). While
none is up nothing is sent, and whoever asks is told so.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Any

import msgspec
import ray.exceptions

from actors.board_actor import OpenReport
from actors.directory import Directory
from actors.errors import Refusal
from actors.questions import Ask, decode_replies, encode
from node.board_client import BoardLostError, Lane, LaneLimits, Send
from node.restarts import Restarts

OPEN_AGAIN_SECONDS_MIN = 1.0

_LOG = logging.getLogger("ranknode")


class ActiveBoard:
    """A board in memory. restarts: what is known of its processes before, which may have been many.

    Asking: `reads`, `writes`, `rulings`, `wait_for`, `read_slowly`. Life: `started`, `busy`,
    `used_at`, `put_away`, `end`.
    """

    def __init__(
        self, board: str, directory: Directory, limits: LaneLimits, restarts: Restarts
    ) -> None:
        self.board = board
        self.used_at = time.monotonic()
        self.reads = Lane(self._sender("read"), limits)
        self.writes = Lane(self._sender("write"), limits, changes=True)
        # Of their own: a ruling may read much of the log before it takes its turn.
        self.rulings = Lane(self._sender("write"), limits, changes=True)
        self._directory = directory
        self._restarts = restarts
        self._actor: Any = None
        self._settled = asyncio.Event()
        self._life = asyncio.create_task(self._live())

    async def started(self) -> None:
        """Return when the board has been opened, has said why it cannot be, or is held back."""
        await self._settled.wait()

    @property
    def busy(self) -> bool:
        """Whether any request waits for this board."""
        return self.reads.busy or self.writes.busy or self.rulings.busy

    # Life

    async def _live(self) -> None:
        """Start the process, and another one whenever it ended, as soon as that may be."""
        try:
            while True:
                if self._restarts.wait_seconds:
                    self._settled.set()
                    await asyncio.sleep(self._restarts.wait_seconds)
                self._restarts.started()
                self._actor = actor = self._directory.start(self.board)
                reason = await self._watch(actor)
                self._actor = None
                self._directory.stop(actor)  # one that only cannot be reached may live on
                self._restarts.ended()
                wait_seconds = self._restarts.wait_seconds
                again = f"in {wait_seconds:.0f} s" if wait_seconds else "at once"
                _LOG.error(
                    "board %s: its process ended, it is started again %s: %s",
                    self.board,
                    again,
                    reason,
                )
        finally:
            self._settled.set()

    async def _watch(self, actor: Any) -> str:
        """Have the process open its board, say what came of it, and return why it ended."""
        try:
            await self._open(actor)
            await actor.wait_for_end.remote()
        except ray.exceptions.RayTaskError as error:
            return f"a mistake of the program: {error}"
        except ray.exceptions.RayError as error:
            return self._directory.last_words(self.board) or _without_words(error)
        raise AssertionError("the end of a process is no answer")

    async def _open(self, actor: Any) -> None:
        failure = None
        while failure != "":
            report = msgspec.msgpack.decode(await actor.open.remote(), type=OpenReport)
            if not report.failure:
                _LOG.info("board %s is up: %s", self.board, report.recovered)
            elif report.failure != failure:
                _LOG.error("board %s cannot be brought up: %s", self.board, report.failure)
            failure = report.failure
            self._settled.set()
            if failure:
                await asyncio.sleep(max(report.retry_after_seconds, OPEN_AGAIN_SECONDS_MIN))

    async def put_away(self, snapshot_seconds: float, seconds: float) -> None:
        """Have the process finish, within `seconds`, and end it."""
        try:
            async with asyncio.timeout(seconds):
                await self._call("close", snapshot_seconds)
        except (TimeoutError, BoardLostError):
            _LOG.warning("board %s did not finish in time; it will recover", self.board)
        except ray.exceptions.RayTaskError as error:
            _LOG.error("board %s did not finish in order; it will recover: %s", self.board, error)
        except Refusal:
            pass  # no process is up: there is nothing to finish
        await self.end(Refusal("board_unavailable", "the board is being put away"))

    async def end(self, reason: Refusal) -> None:
        """End the process without grace and refuse whoever waits."""
        await self.reads.stop(reason)
        await self.writes.stop(reason)
        await self.rulings.stop(reason)
        self._life.cancel()
        await asyncio.gather(self._life, return_exceptions=True)
        if self._actor is not None:
            self._directory.stop(self._actor)
            self._actor = None

    # Asking

    def _sender(self, method: str) -> Send:
        async def send(payload: bytes) -> bytes:
            self.used_at = time.monotonic()
            answer: bytes = await self._call(method, payload)
            return answer

        return send

    async def _call(self, method: str, *arguments: Any) -> Any:
        """Call the process.

        Errors: BoardLostError where it ended before it answered; Refusal board_unavailable where
        none is up: nothing was sent.
        """
        actor = self._actor
        if actor is None:
            raise self._held_back()
        try:
            return await getattr(actor, method).remote(*arguments)
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError as error:
            raise BoardLostError(str(error)) from error

    def _held_back(self) -> Refusal:
        return Refusal(
            "board_unavailable",
            f"the board's process ended {self._restarts.ends} times in quick succession and is held"
            " back for a while; the node's log says why it ended",
            retry_after_seconds=max(math.ceil(self._restarts.wait_seconds), 1),
        )

    async def wait_for(self, sequence: int, seconds: float) -> None:
        """Return when the board has reached `sequence`, or after `seconds`."""
        self.used_at = time.monotonic()
        try:
            await self._call("wait_for", sequence, seconds)
        except BoardLostError:
            return

    async def read_slowly(self, ask: Ask) -> bytes:
        """Have an answer made that must be fetched from disk first. Errors: Refusal."""
        self.used_at = time.monotonic()
        try:
            replies = decode_replies(await self._call("read_slowly", encode([ask])))
        except BoardLostError:
            raise Refusal("board_unavailable", "the board is being brought up again") from None
        return replies[0].unwrap()


def _without_words(error: ray.exceptions.RayError) -> str:
    """Tell what Ray knows of a process that was killed, or crashed, in one line."""
    _, _, detail = str(error).partition("Worker exit type: ")
    return " ".join((detail or str(error)).split())
