"""The text of `GET /metrics`: every figure of a node under its name, for Prometheus.

The tables here are the list of all metrics. Names have their unit last; counts end in `_total`.
Writing down those of a board in memory costs a millisecond of the loop, so it is done in slices.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import itertools
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from actors.measures import Histogram, Measures, State
from node.metrics import BoardFigures, GatewayFigures, LoadFigures, Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "ranknode_"
SLICE_SECONDS = 0.005  # requests have their turn after this long


class _OfProcess(NamedTuple):
    """A figure that a board's process counts."""

    name: str
    help: str
    read: Callable[[Measures], float]


class _OfState(NamedTuple):
    """A figure of an open board; None where it has none."""

    name: str
    help: str
    read: Callable[[State], float | None]


class _Distribution(NamedTuple):
    """A histogram that a board's process keeps."""

    name: str
    help: str
    read: Callable[[Measures], Histogram]


_COUNTERS = (
    _OfProcess("events", "Events that counted.", lambda m: m.applied),
    _OfProcess("duplicates", "Events whose key had counted before.", lambda m: m.duplicates),
    _OfProcess(
        "damaged_records", "Damaged records of logs that were come upon.",
        lambda m: m.damaged_records,
    ),
    _OfProcess(
        "snapshot_failures", "Snapshots that could not be written.", lambda m: m.snapshot_failures
    ),
)  # fmt: skip
_GAUGES = (
    _OfProcess(
        "recovery_load_seconds", "How long loading a snapshot took when the board came up.",
        lambda m: m.load_seconds,
    ),
    _OfProcess(
        "recovery_replay_seconds", "How long replaying the log took when the board came up.",
        lambda m: m.replay_seconds,
    ),
    _OfProcess(
        "recovery_events", "Events that were replayed when the board came up.",
        lambda m: m.replayed_events,
    ),
    _OfProcess(
        "board_resident_bytes", "Memory of the board's process.", lambda m: m.resident_bytes
    ),
)  # fmt: skip
_STATE_GAUGES = (
    _OfState("sequence", "Last sequence of the log.", lambda s: s.sequence),
    _OfState("members", "Names of members in memory.", lambda s: s.members),
    _OfState("entries", "Places in open windows.", lambda s: s.entries),
    _OfState("idempotency_keys", "Idempotency keys in memory.", lambda s: s.keys),
    _OfState("state_bytes", "Memory of the board's structures.", lambda s: s.state_bytes),
    _OfState("open_windows", "Windows that count events.", lambda s: s.open_windows),
    _OfState("closed_windows", "Closed windows that are kept.", lambda s: s.closed_windows),
    _OfState(
        "unsealed_windows", "Closed windows that no archive holds yet.",
        lambda s: s.unsealed_windows,
    ),
    _OfState(
        "snapshot_age_seconds", "Since the newest snapshot was written.",
        lambda s: s.snapshot_age_seconds,
    ),
    _OfState(
        "snapshot_behind_sequences", "Sequences of the log that the newest snapshot lacks.",
        lambda s: s.sequences_behind_snapshot,
    ),
    _OfState("erasing_members", "Erased names that are not off the disk.", lambda s: s.erasing),
    _OfState(
        "commit_queue_requests", "Requests that wait for the next commit.",
        lambda s: s.queued_requests,
    ),
    _OfState(
        "commit_queue_events", "Events that wait for the next commit.", lambda s: s.queued_events
    ),
)  # fmt: skip
_HISTOGRAMS = (
    _Distribution(
        "event_lag_seconds", "From an event's receipt by the gateway until it was visible.",
        lambda m: m.lag_seconds,
    ),
    _Distribution("commit_seconds", "Commits of the log.", lambda m: m.commit_seconds),
    _Distribution("commit_events", "Events in a commit.", lambda m: m.commit_events),
    _Distribution(
        "snapshot_copy_seconds", "Copying of the state, while writes wait.",
        lambda m: m.copy_seconds,
    ),
    _Distribution(
        "snapshot_write_seconds", "Writing of a snapshot, while all goes on.",
        lambda m: m.write_seconds,
    ),
    _Distribution(
        "rebuild_seconds", "Making of lost archives from the log.", lambda m: m.rebuild_seconds
    ),
)  # fmt: skip


