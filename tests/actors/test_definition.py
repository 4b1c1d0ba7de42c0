"""Definitions: what PUT and PATCH take, refuse, keep and show."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.definition import Definition, apply_changes, from_record, parse_definition
from actors.errors import Refusal
from tests.actors.board_harness import define, exact, score_keys

MAY, JUNE = "2026-05-01T00:00:00Z", "2026-06-01T00:00:00Z"


def shown(definition: Definition) -> dict[str, Any]:
    """Show a definition as GET does."""
    return exact(msgspec.json.encode(definition.to_answer(packed=False)))


def refusal(body: Any, packed: bool = False) -> tuple[str, str | int | None]:
    """Put a definition that must be refused; return the code and the field."""
    encode = msgspec.msgpack.encode if packed else msgspec.json.encode
    with pytest.raises(Refusal) as caught:
        parse_definition(body if isinstance(body, bytes) else encode(body), packed)
    return caught.value.code, caught.value.extra.get("field")


def changed(fields: Any, **board: Any) -> Any:
    """Apply the PATCH with these fields to a board's definition."""
    return apply_changes(define(**board), json.dumps(fields).encode(), packed=False)


def change_refusal(fields: Any, **board: Any) -> tuple[str, str | int | None]:
    with pytest.raises(Refusal) as caught:
        changed(fields, **board)
    return caught.value.code, caught.value.extra.get("field")


def test_defaults_are_the_contracts():
    """A definition that names only its aggregation is the contract's example."""
    assert shown(define(aggregation="sum")) == {
        "aggregation": "sum",
        "score": [{"name": "score", "direction": "desc", "decimals": 0}],
        "tie_rule": "earliest",
        "rank_method": "ordinal",
        "periods": ["all_time"],
        "timezone": "UTC",
        "day_starts_at": "00:00",
        "week_starts_on": "monday",
        "grace_seconds": 300,
        "future_tolerance_seconds": 60,
        "key_retention_days": 30,
        "keep_closed_periods": None,
        "min_value": None,
        "max_value": None,
        "sources": None,
        "mode": "live",
    }


def test_an_answer_can_be_put_again():
    """What GET shows of a definition is, put again, the same definition."""
    bounds = {"min_value": [0, 0.5], "max_value": [10, 99.25]}
    original = define(score=score_keys("desc0", "asc2"), sources=["a", "b"], **bounds)
    for packed, encode in ((False, msgspec.json.encode), (True, msgspec.msgpack.encode)):
        assert parse_definition(encode(original.to_answer(packed)), packed) == original


def test_a_record_keeps_the_definition():
    """What the log keeps of a definition makes the same definition again."""
    original = define(score=score_keys("desc0", "asc9"), min_value=0, sources=["x"])
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(original.to_record()))
    assert from_record(packed) == original


def test_two_texts_of_one_number_are_one_definition():
    """Bounds are compared as numbers: 10, 10.0 and 1e1 are the same bound, in both formats."""
    numbers = (b"10", b"10.0", b"1e1")
    texts = [b'{"aggregation":"best","max_value":%s}' % number for number in numbers]
    parsed = {repr(parse_definition(text, packed=False)) for text in texts}
    packed = msgspec.msgpack.encode({"aggregation": "best", "max_value": 10.0})
    parsed.add(repr(parse_definition(packed, packed=True)))
    assert len(parsed) == 1


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, min_value=-999_999, max_value=999_999, places=9
    )
)
def test_bounds_are_exact(bound):
    """A bound comes back as the decimal that was put, whatever its digits."""
    body = b'{"aggregation":"best","score":[{"name":"s","decimals":9}],"min_value":%s}'
    definition = parse_definition(body % f"{bound:f}".encode(), packed=False)
    assert Decimal(shown(definition)["min_value"]) == bound


def test_one_bound_stands_for_every_key():
    """A single number bounds each score key, scaled by its own decimals."""
    definition = define(score=score_keys("desc0", "asc2"), min_value=1, max_value=[2, 3.25])
    assert definition.min_value == (1, 100)
    assert definition.max_value == (2, 325)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("aggregation", "worst"),
        ("aggregation", None),
        ("score", []),
        ("score", [{"name": f"k{number}"} for number in range(5)]),
        ("score", [{"name": "a"}, {"name": "a"}]),
        ("score", [{"name": ""}]),
        ("score", [{"name": " a"}]),
        ("tie_rule", "first"),
        ("rank_method", "modified"),
        ("periods", []),
        ("periods", ["hourly"]),
        ("periods", ["all_time", "all_time"]),
        ("periods", [{"name": "daily", "start": MAY, "end": JUNE}]),
        ("periods", [{"name": "cup", "start": MAY, "end": MAY}]),
        ("periods", [{"name": "cup", "start": "soon", "end": JUNE}]),
        ("timezone", "Mars/Olympus"),
        ("timezone", "../etc/passwd"),
        ("day_starts_at", "24:00"),
        ("day_starts_at", "7:00"),
        ("week_starts_on", "Monday"),
        ("grace_seconds", -1),
        ("grace_seconds", True),
        ("grace_seconds", "300"),
        ("future_tolerance_seconds", 86_401),
        ("key_retention_days", 0),
        ("key_retention_days", 1.5),
        ("keep_closed_periods", -1),
        ("min_value", "1"),
        ("min_value", [1] * 5),
        ("min_value", True),
        ("min_value", {}),
        ("min_value", [1, 2]),
        ("min_value", [None]),
        ("max_value", 0.5),
        ("max_value", 2**53),
        ("sources", []),
        ("sources", ["a", "a"]),
        ("sources", ["x" * 65]),
        ("sources", [""]),
        ("sources", "a"),
        ("mode", "replay"),
        ("retention", 3),
    ],
)  # fmt: skip
def test_nonsense_is_refused_by_field(field, value, packed):
    """A wrong, unknown or impossible field is named, in JSON and in MessagePack."""
    assert refusal({"aggregation": "best", field: value}, packed) == ("invalid_field", field)


