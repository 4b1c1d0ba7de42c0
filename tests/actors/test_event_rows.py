"""Columns of submitted events, and their results as an answer lists them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.answers import Result
from actors.errors import Refusal
from actors.event_results import write_results
from actors.event_rows import APPLIED, REJECTED, UNDECIDED, EventRows
from actors.forgetting import split
from actors.questions import Submit
from actors.submission import parse_submission
from tests.actors.board_harness import NOW_US, event

SECRET = bytes(range(16))
ENCODE = {False: msgspec.json.encode, True: msgspec.msgpack.encode}


def rows_of(*events: dict[str, Any], decimals: tuple[int, ...] = (0,)) -> EventRows:
    """Make the rows of a batch."""
    body = json.dumps({"events": events}).encode()
    parsed = parse_submission(Submit(False, NOW_US, body, False)).events
    rows = EventRows(decimals, len(parsed))
    rows.take(parsed, False, NOW_US)
    return rows


def test_rows_hold_what_was_submitted() -> None:
    """Cells come back as they were taken, refused events leave empty texts between them."""
    rows = rows_of(event("ada", key="j"), event("", key="k"), event("bo", 2, "l", source="s"))
    assert len(rows) == 3
    assert list(rows.statuses) == [UNDECIDED, REJECTED, UNDECIDED]
    assert split(rows.key_ends, rows.keys) == [b"j", b"", b"l"]
    assert rows.cells(0)[:3] == (b"ada", b"j", (1,))
    assert rows.cells(2)[2:] == ((2,), None, "s")
    assert [rows.member(row) for row in range(3)] == [b"ada", b"", b"bo"]
    for row in (-1, 3):
        with pytest.raises(IndexError):
            rows.cells(row)
    with pytest.raises(IndexError, match="there are 3 rows"):
        rows.take([Refusal("invalid_field", "none")], False, NOW_US)


@given(st.lists(st.integers(0, 9), max_size=30))
def test_repeats_are_found_by_their_keys(numbers: list[int]) -> None:
    """Each row whose key an earlier row has is named with the first that has it."""
    rows = rows_of(*(event(key=f"k{number}") for number in numbers))
    expected = [
        (row, numbers.index(number))
        for row, number in enumerate(numbers)
        if number in numbers[:row]
    ]
    assert rows.repeats(SECRET) == expected


def test_applied_rows_make_a_record_by_themselves() -> None:
    """A record's columns hold the applied rows alone, its sources those alone that these name."""
    rows = rows_of(
        event("ada", [1, 2], "j", source="gone"), event("bo", [3, 4], "k", source="s"),
        event("cy", [5, 6], "l"), event("di", [7, 8], "m", source="s", occurred_at=5),
        decimals=(0, 0),
    )  # fmt: skip
    for row in (1, 3):
        rows.apply(row)
    for row in (0, 2):
        rows.refuse(row, Refusal("value_not_allowed", "no"))
    rows.number(4, 17)
    assert list(rows.sequences) == [0, 17, 0, 18]
    columns = rows.applied_columns()
    assert split(columns["member_ends"], columns["members"]) == [b"bo", b"di"]
    assert split(columns["key_ends"], columns["keys"]) == [b"k", b"m"]
    assert list(columns["values"]) == [3, 4, 7, 8]
    assert (columns["sources"], list(columns["source_indexes"])) == (("s",), [1, 1])
    assert (list(columns["occurred_at_us"]), list(columns["flags"])) == ([NOW_US, 5], [0, 1])


def test_the_magnitude_bounds_what_a_total_can_move() -> None:
    """It sums up the largest score key of each row, up to a bound that no total reaches."""
    rows = rows_of(event(value=[3, -5], key="j"), event(value=[2, 0], key="k"), decimals=(0, 0))
    assert rows.magnitude == 7
    largest = rows_of(*(event(value=2**53 - 1, key=f"k{n}") for n in range(600)))
    assert largest.magnitude == 2**62


@given(
    st.lists(
        st.none()
        | st.tuples(
            st.booleans(),
            st.sampled_from([1, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1]),
        ),
        max_size=20,
    ),
    st.booleans(),
    st.integers(0, 3),
)
def test_results_are_written_as_msgspec_writes_them(
    drawn: list[tuple[bool, int] | None], packed: bool, start: int
) -> None:
    """Whatever became of the rows, their list is that of Result structs, byte for byte."""
    rows = rows_of(*(event(key=f"k{row}") for row in range(len(drawn))))
    expected, rejected = [], {}
    for row, outcome in enumerate(drawn):
        if outcome is None:
            rows.refuse(row, Refusal("value_not_allowed", "no"))
            expected.append(Result("rejected", code="value_not_allowed", detail="no"))
            rejected[row] = ENCODE[packed](expected[-1])
            continue
        duplicate, sequence = outcome
        rows.statuses[row] = APPLIED + duplicate
        rows.sequences[row] = sequence
        expected.append(Result("duplicate" if duplicate else "applied", sequence))
    start = min(start, len(drawn))
    refused = {row: text for row, text in rejected.items() if row >= start}
    written = write_results(rows, start, len(drawn), refused, packed)
    assert written == ENCODE[packed](expected[start:])


@pytest.mark.parametrize("count", [0, 15, 16, 5_000])
@pytest.mark.parametrize("packed", [False, True])
def test_long_lists_begin_as_their_length_says(count: int, packed: bool) -> None:
    """Lists of every length up to the largest batch are what msgspec writes."""
    rows = rows_of(*(event(key=f"k{row}") for row in range(count)))
    rows.statuses[:] = bytes([APPLIED]) * count
    rows.number(count, 1)
    expected = [Result("applied", sequence) for sequence in range(1, count + 1)]
    assert write_results(rows, 0, count, {}, packed) == ENCODE[packed](expected)
