"""The segments of a log in their order: which holds a sequence, and what their seals vouch for.

Owns the names of a log's segments, and that each follows the one before. Frozen: where a segment
begins, or is written again, other places take the place of these at once, for whoever reads.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from persistence.chained_log import decode_at
from persistence.errors import DamagedError
from persistence.pages import require_pages
from persistence.records import EMPTY_HASH, previous_hash, record_hash
from persistence.sealing import make_seal, whole_hash
from persistence.segments import DATA, Seal, Segment, read_seal, write_seal

_NAME = re.compile(r"[0-9]{8}")


class Place(NamedTuple):
    """A segment's place in the log; `seal` is None for the live one, the last."""

    first_sequence: int
    number: int
    seal: Seal | None


@dataclass(frozen=True)
class LogPlaces:
    """The segments in `directory`; written_again: the seals of those, by their last sequence."""

    directory: Path
    each: tuple[Place, ...]
    written_again: dict[int, Seal]

    @classmethod
    def survey(cls, directory: Path, live: Segment, *, seals: bool) -> Self:
        """Find the segments and that each follows the one before, by their seals.

        seals: whether a seal that was lost is written again. Raises DamagedError.
        """
        live_number = int(live.directory.name)
        numbers = [number for number in segment_numbers(directory) if number <= live_number]
        if numbers != list(range(1, live_number + 1)):
            raise DamagedError(f"{directory}: segments are missing, there are {numbers}")
        each: list[Place] = []
        written_again: dict[int, Seal] = {}
        next_sequence, chain = 1, EMPTY_HASH
        for number in numbers[:-1]:
            path = segment_path(directory, number)
            seal = read_seal(path) or _seal_again(path, writes=seals)
            if (seal.first_sequence, seal.first_previous_hash) != (next_sequence, chain):
                raise DamagedError(f"{path}: does not follow the segment before")
            require_pages(path / DATA, seal.pages)
            each.append(Place(next_sequence, number, seal))
            if seal.followed_hash:
                written_again[seal.last_sequence] = seal
            chain = seal.end[1]
            next_sequence = seal.last_sequence + 1
        ends = live.ends()
        if ends and (ends[0][0], previous_hash(ends[0][1])) != (next_sequence, chain):
            raise DamagedError(f"{live.directory}: does not follow the segment before")
        return cls(directory, (*each, Place(next_sequence, live_number, None)), written_again)

    def begun(self, seal: Seal) -> LogPlaces:
        """Return the places after the live segment was sealed and the next one begun."""
        former = self.each[-1]
        live = Place(seal.last_sequence + 1, former.number + 1, None)
        each = (*self.each[:-1], former._replace(seal=seal), live)
        return LogPlaces(self.directory, each, self.written_again)

    @property
    def live(self) -> Place:
        """Return the place of the segment that is written to."""
        return self.each[-1]

    def index(self, sequence: int) -> int:
        """Return the index of the place that holds a sequence. Complexity: O(log segments)."""
        return bisect_right(self.each, sequence, key=lambda place: place.first_sequence) - 1

    def path(self, index: int) -> Path:
        """Return the directory of the segment at an index."""
        return segment_path(self.directory, self.each[index].number)

    @property
    def before_live(self) -> tuple[int, bytes]:
        """Return the last sequence before the live segment, and the hash that it goes on from."""
        seal = self.each[-2].seal if len(self.each) > 1 else None
        return self.live.first_sequence - 1, seal.end[1] if seal else EMPTY_HASH

    def end(self, live: Segment) -> tuple[int, bytes]:
        """Return the log's last sequence and its record's hash. Raises DamagedError."""
        ends = live.ends()
        if not ends:
            return self.before_live
        first_sequence, data = ends[1]
        last = decode_at(first_sequence, data, live.directory / DATA)
        return last.last_sequence, record_hash(data)

    def hash_behind(self, sequence: int, last_hash: bytes) -> bytes:
        """Return the hash that is followed by what comes behind a record that ends there."""
        seal = self.written_again.get(sequence)
        return last_hash if seal is None else seal.followed_hash

    def whole_hash(self, sequence: int, followed_hash: bytes) -> bytes:
        """Return the hash that vouches for the log up to the record that ends there.

        followed_hash: what the next record follows, or would.
        """
        seal = self.written_again.get(sequence)
        own_hash = followed_hash if seal is None else seal.last_hash
        before = [
            self.written_again[last] for last in sorted(self.written_again) if last < sequence
        ]
        return whole_hash(own_hash, [seal.last_hash for seal in before])


def segment_numbers(directory: Path) -> list[int]:
    """List the numbers of the segments that are in a log's directory."""
    if not directory.is_dir():
        return []
    names = (path.name for path in directory.iterdir())
    return sorted(int(name) for name in names if _NAME.fullmatch(name))


def segment_path(directory: Path, number: int) -> Path:
    """Name the directory of a segment."""
    return directory / f"{number:08d}"


def _seal_again(path: Path, *, writes: bool) -> Seal:
    """Make the seal of a segment that has a successor, but whose own seal was lost."""
    segment = Segment.open_sealed(path, checked=False)
    try:
        seal = make_seal(segment)
    finally:
        segment.close()
    if writes:
        write_seal(path, seal)
    return seal
