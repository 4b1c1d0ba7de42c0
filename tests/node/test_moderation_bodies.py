"""What moderators send: each body becomes its verdict, and what is wrong with one is named."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgpack
import msgspec
import pytest

from actors.questions import Hide, OpenDispute, Remove, SetProfile, SettleDispute, Void
from node.profiles import PROFILE_BYTES_MAX
from tests.node.fake_boards import ANSWER, NOW_US, FakeBoards, Raw, ask_once, check_problem

HEAD = (False, NOW_US)
BY = b'{"actor":"mod-1","reason":"it was seen"}'
PROFILE = "/v1/boards/b/members/ada/profile"
VERDICT = (*HEAD, "mod-1", "it was seen", None)
RULINGS = [
    ("POST", "events/17/void", BY, Void(*VERDICT, 17)),
    ("PUT", "members/a%2Fb/hidden", BY, Hide(*VERDICT, "a/b", True)),
    ("DELETE", "members/a%2Fb/hidden", BY, Hide(*VERDICT, "a/b", False)),
    ("DELETE", "members/a%2Fb", BY, Remove(*VERDICT, "a/b")),
    (
        "PUT",
        "members/ada/profile",
        b' {"avatar_url": "u", "display_name": "Ada", "extra": {"b": [1.50, null]}} ',
        SetProfile(
            *(*HEAD, "", "", None, "ada"),
            b'{"display_name":"Ada","avatar_url":"u","extra":{"b":[1.5,null]}}',
        ),
    ),
    ("PUT", "members/ada/profile", b"{}", SetProfile(*HEAD, "", "", None, "ada", b"{}")),
    (
        "POST",
        "disputes",
        b'{"sequence":17,"reason":"it was seen","opened_by":"mod-1"}',
        OpenDispute(*VERDICT, 17),
    ),
    (
        "PATCH",
        "disputes/19",
        b'{"status":"upheld","note":"it was seen","actor":"mod-1"}',
        SettleDispute(*VERDICT, "19", "upheld"),
    ),
]


@pytest.mark.parametrize(("method", "rest", "body", "verdict"), RULINGS)
def test_each_ruling_reaches_the_board(method: str, rest: str, body: bytes, verdict: Any) -> None:
    """A moderator's call reaches the board with who decided, why, and about what."""
    answer, boards = ask_once(method, f"/v1/boards/b/{rest}", body)
    assert answer.status == (201 if rest == "disputes" else 200), answer.body
    assert answer.json() == ANSWER
    assert boards.calls == [("submit", "b", verdict)]


