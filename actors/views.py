"""A window as a query sees it: its entries, its ranks, and how both look in an answer.

Owns how an entry, a page, a rank and a score look. Nothing here changes the board; each costs
O(log members + entries). The questions themselves are in `actors.queries`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from actors.answers import Entry, Number, Period, Score, Standing
from actors.board import Board
from actors.closed_window import ClosedWindow
from actors.counting import Window
from actors.cursor import Place
from actors.definition import render_number
from actors.errors import Refusal, invalid_field
from actors.exact import (
    NotANumberError,
    PrecisionError,
    RangeError,
    format_time,
    parse_decimal,
)
from actors.questions import WindowQuestion
from actors.sealed import NotAtHandError, Sealed
from actors.submission import check_member
from actors.windows import find_window


class View(NamedTuple):
    """A window as an answer shows it; window is None where it never held an event."""

    period: Period
    window: Window | None

    @property
    def size(self) -> int:
        """How many members stand in it."""
        return 0 if self.window is None else len(self.window.standings)


def standing_of(board: Board, window: Window, slot: int, improved: bool, packed: bool) -> Standing:
    """Make a standing member's place in one window."""
    standings = window.standings
    score = standings.score(slot)
    return Standing(
        period=window.id,
        score=show_score(board, score, packed),
        rank=rank_at(board, window, standings.index(slot), score),
        improved=improved,
    )


def show_score(board: Board, score: tuple[int, ...], packed: bool) -> Score:
    """Make the number of a score, or the list of numbers of one with several keys."""
    keys = board.definition.score
    if len(score) == 1:
        return _number(score[0], keys[0].decimals, packed)
    return [_number(cell, key.decimals, packed) for cell, key in zip(score, keys, strict=True)]


def _number(scaled: int, decimals: int, packed: bool) -> Number:
    # Raw text is a number to whoever reads the JSON.
    return render_number(scaled, decimals, packed)  # type: ignore[return-value]


def view_of(board: Board, sealed: Sealed, question: WindowQuestion, period: str | None) -> View:
    """Find the window that a question is about, and its standings."""
    found = find_window(board, period, question.now_us)
    if isinstance(found, ClosedWindow):
        revision = revision_of(found, question)
        window = sealed.standings(found.id, revision)
        if window is None:
            raise NotAtHandError([(found.id, revision)], standings=True)
        return View(show_period(found.id, found.start_us, found.end_us, revision), window)
    if question.revision is not None:
        raise Refusal("period_not_found", f"the window has no revision {question.revision}")
    if isinstance(found, Window):
        return View(show_period(found.id, found.start_us, found.end_us, None), found)
    # What was never opened has no revision, since no record closed it, and is settled by none.
    bounds = found.bounds
    shown = show_period(bounds.id, bounds.start_us, bounds.end_us, None)
    return View(msgspec.structs.replace(shown, closed=found.closed), None)


def revision_of(closed: ClosedWindow, question: WindowQuestion) -> int:
    """Find the revision of a closed window that a question means; the newest where it names none.

    Errors: Refusal period_not_found, period_expired.
    """
    revision = closed.revision if question.revision is None else question.revision
    if not 1 <= revision <= closed.revision:
        raise Refusal("period_not_found", f"the window has no revision {revision}")
    if not closed.revisions[revision - 1].digest:
        raise Refusal("period_expired", f"revision {revision} is gone: it named an erased member")
    return revision


def show_period(
    window: str, start_us: int | None, end_us: int | None, revision: int | None
) -> Period:
    """Describe a window; one with a revision is closed."""
    return Period(window, _time(start_us), _time(end_us), revision is not None, revision)


def about(board: Board, view: View) -> dict[str, Any]:
    """Make the fields that every answer about a window has."""
    return {
        "board": board.identity.board,
        "period": view.period,
        "members": view.size,
        "sequence": board.sequence,
    }


def _time(instant_us: int | None) -> str | None:
    return None if instant_us is None else format_time(instant_us)


def rank_at(board: Board, window: Window, index: int, score: tuple[int, ...]) -> int:
    """Give the rank of an entry, or of one that would stand at `index` (0-based) with `score`."""
    match board.definition.rank_method:
        case "ordinal":
            return index + 1
        case "competition":
            return window.standings.better(score) + 1
        case "dense":
            return window.standings.better_distinct(score) + 1


def entries(board: Board, view: View, start: int, count: int, packed: bool) -> list[Entry]:
    """List up to `count` entries from index `start` on."""
    return [entry for entry, _ in page(board, view, start, count, packed)]


def page(
    board: Board, view: View, start: int, count: int, packed: bool
) -> Iterator[tuple[Entry, Place]]:
    """Yield the entries from index `start` on, each with its place in the total order.

    The first one's rank is looked up; the ranks of the others follow from their predecessors'.
    """
    if view.window is None:
        return
    method = board.definition.rank_method
    rank, previous = 0, None
    for offset, place in enumerate(view.window.standings.page(start, count)):
        name, score, achieved_at_us = place
        position = start + offset + 1
        if previous is None:
            rank = rank_at(board, view.window, start, score)
        elif method == "ordinal" or (method == "competition" and score != previous):
            rank = position
        elif method == "dense" and score != previous:
            rank += 1
        previous = score
        entry = Entry(
            rank=rank,
            position=position,
            member=name.decode(),
            score=show_score(board, score, packed),
            achieved_at=format_time(achieved_at_us),
            profile=show_profile(board, name, packed),
        )
        yield entry, Place(score, achieved_at_us, name)


def show_profile(board: Board, name: bytes, packed: bool) -> Any:
    """Give a member's profile as an answer shows it, unset where it has none."""
    profile = board.rulings.profiles.get(name)
    if profile is None:
        return msgspec.UNSET
    return msgspec.json.decode(profile) if packed else msgspec.Raw(profile)


def slot_of(view: View, member: str, field: str = "member") -> int:
    """Find the slot of a member who stands in the window; -1 where none of that name does."""
    name = check_member(member, field)
    if view.window is None:
        return -1
    slot = view.window.members.find(name)
    return slot if slot >= 0 and slot in view.window.standings else -1


def index_of(view: View, member: str) -> int:
    """Find the index of a member who stands in the window. Errors: Refusal member_not_found."""
    slot = slot_of(view, member)
    if view.window is None or slot < 0:
        raise Refusal("member_not_found", f"{member!r} does not stand in {view.period.id}")
    return view.window.standings.index(slot)


def read_score(board: Board, text: str) -> tuple[int, ...]:
    """Read a score of a query string: its keys joined by commas. Errors: Refusal."""
    decimals = board.definition.decimals
    texts = text.split(",")
    if len(texts) != len(decimals):
        raise invalid_field("score", f"{len(decimals)} numbers joined by commas are expected")
    return tuple(
        read_number("score", part, places) for part, places in zip(texts, decimals, strict=True)
    )


def read_number(field: str, text: str, decimals: int) -> int:
    """Read a number of a query string, scaled by its decimals. Errors: Refusal."""
    try:
        return parse_decimal(text.encode(), decimals)
    except NotANumberError as error:
        raise invalid_field(field, str(error)) from None
    except PrecisionError as error:
        raise Refusal("value_precision", f"{field}: {error}", field=field) from None
    except RangeError as error:
        raise Refusal("value_out_of_range", f"{field}: {error}", field=field) from None
