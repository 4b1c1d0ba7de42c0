"""Answers that wait for their clients: bounded in time and in bytes.

A client that stops reading leaves its answer in this process's memory. Each connection holds one
such answer at most, for nothing more is read from it meanwhile; this bounds how long that may last,
and how much all of them hold together. Whoever has waited longest is hung up on first: an answer
that a client reads waits for milliseconds, so it is never the oldest for long.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple


class _Waiting(NamedTuple):
    unsent_bytes: int
    deadline: asyncio.TimerHandle


class SlowReaders:
    """The connections whose answers wait; unsent_bytes and hung_up are for whoever watches."""

    def __init__(self, seconds_max: float, bytes_max: int) -> None:
        self.unsent_bytes = 0
        self.hung_up = 0
        self._seconds_max = seconds_max
        self._bytes_max = bytes_max
        self._waiting: dict[asyncio.Transport, _Waiting] = {}  # in order of their beginning

    def begin(self, transport: asyncio.Transport) -> None:
        """Note that a connection's answer waits, and make room for it. Complexity: O(1), amortised.

        One that does not fit by itself is hung up on too.
        """
        deadline = asyncio.get_running_loop().call_later(
            self._seconds_max, self._hang_up, transport
        )
        size = transport.get_write_buffer_size()
        self._waiting[transport] = _Waiting(size, deadline)
        self.unsent_bytes += size
        while self.unsent_bytes > self._bytes_max:
            self._hang_up(next(iter(self._waiting)))

    def end(self, transport: asyncio.Transport) -> None:
        """Note that a connection's answer was taken, or that the connection is gone."""
        waiting = self._waiting.pop(transport, None)
        if waiting is not None:
            waiting.deadline.cancel()
            self.unsent_bytes -= waiting.unsent_bytes

    def _hang_up(self, transport: asyncio.Transport) -> None:
        self.end(transport)
        self.hung_up += 1
        transport.abort()