BAD_BODIES = [
    ("POST", "events/1/void", b"{}", "actor"),
    ("POST", "events/1/void", b'{"actor":"m"}', "reason"),
    ("POST", "events/1/void", b'{"actor":"","reason":"r"}', "actor"),
    ("POST", "events/1/void", b'{"actor":7,"reason":"r"}', "actor"),
    ("POST", "events/1/void", b'{"actor":null,"reason":"r"}', "actor"),
    ("POST", "events/1/void", b'{"actor":"m","reason":true}', "reason"),
    ("POST", "events/1/void", b'{"actor":"m","reason":""}', "reason"),
    ("POST", "events/1/void", b'{"actor":"m","reason":"%s"}' % (b"r" * 1_001), "reason"),
    ("POST", "events/1/void", b'{"actor":"m","reason":"r","why":1}', "why"),
    ("POST", "events/1/void", b"[]", "body"),
    ("PUT", "members/a/hidden", b'{"actor":"%s","reason":"r"}' % (b"m" * 129), "actor"),
    ("PUT", "members/a/hidden", '{"actor":"%s","reason":"r"}' % ("é" * 65), "actor"),
    ("PUT", "members/a/hidden", b'{"actor":" m","reason":"r"}', "actor"),
    ("DELETE", "members/a/hidden", b'{"actor":"m\\u0000","reason":"r"}', "actor"),
    ("DELETE", "members/a", b'{"actor":"e\\u0301","reason":"r"}', "actor"),
    ("PUT", "members/a/profile", b'{"display_name":null}', "display_name"),
    ("PUT", "members/a/profile", b'{"avatar_url":1}', "avatar_url"),
    ("PUT", "members/a/profile", b'{"nick":"a"}', "nick"),
    ("PUT", "members/a/profile", b'{"extra":[]}', "extra"),
    ("PUT", "members/a/profile", b"null", "body"),
    ("POST", "disputes", b'{"reason":"r","opened_by":"b"}', "sequence"),
    ("POST", "disputes", b'{"sequence":0,"reason":"r","opened_by":"b"}', "sequence"),
    ("POST", "disputes", b'{"sequence":true,"reason":"r","opened_by":"b"}', "sequence"),
    ("POST", "disputes", b'{"sequence":"1","reason":"r","opened_by":"b"}', "sequence"),
    ("POST", "disputes", b'{"sequence":1.5,"reason":"r","opened_by":"b"}', "sequence"),
    ("POST", "disputes", b'{"sequence":1e30,"reason":"r","opened_by":"b"}', "sequence"),
    ("POST", "disputes", b'{"sequence":9007199254740992,"reason":"r","opened_by":"b"}',
     "sequence"),
    ("POST", "disputes", b'{"sequence":1,"reason":"r","opened_by":"b\\n"}', "opened_by"),
    ("PATCH", "disputes/1", b'{"status":"open","note":"n","actor":"m"}', "status"),
    ("PATCH", "disputes/1", b'{"status":"upheld","actor":"m"}', "note"),
    ("PATCH", "disputes/1", b'{"status":"upheld","note":"n","actor":"\\t"}', "actor"),
    ("POST", "members/lookup", b"{}", "members"),
    ("POST", "members/lookup", b'{"members":"ada"}', "members"),
    ("POST", "members/lookup", b'{"members":["ada",7]}', "members"),
    ("POST", "members/lookup", b'{"members":[""]}', "members"),
    ("POST", "members/lookup", b'{"members":[%s"a"]}' % (b'"a",' * 1_000), "members"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "rest", "body", "field"), BAD_BODIES)
def test_a_bad_body_is_refused_by_field(
    method: str, rest: str, body: bytes | str, field: str
) -> None:
    """What is wrong with a body is named by its field, and no board hears of it."""
    sent = body.encode() if isinstance(body, str) else body
    answer, boards = ask_once(method, f"/v1/boards/b/{rest}", sent)
    assert check_problem(answer, 422, "invalid_field")["field"] == field
    assert boards.calls == []


# Profiles


def set_profile(body: bytes, *, packed: bool = False) -> tuple[Raw, FakeBoards]:
    kind = "msgpack" if packed else "json"
    return ask_once("PUT", PROFILE, body, Content_Type=f"application/{kind}")


def kept(boards: FakeBoards) -> bytes:
    ((_, _, verdict),) = boards.calls
    profile: bytes = verdict.profile
    return profile


@pytest.mark.parametrize("letter", ["x", "é", "名", "🏁", '"'])
def test_a_profile_takes_a_kibibyte_of_json(letter: str) -> None:
    """A profile's bound counts the bytes of its JSON, in whichever form it was sent."""
    frame = len(b'{"display_name":""}')
    letter_bytes = len(msgspec.json.encode(letter)) - 2
    letters, rest = divmod(PROFILE_BYTES_MAX - frame, letter_bytes)
    name = letter * letters + "." * rest
    for more, status in (("", 200), (".", 422)):
        profile = {"display_name": name + more}
        for packed, encode in ((False, msgspec.json.encode), (True, msgspec.msgpack.encode)):
            answer, boards = set_profile(encode(profile), packed=packed)
            if status == 200:
                assert answer.status == 200
                assert len(kept(boards)) == PROFILE_BYTES_MAX
                assert msgspec.json.decode(kept(boards)) == profile
            else:
                assert check_problem(answer, 422, "invalid_field")["field"] == "profile"
                assert boards.calls == []