_LOAD_GAUGES: tuple[tuple[str, str, Callable[[LoadFigures], int]], ...] = (
    ("requests_in_flight", "Requests being answered.", lambda load: load.requests),
    ("body_bytes", "Bytes of requests' bodies in memory.", lambda load: load.body_bytes),
    ("connections", "Open connections.", lambda load: load.connections),
    (
        "unsent_answer_bytes", "Bytes of answers that wait for their clients.",
        lambda load: load.unsent_answer_bytes,
    ),
)  # fmt: skip


class _Family(Collector):
    """One family of metrics, as the library writes them down."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


class Exposition:
    """Turns what the gateways of a node and its boards count into text, at each scrape.

    metrics: of the gateway that is asked.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        version = importlib.metadata.version
        self._versions = (version("ranknode"), platform.python_version(), version("ray"))
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)
        self._platform = CollectorRegistry(auto_describe=False)
        PlatformCollector(registry=self._platform)

    async def render(self, figures: BoardFigures) -> bytes:
        """Write everything down, giving way to requests; figures: of the node, as of now.

        Complexity: O(boards).
        """
        parts = []
        slice_ends = time.monotonic() + SLICE_SECONDS
        for family in self.families(figures):
            parts.append(generate_latest(_Family(family)))
            if time.monotonic() > slice_ends:
                await asyncio.sleep(0)
                slice_ends = time.monotonic() + SLICE_SECONDS
        return b"".join(parts)

    def families(self, figures: BoardFigures) -> Iterator[Metric]:
        """Yield every family, those without samples too."""
        build = _gauge("build_info", "What runs here.", "version", "python", "ray")
        build.add_metric(self._versions, 1)
        yield build
        yield from self._platform.collect()
        gateways = {self._metrics.gateway: self._metrics.figures(), **figures.gateways}
        yield from self._of_processes(gateways)
        yield from _of_gateways(gateways)
        yield from _of_load(gateways, figures.measures)
        yield from _of_node(figures)
        yield from _of_boards(figures.measures)

    def _of_processes(self, gateways: Mapping[str, GatewayFigures]) -> Iterator[Metric]:
        """Yield the usual figures of a process for each gateway's."""
        for family in self._process.collect():
            shown = Metric(family.name, family.documentation, family.type)
            for name in {sample.name: None for sample in family.samples}:
                for gateway, figures in gateways.items():
                    if name in figures.process:
                        shown.add_sample(name, {"gateway": gateway}, figures.process[name])
            yield shown


def _of_gateways(gateways: Mapping[str, GatewayFigures]) -> Iterator[Metric]:
    yield _histograms(
        "request_seconds",
        "From a request's head until its answer is made.",
        ("gateway", "route", "status"),
        (
            ((gateway, route, str(status)), histogram)
            for gateway, figures in gateways.items()
            for route, status, histogram in figures.answers
        ),
    )
    yield _counter(
        "refusals",
        "Problems that were answered.",
        ("gateway", "code"),
        (
            ((gateway, code), count)
            for gateway, figures in gateways.items()
            for code, count in figures.refusals.items()
        ),
    )
    yield _histograms(
        "call_items",
        "Requests in a call to a board's process.",
        ("gateway", "lane"),
        (
            ((gateway, lane), histogram)
            for gateway, figures in gateways.items()
            for lane, histogram in figures.call_items.items()
        ),
    )
    yield _counter(
        "calls_lost",
        "Calls whose process ended first.",
        ("gateway", "lane"),
        (
            ((gateway, lane), count)
            for gateway, figures in gateways.items()
            for lane, count in figures.calls_lost.items()
        ),
    )


