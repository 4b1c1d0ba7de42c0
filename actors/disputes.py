"""Disputes as answers show them: one, and the list of a board's, newest first.

Complexity: O(disputes) a page.
"""

from __future__ import annotations

from actors.answers import DisputeAnswer, DisputeItem, DisputesAnswer
from actors.board import Board
from actors.cursor import read_sequence, write_sequence
from actors.exact import format_time
from actors.questions import Disputes
from actors.rulings import Dispute
from actors.sealed import Sealed
from actors.windows import Empty, find_window


def list_disputes(board: Board, _sealed: Sealed, question: Disputes) -> DisputesAnswer:
    """Answer a page of the disputes. Errors: Refusal."""
    window = None
    if question.period is not None:
        found = find_window(board, question.period, question.now_us)
        window = found.bounds.id if isinstance(found, Empty) else found.id
    query = f"disputes {question.status} {window}"
    listed = [
        (opened, dispute)
        for opened, dispute in sorted(board.rulings.disputes.items(), reverse=True)
        if question.status in (None, dispute.status) and window in (None, *dispute.windows)
    ]
    count = len(listed)
    if question.after is not None:
        before = read_sequence(board, query, question.after)
        listed = [(opened, dispute) for opened, dispute in listed if opened < before]
    page = listed[: question.limit]
    following = write_sequence(board, query, page[-1][0]) if len(page) < len(listed) else None
    return DisputesAnswer(
        board=board.identity.board,
        sequence=board.sequence,
        disputes=[show_dispute(opened, dispute) for opened, dispute in page],
        count=count,
        next=following,
    )


def show_dispute(opened: int, dispute: Dispute) -> DisputeItem:
    """Make the item of a dispute; opened: the sequence of the record that opened it, its id."""
    settled_at_us = dispute.settled_at_us
    return DisputeItem(
        id=str(opened),
        status=dispute.status,  # type: ignore[arg-type]  # one of the three
        event_sequence=dispute.sequence,
        member=dispute.member.decode(),
        windows=list(dispute.windows),
        reason=dispute.reason,
        opened_by=dispute.opened_by,
        opened_at=format_time(dispute.opened_at_us),
        note=dispute.note,
        actor=dispute.actor,
        settled_at=None if settled_at_us is None else format_time(settled_at_us),
    )


def answer_dispute(board: Board, opened: int, sequence: int) -> DisputeAnswer:
    """Answer for a dispute that the record with `sequence` opened or settled."""
    dispute = board.rulings.disputes.get(opened)
    assert dispute is not None
    item = show_dispute(opened, dispute)
    fields = {name: getattr(item, name) for name in item.__struct_fields__}
    return DisputeAnswer(**fields, board=board.identity.board, sequence=sequence)
