"""The contract's questions to a board, each answered in O(log members + entries answered).

Nothing here changes the board. It must not know how questions arrive or answers leave; how a
window, an entry and a rank look is in `actors.views`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from actors.answers import (
    AroundAnswer,
    Band,
    BandsAnswer,
    DigestAnswer,
    Entry,
    LocalEntry,
    LookupAnswer,
    MemberAnswer,
    RangeAnswer,
    RankAnswer,
    TopAnswer,
)
from actors.board import Board
from actors.closed_window import ClosedWindow
from actors.cursor import Cursor, invalid_cursor, read_cursor, write_cursor
from actors.definition import render_number
from actors.disputes import list_disputes
from actors.errors import invalid_field
from actors.exact import format_time, parse_decimal
from actors.period_list import list_periods
from actors.questions import (
    Around,
    Bands,
    Describe,
    Digest,
    Disputes,
    Lookup,
    Member,
    Periods,
    Question,
    Range,
    Rank,
    Top,
)
from actors.sealed import NotAtHandError, Sealed
from actors.views import (
    View,
    about,
    entries,
    index_of,
    page,
    rank_at,
    read_number,
    read_score,
    revision_of,
    show_period,
    show_profile,
    show_score,
    slot_of,
    view_of,
)
from actors.windows import belongs_to, find_window, period_name

LOOKUP_MEMBERS_MAX = 1_000
PERCENTILES_MAX = 100
PERCENTILE_DECIMALS = 9

# What a window without members digests to, as the sum of none.
NO_STANDINGS_DIGEST = "0" * 32

_ENCODE = (msgspec.json.Encoder().encode, msgspec.msgpack.Encoder().encode)


def answer(board: Board, sealed: Sealed, question: Question) -> bytes:
    """Answer one question, encoded as it was asked for.

    Errors: Refusal with the contract's codes; NotAtHandError; KeyError for a question that is no
    query.
    """
    return _ENCODE[question.packed](_QUERIES[type(question)](board, sealed, question))


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
    view, start = _continued(board, sealed, question, "top")
    found, following = _page(board, view, question, "top", start, view.size)
    return TopAnswer(**about(board, view), entries=found, next=following)


def _continued(board: Board, sealed: Sealed, question: Top | Range, query: str) -> tuple[View, int]:
    """Find the window and the index at which a page begins.

    A cursor means the window that it was written for, also when `daily` has moved on to the next.
    """
    if question.after is None:
        return view_of(board, sealed, question, question.period), 0
    cursor = read_cursor(board, query, question.after)
    default = period_name(board.definition.periods[0])
    if not belongs_to(cursor.window, default if question.period is None else question.period):
        raise invalid_cursor()
    view = view_of(board, sealed, question, cursor.window)
    return view, 0 if view.window is None else view.window.standings.seek(*cursor.place)


def _page(
    board: Board, view: View, question: Top | Range, query: str, start: int, end: int
) -> tuple[list[Entry], str | None]:
    """Make a page from index `start` on, of what ends before index `end`, and its cursor."""
    count = max(min(question.limit, end - start), 0)
    found = list(page(board, view, start, count, question.packed))
    following = None
    if found and start + len(found) < end:
        following = write_cursor(board, query, Cursor(view.period.id, found[-1][1]))
    return [entry for entry, _ in found], following


def _range(board: Board, sealed: Sealed, question: Range) -> RangeAnswer:
    key, decimals = board.definition.score[0], board.definition.decimals[0]
    low, high = (
        None if text is None else read_number(name, text, decimals)
        for name, text in (("min", question.minimum), ("max", question.maximum))
    )
    query = f"range {low} {high}"
    view, start = _continued(board, sealed, question, query)
    if key.direction == "desc":
        first, after_last = high, None if low is None else low - 1
    else:
        first, after_last = low, None if high is None else high + 1
    begin = 0 if first is None else _first_with_key(board, view, first)
    end = view.size if after_last is None else _first_with_key(board, view, after_last)
    found, following = _page(board, view, question, query, max(start, begin), end)
    return RangeAnswer(
        **about(board, view), entries=found, count=max(end - begin, 0), next=following
    )


def _first_with_key(board: Board, view: View, key: int) -> int:
    """Find the index of the first entry whose first score key is `key` or worse."""
    if view.window is None:
        return 0
    # No score has keys as good as these, so what is better than all of it has a better first key.
    rest = (2**63 - 1 if way == "desc" else -(2**63) for way in board.definition.directions[1:])
    return view.window.standings.better((key, *rest))


def _bands(board: Board, sealed: Sealed, question: Bands) -> BandsAnswer:
    view = view_of(board, sealed, question, question.period)
    texts = question.percentiles.split(",")
    if len(texts) > PERCENTILES_MAX:
        raise invalid_field("percentiles", f"at most {PERCENTILES_MAX} at once")
    bands = [_band(board, view, text, question.packed) for text in texts]
    return BandsAnswer(**about(board, view), bands=bands)


def _band(board: Board, view: View, text: str, packed: bool) -> Band:
    whole = 100 * 10**PERCENTILE_DECIMALS
    try:
        scaled = parse_decimal(text.encode(), PERCENTILE_DECIMALS)
    except ValueError as error:
        raise invalid_field("percentiles", str(error)) from None
    if not 0 < scaled <= whole:
        raise invalid_field("percentiles", "each is above 0 and at most 100")
    percentile = render_number(scaled, PERCENTILE_DECIMALS, packed)
    if view.window is None or not view.size:
        return Band(percentile, None, None)  # type: ignore[arg-type]
    position = -(-scaled * view.size // whole)
    ((_, score, _),) = view.window.standings.page(position - 1, 1)
    return Band(percentile, position, show_score(board, score, packed))  # type: ignore[arg-type]


def _lookup(board: Board, sealed: Sealed, question: Lookup) -> LookupAnswer:
    if len(question.members) > LOOKUP_MEMBERS_MAX:
        raise invalid_field("members", f"at most {LOOKUP_MEMBERS_MAX} at once")
    view = view_of(board, sealed, question, question.period)
    standing, missing = [], []
    for member in dict.fromkeys(question.members):
        slot = slot_of(view, member, "members")
        if view.window is None or slot < 0:
            missing.append(member)
        else:
            standing.append((view.window.standings.index(slot), slot, member))
    found = _local_entries(board, view, sorted(standing), question.packed)
    return LookupAnswer(**about(board, view), entries=found, missing=missing)


def _local_entries(
    board: Board, view: View, standing: list[tuple[int, int, str]], packed: bool
) -> list[LocalEntry]:
    """Make the entries of members given by index, slot and name, in order of their indexes."""
    found: list[LocalEntry] = []
    method = board.definition.rank_method
    local_rank, rank, previous = 0, 0, None
    for place, (index, slot, member) in enumerate(standing, 1):
        assert view.window is not None
        score = view.window.standings.score(slot)
        if score != previous:
            local_rank = local_rank + 1 if method == "dense" else place
            rank = rank_at(board, view.window, index, score)
        elif method == "ordinal":
            local_rank, rank = place, index + 1
        previous = score
        found.append(
            LocalEntry(
                rank=rank,
                position=index + 1,
                member=member,
                score=show_score(board, score, packed),
                achieved_at=format_time(view.window.standings.achieved_at(slot)),
                profile=show_profile(board, member.encode(), packed),
                local_rank=local_rank,
            )
        )
    return found


def _member(board: Board, sealed: Sealed, question: Member) -> MemberAnswer:
    view = view_of(board, sealed, question, question.period)
    index = index_of(view, question.member)
    (entry,) = entries(board, view, index, 1, question.packed)
    return MemberAnswer(
        **about(board, view),
        entry=entry,
        percentile=100 * (view.size - entry.position + 1) / view.size,
    )


def _around(board: Board, sealed: Sealed, question: Around) -> AroundAnswer:
    view = view_of(board, sealed, question, question.period)
    if question.member is not None:
        centre = index_of(view, question.member)
    elif question.score is not None:
        centre = _place(view, read_score(board, question.score))
    else:
        assert question.position is not None
        centre = question.position - 1
    centre = max(0, min(centre, view.size - 1))
    count = question.above + question.below + 1
    start = max(0, min(centre - question.above, view.size - count))
    return AroundAnswer(
        **about(board, view), entries=entries(board, view, start, count, question.packed)
    )


def _place(view: View, score: tuple[int, ...]) -> int:
    """Find the index that a new member with `score` would take."""
    return 0 if view.window is None else view.window.standings.place(score)


def _rank_of(board: Board, sealed: Sealed, question: Rank) -> RankAnswer:
    view = view_of(board, sealed, question, question.period)
    score = read_score(board, question.score)
    index = _place(view, score)
    rank = 1 if view.window is None else rank_at(board, view.window, index, score)
    return RankAnswer(**about(board, view), rank=rank, position=index + 1)


def _digest(board: Board, sealed: Sealed, question: Digest) -> DigestAnswer:
    found = find_window(board, question.period, question.now_us)
    if not isinstance(found, ClosedWindow):
        view = view_of(board, sealed, question, question.period)
        digest = NO_STANDINGS_DIGEST if view.window is None else view.window.digest.hex()
        return DigestAnswer(**about(board, view), digest=digest)
    revision = revision_of(found, question)
    published = sealed.digest(found.id, revision)
    if published is None:
        raise NotAtHandError([(found.id, revision)], standings=False)
    if revision < found.revision and len(board.rulings.hidden):
        # Who of a former revision is hidden now is known from its standings only.
        shown = about(board, view_of(board, sealed, question, question.period))
        return DigestAnswer(**shown, digest=published)
    # The digest that was published is at hand without the standings.
    period = show_period(found.id, found.start_us, found.end_us, revision)
    newest = revision == found.revision
    members = found.shown if newest else found.revisions[revision - 1].members
    shown = about(board, View(period, None)) | {"members": members}
    return DigestAnswer(**shown, digest=published)


_QUERIES: dict[type[Question], Callable[[Board, Sealed, Any], Any]] = {
    Describe: _describe,
    Top: _top,
    Member: _member,
    Around: _around,
    Rank: _rank_of,
    Range: _range,
    Bands: _bands,
    Lookup: _lookup,
    Digest: _digest,
    Periods: list_periods,
    Disputes: list_disputes,
}