def test_white_space_does_not_count_in_a_profile() -> None:
    """What is bounded is what is kept: how the JSON was laid out does not matter."""
    answer, boards = set_profile(b'{ "extra" : {' + b" " * 5_000 + b'"a" : 1 } }')
    assert answer.status == 200
    assert kept(boards) == b'{"extra":{"a":1}}'


KEPT = [
    None, True, False, 0, -(2**63), 2**64 - 1, 0.1, -1e308, 5e-324, "", "é\x00", [], {}, {"": [{}]},
    [1, [2.5, [None]]],
]  # fmt: skip


@pytest.mark.parametrize("value", KEPT, ids=repr)
def test_an_extra_is_kept_as_it_is(value: Any) -> None:
    """Whatever both forms can say comes back as it was, from either form in either form."""
    for packed, encode in ((False, msgspec.json.encode), (True, msgpack.packb)):
        answer, boards = set_profile(encode({"extra": {"a": value}}), packed=packed)
        assert answer.status == 200, answer.body
        assert msgspec.json.decode(kept(boards)) == {"extra": {"a": value}}
        assert msgspec.msgpack.encode(msgspec.json.decode(kept(boards)))


ONLY_PACKED = [
    b"binary",
    float("nan"),
    float("inf"),
    -float("inf"),
    msgpack.Timestamp(1, 2),
    dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    msgpack.ExtType(5, b"x"),
    {1: 2},
    {None: 2},
    {True: 2},
    {b"k": 2},
    {(1, 2): 2},
    {1.5: 2},
    [{"a": [b""]}],
]


@pytest.mark.parametrize("value", ONLY_PACKED, ids=repr)
def test_what_json_has_no_word_for_is_no_extra(value: Any) -> None:
    """MessagePack that JSON cannot say is refused, not put into other words."""
    body = msgpack.packb({"extra": {"a": value}}, datetime=True)
    answer, boards = set_profile(body, packed=True)
    assert check_problem(answer, 422, "invalid_field")["field"] == "extra"
    assert boards.calls == []


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**300])
def test_a_number_that_messagepack_lacks_is_no_extra(number: int) -> None:
    """An integer of more than 64 bits is refused: clients of MessagePack could not be answered."""
    answer, boards = set_profile(b'{"extra":{"a":[%d]}}' % number)
    assert check_problem(answer, 422, "invalid_field")["field"] == "extra"
    assert boards.calls == []


@pytest.mark.parametrize("depth", [500, 511, 520, 900, 990, 5_000, 100_000])
def test_a_deep_extra_is_kept_or_refused(depth: int) -> None:
    """However deep an extra is nested, it is kept if it is small enough, else refused."""
    deep_json = b'{"extra":{"a":' + b"[" * depth + b"]" * depth + b"}}"
    deep_packed = b"\x81\xa5extra\x81\xa1a" + b"\x91" * (depth - 1) + b"\x90"
    for packed, body in ((False, deep_json), (True, deep_packed)):
        answer, boards = set_profile(body, packed=packed)
        if len(deep_json) <= PROFILE_BYTES_MAX:
            assert answer.status == 200
            assert kept(boards) == deep_json
        else:
            assert answer.status in (400, 422), answer.body
            assert boards.calls == []


@pytest.mark.parametrize(
    "body",
    [b"{", b"", b"{}{}", b'{"extra":{"a":NaN}}', b'{"extra":{"a":"\\ud800"}}',
     b'{"extra":{"a":"\xff"}}', b'{"display_name":"\xff"}'],
)  # fmt: skip
def test_a_profile_that_is_no_json_is_malformed(body: bytes) -> None:
    """What is no JSON in UTF-8, lone surrogates included, is malformed."""
    answer, boards = set_profile(body)
    check_problem(answer, 400, "malformed_body")
    assert boards.calls == []
