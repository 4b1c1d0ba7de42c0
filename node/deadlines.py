"""The time that each request has: one timer for all of them, since all have equally long.

A timer of its own would cost a request more than its deadline is worth.
"""

from __future__ import annotations

import asyncio
from typing import Any


class Deadlines:
    """The tasks that must end within `seconds` of their start. Complexity: O(1) a task."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due: dict[asyncio.Task[Any], float] = {}  # in order of their beginning
        self._passed: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, task: asyncio.Task[Any]) -> None:
        """Cancel the task once its time is over, unless it ends before."""
        loop = asyncio.get_running_loop()
        self._due[task] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._cancel_late)

    def end(self, task: asyncio.Task[Any]) -> bool:
        """Let go of a task; says whether it was cancelled because its time is over."""
        self._due.pop(task, None)
        if task in self._passed:
            self._passed.remove(task)
            return True
        return False

    def _cancel_late(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        for task, deadline in list(self._due.items()):
            if deadline > now:
                self._timer = loop.call_at(deadline, self._cancel_late)
                return
            del self._due[task]
            self._passed.add(task)
            task.cancel()
