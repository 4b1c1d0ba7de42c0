"""What a board of many millions of members is like: its memory, its recovery, and its snapshots.

It is filled without a node. Then a node has it, and clients in an open loop ask for ranks: first
alone, then beside batches of events, then while a snapshot is copied and written, then alone again.
A read's delay counts from the time at which it should have been sent, so that a board that stands
still is seen whatever the clients do.
"""

from __future__ import annotations

import http.client
import json
import math
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

from actors.directory import BOARDS
from actors.logged_board import SNAPSHOTS, BoardOptions, LoggedBoard
from loadtest.board_marks import BYTES_A_MEMBER, WORST_READ, Figure
from loadtest.client_process import ClientProcess
from loadtest.filled_boards import VALUE_MAX, create, fill_with_numbered, numbered_name
from loadtest.http_clients import MakeRequest, Outcome, Request, open_loop
from loadtest.nodes import HOST, Node, running_node
from loadtest.process_memory import Memory, memory_of
from persistence.files import TEMPORARY_SUFFIX

BOARD = "large"
EVENTS_PER_BATCH = 1_000
LOOK_SECONDS = 0.005
OPEN_SECONDS_PER_MILLION = 20.0  # the most that bringing the board up may take, of its members
OPEN_SECONDS_MIN = 60.0
SNAPSHOT_SECONDS_MIN = 15.0
MEMBERS_PER_SECOND_MIN = 400_000.0  # that are copied and written
MIB = 1 << 20


class Traffic(NamedTuple):
    """What clients do. rates: a second.

    quiet_seconds: without events, before and after. events_seconds: of events before the snapshot.
    snapshot_seconds_max: for the snapshot, from the batch on after which it is due.
    """

    reads_rate: float = 500.0
    batches_rate: float = 10.0
    quiet_seconds: float = 10.0
    events_seconds: float = 10.0
    snapshot_seconds_max: float = 15.0
    clients: int = 64

    @property
    def snapshot_events(self) -> int:
        """How many events are sent before a snapshot is due."""
        return int(self.batches_rate * self.events_seconds) * EVENTS_PER_BATCH

    @property
    def seconds(self) -> float:
        """How long reads are sent."""
        return 2 * self.quiet_seconds + self.events_seconds + self.snapshot_seconds_max


def traffic_for(members: int) -> Traffic:
    """Plan as much time for the snapshot as so many members may take."""
    return Traffic(snapshot_seconds_max=SNAPSHOT_SECONDS_MIN + members / MEMBERS_PER_SECOND_MIN)


class _Span(NamedTuple):
    """From when until when something was done, as time.time() has it."""

    begun: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.begun


class _Read(NamedTuple):
    """A read: when it should have been sent, and how long after that its answer came."""

    intended: float
    seconds: float


def large_figures(
    directory: Path, options: BoardOptions, members: int, traffic: Traffic
) -> Iterator[Figure]:
    """Fill a board, recover it in both ways, and read from it on a node."""
    data = directory / "data"
    path = data / BOARDS / BOARD
    path.parent.mkdir(parents=True)
    with closing(create(path, options)) as host:
        begun = time.perf_counter()
        fill_with_numbered(host, random.Random(members), members)
        filling = time.perf_counter() - begun
        yield Figure("filled", members / filling, "events/s", "", "in commits of 10,000")
        yield Figure("log", host.log.stats.bytes / members, "B an event")
        yield from _structure_figures(host, members)
    yield from _recovery_figures(path, options, members)
    yield from _node_figures(data, members, traffic)


def _structure_figures(host: LoggedBoard, members: int) -> Iterator[Figure]:
    board = host.board
    structures = board.members.nbytes + board.windows["all_time"].nbytes
    yield Figure(BYTES_A_MEMBER, structures / members, "B a member", BYTES_A_MEMBER)
    yield Figure("keys", board.keys.nbytes / members, "B a key")


