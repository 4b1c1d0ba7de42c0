"""Cursors: where a page ended, as opaque text that only its own query takes back.

A cursor holds the last entry's key in the total order, not its position: entries that move do not
shift the next page. It is sealed with the board's hash key, so that any other text is refused.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

import msgspec

from actors.board import Board
from actors.errors import Refusal
from actors.members import siphash64

CURSOR_TEXT_MAX = 1_024


class Place(NamedTuple):
    """An entry's key in the total order."""

    score: tuple[int, ...]
    achieved_at_us: int
    member: bytes


class Cursor(NamedTuple):
    """Where a page of a window ended. A window's name is of use while `daily` moves on."""

    window: str
    place: Place


def _seal(board: Board, query: str, encoded: bytes) -> bytes:
    """Bind a cursor to the board's incarnation and the query."""
    identity = board.identity
    bound = msgspec.msgpack.encode([identity.incarnation, query, encoded])
    return siphash64(identity.hash_key, bound).to_bytes(8, "little")


def write_cursor(board: Board, query: str, cursor: Cursor) -> str:
    """Make the text that continues `query` after the cursor's place."""
    encoded = msgspec.msgpack.encode(cursor)
    return _text(_seal(board, query, encoded) + encoded)


def _text(sealed: bytes) -> str:
    return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()


def invalid_cursor() -> Refusal:
    """Make the refusal of a text that was not written for its use."""
    return Refusal("invalid_cursor", "after is no cursor of this query, window and board")


def read_cursor(board: Board, query: str, text: str) -> Cursor:
    """Read a cursor back. Errors: Refusal invalid_cursor for any text not written for this use."""
    return msgspec.msgpack.decode(_opened(board, query, text), type=Cursor)


def write_sequence(board: Board, query: str, sequence: int) -> str:
    """Make the text that continues `query` before a sequence of the log."""
    encoded = msgspec.msgpack.encode(sequence)
    return _text(_seal(board, query, encoded) + encoded)


def read_sequence(board: Board, query: str, text: str) -> int:
    """Read back what `write_sequence` made. Errors: Refusal invalid_cursor."""
    return msgspec.msgpack.decode(_opened(board, query, text), type=int)


def _opened(board: Board, query: str, text: str) -> bytes:
    """Return what a cursor holds, once its seal is found to be right."""
    if len(text) > CURSOR_TEXT_MAX or not text.isascii():
        raise invalid_cursor()
    try:
        sealed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise invalid_cursor() from None
    encoded = sealed[8:]
    # Base 64 has several texts for the same bytes; only the one that was written is a cursor.
    if _text(sealed) != text or sealed[:8] != _seal(board, query, encoded):
        raise invalid_cursor()
    return encoded
