"""What a gateway counts, what its boards tell of themselves, and the text that shows both."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from actors.calls import BoardLostError, CallFailedError
from actors.errors import Refusal
from actors.measures import SIZES, Measures
from node import exposition, openapi
from node.exposition import Exposition
from node.load import LaneName, Load
from node.metrics import (
    LANES,
    REQUEST_SECONDS,
    BoardFigures,
    GatewayFigures,
    Metrics,
    gather_measures,
)
from node.problems import TABLE
from node.routes import ROUTES
from node.slow_readers import SlowReaders
from tests.node.fake_boards import FakeBoards, Raw, call, serving
from tests.node.key_samples import add_key
from tests.node.sample_figures import FIGURES, measures_of
from tests.running_node import RunningNode, wait_until

NONE = BoardFigures(0, 0, 0, {}, {}, 0, {})
SECONDS_MAX = 60.0  # for what must come about at all

Sample = tuple[str, tuple[tuple[str, str], ...]]


def rendered(metrics: Metrics, figures: BoardFigures = NONE) -> dict[Sample, float]:
    text = asyncio.run(Exposition(metrics).render(figures))
    return samples_of(text.decode())


def samples_of(text: str) -> dict[Sample, float]:
    """Read the samples as Prometheus does; none may come twice."""
    found: dict[Sample, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def of(samples: dict[Sample, float], name: str, **labels: str) -> float:
    return samples[f"ranknode_{name}", tuple(sorted(labels.items()))]


# Counting


def test_answers_are_counted_by_route_and_status() -> None:
    """Each answer counts for its route and status, in every bucket that reaches its time."""
    metrics = Metrics()
    for seconds in (0.0001, 0.002, 0.0021, 11.0):
        metrics.answered("member", 200, seconds)
    metrics.answered("member", 404, 0.001)
    samples = rendered(metrics)
    good = {"gateway": "0", "route": "member", "status": "200"}
    assert of(samples, "request_seconds_count", **good) == 4
    assert of(samples, "request_seconds_sum", **good) == pytest.approx(11.0042)
    buckets = [of(samples, "request_seconds_bucket", le=str(b), **good) for b in REQUEST_SECONDS]
    assert buckets == [1, 1, 1, 2, *[3] * (len(REQUEST_SECONDS) - 4)]
    assert of(samples, "request_seconds_bucket", le="+Inf", **good) == 4
    assert of(samples, "request_seconds_count", **good | {"status": "404"}) == 1


def test_every_code_is_shown_from_the_start() -> None:
    """A refusal's count begins at 0, so that the first one is a rise; an unknown code is a bug."""
    metrics = Metrics()
    metrics.refused("overloaded")
    samples = rendered(metrics)
    shown = {code: of(samples, "refusals_total", gateway="0", code=code) for code in TABLE}
    assert shown == dict.fromkeys(TABLE, 0) | {"overloaded": 1}
    with pytest.raises(KeyError):
        metrics.refused("no_such_code")


def test_calls_are_counted_by_lane() -> None:
    """What went with a call, and what was lost, is told apart by lane."""
    metrics = Metrics()
    for items in (1, 30, 512):
        metrics.call_sent("read", items)
    metrics.call_sent("write", 2)
    metrics.call_lost("write")
    samples = rendered(metrics)
    read, write, ruling = ({"gateway": "0", "lane": lane} for lane in LANES)
    assert of(samples, "call_items_sum", **read) == 543
    assert of(samples, "call_items_bucket", le="32.0", **read) == 2
    assert of(samples, "call_items_count", **ruling) == 0
    assert [of(samples, "calls_lost_total", **lane) for lane in (read, write)] == [0, 1]


def test_the_present_load_is_shown_once_it_is_watched() -> None:
    """Requests, bodies and connections are those of now; nobody's before there is a gateway."""
    metrics = Metrics()
    assert not [name for name, _ in rendered(metrics) if "in_flight" in name]
    load, slow_readers = Load(10, 5, 1000), SlowReaders(1.0, 1000)
    load.enter(LaneName("arena", True))
    load.enter(LaneName("elsewhere", False))
    load.add_body_bytes(70)
    slow_readers.hung_up = 3
    metrics.watch(load, lambda: 12, slow_readers)
    samples = rendered(metrics, FIGURES)
    mine = {"gateway": "0"}
    assert of(samples, "requests_in_flight", **mine) == 2
    assert of(samples, "body_bytes", **mine) == 70
    assert of(samples, "connections", **mine) == 12
    assert of(samples, "slow_readers_total", **mine) == 3
    assert of(samples, "lane_requests", board="arena", lane="write", **mine) == 1
    assert of(samples, "lane_requests", board="arena", lane="read", **mine) == 0


