"""A log written again with other records at the same sequences, so that some text leaves the disk.

Owns the segments that are made for it: those that hold nothing to be changed are links to what is
there, the others are new, with their own chain of hashes. So that what follows one of these still
fits, it remembers the hash that its former self ended with. Nothing of the log is changed here:
`LmdbEventLog.put_in_place` takes what was built.
"""

from __future__ import annotations

import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from persistence.chained_log import decode_at
from persistence.event_log import LmdbEventLog
from persistence.records import Record, encode, rechain, record_hash
from persistence.sealing import make_seal
from persistence.segments import (
    DATA,
    EMPTY_SEGMENT_BYTES,
    SCAN_BYTES_MAX,
    Seal,
    Segment,
    link_files,
    write_seal,
)

GROWTH_MAX = 8  # a pseudonym for one letter makes a short record thrice as long

Rewrite = Callable[[Record], Record]


def write_again(
    log: LmdbEventLog,
    target: Path,
    changed: Sequence[int],
    rewrite: Rewrite,
    checkpoint: Callable[[], None],
    texts: Sequence[bytes] = (),
) -> None:
    """Build, in the directory `target`, the sealed segments of a log with other records.

    changed: the first sequences, rising, of the records that `rewrite` changes; what it returns
    takes the same sequences, and GROWTH_MAX times the bytes at most. target: on the log's disk;
    what is there is removed. checkpoint: may raise, to stop. texts: what no file may hold in the
    end, not even in pages without records, as a commit that was cut off leaves them. Complexity:
    O(bytes). Durable on return.

    Raises DamagedError, which names the record: nothing damaged is written again. StorageFullError
    before a segment that has no room, CommitFailedError, OSError.
    """
    if target.exists():
        shutil.rmtree(target)
    target.mkdir()
    for index, (source, seal) in enumerate(log.segments):
        if seal is None:
            return
        place = bisect_left(changed, seal.first_sequence)
        changes = place < len(changed) and changed[place] <= seal.last_sequence
        if changes or _holds(source / DATA, texts, checkpoint):
            log.check_room(2 * (source / DATA).stat().st_size)
            path = target / source.name
            path.mkdir()
            map_bytes = GROWTH_MAX * (source / DATA).stat().st_size + EMPTY_SEGMENT_BYTES
            records = _records(log, index, seal, rewrite, checkpoint)
            _write_segment(path, map_bytes, seal.end[1], records)
        else:
            link_files(source, target / source.name)


def _holds(path: Path, texts: Sequence[bytes], checkpoint: Callable[[], None]) -> bool:
    """Tell whether a file holds any of some texts, anywhere. Complexity: O(bytes x texts)."""
    if not texts:
        return False
    overlap = max(map(len, texts)) - 1
    before = b""
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(SCAN_BYTES_MAX):
            window = before + chunk
            if any(text in window for text in texts):
                return True
            before = window[-overlap:] if overlap else b""
            checkpoint()
    return False


def _records(
    log: LmdbEventLog, index: int, seal: Seal, rewrite: Rewrite, checkpoint: Callable[[], None]
) -> Iterator[tuple[int, bytes]]:
    """Yield first sequence and bytes of a segment's records as they are to be."""
    chain = seal.first_previous_hash
    for first_sequence, data in log.scan_segment(index):
        record = decode_at(first_sequence, data, log.segments[index][0] / DATA)
        other = rewrite(record)
        written = rechain(data, chain) if other is record else encode(other, chain)
        yield first_sequence, written
        chain = record_hash(written)
        checkpoint()


def _write_segment(
    path: Path, map_bytes: int, followed_hash: bytes, records: Iterator[tuple[int, bytes]]
) -> None:
    Segment.create(path, map_bytes, 0)
    segment = Segment.open_live(path, map_bytes, writable=True)
    try:
        batch: list[tuple[int, bytes]] = []
        batch_bytes = 0
        for first_sequence, data in records:
            batch.append((first_sequence, data))
            batch_bytes += len(data)
            if batch_bytes >= SCAN_BYTES_MAX:
                segment.put(batch, 0)
                batch, batch_bytes = [], 0
        segment.put(batch, 0)
        segment.put_followed_hash(followed_hash)
        write_seal(path, make_seal(segment))
    finally:
        segment.close()
