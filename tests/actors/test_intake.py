"""Which events count: the order of checks, sums at their bounds, keys, plans of many requests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.actors.board_harness import (
    DAY_US,
    NOW_US,
    change,
    event,
    in_memory,
    read,
    score_keys,
    statuses,
    submit,
    submit_all,
)

WHOLE_MAX = 2**53 - 1
DECIMAL_MAX = 10**15 - 1
SECOND_US = 1_000_000


# The order of checks

STRICT: dict[str, Any] = {
    "key_retention_days": 1,
    "future_tolerance_seconds": 0,
    "min_value": -10,
    "max_value": 10,
    "sources": ["s"],
}
OLD, FUTURE = NOW_US - DAY_US - 1, NOW_US + 1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"key": "used", "value": True, "occurred_at": OLD}, "invalid_field"),
        ({"key": "used", "value": 0.5, "occurred_at": OLD}, "idempotency_conflict"),
        ({"key": "used", "value": 2**60, "occurred_at": FUTURE}, "idempotency_conflict"),
        ({"key": "used", "occurred_at": OLD, "source": "s"}, "duplicate"),
        ({"key": "new", "value": 0.5, "occurred_at": OLD}, "event_too_old"),
        ({"key": "new", "value": 0.5, "occurred_at": FUTURE}, "value_precision"),
        ({"key": "new", "value": 2**60, "occurred_at": FUTURE}, "value_out_of_range"),
        ({"key": "new", "value": 11, "occurred_at": FUTURE}, "value_not_allowed"),
        ({"key": "new", "value": -11, "occurred_at": FUTURE}, "value_not_allowed"),
        ({"key": "new", "occurred_at": FUTURE, "source": "t"}, "source_not_allowed"),
        ({"key": "new", "occurred_at": FUTURE}, "source_not_allowed"),
        ({"key": "new", "occurred_at": FUTURE, "source": "s"}, "occurred_in_future"),
        ({"key": "new", "occurred_at": NOW_US, "source": "s", "value": 10}, "applied"),
        ({"key": "new", "occurred_at": OLD + 1, "source": "s", "value": -10}, "applied"),
    ],
)
def test_checks_come_in_the_contracts_order(fields, expected):
    """Shape, key, age, precision, range, bounds, source, future: the first fault is told."""
    host = in_memory(**STRICT)
    assert statuses(host, event(key="used", source="s")) == ["applied"]
    assert statuses(host, event(**fields)) == [expected]
    alone = submit(host, event(**fields))
    assert alone.get("code", alone["status"]) in (expected, "duplicate")


def test_a_total_out_of_range_comes_before_bounds():
    """On a sum board the range of the total is told before the bounds of the one value."""
    host = in_memory(aggregation="sum")
    statuses(host, event(value=WHOLE_MAX))
    change(host, max_value=0)
    assert statuses(host, event(value=1, key="l")) == ["value_out_of_range"]
    assert statuses(host, event(member="bo", value=1, key="l")) == ["value_not_allowed"]


def test_a_refused_event_leaves_no_trace():
    """Refused events change neither the log nor the state, and a plan of them has no record."""
    host = in_memory(**STRICT)
    before = (host.board.state_digest(), host.log.last_sequence)
    for bad in (event(), event(value=0.5), event(source="t"), event(source="s", occurred_at=OLD)):
        assert submit(host, bad)["status"] == "rejected"
    assert (host.board.state_digest(), host.log.last_sequence) == before


# Sums at their bounds


@pytest.mark.parametrize("decimals", [0, 1, 9])
def test_a_sum_stays_within_its_range(decimals):
    """A total may reach the bound and come back from it; what would pass it is refused."""
    host = in_memory(aggregation="sum", score=score_keys(f"desc{decimals}"))
    largest = DECIMAL_MAX if decimals else WHOLE_MAX
    one = b"1e-%d" % decimals
    steps = [(b"%de-%d" % (largest, decimals), "applied"), (one, "value_out_of_range"),
             (b"-" + one, "applied"), (one, "applied"), (one, "value_out_of_range"),
             (b"0", "applied")]  # fmt: skip
    body = b'{"member":"ada","value":%s,"idempotency_key":"%d"}'
    together = [body % (value, index) for index, (value, _) in enumerate(steps)]
    expected = [status for _, status in steps]
    answers = [read(reply) for reply in submit_all(host, together)]
    assert [answer.get("code", answer["status"]) for answer in answers] == expected
    host = in_memory(aggregation="sum", score=score_keys(f"desc{decimals}"))
    answers = [submit(host, one_body) for one_body in together]
    assert [answer.get("code", answer["status"]) for answer in answers] == expected


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.sampled_from([WHOLE_MAX, -WHOLE_MAX, WHOLE_MAX - 1, 1, -1, 2, -2, WHOLE_MAX + 1]),
            st.sampled_from("jklm"),
        ),
        max_size=12,
    ),
    st.lists(st.integers(1, 4), max_size=12),
)
def test_totals_and_keys_inside_a_batch(events, sizes):
    """In whatever batches, a total never leaves the range, and only what counts uses up its key."""
    host = in_memory(aggregation="sum")
    totals = {"a": 0, "b": 0}
    used: dict[str, tuple[str, int]] = {}
    expected, found = [], []
    for member, value, key in events:
        if key in used:
            expected.append("duplicate" if used[key] == (member, value) else "idempotency_conflict")
        elif abs(value) > WHOLE_MAX or abs(totals[member] + value) > WHOLE_MAX:
            expected.append("value_out_of_range")
        else:
            totals[member] += value
            used[key] = (member, value)
            expected.append("applied")
    bodies = [event(*each) for each in events]
    for size in [*sizes, len(bodies)]:
        if bodies:
            found += statuses(host, *bodies[:size])
        del bodies[:size]
    assert found == expected


def test_each_key_of_a_score_has_its_own_range():
    """One score key's total out of range refuses the event whole, and leaves the other's total."""
    host = in_memory(aggregation="sum", score=score_keys("desc0", "desc2"))
    values = [[WHOLE_MAX, 0], [1, 5], [0, 5]]
    found = statuses(host, *(event(value=value, key=str(value)) for value in values))
    assert found == ["applied", "value_out_of_range", "applied"]


def test_only_sums_have_totals():
    """On best and latest boards the largest value may come again and again."""
    for aggregation in ("best", "latest"):
        host = in_memory(aggregation=aggregation)
        found = statuses(host, *(event(value=WHOLE_MAX, key=key) for key in "jkl"))
        assert found == ["applied"] * 3


# Keys


@pytest.mark.parametrize("first_at", [None, NOW_US - 5])
@pytest.mark.parametrize("again_at", [None, NOW_US - 5, NOW_US - 6])
@pytest.mark.parametrize("together", [True, False])
def test_a_retry_is_a_duplicate_unless_both_instants_differ(first_at, again_at, together):
    """The instant counts as content only where both sides gave one; at once or later alike."""
    first = event() if first_at is None else event(occurred_at=first_at)
    again = event() if again_at is None else event(occurred_at=again_at)
    host = in_memory()
    if together:
        found = statuses(host, first, again)
    else:
        found = statuses(host, first) + statuses(host, again, now_us=NOW_US + 60 * SECOND_US)
    differs = None not in (first_at, again_at) and first_at != again_at
    assert found == ["applied", "idempotency_conflict" if differs else "duplicate"]


@pytest.mark.parametrize(
    "other",
    [{"member": "bo"}, {"value": 2}, {"source": "s"}, {"value": True}, {"value": 0.5}],
)
@pytest.mark.parametrize("together", [True, False])
def test_other_content_under_a_key_is_a_conflict(other, together):
    """A key with another member, value or source is refused, with the first one's sequence."""
    host = in_memory()
    expected = "invalid_field" if other == {"value": True} else "idempotency_conflict"
    if together:
        answer = submit(host, {"events": [event(), event() | other]})["results"][1]
    else:
        submit(host, event())
        answer = submit(host, event() | other)
    assert answer["code"] == expected
    assert answer.get("sequence") == (3 if expected == "idempotency_conflict" else None)


