"""What a board must be by the HTTP contract alone: plain dicts, lists and exact decimals.

Owns no cleverness: a score is computed anew from all of a member's events, the order by sorting.
Where the contract leaves a choice (a key older than its retention may or may not be remembered),
`possible` lists what may be answered and the test says which it was. It must not know how the
board that it is compared with does anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Context, Decimal
from typing import Any, NamedTuple

from actors.questions import Erase, Verdict
from tests.actors.naive_rulings import NaiveRulings, Outcome, rejected

DAY_US = 86_400 * 1_000_000
EXACT = Context(prec=500)

DEFAULTS: dict[str, Any] = {
    "score": [{"name": "score", "direction": "desc", "decimals": 0}],
    "tie_rule": "earliest",
    "rank_method": "ordinal",
    "future_tolerance_seconds": 60,
    "key_retention_days": 30,
    "min_value": None,
    "max_value": None,
    "sources": None,
    "mode": "live",
}

Score = tuple[Decimal, ...]


@dataclass(frozen=True)
class Sent:
    """An event as a client means it; well_formed is false where its shape must be refused."""

    member: str
    value: Score
    key: str
    occurred_at_us: int | None = None
    source: str | None = None
    well_formed: bool = True


@dataclass
class Kept:
    """An event that counted when it came.

    forgettable: its key has at some time been older than the retention. erased: whose it was is
    not known any more.
    """

    sequence: int
    sent: Sent
    occurred_at_us: int
    received_at_us: int
    forgettable: bool = False
    erased: bool = False

    def erase(self, member: str, pseudonym: str) -> None:
        """Let it be of nobody by that name."""
        if self.sent.member == member:
            self.sent, self.erased = replace(self.sent, member=pseudonym), True


class Place(NamedTuple):
    """A member's place in the order, without its rank."""

    member: str
    score: Score
    achieved_at_us: int