def _of_load(gateways: Mapping[str, GatewayFigures], boards: Iterable[str]) -> Iterator[Metric]:
    loads = {name: each.load for name, each in gateways.items() if each.load is not None}
    for name, text, read in _LOAD_GAUGES:
        gauge = _gauge(name, text, "gateway")
        for gateway, load in loads.items():
            gauge.add_metric([gateway], read(load))
        yield gauge
    yield _counter(
        "slow_readers",
        "Connections that were hung up on, since nobody read.",
        ("gateway",),
        (((gateway,), load.hung_up) for gateway, load in loads.items()),
    )
    lanes = _gauge("lane_requests", "Requests of a board under way.", "gateway", "board", "lane")
    for gateway, load in loads.items():
        # Only of boards that are there: any other name is a client's choice.
        under_way = {(board, lane): requests for board, lane, requests in load.lanes}
        for place in itertools.product(boards, ("read", "write")):
            lanes.add_metric([gateway, *place], under_way.get(place, 0))
    yield lanes


def _of_node(figures: BoardFigures) -> Iterator[Metric]:
    silent = sum(each is None for each in figures.measures.values())
    for name, text, value in (
        ("boards_on_disk", "Boards that exist.", figures.on_disk),
        ("boards_damaged", "Boards that cannot be brought up.", figures.damaged),
        ("boards_in_memory", "Boards that have a process.", len(figures.measures)),
        ("boards_held_back", "Boards that wait to be started again.", figures.held_back),
        ("boards_silent", "Boards that did not answer this scrape in time.", silent),
        ("disk_free_bytes", "What the data's disk has left.", figures.disk_free_bytes),
    ):
        gauge = _gauge(name, text)
        gauge.add_metric([], value)
        yield gauge
    limits = _gauge("limit", "Bounds of the configuration.", "name")
    for name, value in figures.limits.items():
        limits.add_metric([name], value)
    yield limits
    yield _counter(
        "board_process_ends",
        "Ends of a board's process that nobody asked for.",
        ("board",),
        (((board,), ends) for board, ends in figures.process_ends.items()),
    )


def _of_boards(measures: Mapping[str, Measures | None]) -> Iterator[Metric]:
    measured = {board: m for board, m in measures.items() if m is not None}
    states = {board: m.state for board, m in measured.items() if m.state is not None}
    up = _gauge("board_up", "Whether a board in memory is open.", "board")
    for board in measures:
        up.add_metric([board], board in states)
    yield up
    for counter in _COUNTERS:
        rows = (((board,), counter.read(m)) for board, m in measured.items())
        yield _counter(counter.name, counter.help, ("board",), rows)
    yield _counter(
        "event_refusals",
        "Events that were refused.",
        ("board", "code"),
        (
            ((board, code), events)
            for board, m in measured.items()
            for code, events in m.refused.items()
        ),
    )
    for gauge in _GAUGES:
        yield _board_gauge(gauge, ((board, gauge.read(m)) for board, m in measured.items()))
    for of_state in _STATE_GAUGES:
        yield _board_gauge(of_state, ((b, of_state.read(s)) for b, s in states.items()))
    disputes = _gauge("disputes", "Disputes of a board.", "board", "status")
    for board, state in states.items():
        for status, count in state.disputes.items():
            disputes.add_metric([board, status], count)
    yield disputes
    for name, text, read in _HISTOGRAMS:
        distributions = (((board,), read(m)) for board, m in measured.items())
        yield _histograms(name, text, ("board",), distributions)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, labels=labels)


def _board_gauge(
    figure: _OfProcess | _OfState, values: Iterable[tuple[str, float | None]]
) -> GaugeMetricFamily:
    gauge = _gauge(figure.name, figure.help, "board")
    for board, value in values:
        if value is not None:
            gauge.add_metric([board], value)
    return gauge


def _counter(
    name: str,
    text: str,
    labels: Sequence[str],
    rows: Iterable[tuple[Sequence[str], float]],
) -> CounterMetricFamily:
    """Make a family of counters, each row one of them by the values of its labels."""
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for values, count in rows:
        family.add_metric(values, count)
    return family


def _histograms(
    name: str,
    text: str,
    labels: Sequence[str],
    rows: Iterable[tuple[Sequence[str], Histogram]],
) -> HistogramMetricFamily:
    """Make a family of histograms, each row one of them by the values of its labels."""
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels)
    for values, histogram in rows:
        bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
        reached, buckets = 0, []
        for bound, count in zip(bounds, histogram.counts, strict=True):
            reached += count
            buckets.append((bound, reached))
        family.add_metric(values, buckets, histogram.total)
    return family