def test_every_gateway_of_a_node_is_shown_by_whichever_is_asked() -> None:
    """What other gateways told stands beside what this one counts, each under its own name."""
    mine, other = Metrics("1"), Metrics("0")
    mine.refused("overloaded")
    mine.answered("top", 200, 0.001)
    own = msgspec.msgpack.encode(mine.figures())
    mine.refused("overloaded")  # since it told of itself: others could not show that yet
    for _ in range(3):
        other.refused("overloaded")
    other.watch(Load(10, 5, 1000), lambda: 7, SlowReaders(1.0, 1000))
    told = {"0": msgspec.msgpack.encode(other.figures()), "1": own}
    gateways = {
        name: msgspec.msgpack.decode(each, type=GatewayFigures) for name, each in told.items()
    }
    samples = rendered(mine, msgspec.structs.replace(FIGURES, gateways=gateways))
    refused = [of(samples, "refusals_total", gateway=name, code="overloaded") for name in "01"]
    assert refused == [3, 1]
    assert of(samples, "connections", gateway="0") == 7
    assert of(samples, "request_seconds_count", gateway="1", route="top", status="200") == 1
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes"):
        assert samples[name, (("gateway", "0"),)] > 0
        assert samples[name, (("gateway", "1"),)] > 0


def test_no_label_is_a_clients_choice() -> None:
    """Boards are shown while they are in memory; a request for any other name leaves no series."""
    metrics = Metrics()
    load = Load(10, 5, 1000)
    load.enter(LaneName("no-such-board", False))
    metrics.watch(load, lambda: 0, SlowReaders(1.0, 1000))
    boards = {dict(labels).get("board") for _, labels in rendered(metrics, FIGURES)}
    assert boards == {None, *FIGURES.measures}


# Boards


def test_every_figure_of_a_board_is_shown() -> None:
    """What a board's process counts and what its state is comes out under the board's name."""
    samples = rendered(Metrics(), FIGURES)
    arena = {"board": "arena"}
    assert of(samples, "events_total", **arena) == 70
    assert of(samples, "duplicates_total", **arena) == 3
    assert of(samples, "event_refusals_total", code="period_closed", **arena) == 2
    assert of(samples, "event_lag_seconds_count", **arena) == 70
    assert of(samples, "event_lag_seconds_bucket", le="0.02", **arena) == 70
    assert of(samples, "commit_events_sum", **arena) == 70
    assert of(samples, "commit_seconds_count", **arena) == 1
    assert of(samples, "snapshot_age_seconds", **arena) == 12.5
    assert of(samples, "disputes", status="open", **arena) == 2
    assert of(samples, "board_process_ends_total", **arena) == 1
    state = measures_of("arena").state
    assert state is not None
    shown = {value for (_, labels), value in samples.items() if ("board", "arena") in labels}
    fields = msgspec.structs.asdict(state).values()
    assert {value for value in fields if not isinstance(value, dict)} <= shown


def test_a_board_that_is_not_open_or_silent_is_not_up() -> None:
    """A board without an open state, and one that did not answer, are down and not left out."""
    samples = rendered(Metrics(), FIGURES)
    ups = {board: of(samples, "board_up", board=board) for board in FIGURES.measures}
    assert ups == {"arena": 1, "opening": 0, "stuck": 0}
    assert of(samples, "boards_silent") == 1
    assert of(samples, "boards_in_memory") == 3
    assert of(samples, "boards_damaged") == 1
    assert ("ranknode_members", (("board", "opening"),)) not in samples
    assert of(samples, "board_resident_bytes", board="opening") == 50_000_000


def test_a_board_that_does_not_answer_costs_a_bounded_time() -> None:
    """Boards are asked at once; who is late, lost, failing or held back is left out."""
    good = msgspec.msgpack.encode(Measures(applied=5))
    asked = []

    def raising(error: Exception) -> Any:
        async def ask() -> bytes:
            raise error

        return ask

    async def answer() -> bytes:
        asked.append(1)
        return good

    async def stuck() -> bytes:
        await asyncio.Future()
        return good

    asks = {
        "good": answer,
        "stuck": stuck,
        "lost": raising(BoardLostError("it ended")),
        "failing": raising(CallFailedError("a bug")),
        "held": raising(Refusal("board_unavailable", "held back")),
        "other": answer,
    }

    async def gather() -> dict[str, Measures | None]:
        async with asyncio.timeout(SECONDS_MAX):
            return await gather_measures(asks, seconds=0.05)

    found = asyncio.run(gather())
    assert list(found) == list(asks)
    assert {board for board, each in found.items() if each is None} == {
        "stuck", "lost", "failing", "held",
    }  # fmt: skip
    assert len(asked) == 2
    assert found["good"] is not None
    assert found["good"].applied == 5
    assert found["good"].commit_events.bounds == SIZES


# The text


def test_every_metric_explains_itself() -> None:
    """Each family has a help text and a type, units come last and counts end in _total."""
    text = asyncio.run(Exposition(Metrics()).render(FIGURES)).decode()
    types = dict(re.findall(r"^# TYPE (ranknode_\w+) (\w+)$", text, re.MULTILINE))
    helps = dict(re.findall(r"^# HELP (ranknode_\w+) (.+)$", text, re.MULTILINE))
    assert types.keys() == helps.keys()
    assert len(types) > 40
    for name, kind in types.items():
        assert name.endswith("_total") == (kind == "counter"), name
        assert helps[name].endswith("."), name
        assert not re.search(r"_(seconds|bytes)_(?!total)", name), name


