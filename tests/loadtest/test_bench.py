"""The benchmark side by side: it measures what it names, and takes no figure of a wrong answer.

It runs tiny here, against the node alone; how quick anything is depends on the machine, and
`make bench` says.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from actors.logged_board import SNAPSHOTS
from loadtest import bench_systems
from loadtest.bench import Plan, measure
from loadtest.bench_batches import NATIVE_KEY, NATIVE_MEMBER, native_rate
from loadtest.bench_data import (
    BATCH_EVENTS,
    batch_requests,
    draw_numbers,
    event_key,
    event_requests,
    first_rank,
    first_value,
    member_id,
)
from loadtest.bench_http import Bench, Load, measure_event, offer, percentiles_ms
from loadtest.bench_marks import (
    ANSWERED,
    BESIDE,
    EACH,
    IN_BATCHES,
    SHOWN,
    UNIFORM,
    WORKS,
    ZIPF,
    Results,
)
from loadtest.bench_restart import ASKED, Opening
from loadtest.bench_systems import (
    NODE,
    PYTHON,
    RANKNODE,
    REDIS,
    Running,
    System,
    fill_board,
    require_agreement,
)
from loadtest.bench_visible import Seen, measure_visible
from loadtest.http_clients import Outcome

MEMBERS = 500
WITHOUT_RESTART = tuple(work for work in WORKS if work != "restart")


class FakeClients:
    """Clients that bring back what they were told to, whatever they are to run."""

    def __init__(self, brought: Any) -> None:
        self._brought = brought

    def run(self, _make: Any, _seconds: float) -> Any:
        return self._brought


def bench_of(brought: Any, counted: Any = lambda: 0) -> Bench:
    node: Any = System(RANKNODE, 0, counted)
    running = Running(node, None, [node], {})
    clients: Any = FakeClients(brought)
    return Bench(running, clients, Results(), MEMBERS, seconds=1, rounds=1, long_log=False)


def outcome_of(statuses: dict[int, int], acknowledged: int = 0) -> Outcome:
    outcome = Outcome()
    outcome.statuses = Counter(statuses)
    outcome.seconds = [0.001] * statuses.get(200, 0)
    outcome.acknowledged = list(range(acknowledged))
    outcome.elapsed_seconds = 1.0
    return outcome


# The whole


@pytest.mark.benchmark
def test_the_node_is_measured_alone_where_its_peers_are_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind of work has its figures of the node; each peer is named, with what is missing."""
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    results, skipped = measure(tmp_path, Plan(WITHOUT_RESTART, MEMBERS, seconds=0.2, rounds=1))
    cases = [case for work in WORKS for case in results.cases(work)]
    assert {(case.work, case.setting, case.connections) for case in cases} == {
        ("memory", "", None),
        *(("rank", ids, count) for ids in (UNIFORM, ZIPF) for count in (1, 32, 128)),
        ("top", "limit 10", 32),
        *(("event", EACH, count) for count in (32, 128)),
        ("batches", IN_BATCHES, None),
        *(("visible", setting, None) for setting in (SHOWN, ANSWERED, BESIDE)),
    }
    for case in cases:
        assert case.system == RANKNODE
        for name in results.measures(case.work):
            figure = results.figure(case, name)
            assert figure is not None, (case, name)
            assert figure > 0, (case, name)
    assert skipped == dict.fromkeys((REDIS, PYTHON, NODE), "redis-server is not installed")


def test_a_board_comes_back_from_its_snapshot_and_from_its_log_alone(tmp_path: Path) -> None:
    """What is timed as a restart reads nothing of the log, or all of it, and ends with one rank."""
    path = tmp_path / "b"
    fill_board(path, MEMBERS, MEMBERS)
    opened = asyncio.run(Opening(path).open())
    assert (opened.replayed, opened.rank) == (0, first_rank(ASKED, MEMBERS))
    assert opened.structures_bytes > MEMBERS * len(member_id(0))
    shutil.rmtree(path / SNAPSHOTS)
    opened = asyncio.run(Opening(path).open())
    assert (opened.replayed, opened.rank) == (MEMBERS, first_rank(ASKED, MEMBERS))


# Figures of nothing


