"""Requests that are here as a whole, from their checks to the bytes of their answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from node import problems
from node.deadlines import Deadlines
from node.handlers import Call, Context
from node.load import Share
from node.metrics import Metrics
from node.refusals import Refusals
from node.responses import raw_answer, raw_problem
from node.route import Route

# What callers without a good key can be told, and those who find no place: written a few a turn.
PACED = (401, 403, 404, 405, 429, 503)


class Serving(NamedTuple):
    """What all requests of a gateway share."""

    context: Context
    deadlines: Deadlines
    refusals: Refusals
    metrics: Metrics


class CheckedExchange:
    """A checked request that is answered past aiohttp (`node.protocol.Exchange`)."""

    __slots__ = ("_begun", "_call", "_request_id", "_route", "_serving", "_share")

    def __init__(
        self,
        serving: Serving,
        route: Route,
        call: Call,
        share: Share,
        request_id: str,
        begun: float,
    ) -> None:
        self._begun = begun
        self._serving = serving
        self._route = route
        self._call = call
        self._share = share
        self._request_id = request_id

    def give_up(self) -> None:
        """Give back the request's share of the load."""
        self._share.give_back()

    async def answer(self, task: asyncio.Task[None], closes: Callable[[], bool]) -> bytes:
        """Have the handler answer, within its time."""
        serving, call, changes = self._serving, self._call, self._route.changes
        serving.deadlines.begin(task)
        try:
            status, body = await self._route.handler(serving.context, call)
        except asyncio.CancelledError:
            if not serving.deadlines.end(task):
                raise
            task.uncancel()
            problem = problems.of_exception(TimeoutError(), self._request_id, changes=changes)
        except Exception as error:  # noqa: BLE001  (one of the three places where errors become answers)
            problem = problems.of_exception(error, self._request_id, changes=changes)
        else:
            self._count(status)
            content_type = self._route.content_type(call.packed)
            return raw_answer(self._request_id, status, body, content_type, close=closes())
        finally:
            serving.deadlines.end(task)
            self._share.give_back()
        serving.metrics.refused(problem.code)
        self._count(problem.status)
        if problem.status in PACED:
            await serving.refusals.turn()
        return raw_problem(self._request_id, problem, close=closes())

    def _count(self, status: int) -> None:
        elapsed = time.monotonic() - self._begun
        self._serving.metrics.answered(self._route.name, status, elapsed)
