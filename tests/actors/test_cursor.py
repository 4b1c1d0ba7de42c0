"""Cursors: they come back for their own query of their own board, and no other text does."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.cursor import CURSOR_TEXT_MAX, Cursor, Place, read_cursor, write_cursor
from actors.errors import Refusal
from tests.actors.board_harness import MemoryBoard

BOARD = MemoryBoard().board
PLACE = Cursor("daily:2026-11-30", Place((5, -7), 1_700_000_000_000_000, b"ada"))
scores = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4).map(tuple)
places = st.builds(
    Cursor,
    st.sampled_from(["all_time", "weekly:2026-11-30", "cup"]),
    st.builds(Place, scores, st.integers(-(2**63), 2**63 - 1), st.binary(min_size=1, max_size=128)),
)


def refused(text: str, query: str = "top") -> bool:
    """Tell whether a text is refused as a cursor."""
    try:
        read_cursor(BOARD, query, text)
    except Refusal as refusal:
        return refusal.code == "invalid_cursor"
    return False


@given(places)
def test_a_cursor_comes_back(place):
    """A cursor is URL-safe text, within its bound, and means the place it was written for."""
    text = write_cursor(BOARD, "top", place)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", text)
    assert len(text) <= CURSOR_TEXT_MAX
    assert read_cursor(BOARD, "top", text) == place


def test_a_cursor_belongs_to_its_query():
    """A cursor of another query is refused; its window is part of it."""
    text = write_cursor(BOARD, "top", PLACE)
    assert not refused(text)
    assert refused(text, query="range")


def test_a_cursor_belongs_to_its_board():
    """A cursor of a board with another secret, or an earlier board of that name, is refused."""
    other = MemoryBoard(hash_key=bytes(range(16))).board
    assert refused(write_cursor(other, "top", PLACE))
    later = MemoryBoard().board
    later.identity = later.identity._replace(incarnation="two")
    assert refused(write_cursor(later, "top", PLACE))


@pytest.mark.parametrize(
    "text", ["", "A", "AA", "next", "=", "é", "\ud800", "a b", "A" * 5_000, "////", "\x00"]
)
def test_invented_text_is_refused(text):
    """Text that no board wrote is refused, whatever it holds."""
    assert refused(text)


@given(st.text(max_size=60))
def test_any_other_text_is_refused(text):
    """No text but a board's own is taken."""
    assert refused(text)


@given(places, st.data())
def test_an_altered_cursor_is_refused(place, data):
    """Each change of a cursor, a character or its length, is refused."""
    text = write_cursor(BOARD, "top", place)
    index = data.draw(st.integers(0, len(text) - 1))
    character = data.draw(st.sampled_from("ABYZabyz0189-_+/=. "))
    altered = {
        text[:index] + character + text[index + 1 :],
        text[:index] + character + text[index:],
        text[:index],
        text + "=" * (-len(text) % 4),
        text.replace("-", "+").replace("_", "/"),
    }
    assert all(refused(other) for other in altered - {text})