def _recovery_figures(path: Path, options: BoardOptions, members: int) -> Iterator[Figure]:
    """Open the board from its log alone, write a snapshot, and open it from that."""
    begun = time.perf_counter()
    with closing(LoggedBoard.open(path, options)) as host:
        seconds = time.perf_counter() - begun
        yield Figure("recovered from the log alone", members / seconds, "events/s", "",
                     f"{seconds:.1f} s")  # fmt: skip
        begun = time.perf_counter()
        copy = host.copy_state()
        copied = time.perf_counter()
        host.write_copy(copy)
        written = time.perf_counter()
        size = sum(file.stat().st_size for file in (path / SNAPSHOTS).iterdir())
        yield Figure("state copied, nobody reading", copied - begun, "s")
        yield Figure("snapshot written, nobody reading", written - copied, "s", "",
                     f"{size / MIB:,.0f} MiB")  # fmt: skip
        digest = host.board.state_digest()
        del copy
    begun = time.perf_counter()
    with closing(LoggedBoard.open(path, options)) as host:
        yield Figure("recovered from the snapshot", time.perf_counter() - begun, "s")
        if host.board.state_digest() != digest:
            raise SystemExit("the board came up as another than it was")


def _node_figures(data: Path, members: int, traffic: Traffic) -> Iterator[Figure]:
    settings = data.with_name("large.toml")
    settings.write_text(f"snapshot_events = {traffic.snapshot_events}\n")
    with (
        running_node(data, "--config", str(settings)) as node,
        ClientProcess() as clients,
    ):
        yield Figure("up on a node, first use to answer", _first_answer(node, members), "s")
        (process,) = node.processes("ray::BoardActor")
        yield from _memory_figures(memory_of(process), "at rest", members)
        peak = _Peak(process)
        events = _Events(node, members, traffic, data / BOARDS / BOARD / SNAPSHOTS)
        with peak, events:
            run = partial(_read, node.port, members, traffic)
            begun, outcome = clients.run(run, traffic.seconds)
        yield from _read_figures(begun, outcome, events, traffic)
        yield Figure("writes while a snapshot is made, worst", events.worst_seconds, "s", "",
                     "they wait for the copy")  # fmt: skip
        yield from _memory_figures(peak.memory, "at most", members)


def _first_answer(node: Node, members: int) -> float:
    """Ask for a member until the board answers; returns how long that took."""
    begun = time.monotonic()
    deadline = begun + max(OPEN_SECONDS_MIN, OPEN_SECONDS_PER_MILLION * members / 1e6)
    path = f"/v1/boards/{BOARD}/members/{numbered_name(0).decode()}"
    while (status := node.call("GET", path)[0]) != 200:
        if status != 503 or time.monotonic() > deadline:
            raise SystemExit(f"the board answered {status}:\n{node.log.read_text()}")
        time.sleep(LOOK_SECONDS)
    return time.monotonic() - begun


def _memory_figures(memory: Memory, when: str, members: int) -> Iterator[Figure]:
    for name, amount in memory._asdict().items():
        note = f"{amount / members:.1f} B a member"
        yield Figure(f"board's process {when}: {name}", amount / MIB, "MiB", "", note)


async def _read(port: int, members: int, traffic: Traffic) -> tuple[float, Outcome]:
    """Send reads at their times, numbered; returns when about the first was due."""
    outcome = await open_loop(
        port, traffic.clients, traffic.seconds, traffic.reads_rate, _requests(members)
    )
    return time.time() - outcome.elapsed_seconds, outcome


def _requests(members: int) -> MakeRequest:
    draw = random.Random(members)

    def make(turn: int) -> Request:
        name = numbered_name(draw.randrange(members)).decode()
        head = f"GET /v1/boards/{BOARD}/members/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        return Request(head.encode(), turn)

    return make


