"""The list of a board's windows, newest first, and its next boundaries.

Owns what `periods` answers. A window is listed when it ever held an event, and a fixed one always.
Complexity: O(windows log windows) a page.
"""

from __future__ import annotations

from typing import NamedTuple

from actors.answers import PeriodItem, PeriodsAnswer
from actors.board import Board
from actors.closed_window import ClosedWindow
from actors.counting import Window
from actors.cursor import Cursor, Place, invalid_cursor, read_cursor, write_cursor
from actors.definition import FixedWindow
from actors.errors import Refusal
from actors.exact import format_time
from actors.periods import ALL_TIME
from actors.questions import Periods
from actors.sealed import NotAtHandError, Sealed
from actors.windows import PERIODIC, current_window, period_name

_QUERY = "periods"


class _Key(NamedTuple):
    """A window's place in the list: the latest start first, all_time last."""

    start_us: int
    id: str


def _key(window: Window | ClosedWindow) -> _Key:
    # No instant of the years 1 to 9999 is as early as this.
    return _Key(-(2**63) if window.start_us is None else window.start_us, window.id)


def list_periods(board: Board, sealed: Sealed, question: Periods) -> PeriodsAnswer:
    """Answer a page of the windows. Errors: Refusal, NotAtHandError for digests to be read."""
    kinds = {period_name(period) for period in board.definition.periods}
    if question.kind is not None and question.kind not in kinds:
        raise Refusal("period_not_found", f"the board has no windows of kind {question.kind!r}")
    listed = sorted(_listed(board, question.kind), key=_key, reverse=True)
    if question.after is not None:
        last = _read(board, question)
        listed = [window for window in listed if _key(window) < last]
    page = listed[: question.limit]
    missing = [
        (window.id, window.revision)
        for window in page
        if isinstance(window, ClosedWindow)
        and sealed.digest(window.id, window.revision) is None
        and not sealed.is_missing(window.id, window.revision)  # its digest comes with its archive
    ]
    if missing:
        raise NotAtHandError(missing, standings=False)
    following = None
    if len(listed) > len(page):
        following = _write(board, question, _key(page[-1]))
    return PeriodsAnswer(
        board=board.identity.board,
        sequence=board.sequence,
        periods=[_item(board, sealed, window) for window in page],
        upcoming=_upcoming(board, question.now_us),
        next=following,
    )


def _listed(board: Board, kind: str | None) -> list[Window | ClosedWindow]:
    fixed = {p.name for p in board.definition.periods if isinstance(p, FixedWindow)}
    # A periodic window is opened by its first event, and every event counts in all_time.
    windows: list[Window | ClosedWindow] = [
        window
        for window in board.windows.values()
        if window.kind in PERIODIC or window.id in fixed or len(board.members)
    ]
    windows += board.closed.values()
    return [window for window in windows if kind in (None, window.kind)]


def _item(board: Board, sealed: Sealed, window: Window | ClosedWindow) -> PeriodItem:
    closed = window if isinstance(window, ClosedWindow) else None
    closes_at_us = board.closes_at_us(window.end_us) if closed is None else closed.closes_at_us
    return PeriodItem(
        id=window.id,
        start=_time(window.start_us),
        end=_time(window.end_us),
        closes_at=_time(closes_at_us),
        closed=closed is not None,
        closed_at=None if closed is None else format_time(closed.closed_at_us),
        members=len(window.standings) if isinstance(window, Window) else window.shown,
        digest=None if closed is None else sealed.digest(closed.id, closed.revision),
        revision=None if closed is None else closed.revision,
    )


def _time(instant_us: int | None) -> str | None:
    return None if instant_us is None else format_time(instant_us)


def _upcoming(board: Board, now_us: int) -> dict[str, str]:
    """Give the next boundary of each period: its window's end, or a fixed one's start."""
    upcoming = {}
    for period in board.definition.periods:
        name = period_name(period)
        if name in PERIODIC:
            current = current_window(board, name, now_us)
            ends = [] if current is None else [current.end_us]
        elif name != ALL_TIME.kind and name in board.windows:
            ends = [board.windows[name].start_us, board.windows[name].end_us]
        else:
            continue
        following = [end for end in ends if end is not None and end > now_us]
        if following:
            upcoming[name] = format_time(min(following))
    return upcoming


def _query(question: Periods) -> str:
    return f"{_QUERY} {question.kind or ''}"


def _write(board: Board, question: Periods, key: _Key) -> str:
    cursor = Cursor(key.id, Place((), key.start_us, b""))
    return write_cursor(board, _query(question), cursor)


def _read(board: Board, question: Periods) -> _Key:
    if question.after is None:
        raise invalid_cursor()
    cursor = read_cursor(board, _query(question), question.after)
    return _Key(cursor.place.achieved_at_us, cursor.window)
