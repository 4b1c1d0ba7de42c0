"""Single requests over HTTP, system by system: ranks, the top, and durable events.

Clients in closed loops, all systems in turn within a round. What a system answers with anything
but 200, or acknowledges and has not counted, ends the benchmark: such figures would be of nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from loadtest.bench_data import event_requests, rank_requests, top_requests
from loadtest.bench_marks import CPU, EACH, P50, P99, RATE, UNIFORM, ZIPF, Case, Results
from loadtest.bench_systems import Running, System, rotated
from loadtest.client_process import ClientProcess
from loadtest.http_clients import MakeRequest, Outcome, closed_loop

WARM_UP_SECONDS_MAX = 1.0
TOP_CONNECTIONS = 32

_runs = itertools.count()


def next_run() -> int:
    """Give a run its number, by which it draws other members and keys than any before."""
    return next(_runs)


class Bench(NamedTuple):
    """What is measured, and by what. seconds: of each run; rounds: runs of each case.

    long_log: whether the node has LOGGED_BOARD.
    """

    running: Running
    clients: ClientProcess
    results: Results
    members: int
    seconds: float
    rounds: int
    long_log: bool


class Load(NamedTuple):
    """What the clients of a run do. prepare: makes their requests, in their process."""

    connections: int
    seconds: float
    prepare: Callable[[], MakeRequest]

    async def offer(self, port: int) -> Outcome:
        """Send requests for so long, each client the next one when the last was answered."""
        return await closed_loop(port, self.connections, self.seconds, self.prepare())


Loads = dict[tuple[str, int], Callable[[int], MakeRequest]]


def offer(bench: Bench, system: System, load: Load) -> Outcome:
    """Have the clients offer a load to a system. Errors: SystemExit for any answer but 200."""
    outcome = bench.clients.run(partial(load.offer, system.port), load.seconds)
    if outcome.lost or outcome.statuses.keys() != {200}:
        answered = ", ".join(f"{count} with {each}" for each, count in outcome.statuses.items())
        raise SystemExit(f"{system.name} answered {answered}, and {outcome.lost} requests never")
    return outcome


def measure_rank(bench: Bench, connections: Sequence[int]) -> None:
    """Measure ranks of members, by the ids that are asked for."""
    for ids in (UNIFORM, ZIPF):
        loads: Loads = {
            (ids, count): partial(rank_requests, bench.members, ids == ZIPF, bench.seconds)
            for count in connections
        }
        _measure(bench, "rank", loads, writes=False)


def measure_top(bench: Bench) -> None:
    """Measure the top."""
    _measure(bench, "top", {("limit 10", TOP_CONNECTIONS): _top_requests}, writes=False)


def measure_event(bench: Bench, connections: Sequence[int]) -> None:
    """Measure durable events, one a request."""
    loads: Loads = {(EACH, count): partial(event_requests, bench.members) for count in connections}
    _measure(bench, "event", loads, writes=True)


def _top_requests(_run: int) -> MakeRequest:
    return top_requests()


def _measure(bench: Bench, work: str, loads: Loads, *, writes: bool) -> None:
    """Measure loads by setting and connections, each in every round on every system."""
    (_, connections), prepare = next(reversed(loads.items()))
    seconds = min(bench.seconds, WARM_UP_SECONDS_MAX)
    for system in bench.running.systems:
        offer(bench, system, Load(connections, seconds, partial(prepare, next_run())))
    for number in range(bench.rounds):
        for (setting, connections), prepare in loads.items():
            for system in rotated(bench.running.systems, number):
                load = Load(connections, bench.seconds, partial(prepare, next_run()))
                counted = system.counted() if writes else 0
                outcome = offer(bench, system, load)
                if writes and system.counted() - counted != len(outcome.acknowledged):
                    raise SystemExit(f"{system.name} has not counted what it acknowledged")
                case = Case(work, setting, connections, system.name)
                for measure, figure in _figures(outcome):
                    bench.results.note(case, measure, figure)


def _figures(outcome: Outcome) -> Iterator[tuple[str, float]]:
    yield RATE, outcome.answered / outcome.elapsed_seconds
    p50_ms, p99_ms = percentiles_ms(outcome.seconds)
    yield P50, p50_ms
    yield P99, p99_ms
    yield CPU, outcome.cpu_seconds / outcome.elapsed_seconds


def percentiles_ms(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the 50th and 99th percentile of one call or more, in milliseconds."""
    slowest_last = sorted(seconds)
    p50, p99 = (slowest_last[math.ceil(part * len(seconds)) - 1] for part in (0.5, 0.99))
    return 1e3 * p50, 1e3 * p99
