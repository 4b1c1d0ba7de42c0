"""Queries: how answers look, and what they say at the edges of a board."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import queries
from actors.questions import Around, Describe, Digest, Member, Question, Rank, Top
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
    """Make a board whose members a, b, c, … have these scores, achieved a second apart."""
    host = MemoryBoard(define(**fields))
    for index, score in enumerate(scores):
        occurred_at = NOW_US - 1_000_000 * (len(scores) - index)
        submit(host, event("abcdefghij"[index], score, str(index), occurred_at=occurred_at))
    return host


def top(limit: int = 100, after: str | None = None, packed: bool = False) -> Top:
    return Top(packed, NOW_US, None, None, limit, after)


def around(
    member: str | None = None,
    position: int | None = None,
    score: str | None = None,
    above: int = 1,
    below: int = 1,
) -> Around:
    return Around(False, NOW_US, None, None, member, position, score, above, below)


def names(answer: dict[str, Any]) -> str:
    return "".join(entry["member"] for entry in answer["entries"])


# How answers look


def test_an_answer_says_what_it_is_about():
    """Each answer names board, window, members and sequence; an entry, its five fields."""
    host = board(5, 7)
    about = {
        "board": "b",
        "period": {
            "id": "all_time", "start": None, "end": None, "closed": False, "revision": None,
        },
        "members": 2,
        "sequence": 4,
    }  # fmt: skip
    entries = [
        {
            "rank": 1, "position": 1, "member": "b", "score": 7,
            "achieved_at": "2024-10-04T11:59:59Z",
        },
        {
            "rank": 2, "position": 2, "member": "a", "score": 5,
            "achieved_at": "2024-10-04T11:59:58Z",
        },
    ]  # fmt: skip
    assert ask(host, top()) == about | {"entries": entries, "next": None}
    member = Member(False, NOW_US, "all_time", None, "a")
    assert ask(host, member) == about | {"entry": entries[1], "percentile": 50.0}
    assert ask(host, around("a")) == about | {"entries": entries}
    assert ask(host, Rank(False, NOW_US, None, None, "6")) == about | {"rank": 2, "position": 2}
    digest = ask(host, Digest(False, NOW_US, None, None))
    assert digest == about | {"digest": digest["digest"]}
    assert isinstance(digest["digest"], str)


def test_a_time_has_a_fraction_only_where_it_is_not_zero():
    """Times are in UTC with Z; microseconds are shown when there are any."""
    host = MemoryBoard(define())
    submit(host, event(occurred_at="2024-10-04T13:00:00.250+02:00"))
    (entry,) = ask(host, top())["entries"]
    assert entry["achieved_at"] in ("2024-10-04T11:00:00.25Z", "2024-10-04T11:00:00.250000Z")


def test_a_description_is_the_definition_and_more():
    """Describing a board shows its definition, when it was made, and the members per window."""
    host = board(5, 5, sources=None, max_value=9)
    answer = ask(host, Describe(False, NOW_US))
    definition = define(max_value=9).to_answer(packed=False)
    assert answer == definition | {
        "board": "b",
        "created_at": "2024-10-04T12:00:00Z",
        "sequence": 4,
        "members": {"all_time": 2},
        "periods": ["all_time"],
        "score": [{"name": "score", "direction": "desc", "decimals": 0}],
    }


QUESTIONS: list[Any] = [
    lambda packed: top(packed=packed),
    lambda packed: top(limit=1, packed=packed),
    lambda packed: Member(packed, NOW_US, None, None, "a"),
    lambda packed: Around(packed, NOW_US, None, None, "a", None, None, 1, 1),
    lambda packed: Rank(packed, NOW_US, None, None, "1.5,1"),
    lambda packed: Digest(packed, NOW_US, None, None),
    lambda packed: Describe(packed, NOW_US),
]


@pytest.mark.parametrize("question", QUESTIONS)
def test_messagepack_says_the_same(question):
    """A MessagePack answer has the same fields and the same numbers as the JSON one."""
    host = board([0.1, 3], [-2.5, 4], [7, 0], score=score_keys("desc1", "asc0"))
    packed = msgpack.unpackb(queries.answer(host.board, host.archives, question(True)))
    plain = ask(host, question(False))
    assert packed == floats(plain)


def floats(answer: Any) -> Any:
    """Read decimals as the doubles that stand for them."""
    if isinstance(answer, dict):
        return {name: floats(cell) for name, cell in answer.items()}
    if isinstance(answer, list):
        return [floats(cell) for cell in answer]
    return answer if isinstance(answer, int | str | None) else float(answer)


# Ranks


@pytest.mark.parametrize(
    ("rank_method", "ranks", "of_seven"),
    [
        ("ordinal", [1, 2, 3, 4, 5], 4),
        ("competition", [1, 2, 2, 4, 5], 2),
        ("dense", [1, 2, 2, 3, 4], 2),
    ],
)
def test_ranks_follow_the_method(rank_method, ranks, of_seven):
    """Ordinal counts on, competition leaves gaps after equals, dense none; on every page alike."""
    host = board(9, 7, 7, 5, 3, rank_method=rank_method)
    assert [entry["rank"] for entry in ask(host, top())["entries"]] == ranks
    for position, rank in enumerate(ranks, start=1):
        (entry,) = ask(host, around(position=position, above=0, below=0))["entries"]
        assert (entry["position"], entry["rank"]) == (position, rank)
    answer = ask(host, Rank(False, NOW_US, None, None, "7"))
    assert (answer["position"], answer["rank"]) == (4, of_seven)


def test_equal_scores_means_all_keys():
    """Scores that differ in their last key alone have different ranks."""
    fields = {"score": score_keys("desc0", "asc0"), "rank_method": "competition"}
    host = board([5, 1], [5, 1], [5, 2], [4, 0], **fields)
    assert [entry["rank"] for entry in ask(host, top())["entries"]] == [1, 1, 3, 4]


@pytest.mark.parametrize(
    ("tie_rule", "order", "position"),
    [("earliest", "cab", 4), ("latest", "bac", 1), ("member", "abc", 4)],
)
def test_ties_stand_by_the_rule(tie_rule, order, position):
    """Equals stand by instant, earliest or latest first, or by name; a newcomer where it would."""
    host = MemoryBoard(define(tie_rule=tie_rule))
    for member, age in (("a", 2), ("b", 1), ("c", 3)):
        submit(host, event(member, 5, member, occurred_at=NOW_US - age))
    assert names(ask(host, top())) == order
    assert ask(host, Rank(False, NOW_US, None, None, "5"))["position"] == position


def test_exact_equals_stand_by_the_bytes_of_their_names():
    """Members equal in score and instant stand in order of their UTF-8, not of an alphabet."""
    host = MemoryBoard(define(tie_rule="latest"))
    members = ["a", "Z", "é", "z", "🎮", "ab", "\uffee"]
    statuses(host, *(event(member, 5, member, occurred_at=NOW_US) for member in members))
    assert names(ask(host, top())) == "".join(sorted(members, key=str.encode))


# Places


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (around("c"), "bcd"),
        (around("a"), "abc"),
        (around("e"), "cde"),
        (around("c", above=0, below=0), "c"),
        (around("b", above=3, below=0), "abcd"),
        (around("a", above=500, below=500), "abcde"),
        (around(position=1, above=0, below=2), "abc"),
        (around(position=99, above=1, below=0), "de"),
        (around(score="8"), "bcd"),
        (around(score="9"), "abc"),
        (around(score="1"), "cde"),
        (around(score="100"), "abc"),
    ],
)
def test_around_moves_its_window_near_an_end(question, expected):
    """As many entries come as were asked for, wherever the centre is, if the board has them."""
    assert names(ask(board(9, 8, 7, 6, 5), question)) == expected


def test_an_empty_board_answers():
    """A board without members has empty pages and first places, and finds no member."""
    host = board()
    assert ask(host, top())["entries"] == ask(host, around(position=3))["entries"] == []
    assert ask(host, around(score="5"))["entries"] == []
    assert ask(host, top())["next"] is None
    answer = ask(host, Rank(False, NOW_US, None, None, "5"))
    assert (answer["rank"], answer["position"], answer["members"]) == (1, 1, 0)
    assert refusal_of(host, Member(False, NOW_US, None, None, "a")).code == "member_not_found"


@pytest.mark.parametrize(
    ("question", "code", "field"),
    [
        (Member(False, 0, None, None, "nobody"), "member_not_found", None),
        (around("nobody"), "member_not_found", None),
        (Member(False, 0, None, None, "."), "invalid_field", "member"),
        (Member(False, 0, None, None, ""), "invalid_field", "member"),
        (Member(False, 0, "daily", None, "a"), "period_not_found", None),
        (Top(False, 0, "nonsense", None, 1, None), "period_not_found", None),
        (Digest(False, 0, "all_time:2026-01-01", None), "period_not_found", None),
        (Top(False, 0, None, None, 1, "nonsense"), "invalid_cursor", None),
        (Rank(False, 0, None, None, "1"), "invalid_field", "score"),
        (Rank(False, 0, None, None, "1,2,3"), "invalid_field", "score"),
        (Rank(False, 0, None, None, "1,"), "invalid_field", "score"),
        (Rank(False, 0, None, None, "1,x"), "invalid_field", "score"),
        (Rank(False, 0, None, None, "\uff11,2"), "invalid_field", "score"),
        (Rank(False, 0, None, None, "0.5,1"), "value_precision", "score"),
        (Rank(False, 0, None, None, "9007199254740992,1"), "value_out_of_range", "score"),
        (around(score="1,1e400"), "value_out_of_range", "score"),
    ],
)
def test_a_question_without_an_answer_is_refused(question: Question, code, field):
    """What is not there, or not written as it should be, has its code and its field."""
    host = board([1, 1], score=score_keys("desc0", "asc2"))
    refusal = refusal_of(host, question)
    assert (refusal.code, refusal.extra.get("field")) == (code, field)


# Paging


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 3)), min_size=1, max_size=20),
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from("abijkl"), st.integers(0, 5)), max_size=12),
)
@settings(max_examples=100, deadline=None)
def test_paging_neither_repeats_nor_skips_who_stays(events, limit, moves):
    """While others come and move between pages, a member whose score stays comes exactly once."""
    host = MemoryBoard(define())
    statuses(host, *(event(member, value, str(n)) for n, (member, value) in enumerate(events)))
    staying = {member for member, _ in events} - set("ab")
    seen, after = [], None
    for number in range(100):
        page = ask(host, top(limit, after))
        seen += [entry["member"] for entry in page["entries"]]
        after = page["next"]
        if after is None:
            break
        for member, value in moves[number : number + 1]:
            submit(host, event(member, value, f"move {number}"))
    assert after is None
    assert sorted(name for name in seen if name in staying) == sorted(staying)


def test_the_last_page_has_no_next():
    """A page that ends with the last entry says that nothing follows, also when it is full."""
    host = board(3, 2, 1)
    first = ask(host, top(2))
    assert (names(first), names(ask(host, top(2, first["next"])))) == ("ab", "c")
    assert ask(host, top(3))["next"] is None
    assert ask(host, top(2, first["next"]))["next"] is None