def test_equal_numbers_are_equal_content():
    """10, 10.0 and 1e1 under one key are one event."""
    host = in_memory(score=score_keys("desc2"))
    body = b'{"member":"ada","value":%s,"idempotency_key":"k"}'
    answers = [submit(host, body % text) for text in (b"10", b"10.0", b"1e1", b"10.00")]
    assert [answer["status"] for answer in answers] == ["applied"] + ["duplicate"] * 3
    assert {answer["sequence"] for answer in answers} == {3}


def test_a_duplicate_has_no_effect_however_often():
    """A repeated event leaves log and state as they were, also inside one batch."""
    host = in_memory(aggregation="sum")
    assert statuses(host, *[event()] * 3) == ["applied", "duplicate", "duplicate"]
    before = (host.board.state_digest(), host.log.last_sequence)
    assert statuses(host, *[event()] * 3) == ["duplicate"] * 3
    assert (host.board.state_digest(), host.log.last_sequence) == before


def test_a_source_is_remembered_per_event():
    """Events of many sources in one batch keep each its own, for the comparison of contents."""
    host = in_memory()
    events = [event(key=f"k{index}", source=f"s{index % 3}") for index in range(9)]
    events += [event(key="none")]
    assert statuses(host, *events) == ["applied"] * 10
    assert statuses(host, *events) == ["duplicate"] * 10
    assert host.log.event(5).source == "s2"
    assert host.log.event(12).source is None


