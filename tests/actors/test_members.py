from __future__ import annotations

import doctest
from array import array

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

import actors.members
from actors.members import Members, siphash64, siphash128
from tests.actors.naive import columns, seeded

SECRET = b"a secret of 16 b"
NAMES = st.sampled_from([b"", b"a", b"ab", b"b", b"\xff" * 255, b"a\x00", "Žofia".encode()])
# The first vectors of the reference implementation: key 00..0f, input 00..(n-1).
VECTORS_64 = [
    "310e0edd47db6f72", "fd67dc93c539f874", "5a4fa9d909806c0d", "2d7efbd796666785",
    "b7877127e09427cf", "8da699cd64557618", "cee3fe586e46c9cb", "37d1018bf50002ab",
    "6224939a79f5f593",
]  # fmt: skip
VECTORS_128 = [
    "a3817f04ba25a8e66df67214c7550293", "da87c1d86b99af44347659119b22fc45",
    "8177228da4a45dc7fca38bdef60affe4", "9c70b60c5267a94e5f33b6b02985ed51",
    "f88164c12d9c8faf7d0f6e7c7bcd5579", "1368875980776f8854527a07690e9627",
    "14eeca338b208613485ea0308fd7a15e", "a1f1ebbed8dbc153c0b84aa61ff08239",
    "3b62a9ba6258f5610f83e264f31497b4",
]  # fmt: skip


@pytest.mark.parametrize("size", range(9))
def test_siphash_gives_the_published_vectors(size: int) -> None:
    """The hash is SipHash-2-4, in both widths, as its authors published it."""
    key, data = bytes(range(16)), bytes(range(size))
    assert siphash64(key, data).to_bytes(8, "little").hex() == VECTORS_64[size]
    assert siphash128(key, data).hex() == VECTORS_128[size]
    for function in (siphash64, siphash128):
        with pytest.raises(ValueError, match="16 bytes"):
            function(b"short", data)


class MembersMachine(RuleBasedStateMachine):
    """Interns by record and keeps, beside, each name's slot (its place in `names`) and head."""

    def __init__(self) -> None:
        super().__init__()
        self.members = Members(SECRET)
        self.names: list[bytes] = []
        self.heads: dict[bytes, int] = {}
        self.sequence = 1

    @rule(batch=st.lists(NAMES | st.binary(max_size=5), max_size=12), gap=st.integers(0, 3))
    def record(self, batch: list[bytes], gap: int) -> None:
        ends, blob = columns(batch)
        first = self.sequence + gap
        digest, size = self.members.digest, len(self.members)
        previous = self.members.plan(ends, blob, first)
        assert (self.members.digest, len(self.members)) == (digest, size)
        expected_previous, expected_slots = [], []
        for sequence, name in enumerate(batch, first):
            expected_previous.append(self.heads.get(name, 0))
            if name not in self.heads:
                self.names.append(name)
            self.heads[name] = sequence
            expected_slots.append(self.names.index(name))
        assert previous == array("q", expected_previous)
        assert self.members.record(ends, blob, previous, first) == array("i", expected_slots)
        self.sequence = first + len(batch)

    @rule(batch=st.lists(NAMES, min_size=1, max_size=6), data=st.data())
    def break_a_chain(self, batch: list[bytes], data: st.DataObject) -> None:
        ends, blob = columns(batch)
        previous = self.members.plan(ends, blob, self.sequence)
        wrong = data.draw(st.integers(0, len(batch) - 1))
        previous[wrong] += 1
        with pytest.raises(ValueError, match=f"^sequence {self.sequence + wrong} follows"):
            self.members.record(ends, blob, previous, self.sequence)
        for sequence, name in enumerate(batch[:wrong], self.sequence):
            if name not in self.heads:
                self.names.append(name)
            self.heads[name] = sequence
        self.sequence += len(batch)

    @rule()
    def reload(self) -> None:
        digest = self.members.digest
        self.members = Members.load(self.members.dump(), SECRET)
        assert self.members.digest == digest

    @rule(name=NAMES | st.binary(max_size=300))
    def find(self, name: bytes) -> None:
        known = self.names.index(name) if name in self.names else -1
        assert self.members.find(name) == known

    @invariant()
    def equals_the_model(self) -> None:
        self.members._check()
        assert len(self.members) == len(self.names)
        for slot, name in enumerate(self.names):
            assert self.members.name(slot) == name
            assert self.members.head(slot) == self.heads[name]


def test_members_equal_the_naive_model() -> None:
    """Any batches, broken chains and reloads leave the slots, names and heads of the model."""
    run_state_machine_as_test(MembersMachine, settings=settings(deadline=None))


