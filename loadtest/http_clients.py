"""Clients that cost little: prepared requests over raw connections, so that the node is measured.

One process with some thousands of connections, each with one request under way at most. A closed
loop sends the next request when an answer comes, and finds the capacity; an open loop sends at
times fixed in advance, whatever the answers, and counts delay from then on, so that a server cannot
look fast by holding its clients up.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple, cast

TICK_SECONDS = 0.001
ANSWER_SECONDS_MAX = 30.0  # after this a request counts as never answered
CONNECTS_AT_ONCE = 200  # well below what the server's kernel keeps waiting


class Request(NamedTuple):
    """A prepared request; `event` numbers the event that it submits, None for a read.

    follow: makes of the body of a 200 and of the intended start the request that the same client
    sends at once, counted from the same start; None sends none.
    """

    data: bytes
    event: int | None
    follow: Callable[[bytes, float], Request | None] | None = None


MakeRequest = Callable[[int], Request]


class Outcome:
    """What became of the requests.

    seconds, served_seconds: of the requests answered with 200, from their intended start and from
    their sending, in no order; they differ while no client is free.
    acknowledged: the events answered with 200. following: sent because of an answer. lost: sent,
    and never answered. unsent: due, but no client was free before the time was over.
    cpu_seconds: what the clients took of a core.
    """

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.seconds: list[float] = []
        self.served_seconds: list[float] = []
        self.acknowledged: list[int] = []
        self.following = 0
        self.lost = 0
        self.unsent = 0
        self.elapsed_seconds = 0.0
        self.cpu_seconds = 0.0

    @property
    def sent(self) -> int:
        """How many requests were sent."""
        return self.answered + self.lost

    @property
    def answered(self) -> int:
        """How many requests got any answer."""
        return self.statuses.total()

    def note(self, status: int, intended: float, sent: float, event: int | None) -> None:
        """Count an answer that has just come."""
        self.statuses[status] += 1
        if status == 200:
            now = time.perf_counter()
            self.seconds.append(now - intended)
            self.served_seconds.append(now - sent)
            if event is not None:
                self.acknowledged.append(event)


class _Connection(asyncio.Protocol):
    """One connection. free: called when it can take the next request."""

    def __init__(self, outcome: Outcome, free: Callable[[_Connection], None]) -> None:
        self._outcome = outcome
        self._free = free
        self._received = b""
        self._under_way: Request | None = None
        self._intended = self._sent = 0.0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by name

    def send(self, request: Request, intended: float) -> None:
        self._under_way, self._intended, self._sent = request, intended, time.perf_counter()
        self._transport.write(request.data)

    def data_received(self, data: bytes) -> None:
        received = self._received = self._received + data if self._received else data
        end = received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = received[:end].lower()
        _, _, length = head.partition(b"content-length: ")
        if len(received) < end + 4 + int(length.partition(b"\r\n")[0] or 0):
            return
        self._received = b""
        request, self._under_way = self._under_way, None
        if request is None:
            raise ConnectionError("an answer came that nobody asked for")
        status = int(received[9:12])
        self._outcome.note(status, self._intended, self._sent, request.event)
        if request.follow is not None and status == 200:
            following = request.follow(received[end + 4 :], self._intended)
            if following is not None:
                self._outcome.following += 1
                self.send(following, self._intended)
                return
        self._free(self)

    def connection_lost(self, _error: Exception | None) -> None:
        if self._under_way is not None:
            self._under_way = None
            self._outcome.lost += 1

    def close(self) -> None:
        self._transport.abort()


async def _connect(
    port: int, count: int, outcome: Outcome, free: Callable[[_Connection], None]
) -> list[_Connection]:
    loop = asyncio.get_running_loop()
    connections: list[_Connection] = []
    while len(connections) < count:
        wave = min(CONNECTS_AT_ONCE, count - len(connections))
        made = await asyncio.gather(
            *(
                loop.create_connection(lambda: _Connection(outcome, free), "127.0.0.1", port)
                for _ in range(wave)
            )
        )
        connections += [connection for _, connection in made]
    return connections


async def closed_loop(port: int, clients: int, seconds: float, make: MakeRequest) -> Outcome:
    """Have each client send its next request when the answer to the last has come."""
    outcome = Outcome()
    number = 0
    ends = 0.0

    def send_next(connection: _Connection) -> None:
        nonlocal number
        now = time.perf_counter()
        if now < ends:
            connection.send(make(number), now)
            number += 1

    connections = await _connect(port, clients, outcome, send_next)
    begun, cpu_begun = time.perf_counter(), time.process_time()
    ends = begun + seconds
    for connection in connections:
        send_next(connection)
    await _answers(outcome, lambda: number, seconds + ANSWER_SECONDS_MAX)
    outcome.elapsed_seconds = time.perf_counter() - begun
    outcome.cpu_seconds = time.process_time() - cpu_begun
    for connection in connections:
        connection.close()
    return outcome


async def open_loop(
    port: int, clients: int, seconds: float, rate: float, make: MakeRequest
) -> Outcome:
    """Send `rate` requests a second, each at its time or once a client is free for it."""
    outcome = Outcome()
    free: deque[_Connection] = deque()
    connections = await _connect(port, clients, outcome, free.append)
    free.extend(connections)
    count = int(rate * seconds)
    begun, cpu_begun = time.perf_counter(), time.process_time()
    number = 0
    while number < count and (now := time.perf_counter() - begun) < seconds + TICK_SECONDS:
        due = min(count, int(now * rate) + 1)
        while number < due and free:
            free.popleft().send(make(number), begun + number / rate)
            number += 1
        await asyncio.sleep(TICK_SECONDS)
    outcome.unsent = count - number
    await _answers(outcome, lambda: number, ANSWER_SECONDS_MAX)
    outcome.elapsed_seconds = time.perf_counter() - begun
    outcome.cpu_seconds = time.process_time() - cpu_begun
    for connection in connections:
        connection.close()
    return outcome


async def _answers(outcome: Outcome, sent: Callable[[], int], seconds: float) -> None:
    """Wait until everything that was sent has been answered or lost; what is not is lost then."""
    deadline = time.perf_counter() + seconds
    quiet = 0
    while quiet < 2 and time.perf_counter() < deadline:
        under_way = sent() + outcome.following - outcome.answered - outcome.lost
        quiet = quiet + 1 if under_way <= 0 else 0
        await asyncio.sleep(0.01)
    outcome.lost = sent() + outcome.following - outcome.answered
