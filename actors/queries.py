"""The contract's questions to a board, answered from its ordered structures.

Owns how an entry, a page and a rank look. Nothing here changes the board; each query costs
O(log members + entries answered). It must not know how questions arrive or answers leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from actors.answers import (
    AroundAnswer,
    DigestAnswer,
    Entry,
    MemberAnswer,
    Number,
    Period,
    RankAnswer,
    Score,
    Standing,
    TopAnswer,
)
from actors.board import Board, ClosedWindow
from actors.counting import Window
from actors.cursor import Cursor, Place, invalid_cursor, read_cursor, write_cursor
from actors.definition import render_number
from actors.errors import Refusal, invalid_field
from actors.exact import (
    NotANumberError,
    PrecisionError,
    RangeError,
    format_time,
    parse_decimal,
)
from actors.period_list import list_periods
from actors.questions import (
    Around,
    Describe,
    Digest,
    Member,
    Periods,
    Question,
    Rank,
    Top,
    WindowQuestion,
)
from actors.sealed import NotAtHandError, Sealed
from actors.submission import check_member
from actors.windows import Empty, belongs_to, find_window, period_name

# What a window without members digests to, as the sum of none.
NO_STANDINGS_DIGEST = "0" * 32

_ENCODE = (msgspec.json.Encoder().encode, msgspec.msgpack.Encoder().encode)


class View(NamedTuple):
    """A window as an answer shows it; window is None where it never held an event."""

    period: Period
    window: Window | None

    @property
    def size(self) -> int:
        """How many members stand in it."""
        return 0 if self.window is None else len(self.window.standings)


def answer(board: Board, sealed: Sealed, question: Question) -> bytes:
    """Answer one question, encoded as it was asked for.

    Errors: Refusal with the contract's codes; NotAtHandError; KeyError for a question that is no
    query.
    """
    return _ENCODE[question.packed](_QUERIES[type(question)](board, sealed, question))


def member_standing(
    board: Board, window: Window, slot: int, improved: bool, packed: bool
) -> Standing:
    """Make a standing member's place in one window."""
    standings = window.standings
    score = standings.score(slot)
    return Standing(
        period=window.id,
        score=_render(board, score, packed),
        rank=_rank(board, window, standings.index(slot), score),
        improved=improved,
    )


def _render(board: Board, score: tuple[int, ...], packed: bool) -> Score:
    decimals = board.definition.decimals
    if len(score) == 1:
        return _number(score[0], decimals[0], packed)
    return [_number(*cell, packed) for cell in zip(score, decimals, strict=True)]


def _number(scaled: int, decimals: int, packed: bool) -> Number:
    # Raw text is a number to whoever reads the JSON.
    return render_number(scaled, decimals, packed)  # type: ignore[return-value]


def _view(board: Board, sealed: Sealed, question: WindowQuestion, period: str | None) -> View:
    """Find the window that a question is about, and its standings."""
    found = find_window(board, period, question.now_us)
    revision = question.revision
    known = found.revision if isinstance(found, ClosedWindow) else None
    if revision is not None and revision != known:
        raise Refusal("period_not_found", f"the window has no revision {revision}")
    if isinstance(found, Window):
        return View(_period(found.id, found.start_us, found.end_us, None), found)
    if isinstance(found, Empty):
        # What was never opened has no revision, since no record closed it, and is settled by none.
        bounds = found.bounds
        shown = _period(bounds.id, bounds.start_us, bounds.end_us, None)
        return View(msgspec.structs.replace(shown, closed=found.closed), None)
    window = sealed.standings(found.id)
    if window is None:
        raise NotAtHandError([found.id], standings=True)
    return View(_period(found.id, found.start_us, found.end_us, found.revision), window)


def _period(window: str, start_us: int | None, end_us: int | None, revision: int | None) -> Period:
    """Describe a window; one with a revision is closed."""
    return Period(window, _time(start_us), _time(end_us), revision is not None, revision)


def _about(board: Board, view: View) -> dict[str, Any]:
    """Make the fields that every answer about a window has."""
    return {
        "board": board.identity.board,
        "period": view.period,
        "members": view.size,
        "sequence": board.sequence,
    }


def _time(instant_us: int | None) -> str | None:
    return None if instant_us is None else format_time(instant_us)


def _rank(board: Board, window: Window, index: int, score: tuple[int, ...]) -> int:
    """Give the rank of an entry, or of one that would stand at `index` (0-based) with `score`."""
    match board.definition.rank_method:
        case "ordinal":
            return index + 1
        case "competition":
            return window.standings.better(score) + 1
        case "dense":
            return window.standings.better_distinct(score) + 1


def _entries(board: Board, view: View, start: int, count: int, packed: bool) -> list[Entry]:
    return [entry for entry, _ in _page(board, view, start, count, packed)]


