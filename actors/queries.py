"""The contract's questions to a board, answered from its ordered structures.

Owns how an entry, a page and a rank look. Nothing here changes the board; each query costs
O(log members + entries answered). It must not know how questions arrive or answers leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

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
from actors.board import Board, Window
from actors.cursor import Place, read_cursor, write_cursor
from actors.definition import render_number
from actors.errors import Refusal, invalid_field
from actors.exact import (
    NotANumberError,
    PrecisionError,
    RangeError,
    format_time,
    parse_decimal,
)
from actors.questions import Around, Describe, Digest, Member, Question, Rank, Top
from actors.submission import check_member

_ENCODE = (msgspec.json.Encoder().encode, msgspec.msgpack.Encoder().encode)


def answer(board: Board, question: Question) -> bytes:
    """Answer one question, encoded as it was asked for.

    Errors: Refusal with the contract's codes; KeyError for a question that is no query.
    """
    return _ENCODE[question.packed](_QUERIES[type(question)](board, question))


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


def _window(board: Board, period: str | None) -> Window:
    """Find the window that a question names; the definition's first where it names none."""
    first = board.definition.periods[0]
    default = first if isinstance(first, str) else first.name
    window = board.windows.get(period or default)
    if window is None:
        raise Refusal("period_not_found", f"the board has no window {period!r}")
    return window


def _about(board: Board, window: Window) -> dict[str, Any]:
    """Make the fields that every answer about a window has."""
    return {
        "board": board.identity.board,
        "period": Period(window.id, _time(window.start_us), _time(window.end_us), False, None),
        "members": len(window.standings),
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


def _entries(board: Board, window: Window, start: int, count: int, packed: bool) -> list[Entry]:
    return [entry for entry, _ in _page(board, window, start, count, packed)]


def _page(
    board: Board, window: Window, start: int, count: int, packed: bool
) -> Iterator[tuple[Entry, Place]]:
    """Yield the entries from index `start` on, each with its place in the total order.

    The first one's rank is looked up; the ranks of the others follow from their predecessors'.
    """
    method = board.definition.rank_method
    rank, previous = 0, None
    for offset, place in enumerate(window.standings.page(start, count)):
        name, score, achieved_at_us = place
        position = start + offset + 1
        if previous is None:
            rank = _rank(board, window, start, score)
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


def _slot(board: Board, window: Window, member: str) -> int:
    slot = board.members.find(check_member(member))
    if slot < 0 or slot not in window.standings:
        raise Refusal("member_not_found", f"{member!r} does not stand in {window.id}")
    return slot


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


def _describe(board: Board, question: Describe) -> dict[str, Any]:
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


def _top(board: Board, question: Top) -> TopAnswer:
    window = _window(board, question.period)
    start = 0
    if question.after is not None:
        start = window.standings.seek(*read_cursor(board, "top", window.id, question.after))
    page = list(_page(board, window, start, question.limit, question.packed))
    following = None
    if start + len(page) < len(window.standings) and page:
        following = write_cursor(board, "top", window.id, page[-1][1])
    return TopAnswer(**_about(board, window), entries=[entry for entry, _ in page], next=following)


def _member(board: Board, question: Member) -> MemberAnswer:
    window = _window(board, question.period)
    index = window.standings.index(_slot(board, window, question.member))
    (entry,) = _entries(board, window, index, 1, question.packed)
    members = len(window.standings)
    return MemberAnswer(
        **_about(board, window),
        entry=entry,
        percentile=100 * (members - entry.position + 1) / members,
    )


def _around(board: Board, question: Around) -> AroundAnswer:
    window = _window(board, question.period)
    standings = window.standings
    if question.member is not None:
        centre = standings.index(_slot(board, window, question.member))
    elif question.score is not None:
        centre = standings.place(_score(board, question.score))
    else:
        assert question.position is not None
        centre = question.position - 1
    members = len(standings)
    centre = max(0, min(centre, members - 1))
    count = question.above + question.below + 1
    start = max(0, min(centre - question.above, members - count))
    return AroundAnswer(
        **_about(board, window),
        entries=_entries(board, window, start, count, question.packed),
    )


def _rank_of(board: Board, question: Rank) -> RankAnswer:
    window = _window(board, question.period)
    score = _score(board, question.score)
    index = window.standings.place(score)
    return RankAnswer(
        **_about(board, window), rank=_rank(board, window, index, score), position=index + 1
    )


def _digest(board: Board, question: Digest) -> DigestAnswer:
    window = _window(board, question.period)
    return DigestAnswer(**_about(board, window), digest=window.standings.digest.hex())


_QUERIES: dict[type[Question], Callable[[Board, Any], Any]] = {
    Describe: _describe,
    Top: _top,
    Member: _member,
    Around: _around,
    Rank: _rank_of,
    Digest: _digest,
}
