"""Verdicts of moderators: given to a board by name, or drawn for histories.

Those that are drawn are few choices, settled when their turn comes.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from actors.errors import Refusal
from actors.logged_board import PlannedRuling
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
from tests.actors.clocked_board import ClockedBoard
from tests.actors.naive_rulings import NaiveRulings, Outcome, rejected

ACTOR = ("mod", "why", None)
PROFILES = (b'{"display_name":"Ada"}', b"{}")
NUMBER_MAX = 40
NOBODY = "nobody"  # never plays, but may be hidden and have a profile


def void(board: ClockedBoard, sequence: int) -> int:
    """Void an event, and return the sequence of the record that makes it so."""
    return board.rule(Void(False, board.now_us, *ACTOR, sequence)).sequence


def hide(board: ClockedBoard, member: str) -> int:
    return board.rule(Hide(False, board.now_us, *ACTOR, member, True)).sequence


def show(board: ClockedBoard, member: str) -> int:
    return board.rule(Hide(False, board.now_us, *ACTOR, member, False)).sequence


def remove(board: ClockedBoard, member: str) -> int:
    return board.rule(Remove(False, board.now_us, *ACTOR, member)).sequence


def erase(board: ClockedBoard, member: str, reason: str = "why") -> int:
    return board.rule(Erase(False, board.now_us, "mod", reason, None, member)).sequence


def profile(board: ClockedBoard, member: str, text: bytes) -> int:
    return board.rule(SetProfile(False, board.now_us, *ACTOR, member, text)).sequence


def dispute(board: ClockedBoard, sequence: int, opened_by: str = "ref") -> int:
    """Dispute an event, and return the dispute's id."""
    verdict = OpenDispute(False, board.now_us, opened_by, "impossible", None, sequence)
    return board.rule(verdict).sequence


def settle(board: ClockedBoard, opened: int | str, status: str, note: str = "seen") -> int:
    verdict = SettleDispute(False, board.now_us, "judge", note, None, str(opened), status)
    return board.rule(verdict).sequence


def drawn_verdicts(members: tuple[str, ...]) -> st.SearchStrategy[Any]:
    """Draw a kind of verdict, a member, and a number that says which event, dispute or side."""
    names = [*members, *members, NOBODY]
    kinds = [*["void"] * 4, *["hide", "dispute", "settle"] * 2, "remove", "profile", "erase"]
    return st.tuples(st.sampled_from(kinds), st.sampled_from(names), st.integers(0, NUMBER_MAX))


def settled_verdict(drawn: Any, rulings: NaiveRulings, now_us: int) -> Verdict:
    """Settle what a drawn verdict is about, by what there is."""
    kind, member, number = drawn
    unknown = number == NUMBER_MAX
    events = [1] if unknown else [*rulings.authors] or [1]  # a record that is no event
    disputes = [10**18] if unknown else [*rulings.disputes] or [10**18]
    match kind:
        case "void":
            return Void(False, now_us, *ACTOR, events[number % len(events)])
        case "hide":
            return Hide(False, now_us, *ACTOR, member, number % 5 < 3)
        case "remove":
            return Remove(False, now_us, *ACTOR, member)
        case "erase":
            return Erase(False, now_us, *ACTOR, member)
        case "profile":
            return SetProfile(False, now_us, *ACTOR, member, PROFILES[number % 2])
        case "dispute":
            return OpenDispute(False, now_us, *ACTOR, events[number % len(events)])
    dispute, status = str(disputes[number % len(disputes)]), ("upheld", "rejected")[number % 2]
    return SettleDispute(False, now_us, *ACTOR, dispute, status)


def some_verdicts(members: tuple[str, ...]) -> st.SearchStrategy[list[Any]]:
    return st.lists(drawn_verdicts(members), min_size=1, max_size=5)


def outcome_of(planned: PlannedRuling | Refusal) -> Outcome:
    """Tell what a verdict was answered with as the model does."""
    if isinstance(planned, Refusal):
        return rejected(planned.code)
    return Outcome("duplicate" if planned.record is None else "applied", planned.sequence)


def pseudonym_of(planned: PlannedRuling | Refusal) -> str:
    """Tell what the member is called whom a ruling erases, if it is one that does."""
    record = None if isinstance(planned, Refusal) else planned.record
    return record.ruling.member.decode() if record is not None else ""
