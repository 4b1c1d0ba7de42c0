"""Events that are decided all at once are decided as one by one, whatever stands around them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import intake
from actors.creation import first_windows
from actors.judge import Judge
from actors.questions import Reply, Submit
from actors.submission import parse_submission
from actors.windows import counting_windows, span_around
from persistence.records import WindowClosedRecord
from tests.actors.board_harness import (
    DAY_US,
    NOW_US,
    MemoryBoard,
    at,
    event,
    in_memory,
    read,
    score_keys,
    settled,
    statuses,
    submit_all,
)

KNOWN_AT_ONCE = ("invalid_field", "duplicate", "idempotency_conflict")
SECOND_US = 1_000_000
FAR_US = 1_000 * 365 * DAY_US  # the calendar reaches as far, and a span without end farther
MIDNIGHT_US = NOW_US + DAY_US // 2
SEASON = {"name": "season", "start": at(NOW_US - DAY_US), "end": at(MIDNIGHT_US - SECOND_US)}
FINAL = {"name": "final", "start": at(MIDNIGHT_US), "end": at(MIDNIGHT_US + DAY_US)}
TIMES_US = (NOW_US, MIDNIGHT_US - SECOND_US, MIDNIGHT_US, MIDNIGHT_US + 20 * SECOND_US)


def mostly(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    """Draw what is usual in half of all cases."""
    return st.sampled_from([usual] * len(others) + list(others))


DEFINITIONS = st.fixed_dictionaries(
    {
        "aggregation": st.sampled_from(["best", "sum", "latest"]),
        "periods": st.sampled_from(
            [["all_time"], ["all_time", "daily", SEASON, FINAL], ["daily", "weekly"], [SEASON]]
        ),
        "grace_seconds": st.sampled_from([0, 10]),
        "future_tolerance_seconds": st.sampled_from([0, 1]),
        "key_retention_days": st.sampled_from([1, None]),
        "min_value": mostly(None, -1),
        "max_value": mostly(None, 2),
        "sources": mostly(None, ["s", "t"]),
        "mode": mostly("live", "backfill"),
    },
    optional={"score": st.just(score_keys("desc2"))},
)
EVENTS = st.fixed_dictionaries(
    {
        "member": mostly("ada", "bo", "名前", "", "."),
        "value": mostly(1, 0, 2, 3, -1, -2, 1.5, 0.005, 2**53, 2**53 - 1, True, None, [1, 2]),
        "idempotency_key": st.integers(0, 60).map("k{}".format),
        # Small instants are counted from the receipt.
        "occurred_at": mostly(
            None, 0, 1, -1, SECOND_US, SECOND_US + 1, -DAY_US, -DAY_US - 1,
            MIDNIGHT_US - SECOND_US - 1, MIDNIGHT_US - SECOND_US, MIDNIGHT_US - 1, MIDNIGHT_US,
        ),
        "source": mostly("s", None, "t", "u", " "),
    }
)  # fmt: skip
REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 2),  # seconds from the receipt until the plan
        st.booleans(),  # MessagePack instead of JSON
        mostly(False, True),  # a single event
        st.lists(EVENTS, min_size=1, max_size=12),
    ),
    min_size=1,
    max_size=4,
)
PLANS = st.lists(st.tuples(st.sampled_from(TIMES_US), REQUESTS), min_size=1, max_size=3).map(
    lambda plans: sorted(plans, key=lambda each: each[0])
)


def created(fields: dict[str, Any]) -> MemoryBoard:
    """Make a board that has opened its windows with bounds, as it does when it is created."""
    host = in_memory(**fields)
    for window in first_windows(host.board.definition, 1, NOW_US):
        if window.window not in host.board.windows:
            record = replace(window, first_sequence=host.board.sequence + 1)
            host.commit([record])
            host.board.apply(record)
    return host


@contextmanager
def one_by_one() -> Iterator[None]:
    """Let nothing be known of windows, so that each event is judged by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intake, "span_around", lambda _board, _instant: None)
        yield


