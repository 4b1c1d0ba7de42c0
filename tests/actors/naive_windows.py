"""What windows must be by the HTTP contract: which events count in which, and when each closes.

Bounds are the calendar's, which has tests of its own. Standings are a NaiveBoard's for each window,
over the events that counted in it. A closed window takes no event; a ruling that changes it makes
another revision.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from actors.periods import Bounds, Calendar
from actors.questions import Erase, Verdict
from tests.actors.naive_board import Kept, NaiveBoard, Place, Sent
from tests.actors.naive_rulings import NaiveRulings, Outcome, rejected

SECOND_US = 1_000_000


@dataclass
class NaiveWindow:
    """A window that was opened; revisions are the places of all in it, hidden or not, once closed.

    The first is what it closed with; None is one that named a member who was erased since.
    """

    id: str
    kind: str
    start_us: int | None
    end_us: int | None
    standings: NaiveBoard
    closed_at_us: int | None = None
    revisions: list[list[Place] | None] = field(default_factory=list)

    def holds(self, instant_us: int) -> bool:
        return (self.start_us is None or self.start_us <= instant_us) and (
            self.end_us is None or instant_us < self.end_us
        )

    @property
    def order(self) -> list[Place]:
        """The places of those who are shown, in the newest revision where it is closed."""
        return self.standings.shown(self.everyone)

    @property
    def everyone(self) -> list[Place]:
        newest = self.revisions[-1] if self.revisions else None
        return self.standings.everyone() if newest is None else newest

    @property
    def members(self) -> int:
        return len(self.order)

    def erase(self, member: str, pseudonym: str) -> None:
        """Call a member otherwise, and give up what names it."""
        if self.revisions and any(kept.sent.member == member for kept in self.standings.events):
            self.revisions[:-1] = [None] * (len(self.revisions) - 1)
            if any(place.member == member for place in self.everyone):
                self.revisions[-1] = None
        for kept in self.standings.events:
            kept.erase(member, pseudonym)


class NaiveSeason:
    """A board's windows. fixed: the definition's fixed windows, as name, start and end."""

    def __init__(self, definition: dict[str, Any], fixed: list[Bounds], sequence: int) -> None:
        self.definition = definition
        self.calendar = Calendar(
            definition["timezone"], definition["day_starts_at"], definition["week_starts_on"]
        )
        self.sequence = sequence
        self.rulings = NaiveRulings()
        self.windows: dict[str, NaiveWindow] = {}
        self.expired: set[str] = set()
        self.expired_until_us: dict[str, int] = {}
        self.keys: dict[str, tuple[int, Sent]] = {}
        self.fixed = {bounds.id for bounds in fixed}
        for bounds in fixed:
            self._open(bounds)

    def _open(self, bounds: Bounds) -> NaiveWindow:
        window = NaiveWindow(*bounds, NaiveBoard(self.definition, 0, self.rulings))
        self.windows[window.id] = window
        return window

    # What counts where

    def bounds_of(self, kind: str, instant_us: int) -> Bounds | None:
        """Give the window of a period that holds an instant, opened or not."""
        if kind in self.fixed:
            window = self.windows.get(kind)
            if window is None or not window.holds(instant_us):
                return None
            return Bounds(kind, kind, window.start_us, window.end_us)
        return self.calendar.window_at(kind, instant_us)

    def is_over(self, bounds: Bounds, now_us: int) -> bool:
        """Tell whether a window that was never opened can be opened no more."""
        if bounds.end_us is None:
            return False
        live = self.definition["mode"] == "live"
        return self.is_expired(bounds) or (live and bounds.end_us + self.grace_us <= now_us)

    def is_expired(self, bounds: Bounds) -> bool:
        """Tell whether a window is forgotten, or is as old as one that was and never opened."""
        until_us = self.expired_until_us.get(bounds.kind)
        return (
            until_us is not None
            and bounds.end_us is not None
            and bounds.id not in self.windows
            and bounds.end_us <= until_us
        )

    @property
    def grace_us(self) -> int:
        return int(self.definition["grace_seconds"]) * SECOND_US

    @property
    def kinds(self) -> list[str]:
        """Name the definition's periods in its order."""
        return [p if isinstance(p, str) else p["name"] for p in self.definition["periods"]]

    def counting(self, instant_us: int, now_us: int) -> list[Bounds]:
        """List the windows that an event would count in."""
        counting = []
        for bounds in (self.bounds_of(kind, instant_us) for kind in self.kinds):
            if bounds is None or bounds.id in self.expired:
                continue
            window = self.windows.get(bounds.id)
            if window.closed_at_us is None if window else not self.is_over(bounds, now_us):
                counting.append(bounds)
        return counting

    def expected(self, sent: Sent, now_us: int) -> Outcome:
        """Tell what an event, received at `now_us`, must be answered with."""
        if sent.key in self.keys:
            return Outcome("duplicate", self.keys[sent.key][0])
        instant_us = now_us if sent.occurred_at_us is None else sent.occurred_at_us
        if instant_us > now_us + self.definition["future_tolerance_seconds"] * SECOND_US:
            return rejected("occurred_in_future")
        if not self.counting(instant_us, now_us):
            return rejected("period_closed")
        return Outcome("applied", self.sequence + 1)

    def count(self, sent: Sent, now_us: int) -> list[tuple[str, bool]]:
        """Let an event count; names its windows in order, and where the score is better now."""
        instant_us = now_us if sent.occurred_at_us is None else sent.occurred_at_us
        self.sequence += 1
        self.keys[sent.key] = (self.sequence, sent)
        self.rulings.authors[self.sequence] = sent.member
        counted = []
        for bounds in self.counting(instant_us, now_us):
            window = self.windows.get(bounds.id) or self._open(bounds)
            dated = Sent(sent.member, sent.value, sent.key, instant_us)
            before = {place.member: place.score for place in window.standings.everyone()}
            kept = Kept(self.sequence, dated, instant_us, now_us)
            window.standings.events.append(kept)
            after = window.standings.standing(sent.member).score
            improved = sent.member not in before or self._better(after, before[sent.member])
            counted.append((window.id, improved))
        return counted

    def _better(self, score: Any, other: Any) -> bool:
        descending = self.definition["score"][0]["direction"] == "desc"
        return bool(score > other if descending else score < other)

    # How windows close

    def due(self, now_us: int) -> list[NaiveWindow]:
        """List the windows that are to be closed, in their order."""
        if self.definition["mode"] == "backfill":
            return []
        ending = [
            (window.end_us, window.id, window)
            for window in self.windows.values()
            if window.closed_at_us is None and window.end_us is not None
        ]
        return [w for end_us, _, w in sorted(ending) if end_us + self.grace_us <= now_us]

    def close_due(self, now_us: int) -> None:
        for window in self.due(now_us):
            self.sequence += 1
            window.closed_at_us = now_us
            window.revisions = [window.standings.everyone()]
            self._expire()

    def rule(self, verdict: Verdict, pseudonym: str = "") -> Outcome:
        """Let a moderator's verdict hold, in open windows and as new revisions of closed ones."""
        counted: dict[int, set[str]] = {}
        for window in self.windows.values():
            for kept in window.standings.events:
                counted.setdefault(kept.sequence, set()).add(window.id)
        outcome = self.rulings.rule(verdict, self.sequence, counted, pseudonym)
        self.sequence += outcome.status == "applied"
        if isinstance(verdict, Erase) and outcome.status == "applied":
            for window in self.windows.values():
                window.erase(verdict.member, pseudonym)
        for window in self.windows.values():
            if window.revisions and window.standings.everyone() != window.revisions[-1]:
                window.revisions.append(window.standings.everyone())
        return outcome

    def change(self, changes: dict[str, Any]) -> None:
        """Change the definition; one that stays the same takes no place in the log."""
        changed = self.definition | changes
        self.sequence += changed != self.definition
        self.definition = changed
        self._expire()

    def _expire(self) -> None:
        kept = self.definition["keep_closed_periods"]
        if kept is None:
            return
        for kind in self.kinds:
            closed = sorted(
                (window.end_us or 0, window.id)
                for window in self.windows.values()
                if window.kind == kind and window.closed_at_us is not None
            )
            while len(closed) > kept:
                end_us, name = closed.pop(0)
                del self.windows[name]
                self.expired.add(name)
                self.expired_until_us[kind] = max(end_us, self.expired_until_us.get(kind, end_us))

    def listed(self) -> list[NaiveWindow]:
        """List every window that ever held an event and every fixed one, newest first."""
        listed = [
            window
            for window in self.windows.values()
            if window.standings.events or window.id in self.fixed
        ]
        return sorted(listed, key=lambda w: (w.start_us or -(2**63), w.id), reverse=True)
