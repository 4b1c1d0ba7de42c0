"""What is answered from a board's log: a member's events, and the records of moderation.

Pure: the shell reads the log, perhaps in a thread. Here is where a page begins, and how it looks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from actors.answers import Action, AuditAnswer, AuditItem, HistoryAnswer, HistoryItem
from actors.board import Board
from actors.cursor import read_sequence, write_sequence
from actors.errors import Refusal
from actors.exact import format_time
from actors.questions import Audit, History
from actors.submission import check_member
from actors.views import show_score
from persistence.errors import DamagedError
from persistence.records import Event, Record, RulingRecord
from persistence.rulings import (
    DisputeOpened,
    DisputeSettled,
    ErasureFinished,
    EventVoided,
    MemberErased,
    MemberHidden,
    MemberRemoved,
    MemberShown,
    ProfileSet,
)

_AUDIT = "audit"

_ACTIONS: dict[type, Action] = {
    EventVoided: "void",
    MemberHidden: "hide",
    MemberShown: "unhide",
    MemberRemoved: "remove",
    ProfileSet: "profile",
    DisputeOpened: "dispute",
    MemberErased: "erase",
    ErasureFinished: "erased",
}


class Walk(NamedTuple):
    """Events to read: `limit` of a member's, from that with `sequence` on to earlier ones."""

    sequence: int
    limit: int


def begin_history(board: Board, question: History) -> Walk:
    """Find where a page of a member's events begins; one more is read, to know what follows.

    Errors: Refusal member_not_found, invalid_cursor.
    """
    member = check_member(question.member)
    slot = board.members.find(member)
    if slot < 0:
        raise Refusal("member_not_found", f"{question.member!r} never had an event on the board")
    head = board.members.head(slot)
    if question.after is not None:
        head = read_sequence(board, _history(question), question.after)
    return Walk(head, question.limit + 1)


def answer_history(board: Board, question: History, events: Sequence[Event]) -> HistoryAnswer:
    """Make the page of a member's events that were read from its beginning.

    Errors: DamagedError for what cannot have been submitted.
    """
    page = events[: question.limit]
    following = None
    if len(events) > len(page):
        following = write_sequence(board, _history(question), events[len(page)].sequence)
    return HistoryAnswer(
        board=board.identity.board,
        sequence=board.sequence,
        member=question.member,
        events=[_event(board, event, question.packed) for event in page],
        next=following,
    )


def _history(question: History) -> str:
    return f"history {question.member}"


def _event(board: Board, event: Event, packed: bool) -> HistoryItem:
    try:
        return HistoryItem(
            sequence=event.sequence,
            value=show_score(board, event.values, packed),
            occurred_at=format_time(event.occurred_at_us),
            received_at=format_time(event.received_at_us),
            source=event.source,
            idempotency_key=key_text(event),
            voided=not board.rulings.counts(event.member, event.sequence),
        )
    except ValueError as error:
        # Bytes that are no text and times of no year never went in; its record was not verified.
        raise DamagedError(f"sequence {event.sequence}: {error}") from error


def key_text(event: Event) -> str:
    """Show an event's key; of one that is a hash by now, the hash in hex."""
    key = event.idempotency_key
    return key.hex() if event.key_hashed else key.decode()


def begin_audit(board: Board, question: Audit) -> list[int]:
    """List the sequences of the records of a page, newest first. Errors: Refusal."""
    records = board.rulings.records
    end = len(records)
    if question.after is not None:
        end = bisect_left(records, read_sequence(board, _AUDIT, question.after))
    return list(reversed(records[max(end - question.limit, 0) : end]))


def answer_audit(board: Board, records: Sequence[Record]) -> AuditAnswer:
    """Make the page of moderation whose records were read."""
    items = [audit_item(record) for record in records if isinstance(record, RulingRecord)]
    following = None
    if items and items[-1].sequence > board.rulings.records[0]:
        following = write_sequence(board, _AUDIT, items[-1].sequence)
    return AuditAnswer(
        board=board.identity.board, sequence=board.sequence, records=items, next=following
    )


def audit_item(record: RulingRecord) -> AuditItem:
    """Show a ruling as the audit does."""
    ruling = record.ruling
    dispute = None
    if isinstance(ruling, DisputeSettled):
        action: Action = "uphold" if ruling.upheld else "reject"
        dispute = str(ruling.dispute)
    else:
        action = _ACTIONS[type(ruling)]
        if isinstance(ruling, DisputeOpened):
            dispute = str(record.first_sequence)
    event = ruling.sequence if isinstance(ruling, EventVoided | DisputeOpened) else None
    return AuditItem(
        sequence=record.first_sequence,
        at=format_time(record.recorded_at_us),
        action=action,
        actor=record.actor,
        reason=record.reason,
        key=record.key,
        member=ruling.member.decode(),
        event_sequence=event,
        dispute=dispute,
    )
