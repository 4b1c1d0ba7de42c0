from __future__ import annotations

import doctest
import threading
from array import array
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import actors.standings
from actors.members import Members
from actors.standings import Standings
from tests.actors.naive import (
    AGGREGATIONS,
    CROWD,
    NAMES,
    TIE_RULES,
    Pair,
    Score,
    columns,
    crowd,
    seeded,
)

LEAF_SLOTS = 512


class StandingsMachine(RuleBasedStateMachine):
    @initialize(
        aggregation=st.sampled_from(AGGREGATIONS),
        tie_rule=st.sampled_from(TIE_RULES),
        directions=st.lists(st.sampled_from(["asc", "desc"]), min_size=1, max_size=4),
        distinct=st.booleans(),
        sparse=st.booleans(),
    )
    def begin(
        self, aggregation: str, tie_rule: str, directions: list[str], distinct: bool, sparse: bool
    ) -> None:
        self.pair = Pair(aggregation, tuple(directions), tie_rule, distinct, sparse)
        self.keys = len(directions)

    @rule(data=st.data())
    def apply_few(self, data: st.DataObject) -> None:
        value = st.tuples(*[st.integers(-2, 2)] * self.keys)
        event = st.tuples(st.sampled_from(NAMES[:12]), value, st.integers(-2, 3))
        self.pair.apply(data.draw(st.lists(event, max_size=8)))

    @rule(
        seed=st.integers(0, 1 << 32), count=st.integers(1, 900), spread=st.sampled_from([1, 3, 500])
    )
    def apply_many(self, seed: int, count: int, spread: int) -> None:
        self.pair.apply(crowd(seed, count, self.keys, spread))

    @rule(seed=st.integers(0, 1 << 32), count=st.integers(1, 100))
    def play_elsewhere(self, seed: int, count: int) -> None:
        self.pair.feed(crowd(seed, count, self.keys, 1))

    @precondition(lambda self: self.pair.naive.events)
    @rule(seed=st.integers(0, 1 << 32))
    def remove_one(self, seed: int) -> None:
        self.pair.remove(seeded(seed).choice(sorted(self.pair.naive.events)))

    @precondition(lambda self: len(self.pair.naive.events) > 300)
    @rule(start=st.integers(0, 100), count=st.integers(100, CROWD))
    def remove_a_run(self, start: int, count: int) -> None:
        for name, _, _ in self.pair.naive.order()[start : start + count]:
            self.pair.remove(name)

    @precondition(lambda self: self.pair.naive.events)
    @rule(seed=st.integers(0, 1 << 32), over=st.booleans())
    def take_out_and_put_back(self, seed: int, over: bool) -> None:
        """Put a row back, whatever stood in its place: it is all there is of a member."""
        names = sorted(self.pair.naive.events)
        slot, other = (self.pair.members.find(seeded(seed + n).choice(names)) for n in range(2))
        row, another = self.pair.real.row(slot), self.pair.real.row(other)
        if over:
            self.pair.real.put(slot, *another)
            assert self.pair.real.row(slot) == another
        else:
            self.pair.real.remove(slot)
            assert self.pair.real.row(slot) is None
        self.pair.real.put(slot, *row)
        assert self.pair.real.row(slot) == row

    @rule()
    def reload(self) -> None:
        self.pair.reload()

    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        score = data.draw(st.tuples(*[st.integers(-4, 4)] * self.keys))
        name = data.draw(st.sampled_from([*NAMES[:12], b"", b"zzz"]))
        self.pair.compare_score(score, data.draw(st.integers(-3, 4)), name)

    @invariant()
    def equals_the_model(self) -> None:
        if hasattr(self, "pair"):
            self.pair.members._check()
            self.pair.real._check()
            self.pair.compare()
            self.pair.compare_listing()


def test_standings_equal_the_naive_model() -> None:
    """Any mix of events, removals and reloads leaves, and lists, what the naive model does."""
    run_state_machine_as_test(
        StandingsMachine, settings=settings(deadline=None, stateful_step_count=20)
    )


