"""How long it takes until an event is visible, while others read, at fixed rates.

Events and reads are sent at times fixed in advance, and delay counts from then on. Each answered
event is followed at once by a read of its member, which must show the score that it was answered
with: until then it does not count as visible.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, NamedTuple

from loadtest.bench_data import (
    BOARD,
    STRIDE,
    event_body,
    event_key,
    events_request,
    member_request,
    rank_requests,
)
from loadtest.bench_http import Bench, next_run, percentiles_ms
from loadtest.bench_marks import ANSWERED, BESIDE, P50, P99, RATE, SHOWN, Case
from loadtest.bench_systems import RANKNODE
from loadtest.http_clients import Outcome, Request, open_loop

EVENTS_PER_SECOND = 500.0
READS_PER_SECOND = 2_000.0
CLIENTS = 512  # of each kind, so that one is free while a board is slow for half a second
SECONDS_FACTOR = 3  # times as long as other runs: percentiles of few events jump about


class Seen(NamedTuple):
    """What clients saw: seconds from an event's intended start, and what went wrong.

    hidden: events that the read behind them did not show.
    """

    answered_seconds: list[float]
    shown_seconds: list[float]
    hidden: int
    events: Outcome
    reads: Outcome


class Observers(NamedTuple):
    """Clients that write, and look whether it shows, beside others that read."""

    port: int
    seconds: float
    members: int
    run: int

    async def watch(self) -> Seen:
        """Do it for so long as planned."""
        answered: list[float] = []
        shown: list[float] = []
        hidden = 0

        def make_event(number: int) -> Request:
            member = (self.run + number) * STRIDE % self.members  # one that has no other under way
            look = member_request(member)

            def answer(body: bytes, intended: float) -> Request:
                answered.append(time.perf_counter() - intended)
                expected = json.loads(body)

                def see(body: bytes, intended: float) -> None:
                    nonlocal hidden
                    shown.append(time.perf_counter() - intended)
                    hidden += not _shows(json.loads(body), expected)

                return Request(look, None, see)

            body = event_body(member, 100 + number % 900, event_key(self.run, number))
            return Request(events_request(BOARD, body), number, answer)

        reads, events = await asyncio.gather(
            open_loop(
                self.port,
                CLIENTS,
                self.seconds,
                READS_PER_SECOND,
                rank_requests(self.members, False, self.seconds, self.run),
            ),
            open_loop(self.port, CLIENTS, self.seconds, EVENTS_PER_SECOND, make_event),
        )
        return Seen(answered, shown, hidden, events, reads)


def _shows(read: Any, event: Any) -> bool:
    """Tell whether a read of a member shows what its event was answered with."""
    (standing,) = event["standings"]
    seen: bool = read["sequence"] >= event["sequence"]
    return seen and read["entry"]["score"] == standing["score"]


def measure_visible(bench: Bench) -> None:
    """Measure the node alone. What could not even be sent in time counts as late as can be.

    Errors: SystemExit where an answered event did not show.
    """
    seconds = SECONDS_FACTOR * bench.seconds
    for _ in range(bench.rounds):
        plan = Observers(bench.running.node.port, seconds, bench.members, next_run())
        seen = bench.clients.run(plan.watch, seconds)
        _require_whole(seen)
        for setting, each, outcome in (
            (SHOWN, seen.shown_seconds, seen.events),
            (ANSWERED, seen.answered_seconds, seen.events),
            (BESIDE, seen.reads.seconds, seen.reads),
        ):
            case = Case("visible", setting, None, RANKNODE)
            p50_ms, p99_ms = percentiles_ms([*each, *[seconds] * outcome.unsent])
            bench.results.note(case, RATE, len(each) / seconds)
            bench.results.note(case, P50, p50_ms)
            bench.results.note(case, P99, p99_ms)


def _require_whole(seen: Seen) -> None:
    if seen.hidden:
        raise SystemExit(f"{seen.hidden} events did not show after they were answered")
    for what, outcome in (("events", seen.events), ("reads", seen.reads)):
        if outcome.lost or outcome.statuses.keys() != {200}:
            answers = dict(outcome.statuses)
            raise SystemExit(f"of the {what}, {outcome.lost} were not answered, others: {answers}")
