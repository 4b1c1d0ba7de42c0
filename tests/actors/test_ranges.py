"""Ranges of scores, bands and lookups: what they say at the edges of a board."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import queries
from actors.questions import Bands, Lookup, Question, Range
from tests.actors.board_harness import (
    NOW_US,
    MemoryBoard,
    ask,
    define,
    event,
    refusal_of,
    score_keys,
    statuses,
    submit,
)


def board(*scores: Any, **fields: Any) -> MemoryBoard:
    """Make a board whose members a, b, c, … have these scores."""
    host = MemoryBoard(define(**fields))
    for index, score in enumerate(scores):
        submit(host, event("abcdefghij"[index], score, str(index), occurred_at=NOW_US - 99 + index))
    return host


def within(
    minimum: str | None = None,
    maximum: str | None = None,
    limit: int = 10,
    after: str | None = None,
) -> Range:
    return Range(False, NOW_US, None, None, minimum, maximum, limit, after)


def bands(percentiles: str) -> Bands:
    return Bands(False, NOW_US, None, None, percentiles)


def lookup(*members: str) -> Lookup:
    return Lookup(False, NOW_US, None, None, list(members))


def names(answer: dict[str, Any]) -> str:
    return "".join(entry["member"] for entry in answer["entries"])


@pytest.mark.parametrize(
    ("question", "members", "count"),
    [
        (within(), "abcde", 5),
        (within("6", "8"), "bcd", 3),
        (within("6.0", "8e0"), "bcd", 3),
        (within(None, "7"), "cde", 3),
        (within("8"), "ab", 2),
        (within("10"), "", 0),
        (within(None, "4"), "", 0),
        (within("8", "6"), "", 0),
        (within("-9007199254740991", "9007199254740991"), "abcde", 5),
        (within("5", "9", limit=2), "ab", 5),
    ],
)
def test_a_range_holds_its_bounds(question, members, count):
    """Entries from min to max, both included, best first, and the count of all of them."""
    answer = ask(board(9, 8, 7, 6, 5), question)
    assert (names(answer), answer["count"]) == (members, count)


def test_a_range_of_a_board_where_less_is_better():
    """The bounds are numbers, not places: min is the smaller one whatever stands first."""
    host = board(5, 6, 7, 8, score=score_keys("asc0"))
    answer = ask(host, within("6", "7"))
    assert (names(answer), answer["count"]) == ("bc", 2)
    assert [entry["rank"] for entry in answer["entries"]] == [2, 3]


def test_a_range_looks_at_the_first_key_only():
    """Entries equal in their first key are inside or outside together."""
    host = board([5, 9], [5, -3], [4, 2], [4, 1], [3, 0], score=score_keys("desc0", "asc2"))
    assert names(ask(host, within("4", "4"))) == "dc"
    assert ask(host, within("4", "5"))["count"] == 4


@given(st.lists(st.integers(0, 6), max_size=10), st.integers(1, 3), st.integers(0, 6))
@settings(max_examples=60, deadline=None)
def test_pages_of_a_range_are_the_range(scores, limit, low):
    """Page after page gives each entry of the range once and nothing else, then says the end."""
    host = board(*scores)
    found, after = "", None
    for _ in range(len(scores) + 1):
        page = ask(host, within(str(low), "5", limit, after))
        found, after = found + names(page), page["next"]
        if after is None:
            break
    assert after is None
    assert sorted(found) == sorted(
        name for name, score in zip("abcdefghij", scores, strict=False) if low <= score <= 5
    )


def test_a_cursor_of_one_range_is_none_of_another():
    """A cursor goes on with the bounds it was written for, however these are spelled."""
    host = board(9, 8, 7, 6, 5)
    cursor = ask(host, within("5", "9", limit=2))["next"]
    assert names(ask(host, within("5.0", "9", limit=2, after=cursor))) == "cd"
    assert refusal_of(host, within("6", "9", after=cursor)).code == "invalid_cursor"
    assert refusal_of(host, within("5", after=cursor)).code == "invalid_cursor"


@pytest.mark.parametrize(
    ("percentiles", "positions"),
    [
        ("10,50,100", [1, 5, 10]),
        ("1,11,99.999999999", [1, 2, 10]),
        ("0.000000001", [1]),
        ("50,50.0,5e1", [5, 5, 5]),
    ],
)
def test_a_band_ends_with_the_last_member_inside(percentiles, positions):
    """The position is members times p / 100, rounded up, and the score that of who stands there."""
    answer = ask(board(*range(10, 0, -1)), bands(percentiles))
    assert [band["position"] for band in answer["bands"]] == positions
    assert [band["score"] for band in answer["bands"]] == [11 - place for place in positions]


def test_bands_of_nobody_are_null():
    """A window in which nobody stands has no positions and no scores."""
    assert ask(board(), bands("1,100"))["bands"] == [
        {"percentile": 1, "position": None, "score": None},
        {"percentile": 100, "position": None, "score": None},
    ]


@pytest.mark.parametrize(
    ("rank_method", "local_ranks"),
    [("ordinal", [1, 2, 3, 4]), ("competition", [1, 2, 2, 4]), ("dense", [1, 2, 2, 3])],
)
def test_friends_are_ranked_among_each_other(rank_method, local_ranks):
    """Local ranks follow the board's method; who does not stand is missing; a name counts once."""
    host = board(9, 8, 7, 7, 6, 5, rank_method=rank_method)
    answer = ask(host, lookup("f", "nobody", "c", "d", "a", "c", "x"))
    assert names(answer) == "acdf"
    assert [entry["local_rank"] for entry in answer["entries"]] == local_ranks
    assert [entry["position"] for entry in answer["entries"]] == [1, 3, 4, 6]
    assert answer["missing"] == ["nobody", "x"]


