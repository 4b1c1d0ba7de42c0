"""What moderation must do by the HTTP contract alone: which events count, and who is shown.

Owns plain dicts of what holds, and what each verdict must be answered with. Scores, ranks and
revisions follow from them elsewhere, each time from all events anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

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


class Outcome(NamedTuple):
    """What an event or a verdict may be answered with."""

    status: str
    sequence: int | None = None
    code: str | None = None


def rejected(code: str) -> Outcome:
    return Outcome("rejected", code=code)


@dataclass
class NaiveDispute:
    """A dispute about an event; windows: those that it counted in; settled: by which record."""

    event: int
    windows: set[str]
    opened_by: str
    reason: str
    status: str = "open"
    settled: int = field(default=0, compare=False)


class NaiveRulings:
    """What moderators decided of one board.

    authors: the member of every event there ever was, by sequence. voided: by the event's sequence,
    removed and hidden by member, that of the ruling. erased: by pseudonym, that of the ruling.
    named: whom any ruling was about since they were last erased.
    """

    def __init__(self) -> None:
        self.authors: dict[int, str] = {}
        self.voided: dict[int, int] = {}
        self.removed: dict[str, int] = {}
        self.hidden: dict[str, int] = {}
        self.profiles: dict[str, bytes] = {}
        self.disputes: dict[int, NaiveDispute] = {}
        self.erased: dict[str, int] = {}
        self.named: set[str] = set()

    def counts(self, sequence: int) -> bool:
        """Tell whether an event still counts."""
        removed = self.removed.get(self.authors[sequence], 0)
        return sequence not in self.voided and sequence > removed

    def rule(
        self,
        verdict: Verdict,
        last_sequence: int,
        windows: dict[int, set[str]],
        pseudonym: str = "",
    ) -> Outcome:
        """Let a verdict hold from the record after `last_sequence` on.

        windows: of each event, those known that it counted in. pseudonym: of who is erased.
        """
        outcome = self._rule(verdict, last_sequence, windows, pseudonym)
        if isinstance(verdict, Hide | SetProfile) and outcome.status == "applied":
            self.named.add(verdict.member)
        return outcome

    def _rule(
        self,
        verdict: Verdict,
        last_sequence: int,
        windows: dict[int, set[str]],
        pseudonym: str,
    ) -> Outcome:
        match verdict:
            case Void():
                return self._void(verdict, last_sequence)
            case Hide():
                return self._hide(verdict, last_sequence)
            case Remove():
                return self._remove(verdict, last_sequence)
            case Erase():
                return self._erase(verdict.member, last_sequence, pseudonym)
            case SetProfile():
                return self._set_profile(verdict, last_sequence)
            case OpenDispute():
                return self._open_dispute(verdict, last_sequence, windows)
            case SettleDispute():
                return self._settle_dispute(verdict, last_sequence)
        raise AssertionError(f"{verdict} is no verdict")

    def _void(self, verdict: Void, last_sequence: int) -> Outcome:
        if verdict.sequence not in self.authors:
            return rejected("event_not_found")
        return _kept_or_put(self.voided, verdict.sequence, last_sequence)

    def _hide(self, verdict: Hide, last_sequence: int) -> Outcome:
        if verdict.hidden:
            return _kept_or_put(self.hidden, verdict.member, last_sequence)
        if self.hidden.pop(verdict.member, None) is None:
            return Outcome("duplicate", last_sequence)
        return Outcome("applied", last_sequence + 1)

    def _remove(self, verdict: Remove, last_sequence: int) -> Outcome:
        events = [each for each, author in self.authors.items() if author == verdict.member]
        if not events:
            return rejected("member_not_found")
        if not any(map(self.counts, events)):
            return Outcome("duplicate", self.removed.get(verdict.member, last_sequence))
        self.removed[verdict.member] = last_sequence + 1
        return Outcome("applied", last_sequence + 1)

    def _erase(self, member: str, last_sequence: int, pseudonym: str) -> Outcome:
        if member in self.erased:
            return Outcome("duplicate", self.erased[member])
        played = member in self.authors.values()
        if not played and member not in self.named:
            return Outcome("duplicate", last_sequence)
        self.named.discard(member)
        for dispute in self.disputes.values():
            if self.authors[dispute.event] == member:
                dispute.reason = ""
        for sequence, author in self.authors.items():
            self.authors[sequence] = pseudonym if author == member else author
        self.profiles.pop(member, None)
        hidden, removed = self.hidden.pop(member, None), self.removed.pop(member, None)
        if hidden is not None and played:
            self.hidden[pseudonym] = hidden
        if removed is not None:
            self.removed[pseudonym] = removed
        self.erased[pseudonym] = last_sequence + 1
        return Outcome("applied", last_sequence + 1)

    def _set_profile(self, verdict: SetProfile, last_sequence: int) -> Outcome:
        if self.profiles.get(verdict.member) == verdict.profile:
            return Outcome("duplicate", last_sequence)
        self.profiles[verdict.member] = verdict.profile
        return Outcome("applied", last_sequence + 1)

    def _open_dispute(
        self, verdict: OpenDispute, last_sequence: int, windows: dict[int, set[str]]
    ) -> Outcome:
        if verdict.sequence not in self.authors:
            return rejected("event_not_found")
        for opened, known in self.disputes.items():
            again = (verdict.sequence, verdict.actor, verdict.reason)
            if known.status == "open" and (known.event, known.opened_by, known.reason) == again:
                return Outcome("duplicate", opened)
        counted = windows.get(verdict.sequence, set())
        self.disputes[last_sequence + 1] = NaiveDispute(
            verdict.sequence, counted, verdict.actor, verdict.reason
        )
        return Outcome("applied", last_sequence + 1)

    def _settle_dispute(self, verdict: SettleDispute, last_sequence: int) -> Outcome:
        dispute = self.disputes.get(int(verdict.dispute))
        if dispute is None:
            return rejected("dispute_not_found")
        if dispute.status == verdict.status:
            return Outcome("duplicate", dispute.settled)
        if dispute.status != "open":
            return rejected("invalid_field")
        dispute.status, dispute.settled = verdict.status, last_sequence + 1
        if verdict.status == "upheld":
            self.voided.setdefault(dispute.event, last_sequence + 1)
        return Outcome("applied", last_sequence + 1)


def _kept_or_put(held: dict[Any, int], name: Any, last_sequence: int) -> Outcome:
    if name in held:
        return Outcome("duplicate", held[name])
    held[name] = last_sequence + 1
    return Outcome("applied", last_sequence + 1)
