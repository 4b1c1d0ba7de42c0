from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.buckets import Bucket, BucketTable


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    """Ten at once, then one a second, with the time to wait for the next."""
    bucket = Bucket(1.0, 10)
    assert [bucket.take(100.0) for _ in range(11)] == [0.0] * 10 + [1.0]
    assert bucket.take(100.25) == 0.75
    assert bucket.take(101.0) == 0.0
    assert bucket.take(101.0) == 1.0
    assert bucket.take(1000.0) == 0.0


def test_a_refusal_costs_nothing() -> None:
    """Who keeps asking waits no longer for it."""
    bucket = Bucket(0.5, 1)
    assert bucket.take(0.0) == 0.0
    waits = [bucket.take(tenth / 10) for tenth in range(1, 20)]
    assert waits == sorted(waits, reverse=True)
    assert bucket.take(2.0) == 0.0


@given(
    st.integers(1, 20),
    st.integers(1, 10),
    st.lists(st.integers(0, 40), max_size=60),
)
def test_a_bucket_is_a_count_of_tokens(burst: int, rate: int, pauses: list[int]) -> None:
    """Over any sequence of calls it gives and refuses as one that counts its tokens exactly."""
    bucket, tokens, now = Bucket(rate / 8, burst), Fraction(burst), 0
    for pause in pauses:
        now += pause
        tokens = min(Fraction(burst), tokens + Fraction(rate * pause, 8))
        wait = bucket.take(now)
        if tokens >= 1:
            # Where a token is complete this very instant, rounding may take it for a hair less.
            assert wait == pytest.approx(0, abs=1e-9)
            tokens -= wait == 0
        else:
            assert wait == pytest.approx(float((1 - tokens) * 8 / rate))


def test_a_table_keeps_names_apart() -> None:
    """One name's failures are not another's."""
    table = BucketTable(1.0, 2, 100)
    assert [table.take("a", 0.0) for _ in range(3)] == [0.0, 0.0, 1.0]
    assert table.take("b", 0.0) == 0.0


def test_a_table_is_bounded_and_forgets_the_least_recently_used() -> None:
    """However many names there are, memory is bounded; who is active stays known."""
    table = BucketTable(1.0, 1, 100)
    assert table.take("busy", 0.0) == 0.0
    for number in range(1000):
        assert table.take(f"n{number}", 0.0) == 0.0
        assert table.take("busy", 0.0) == 1.0
        assert len(table) <= 100
    assert table.take("n0", 0.0) == 0.0, "it was forgotten"
    assert table.take("n999", 0.0) == 1.0, "it was not"
