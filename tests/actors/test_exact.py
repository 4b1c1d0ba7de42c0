from __future__ import annotations

import doctest
import re
import unicodedata
from datetime import UTC, datetime, timedelta, timezone
from decimal import Context, Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import actors.exact
from actors.exact import (
    NotANumberError,
    PrecisionError,
    RangeError,
    check_name,
    format_decimal,
    format_time,
    parse_decimal,
    parse_time,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
GRAMMAR = re.compile(rb"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
WIDE = Context(prec=400)
numbers = st.builds(
    lambda sign, whole, fraction, exponent: f"{sign}{whole}{fraction}{exponent}".encode(),
    st.sampled_from(["", "-"]),
    st.integers(0, 10**17) | st.integers(0, 99),
    st.just("") | st.from_regex(r"\.[0-9]{1,12}", fullmatch=True),
    st.just("") | st.from_regex(r"[eE][+-]?[0-9]{1,2}", fullmatch=True),
)


def expected(text: bytes, decimals: int) -> int | type[ValueError]:
    """Return what a number is by decimal.Decimal, or the error that names what it is not."""
    scaled = Decimal(text.decode()).scaleb(decimals, WIDE)
    if scaled != scaled.to_integral_value(context=WIDE):
        return PrecisionError
    limit = 10**15 - 1 if decimals else 2**53 - 1
    return int(scaled) if abs(scaled) <= limit else RangeError


@given(text=numbers, decimals=st.integers(0, 9))
@example(b"9007199254740991", 0)
@example(b"-9007199254740992", 0)
@example(b"999999.999999999", 9)
@example(b"1000000", 9)
@example(b"1e15", 0)
@example(b"0.000e99", 3)
@example(b"-0.0", 0)
def test_numbers_are_what_decimal_says(text: bytes, decimals: int) -> None:
    """A number's scaled integer, or the kind of its refusal, is that of exact arithmetic."""
    wanted = expected(text, decimals)
    if isinstance(wanted, int):
        assert parse_decimal(text, decimals) == wanted
    else:
        with pytest.raises(wanted):
            parse_decimal(text, decimals)


@given(st.text("0123456789.eE+-", max_size=8).map(str.encode) | st.binary(max_size=5))
@example(b"1\x00")
@example(b"")
@example(b"-")
@example(b"01")
@example(b"1.")
@example(b".5")
@example(b"+1")
@example(b"1e")
@example(b"1e+")
@example(b" 1")
@example(b"NaN")
@example(b"Infinity")
@example(b"0x1")
@example(b"1_0")
def test_only_json_numbers_are_numbers(text: bytes) -> None:
    """Exactly the texts of JSON's grammar are taken for numbers."""
    try:
        parse_decimal(text, 2)
        is_number = True
    except NotANumberError:
        is_number = False
    except (PrecisionError, RangeError):
        is_number = True
    assert is_number == bool(GRAMMAR.fullmatch(text))


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (b"1e400", RangeError),
        (b"1e-400000", PrecisionError),
        (b"-1e99999999999999999999999", RangeError),
        (b"1e-99999999999999999999999", PrecisionError),
        (b"0e99999999999999999999999", 0),
        (b"1" + b"0" * 100_000 + b"e-100000", 1),
        (b"0." + b"0" * 100_000 + b"7e100001", 7),
        (b"7" * 100_000, RangeError),
        (b"7" * 100_000 + b".5", PrecisionError),
        (b"1." + b"0" * 100_000, 1),
        (b"1" + b"0" * 50_000 + b"1", RangeError),
        (b"0." + b"0" * 50_000 + b"1", PrecisionError),
    ],
    ids=range(12),
)
def test_huge_texts_are_exact(text: bytes, outcome: int | type[ValueError]) -> None:
    """Exponents and digit strings of any length give their exact value or refusal."""
    if isinstance(outcome, int):
        assert parse_decimal(text, 0) == outcome
    else:
        with pytest.raises(outcome):
            parse_decimal(text, 0)


@given(scaled=st.integers(-(2**63), 2**63 - 1), decimals=st.integers(0, 9))
def test_decimals_print_shortest_and_exact(scaled: int, decimals: int) -> None:
    """A printed score has no exponent, no needless zero, and exactly its value."""
    text = format_decimal(scaled, decimals)
    assert Decimal(text.decode()) == Decimal(scaled).scaleb(-decimals, WIDE)
    assert re.fullmatch(rb"-?(0|[1-9][0-9]*)(\.[0-9]*[1-9])?", text)
    if abs(scaled) < 10**15:
        assert parse_decimal(text, decimals) == scaled


