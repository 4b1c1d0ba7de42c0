"""How a ruling changes a board: the one way to change what moderators decide.

Pure: a ruling holds the rows that follow from it, so that no earlier event is looked at. One that
erases a name has the same effect where earlier records hold the name and where it was taken out
of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from actors.counting import Window
from actors.forgetting import Forgetting
from actors.members import Members
from actors.rulings import OPEN, REJECTED, UPHELD, Dispute, Erasure
from persistence.records import RulingRecord
from persistence.rulings import (
    AnyRuling,
    DisputeOpened,
    DisputeSettled,
    ErasureFinished,
    EventVoided,
    MemberErased,
    MemberHidden,
    MemberRemoved,
    MemberShown,
    ProfileSet,
    RowChange,
)

if TYPE_CHECKING:
    from actors.board import Board


def apply_ruling(board: Board, record: RulingRecord) -> None:
    """Let a ruling of the log change the board.

    Complexity: O(changes x log members), and for hiding O(windows x log members). Errors:
    ValueError where the ruling does not fit the board, which a verified log cannot hold.
    """
    rulings, ruling, sequence = board.rulings, record.ruling, record.first_sequence
    match ruling:
        case EventVoided():
            rulings.voided.put(ruling.sequence, sequence)
            _change_rows(board, ruling.member, ruling.changes, sequence)
        case MemberRemoved():
            rulings.removed.put(ruling.member, sequence)
            _change_rows(board, ruling.member, ruling.changes, sequence)
        case MemberHidden():
            rulings.hidden.put(ruling.member, sequence)
            _hide(board, ruling)
        case MemberShown():
            rulings.hidden.drop(ruling.member)
            _show(board, ruling)
        case ProfileSet():
            rulings.profiles.put(ruling.member, ruling.profile)
        case DisputeOpened():
            rulings.disputes.put(sequence, _opened(record, ruling))
        case DisputeSettled():
            _settle(board, record, ruling)
        case MemberErased():
            _erase(board, ruling, sequence)
        case ErasureFinished():
            _finish_erasure(board, ruling, sequence)
    rulings.records.append(sequence)


def _opened(record: RulingRecord, ruling: DisputeOpened) -> Dispute:
    return Dispute(
        ruling.sequence,
        ruling.member,
        ruling.windows,
        record.reason,
        ruling.opened_by,
        record.recorded_at_us,
    )


def _settle(board: Board, record: RulingRecord, ruling: DisputeSettled) -> None:
    dispute = board.rulings.disputes.get(ruling.dispute)
    if dispute is None or dispute.status != OPEN:
        raise ValueError(f"record {record.first_sequence} settles no open dispute")
    settled = msgspec.structs.replace(
        dispute,
        status=UPHELD if ruling.upheld else REJECTED,
        note=record.reason,
        actor=record.actor,
        settled_at_us=record.recorded_at_us,
        settled_sequence=record.first_sequence,
    )
    board.rulings.disputes.put(ruling.dispute, settled)
    if ruling.upheld and dispute.sequence not in board.rulings.voided:
        board.rulings.voided.put(dispute.sequence, record.first_sequence)
    _change_rows(board, ruling.member, ruling.changes, record.first_sequence)


def _change_rows(
    board: Board, member: bytes, changes: tuple[RowChange, ...], sequence: int
) -> None:
    rules = board.rules()
    slot = board.members.find(member)
    for change in changes:
        window = board.windows.get(change.window)
        if window is not None:
            if window.row(slot) != change.before:
                raise ValueError(f"ruling {sequence} knew another row in {window.id}")
            window.put(slot, change.after)
            continue
        closed = board.closed.get(change.window)
        if closed is None:
            raise ValueError(f"ruling {sequence} changes {change.window}, which is not kept")
        board.closed[closed.id] = closed.revised(sequence, member, change, rules)
        unsealed = board.unsealed.get(closed.id)
        if unsealed is not None:
            unsealed.put(unsealed.members.find(member), change.after)


def _hide(board: Board, ruling: MemberHidden) -> None:
    slot = board.members.find(ruling.member)
    if slot >= 0:
        board.hidden_slots.add(slot)
        for window in board.windows.values():
            window.hide(slot)
    for name in ruling.closed:
        closed = board.closed[name]
        board.closed[name] = closed._replace(hidden=(*closed.hidden, ruling.member))


def _show(board: Board, ruling: MemberShown) -> None:
    slot = board.members.find(ruling.member)
    board.hidden_slots.discard(slot)
    if slot >= 0:
        for window in board.windows.values():
            window.show(slot)
    for closed in board.closed.values():
        if ruling.member in closed.hidden:
            others = tuple(name for name in closed.hidden if name != ruling.member)
            board.closed[closed.id] = closed._replace(hidden=others)


def _erase(board: Board, ruling: MemberErased, sequence: int) -> None:
    """Put the pseudonym where the name was. Complexity: O(members + windows x log members)."""
    rulings, pseudonym = board.rulings, ruling.member
    name = _erased_name(board, ruling)
    if name is not None and name != pseudonym:
        forgetting = Forgetting(name, pseudonym, sequence, board.identity.hash_key)
        if ruling.slot >= 0:
            windows = (*board.windows.values(), *board.unsealed.values())
            _rename(windows, board.members, ruling.slot, pseudonym)
        for ledger in (rulings.removed, rulings.hidden):
            ledger.rename(name, pseudonym)
        for opened, dispute in list(rulings.disputes.items()):
            forgotten = forgetting.dispute(dispute)
            if forgotten != dispute:
                rulings.disputes.put(opened, forgotten)
        rulings.profiles.drop(name)
    rulings.profiles.drop(pseudonym)
    if ruling.slot < 0:
        rulings.hidden.drop(pseudonym)
    for place in ruling.places:
        closed = board.closed.get(place.window)
        if closed is None:
            raise ValueError(f"ruling {sequence} changes {place.window}, which is not kept")
        former = pseudonym if name is None else name
        board.closed[closed.id] = closed.without(
            former, pseudonym, sequence, place.row, board.rules()
        )
    rulings.erased.put(pseudonym, Erasure(sequence, ruling.slot))


def _erased_name(board: Board, ruling: MemberErased) -> bytes | None:
    """Find what the member is called in earlier records: its name, or the pseudonym already."""
    return board.members.name(ruling.slot) if ruling.slot >= 0 else ruling.name or None


def revise(window: Window, ruling: AnyRuling, names: Iterable[bytes]) -> None:
    """Change a closed window's standings, which nobody else uses, as a ruling revised them.

    names: what the member may be called in them.
    """
    if isinstance(ruling, MemberErased):
        for name in names:
            slot = window.members.find(name)
            if slot >= 0 and name != ruling.member:
                _rename([window], window.members, slot, ruling.member)
        return
    for change in getattr(ruling, "changes", ()):
        if change.window == window.id:
            window.put(window.members.find(ruling.member), change.after)


def _rename(windows: Iterable[Window], members: Members, slot: int, pseudonym: bytes) -> None:
    """Call a member otherwise; standings order equals by name, so it leaves them meanwhile."""
    rows = [
        (standings, row)
        for window in windows
        for standings in window.sides
        if (row := standings.row(slot)) is not None
    ]
    for standings, _ in rows:
        standings.remove(slot)
    members.rename(slot, pseudonym)
    for standings, row in rows:
        standings.put(slot, *row)


def _finish_erasure(board: Board, ruling: ErasureFinished, sequence: int) -> None:
    erasure = board.rulings.erased.get(ruling.member)
    if erasure is None or erasure.finished is not None:
        raise ValueError(f"record {sequence} finishes no erasure")
    finished = msgspec.structs.replace(erasure, finished=sequence)
    board.rulings.erased.put(ruling.member, finished)
