"""Three times what a node can do: what it answers, what it refuses, and when it is itself again.

A node of its own, in a temporary directory, first shows its capacity to clients in closed loops,
one durable write to four reads. Then an open loop offers a multiple of that for some seconds.
Broken promises, each named at the end with exit code 1: a request without an answer, a status
besides 200, 429 and 503, memory above a stated bound, an acknowledged event that is not there, a
node that is not as quick as when idle within RECOVERY_SECONDS_MAX.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from loadtest.client_process import ClientProcess
from loadtest.http_clients import MakeRequest, Outcome, Request, closed_loop, open_loop
from loadtest.nodes import Node, running_node
from loadtest.process_memory import private_bytes

BOARD = "overload"
MEMBERS = 10_000
READS_PER_WRITE = 4
BATCH_EVENTS = 5_000  # the most that one request may hold
ALLOWED = {200, 429, 503}
RECOVERY_SECONDS_MAX = 10.0
RECOVERY_ANSWERS = 5  # so many in a row must be quick
IDLE_ANSWERS = 100
IDLE_FACTOR = 3.0  # what still counts as quick as when idle
IDLE_SECONDS_MIN = 0.02
SAMPLE_SECONDS = 0.1
DESCRIPTORS_RESERVED = 100  # what a process of clients needs besides its connections


class Plan(NamedTuple):
    """What is offered. rate: a second; None is `factor` times the measured capacity."""

    seconds: float = 10.0
    capacity_seconds: float = 5.0
    capacity_clients: int = 256
    clients: int = 6_000
    factor: float = 3.0
    rate: float | None = None
    node_growth_mib_max: float = 400.0
    board_growth_mib_max: float = 200.0


class Report(NamedTuple):
    """What came of it; memory is private, in MiB, as (before, peak, after).

    statuses, seconds: of the open loop. p50_seconds, p99_seconds: of what was accepted there, from
    its intended start; p99_served_seconds: from its sending. unsent: no client was free in time.
    """

    capacity: float
    rate: float
    seconds: float
    statuses: Counter[int]
    odd_statuses: list[int]
    lost: int
    unsent: int
    p50_seconds: float
    p99_seconds: float
    p99_served_seconds: float
    node_mib: tuple[float, float, float]
    board_mib: tuple[float, float, float]
    idle_seconds: float
    recovery_seconds: float
    missing: int


class Memory:
    """The memory of some processes while something happens: `with memory.watched(): ...`."""

    def __init__(self, processes: list[int]) -> None:
        self._processes = processes
        self.peaks = self.now()

    def now(self) -> list[float]:
        """Measure once, in MiB."""
        return [private_bytes(process) / 2**20 for process in self._processes]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Keep the peaks."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(SAMPLE_SECONDS):
                self.peaks = [max(pair) for pair in zip(self.peaks, self.now(), strict=True)]

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def event(number: int) -> dict[str, Any]:
    """Make the event of a number: the same one whenever it is asked for."""
    return {
        "member": f"member-{number % MEMBERS}",
        "value": number % 1_000,
        "idempotency_key": f"event-{number}",
        "occurred_at": "2026-01-01T00:00:00Z",
    }


def _requests(first_event: int) -> MakeRequest:
    """Prepare the mixture: READS_PER_WRITE reads, then a write, and so on."""
    head = "Host: 127.0.0.1\r\n"
    reads = [
        Request(
            f"GET /v1/boards/{BOARD}/members/member-{member} HTTP/1.1\r\n{head}\r\n".encode(), None
        )
        for member in range(MEMBERS)
    ]

    def make(number: int) -> Request:
        turn, place = divmod(number, READS_PER_WRITE + 1)
        if place:
            return reads[number * 7919 % MEMBERS]
        body = json.dumps(event(first_event + turn), separators=(",", ":"))
        data = (
            f"POST /v1/boards/{BOARD}/events HTTP/1.1\r\n{head}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        )
        return Request(data.encode(), first_event + turn)

    return make


class Drive(NamedTuple):
    """What a process of clients is to do; closed for `seconds`, or open at a rate where it has one.

    first_event: the number from which on its writes take their events.
    """

    port: int
    clients: int
    seconds: float
    first_event: int
    rate: float | None = None

    async def run(self) -> Outcome:
        """Do it."""
        make = _requests(self.first_event)
        if self.rate is None:
            return await closed_loop(self.port, self.clients, self.seconds, make)
        return await open_loop(self.port, self.clients, self.seconds, self.rate, make)


def _driven(drive: Drive) -> Outcome:
    """Have clients do something in a process of their own."""
    with ClientProcess() as clients:
        return clients.run(drive.run, drive.seconds)


def _seed(node: Node) -> None:
    status, answer = node.call(
        "PUT",
        f"/v1/boards/{BOARD}",
        {"aggregation": "best", "key_retention_days": None, "periods": ["all_time"]},
    )
    if status != 201:
        raise SystemExit(f"the board could not be created: {answer}")
    missing = _missing(node, list(range(MEMBERS)))
    if missing != MEMBERS:
        raise SystemExit("the board was not empty")


def _missing(node: Node, numbers: list[int]) -> int:
    """Submit events once more; those that count now had not been there."""
    missing = 0
    for start in range(0, len(numbers), BATCH_EVENTS):
        batch = [event(number) for number in numbers[start : start + BATCH_EVENTS]]
        status, answer = node.call("POST", f"/v1/boards/{BOARD}/events", {"events": batch})
        if status != 200 or answer["rejected"]:
            raise SystemExit(f"the events could not be looked up: {answer}")
        missing += answer["applied"]
    return missing


def _answer_seconds(node: Node, number: int) -> float | None:
    """Time a write and a read, each on a fresh connection; None where one was refused."""
    begun = time.perf_counter()
    for method, path, body in (
        ("POST", f"/v1/boards/{BOARD}/events", event(number)),
        ("GET", f"/v1/boards/{BOARD}/members/member-{number % MEMBERS}", None),
    ):
        if node.call(method, path, body)[0] != 200:
            return None
    return time.perf_counter() - begun


def _recovered_after(node: Node, quick_seconds: float) -> float:
    """Wait until answers are as quick as they were; returns how long that took."""
    begun = time.perf_counter()
    in_a_row = 0
    while in_a_row < RECOVERY_ANSWERS:
        if time.perf_counter() - begun > 2 * RECOVERY_SECONDS_MAX:
            break
        seconds = _answer_seconds(node, 0)
        in_a_row = in_a_row + 1 if seconds is not None and seconds <= quick_seconds else 0
    return time.perf_counter() - begun


def _cuts(seconds: list[float]) -> list[float]:
    """Return the 99 percentiles; where nothing was accepted, for ever."""
    return statistics.quantiles(seconds, n=100) if len(seconds) > 1 else [math.inf] * 99


def measure(directory: Path, plan: Plan, settings: str = "") -> Report:
    """Overload a node below `directory` with `settings` in TOML as its configuration."""
    config = directory / "ranknode.toml"
    config.write_text(settings)
    with running_node(directory / "data", "--config", str(config)) as node:
        _seed(node)
        idle = [_answer_seconds(node, 0) for _ in range(IDLE_ANSWERS)]
        idle_seconds = statistics.median(seconds for seconds in idle if seconds is not None)
        (board,) = node.processes("ray::BoardActor")
        memory = Memory([node.pid, board])
        before = memory.now()
        with memory.watched():
            drive = Drive(node.port, plan.capacity_clients, plan.capacity_seconds, MEMBERS)
            found = _driven(drive)
            capacity = found.statuses[200] / found.elapsed_seconds
            rate = plan.rate or plan.factor * capacity
            first_event = MEMBERS + found.sent
            drive = Drive(node.port, plan.clients, plan.seconds, first_event, rate)
            outcome = _driven(drive)
            quick_seconds = max(IDLE_FACTOR * idle_seconds, IDLE_SECONDS_MIN)
            recovery_seconds = _recovered_after(node, quick_seconds)
        after = memory.now()
        missing = _missing(node, found.acknowledged + outcome.acknowledged)
    cuts = _cuts(outcome.seconds)
    node_mib, board_mib = zip(before, memory.peaks, after, strict=True)
    return Report(
        capacity=capacity,
        rate=rate,
        seconds=outcome.elapsed_seconds,
        statuses=outcome.statuses,
        odd_statuses=sorted({*found.statuses, *outcome.statuses} - ALLOWED),
        lost=found.lost + outcome.lost,
        unsent=outcome.unsent,
        p50_seconds=cuts[49],
        p99_seconds=cuts[98],
        p99_served_seconds=_cuts(outcome.served_seconds)[98],
        node_mib=node_mib,
        board_mib=board_mib,
        idle_seconds=idle_seconds,
        recovery_seconds=recovery_seconds,
        missing=missing,
    )


def broken_promises(report: Report, plan: Plan) -> list[str]:
    """Name what the node did not keep."""
    broken = []
    if report.lost:
        broken.append(f"{report.lost} requests were never answered")
    if report.odd_statuses:
        broken.append(f"statuses besides {sorted(ALLOWED)}: {report.odd_statuses}")
    for name, (before, peak, _), growth_max in (
        ("node", report.node_mib, plan.node_growth_mib_max),
        ("board", report.board_mib, plan.board_growth_mib_max),
    ):
        if peak - before > growth_max:
            broken.append(f"the {name} grew by {peak - before:.0f} MiB, above {growth_max:.0f}")
    if report.recovery_seconds > RECOVERY_SECONDS_MAX:
        broken.append(f"it was not itself again within {RECOVERY_SECONDS_MAX:.0f} s")
    if report.missing:
        broken.append(f"{report.missing} acknowledged events are missing")
    return broken


def _print(report: Report, plan: Plan) -> None:
    answered = report.statuses.total()
    accepted = report.statuses[200]
    print(f"capacity         {report.capacity:.0f}/s, {plan.capacity_clients} clients, closed loop")
    print(f"asked to offer   {report.rate:.0f}/s for {plan.seconds:.0f} s, {plan.clients} clients")
    rate = answered / report.seconds
    print(f"answered         {answered} in {report.seconds:.1f} s, {rate:.0f}/s")
    print(f"accepted         {accepted}, {accepted / report.seconds:.0f}/s")
    for status in sorted(report.statuses.keys() - {200}):
        print(f"refused with {status} {report.statuses[status]}")
    print(f"never answered   {report.lost}")
    print(f"never sent       {report.unsent}, for all clients were waiting")
    print(f"accepted after   p50 {report.p50_seconds:.3f} s, p99 {report.p99_seconds:.3f} s")
    print(f"from sending     p99 {report.p99_served_seconds:.3f} s")
    for name, memory in (("node", report.node_mib), ("board", report.board_mib)):
        before, peak, after = memory
        print(f"{name:<16} {before:.0f} MiB before, {peak:.0f} at most, {after:.0f} after")
    print(f"idle again after {report.recovery_seconds:.2f} s (idle: {report.idle_seconds:.4f} s)")
    print(f"acknowledged and missing: {report.missing}")


def main() -> None:
    """Run from the command line; ends with 1 where a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = Plan()
    parser.add_argument("--seconds", type=float, default=default.seconds)
    parser.add_argument("--clients", type=int, default=default.clients)
    parser.add_argument("--factor", type=float, default=default.factor, help="times the capacity")
    options = parser.parse_args()
    plan = Plan(options.seconds, clients=options.clients, factor=options.factor)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < plan.clients + DESCRIPTORS_RESERVED:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="ranknode-overload-") as directory:
        report = measure(Path(directory), plan)
    _print(report, plan)
    broken = broken_promises(report, plan)
    for promise in broken:
        print(f"BROKEN: {promise}")
    raise SystemExit(1 if broken else 0)


if __name__ == "__main__":
    main()
