from __future__ import annotations

import hashlib
import struct
import sys
import threading
from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.members import Members
from actors.standings import Standings, from_listing, listing_digest
from tests.actors.naive import CROWD, NAMES, SECRET, Entry, Pair, columns, crowd, seeded

RULES: dict[str, Any] = {
    "aggregation": "sum", "directions": ("desc", "asc"), "tie_rule": "earliest", "distinct": True,
}  # fmt: skip


def record(members: Members, names: list[bytes], sequence: int = 1) -> array[int]:
    ends, blob = columns(names)
    return members.record(ends, blob, members.plan(ends, blob, sequence), sequence)


def some_names(seed: int, count: int) -> list[bytes]:
    draw = seeded(seed)
    return [draw.randbytes(draw.choice([1, 12, 24, 250])) + b"%d" % n for n in range(count)]


def listed(*entries: Entry, flags: bytes = b"") -> dict[str, bytes]:
    """Write entries as the columns of a listing."""
    ends, names = columns(name for name, _, _ in entries)
    rows = array("q", [n for _, score, achieved_at in entries for n in (*score, achieved_at)])
    return {
        "ends": ends.tobytes(), "names": names, "rows": rows.tobytes(),
        "flags": flags or b"\1" * len(entries),
    }  # fmt: skip


