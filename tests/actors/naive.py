"""What the native structures must equal, as plain lists and dicts that can be read at a glance."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable
from typing import Any

from actors.members import Members
from actors.standings import Standings, from_listing

SECRET = b"a secret of 16 b"
CROWD = 1_600
AGGREGATIONS = ("best", "sum", "latest")
TIE_RULES = ("earliest", "latest", "member")
NAMES = [b"%04x" % (number * 40_503 % 65_536) for number in range(CROWD)]

Score = tuple[int, ...]
Entry = tuple[bytes, Score, int]


def columns(names: Iterable[bytes]) -> tuple[array[int], bytes]:
    """Return names as the native structures take them: cumulative ends and a blob."""
    ends, blob = array("I"), bytearray()
    for name in names:
        blob += name
        ends.append(len(blob))
    return ends, bytes(blob)


def seeded(seed: int) -> random.Random:
    """Return a source of numbers that a test draws the same way every time."""
    return random.Random(seed)  # noqa: S311  (it keeps no secret)


class NaiveStandings:
    """A window's standings, computed from the set of each member's events and sorted anew."""

    def __init__(self, aggregation: str, directions: tuple[str, ...], tie_rule: str) -> None:
        self.aggregation = aggregation
        self.tie_rule = tie_rule
        self.signs = tuple(-1 if direction == "desc" else 1 for direction in directions)
        self.events: dict[bytes, list[tuple[Score, int]]] = {}
        self._known: dict[bytes, tuple[Score, int]] = {}

    def apply(self, name: bytes, value: Score, occurred_at: int) -> bool:
        """Count an event; tell whether the member's score is better now, or its first."""
        before = self.standing(name)[0] if name in self.events else None
        self.count(name, value, occurred_at)
        return before is None or self.directed(self.standing(name)[0]) < self.directed(before)

    def count(self, name: bytes, value: Score, occurred_at: int) -> None:
        self.events.setdefault(name, []).append((value, occurred_at))
        self._known.pop(name, None)

    def remove(self, name: bytes) -> None:
        del self.events[name]
        self._known.pop(name, None)

    def standing(self, name: bytes) -> tuple[Score, int]:
        """Return a member's score and when it was achieved, by the contract's table."""
        if name not in self._known:
            self._known[name] = self._aggregate(self.events[name])
        return self._known[name]

    def _aggregate(self, events: list[tuple[Score, int]]) -> tuple[Score, int]:
        if self.aggregation == "best":
            return min(events, key=lambda event: (self.directed(event[0]), event[1]))
        if self.aggregation == "latest":
            newest = max(occurred_at for _, occurred_at in events)
            return [event for event in events if event[1] == newest][-1]
        total = tuple(map(sum, zip(*(value for value, _ in events), strict=True)))
        scored = [occurred_at for value, occurred_at in events if any(value)]
        return total, max(scored or [occurred_at for _, occurred_at in events])

    def directed(self, score: Score) -> Score:
        """Return a score that is smaller the better it is."""
        return tuple(sign * key for sign, key in zip(self.signs, score, strict=True))

    def order_key(self, entry: Entry) -> tuple[Score, int, bytes]:
        """Return what the total order sorts an entry by."""
        name, score, achieved_at = entry
        tie = {"earliest": achieved_at, "latest": -achieved_at, "member": 0}[self.tie_rule]
        return self.directed(score), tie, name

    def order(self) -> list[Entry]:
        """Return all entries, best first."""
        return sorted(((name, *self.standing(name)) for name in self.events), key=self.order_key)

    def better(self, score: Score) -> int:
        """Return how many entries have a better score."""
        wanted = self.directed(score)
        return sum(self.directed(self.standing(name)[0]) < wanted for name in self.events)

    def better_distinct(self, score: Score) -> int:
        """Return how many distinct scores are better."""
        scores = {self.directed(self.standing(name)[0]) for name in self.events}
        return sum(other < self.directed(score) for other in scores)

    def place(self, score: Score) -> int:
        """Return where a new member with that score, achieved now, would stand."""
        equals = sum(self.standing(name)[0] == score for name in self.events)
        return self.better(score) + (0 if self.tie_rule == "latest" else equals)

    def seek(self, score: Score, achieved_at: int, name: bytes) -> int:
        """Return the index of the first entry after a key of the order."""
        wanted = self.order_key((name, score, achieved_at))
        return sum(self.order_key(entry) <= wanted for entry in self.order())


