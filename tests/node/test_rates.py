"""How often who may ask: the rates of keys, and of addresses whose keys are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from node.keys import RATE_MIN
from tests.node.access_samples import Door, head
from tests.node.fake_boards import (
    FakeBoards,
    Raw,
    call,
    check_problem,
    serving,
)
from tests.node.key_samples import add_key, change_key


def test_failures_from_one_address_slow_down(tmp_path: Path) -> None:
    """Ten failures, then one a second, with the seconds to wait; other addresses do not notice."""
    add_key(tmp_path, "read")
    door = Door(tmp_path)
    answers = [door.knock_with(head("rnk_x")) for _ in range(12)]
    assert answers == [("unauthenticated", None)] * 10 + [("rate_limited", 1)] * 2
    assert door.knock(None, "10.0.0.2") == "unauthenticated"
    door.clock.now += 1
    assert [door.knock(None) for _ in range(2)] == ["unauthenticated", "rate_limited"]


def test_a_good_key_passes_from_an_address_that_fails(tmp_path: Path) -> None:
    """One client with an old key does not lock out the others behind its address."""
    good = add_key(tmp_path, "read")
    door = Door(tmp_path)
    for _ in range(20):
        door.knock("rnk_x")
    assert door.knock("rnk_x") == "rate_limited"
    assert [door.knock(good) for _ in range(100)] == ["ok"] * 100


def test_a_refused_key_is_no_failure(tmp_path: Path) -> None:
    """Lacking permission is not failing to say who one is: it does not use up the failures."""
    elsewhere = add_key(tmp_path, "read", boards=("other",))
    door = Door(tmp_path)
    assert {door.knock(elsewhere) for _ in range(50)} == {"forbidden"}
    assert door.knock("rnk_x") == "unauthenticated"


@pytest.mark.parametrize(
    ("first", "second", "one"),
    [
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("::1", "::2", True),
        ("", "10.0.0.1", False),
    ],
)
def test_an_address_is_what_one_client_has(
    first: str, second: str, one: bool, tmp_path: Path
) -> None:
    """Of IPv6 the network counts that one client has to itself, of IPv4 the address."""
    add_key(tmp_path, "read")
    door = Door(tmp_path, auth_failures_burst=1)
    assert door.knock(None, first) == "unauthenticated"
    assert (door.knock(None, second) == "rate_limited") is one


def test_a_flood_from_many_addresses_is_bounded(tmp_path: Path) -> None:
    """The table of failing addresses does not grow beyond its bound."""
    add_key(tmp_path, "read")
    door = Door(tmp_path, auth_failures_addresses_max=50)
    for number in range(1000):
        door.knock(None, f"10.0.{number // 256}.{number % 256}")
    assert len(door._access._failures) == 50


def test_a_key_has_its_rate(tmp_path: Path) -> None:
    """Beyond its own rate a key is refused with the seconds to wait, and others are not."""
    slow = add_key(tmp_path, "read", requests_per_second=0.25)
    two = add_key(tmp_path, "read", requests_per_second=2.0)
    usual = add_key(tmp_path, "read")
    door = Door(tmp_path, key_requests_per_second=1.0, key_requests_burst=5)
    assert [door.knock_with(head(slow)) for _ in range(2)] == [("ok", None), ("rate_limited", 4)]
    assert [door.knock(two) for _ in range(3)] == ["ok", "ok", "rate_limited"]
    assert [door.knock(usual) for _ in range(6)] == ["ok"] * 5 + ["rate_limited"]
    door.clock.now += 4
    assert [door.knock(key) for key in (slow, two, usual)] == ["ok"] * 3


def test_another_rate_counts_at_once(tmp_path: Path) -> None:
    """A key whose rate is raised does not wait for its old one; other keys' counts stay."""
    key = add_key(tmp_path, "read", requests_per_second=1.0)
    other = add_key(tmp_path, "read", requests_per_second=1.0)
    door = Door(tmp_path)
    for each in (key, other):
        assert [door.knock(each) for _ in range(2)] == ["ok", "rate_limited"]
    change_key(tmp_path, key, requests_per_second=100.0)
    assert [door.knock(key) for _ in range(50)] == ["ok"] * 50
    assert door.knock(other) == "rate_limited"


def test_a_refusal_by_rate_says_when_to_come_back(tmp_path: Path) -> None:
    """Over HTTP it is 429 with Retry-After, of whole seconds and at least one."""
    key = add_key(tmp_path, "read", requests_per_second=0.01)

    async def run() -> list[Raw]:
        async with serving(FakeBoards(), tmp_path, auth_failures_burst=1) as gateway:
            return [
                await call(gateway.port, "GET", "/v1/boards/a/top", Authorization=text)
                for text in (f"Bearer {key}", f"Bearer {key}", "Bearer x", "Bearer x")
            ]

    first, by_key, failed, by_address = asyncio.run(run())
    assert first.status == 200
    check_problem(by_key, 429, "rate_limited")
    assert 95 <= int(by_key.headers["retry-after"]) <= 100
    check_problem(failed, 401, "unauthenticated")
    check_problem(by_address, 429, "rate_limited")
    assert by_address.headers["retry-after"] == "1"


def test_the_lowest_rate_asks_for_a_wait_that_is_bounded(tmp_path: Path) -> None:
    """However low a rate may be set, a refusal by it is a 429 with a time that can be waited."""
    key = add_key(tmp_path, "read", requests_per_second=RATE_MIN)
    settings = {"auth_failures_burst": 1, "auth_failures_per_second": RATE_MIN}

    async def run() -> list[Raw]:
        async with serving(FakeBoards(), tmp_path, **settings) as gateway:
            return [
                await call(gateway.port, "GET", "/v1/boards/a/top", Authorization=text)
                for text in (f"Bearer {key}", f"Bearer {key}", "Bearer x", "Bearer x")
            ]

    _, by_key, _, by_address = asyncio.run(run())
    for answer in (by_key, by_address):
        check_problem(answer, 429, "rate_limited")
        assert int(answer.headers["retry-after"]) <= 1_000