@pytest.mark.parametrize("decimals", [-1, 10])
def test_decimals_outside_0_to_9_are_refused(decimals: int) -> None:
    """Only the declared range of decimals is served."""
    with pytest.raises(ValueError, match="0 to 9"):
        parse_decimal(b"1", decimals)
    with pytest.raises(ValueError, match="0 to 9"):
        format_decimal(1, decimals)


offsets = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(timezones=offsets) | st.datetimes(timezones=st.just(UTC)))
@example(datetime(1, 1, 1, tzinfo=UTC))
@example(datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC))
@example(datetime(2000, 2, 29, tzinfo=UTC))
@example(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))))
def test_times_are_what_datetime_says(instant: datetime) -> None:
    """A time is parsed to its microsecond and printed in UTC, shortest, as the same instant."""
    us = (instant - EPOCH) // timedelta(microseconds=1)
    try:
        in_utc = instant.astimezone(UTC)
    except OverflowError:
        with pytest.raises(ValueError, match="years 1 to 9999"):
            parse_time(instant.isoformat())
        with pytest.raises(ValueError, match="years 1 to 9999"):
            format_time(us)
        return
    text = instant.isoformat()
    assert parse_time(text) == parse_time(text.replace("T", "t")) == us
    shortest = in_utc.replace(tzinfo=None).isoformat()
    shortest = shortest.rstrip("0") if "." in shortest else shortest
    assert format_time(us) == shortest + "Z"
    assert parse_time(format_time(us).replace("Z", "z")) == us


@pytest.mark.parametrize(
    "text",
    [
        "", "2026-11-30", "2026-11-30T10:00:00", "2026-11-30 10:00:00Z", "2026-11-30T10:00Z",
        "2026-02-29T00:00:00Z", "1900-02-29T00:00:00Z", "2026-04-31T00:00:00Z",
        "2026-00-10T00:00:00Z", "2026-13-10T00:00:00Z", "2026-01-00T00:00:00Z",
        "0000-01-01T00:00:00Z", "2026-11-30T24:00:00Z", "2026-11-30T10:60:00Z",
        "2026-11-30T23:59:60Z", "2026-11-30T10:00:00.Z", "2026-11-30T10:00:00.1234567Z",
        "2026-11-30T10:00:00,5Z", "2026-11-30T10:00:00+0100", "2026-11-30T10:00:00+01",
        "2026-11-30T10:00:00+24:00", "2026-11-30T10:00:00+01:60", "2026-11-30T10:00:00Z ",
        " 2026-11-30T10:00:00Z", "2026-11-30T10:00:00ZZ", "2026-11-30T10:00:00+01:00Z",
        "2026-1-30T10:00:00Z", "+026-11-30T10:00:00Z", "2026-11-30T1٣:00:00Z",
        "2026-11-30T10:00:00\x00", "2026-11-30T10:00:00Z\x00", "\ud800" * 20, "٢" * 10,
        "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01", "20261130T100000Z",
    ],
)  # fmt: skip
def test_what_is_no_time_is_refused(text: str) -> None:
    """Only RFC 3339 with an offset, of the calendar and within the years, is a time."""
    with pytest.raises(ValueError, match=r"^(is|has|needs|lies) "):
        parse_time(text)


@pytest.mark.parametrize("text", ["2026-11-30T10:00:00-00:00", "2026-11-30T10:00:00.0+00:00"])
def test_other_writings_of_a_time_are_the_same_instant(text: str) -> None:
    """A negative zero offset and a zero fraction are allowed, as in RFC 3339."""
    assert format_time(parse_time(text)) == "2026-11-30T10:00:00Z"


@given(st.text(max_size=12) | st.text(" a\x1f\x7f\x80\xa0é\u0301e\u2028\ud800Å", max_size=4))
def test_names_are_what_unicodedata_says(text: str) -> None:
    """A name is NFC, without control characters, surrogates or white space around, and short."""
    wrong = (
        not text
        or any(unicodedata.category(character) in ("Cc", "Cs") for character in text)
        or text != text.strip()
        or not unicodedata.is_normalized("NFC", text)
        or len(text.encode()) > 24
    )
    if wrong:
        with pytest.raises(ValueError, match=r"^(is|has) "):
            check_name(text, 24)
    else:
        assert check_name(text, 24) == text.encode()


def test_a_name_is_measured_in_bytes() -> None:
    """The limit of a name counts bytes of UTF-8, to the byte."""
    assert check_name("é" * 64, 128) == "é".encode() * 64
    assert check_name("x" * 128, 128) == b"x" * 128
    for text in ("é" * 64 + "x", "x" * 129):
        with pytest.raises(ValueError, match="longer than 128 bytes"):
            check_name(text, 128)


def test_doctests() -> None:
    """The examples of the documentation are true."""
    result = doctest.testmod(actors.exact)
    assert result.attempted
    assert not result.failed