@pytest.mark.parametrize(("aggregation", "tie_rule"), [*product(AGGREGATIONS, TIE_RULES)])
@pytest.mark.parametrize("keys", [1, 2, 3])
@pytest.mark.parametrize(("distinct", "sparse"), [(False, False), (False, True), (True, False)])
def test_every_rule_with_every_direction(
    aggregation: str, tie_rule: str, keys: int, distinct: bool, sparse: bool
) -> None:
    """Each aggregation, tie rule, direction, number of keys and distinctness gives its order."""
    for directions in product(["asc", "desc"], repeat=keys):
        pair = Pair(aggregation, directions, tie_rule, distinct, sparse)
        pair.apply(crowd(seed=keys, count=600, keys=keys, spread=2))
        pair.real._check()
        pair.compare()
        pair.compare_listing()
        for score in [(0, 0, 0), (-1, 1, 0), (1, -2, 1), (2, -3, 0), (-3, 2, 2)]:
            pair.compare_score(score[:keys], 2, NAMES[0])


@pytest.mark.parametrize("size", [1, 2, 511, 512, 513, 514, 1023, 1024, 1025, 1537])
@pytest.mark.parametrize("step", [1, -1, 7])
@pytest.mark.parametrize(("distinct", "sparse"), [(False, False), (False, True), (True, True)])
def test_sizes_around_the_boundaries_of_leaves(
    size: int, step: int, distinct: bool, sparse: bool
) -> None:
    """Filled from either end or in between, and emptied again, every size keeps its order."""
    pair = Pair("latest", ("asc",), "earliest", distinct, sparse)
    pair.feed([(b"elsewhere", (0,), 0)])
    for number in range(size):
        pair.apply([(NAMES[number], (number * step % 1_543 // 2,), 0)])
    pair.real._check()
    pair.compare()
    pair.reload()
    pair.real._check()
    for number in range(size):
        pair.remove(NAMES[number * 5 % size] if size % 5 else NAMES[number])
        if number % 97 == 0:
            pair.real._check()
    assert len(pair.real) == 0
    pair.real._check()
    pair.apply([(b"again", (1,), 1)])
    pair.compare()


def test_a_loaded_window_takes_inserts_without_splitting_every_leaf() -> None:
    """Leaves are loaded to nine tenths, so that the next inserts find room."""
    pair = Pair("best", ("desc",), "earliest")
    pair.apply([(name, (number,), 0) for number, name in enumerate(NAMES)])
    pair.reload()
    before = pair.real.nbytes
    pair.apply([(b"new%d" % number, (number * 40,), 0) for number in range(40)])
    assert pair.real.nbytes - before < 8 * LEAF_SLOTS * 4
    pair.compare()


@pytest.mark.parametrize("sparse", [False, True])
def test_half_a_million_operations(sparse: bool) -> None:
    """After half a million random events, removals and reloads the order is still the model's."""
    draw = seeded(7)
    pair = Pair("sum", ("desc", "asc"), "earliest", sparse=sparse)
    names = [draw.randbytes(6) for _ in range(20_000)]
    for step in range(125):
        events: list[tuple[bytes, Score, int]] = [
            (draw.choice(names), (draw.randrange(-3, 9), draw.randrange(3)), draw.randrange(1_000))
            for _ in range(4_000)
        ]
        pair.real.apply(*pair.feed(events))
        for event in events:
            pair.naive.count(*event)
        for name in draw.sample(sorted(pair.naive.events), 20 if step % 25 else 2_000):
            pair.remove(name)
        if step % 25 == 24:
            pair.real._check()
            assert pair.real.page(0, len(names)) == pair.naive.order()
            pair.reload()
    pair.members._check()


@pytest.mark.parametrize("sparse", [False, True])
def test_sums_that_leave_64_bits_change_nothing(sparse: bool) -> None:
    """A batch with a sum outside int64 is refused whole, also if it comes back in range later."""
    pair = Pair("sum", ("desc",), "earliest", sparse=sparse)
    top = 2**63 - 1
    pair.apply([(b"a", (top - 5,), 1), (b"b", (-top,), 1)])
    pair.apply([(b"b", (-1,), 1)])
    digest = pair.real.digest
    for values in ([6], [5, 1], [6, -6]):
        events: list[tuple[bytes, Score, int]] = [(b"new", (1,), 2)]
        events += [(b"a", (value,), 2) for value in values]
        batch = pair.feed(events)
        with pytest.raises(OverflowError, match="64-bit"):
            pair.real.apply(*batch)
        assert pair.real.digest == digest
        pair.real._check()
    pair.apply([(b"a", (5,), 2), (b"a", (-9,), 2), (b"b", (top,), 2), (b"c", (top,), 2)])
    assert pair.real.magnitude == 2**63
    pair.compare()


@given(value=st.integers(-(10**6), 10**6), decimals=st.integers(0, 8))
def test_digest_compares_values_not_their_scale(value: int, decimals: int) -> None:
    """Equal standings have equal digests whatever the board's secret, order or decimals."""
    digests = []
    for scale, secret, names in ((0, b"0", [b"ann", b"bob"]), (1, b"1", [b"bob", b"ann"])):
        members = Members(secret * 16)
        ends, blob = columns(names)
        slots = members.record(ends, blob, members.plan(ends, blob, 1), 1)
        standings = Standings(members, "best", ("desc",), "latest", decimals=(decimals + scale,))
        values = array("q", [value * 10**scale] * 2)
        standings.apply(slots, values, array("q", [5, 5]))
        digests.append(standings.digest)
    assert digests[0] == digests[1]


def test_digest_tells_all_that_stands_apart() -> None:
    """A digest depends on name, score and achieved_at, and on no member that does not stand."""
    digests = set()
    for name, score, achieved_at in [(b"a", 1, 1), (b"b", 1, 1), (b"a", 2, 1), (b"a", 1, 2)]:
        pair = Pair("best", ("desc",), "earliest")
        pair.feed([(b"unseen", (1,), 1)])
        pair.apply([(name, (score,), achieved_at), (b"gone", (4,), 4)])
        pair.remove(b"gone")
        digests.add(pair.real.digest)
    assert len(digests) == 4


@pytest.fixture(params=[False, True], ids=["whole", "sparse"])
def loaded(request: pytest.FixtureRequest) -> Pair:
    pair = Pair("sum", ("desc", "asc"), "earliest", sparse=request.param)
    pair.feed(crowd(seed=4, count=300, keys=2, spread=3))
    pair.apply(crowd(seed=3, count=1_500, keys=2, spread=3))
    pair.remove(min(pair.naive.events))
    return pair


def test_a_corrupt_dump_is_refused_or_equal(loaded: Pair) -> None:
    """Flipped, cut or lengthened columns give ValueError or equal standings, never a crash."""
    draw = seeded(11)
    dump = dict(loaded.real.dump())
    entries = loaded.real.page(0, CROWD)
    refused = 0
    for _ in range(1_500):
        name = draw.choice(sorted(dump))
        column = bytearray(dump[name])
        kind = draw.randrange(4)
        if kind == 0:
            del column[draw.randrange(len(column)) :]
        elif kind == 1:
            column += draw.randbytes(draw.choice([1, 4, 8, 24]))
        else:
            column[draw.randrange(len(column))] ^= 1 << draw.randrange(8)
        try:
            standings = Standings.load(dump | {name: column}, loaded.members, **loaded.rules)
        except ValueError:
            refused += 1
            continue
        standings._check()
        assert standings.page(0, CROWD) == entries
    assert refused > 1_000


def test_a_dump_of_other_rules_or_columns_is_refused(loaded: Pair) -> None:
    """A dump loads only under the rules, members and columns it was made with."""
    dump = loaded.real.dump()
    for change in (
        {"directions": ("asc", "asc")}, {"tie_rule": "latest"}, {"directions": ("desc",)},
        {"decimals": (1, 0)}, {"aggregation": "best"}, {"sparse": not loaded.rules["sparse"]},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"\w"):
            Standings.load(dump, loaded.members, **(loaded.rules | change))
    with pytest.raises(ValueError, match="more rows than members"):
        Standings.load(dump, Members(bytes(16)), **loaded.rules)
    with pytest.raises(ValueError, match="columns"):
        Standings.load(dump[1:], loaded.members, **loaded.rules)


@pytest.mark.parametrize("sparse", [False, True])
def test_an_empty_window_answers_and_reloads(sparse: bool) -> None:
    """A window without events has no entries and every new member would come first."""
    pair = Pair("best", ("desc",), "earliest", sparse=sparse)
    pair.reload()
    pair.apply([])
    pair.real._check()
    assert (len(pair.real), pair.real.page(0, 5), pair.real.better((1,))) == (0, [], 0)
    assert (pair.real.place((1,)), pair.real.seek((1,), 0, b""), pair.real.digest) == (
        0, 0, bytes(16)
    )  # fmt: skip
    assert pair.real.better_distinct((1,)) == 0


@pytest.mark.parametrize("sparse", [False, True])
def test_what_does_not_fit_is_refused(sparse: bool) -> None:
    """Wrong lengths, slots, rules and scores raise an error and change nothing."""
    pair = Pair("best", ("desc",), "earliest", distinct=False, sparse=sparse)
    pair.apply([(b"a", (1,), 1)])
    one, real = array("q", [1]), pair.real
    for slots, values, times in (([0], [1, 1], [1]), ([0], [1], []), ([0, 0], [1], [1])):
        with pytest.raises(ValueError, match="each event needs"):
            real.apply(array("i", slots), array("q", values), array("q", times))
    for slot in (1, -1):
        with pytest.raises(IndexError):
            real.apply(array("i", [slot]), one, one)
        with pytest.raises(KeyError):
            real.index(slot)
        with pytest.raises(IndexError):
            real.slot_at(slot)
        assert slot not in real
    with pytest.raises(ValueError, match="Buffer dtype"):
        real.apply(one, one, one)
    with pytest.raises(ValueError, match="not negative"):
        real.page(-1, 1)
    with pytest.raises(ValueError, match="a score has 1 keys"):
        real.better((1, 2))
    with pytest.raises(ValueError, match="not counted"):
        real.better_distinct((1,))
    for rules in (
        ("worst", ("asc",), "member"), ("best", (), "member"), ("best", ("up",), "member"),
        ("best", ("asc",), "none"), ("best", ("asc",) * 5, "member"),
        ("best", ("asc",), "member", False, (10,)), ("best", ("asc",), "member", False, (1, 2)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"aggregation|direction|tie rule|decimals"):
            Standings(pair.members, *rules)
    real._check()
    pair.compare()


@pytest.mark.parametrize("sparse", [False, True])
def test_dump_beside_changes_is_consistent_or_refused(sparse: bool) -> None:
    """A change during a dump in another thread is refused; the dump is that of one moment."""
    pair = Pair("best", ("desc",), "earliest", sparse=sparse)
    pair.apply([(name, (number,), 0) for number, name in enumerate(NAMES)])
    dumps: list[dict[str, bytes]] = []
    thread = threading.Thread(
        target=lambda: dumps.extend(dict(pair.real.dump()) for _ in range(50))
    )
    thread.start()
    refusals = set()
    for number in range(2_000):
        batch = pair.feed([(NAMES[number % CROWD], (number,), 0)])
        try:
            pair.real.apply(*batch)
        except RuntimeError as refused:
            refusals.add(str(refused))
    thread.join()
    assert refusals <= {"the standings are being dumped"}
    for dump in dumps:
        Standings.load(dump, pair.members, **pair.rules)._check()


def test_doctests() -> None:
    """The examples of the documentation are true."""
    result = doctest.testmod(actors.standings)
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    ("slot", "score", "flags"),
    [(0, (1, 2), 1), (9, (1,), 1), (-1, (1,), 1), (0, (1,), 0), (0, (1,), 7)],
)
def test_what_is_no_row_is_not_put(sparse, slot, score, flags):
    """A row of another width, of no member or with flags that none has changes nothing."""
    pair = Pair("best", ("desc",), "earliest", False, sparse)
    pair.apply([(NAMES[0], (5,), 1)])
    before = pair.real.dump()
    with pytest.raises(ValueError, match=r"row|flags"):
        pair.real.put(slot, score, 0, flags)
    assert pair.real.dump() == before
    pair.real._check()