class Pair:
    """The structure under test and its naive model, fed with the same events."""

    def __init__(
        self,
        aggregation: str,
        directions: tuple[str, ...],
        tie_rule: str,
        distinct: bool = True,
        sparse: bool = False,
    ) -> None:
        self.rules: dict[str, Any] = {
            "aggregation": aggregation, "directions": directions, "tie_rule": tie_rule,
            "distinct": distinct, "sparse": sparse,
        }  # fmt: skip
        self.members = Members(SECRET)
        self.real = Standings(self.members, **self.rules)
        self.naive = NaiveStandings(aggregation, directions, tie_rule)
        self.sequence = 1

    def feed(self, events: list[tuple[bytes, Score, int]]) -> tuple[array[int], array[int], Any]:
        ends, blob = columns(name for name, _, _ in events)
        previous = self.members.plan(ends, blob, self.sequence)
        slots = self.members.record(ends, blob, previous, self.sequence)
        self.sequence += len(events)
        values = array("q", [key for _, value, _ in events for key in value])
        return slots, values, array("q", [occurred_at for _, _, occurred_at in events])

    def apply(self, events: list[tuple[bytes, Score, int]]) -> None:
        improved = self.real.apply(*self.feed(events))
        assert list(improved) == [self.naive.apply(*event) for event in events]

    def reload(self) -> None:
        digest = self.real.digest
        self.members = Members.load(self.members.dump(), SECRET)
        self.real = Standings.load(self.real.dump(), self.members, **self.rules)
        assert self.real.digest == digest

    def remove(self, name: bytes) -> None:
        self.real.remove(self.members.find(name))
        self.naive.remove(name)

    def compare(self) -> None:
        order = self.naive.order()
        assert len(self.real) == len(order)
        assert self.real.page(0, len(order) + 1) == order
        for index, (name, score, achieved_at) in enumerate(order):
            slot = self.members.find(name)
            assert self.real.index(slot) == index
            assert self.real.slot_at(index) == slot
            assert self.real.score(slot) == score
            assert self.real.achieved_at(slot) == achieved_at

    def compare_listing(self) -> None:
        """Assert that the standings list the model's order, and that their listing gives them."""
        listing = dict(self.real.listing())
        order = self.naive.order()
        ends, names = columns(name for name, _, _ in order)
        assert (listing["ends"], listing["names"]) == (ends.tobytes(), names)
        rows = [number for _, score, achieved_at in order for number in (*score, achieved_at)]
        assert listing["rows"] == array("q", rows).tobytes()
        rules = {name: rule for name, rule in self.rules.items() if name != "sparse"}
        members, sealed = from_listing(listing, SECRET, **rules)
        members._check()
        sealed._check()
        assert sealed.page(0, len(order) + 1) == order
        assert (sealed.digest, sealed.listing()) == (self.real.digest, self.real.listing())
        assert sealed.magnitude <= self.real.magnitude

    def compare_score(self, score: Score, achieved_at: int, name: bytes) -> None:
        assert self.real.better(score) == self.naive.better(score)
        assert self.real.place(score) == self.naive.place(score)
        sought = self.real.seek(score, achieved_at, name)
        assert sought == self.naive.seek(score, achieved_at, name)
        if self.rules["distinct"]:
            assert self.real.better_distinct(score) == self.naive.better_distinct(score)


def crowd(seed: int, count: int, keys: int, spread: int) -> list[tuple[bytes, Score, int]]:
    """Draw events of many members with few scores and times."""
    draw = seeded(seed)
    return [
        (
            draw.choice(NAMES),
            tuple(draw.randrange(-spread, spread) for _ in range(keys)),
            draw.randrange(4),
        )
        for _ in range(count)
    ]