# Plans of many requests


def test_requests_of_one_plan_see_those_before():
    """Requests planned together count in their order, and all answers tell the state after all."""
    host = in_memory(aggregation="sum", rank_method="competition")
    bodies = [event(value=5), event(), {"events": [event("bo", 7, "l"), event(value=5)]}]
    bodies += [event("bo", 1, "m")]
    first, conflict, batch, last = map(read, submit_all(host, bodies))
    assert first["standings"] == [{"period": "all_time", "score": 5, "rank": 2, "improved": True}]
    assert (conflict["code"], conflict["sequence"]) == ("idempotency_conflict", 3)
    assert batch == {
        "results": [
            {"status": "applied", "sequence": 4},
            {"status": "duplicate", "sequence": 3},
        ],
        "applied": 1,
        "duplicates": 1,
        "rejected": 0,
        "sequence": 4,
    }
    assert last["standings"] == [{"period": "all_time", "score": 8, "rank": 1, "improved": True}]


def test_improved_tells_whether_the_score_is_better():
    """The first event improves; after it only what makes the score better does."""
    values = [5, 5, 3, 6]
    expected = {
        "best": [True, False, False, True],
        "sum": [True, True, True, True],
        "latest": [True, False, False, True],
    }
    for aggregation, improved in expected.items():
        host = in_memory(aggregation=aggregation)
        answers = [submit(host, event(value=v, key=str(i))) for i, v in enumerate(values)]
        assert [answer["standings"][0]["improved"] for answer in answers] == improved
        again = submit(host, event(value=6, key="3"))
        assert (again["status"], again["standings"][0]["improved"]) == ("duplicate", False)


def test_a_rejected_result_says_what_the_problem_would():
    """In a batch a refused event carries code, detail and field as the problem alone would."""
    host = in_memory(sources=["s"])
    alone = submit(host, event())
    (result,) = submit(host, {"events": [event()]})["results"]
    assert result == alone
    assert result["field"] == "source"


def test_an_empty_batch_is_an_answer():
    """A batch without events is answered with the board's sequence."""
    host = in_memory()
    assert submit(host, {"events": []}) == {
        "results": [],
        "applied": 0,
        "duplicates": 0,
        "rejected": 0,
        "sequence": 2,
    }


@pytest.mark.parametrize("fields", [{"mode": "backfill"}, {"key_retention_days": None}])
def test_history_before_1970_counts(fields: dict[str, Any]):
    """Where no age is too old, the years before the epoch are not either."""
    host = in_memory(**fields)
    for number, when in enumerate(("0001-01-01T00:00:00Z", "1969-12-31T23:59:59.999999Z")):
        assert statuses(host, event(key=f"k{number}", occurred_at=when)) == ["applied"]