def written(fields: dict[str, Any], received_us: int) -> dict[str, Any]:
    """Write a drawn event."""
    shown = {name: cell for name, cell in fields.items() if name == "value" or cell is not None}
    if "occurred_at" in shown:
        when = shown["occurred_at"]
        shown["occurred_at"] = at(when if when > DAY_US else received_us + when)
    return shown


def close_due(host: MemoryBoard, now_us: int) -> None:
    """Close what is due, as the shell does before it plans."""
    for window in host.board.due(now_us):
        record = WindowClosedRecord(
            first_sequence=host.board.sequence + 1,
            recorded_at_us=now_us,
            window=window.id,
            members=window.size,
            digest=window.digest,
        )
        host.commit([record])
        host.board.apply(record)


def parsed(requests: Any, now_us: int) -> list[Any]:
    """Parse the requests of a plan; single events that are refused whole are no part of it."""
    submissions = []
    for waited, packed, single, drawn in requests:
        received_us = now_us - waited * SECOND_US
        events = [written(each, received_us) for each in drawn]
        body = events[0] if single else {"events": events}
        sent = msgpack.packb(body) if packed else json.dumps(body).encode()
        submissions.append(parse_submission(Submit(packed, received_us, sent, packed)))
    return submissions


def shown(replies: list[Reply]) -> list[tuple[bytes, str, str, Any]]:
    return [(reply.body, reply.code, reply.detail, reply.extra) for reply in replies]


@given(DEFINITIONS, PLANS)
def test_all_at_once_is_one_by_one(fields: dict[str, Any], plans: Any) -> None:
    """Answers, log and state are the same, byte for byte, whether or not events pass as plain."""
    together, apart = created(fields), created(fields)
    for now_us, requests in plans:
        submissions = parsed(requests, now_us)
        close_due(together, now_us)
        answers = shown(settled(together, submissions, now_us))
        with one_by_one():
            close_due(apart, now_us)
            assert answers == shown(settled(apart, submissions, now_us))
        assert together.log.last_hash == apart.log.last_hash
        assert together.board.state_digest() == apart.board.state_digest()


@given(DEFINITIONS, PLANS)
def test_a_batch_is_its_events(fields: dict[str, Any], plans: Any) -> None:
    """What becomes of an event of a batch is what would have become of it alone, at its turn."""
    together, alone = created(fields), created(fields)
    for now_us, requests in plans:
        close_due(together, now_us)
        close_due(alone, now_us)
        for _, _, _, drawn in requests:
            bodies = [written(each, now_us) for each in drawn]
            (batch,) = submit_all(together, [{"events": bodies}], now_us)
            singles = [read(submit_all(alone, [{"events": [each]}], now_us)[0]) for each in bodies]
            found = read(batch)
            assert found["results"] == [single["results"][0] for single in singles]
            assert found["applied"] == sum(single["applied"] for single in singles)
            assert found["duplicates"] == sum(single["duplicates"] for single in singles)
            assert found["sequence"] == singles[-1]["sequence"]
            assert together.board.members.digest == alone.board.members.digest
            assert together.board.keys.digest == alone.board.keys.digest
            windows = {name: window.digest for name, window in together.board.windows.items()}
            assert windows == {name: each.digest for name, each in alone.board.windows.items()}


@given(DEFINITIONS, st.sampled_from(TIMES_US), st.sampled_from(TIMES_US), st.integers(-2, 2))
def test_a_span_counts_for_the_same_windows(
    fields: dict[str, Any], opened_us: int, asked_us: int, step_us: int
) -> None:
    """Every instant of a span, its ends before all, counts for the windows that it names."""
    host = created(fields)
    statuses(host, event(occurred_at=opened_us, source="s"), now_us=opened_us)
    close_due(host, asked_us)
    span = span_around(host.board, asked_us)
    if span is None:
        return
    assert span.holds(asked_us)
    bounds = (span.start_us, span.end_us - 1)
    for instant_us in (asked_us, asked_us + step_us, *bounds):
        if span.holds(instant_us) and abs(instant_us) < FAR_US:
            found = counting_windows(host.board, instant_us, asked_us)
            assert [each.id for each in found] == [each.id for each in span.windows]
            assert all(found is known for found, known in zip(found, span.windows, strict=True))


