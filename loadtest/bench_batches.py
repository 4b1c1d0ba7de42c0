"""Many durable events: batches over HTTP to the node, and to Redis alone without any service.

Redis syncs its append-only file before it answers. It is asked by fifty native clients with one
event at a time, by as many in a process of Python, and by a few with pipelines as long as the
batches. The node decodes, checks, indexes and answers each event besides.
"""

from __future__ import annotations

import asyncio
import csv
import io
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import redis.asyncio

from loadtest.bench_data import (
    BATCH_EVENTS,
    BOARD,
    batch_requests,
    event_key,
    member_id,
)
from loadtest.bench_http import Bench, Load, next_run, offer
from loadtest.bench_marks import CPU, EVENTS, IN_BATCHES, IN_LONG_LOG, NATIVE, Case
from loadtest.bench_systems import JOURNAL, LOGGED_BOARD, RANKNODE, System, board_sequence, rotated
from loadtest.peers.processes import SCRIPT, Redis

HTTP_CLIENTS = 4
NATIVE_CLIENTS = 50
NATIVE_TRIAL_EVENTS = 5_000  # to find out how many fill the time
IN_PYTHON = f"Redis alone, {NATIVE_CLIENTS} clients in Python"
IN_PIPELINES = f"Redis alone, {HTTP_CLIENTS} clients in Python, pipelines of {BATCH_EVENTS:,}"
NATIVE_MEMBER = "member-00000__rand_int__"  # redis-benchmark puts 12 digits
NATIVE_KEY = f"{BOARD}:key:__rand_int____rand_int__"


def measure_batches(bench: Bench) -> None:
    """Measure events a second."""
    works: list[Callable[[], None]] = [partial(_node_batches, bench, BOARD, IN_BATCHES)]
    if bench.long_log:
        works.append(partial(_node_batches, bench, LOGGED_BOARD, IN_LONG_LOG))
    server = bench.running.redis
    if server is not None:
        sha = server.client.script_load(SCRIPT.read_text())
        if shutil.which("redis-benchmark") is None:
            bench.running.skipped[NATIVE] = "redis-benchmark is not installed"
        else:
            works.append(partial(_native_events, bench, server, sha))
        works.append(partial(_python_events, bench, server, IN_PYTHON, NATIVE_CLIENTS, 1))
        works.append(
            partial(_python_events, bench, server, IN_PIPELINES, HTTP_CLIENTS, BATCH_EVENTS)
        )
    for number in range(bench.rounds):
        for work in rotated(works, number):
            work()


def _node_batches(bench: Bench, board: str, setting: str) -> None:
    node, run = bench.running.node, next_run()
    prepare = partial(batch_requests, board, bench.members, run, bench.seconds)
    system = System(RANKNODE, node.port, partial(board_sequence, node, board))
    before = system.counted()
    outcome = offer(bench, system, Load(HTTP_CLIENTS, bench.seconds, prepare))
    counted = system.counted() - before
    if counted != BATCH_EVENTS * len(outcome.acknowledged):
        raise SystemExit(f"{counted} events counted of {outcome.answered} batches")
    case = Case("batches", setting, None, RANKNODE)
    bench.results.note(case, EVENTS, counted / outcome.elapsed_seconds)
    bench.results.note(case, CPU, outcome.cpu_seconds / outcome.elapsed_seconds)


def _native_events(bench: Bench, server: Redis, sha: str) -> None:
    trial = _run_native(bench, server, sha, NATIVE_TRIAL_EVENTS)
    events = max(NATIVE_TRIAL_EVENTS, int(trial * bench.seconds))
    figure = _run_native(bench, server, sha, events)
    bench.results.note(Case("batches", "", None, NATIVE), EVENTS, figure)


def _run_native(bench: Bench, server: Redis, sha: str, events: int) -> float:
    """Have the native clients send so many events; returns them a second.

    A key is two of the numbers that they draw, so that hardly any two are the same.
    """
    command = ["redis-benchmark", "-s", str(server.socket_path), "-c", str(NATIVE_CLIENTS)]
    command += ["-n", str(events), "-r", str(bench.members), "--csv"]
    command += ["EVALSHA", sha, "3", NATIVE_KEY, JOURNAL, BOARD, NATIVE_MEMBER, "500"]
    before = server.ask("XLEN", JOURNAL)
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    counted: int = server.ask("XLEN", JOURNAL) - before
    return counted / events * native_rate(said.stdout)


def native_rate(text: str) -> float:
    """Read the rate from what redis-benchmark writes with --csv. Errors: SystemExit."""
    rows = list(csv.DictReader(io.StringIO(text)))
    if len(rows) != 1 or "rps" not in rows[0]:
        raise SystemExit(f"redis-benchmark did not say how it went: {text!r}")
    return float(rows[0]["rps"])


class _Sent(NamedTuple):
    """What clients in Python sent, and what it took."""

    events: int
    elapsed_seconds: float
    cpu_seconds: float


class _PythonClients(NamedTuple):
    """Clients that send events straight to Redis, each the next when the last was answered.

    pipelined: events that go out together.
    """

    socket: str
    clients: int
    pipelined: int
    seconds: float
    members: int
    run: int

    async def send(self) -> _Sent:
        """Send for so long as planned."""
        client = redis.asyncio.Redis(unix_socket_path=self.socket, max_connections=self.clients)
        count = client.register_script(SCRIPT.read_text())
        await client.script_load(count.script)
        begun, cpu_begun = time.perf_counter(), time.process_time()
        ends = begun + self.seconds
        sent = await asyncio.gather(
            *(self._send_until(ends, client, count, number) for number in range(self.clients))
        )
        elapsed, cpu = time.perf_counter() - begun, time.process_time() - cpu_begun
        await client.aclose()
        return _Sent(sum(sent), elapsed, cpu)

    async def _send_until(
        self, ends: float, client: redis.asyncio.Redis, count: Any, number: int
    ) -> int:
        draw, sent = random.Random(number), 0
        while time.perf_counter() < ends:
            batch = [self._event(draw, number, sent + each) for each in range(self.pipelined)]
            if self.pipelined == 1:
                await count(*batch[0])
            else:
                pipeline = client.pipeline(transaction=False)
                for keys, arguments in batch:
                    pipeline.evalsha(count.sha, len(keys), *keys, *arguments)
                await pipeline.execute()
            sent += self.pipelined
        return sent

    def _event(
        self, draw: random.Random, client: int, number: int
    ) -> tuple[list[str], list[str | int]]:
        key = event_key(self.run, number * self.clients + client)
        member = member_id(draw.randrange(self.members))
        return [f"{BOARD}:key:{key}", JOURNAL, BOARD], [member, draw.randrange(100, 1000)]


def _python_events(bench: Bench, server: Redis, system: str, clients: int, pipelined: int) -> None:
    socket = str(server.socket_path)
    plan = _PythonClients(socket, clients, pipelined, bench.seconds, bench.members, next_run())
    before = server.ask("XLEN", JOURNAL)
    sent = bench.clients.run(plan.send, bench.seconds)
    if server.ask("XLEN", JOURNAL) - before != sent.events:
        raise SystemExit("Redis has not counted what it acknowledged")
    case = Case("batches", "", None, system)
    bench.results.note(case, EVENTS, sent.events / sent.elapsed_seconds)
    bench.results.note(case, CPU, sent.cpu_seconds / sent.elapsed_seconds)
