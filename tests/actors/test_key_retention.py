"""How long keys live, and that none counts twice when it is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.actors.board_harness import DAY_US, NOW_US, change, event, in_memory, statuses, submit

SECOND_US = 1_000_000


@pytest.mark.parametrize("retention_days", [1, 2, 7])
def test_a_key_lives_at_least_its_retention(retention_days):
    """With traffic all the while, a key is remembered for key_retention_days after receipt."""
    host = in_memory(key_retention_days=retention_days, aggregation="sum")
    assert statuses(host, event()) == ["applied"]
    for hour in range(1, retention_days * 24 + 1):
        now_us = NOW_US + hour * DAY_US // 24
        assert statuses(host, event(key=f"hour {hour}"), event(), now_us=now_us) == [
            "applied",
            "duplicate",
        ]


@pytest.mark.parametrize("retention_days", [1, 30])
def test_the_memory_of_keys_levels_off(retention_days):
    """Keys of a few days more than the retention are held, however long the board runs."""
    host = in_memory(key_retention_days=retention_days)
    sizes, bytes_held = [], []
    for day in range(600):
        now_us = NOW_US + day * DAY_US
        statuses(host, *(event(key=f"{day}/{number}") for number in range(20)), now_us=now_us)
        sizes.append(len(host.board.keys))
        bytes_held.append(host.board.keys.nbytes)
    assert max(sizes) <= 20 * (retention_days + 3)
    # Memory is given back table by table, so that it sways about what it levels off at.
    assert max(bytes_held[300:]) <= 1.25 * max(bytes_held[:300])


def test_without_retention_keys_are_kept_for_ever():
    """A retention of null forgets no key and refuses no age."""
    host = in_memory(key_retention_days=None)
    assert statuses(host, event(occurred_at=0)) == ["applied"]
    later = NOW_US + 5_000 * DAY_US
    assert statuses(host, event(key="l"), event(occurred_at=0), now_us=later) == [
        "applied",
        "duplicate",
    ]


moves = st.lists(
    st.one_of(
        st.tuples(
            st.just("wait"), st.sampled_from([1, DAY_US // 2, DAY_US - 1, DAY_US, 3 * DAY_US])
        ),
        st.tuples(st.just("retain"), st.sampled_from([1, 2, 5, None])),
        st.tuples(st.just("tolerate"), st.sampled_from([0, 86_400])),
        st.tuples(st.just("other"), st.just(0)),
        st.tuples(st.just("send"), st.sampled_from("kl")),
    ),
    max_size=30,
)


@given(moves, st.sampled_from([0, DAY_US, -DAY_US]), st.sampled_from([0, DAY_US // 2 - 1]))
@settings(max_examples=300, deadline=None)
def test_a_forgotten_key_never_counts_twice(moves, occurred_after_us, start_us):
    """While live, an event that says when it occurred counts once, whatever clock and retention."""
    host = in_memory(key_retention_days=2, future_tolerance_seconds=86_400)
    now_us = NOW_US + start_us
    occurred_at_us = now_us + occurred_after_us
    applied = {"k": 0, "l": 0}
    for number, (move, argument) in enumerate(moves):
        if move == "wait":
            now_us += argument
        elif move == "retain":
            change(host, now_us, key_retention_days=argument)
        elif move == "tolerate":
            change(host, now_us, future_tolerance_seconds=argument)
        elif move == "other":
            statuses(host, event(key=f"other {number}"), now_us=now_us)
        else:
            (found,) = statuses(
                host, event(key=argument, occurred_at=occurred_at_us), now_us=now_us
            )
            applied[argument] += found == "applied"
    assert max(applied.values()) <= 1


def test_a_longer_retention_does_not_bring_back_what_was_forgotten():
    """A key forgotten under a short retention cannot count again under a longer one."""
    host = in_memory(key_retention_days=1, future_tolerance_seconds=86_400)
    late = event(occurred_at=NOW_US + DAY_US)
    assert statuses(host, late) == ["applied"]
    later = NOW_US + 4 * DAY_US
    assert statuses(host, event(key="other"), now_us=later) == ["applied"]
    assert list(host.board.keys.find(b"k")) == []
    change(host, later, key_retention_days=30)
    assert statuses(host, late, now_us=later) == ["event_too_old"]


@pytest.mark.parametrize("hours", range(0, 72, 5))
def test_forgetting_makes_no_event_too_old(hours):
    """An event as old as the retention allows is accepted, whatever keys were forgotten."""
    host = in_memory(key_retention_days=1)
    for number in range(48):
        statuses(host, event(key=f"hour {number}"), now_us=NOW_US + number * DAY_US // 24)
    now_us = NOW_US + 2 * DAY_US + hours * DAY_US // 24
    assert statuses(host, event(key="other"), now_us=now_us) == ["applied"]
    assert statuses(host, event(occurred_at=now_us - DAY_US), now_us=now_us) == ["applied"]


def test_backfill_takes_any_past():
    """In backfill mode any past instant counts, and back in live mode age is checked again."""
    host = in_memory(key_retention_days=1)
    assert statuses(host, event(occurred_at=0)) == ["event_too_old"]
    change(host, mode="backfill")
    assert statuses(host, event(occurred_at=0)) == ["applied"]
    future = event(key="l", occurred_at=NOW_US + 61 * SECOND_US)
    assert statuses(host, future) == ["occurred_in_future"]
    change(host, mode="live")
    assert statuses(host, event(key="m", occurred_at=0)) == ["event_too_old"]


def test_a_clock_that_is_behind_says_so():
    """Without occurred_at an event is too old only by the clock, and the refusal says that."""
    host = in_memory(key_retention_days=1)
    for days in (9, 20):
        ahead_us = NOW_US + days * DAY_US
        assert statuses(host, event(key=f"{days}"), now_us=ahead_us) == ["applied"]
    given = submit(host, event(key="l", occurred_at=NOW_US))
    assert (given["code"], given["detail"][:11]) == ("event_too_old", "occurred_at")
    not_given = submit(host, event(key="l"))
    assert (not_given["code"], not_given["detail"][:16]) == ("event_too_old", "the node's clock")


def test_a_clock_that_is_ahead_forgets_what_a_retry_needs():
    """While it is ahead by more than the retention a retry counts again, unless it says when."""
    host = in_memory(key_retention_days=1)
    dated = event(key="dated", occurred_at=NOW_US)
    assert statuses(host, event(key="k"), dated) == ["applied"] * 2
    ahead_us = NOW_US + 9 * DAY_US
    assert statuses(host, event(key="other"), now_us=ahead_us) == ["applied"]
    assert statuses(host, event(key="k"), dated, now_us=ahead_us) == ["applied", "event_too_old"]