def test_a_sparse_window_takes_memory_for_its_own_members() -> None:
    """The map costs at most 12 bytes a member standing; who plays elsewhere costs nothing."""
    count = 40_000
    members = Members(SECRET)
    slots = record(members, [b"%d" % number for number in range(count)])
    sizes = []
    for sparse, playing in ((False, count), (True, count), (True, count // 100)):
        standings = Standings(members, "best", ("desc",), "earliest", sparse=sparse)
        for start in range(0, playing, 1_000):
            batch = slots[start : min(start + 1_000, playing)]
            standings.apply(batch, array("q", range(len(batch))), array("q", batch))
        standings._check()
        sizes.append(standings.nbytes)
    whole, sparse_whole, sparse_few = sizes
    assert sparse_whole - whole <= 12 * count
    assert sparse_few < whole / 30


def test_rows_of_removed_members_are_used_again() -> None:
    """Members that come and go leave a sparse window no larger than those who stand."""
    pair = Pair("best", ("desc",), "latest", sparse=True)
    sizes = set()
    for turn in range(8):
        names = NAMES[turn * 200 : turn * 200 + 200]
        pair.apply([(name, (number % 7,), number) for number, name in enumerate(names)])
        pair.compare()
        sizes.add(len(dict(pair.real.dump())["slots"]))
        for name in names:
            pair.remove(name)
        pair.real._check()
        assert len(pair.real) == 0
    assert sizes == {4 * 200}


def test_slots_in_any_pattern_find_their_rows() -> None:
    """Dense, strided and scattered slots are told from all others, while rows come and go."""
    members = Members(SECRET)
    record(members, [b"%d" % number for number in range(1 << 16)])
    for stride in (1, 2, 64, 1_021, 1 << 12):
        standings = Standings(members, "latest", ("asc",), "member", sparse=True)
        wanted = array("i", range(0, 1 << 16, stride))
        standings.apply(wanted, array("q", bytes(8 * len(wanted))), array("q", wanted))
        gone = set(wanted[::3])
        for slot in gone:
            standings.remove(slot)
        standings._check()
        left = set(wanted) - gone
        assert {slot for slot in range(-2, (1 << 16) + 2) if slot in standings} == left
        assert all(standings.achieved_at(slot) == slot for slot in left)


def test_a_dump_of_another_secret_or_too_few_members_is_refused() -> None:
    """Slots that lead to other names, or to none, do not load."""
    pair = Pair("best", ("desc",), "earliest", sparse=True)
    pair.feed([(b"elsewhere", (1,), 1)])
    pair.apply([(b"ann", (1,), 1), (b"bob", (2,), 1)])
    dump = dict(pair.real.dump())
    few, others = Members(SECRET), Members(SECRET)
    record(few, [b"ann", b"bob"])
    record(others, [b"elsewhere", b"bob", b"ann"])
    for members in (few, others):
        with pytest.raises(ValueError, match=r"slot|digest"):
            Standings.load(dump, members, **pair.rules)
    twice = dump | {"slots": dump["slots"][:4] * 2}
    with pytest.raises(ValueError, match="slot"):
        Standings.load(twice, pair.members, **pair.rules)


def test_both_kinds_list_and_digest_the_same() -> None:
    """Whether a window is sparse, who else plays, and in what order members came is not seen."""
    events = crowd(seed=8, count=3_000, keys=2, spread=3)
    listings = []
    for sparse in (False, True):
        pair = Pair("sum", ("desc", "asc"), "earliest", sparse=sparse)
        pair.feed(crowd(seed=9, count=200 * sparse, keys=2, spread=3))
        pair.apply(events[::-1] if sparse else events)
        listings.append(pair.real.listing())
    assert listings[0] == listings[1]
    assert listing_digest(listings[0], (0, 0)) == listing_digest(dict(listings[1]), (0, 0))


@given(
    entries=st.lists(
        st.tuples(
            st.binary(max_size=255),
            st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 2),
            st.integers(-(2**63), 2**63 - 1),
        ),
        max_size=5,
    ),
    decimals=st.tuples(*[st.integers(0, 9)] * 2),
)
def test_the_digest_is_of_the_documented_text(
    entries: list[Entry], decimals: tuple[int, int]
) -> None:
    """SHA-256 of length, name, whole parts and billionths, achieved_at of each entry in order."""
    text = b""
    for name, score, achieved_at in entries:
        text += struct.pack("<I", len(name)) + name
        for key, places in zip(score, decimals, strict=True):
            whole, rest = divmod(abs(key), 10**places)
            sign = -1 if key < 0 else 1
            text += struct.pack("<qq", sign * whole, sign * rest * 10 ** (9 - places))
        text += struct.pack("<q", achieved_at)
    assert listing_digest(listed(*entries), decimals) == hashlib.sha256(text).digest()


def test_the_digest_of_many_slices() -> None:
    """A listing longer than the slices it is worked through in has the digest of its text."""
    pair = Pair("best", ("desc",), "member", sparse=True)
    pair.apply([(name, (len(name),), 5) for name in some_names(1, 6_000)])
    text = b"".join(
        struct.pack("<I", len(name)) + name + struct.pack("<qqq", *score, 0, achieved_at)
        for name, score, achieved_at in pair.naive.order()
    )
    assert listing_digest(pair.real.listing(), (0,)) == hashlib.sha256(text).digest()
    pair.compare_listing()


def test_the_digest_compares_values() -> None:
    """1.5 is 1.5 whatever the decimals; name, score and achieved_at are told apart."""
    assert listing_digest(listed((b"a", (15,), 1)), (1,)) == listing_digest(
        listed((b"a", (1_500,), 1)), (3,)
    )
    entries = [(b"a", (1,), 1), (b"b", (1,), 1), (b"a", (2,), 1), (b"a", (1,), 2)]
    assert len({listing_digest(listed(entry), (0,)) for entry in entries}) == 4


@pytest.mark.parametrize("aggregation", ["best", "sum", "latest"])
def test_a_sealed_window_goes_on_aggregating(aggregation: str) -> None:
    """Standings made from a listing take events and removals as those that were listed would."""
    pair = Pair(aggregation, ("desc",), "earliest", sparse=True)
    pair.apply(crowd(seed=5, count=2_000, keys=1, spread=2))
    rules = {name: rule for name, rule in pair.rules.items() if name != "sparse"}
    pair.members, pair.real = from_listing(pair.real.listing(), SECRET, **rules)
    pair.sequence = 10_000
    for index, name in enumerate(pair.naive.order()[:300]):
        if index % 3 == 0:
            pair.remove(name[0])
    batch = crowd(seed=6, count=2_000, keys=1, spread=2)
    ends, blob = columns(name for name, _, _ in batch)
    assert max(pair.members.plan(ends, blob, pair.sequence)) >= pair.sequence
    pair.apply(batch)
    pair.real._check()
    pair.compare()


def test_a_listing_out_of_order_is_refused() -> None:
    """Entries have to rise by the rules given, each name once, each standing."""
    first, second, third = (b"a", (5,), 1), (b"b", (5,), 2), (b"c", (4,), 0)
    good = listed(first, second, third)
    best: dict[str, Any] = {
        "aggregation": "best", "directions": ("desc",), "tie_rule": "earliest"
    }  # fmt: skip
    _, standings = from_listing(good, SECRET, **best)
    assert standings.page(0, 9) == [first, second, third]
    for entries in ((second, first), (third, second), (first, first), (first, (b"a", (1,), 1))):
        with pytest.raises(ValueError, match=r"out of place|twice"):
            from_listing(listed(*entries), SECRET, **best)
    for change in ({"directions": ("asc",)}, {"tie_rule": "latest"}):
        with pytest.raises(ValueError, match="out of place"):
            from_listing(good, SECRET, **(best | change))
    for flags in (b"\1\1\0", b"\1\1\2", b"\1\1\3", b"\1\1\5"):
        with pytest.raises(ValueError, match=r"flags|stand"):
            from_listing(good | {"flags": flags}, SECRET, **best)
    nobody = listed((b"a", (0,), 0), flags=b"\0")
    with pytest.raises(ValueError, match="not one entry"):
        from_listing(nobody, SECRET, **best)


def test_columns_that_do_not_fit_are_refused() -> None:
    """Missing, short and long columns, bad ends, keys and decimals are errors of both readers."""
    good = listed((b"a", (5,), 1), (b"b", (4,), 1))
    ends = [array("I", pair).tobytes() for pair in ((2, 1), (1, 3), (0, 1), (3, 2))]
    broken = [good | {"ends": column} for column in ends]
    broken += [good | {name: column + b"\0"} for name, column in good.items()]
    broken += [good | {name: column[:-1]} for name, column in good.items()]
    broken += [{name: good[name] for name in good if name != gone} for gone in good]
    broken += [good | {"digest": b""}, listed((b"a" * 256, (1,), 1)), listed((b"a", (1, 1), 1))]
    for listing in broken:
        with pytest.raises(ValueError, match=r"\w"):
            listing_digest(listing, (0,))
        with pytest.raises(ValueError, match=r"\w"):
            from_listing(listing, SECRET, "best", ("desc",), "earliest")
    for decimals in ((), (10,), (-1,), (0,) * 5):
        with pytest.raises(ValueError, match="decimals"):
            listing_digest(good, decimals)


def test_a_corrupt_listing_is_refused_or_itself_a_listing() -> None:
    """Flipped, cut or lengthened columns give ValueError or sound standings, never a crash."""
    pair = Pair(**RULES)
    pair.apply(crowd(seed=3, count=1_500, keys=2, spread=3))
    listing = dict(pair.real.listing())
    draw = seeded(12)
    refused = 0
    for _ in range(1_000):
        name = draw.choice(sorted(listing))
        column = bytearray(listing[name])
        kind = draw.randrange(4)
        if kind == 0:
            del column[draw.randrange(len(column)) :]
        elif kind == 1:
            column += draw.randbytes(draw.choice([1, 4, 8, 24]))
        else:
            column[draw.randrange(len(column))] ^= 1 << draw.randrange(8)
        broken = listing | {name: bytes(column)}
        try:
            members, standings = from_listing(broken, SECRET, **RULES)
        except ValueError:
            refused += 1
            continue
        members._check()
        standings._check()
        assert dict(standings.listing()) == broken
    assert refused > 500


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("sparse", [False, True])
def test_listing_while_names_move(sparse: bool, frequent_switches: None) -> None:
    """A listing made in a thread is right while others intern members and move their arrays."""
    pair = Pair("best", ("desc",), "earliest", sparse=sparse)
    pair.apply([(name, (number % 97,), 0) for number, name in enumerate(some_names(2, 4_500))])
    expected = pair.real.listing()
    other = Standings(pair.members, "best", ("desc",), "earliest", sparse=True)
    listings: list[Any] = []
    done = threading.Event()

    def list_on() -> None:
        while not done.is_set():
            listings.append(pair.real.listing() == expected)

    thread = threading.Thread(target=list_on)
    thread.start()
    for turn in range(400):
        other.apply(*pair.feed([(b"%d/%0240d" % (turn, n), (n,), 0) for n in range(100)]))
        assert pair.real.index(pair.real.slot_at(turn)) == turn
    done.set()
    thread.join()
    assert listings
    assert all(listings)
    pair.members._check()
    other._check()


def test_changes_during_a_listing_are_refused(frequent_switches: None) -> None:
    """A change of the same standings meanwhile raises; each listing is that of one moment."""
    pair = Pair("best", ("desc",), "earliest", sparse=True)
    pair.apply([(name, (number,), 0) for number, name in enumerate(NAMES * 3)])
    batches = [pair.feed([(NAMES[n % CROWD], (10_000 + n,), 0)]) for n in range(1_000)]
    listings: list[Any] = []
    thread = threading.Thread(
        target=lambda: listings.extend(pair.real.listing() for _ in range(100))
    )
    thread.start()
    refusals = set()
    for number, batch in enumerate(batches):
        try:
            if number % 50 == 49:
                pair.real.remove(batch[0][0])
            else:
                pair.real.apply(*batch)
        except RuntimeError as refused:
            refusals.add(str(refused))
    thread.join()
    assert refusals <= {"the standings are being dumped"}
    for listing in listings:
        from_listing(listing, SECRET, "best", ("desc",), "earliest")
    pair.real._check()