def test_an_answer_that_differs_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system whose ranks or top differ from what they must be is not measured."""
    order = sorted(range(MEMBERS), key=lambda number: first_rank(number, MEMBERS))
    entries = [
        {"rank": place + 1, "member": member_id(number), "score": MEMBERS - 1 - place}
        for place, number in enumerate(order)
    ]
    by_member = {entry["member"]: entry for entry in entries}
    asked: list[int] = []

    def answer(port: int, path: str) -> tuple[int, Any]:
        asked.append(port)
        if "/top" in path:
            return 200, {"entries": entries[:10]}
        entry: dict[str, Any] = by_member[path.rpartition("/")[2].partition("?")[0]]
        return 200, {"entry": entry | {"rank": entry["rank"] + port}}

    monkeypatch.setattr(bench_systems, "ask", answer)
    bench = bench_of(None)
    require_agreement(bench.running, MEMBERS)
    assert len(asked) == 101
    bench.running.systems.append(System(PYTHON, 1, lambda: 0))
    with pytest.raises(SystemExit, match=f"{PYTHON} answers"):
        require_agreement(bench.running, MEMBERS)


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (outcome_of({200: 5, 503: 2}), "answered 5 with 200, 2 with 503"),
        (outcome_of({}), "0 requests never"),
    ],
)
def test_refusals_end_the_benchmark(outcome: Outcome, said: str) -> None:
    """A run with any answer but 200, or with none at all, is no figure."""
    load = Load(1, 1.0, lambda: event_requests(MEMBERS, 0))
    bench = bench_of(outcome)
    with pytest.raises(SystemExit, match=said):
        offer(bench, bench.running.systems[0], load)


def test_events_that_were_acknowledged_and_not_counted_end_the_benchmark() -> None:
    """A run whose acknowledged events the system has not counted, each once, is no figure."""
    counts = itertools.chain([10], itertools.repeat(14))
    bench = bench_of(outcome_of({200: 4}, acknowledged=4), lambda: next(counts))
    measure_event(bench, (32,))
    assert bench.results.cases("event")
    counts = itertools.chain([10], itertools.repeat(13))
    bench = bench_of(outcome_of({200: 4}, acknowledged=4), lambda: next(counts))
    with pytest.raises(SystemExit, match="has not counted"):
        measure_event(bench, (32,))


def test_an_event_that_a_read_does_not_show_ends_the_benchmark() -> None:
    """An acknowledged event that the read behind it does not show was not visible."""
    outcome = outcome_of({200: 200})
    seen = Seen([0.001] * 100, [0.002] * 100, hidden=0, events=outcome, reads=outcome)
    bench = bench_of(seen)
    measure_visible(bench)
    assert len(bench.results.cases("visible")) == 3
    with pytest.raises(SystemExit, match="1 events did not show"):
        measure_visible(bench_of(seen._replace(hidden=1)))


def test_what_could_not_be_sent_in_time_is_late() -> None:
    """Requests that found no client free count as long as the run, so that none is left out."""
    outcome = outcome_of({200: 200})
    outcome.unsent = 10
    seen = Seen([0.001] * 100, [0.002] * 100, hidden=0, events=outcome, reads=outcome)
    bench = bench_of(seen)
    measure_visible(bench)
    for case in bench.results.cases("visible"):
        assert bench.results.figure(case, "p99, ms") == pytest.approx(3_000)


# What is sent


def test_all_members_have_ids_of_one_length_and_ranks_of_their_own() -> None:
    """First events give every rank once, so that systems must agree whatever their tie rules."""
    assert sorted(first_rank(number, MEMBERS) for number in range(MEMBERS)) == [
        *range(1, MEMBERS + 1)
    ]
    lengths = {
        *(len(member_id(number)) for number in (0, 24_999_999)),
        *(len(event_key(*numbers)) for numbers in ((0, 0), (9_999, 10**13))),
        len(NATIVE_MEMBER.replace("__rand_int__", "0" * 12)),
    }
    assert lengths == {24}
    assert NATIVE_MEMBER.replace("__rand_int__", f"{7:012d}") == member_id(7)
    assert NATIVE_KEY.count("__rand_int__") == 2
    assert first_value(0, MEMBERS) == 0


def test_drawn_members_are_alike_or_follow_zipfs_law() -> None:
    """Uniform ids name nobody often; by Zipf's law a few of a million get half of all requests."""
    members, draws = 1_000_000, 20_000
    shares = []
    for skewed in (False, True):
        draw = random.Random(1)  # noqa: S311  (load is drawn, not secrets)
        numbers = itertools.islice(draw_numbers(draw, members, skewed), draws)
        drawn = Counter(numbers)
        assert 0 <= min(drawn) <= max(drawn) < members
        shares.append(sum(count for _, count in drawn.most_common(1_000)) / draws)
    assert shares[0] < 0.1
    assert 0.45 < shares[1] < 0.6


@pytest.mark.parametrize(
    "make", [event_requests(MEMBERS, 3), batch_requests("b", MEMBERS, 3, 0.01)]
)
def test_events_are_whole_requests_with_keys_of_their_own(make: Any) -> None:
    """Each request's body is as long as it says, prepared or not, and no key comes twice."""
    keys = []
    for number in range(5):
        head, _, body = make(number).data.partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}".encode() in head
        decoded = json.loads(body)
        events = decoded.get("events", [decoded])
        assert len(events) in (1, BATCH_EVENTS)
        keys += [event["idempotency_key"] for event in events]
        assert all(0 <= int(event["member"][7:]) < MEMBERS for event in events)
    assert len(set(keys)) == len(keys)


def test_the_rate_of_native_clients_is_read_or_refused() -> None:
    """What redis-benchmark writes gives its rate; an error that it writes instead gives none."""
    columns = '"test","rps","avg_latency_ms"\n'
    assert native_rate(f'{columns}"EVALSHA 1 b","66225.17","0.412"\n') == 66225.17
    for text in ("", columns, "NOSCRIPT No matching script.\n"):
        with pytest.raises(SystemExit, match="redis-benchmark"):
            native_rate(text)


def test_percentiles_are_calls_that_were_made() -> None:
    """The 99th percentile of a hundred calls is the second slowest; of one it is that one."""
    assert percentiles_ms([each / 1_000 for each in range(100, 0, -1)]) == pytest.approx((50, 99))
    assert percentiles_ms([0.25]) == (250, 250)
