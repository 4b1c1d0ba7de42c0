"""What a gateway's process counts, and how boards are asked for what theirs count.

Every answer is counted, on the one thread that makes them all, so counting is an addition to a
plain number, well below a microsecond; how the numbers are shown is for `node.exposition`. What a
count is broken down by has few values: names of routes, statuses and codes of the tables, lanes,
and boards in memory. Nothing that a client chooses becomes a label.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import msgspec
from prometheus_client import ProcessCollector

from actors.calls import BoardLostError, CallFailedError
from actors.errors import Refusal
from actors.measures import SIZES, Histogram, Measures
from node.load import Load
from node.problems import TABLE
from node.slow_readers import SlowReaders

# Upper bounds of buckets: a rank takes a fraction of a millisecond, a request ten seconds at most.
REQUEST_SECONDS = (
    0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
MEASURE_SECONDS_MAX = 1.0  # for all boards together; scrapes commonly may take ten
LANES = ("read", "write", "ruling")

Ask = Callable[[], Awaitable[bytes]]


class LoadFigures(msgspec.Struct, frozen=True):
    """A gateway's load at one time. lanes: the requests of each board, by board and lane."""

    requests: int
    body_bytes: int
    connections: int
    unsent_answer_bytes: int
    hung_up: int
    lanes: list[tuple[str, str, int]]


class GatewayFigures(msgspec.Struct, frozen=True):
    """What one gateway tells of itself. process: the figures of its process, by their names.

    answers: by route and status, how long requests took. load: None before it serves.
    """

    answers: list[tuple[str, int, Histogram]]
    refusals: dict[str, int]
    call_items: dict[str, Histogram]
    calls_lost: dict[str, int]
    process: dict[str, float]
    load: LoadFigures | None


class _Watched(NamedTuple):
    load: Load
    connections: Callable[[], int]
    slow_readers: SlowReaders


class Metrics:
    """The counts of one gateway, from its start on. gateway: its name among those of the node.

    Counting: `answered`, `refused`, `call_sent`, `call_lost`. What is there now: `watch`. Telling:
    `figures`.
    """

    def __init__(self, gateway: str = "0") -> None:
        self.gateway = gateway
        self._answers: dict[tuple[str, int], Histogram] = {}
        self._refusals = dict.fromkeys(TABLE, 0)
        self._call_items = {lane: Histogram.over(SIZES) for lane in LANES}
        self._calls_lost = dict.fromkeys(LANES, 0)
        self._watched: _Watched | None = None
        self._process = ProcessCollector(registry=None)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count an answer of a route, problems included, and how long its request took."""
        histogram = self._answers.get((route, status))
        if histogram is None:
            histogram = self._answers[route, status] = Histogram.over(REQUEST_SECONDS)
        histogram.add(seconds)

    def refused(self, code: str) -> None:
        """Count a problem, whichever way it was told."""
        self._refusals[code] += 1

    def call_sent(self, lane: str, items: int) -> None:
        """Count a call to a board's process, and how many requests went with it."""
        self._call_items[lane].add(items)

    def call_lost(self, lane: str) -> None:
        """Count a call whose process ended before it answered."""
        self._calls_lost[lane] += 1

    def watch(self, load: Load, connections: Callable[[], int], slow_readers: SlowReaders) -> None:
        """Tell of the present load too; connections: says how many there are."""
        self._watched = _Watched(load, connections, slow_readers)

    def figures(self) -> GatewayFigures:
        """Tell everything, as of now; what it returns is to be shown or sent at once.

        Complexity: O(routes + requests under way + descriptors).
        """
        return GatewayFigures(
            answers=[(route, status, each) for (route, status), each in self._answers.items()],
            refusals=self._refusals,
            call_items=self._call_items,
            calls_lost=self._calls_lost,
            process={
                sample.name: sample.value
                for family in self._process.collect()
                for sample in family.samples
            },
            load=None if self._watched is None else _load_figures(*self._watched),
        )


def _load_figures(
    load: Load, connections: Callable[[], int], slow_readers: SlowReaders
) -> LoadFigures:
    return LoadFigures(
        requests=load.requests,
        body_bytes=load.body_bytes,
        connections=connections(),
        unsent_answer_bytes=slow_readers.unsent_bytes,
        hung_up=slow_readers.hung_up,
        lanes=[
            (lane.board, "write" if lane.changes else "read", requests)
            for lane, requests in load.lanes.items()
        ],
    )


class BoardFigures(msgspec.Struct, frozen=True):
    """What a node tells of its boards and its gateways at a scrape.

    on_disk, damaged: how many exist, and how many of these cannot be brought up. held_back: how
    many are not started again yet. measures: of each board in memory; None of one that did not
    answer in time. process_ends: how often the process of each of these ended without being told
    to. disk_free_bytes: of the data directory. limits: bounds of the configuration, by name.
    gateways: what each told last, by its name.
    """

    on_disk: int
    damaged: int
    held_back: int
    measures: Mapping[str, Measures | None]
    process_ends: Mapping[str, int]
    disk_free_bytes: int
    limits: Mapping[str, int]
    gateways: Mapping[str, GatewayFigures] = {}

    def about(self, covers: Callable[[str], bool]) -> BoardFigures:
        """Leave out the boards that are not covered; what is about the node stays."""
        return msgspec.structs.replace(
            self,
            measures={board: each for board, each in self.measures.items() if covers(board)},
            process_ends={board: n for board, n in self.process_ends.items() if covers(board)},
        )


async def gather_measures(
    asks: Mapping[str, Ask], seconds: float = MEASURE_SECONDS_MAX
) -> dict[str, Measures | None]:
    """Ask boards for their Measures, all at once; None stands for what did not come in time."""

    async def measured(ask: Ask) -> Measures | None:
        try:
            async with asyncio.timeout(seconds):
                return msgspec.msgpack.decode(await ask(), type=Measures)
        except (TimeoutError, BoardLostError, CallFailedError, Refusal):
            return None

    answers = await asyncio.gather(*map(measured, asks.values()))
    return dict(zip(asks, answers, strict=True))