def test_a_lookup_says_the_ranks_that_each_member_has():
    """An entry of a lookup is the member's own entry, and a local rank."""
    host = MemoryBoard(define(rank_method="dense", aggregation="sum", score=score_keys("desc2")))
    statuses(host, *(event(f"m{n}", n % 4 + 0.25, f"k{n}") for n in range(12)))
    friends = ask(host, lookup(*(f"m{n}" for n in range(12))))["entries"]
    page = (
        ask(host, within())["entries"]
        + ask(host, within(limit=10, after=ask(host, within())["next"]))["entries"]
    )
    assert [{k: v for k, v in e.items() if k != "local_rank"} for e in friends] == page
    assert [entry["local_rank"] for entry in friends] == [entry["rank"] for entry in page]


@pytest.mark.parametrize("question", [within("0"), bands("1,2.5"), lookup("a", "z")])
def test_messagepack_says_the_same(question):
    """A MessagePack answer has the same fields and the same numbers as the JSON one."""
    host = board(3, 2, 1)
    plain = ask(host, question)
    packed = type(question)(True, *[getattr(question, f) for f in question.__struct_fields__[1:]])
    unpacked = msgpack.unpackb(queries.answer(host.board, host.archives, packed))
    if "bands" in plain:
        for band in plain["bands"]:
            band["percentile"] = float(band["percentile"])
    assert unpacked == plain


@pytest.mark.parametrize(
    ("question", "code", "field"),
    [
        (within("abc"), "invalid_field", "min"),
        (within(None, "1,2"), "invalid_field", "max"),
        (within("0.5"), "value_precision", "min"),
        (within(None, "9007199254740992"), "value_out_of_range", "max"),
        (bands("0"), "invalid_field", "percentiles"),
        (bands("100.1"), "invalid_field", "percentiles"),
        (bands("-1"), "invalid_field", "percentiles"),
        (bands("1,,2"), "invalid_field", "percentiles"),
        (bands("0.0000000001"), "invalid_field", "percentiles"),
        (bands("1e400"), "invalid_field", "percentiles"),
        (bands(",".join(["1"] * 101)), "invalid_field", "percentiles"),
        (lookup("a", ""), "invalid_field", "members"),
        (lookup(*(str(n) for n in range(1001))), "invalid_field", "members"),
    ],
)
def test_a_question_without_an_answer_is_refused(question: Question, code, field):
    """What is not written as it should be has its code and its field."""
    refusal = refusal_of(board(1, 2, 3), question)
    assert (refusal.code, refusal.extra.get("field")) == (code, field)
