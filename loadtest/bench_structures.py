"""Measure the native structures, and what an event costs on its way through them.

`python -m loadtest.bench_structures [--members 1000000] [--sizes 10000,1000000]` prints Markdown
tables: bytes a member, microseconds a call at several sizes, and an event's by stage. Names are
random ids of 24 bytes, from a fixed seed; times include Python's.
"""

from __future__ import annotations

import argparse
import random
from array import array
from collections.abc import Iterator
from time import perf_counter

from actors.keyset import KeySet
from actors.members import Members
from actors.standings import Standings, from_listing, listing_digest
from loadtest.intake_figures import intake_table

SECRET = b"a secret of 16 b"
NAME_BYTES = 24
BATCH = 1_000
CALLS = 20_000
RULES = ("best", ("desc",), "earliest")


def columns(names: list[bytes]) -> tuple[array[int], bytes]:
    """Return names of NAME_BYTES as cumulative ends and a blob."""
    ends = array("I", range(NAME_BYTES, NAME_BYTES * (len(names) + 1), NAME_BYTES))
    return ends, b"".join(names)


class Bench:
    """A board's structures with `size` members, and the draws to exercise them."""

    def __init__(self, size: int) -> None:
        self.draw = random.Random(size)
        self.names = [self.draw.randbytes(NAME_BYTES // 2).hex().encode() for _ in range(size)]
        self.members = Members(SECRET)
        self.standings = Standings(self.members, *RULES)
        self.sparse = Standings(self.members, *RULES, sparse=True)
        self.sequence = 1
        for batch in self.batches():
            self.count(batch, 1_000_000)

    def batches(self) -> Iterator[list[bytes]]:
        """Cut all names into batches."""
        for start in range(0, len(self.names), BATCH):
            yield self.names[start : start + BATCH]

    def count(self, batch: list[bytes], value_max: int, in_sparse: bool = False) -> float:
        """Record and apply one event of each name, also in the sparse window; returns seconds."""
        ends, blob = columns(batch)
        values = array("q", [self.draw.randrange(value_max) for _ in batch])
        times = array("q", [self.draw.randrange(1 << 50) for _ in batch])
        previous = self.members.plan(ends, blob, self.sequence)
        started = perf_counter()
        slots = self.members.record(ends, blob, previous, self.sequence)
        self.standings.apply(slots, values, times)
        if in_sparse:
            self.sparse.apply(slots, values, times)
        elapsed = perf_counter() - started
        self.sequence += len(batch)
        return elapsed

    def rank_us(self) -> float:
        """Microseconds to find a name and its index."""
        names = self.draw.choices(self.names, k=CALLS)
        started = perf_counter()
        for name in names:
            self.standings.index(self.members.find(name))
        return (perf_counter() - started) / CALLS * 1e6

    def update_us(self) -> float:
        """Microseconds to apply one event that moves its member."""
        slots = [array("i", [self.draw.randrange(len(self.names))]) for _ in range(CALLS)]
        values = [array("q", [1_000_000 + self.draw.randrange(1_000_000)]) for _ in range(CALLS)]
        time = array("q", [1])
        started = perf_counter()
        for slot, value in zip(slots, values, strict=True):
            self.standings.apply(slot, value, time)
        return (perf_counter() - started) / CALLS * 1e6

    def batch_us(self, in_sparse: bool = False) -> float:
        """Microseconds an event to record and apply batches of known members."""
        rounds = 50
        picks = [self.draw.choices(self.names, k=BATCH) for _ in range(rounds)]
        seconds = sum(self.count(pick, 4_000_000, in_sparse) for pick in picks)
        return seconds / (rounds * BATCH) * 1e6

    def fill_sparse(self) -> float:
        """Have everyone play in the sparse window, too; returns microseconds an event."""
        seconds = sum(self.count(batch, 4_000_000, True) for batch in self.batches())
        return seconds / len(self.names) * 1e6

    def seal_and_open_s(self) -> tuple[float, float, float]:
        """Seconds to list the sparse window, to digest the listing, and to make it standings."""
        started = perf_counter()
        listing = self.sparse.listing()
        made = perf_counter()
        listing_digest(listing, (0,))
        digested = perf_counter()
        from_listing(listing, SECRET, *RULES)
        return made - started, digested - made, perf_counter() - digested

    def dump_and_load_s(self) -> tuple[float, float]:
        """Seconds to dump, and to load, both structures."""
        started = perf_counter()
        members, standings = self.members.dump(), self.standings.dump()
        dumped = perf_counter()
        Standings.load(standings, Members.load(members, SECRET), *RULES)
        return dumped - started, perf_counter() - dumped


def keys_figures(bench: Bench) -> tuple[float, float, float]:
    """Return bytes a key, and nanoseconds a key to add and to find in batches."""
    keys, adding, finding, sequence = KeySet(SECRET), 0.0, 0.0, 1
    batches = [columns(batch) for batch in bench.batches()]
    for ends, blob in batches:
        started = perf_counter()
        keys.add(ends, blob, sequence, 0)
        adding += perf_counter() - started
        sequence += len(ends)
    for ends, blob in batches:
        started = perf_counter()
        keys.find_all(ends, blob)
        finding += perf_counter() - started
    return keys.nbytes / len(keys), adding / len(keys) * 1e9, finding / len(keys) * 1e9


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=1_000_000)
    parser.add_argument("--sizes", default="10000", help="more sizes for rank and update")
    parser.add_argument("--rounds", type=int, default=40, help="of submitting events")
    options = parser.parse_args()
    bench = Bench(options.members)
    members, standings = bench.members.nbytes, bench.standings.nbytes
    rank, update, batch = bench.rank_us(), bench.update_us(), bench.batch_us()
    dump, load = bench.dump_and_load_s()
    filling, in_both = bench.fill_sparse(), bench.batch_us(in_sparse=True)
    listing, digesting, opening = bench.seal_and_open_s()
    key_bytes, key_add, key_find = keys_figures(bench)
    print(f"| with {options.members:,} members of {NAME_BYTES} bytes | |\n|---|---|")
    print(f"| Members, bytes a member | {members / options.members:.1f} |")
    print(f"| Standings, bytes a member | {standings / options.members:.1f} |")
    print(f"| both, bytes a member | {(members + standings) / options.members:.1f} |")
    print(f"| rank: find and index | {rank:.2f} µs |")
    print(f"| update: apply one event | {update:.2f} µs |")
    print(f"| record and apply, in batches of {BATCH:,} | {batch:.2f} µs an event |")
    print(f"| dump, load both | {dump:.3f} s, {load:.3f} s |")
    print(f"| sparse Standings, bytes a member | {bench.sparse.nbytes / options.members:.1f} |")
    print(f"| record, apply to both, first in the sparse one | {filling:.2f} µs an event |")
    print(f"| record, apply to both, in batches of {BATCH:,} | {in_both:.2f} µs an event |")
    print(f"| listing, its digest | {listing:.3f} s, {digesting:.3f} s |")
    print(f"| from_listing | {opening:.3f} s |")
    print(f"| KeySet, bytes a key | {key_bytes:.1f} |")
    print(f"| KeySet, add and find in batches | {key_add:.0f} ns, {key_find:.0f} ns a key |")
    print("\n| members | rank, µs | update, µs | batch, µs an event |\n|---|---|---|---|")
    print(f"| {options.members:,} | {rank:.2f} | {update:.2f} | {batch:.2f} |")
    del bench
    for size in map(int, options.sizes.split(",")):
        bench = Bench(size)
        figures = (bench.rank_us(), bench.update_us(), bench.batch_us())
        print(f"| {size:,} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |")
        del bench
    print(f"\n{intake_table(options.members, options.rounds)}")


if __name__ == "__main__":
    main()