def _page(
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
            rank = _rank(board, view.window, start, score)
        elif method == "ordinal" or (method == "competition" and score != previous):
            rank = position
        elif method == "dense" and score != previous:
            rank += 1
        previous = score
        entry = Entry(
            rank=rank,
            position=position,
            member=name.decode(),
            score=_render(board, score, packed),
            achieved_at=format_time(achieved_at_us),
        )
        yield entry, Place(score, achieved_at_us, name)


def _index_of(view: View, member: str) -> int:
    """Find the index of a member who stands in the window."""
    name = check_member(member)
    if view.window is not None:
        slot = view.window.members.find(name)
        if slot >= 0 and slot in view.window.standings:
            return view.window.standings.index(slot)
    raise Refusal("member_not_found", f"{member!r} does not stand in {view.period.id}")


def _score(board: Board, text: str) -> tuple[int, ...]:
    """Read a score of a query string: its keys joined by commas."""
    decimals = board.definition.decimals
    texts = text.split(",")
    if len(texts) != len(decimals):
        raise invalid_field("score", f"{len(decimals)} numbers joined by commas are expected")
    try:
        return tuple(
            parse_decimal(part.encode(), places)
            for part, places in zip(texts, decimals, strict=True)
        )
    except NotANumberError as error:
        raise invalid_field("score", str(error)) from None
    except PrecisionError as error:
        raise Refusal("value_precision", f"score: {error}", field="score") from None
    except RangeError as error:
        raise Refusal("value_out_of_range", f"score: {error}", field="score") from None


def _describe(board: Board, _sealed: Sealed, question: Describe) -> dict[str, Any]:
    return describe(board, question.packed)


def describe(board: Board, packed: bool) -> dict[str, Any]:
    """Make the answer about a board itself: its definition, sequence and members per window."""
    return {
        "board": board.identity.board,
        "created_at": format_time(board.identity.created_at_us),
        "sequence": board.sequence,
        "members": {w.id: len(w.standings) for w in board.windows.values()},
        **board.definition.to_answer(packed),
    }


def _top(board: Board, sealed: Sealed, question: Top) -> TopAnswer:
    if question.after is None:
        view, start = _view(board, sealed, question, question.period), 0
    else:
        cursor = read_cursor(board, "top", question.after)
        default = period_name(board.definition.periods[0])
        period = default if question.period is None else question.period
        if not belongs_to(cursor.window, period):
            raise invalid_cursor()
        view = _view(board, sealed, question, cursor.window)
        start = 0 if view.window is None else view.window.standings.seek(*cursor.place)
    page = list(_page(board, view, start, question.limit, question.packed))
    following = None
    if page and start + len(page) < view.size:
        following = write_cursor(board, "top", Cursor(view.period.id, page[-1][1]))
    return TopAnswer(**_about(board, view), entries=[entry for entry, _ in page], next=following)


def _member(board: Board, sealed: Sealed, question: Member) -> MemberAnswer:
    view = _view(board, sealed, question, question.period)
    index = _index_of(view, question.member)
    (entry,) = _entries(board, view, index, 1, question.packed)
    return MemberAnswer(
        **_about(board, view),
        entry=entry,
        percentile=100 * (view.size - entry.position + 1) / view.size,
    )


def _around(board: Board, sealed: Sealed, question: Around) -> AroundAnswer:
    view = _view(board, sealed, question, question.period)
    if question.member is not None:
        centre = _index_of(view, question.member)
    elif question.score is not None:
        centre = _place(view, _score(board, question.score))
    else:
        assert question.position is not None
        centre = question.position - 1
    centre = max(0, min(centre, view.size - 1))
    count = question.above + question.below + 1
    start = max(0, min(centre - question.above, view.size - count))
    return AroundAnswer(
        **_about(board, view), entries=_entries(board, view, start, count, question.packed)
    )


def _place(view: View, score: tuple[int, ...]) -> int:
    """Find the index that a new member with `score` would take."""
    return 0 if view.window is None else view.window.standings.place(score)


def _rank_of(board: Board, sealed: Sealed, question: Rank) -> RankAnswer:
    view = _view(board, sealed, question, question.period)
    score = _score(board, question.score)
    index = _place(view, score)
    rank = 1 if view.window is None else _rank(board, view.window, index, score)
    return RankAnswer(**_about(board, view), rank=rank, position=index + 1)


def _digest(board: Board, sealed: Sealed, question: Digest) -> DigestAnswer:
    found = find_window(board, question.period, question.now_us)
    if not isinstance(found, ClosedWindow):
        view = _view(board, sealed, question, question.period)
        digest = NO_STANDINGS_DIGEST
        if view.window is not None:
            digest = view.window.standings.digest.hex()
        return DigestAnswer(**_about(board, view), digest=digest)
    # The digest that was published at closing is at hand without the standings.
    published = sealed.digest(found.id)
    if published is None:
        raise NotAtHandError([found.id], standings=False)
    if question.revision not in (None, found.revision):
        raise Refusal("period_not_found", f"the window has no revision {question.revision}")
    period = _period(found.id, found.start_us, found.end_us, found.revision)
    about = _about(board, View(period, None)) | {"members": found.members}
    return DigestAnswer(**about, digest=published)


_QUERIES: dict[type[Question], Callable[[Board, Sealed, Any], Any]] = {
    Describe: _describe,
    Top: _top,
    Member: _member,
    Around: _around,
    Rank: _rank_of,
    Digest: _digest,
    Periods: list_periods,
}