def _read_figures(
    begun: float, outcome: Outcome, events: _Events, traffic: Traffic
) -> Iterator[Figure]:
    answered = outcome.statuses[200]
    if outcome.lost or outcome.unsent or answered < outcome.answered:
        raise SystemExit(
            f"of the reads {outcome.lost} were lost, {outcome.unsent} not sent, answered:"
            f" {dict(outcome.statuses)}"
        )
    reads = [
        _Read(begun + turn / traffic.reads_rate, seconds)
        for turn, seconds in zip(outcome.acknowledged, outcome.seconds, strict=True)
    ]
    snapshot, writing = events.snapshot, events.writing
    yield Figure("snapshot made beside reads", snapshot.seconds, "s", "", "copied and written")
    for when, span in (
        ("before any event", _Span(begun, writing.begun)),
        ("beside events", _Span(writing.begun, snapshot.begun)),
        ("while a snapshot is made", snapshot),
        ("after it", _Span(snapshot.ended, math.inf)),
    ):
        each = sorted(read.seconds for read in reads if span.begun <= read.intended < span.ended)
        if not each:
            raise SystemExit(f"nothing was read {when}")
        mark = WORST_READ if span is snapshot else ""
        note = f"{len(each):,} reads, {traffic.reads_rate:g} a second"
        for what, place in (("median", 0.5), ("99th percentile", 0.99), ("worst", 1.0)):
            value = 1e3 * each[math.ceil(place * len(each)) - 1]
            yield Figure(f"rank reads {when}, {what}", value, "ms", mark * (place == 1.0), note)


class _Peak:
    """The most memory that a process has while the block runs, each kind by itself."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.memory = memory_of(process)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            now = memory_of(self._process)
            self.memory = Memory(*map(max, self.memory, now))


class _Events:
    """Batches of events at a steady rate, until a snapshot that they made due has been written.

    writing, snapshot: when these were under way; the snapshot from the batch on after which it was
    due. worst_seconds: of the batches sent from then on.
    """

    def __init__(self, node: Node, members: int, traffic: Traffic, snapshots: Path) -> None:
        self._port = node.port
        self._traffic = traffic
        self._snapshots = snapshots
        self._draw = random.Random(members + 1)
        self._members = members
        self._events = 0
        self._batches: list[_Span] = []
        self._failure = ""
        self._thread = threading.Thread(target=self._send)
        self.writing = self.snapshot = _Span(0.0, 0.0)
        self.worst_seconds = 0.0

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._thread.join()
        if self._failure and kind is None:
            raise SystemExit(self._failure)

    def _send(self) -> None:
        before = self._kept()
        time.sleep(self._traffic.quiet_seconds)
        connection = http.client.HTTPConnection(HOST, self._port, timeout=60)
        begun = time.time()
        due_from = self._traffic.snapshot_events // EVENTS_PER_BATCH
        deadline = begun + self._traffic.events_seconds + self._traffic.snapshot_seconds_max
        with closing(connection):
            while len(self._batches) < due_from or self._kept() == before:
                if time.time() > deadline:
                    self._failure = "no snapshot was made in time"
                    return
                self._send_batch(connection)
                if self._failure:
                    return
                next_at = begun + len(self._batches) / self._traffic.batches_rate
                while time.time() < next_at and not self._written(before, due_from):
                    time.sleep(LOOK_SECONDS)
        ended = time.time()
        self.writing = _Span(begun, ended)
        self.snapshot = _Span(self._batches[due_from - 1].begun, ended)
        self.worst_seconds = max(batch.seconds for batch in self._batches[due_from - 1 :])

    def _written(self, before: Sequence[str], due_from: int) -> bool:
        return len(self._batches) >= due_from and self._kept() != before

    def _kept(self) -> list[str]:
        """List the snapshots that are there, whole."""
        names = (path.name for path in self._snapshots.iterdir())
        return sorted(name for name in names if not name.endswith(TEMPORARY_SUFFIX))

    def _send_batch(self, connection: http.client.HTTPConnection) -> None:
        body = json.dumps({"events": [self._event() for _ in range(EVENTS_PER_BATCH)]})
        begun = time.time()
        connection.request(
            "POST", f"/v1/boards/{BOARD}/events", body, {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        text = answer.read()
        self._batches.append(_Span(begun, time.time()))
        if answer.status != 200 or json.loads(text)["applied"] != EVENTS_PER_BATCH:
            self._failure = f"a batch was answered with {answer.status}: {text[:1000]!r}"

    def _event(self) -> dict[str, object]:
        self._events += 1
        return {
            "member": numbered_name(self._draw.randrange(self._members)).decode(),
            "value": self._draw.randrange(VALUE_MAX),
            "idempotency_key": f"sent-{self._events:019d}",
        }
