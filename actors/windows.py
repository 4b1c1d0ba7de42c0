"""Which windows of a board an instant counts for, and which window a query's `period` means.

Owns the meeting of the calendar with what the log has fixed: a window keeps the bounds that it was
opened with, whatever happened to zone data since, and its neighbours give way. Pure: reads the
board, never a clock.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from actors.board import Board
from actors.closed_window import ClosedWindow
from actors.counting import Window, kind_of
from actors.definition import FixedWindow
from actors.errors import Refusal
from actors.periods import Bounds

PERIODIC = frozenset({"daily", "weekly", "monthly", "yearly"})
_EARLIEST_US, _LATEST_US = -(2**63), 2**63 - 1  # beyond all instants of the years 1 to 9999


class Span(NamedTuple):
    """Instants that count for the same windows, which are open: from start_us to before end_us."""

    windows: Sequence[Window]
    start_us: int
    end_us: int

    def holds(self, occurred_at_us: int) -> bool:
        """Tell whether an instant is one of them."""
        return self.start_us <= occurred_at_us < self.end_us


class Empty(NamedTuple):
    """A window that never held an event; closed tells whether it cannot any more."""

    bounds: Bounds
    closed: bool


def current_window(board: Board, kind: str, now_us: int) -> Window | ClosedWindow | Bounds | None:
    """Find the window of a kind that contains now, opened or not."""
    return _window_of(board, kind, now_us)


def period_name(period: str | FixedWindow) -> str:
    """Name one of the definition's periods: its kind, or a fixed window's name."""
    return period if isinstance(period, str) else period.name


def counting_windows(
    board: Board, occurred_at_us: int, now_us: int, opening: Container[str] = ()
) -> list[Window | Bounds]:
    """List the windows that an event counts for, in the definition's order.

    opening: the ids of windows that the same record opens. Open ones are given as they are, those
    that the record must open as their bounds. What is closed, or is so late that it would close at
    once, is left out.
    """
    counting: list[Window | Bounds] = []
    for period in board.definition.periods:
        window = _window_of(board, period_name(period), occurred_at_us)
        if isinstance(window, Window) or (
            isinstance(window, Bounds)
            and (window.id in opening or not _is_over(board, window, now_us))
        ):
            counting.append(window)
    return counting


def span_around(board: Board, occurred_at_us: int) -> Span | None:
    """Find instants around one for each of which `counting_windows` lists the same open windows.

    None where a window may have to be opened or fitted in between others. The calendar names one
    window all through its bounds; if that is known, and holds the instants, it is theirs.
    """
    counting: list[Window] = []
    start_us, end_us = _EARLIEST_US, _LATEST_US
    for period in board.definition.periods:
        name = period_name(period)
        known = _known(board, name)
        if known is None and name in PERIODIC:
            bounds = board.calendar.window_at(name, occurred_at_us)
            known = None if bounds is None else _known(board, bounds.id)
            if bounds is None or known is None or not known.holds(occurred_at_us):
                return None
            start_us, end_us = _within(bounds, start_us, end_us)
        if known is None:
            continue  # a fixed window that expired
        if known.holds(occurred_at_us):
            start_us, end_us = _within(known, start_us, end_us)
            if isinstance(known, Window):
                counting.append(known)
        elif known.end_us is not None and known.end_us <= occurred_at_us:
            start_us = max(start_us, known.end_us)
        elif known.start_us is not None:
            end_us = min(end_us, known.start_us)
    return Span(counting, start_us, end_us)


def _within(window: Window | ClosedWindow | Bounds, start_us: int, end_us: int) -> tuple[int, int]:
    """Give the part of a span that lies within a window."""
    return (
        start_us if window.start_us is None else max(start_us, window.start_us),
        end_us if window.end_us is None else min(end_us, window.end_us),
    )


def _is_over(board: Board, bounds: Bounds, now_us: int) -> bool:
    """Tell whether a window that is not open yet could only be opened too late."""
    if bounds.end_us is None:
        return False
    if bounds.end_us <= board.expired_until_us.get(bounds.kind, bounds.end_us - 1):
        return True
    grace_us = board.definition.grace_seconds * 1_000_000
    return board.definition.mode == "live" and bounds.end_us + grace_us <= now_us


def _known(board: Board, window: str) -> Window | ClosedWindow | None:
    return board.windows.get(window) or board.closed.get(window)


def _window_of(board: Board, name: str, instant_us: int) -> Window | ClosedWindow | Bounds | None:
    """Find the window of one period that holds an instant, opened or not; None if none does."""
    known = _known(board, name)
    if known is not None:  # all_time and fixed windows are opened when the board is created
        return known if known.holds(instant_us) else None
    if name not in PERIODIC:  # a fixed window that expired
        return None
    bounds = board.calendar.window_at(name, instant_us)
    if bounds is None:
        return None
    known = _known(board, bounds.id)
    if known is not None and known.holds(instant_us):
        return known
    return _beside_known(board, bounds, instant_us)


def _beside_known(
    board: Board, bounds: Bounds, instant_us: int
) -> Window | ClosedWindow | Bounds | None:
    """Fit a window between the neighbours that were opened, perhaps by other zone data."""
    calendar = board.calendar
    for neighbour in (calendar.previous(bounds), calendar.following(bounds)):
        known = _known(board, neighbour.id) if neighbour is not None else None
        if known is not None and known.holds(instant_us):
            return known
    known = _known(board, bounds.id)
    if known is not None:
        # The name is taken by a window that does not reach this far: the next one's begins here.
        later = known.end_us is not None and known.end_us <= instant_us
        moved = calendar.following(bounds) if later else calendar.previous(bounds)
        if moved is None or _known(board, moved.id) is not None:
            return None
        bounds = moved
    before, after = calendar.previous(bounds), calendar.following(bounds)
    known_before = _known(board, before.id) if before is not None else None
    known_after = _known(board, after.id) if after is not None else None
    start_us = known_before.end_us if known_before is not None else bounds.start_us
    end_us = known_after.start_us if known_after is not None else bounds.end_us
    return bounds._replace(start_us=start_us, end_us=end_us)


def find_window(board: Board, period: str | None, now_us: int) -> Window | ClosedWindow | Empty:
    """Find the window that a query means; the definition's first period where it names none.

    Errors: Refusal period_not_found, period_expired.
    """
    text = period_name(board.definition.periods[0]) if period is None else period
    kind, colon, which = text.partition(":")
    if kind not in map(period_name, board.definition.periods):
        raise Refusal("period_not_found", f"the board has no window {text!r}")
    known = _known(board, text)
    if known is not None:
        return known
    bounds = _named(board, kind, which if colon else None, now_us)
    if isinstance(bounds, (Window, ClosedWindow)):
        return bounds
    if bounds is None:
        raise Refusal("period_not_found", f"{text!r} begins no window of the board")
    assert bounds.end_us is not None
    if bounds.end_us <= board.expired_until_us.get(kind, bounds.end_us - 1):
        raise Refusal("period_expired", f"{bounds.id} is no longer kept")
    return Empty(bounds, _is_over(board, bounds, now_us))


def _named(
    board: Board, kind: str, which: str | None, now_us: int
) -> Window | ClosedWindow | Bounds | None:
    """Find a window of a kind: the current one, the one before it, or that of a date."""
    if kind not in PERIODIC:
        return _expired_fixed(board, kind) if which is None else None
    if which is not None and which != "previous":
        return board.calendar.window_named(kind, which)
    current = _window_of(board, kind, now_us)
    if which is None or current is None:
        return current
    if current.start_us is None:
        return None
    return _window_of(board, kind, current.start_us - 1)


def _expired_fixed(board: Board, name: str) -> Bounds | None:
    """Give the bounds of a fixed window that is known no more, because it expired."""
    end_us = board.expired_until_us.get(name)
    return None if end_us is None else Bounds(name, name, None, end_us)


def belongs_to(window: str, period: str) -> bool:
    """Tell whether a window is the one that a query's `period` means, or once was."""
    kind = kind_of(window)
    return period in (window, kind, f"{kind}:previous")