class NaiveBoard:
    """A board with the one window all_time; sequence is where its log stands when it is made.

    rulings: those of the board whose window it is, where it is one of several.
    """

    def __init__(
        self, definition: dict[str, Any], sequence: int, rulings: NaiveRulings | None = None
    ) -> None:
        self.definition = DEFAULTS | definition
        self.sequence = sequence
        self.events: list[Kept] = []
        self.rulings = rulings or NaiveRulings()
        self.keys: dict[str, Kept] = {}
        self.horizon_us = 0  # no key received since is forgettable

    # Writing

    def change(self, changes: dict[str, Any]) -> None:
        """Change the definition; one that stays the same takes no place in the log."""
        changed = self.definition | changes
        self.sequence += changed != self.definition
        self.definition = changed

    def clock(self, now_us: int) -> None:
        """Note that the server's time is now `now_us`, which makes old keys forgettable."""
        days = self.definition["key_retention_days"]
        if days is None or self.definition["mode"] == "backfill":
            return
        self.horizon_us = max(self.horizon_us, now_us - days * DAY_US)
        for kept in self.keys.values():
            kept.forgettable |= kept.received_at_us < self.horizon_us

    def possible(self, sent: Sent, now_us: int) -> list[Outcome]:
        """List what the contract lets an event, received at `now_us`, be answered with."""
        if not sent.well_formed:
            return [rejected("invalid_field")]
        kept = self.keys.get(sent.key)
        if kept is None:
            return self._possible_as_new(sent, now_us)
        same = _same_content(kept, sent)
        known = (
            Outcome("duplicate", kept.sequence)
            if same
            else Outcome("rejected", kept.sequence, "idempotency_conflict")
        )
        if not kept.forgettable:
            return [known]
        as_new = self._possible_as_new(sent, now_us)
        dated = kept.sent.occurred_at_us is not None and sent.occurred_at_us is not None
        if same and dated and self.definition["mode"] == "live":
            as_new = [outcome for outcome in as_new if outcome.status != "applied"]
        return [known, *as_new]

    def _possible_as_new(self, sent: Sent, now_us: int) -> list[Outcome]:
        occurred_at_us = now_us if sent.occurred_at_us is None else sent.occurred_at_us
        old: list[Outcome] = []
        if self.definition["mode"] == "live":
            days = self.definition["key_retention_days"]
            if days is not None and occurred_at_us < now_us - days * DAY_US:
                return [rejected("event_too_old")]
            # Keys were given up under a shorter retention: what is as old may be refused.
            if occurred_at_us < self.horizon_us:
                old = [rejected("event_too_old")]
        code = self._broken_rule(sent, occurred_at_us, now_us)
        return [*old, rejected(code) if code else Outcome("applied", self.sequence + 1)]

    def _broken_rule(self, sent: Sent, occurred_at_us: int, now_us: int) -> str | None:
        definition = self.definition
        decimals = [key["decimals"] for key in definition["score"]]
        limits = [
            EXACT.scaleb(Decimal(10**15 - 1 if places else 2**53 - 1), -places)
            for places in decimals
        ]
        scaled = [EXACT.scaleb(v, d) for v, d in zip(sent.value, decimals, strict=True)]
        if any(cell != cell.to_integral_value() for cell in scaled):
            return "value_precision"
        totals = list(sent.value)
        if definition["aggregation"] == "sum":
            totals += [
                EXACT.add(total, value)
                for total, value in zip(self._total(sent.member), sent.value, strict=True)
            ]
        if any(abs(v) > limits[index % len(limits)] for index, v in enumerate(totals)):
            return "value_out_of_range"
        for name, sign in (("min_value", 1), ("max_value", -1)):
            bounds = definition[name]
            if bounds is None:
                continue
            each = bounds if isinstance(bounds, list) else [bounds] * len(decimals)
            if any(sign * v < sign * Decimal(b) for v, b in zip(sent.value, each, strict=True)):
                return "value_not_allowed"
        if definition["sources"] is not None and sent.source not in definition["sources"]:
            return "source_not_allowed"
        if occurred_at_us > now_us + definition["future_tolerance_seconds"] * 1_000_000:
            return "occurred_in_future"
        return None

    def _total(self, member: str) -> Score:
        values = [kept.sent.value for kept in self._counting(member)]
        width = len(self.definition["score"])
        return tuple(_exact_sum([value[key] for value in values]) for key in range(width))

    def count(self, sent: Sent, now_us: int) -> bool:
        """Let an event count; tell whether the member's score is better now, or its first."""
        before = {place.member: place.score for place in self.everyone()}.get(sent.member)
        self.sequence += 1
        self.rulings.authors[self.sequence] = sent.member
        occurred_at_us = now_us if sent.occurred_at_us is None else sent.occurred_at_us
        kept = Kept(self.sequence, sent, occurred_at_us, now_us)
        self.events.append(kept)
        self.keys[sent.key] = kept
        after = self.standing(sent.member).score
        return before is None or self._directed(after) < self._directed(before)

    def rule(self, verdict: Verdict, pseudonym: str = "") -> Outcome:
        """Let a moderator's verdict hold; it takes a place in the log if it changes anything."""
        windows = {kept.sequence: {"all_time"} for kept in self.events}
        outcome = self.rulings.rule(verdict, self.sequence, windows, pseudonym)
        self.sequence += outcome.status == "applied"
        if isinstance(verdict, Erase) and outcome.status == "applied":
            for kept in [*self.events, *self.keys.values()]:
                kept.erase(verdict.member, pseudonym)
        return outcome

    # Standings

    def _counting(self, member: str) -> list[Kept]:
        return [
            kept
            for kept in self.events
            if kept.sent.member == member and self.rulings.counts(kept.sequence)
        ]

    def standing(self, member: str) -> Place:
        """Compute a member's score from the set of its events that count."""
        events = self._counting(member)
        instants = [kept.occurred_at_us for kept in events]
        match self.definition["aggregation"]:
            case "best":
                best = min((kept.sent.value for kept in events), key=self._directed)
                reached = [kept.occurred_at_us for kept in events if kept.sent.value == best]
                return Place(member, best, min(reached))
            case "sum":
                scored = [kept.occurred_at_us for kept in events if any(kept.sent.value)]
                return Place(member, self._total(member), max(scored or instants))
        newest = max(events, key=lambda kept: (kept.occurred_at_us, kept.sequence))
        return Place(member, newest.sent.value, newest.occurred_at_us)

    def _directed(self, score: Score) -> Score:
        """Return a score that is smaller the better it is."""
        ways = [key["direction"] for key in self.definition["score"]]
        return tuple(-k if way == "desc" else k for k, way in zip(score, ways, strict=True))

    def everyone(self) -> list[Place]:
        """Return the place of every member with an event that counts, best first."""
        sign = {"earliest": 1, "latest": -1, "member": 0}[self.definition["tie_rule"]]
        members = {kept.sent.member for kept in self.events if self.rulings.counts(kept.sequence)}
        return sorted(
            map(self.standing, members),
            key=lambda place: (
                self._directed(place.score),
                sign * place.achieved_at_us,
                place.member.encode(),
            ),
        )

    def shown(self, places: list[Place]) -> list[Place]:
        """Leave out those who are hidden."""
        return [place for place in places if place.member not in self.rulings.hidden]

    def order(self) -> list[Place]:
        """Return the places of those who are shown."""
        return self.shown(self.everyone())

    def rank(self, index: int, score: Score, order: list[Place] | None = None) -> int:
        """Return the rank of whoever stands at `index` (0-based) with `score`."""
        scores = [place.score for place in (self.order() if order is None else order)]
        better = [other for other in scores if self._directed(other) < self._directed(score)]
        ranks = {"competition": len(better) + 1, "dense": len(set(better)) + 1}
        return ranks.get(self.definition["rank_method"], index + 1)

    def index_of_newcomer(self, score: Score) -> int:
        """Return the index that a new member with `score`, achieved now, would get."""
        scores = [place.score for place in self.order()]
        better = sum(self._directed(other) < self._directed(score) for other in scores)
        return better + (0 if self.definition["tie_rule"] == "latest" else scores.count(score))

    # Queries: entries are (rank, position, member, score, achieved at)

    def entries(self, start: int, count: int) -> list[tuple[int, int, str, Score, int]]:
        return self.entries_of(self.order())[start : start + count]

    def entries_of(self, order: list[Place]) -> list[tuple[int, int, str, Score, int]]:
        """Return all entries of an order, of now or as it was."""
        return [
            (self.rank(index, place.score, order), index + 1, *place)
            for index, place in enumerate(order)
        ]

    def around(self, index: int, above: int, below: int) -> list[tuple[int, int, str, Score, int]]:
        """Return the entries about an index; near an end the range moves."""
        members = len(self.order())
        index = min(index, members - 1)
        start = max(0, min(index - above, members - (above + below + 1)))
        return self.entries(start, above + below + 1)

    def index_of(self, member: str) -> int | None:
        names = [place.member for place in self.order()]
        return names.index(member) if member in names else None


def _same_content(kept: Kept, sent: Sent) -> bool:
    one = replace(kept.sent, member=sent.member) if kept.erased else kept.sent
    instants = {one.occurred_at_us, sent.occurred_at_us} - {None}
    return len(instants) < 2 and (one.member, one.value, one.source) == (
        sent.member,
        sent.value,
        sent.source,
    )


def _exact_sum(values: list[Decimal]) -> Decimal:
    total = Decimal(0)
    for value in values:
        total = EXACT.add(total, value)
    return total
