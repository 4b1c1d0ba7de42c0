"""Between a full segment and its seal: making the one from the other, and holding them together.

A seal names the last hash of a segment. Whoever has followed the chain of hashes to it knows that
each record of the segment, once it has the hash that it claims, is the one that was sealed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from persistence.chained_log import decode_at
from persistence.errors import DamagedError
from persistence.records import HASH_BYTES, previous_hash, record_hash
from persistence.segments import DATA, Seal, Segment

_PERSONALISATION = b"ranknode log"


def make_seal(segment: Segment) -> Seal:
    """Describe a full segment; the hashes of its records make it vouch for all of them.

    Raises DamagedError for an empty one, or one whose first or last record is damaged.
    """
    ends = segment.ends()
    if ends is None:
        raise DamagedError(f"{segment.directory}: is empty, but not the last")
    file = segment.directory / DATA
    (first_sequence, first), (last_first_sequence, last) = ends
    decode_at(first_sequence, first, file)
    return Seal(
        first_sequence=first_sequence,
        last_sequence=decode_at(last_first_sequence, last, file).last_sequence,
        records=segment.entries,
        first_previous_hash=previous_hash(first),
        last_hash=record_hash(last),
        pages=segment.pages,
        followed_hash=segment.followed_hash,
    )


def open_checked(directory: Path, seal: Seal) -> Segment:
    """Open a sealed segment whose pages and chain of hashes are walked first.

    Raises DamagedError unless it holds what was sealed: another segment's file may be in its place.
    Complexity: O(records).
    """
    segment = Segment.open_sealed(directory, checked=False)
    try:
        _require_sealed(segment, seal)
    except BaseException:
        segment.close()
        raise
    return segment


def _require_sealed(segment: Segment, seal: Seal) -> None:
    start = seal.first_sequence - 1, seal.first_previous_hash
    end = segment.require_chain(start, seal.last_sequence)
    if (*end, segment.entries) != (seal.last_sequence, seal.last_hash, seal.records):
        raise DamagedError(f"{segment.directory / DATA}: is not what was sealed")


def whole_hash(own_hash: bytes, before: Sequence[bytes]) -> bytes:
    """Return a hash that vouches for a log up to a record whose own hash is `own_hash`.

    before: the last hashes of earlier segments that were written again, in order. What follows one
    of these follows its former self, so that no later hash vouches for it.
    """
    if not before:
        return own_hash
    hashes = b"".join([*before, own_hash])
    return hashlib.blake2b(hashes, digest_size=HASH_BYTES, person=_PERSONALISATION).digest()