def test_a_span_ends_where_windows_change() -> None:
    """A span reaches to the nearest bound of a window, those ahead and those behind included."""
    host = created({"periods": ["all_time", SEASON, FINAL]})
    before, between, after = (
        span_around(host.board, instant_us)
        for instant_us in (NOW_US, MIDNIGHT_US - SECOND_US, MIDNIGHT_US)
    )
    assert before is not None
    assert between is not None
    assert after is not None
    ids = [[window.id for window in span.windows] for span in (before, between, after)]
    assert ids == [["all_time", "season"], ["all_time"], ["all_time", "final"]]
    bounds = [(span.start_us, span.end_us) for span in (before, between, after)]
    assert bounds == [
        (NOW_US - DAY_US, MIDNIGHT_US - SECOND_US),
        (MIDNIGHT_US - SECOND_US, MIDNIGHT_US),
        (MIDNIGHT_US, MIDNIGHT_US + DAY_US),
    ]


def test_each_event_is_judged_by_its_own_receipt() -> None:
    """Requests that waited unequally are planned together, and each keeps its own bounds."""
    host = in_memory(future_tolerance_seconds=0, key_retention_days=1)
    early, late = NOW_US, NOW_US + 2 * SECOND_US
    drawn = [
        (early, early - DAY_US, "applied"), (late, early - DAY_US + SECOND_US, "event_too_old"),
        (early, early + SECOND_US, "occurred_in_future"), (late, early + SECOND_US, "applied"),
    ]  # fmt: skip
    submissions = []
    for number, (received_us, occurred_us, _) in enumerate(drawn):
        body = json.dumps(event(key=f"k{number}", occurred_at=occurred_us)).encode()
        submissions.append(parse_submission(Submit(False, received_us, body, False)))
    answers = map(read, settled(host, submissions, late))
    assert [each.get("code", each["status"]) for each in answers] == [code for *_, code in drawn]


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ({"value": 0.5}, "value_precision"), ({"value": 11}, "value_not_allowed"),
        ({"value": -11}, "value_not_allowed"), ({"source": "u"}, "source_not_allowed"),
        ({"occurred_at": NOW_US + 1}, "occurred_in_future"), ({"member": ""}, "invalid_field"),
        ({"occurred_at": NOW_US - DAY_US - 1}, "event_too_old"), ({"key": "k1"}, "duplicate"),
        ({"key": "k1", "value": 2}, "idempotency_conflict"),
    ],
)  # fmt: skip
def test_one_bad_event_is_judged_by_itself(
    bad: dict[str, Any], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among plain events the one that is none is judged, and it alone."""
    judged: list[int] = []
    judge = Judge._judge

    def counted(self: Judge, row: int, first_row: int) -> None:
        judged.append(row)
        judge(self, row, first_row)

    monkeypatch.setattr(Judge, "_judge", counted)
    host = in_memory(
        min_value=-10, max_value=10, sources=["s"], future_tolerance_seconds=0, key_retention_days=1
    )
    events = [event(key=f"k{index}", source="s") for index in range(9)]
    events.insert(5, event(**{"key": "bad", "source": "s"} | bad))
    assert statuses(host, *events) == ["applied"] * 5 + [code] + ["applied"] * 4
    assert judged == ([] if code == "invalid_field" else [5])
    judged.clear()
    assert statuses(host, *events) == ["duplicate"] * 5 + [code] + ["duplicate"] * 4
    assert judged == ([] if code in KNOWN_AT_ONCE else [5])
