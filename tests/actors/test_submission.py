"""The shape of events: what a body may hold, and that one bad event spoils no other."""

from __future__ import annotations

import contextlib
import json
import struct
from decimal import Decimal
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from actors import submission
from actors.definition import render_number
from actors.errors import Refusal
from actors.event_rows import EventRows
from actors.questions import Submit
from actors.submission import Cells, number_text, parse_submission
from tests.actors.board_harness import NOW_US, event, exact

PLACES = (0,)
GOOD = event("good", 1, "good")


def shaped(body: bytes, packed: bool = False, decimals: tuple[int, ...] = PLACES) -> list[Any]:
    """Parse a body and return each event's cells or refusal."""
    events = parse_submission(Submit(False, NOW_US, body, packed)).events
    rows = EventRows(decimals, len(events))
    rows.take(events, packed, NOW_US)
    return [
        rows.refusals[row] if row in rows.refusals else rows.cells(row) for row in range(len(rows))
    ]


def refusal(body: Any, packed: bool = False) -> tuple[str, Any]:
    """Return the code and field of a body that is refused as a whole."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(Refusal) as caught:
        parse_submission(Submit(False, NOW_US, raw, packed))
    return caught.value.code, caught.value.extra.get("field")


def code_of(found: Any) -> str | None:
    """Return the code that an event is refused with, by its shape or by the rules."""
    refused = found.values if isinstance(found, Cells) else found
    return refused.code if isinstance(refused, Refusal) else None


# One event


def test_an_event_becomes_cells():
    """Text becomes bytes, the value scaled integers, the instant microseconds."""
    full = event("mary1934", 25, "match-77/mary1934", source="s")
    body = json.dumps(full | {"occurred_at": "1970-01-01T02:00:00.000001+01:00"}).encode()
    cells = Cells(b"mary1934", b"match-77/mary1934", (25,), 3_600_000_001, "s")
    assert shaped(body) == [cells]
    packed = msgpack.packb(json.loads(body))
    assert shaped(packed, packed=True) == [cells]


def test_what_is_left_out_is_none():
    """Without occurred_at and source the cells say so, and the submission holds the receipt."""
    assert shaped(json.dumps(GOOD).encode())[0][3:] == (None, None)
    submission = parse_submission(Submit(True, NOW_US, json.dumps(GOOD).encode(), False))
    assert (submission.received_at_us, submission.answer_packed) == (NOW_US, True)
    assert (submission.batch, submission.packed) == (False, False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("member", ""), ("member", "."), ("member", ".."), ("member", " a"), ("member", "a\u00a0"),
        ("member", "a\nb"), ("member", "a\x7f"), ("member", "a\x85b"), ("member", "e\u0301"),
        ("member", "x" * 129), ("member", "é" * 65), ("member", 5), ("member", None),
        ("member", ["a"]), ("member", "\ud800"), ("member", "a\udfffb"),
        ("idempotency_key", ""), ("idempotency_key", "x" * 129), ("idempotency_key", True),
        ("idempotency_key", "\udc00"), ("idempotency_key", "a\x00"),
        ("source", ""), ("source", "x" * 65), ("source", None), ("source", 1),
        ("occurred_at", None), ("occurred_at", 1_700_000_000), ("occurred_at", "yesterday"),
        ("occurred_at", "2026-01-01T00:00:00"), ("occurred_at", "2026-01-01T00:00:60Z"),
        ("occurred_at", "2026-02-30T00:00:00Z"), ("occurred_at", "2026-01-01T00:00:00.1234567Z"),
        ("value", None), ("value", True), ("value", "5"), ("value", [5]), ("value", []),
        ("value", {"a": 1}), ("value", "\ud800"), ("colour", "red"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_and_named(field, value):
    """A wrong field is named, for an event alone; in a batch the events beside it stay."""
    bad = event() | {field: value}
    body = json.dumps(bad).encode()
    try:
        (found,) = shaped(body)
    except Refusal as refused:
        found = refused
    assert (found.code, found.extra["field"]) == ("invalid_field", field)
    first, found, last = shaped(json.dumps({"events": [GOOD, bad, GOOD]}).encode())
    assert isinstance(first, Cells)
    assert first == last
    assert (found.code, found.extra["field"]) == ("invalid_field", field)


def test_a_missing_field_is_named():
    """Each required field that is left out is named."""
    for field in ("member", "value", "idempotency_key"):
        body = {name: cell for name, cell in event().items() if name != field}
        assert refusal(body) == ("invalid_field", field)


def test_text_is_taken_as_it_is():
    """Any clean text is kept byte by byte: no case folding, no trimming, no escape left over."""
    for text in ("a/b", "%2F", "ﬁ", "ÅÉ", "名前", "🎮", "A", "a b", "\\ud800", '"', "..."):
        for body in (json.dumps(event(text)), json.dumps(event(text), ensure_ascii=False)):
            assert shaped(body.encode())[0].member == text.encode()
        assert shaped(msgpack.packb(event(text)), packed=True)[0].member == text.encode()


@given(
    st.text(alphabet=["\\", "\ud800", "\udc00", "\U0001f600", "u", "d", "8", "0", "x"], max_size=12)
)
@example("\\\ud800")
@example("\ud800\U0001f600")
@example("\\\\ud800")
def test_lone_surrogates_are_found_among_escapes(text):
    """Escaped text is refused where a surrogate stands alone, and taken exactly where none does."""
    expected: bytes | None
    try:
        expected = text.encode()
        # Two escapes that follow each other are a pair to JSON, whatever they were before.
    except UnicodeEncodeError:
        joined = json.loads(json.dumps(text))
        try:
            expected = joined.encode()
        except UnicodeEncodeError:
            expected = None
    (found,) = shaped(json.dumps({"events": [event("m" + text, key="k")]}).encode())
    if expected is None:
        assert code_of(found) == "invalid_field"
    else:
        assert found.member == b"m" + expected


# Batches


def test_a_body_that_is_neither_is_refused():
    """A body is one event or {"events": [...]}: anything more, less or longer is refused."""
    assert refusal({"events": [], "dry_run": True}) == ("invalid_field", "dry_run")
    assert refusal({"events": GOOD}) == ("invalid_field", "events")
    assert refusal(GOOD | {"events": []})[0] == "invalid_field"
    assert refusal([GOOD])[0] == "invalid_field"
    assert refusal({"events": [GOOD] * 5_001}) == ("invalid_field", "events")
    assert len(shaped(json.dumps({"events": [GOOD] * 5_000}).encode())) == 5_000
    assert shaped(b'{"events":[]}') == []


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nonsense", b"\xff\xfe", b'{"member":NaN}', b"{'member':1}", b'{"events":[01]}',
     b'{"events":' + b"[" * 5_000, json.dumps(GOOD).encode() + b"x"],
)  # fmt: skip
def test_what_is_no_json_is_malformed(body):
    """A body whose framing is broken is refused as a whole."""
    assert refusal(body)[0] == "malformed_body"


def test_anything_may_stand_in_an_events_place():
    """Nulls, numbers, texts and lists in the place of an event are refused one by one."""
    rubbish: list[Any] = [
        None,
        True,
        0,
        1.5,
        "x",
        [],
        [GOOD],
        {},
        {"events": []},
        {"a": {"b": [1]}},
    ]
    for pack, packed in ((lambda body: json.dumps(body).encode(), False), (msgpack.packb, True)):
        found = shaped(pack({"events": [GOOD, *rubbish, GOOD]}), packed)
        assert found[0] == found[-1]
        assert isinstance(found[0], Cells)
        assert [code_of(each) for each in found[1:-1]] == ["invalid_field"] * len(rubbish)


LISTS = [(lambda items: json.dumps(items).encode(), False), (msgpack.packb, True)]


@pytest.mark.parametrize(("pack", "packed"), LISTS, ids=["JSON", "MessagePack"])
@pytest.mark.parametrize("item", [None, 1, {}, GOOD], ids=["null", "number", "map", "event"])
def test_too_long_a_batch_costs_one_refusal(pack, packed, item, monkeypatch):
    """A batch above the bound is refused as a whole, without looking at what is in it."""
    made: list[str] = []

    def counted(field: str, detail: str) -> Refusal:
        made.append(detail)
        return Refusal("invalid_field", detail, field=field)

    monkeypatch.setattr(submission, "invalid_field", counted)
    assert refusal(pack({"events": [item] * 5_001}), packed) == ("invalid_field", "events")
    assert made == ["at most 5000 at once"]


@pytest.mark.parametrize(("pack", "packed"), LISTS, ids=["JSON", "MessagePack"])
def test_too_long_a_list_of_numbers_is_not_read(pack, packed, monkeypatch):
    """Of a list with more numbers than any board has keys none is read."""
    read: list[bytes] = []

    def counted(raw: msgspec.Raw, packed: bool) -> bytes:
        read.append(number_text(raw, packed))
        return read[-1]

    monkeypatch.setattr(submission, "number_text", counted)
    assert submission.numbers(msgspec.Raw(pack([1] * 5)), packed) == []
    assert read == []
    assert submission.numbers(msgspec.Raw(pack([1] * 4)), packed) == [b"1"] * 4
    (found,) = shaped(pack(event("m", [1] * 5, "k")), packed, (0, 0))
    assert found.detail == "value: a list of 2 numbers is expected"


MESSAGEPACK_RUBBISH = {
    "text that is no UTF-8": b"\xa1\xff",
    "bytes": b"\xc4\x01\x05",
    "a timestamp that is none": b"\xd4\xff\x00",
    "a timestamp out of range": b"\xd7\xff" + b"\xff" * 8,
    "an extension": b"\xd4\x05\x00",
    "a map with a map for a key": b"\x81\x80\x01",
    "not a number": b"\xcb\x7f\xf8" + bytes(6),
    "infinity": b"\xcb\x7f\xf0" + bytes(6),
}


@pytest.mark.parametrize("rubbish", MESSAGEPACK_RUBBISH.values(), ids=MESSAGEPACK_RUBBISH.keys())
@pytest.mark.parametrize("field", ["member", "value", "idempotency_key", "occurred_at", "source"])
def test_messagepack_rubbish_spoils_no_other_event(field, rubbish):
    """Whatever MessagePack can hold in a field's place is one event's refusal, and no fault."""
    fields = {name: msgpack.packb(cell) for name, cell in event("bad").items()} | {field: rubbish}
    bad = bytes([0x80 | len(fields)])
    bad += b"".join(msgpack.packb(name) + cell for name, cell in fields.items())
    body = b"\x81\xa6events\x93" + msgpack.packb(GOOD) + bad + msgpack.packb(GOOD)
    first, found, last = shaped(body, packed=True)
    assert first == last
    assert isinstance(first, Cells)
    assert code_of(found) == "invalid_field"
    pair = shaped(body, packed=True, decimals=(0, 0))[1]
    assert code_of(pair) == "invalid_field"


# Numbers


def values_of(text: str, places: int) -> Any:
    body = b'{"member":"a","idempotency_key":"k","value":%s}' % text.encode()
    return shaped(body, decimals=(places,))[0].values


@pytest.mark.parametrize("places", range(10))
def test_values_reach_exactly_to_their_bounds(places):
    """The largest magnitude is 2^53-1 without decimals and 10^15-1 with them, scaled; no more."""
    largest = 10**15 - 1 if places else 2**53 - 1
    for scaled in (largest, -largest):
        for text in (f"{scaled}e-{places}", f"{Decimal(scaled).scaleb(-places):f}"):
            assert values_of(text, places) == (scaled,)
        beyond = scaled + (1 if scaled > 0 else -1)
        assert values_of(f"{beyond}e-{places}", places).code == "value_out_of_range"
    assert values_of(f"1e-{places + 1}", places).code == "value_precision"
    assert values_of("1e400", places).code == "value_out_of_range"
    assert values_of("-0.0e5", places) == (0,)


@given(st.integers(-(10**15) + 1, 10**15 - 1), st.integers(1, 9), st.integers(0, 3))
def test_numbers_are_exact_from_text_to_answer(scaled, places, zeros):
    """A number keeps every digit: JSON text and MessagePack doubles, in and out."""
    decimal = Decimal(scaled).scaleb(-places)
    assert values_of(f"{decimal:f}" + "0" * zeros * bool(decimal.as_tuple().exponent), places) == (
        scaled,
    )
    assert values_of(f"{decimal:.20e}", places) == (scaled,)
    double = msgpack.packb(event(value=float(decimal)))
    assert shaped(double, packed=True, decimals=(places,))[0].values == (scaled,)
    answered = msgspec.json.encode({"score": render_number(scaled, places, packed=False)})
    assert Decimal(exact(answered)["score"]) == decimal
    assert b"e" not in answered.replace(b"score", b"").lower()
    packed = msgspec.msgpack.encode(render_number(scaled, places, packed=True))
    assert Decimal(repr(msgpack.unpackb(packed))) == decimal


def test_each_key_has_its_own_decimals():
    """A list holds one number per score key, in order; each key's precision is its own."""
    body = json.dumps(event(value=[10, 95.5])).encode()
    assert shaped(body, decimals=(0, 1))[0].values == (10, 955)
    assert shaped(body, decimals=(0, 0))[0].values.code == "value_precision"
    assert code_of(shaped(body, decimals=(0, 1, 0))[0]) == "invalid_field"
    assert code_of(shaped(json.dumps(event(value=5)).encode(), decimals=(0, 0))[0]) == (
        "invalid_field"
    )
    assert code_of(shaped(json.dumps(event(value=[1, None])).encode(), decimals=(0, 0))[0]) == (
        "invalid_field"
    )