def filled(count: int, seed: int = 1) -> tuple[Members, list[bytes]]:
    draw = seeded(seed)
    names = [b"%d-%s" % (number, draw.randbytes(draw.randrange(20))) for number in range(count)]
    members = Members(SECRET)
    for start in range(0, count, 1_000):
        ends, blob = columns(names[start : start + 1_000])
        previous = members.plan(ends, blob, 1 + start)
        members.record(ends, blob, previous, 1 + start)
    return members, names


def test_a_hundred_thousand_names_are_all_found() -> None:
    """Growth in all tables keeps every name, and costs at most 30 bytes beside it."""
    members, names = filled(100_000)
    members._check()
    assert [members.find(name) for name in names] == list(range(len(names)))
    assert members.nbytes <= sum(map(len, names)) * 9 / 8 + 30 * len(names)
    assert members.find(b"absent") == -1
    again = Members.load(members.dump(), SECRET)
    again._check()
    assert [again.find(name) for name in names] == list(range(len(names)))


def test_digest_depends_on_names_and_heads_only() -> None:
    """Equal members have equal digests whatever the order of arrival; a new head changes it."""
    digests = []
    for batch in ([b"a", b"b"], [b"b", b"a"], [b"a", b"b", b"a"]):
        members = Members(SECRET)
        for name in batch:
            sequence = 5 if name == b"a" else 9
            sequence += members.find(name) >= 0
            ends, blob = columns([name])
            members.record(ends, blob, members.plan(ends, blob, sequence), sequence)
        digests.append(members.digest)
    assert digests[0] == digests[1] != digests[2]


def test_a_corrupt_dump_is_refused() -> None:
    """A flipped, cut or lengthened column of a dump gives ValueError and never a crash."""
    members, _ = filled(300)
    dump, draw = dict(members.dump()), seeded(5)
    for _ in range(1_500):
        name = draw.choice(sorted(dump))
        column = bytearray(dump[name])
        kind = draw.randrange(4)
        if kind == 0:
            del column[draw.randrange(len(column)) :]
        elif kind == 1:
            column += draw.randbytes(draw.choice([1, 8, 16]))
        else:
            column[draw.randrange(len(column))] ^= 1 << draw.randrange(8)
        with pytest.raises(ValueError, match=r"\w"):
            Members.load(dump | {name: column}, SECRET)
    with pytest.raises(ValueError, match="columns"):
        Members.load([], SECRET)
    with pytest.raises(ValueError, match="digest"):
        Members.load(dump, bytes(16))


def test_a_name_twice_in_a_dump_is_refused() -> None:
    """No two slots of loaded members share a name."""
    dump = dict(filled(3)[0].dump())
    twice = {"names": dump["names"] * 2, "heads": dump["heads"] * 2, "digest": dump["digest"]}
    with pytest.raises(ValueError, match="occurs twice"):
        Members.load(twice, SECRET)


@pytest.mark.parametrize(
    ("ends", "blob", "first"),
    [
        ([2, 1], b"abc", 1), ([4], b"abc", 1), ([2], b"abc", 1), ([], b"abc", 1),
        ([256], b"x" * 256, 1), ([3], b"abc", 0), ([3], b"abc", 2**63 - 1),
    ],
)  # fmt: skip
def test_what_is_no_batch_is_refused(ends: list[int], blob: bytes, first: int) -> None:
    """Ends outside the blob, names too long and sequences out of range change nothing."""
    members = Members(SECRET)
    with pytest.raises(ValueError, match=r"end|name|sequence"):
        members.plan(array("I", ends), blob, first)
    with pytest.raises(ValueError, match=r"end|name|sequence"):
        members.record(array("I", ends), blob, array("q", [0] * len(ends)), first)
    with pytest.raises(ValueError, match="one sequence per event"):
        members.record(array("I", [1]), b"a", array("q"), 1)
    assert len(members) == 0
    members._check()


def test_what_is_no_slot_is_refused() -> None:
    """Slots outside the members raise IndexError, a secret of another length ValueError."""
    members, _ = filled(2)
    for slot in (-1, 2, 2**40):
        with pytest.raises(IndexError):
            members.name(slot)
        with pytest.raises(IndexError):
            members.head(slot)
    with pytest.raises(ValueError, match="16 bytes"):
        Members(b"short")


def test_doctests() -> None:
    """The examples of the documentation are true."""
    result = doctest.testmod(actors.members)
    assert result.attempted
    assert not result.failed
