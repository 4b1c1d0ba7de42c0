"""The answers to submitted events, made from the board after it has applied their record."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from actors.answers import BatchAnswer, EventAnswer, Result
from actors.board import Board
from actors.counting import Window
from actors.errors import Refusal
from actors.event_results import write_results
from actors.event_rows import DUPLICATE
from actors.intake import Plan
from actors.questions import Reply
from actors.submission import Submission
from actors.views import standing_of
from actors.windows import counting_windows

_ENCODE = (msgspec.json.Encoder().encode, msgspec.msgpack.Encoder().encode)


def settle(board: Board, planned: Plan, improved: Mapping[str, bytes]) -> list[Reply]:
    """Make one reply per submission, after the board has applied the plan's record.

    improved: what `Board.apply` returned. Complexity: O(events + single ones x windows).
    """
    replies = []
    for submission, start, end in planned.parts():
        if submission.batch:
            packed = submission.answer_packed
            replies.append(Reply(_batch_answer(board, planned, start, end, packed=packed)))
            continue
        refusal = planned.rows.refusals.get(start)
        if refusal is None:
            replies.append(Reply(_event_answer(board, planned, submission, start, improved)))
        else:
            replies.append(Reply(b"", refusal.code, refusal.detail, refusal.extra))
    return replies


def _event_answer(
    board: Board, planned: Plan, submission: Submission, row: int, improved: Mapping[str, bytes]
) -> bytes:
    rows, span, packed = planned.rows, planned.span, submission.answer_packed
    slot = board.members.find(rows.member(row))
    sequence, occurred_at_us = rows.sequences[row], rows.occurred_at_us[row]
    duplicate = rows.statuses[row] == DUPLICATE
    windows = (
        span.windows
        if span is not None and span.holds(occurred_at_us)
        else counting_windows(board, occurred_at_us, submission.received_at_us)
    )
    first_sequence = planned.record.first_sequence if planned.record is not None else 0
    standings = []
    for window in windows:
        if isinstance(window, Window) and slot in window.standings:
            better = not duplicate and bool(improved[window.id][sequence - first_sequence])
            standings.append(standing_of(board, window, slot, better, packed))
    status = "duplicate" if duplicate else "applied"
    return _ENCODE[packed](EventAnswer(status, sequence, standings))


def _batch_answer(board: Board, planned: Plan, start: int, end: int, *, packed: bool) -> bytes:
    encode, tally = _ENCODE[packed], planned.tally(start, end)
    rejected = {row: encode(_rejected(refusal)) for row, refusal in tally.refusals.items()}
    results = write_results(planned.rows, start, end, rejected, packed)
    return encode(
        BatchAnswer(
            msgspec.Raw(results),  # type: ignore[arg-type]  # the list, written already
            tally.applied,
            tally.duplicates,
            len(rejected),
            tally.last_sequence or board.sequence,
        )
    )


def _rejected(refusal: Refusal) -> Result:
    field, sequence = refusal.extra.get("field"), refusal.extra.get("sequence")
    return Result(
        "rejected",
        sequence=int(sequence) if sequence is not None else None,
        code=refusal.code,
        detail=refusal.detail,
        field=str(field) if field is not None else None,
    )