def test_precision_comes_before_range():
    """Of several broken rules in one value, precision is the one that is told."""
    for value in ([2**60, 0.5], [0.5, 2**60]):
        body = json.dumps(event(value=value)).encode()
        assert shaped(body, decimals=(0, 0))[0].values.code == "value_precision"


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float_of_32_bits_means_its_shortest_decimal(value: float):
    """Game clients pack floats of 32 bits: 0.1 means 0.1, not the double that is nearest to it."""
    raw = msgspec.Raw(b"\xca" + struct.pack(">f", value))
    text = number_text(raw, packed=True).decode()
    assert struct.pack(">f", float(text)) == struct.pack(">f", value)
    shorter = [f"{value:.{digits}g}" for digits in range(1, len(Decimal(text).as_tuple().digits))]
    for candidate in shorter:
        with contextlib.suppress(OverflowError):
            assert struct.pack(">f", float(candidate)) != struct.pack(">f", value)


def test_a_float_of_32_bits_is_counted_as_it_was_meant():
    """16777.217 of a float of 32 bits is scaled as those digits."""
    head = msgpack.packb({"member": "a", "idempotency_key": "k", "value": None})[:-1]
    for value, places, scaled in ((16777.217, 3, 16777217), (0.1, 1, 1), (0.29, 2, 29)):
        body = head + b"\xca" + struct.pack(">f", value)
        assert shaped(body, packed=True, decimals=(places,))[0].values == (scaled,)


def test_refusals_do_not_multiply_what_was_sent():
    """However long a name a client invents, the answer that quotes it is short."""
    with pytest.raises(Refusal) as refused:
        parse_submission(Submit(False, 0, json.dumps({"x" * 100_000: 1}).encode(), False))
    assert len(str(refused.value.extra)) + len(refused.value.detail) < 1_000