def test_process_and_build_are_shown() -> None:
    """The exposition has the process's own figures and says which version runs."""
    samples = rendered(Metrics())
    names = {name for name, _ in samples}
    assert {"process_resident_memory_bytes", "process_open_fds", "python_info"} <= names
    ((_, labels),) = [key for key in samples if key[0] == "ranknode_build_info"]
    assert set(dict(labels)) == {"version", "python", "ray"}


def test_a_scrape_gives_way_to_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """While figures of many boards are written down, others have their turn, and none is lost."""
    monkeypatch.setattr(exposition, "SLICE_SECONDS", 0.0)
    turns = []

    async def scenario() -> bytes:
        rendering = asyncio.create_task(Exposition(Metrics()).render(FIGURES))
        while not rendering.done():
            turns.append(1)
            await asyncio.sleep(0)
        return rendering.result()

    samples = samples_of(asyncio.run(scenario()).decode())
    assert len(turns) > 20
    assert samples.keys() == rendered(Metrics(), FIGURES).keys()


# The call


def scrape(data: Path | None, key: str | None = None, accept: str = "*/*") -> Raw:
    boards = FakeBoards()
    boards.figures = FIGURES

    async def run() -> Raw:
        async with serving(boards, data) as gateway:
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            return await call(gateway.port, "GET", "/metrics", Accept=accept, **headers)

    return asyncio.run(run())


def test_metrics_are_answered_over_http() -> None:
    """GET /metrics answers every figure as text, on a node without keys to whoever reaches it.

    It is text whatever form the scraper would like best, as Prometheus's own are no JSON.
    """
    for accept in ("*/*", "text/plain", "application/openmetrics-text;version=1.0.0"):
        answer = scrape(None, accept=accept)
        assert answer.status == 200
        assert answer.headers["content-type"] == exposition.CONTENT_TYPE
        samples = samples_of(answer.body.decode())
        assert of(samples, "boards_on_disk") == 5
        assert of(samples, "events_total", board="arena") == 70


def test_metrics_tell_of_the_keys_boards_alone(tmp_path: Path) -> None:
    """A key that is for some boards is told of these, and of the node; any lesser key of none."""
    whole, part = (
        samples_of(scrape(tmp_path, add_key(tmp_path, "admin", boards=boards)).body.decode())
        for boards in (("*",), ("are*",))
    )
    boards = {dict(labels).get("board") for _, labels in whole}
    assert boards == {None, *FIGURES.measures}
    assert {dict(labels).get("board") for _, labels in part} == {None, "arena"}
    assert of(part, "boards_on_disk") == 5
    assert scrape(tmp_path, add_key(tmp_path, "submit")).status == 403
    assert scrape(tmp_path).status == 401


def test_the_figures_of_a_node_are_its_boards_own(make_node: Callable[..., RunningNode]) -> None:
    """What a board's process counts reaches the scrape, and the end of a process is counted."""
    node = make_node().start()
    assert node.call("PUT", "/v1/boards/arena", {"aggregation": "sum"})[0] == 201
    events = [{"member": f"m{n}", "value": n, "idempotency_key": str(n)} for n in range(20)]
    for _ in range(2):
        assert node.call("POST", "/v1/boards/arena/events", {"events": events})[0] == 200

    def figures() -> dict[Sample, float]:
        return samples_of(node.ask("/metrics"))

    samples = figures()
    assert of(samples, "events_total", board="arena") == 20
    assert of(samples, "duplicates_total", board="arena") == 20
    assert of(samples, "event_lag_seconds_count", board="arena") == 20
    assert of(samples, "idempotency_keys", board="arena") == 20
    assert of(samples, "board_up", board="arena") == 1
    assert of(samples, "disk_free_bytes") > 0
    (process,) = node.named("ray::BoardActor.wait_for_end")
    os.kill(process, signal.SIGKILL)
    assert node.ask("/v1/boards/arena/top")["members"] == 20

    def is_up_again() -> bool:
        samples = figures()
        ends = of(samples, "board_process_ends_total", board="arena")
        return ends == 1 and of(samples, "board_up", board="arena") == 1

    wait_until(is_up_again, SECONDS_MAX, "the board is up again, and its end is counted")
    samples = figures()
    assert of(samples, "recovery_events", board="arena") == 20
    assert of(samples, "events_total", board="arena") == 0


def test_metrics_are_documented_as_text() -> None:
    """The document says that the answer is text in Prometheus's form, and nothing else."""
    (route,) = [route for route in ROUTES if route.name == "metrics"]
    responses = openapi.document()["paths"]["/metrics"]["get"]["responses"]
    assert list(responses["200"]["content"]) == [exposition.CONTENT_TYPE]
    assert exposition.CONTENT_TYPE.startswith("text/plain; version=0.0.4")
    assert "406" not in responses
    for packed in (False, True):
        assert route.content_type(packed) == exposition.CONTENT_TYPE