def test_inner_fields_are_checked_too():
    """An unknown field or a wrong type inside a score key or a window is refused."""
    for score in ({"name": "a", "unit": "s"}, {"name": "a", "decimals": 10}, {"direction": "asc"}):
        assert refusal({"aggregation": "best", "score": [score]})[0] == "invalid_field"
    assert refusal({"aggregation": "best", "periods": [{"name": "cup"}]})[0] == "invalid_field"


def test_the_aggregation_is_required():
    """A definition without an aggregation is refused, and says so."""
    assert refusal({}) == ("invalid_field", "aggregation")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b'{"mode":NaN}', b'{"min_value":' + b"[" * 5_000]
)
def test_what_is_no_json_is_malformed(body):
    """A body that is not JSON at all is malformed, however it is broken."""
    assert refusal(body)[0] == "malformed_body"
    with pytest.raises(Refusal) as caught:
        apply_changes(define(), body, packed=False)
    assert caught.value.code == "malformed_body"


def test_messagepack_rubbish_in_a_bound_is_a_wrong_field():
    """Text that is no UTF-8, in the place of a bound, is a wrong field, not a fault."""
    body = b"\x82\xabaggregation\xa4best\xa9min_value\xa1\xff"
    assert refusal(body, packed=True) == ("invalid_field", "min_value")


def test_bounds_may_not_cross():
    """A lower bound above the upper one is refused at creation and at a change, key by key."""
    assert refusal({"aggregation": "best", "min_value": 2, "max_value": 1})[0] == "invalid_field"
    assert change_refusal({"min_value": 2}, max_value=1) == ("invalid_field", "min_value")
    two = {"score": score_keys("desc0", "desc0")}
    assert change_refusal({"max_value": [9, 0]}, min_value=[0, 1], **two)[0] == "invalid_field"
    assert changed({"min_value": 1}, max_value=1).min_value == (1,)


CHANGES: dict[str, Any] = {
    "grace_seconds": 0,
    "future_tolerance_seconds": 0,
    "key_retention_days": None,
    "keep_closed_periods": 3,
    "min_value": -5,
    "max_value": 5,
    "sources": ["a"],
    "mode": "backfill",
}


def test_what_may_change_changes_alone():
    """Each field that may change does, and all others stay; an empty PATCH changes nothing."""
    before = define()
    assert changed({}) == before
    for field, value in CHANGES.items():
        after = shown(changed({field: value}))
        assert after == shown(before) | {field: value}
    assert shown(changed(CHANGES)) == shown(before) | CHANGES


def test_null_lifts_a_limit():
    """A null in a PATCH takes the bound, the sources or the retention away; absence does not."""
    limited = {"min_value": 0, "max_value": 9, "sources": ["a"], "key_retention_days": 5}
    assert changed({}, **limited) == define(**limited)
    lifted = changed(dict.fromkeys(limited), **limited)
    assert lifted == changed({"key_retention_days": None})


@pytest.mark.parametrize(
    "field",
    ["aggregation", "score", "tie_rule", "rank_method", "periods", "timezone", "day_starts_at",
     "week_starts_on"],
)  # fmt: skip
def test_what_must_not_change_is_immutable(field):
    """A PATCH of a field that cannot change is definition_immutable, whatever its value."""
    same = shown(define())[field]
    assert change_refusal({field: same}) == ("definition_immutable", field)
    assert change_refusal({field: 7}) == ("definition_immutable", field)


def test_a_patch_is_checked_as_a_put_is():
    """Unknown fields and wrong values of a PATCH are refused by name."""
    assert change_refusal({"colour": 1}) == ("invalid_field", "colour")
    assert change_refusal({"sources": ["a", "a"]}) == ("invalid_field", "sources")
    assert change_refusal({"min_value": 0.5}) == ("invalid_field", "min_value")
    assert change_refusal({"mode": None}) == ("invalid_field", "mode")
    assert change_refusal({"board": "b"}) == ("invalid_field", "board")
