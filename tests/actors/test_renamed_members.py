"""Members that get other names, as an erasure gives them: what is left is as if they always had."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from actors.members import Members
from actors.standings import Standings
from tests.actors.naive import columns, seeded

SECRET = b"a secret of 16 b"
NAME_BYTES_MAX = 255
RULES: dict[str, Any] = {
    "aggregation": "best", "directions": ("desc",), "tie_rule": "latest", "distinct": True,
}  # fmt: skip
NAMES = (
    st.sampled_from([b"", b"a", b"ab", b"b", b"\xff" * 255, b"a\x00", "Žofia".encode()])
    | st.binary(max_size=4)
    | st.binary(min_size=60, max_size=NAME_BYTES_MAX)
)


def record(members: Members, names: list[bytes], first_sequence: int) -> list[int]:
    ends, blob = columns(names)
    previous = members.plan(ends, blob, first_sequence)
    return list(members.record(ends, blob, previous, first_sequence))


def named(names: list[bytes], heads: list[int]) -> Members:
    """Make members who had these names, in the order of their slots, from the start."""
    members = Members(SECRET)
    for name, head in zip(names, heads, strict=True):
        record(members, [name], head)
    return members


def text_of(names: list[bytes]) -> bytes:
    """Give names as a dump holds them: one after another, each behind its length."""
    return b"".join(bytes([len(name)]) + name for name in names)


class RenamingMachine(RuleBasedStateMachine):
    """Keeps, beside, each slot's name, head, score and time, which its standings must list."""

    def __init__(self) -> None:
        super().__init__()
        self.members = Members(SECRET)
        self.standings = Standings(self.members, **RULES)
        self.names: list[bytes] = []
        self.heads: list[int] = []
        self.rows: list[tuple[int, int]] = []
        self.sequence = 1

    @rule(batch=st.lists(NAMES, max_size=8), data=st.data())
    def record(self, batch: list[bytes], data: st.DataObject) -> None:
        slots = record(self.members, batch, self.sequence)
        for sequence, (name, slot) in enumerate(zip(batch, slots, strict=True), self.sequence):
            if name in self.names:
                assert slot == self.names.index(name)
                self.heads[slot] = sequence
                continue
            assert slot == len(self.names)
            self.names.append(name)
            self.heads.append(sequence)
            self.rows.append(data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2))))
            score, achieved_at = self.rows[slot]
            self.standings.apply(array("i", [slot]), array("q", [score]), array("q", [achieved_at]))
        self.sequence += len(batch)

    @precondition(lambda self: self.names)
    @rule(name=NAMES, data=st.data())
    def rename(self, name: bytes, data: st.DataObject) -> None:
        slot = data.draw(st.integers(0, len(self.names) - 1))
        if name in self.names:
            with pytest.raises(ValueError, match="another member's"):
                self.members.rename(slot, name)
            return
        former, self.names[slot] = self.names[slot], name
        row = self.standings.row(slot)
        assert row is not None
        self.standings.remove(slot)
        self.members.rename(slot, name)
        self.standings.put(slot, *row)
        assert (self.members.find(former), self.members.find(name)) == (-1, slot)

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def rename_too_long(self, data: st.DataObject) -> None:
        slot = data.draw(st.integers(0, len(self.names) - 1))
        with pytest.raises(ValueError, match="longer than 255 bytes"):
            self.members.rename(slot, bytes(NAME_BYTES_MAX + 1))

    @rule()
    def reload(self) -> None:
        self.members = Members.load(self.members.dump(), SECRET)
        self.standings = Standings.load(self.standings.dump(), self.members, **RULES)

    @invariant()
    def is_as_if_the_names_had_never_been_others(self) -> None:
        self.members._check()
        self.standings._check()
        dump = dict(self.members.dump())
        assert dump["names"] == text_of(self.names)
        assert self.members.digest == named(self.names, self.heads).digest
        for slot, (name, head) in enumerate(zip(self.names, self.heads, strict=True)):
            assert (self.members.find(name), self.members.name(slot)) == (slot, name)
            assert self.members.head(slot) == head
        entries = zip(self.names, self.rows, strict=True)
        order = sorted((-score, -achieved_at, name) for name, (score, achieved_at) in entries)
        listed = [(-score, -achieved_at, name) for name, (score,), achieved_at in self.page()]
        assert listed == order

    def page(self) -> list[Any]:
        return self.standings.page(0, len(self.names) + 1)


def test_renamed_members_equal_the_naive_model() -> None:
    """Renamed to anything, in any order, members are those who had their names from the start.

    So is their digest, what is dumped of them, to its last byte, and standings they return to.
    """
    run_state_machine_as_test(RenamingMachine, settings=settings(deadline=None))


def test_many_renames_leave_every_name_to_be_found() -> None:
    """Thousands of renames, in all tables, keep each name, and no byte of a former one."""
    draw = seeded(3)
    names = [b"%d is known by this name" % number for number in range(4_000)]
    members = Members(SECRET)
    record(members, names, 1)
    slots = draw.sample(range(len(names)), 2_000)
    for number, slot in enumerate(slots):
        names[slot] = b"~%d-%s" % (number, b"x" * draw.choice([0, 5, 40]))
        members.rename(slot, names[slot])
    for number, slot in enumerate(slots[:500]):  # some of them once more
        names[slot] = b"#%d" % number
        members.rename(slot, names[slot])
    members._check()
    for known in (members, Members.load(members.dump(), SECRET)):
        assert [known.find(name) for name in names] == list(range(len(names)))
        assert dict(known.dump())["names"] == text_of(names)
        assert all(known.find(b"%d is known by this name" % slot) == -1 for slot in slots)
    assert members.digest == named(names, list(range(1, len(names) + 1))).digest


def test_a_former_name_may_be_taken_again() -> None:
    """Whoever comes by the name of somebody renamed is another member, with a chain of its own."""
    members = Members(SECRET)
    assert record(members, [b"ada", b"bob", b"ada"], 1) == [0, 1, 0]
    members.rename(0, b"~1")
    ends, blob = columns([b"ada", b"~1"])
    previous = members.plan(ends, blob, 4)
    assert list(previous) == [0, 3]
    assert list(members.record(ends, blob, previous, 4)) == [2, 0]
    assert [members.head(slot) for slot in range(3)] == [5, 2, 4]
    members._check()


def test_what_is_no_slot_is_not_renamed() -> None:
    """A slot that nobody has is an IndexError, and changes nothing."""
    members = Members(SECRET)
    record(members, [b"ada", b"bob"], 1)
    digest = members.digest
    for slot in (-1, 2, 2**40):
        with pytest.raises(IndexError):
            members.rename(slot, b"new")
    assert members.digest == digest
    members._check()
