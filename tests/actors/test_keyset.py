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

import actors.keyset
from actors.keyset import KeySet
from tests.actors.naive import columns, seeded

SECRET = b"a secret of 16 b"
KEYS = st.sampled_from([b"", b"a", b"b", b"ab", b"\xff" * 255])


class KeySetMachine(RuleBasedStateMachine):
    """Keeps, beside, each day's keys with their sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = KeySet(SECRET)
        self.days: dict[int, list[tuple[bytes, int]]] = {}
        self.sequence = 1
        self.draws = 0

    def sequences(self, key: bytes) -> list[int]:
        return [sequence for day in self.days.values() for k, sequence in day if k == key]

    def add(self, batch: list[bytes], gap: int, day: int) -> None:
        first = self.sequence + gap
        self.keys.add(*columns(batch), first, day)
        if batch:
            known = self.days.setdefault(max([day, *self.days]), [])
            known.extend(zip(batch, range(first, first + len(batch)), strict=True))
            self.sequence = first + len(batch)

    @rule(batch=st.lists(KEYS, max_size=12), gap=st.integers(0, 3), day=st.integers(-3, 9))
    def add_few(self, batch: list[bytes], gap: int, day: int) -> None:
        self.add(batch, gap, day)

    @rule(count=st.integers(1, 2_000), day=st.integers(-3, 9))
    def add_many(self, count: int, day: int) -> None:
        self.draws += 1
        self.add([b"%d-%d" % (self.draws, number) for number in range(count)], 0, day)

    @rule(day=st.integers(-3, 11))
    def forget(self, day: int) -> None:
        self.keys.forget(day)
        self.days = {known: keys for known, keys in self.days.items() if known >= day}

    @rule(key=KEYS | st.binary(max_size=3))
    def find(self, key: bytes) -> None:
        assert list(self.keys.find(key)) == self.sequences(key)

    @rule(batch=st.lists(KEYS, max_size=8))
    def find_all(self, batch: list[bytes]) -> None:
        expected = [
            (i, sequence) for i, key in enumerate(batch) for sequence in self.sequences(key)
        ]
        assert self.keys.find_all(*columns(batch)) == expected

    @rule()
    def reload(self) -> None:
        digest = self.keys.digest
        self.keys = KeySet.load(self.keys.dump(), SECRET)
        assert self.keys.digest == digest

    @invariant()
    def equals_the_model(self) -> None:
        self.keys._check()
        assert self.keys.days == sorted(self.days)
        assert len(self.keys) == sum(map(len, self.days.values()))


def test_key_sets_equal_the_naive_model() -> None:
    """Any adding, forgetting and reloading leaves the sequences that the model knows."""
    run_state_machine_as_test(KeySetMachine, settings=settings(deadline=None))


@pytest.fixture
def filled() -> KeySet:
    keys = KeySet(SECRET)
    for day in range(5):
        keys.add(*columns(b"%d-%d" % (day, n) for n in range(80)), 1 + day * 100, day)
    return keys


@pytest.mark.parametrize("count", [12_000, 50_000, 300_000])
def test_a_key_takes_at_most_24_bytes(count: int) -> None:
    """The set stays within 24 bytes a key at every size above some thousands."""
    keys = KeySet(SECRET)
    for start in range(0, count, 1_000):
        keys.add(*columns(b"%d" % n for n in range(start, start + 1_000)), 1 + start, 0)
        assert start < 11_000 or keys.nbytes <= 24 * len(keys)
    keys._check()
    for number in range(0, count, 997):
        assert number + 1 in keys.find(b"%d" % number)
    loaded = KeySet.load(keys.dump(), SECRET)
    loaded._check()
    assert loaded.nbytes <= 24 * len(loaded)


def test_forgotten_days_give_their_memory_back() -> None:
    """What a day took is free again some adds after the day was forgotten, without a pause."""
    keys = KeySet(SECRET)
    for start in range(0, 100_000, 1_000):
        keys.add(
            *columns(b"%d" % n for n in range(start, start + 1_000)), 1 + start, start // 50_000
        )
    before = keys.nbytes
    keys.forget(1)
    assert (len(keys), keys.find(b"7"), keys.nbytes) == (50_000, (), before)
    for number in range(300):
        keys.add(*columns([b"late %d" % number]), 200_000 + number, 1)
        if number % 60 == 0:
            keys._check()
    assert keys.nbytes <= 24 * len(keys)
    keys._check()


def test_digest_of_forgotten_days_is_that_of_never_having_been() -> None:
    """The digest covers live keys only, on whatever days and in whatever batches they came."""
    one, other = KeySet(SECRET), KeySet(SECRET)
    one.add(*columns([b"old"]), 1, 1)
    one.add(*columns([b"x", b"y"]), 5, 2)
    one.forget(2)
    other.add(*columns([b"x"]), 5, 7)
    other.add(*columns([b"y"]), 6, 8)
    assert one.digest == other.digest != bytes(16)
    one.forget(3)
    assert one.digest == bytes(16)


def test_many_sequences_of_one_key_stay_in_order() -> None:
    """Candidates of one fingerprint come by rising sequence, however often the table moved."""
    keys = KeySet(SECRET)
    for number in range(600):
        keys.add(*columns([b"same", b"other %d" % number]), 1 + 2 * number, number // 100)
    assert keys.find(b"same") == tuple(range(1, 1_200, 2))
    keys.forget(3)
    assert keys.find(b"same") == tuple(range(601, 1_200, 2))
    assert KeySet.load(keys.dump(), SECRET).find(b"same") == tuple(range(601, 1_200, 2))
    keys._check()


def test_a_corrupt_dump_is_refused_or_equal(filled: KeySet) -> None:
    """Flipped, cut or lengthened columns give ValueError or equal keys, never a crash."""
    dump, draw = dict(filled.dump()), seeded(5)
    for _ in range(2_000):
        name = draw.choice(sorted(dump))
        column = bytearray(dump[name])
        kind = draw.randrange(4)
        if kind == 0:
            del column[draw.randrange(len(column)) :]
        elif kind == 1:
            column += draw.randbytes(draw.choice([1, 8, 16, 40]))
        else:
            column[draw.randrange(len(column))] ^= 1 << draw.randrange(8)
        try:
            loaded = KeySet.load(dump | {name: column}, SECRET)
        except ValueError:
            continue
        # A day's number and the next sequence are no part of the keys' digest.
        assert name in ("days", "next")
        loaded._check()
        assert loaded.digest == filled.digest
    with pytest.raises(ValueError, match="columns"):
        KeySet.load([], SECRET)
    with pytest.raises(ValueError, match="digest"):
        KeySet.load(dump, bytes(16))


def test_what_is_no_batch_is_refused(filled: KeySet) -> None:
    """Sequences that do not rise, ends outside the blob and short secrets change nothing."""
    digest = filled.digest
    for ends, blob, first in (
        ([1], b"a", 480),
        ([2], b"a", 900),
        ([1], b"a", 0),
        ([1], b"ab", 900),
    ):
        with pytest.raises(ValueError, match=r"sequence|end"):
            filled.add(array("I", ends), blob, first, 9)
    with pytest.raises(ValueError, match="end"):
        filled.find_all(array("I", [3]), b"a")
    with pytest.raises(ValueError, match="16 bytes"):
        KeySet(b"short")
    assert filled.digest == digest
    filled._check()


def test_doctests() -> None:
    """The examples of the documentation are true."""
    result = doctest.testmod(actors.keyset)
    assert result.attempted
    assert not result.failed
