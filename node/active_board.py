"""A board in memory, as its node sees it: the life of its process, and its lanes.

Owns the process from its start to its end, over and over: it is started, opens its board, is waited
for, and when it ended is followed by another, at once or after a pause (`node.restarts`). While
none is up nothing is sent, and whoever asks is told so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import Any

import msgspec
import ray.exceptions

from actors.board_actor import OpenReport
from actors.calls import BoardLostError, CallFailedError, Calls
from actors.directory import Directory
from actors.errors import Refusal
from actors.questions import encode
from node.board_client import LaneLimits
from node.board_link import BoardLink
from node.metrics import Metrics
from node.restarts import Restarts

OPEN_AGAIN_SECONDS_MIN = 1.0
END_SECONDS_MAX = 2.0  # for a process that was killed to be gone

_LOG = logging.getLogger("ranknode")


class ActiveBoard(BoardLink):
    """A board in memory.

    restarts: what is known of its processes before, which may have been many.
    """

    def __init__(
        self,
        board: str,
        directory: Directory,
        limits: LaneLimits,
        restarts: Restarts,
        metrics: Metrics | None = None,
    ) -> None:
        super().__init__(limits, metrics)
        self.board = board
        self._directory = directory
        self._restarts = restarts
        self._actor: Any = None
        self._calls: Calls | None = None
        self._held = False  # back, and no process is up
        self._over = False
        self._reachable = asyncio.Event()  # or whoever waits for that shall look again
        self._settled = asyncio.Event()
        self._life = asyncio.create_task(self._live())

    async def started(self) -> None:
        """Return when the board has been opened, has said why it cannot be, or is held back."""
        await self._settled.wait()

    @property
    def settled(self) -> bool:
        """Whether it has been opened once, has said why it cannot be, or is held back."""
        return self._settled.is_set()

    # Life

    async def _live(self) -> None:
        """Start the process, and another one whenever it ended, as soon as that may be."""
        try:
            while True:
                self._held = self._restarts.wait_seconds > 0
                if self._held:
                    self._settled.set()
                    self._reachable.set()
                    await asyncio.sleep(self._restarts.wait_seconds)
                    self._held = False
                self._restarts.started()
                self._reachable.clear()
                self._actor = actor = self._directory.start(self.board)
                reason = await self._watch(actor)
                self._lose()
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
            self._calls = await self._directory.reach(actor)
            self._reachable.set()
            await self._open(actor)
            await actor.wait_for_end.remote()
        except BoardLostError as error:
            return self._directory.last_words(self.board) or str(error)
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

    def _lose(self) -> None:
        """Let go of the process: nothing is sent from now on."""
        if self._calls is not None:
            self._calls.close()
        self._actor = self._calls = None
        self._reachable.set()

    async def put_away(self, snapshot_seconds: float, seconds: float) -> None:
        """Have the process finish, within `seconds`, and end it."""
        try:
            async with asyncio.timeout(seconds):
                await self.call("close", encode(snapshot_seconds))
        except (TimeoutError, BoardLostError):
            _LOG.warning("board %s did not finish in time; it will recover", self.board)
        except CallFailedError as error:
            _LOG.error("board %s did not finish in order; it will recover: %s", self.board, error)
        except Refusal:
            pass  # no process is up: there is nothing to finish
        await self.end(Refusal("board_unavailable", "the board is being put away"))

    async def end(self, reason: Refusal) -> None:
        """End the process without grace and refuse whoever waits."""
        await self.stop(reason)
        self._over = True
        self._life.cancel()
        await asyncio.gather(self._life, return_exceptions=True)
        if self._actor is not None:
            self._directory.stop(self._actor)
            if self._calls is not None:
                # Other gateways' connections end with it: what it was asked for is over for all.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._calls.ended.wait(), END_SECONDS_MAX)
        self._lose()

    async def reach(self) -> Calls:
        """Return the connection to the process, once there is one."""
        while self._calls is None:
            if self._over:
                raise Refusal("board_unavailable", "the board is being put away")
            if self._held:
                raise self._held_back()
            await self._reachable.wait()
        return self._calls

    def _held_back(self) -> Refusal:
        return Refusal(
            "board_unavailable",
            f"the board's process ended {self._restarts.ends} times in quick succession and is held"
            " back for a while; the node's log says why it ended",
            retry_after_seconds=max(math.ceil(self._restarts.wait_seconds), 1),
        )


def _without_words(error: ray.exceptions.RayError) -> str:
    """Tell what Ray knows of a process that was killed, or crashed, in one line."""
    _, _, detail = str(error).partition("Worker exit type: ")
    return " ".join((detail or str(error)).split())
