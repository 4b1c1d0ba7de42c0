"""Rulings against a board: what follows from one, as a record for the log.

Owns what a moderator's request means. Nothing here changes the board: a ruling is planned from its
state and the member's events, with the rows that follow from it; then the shell commits the record
and the board applies it. Each is idempotent: what holds already is answered with the sequence of
the record that made it so.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from actors.answers import DisputeAnswer, RulingAnswer
from actors.board import Board
from actors.closed_window import ClosedWindow
from actors.counting import Window
from actors.disputes import answer_dispute
from actors.errors import Refusal, invalid_field
from actors.forgetting import Forgetting
from actors.members import Members, siphash128
from actors.questions import (
    Erase,
    Hide,
    OpenDispute,
    Remove,
    SetProfile,
    SettleDispute,
    Verdict,
    Void,
)
from actors.rulings import OPEN, UPHELD, Dispute
from actors.standings import Standings
from actors.submission import check_member
from persistence.records import Event, Record, RulingRecord
from persistence.rulings import (
    AnyRuling,
    DisputeOpened,
    DisputeSettled,
    EventVoided,
    MemberErased,
    MemberHidden,
    MemberRemoved,
    MemberShown,
    Place,
    ProfileSet,
    Row,
    RowChange,
)

# No character sorts behind U+10FFFF: among exact equals, who was erased stands last.
PSEUDONYM_START = "\U0010ffff" + "erased"

_ENCODE = (msgspec.json.Encoder().encode, msgspec.msgpack.Encoder().encode)


class Log(NamedTuple):
    """What planning reads of the log.

    event_at: the event of a sequence, LookupError if it is none. events_of: a member's events, the
    newest first. mentions: whether any ruling so far is about a name, or holds it as a word.
    """

    event_at: Callable[[int], Event]
    events_of: Callable[[bytes], Iterator[Event]]
    mentions: Callable[[bytes], bool]


def plan_ruling(board: Board, log: Log, verdict: Verdict) -> RulingRecord | int:
    """Make the record of a ruling, or give the sequence of the one that makes it needless.

    Complexity: O(windows x log events + the member's events x kinds of windows). Errors: Refusal
    event_not_found, member_not_found, dispute_not_found, invalid_field, value_out_of_range where a
    total would leave 64 bits; the log's.
    """
    ruling = _PLANS[type(verdict)](board, log, verdict)
    if isinstance(ruling, int):
        return ruling
    record = RulingRecord(
        first_sequence=board.sequence + 1,
        recorded_at_us=verdict.now_us,
        actor=verdict.actor,
        reason=verdict.reason,
        key=verdict.key,
        ruling=ruling,
    )
    if isinstance(verdict, Erase):
        return _forgetting(board, check_member(verdict.member)).ruling(record)
    return record


def walked_member(board: Board, event_at: Callable[[int], Event], verdict: Verdict) -> bytes | None:
    """Tell whose events planning a verdict reads; None where it reads none. Errors: Refusal."""
    match verdict:
        case Hide():
            member = check_member(verdict.member)
            return member if verdict.hidden and member not in board.rulings.hidden else None
        case Remove() | Erase():
            return check_member(verdict.member)
        case Void() if verdict.sequence not in board.rulings.voided:
            return _event(event_at, verdict.sequence).member
        case SettleDispute(status=status) if status == UPHELD:
            return dispute_of(board, verdict.dispute).member
    return None


def _void(board: Board, log: Log, verdict: Void) -> AnyRuling | int:
    event = _event(log.event_at, verdict.sequence)
    voided = board.rulings.voided.get(event.sequence)
    if voided is not None:
        return voided
    return EventVoided(event.member, event.sequence, _without(board, log, event))


def _hide(board: Board, log: Log, verdict: Hide) -> AnyRuling | int:
    member = check_member(verdict.member)
    hidden = board.rulings.hidden.get(member)
    if not verdict.hidden:
        return board.sequence if hidden is None else MemberShown(member)
    if hidden is not None:
        return hidden
    timeline = _Timeline(_counting(board, member, log.events_of(member)))
    closed = [window.id for window in board.closed.values() if timeline.counting_in(window)]
    return MemberHidden(member, tuple(closed))


def _remove(board: Board, log: Log, verdict: Remove) -> AnyRuling | int:
    member = check_member(verdict.member)
    if board.members.find(member) < 0:
        raise Refusal("member_not_found", f"{verdict.member!r} never had an event on the board")
    events = _counting(board, member, log.events_of(member))
    if not events:
        return board.rulings.removed.get(member) or board.sequence
    return MemberRemoved(member, _changes(board, events, events))


def _erase(board: Board, log: Log, verdict: Erase) -> AnyRuling | int:
    name = check_member(verdict.member)
    rulings, slot = board.rulings, board.members.find(name)
    erased = rulings.erased.get(name)
    if erased is not None:
        return erased.sequence
    if slot < 0 and not log.mentions(name):
        return board.sequence  # nothing is known by that name, as is wanted
    events = list(log.events_of(name))
    ever, counting = _Timeline(events), _Timeline(_counting(board, name, events))
    places = tuple(
        Place(window.id, _row(board, counting.counting_in(window)))
        for window in board.closed.values()
        if ever.counting_in(window)
    )
    pseudonym = _forgetting(board, name).pseudonym
    return MemberErased(pseudonym, slot, name if slot < 0 else b"", places)


def mentions(board: Board, name: bytes, rulings: Iterable[Record]) -> bool:
    """Tell whether any of some rulings is about a name, or holds it. Complexity: O(rulings)."""
    forgetting = _forgetting(board, name)
    return any(forgetting.record(ruling) is not ruling for ruling in rulings)


def _forgetting(board: Board, name: bytes) -> Forgetting:
    """Tell how a member will be called that the next record erases; nothing leads back from it."""
    sequence, hash_key = board.sequence + 1, board.identity.hash_key
    number = siphash128(hash_key, b"erased at %d" % sequence).hex()
    return Forgetting(name, f"{PSEUDONYM_START}{number}".encode(), sequence, hash_key)


def _set_profile(board: Board, _log: Log, verdict: SetProfile) -> AnyRuling | int:
    member = check_member(verdict.member)
    if board.rulings.profiles.get(member) == verdict.profile:
        return board.sequence
    return ProfileSet(member, verdict.profile)


def _open_dispute(board: Board, log: Log, verdict: OpenDispute) -> AnyRuling | int:
    event = _event(log.event_at, verdict.sequence)
    wanted = (event.sequence, verdict.actor, verdict.reason, OPEN)
    for opened, dispute in board.rulings.disputes.items():
        if (dispute.sequence, dispute.opened_by, dispute.reason, dispute.status) == wanted:
            return opened  # the same one, sent again
    windows = tuple(window.id for window in _windows(board) if _counts_in(window, event))
    return DisputeOpened(event.member, event.sequence, verdict.actor, windows)


def _settle_dispute(board: Board, log: Log, verdict: SettleDispute) -> AnyRuling | int:
    dispute = dispute_of(board, verdict.dispute)
    opened = int(verdict.dispute)
    if dispute.status == verdict.status:
        assert dispute.settled_sequence is not None
        return dispute.settled_sequence
    if dispute.status != OPEN:
        raise invalid_field("status", f"the dispute is settled, as {dispute.status}")
    upheld = verdict.status == UPHELD
    changes: tuple[RowChange, ...] = ()
    if upheld and dispute.sequence not in board.rulings.voided:
        changes = _without(board, log, _event(log.event_at, dispute.sequence))
    return DisputeSettled(dispute.member, opened, upheld, changes)


def dispute_of(board: Board, dispute: str) -> Dispute:
    """Find a dispute by its id. Errors: Refusal dispute_not_found."""
    found = None
    if dispute.isascii() and dispute.isdecimal() and len(dispute) < 20:
        found = board.rulings.disputes.get(int(dispute))
    if found is None or str(int(dispute)) != dispute:
        raise Refusal("dispute_not_found", f"there is no dispute {dispute!r}")
    return found


def answer_ruling(board: Board, verdict: Verdict, sequence: int) -> bytes:
    """Answer a verdict that holds since the record with `sequence`, encoded as it was asked for."""
    answer: RulingAnswer | DisputeAnswer = RulingAnswer(board.identity.board, sequence)
    if isinstance(verdict, OpenDispute):
        answer = answer_dispute(board, sequence, sequence)
    elif isinstance(verdict, SettleDispute):
        answer = answer_dispute(board, int(verdict.dispute), sequence)
    return _ENCODE[verdict.packed](answer)


def _event(event_at: Callable[[int], Event], sequence: int) -> Event:
    try:
        return event_at(sequence)
    except LookupError:
        raise Refusal("event_not_found", f"no event has the sequence {sequence}") from None


# What follows for scores


def _without(board: Board, log: Log, event: Event) -> tuple[RowChange, ...]:
    """Work out what changes when one event no longer counts."""
    if not board.rulings.counts(event.member, event.sequence):
        return ()
    events = _counting(board, event.member, log.events_of(event.member))
    return _changes(board, events, [event])


def _counting(board: Board, member: bytes, events: Iterable[Event]) -> list[Event]:
    """List those of a member's events that no ruling took out."""
    return [event for event in events if board.rulings.counts(member, event.sequence)]


def _windows(board: Board) -> list[Window | ClosedWindow]:
    return [*board.windows.values(), *board.closed.values()]


def _counts_in(window: Window | ClosedWindow, event: Event) -> bool:
    """Tell whether an event counted in a window when it came."""
    in_time = isinstance(window, Window) or event.sequence < window.closed_sequence
    return (
        in_time and event.sequence >= window.opened_sequence and window.holds(event.occurred_at_us)
    )


class _Timeline:
    """A member's events by time, to find those of a window without a look at all others."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = sorted(events, key=lambda event: event.occurred_at_us)
        self._instants = [event.occurred_at_us for event in self._events]

    def counting_in(self, window: Window | ClosedWindow) -> list[Event]:
        """List the events that counted in a window, in order of their sequences.

        Complexity: O(log events + those in the window's bounds).
        """
        start_us, end_us = window.start_us, window.end_us
        first = 0 if start_us is None else bisect_left(self._instants, start_us)
        end = None if end_us is None else bisect_left(self._instants, end_us)
        return sorted(event for event in self._events[first:end] if _counts_in(window, event))


def _changes(
    board: Board, events: Sequence[Event], dropped: Sequence[Event]
) -> tuple[RowChange, ...]:
    """Work out the rows of a member, with its `events`, once some are dropped."""
    sequences = {event.sequence for event in dropped}
    all_events, those_dropped = _Timeline(events), _Timeline(dropped)
    changes = []
    for window in _windows(board):
        if not those_dropped.counting_in(window):
            continue
        before = all_events.counting_in(window)
        after = [event for event in before if event.sequence not in sequences]
        change = RowChange(window.id, _row(board, before), _row(board, after))
        if change.before != change.after:
            changes.append(change)
    return tuple(changes)


def _row(board: Board, events: Sequence[Event]) -> Row | None:
    """Count a member's events, in order of their sequences, by themselves."""
    if not events:
        return None
    members = Members(bytes(16))
    standings = Standings(members, **board.rules())
    ends = array("I", [1])
    slots = members.record(ends, b"m", members.plan(ends, b"m", 1), 1)
    try:
        standings.apply(
            slots * len(events),
            array("q", [value for event in events for value in event.values]),
            array("q", [event.occurred_at_us for event in events]),
        )
    except OverflowError as error:
        raise Refusal("value_out_of_range", f"the member's total: {error}") from None
    row = standings.row(slots[0])
    assert row is not None
    return Row(*row)


_PLANS: dict[type[Verdict], Callable[[Board, Log, Any], AnyRuling | int]] = {
    Void: _void,
    Hide: _hide,
    Remove: _remove,
    Erase: _erase,
    SetProfile: _set_profile,
    OpenDispute: _open_dispute,
    SettleDispute: _settle_dispute,
}
