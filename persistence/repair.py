"""A damaged log made whole again: the longest valid row of its records, in a new log beside it.

Owns what is kept of a log (`survey_log`), the log that is built of it (`build_log`), and the one
step that puts it in the place of the damaged one (`put_in_place`), which is not changed before and
not lost afterwards: it lies in the directory where the new one was built. So a crash leaves the
damaged log as it was or the repaired one, and in the first case debris, which `was_set_aside` tells
from a log that must be kept. What follows for the board is the caller's business, and so is owning
it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from persistence.chained_log import decode_as
from persistence.errors import DamagedError
from persistence.event_log import HEAD, LmdbEventLog, LogOptions
from persistence.files import exchange, sync_directory
from persistence.head import Head, read_head
from persistence.pages import page_findings
from persistence.records import (
    EMPTY_HASH,
    EVENTS_PER_RECORD_MAX,
    SEQUENCE_MAX,
    SEQUENCES_LOST_MAX,
    Record,
    SequencesLostRecord,
    decode,
    record_hash,
)
from persistence.salvage import (
    End,
    Finds,
    Found,
    after,
    find_records,
    longest_row,
    row_to,
)
from persistence.sealing import make_seal, open_checked, whole_hash
from persistence.segments import (
    DATA,
    EMPTY_SEGMENT_BYTES,
    SCAN_BYTES_MAX,
    Seal,
    Segment,
    read_seal,
    write_seal,
)
from persistence.value_file import VERSION, read_value, write_value

NOTE = "repaired"  # beside the segments of a log that was built here
WHY_CHARACTERS_MAX = 500

_SEGMENT_NAME = re.compile(r"[0-9]{8}")


class RepairNote(msgspec.Struct, frozen=True):
    """Where a log comes from: the directory that it was built in, when, and why."""

    built_in: str
    repaired_at_us: int
    why: str
    version: int = VERSION


class Part(NamedTuple):
    """What is kept of one segment: all of it as it is, where it has a seal, or a row of records.

    followed_hash: what the next segment goes on from, where that is not the hash of the last one.
    """

    directory: Path
    seal: Seal | None
    row: list[Found]
    followed_hash: bytes = b""

    @property
    def written_again(self) -> bool:
        """Whether the next segment goes on from another hash than that of the last record."""
        return bool(self.followed_hash or (self.seal and self.seal.followed_hash))

    def records(self) -> Iterator[tuple[Record, bytes]]:
        """Yield the records that are kept, each with its own hash."""
        if self.seal is None:
            return ((decode(found.read()), found.hash) for found in self.row)
        return _records_of(self.directory)


@dataclass(frozen=True)
class LogSurvey:
    """What is kept of a log.

    end: where it ends. known: the highest sequence that anything in the log's directory names.
    epoch: the highest that a segment names, 0 where none is legible.
    """

    parts: tuple[Part, ...]
    end: End
    known: int
    epoch: int

    def kept(self) -> Iterator[tuple[Record, bytes]]:
        """Yield the records that are kept, each with the hash that vouches for all up to it."""
        before: list[bytes] = []
        for part in self.parts:
            own_hash = EMPTY_HASH
            for record, own_hash in part.records():
                yield record, whole_hash(own_hash, before)
            if part.written_again:
                before.append(own_hash)

    def dropped(self) -> Iterator[Record]:
        """Yield the records that are legible but not kept, in order, none of them twice."""
        last_sequence = self.end[0]
        for part in self.parts:
            if part.seal is not None:
                continue
            for found in after(find_records(part.directory / DATA).records, last_sequence):
                yield decode(found.read())
                last_sequence = found.last_sequence


def survey_log(directory: Path, until: int = SEQUENCE_MAX) -> LogSurvey:
    """Find the longest valid row of records in the log's directory that does not go past `until`.

    Each record that is part of it was read and verified. Complexity: O(bytes), in memory that
    grows with the records of the segments that are not sound. Raises FormatTooNewError, OSError.
    """
    head = _read_head(directory)
    end: End = (0, EMPTY_HASH)
    known = head.last_sequence if head else 0
    epoch = 0
    parts = []
    paths = _segment_paths(directory)
    for path in paths:
        seal = _seal_if_whole(path, end, until) if path != paths[-1] else None
        if seal is not None:
            parts.append(Part(path, seal, []))
            end = seal.end
            known = max(known, seal.last_sequence)
            continue
        finds, tree = find_records(path / DATA), _read_tree(path)
        committed = _committed_ends(path, head)
        row = _row(finds, tree, end, committed, until)
        followed_hash = _followed_hash(path, row)
        parts.append(Part(path, None, row, followed_hash))
        end = row[-1].end if row else end
        if followed_hash:
            end = end[0], followed_hash
        known = max([known, *(sequence for sequence, _ in committed)])
        known = _highest(known, finds, tree, guess=head is None and path == paths[-1])
        epoch = max(epoch, tree.epoch if tree else 0)
    return LogSurvey(tuple(parts), end, max(known, end[0]), epoch)


class _Tree(NamedTuple):
    """What the pages of a sound segment name: hashes of records, the last one's sequence."""

    hashes: set[bytes]
    last_first_sequence: int
    epoch: int


def _read_tree(path: Path) -> _Tree | None:
    """Read what a segment's tree names; None where its pages are not sound."""
    if page_findings(path / DATA):
        return None
    hashes, last_first_sequence = set(), 0
    try:
        segment = Segment.open_sealed(path, checked=True)
    except DamagedError:
        return None
    try:
        for first_sequence, data in _entries(segment):
            hashes.add(record_hash(data))
            last_first_sequence = first_sequence
        return _Tree(hashes, last_first_sequence, segment.epoch)
    except DamagedError:
        return None
    finally:
        segment.close()


def _entries(segment: Segment) -> Iterator[tuple[int, bytes]]:
    from_sequence = 0
    while chunk := segment.chunk(from_sequence):
        yield from chunk
        from_sequence = chunk[-1][0] + 1


def _row(
    finds: Finds, tree: _Tree | None, start: End, committed: Sequence[End], until: int
) -> list[Found]:
    """Find the row of records in one segment that goes on from `start`.

    committed: ends that are known to have been committed. A sound tree tells which records were,
    and a row that leads beyond it to such an end is what a damaged meta page has hidden. Without a
    tree, what lies behind the last known end may never have been committed; nor was it refused.
    """
    records = [found for found in finds.records if found.last_sequence <= until]
    row: list[Found] = []
    if tree is not None:
        row = longest_row([found for found in records if found.hash in tree.hashes], start)
    reached = row[-1].end if row else start
    for end in sorted(committed, reverse=True):
        beyond = row_to(records, reached, end) if end[0] > reached[0] else None
        if beyond is not None:
            row += beyond
            break
    if tree is None:
        row += longest_row(records, row[-1].end if row else start)
    return row


def _highest(known: int, finds: Finds, tree: _Tree | None, *, guess: bool) -> int:
    """Return the highest sequence that a segment names, or that is known already.

    guess: whether nothing else tells how far the log went. Then a last record that is not legible
    may have been as long as records are; to leave out sequences that none had is harmless.
    """
    known = max([known, *(found.last_sequence for found in finds.records)])
    for first_sequence, last_sequence in finds.claims:
        if first_sequence <= known + 1:
            known = max(known, last_sequence)
    if guess and (tree is None or tree.last_first_sequence > known):
        known += EVENTS_PER_RECORD_MAX
    return max(known, tree.last_first_sequence if tree else 0)


def _committed_ends(path: Path, head: Head | None) -> list[End]:
    """List the ends that a segment's row may be followed back from, by head and seal."""
    ends = [(head.last_sequence, head.last_hash)] if head else []
    try:
        seal = read_seal(path)
    except DamagedError:
        seal = None
    return [*ends, (seal.last_sequence, seal.last_hash)] if seal else ends


def _followed_hash(path: Path, row: Sequence[Found]) -> bytes:
    """Return what the next segment goes on from behind a row that reaches its segment's end."""
    try:
        seal = read_seal(path)
    except DamagedError:
        return b""
    reached = seal is not None and row and row[-1].end == (seal.last_sequence, seal.last_hash)
    return seal.followed_hash if seal is not None and reached else b""


def _seal_if_whole(path: Path, start: End, until: int) -> Seal | None:
    """Return the seal of a segment that is whole and follows `start`; a lost one is made again."""
    try:
        seal = _read_or_make_seal(path)
        if (seal.first_sequence - 1, seal.first_previous_hash) != start:
            return None
        open_checked(path, seal).close()
        for _ in _records_of(path):
            pass
    except DamagedError:
        return None
    return seal if seal.last_sequence <= until else None


def _read_or_make_seal(path: Path) -> Seal:
    try:
        seal = read_seal(path)
    except DamagedError:
        seal = None
    if seal is not None:
        return seal
    segment = Segment.open_sealed(path, checked=False)
    try:
        return make_seal(segment)
    finally:
        segment.close()


def _records_of(path: Path) -> Iterator[tuple[Record, bytes]]:
    """Yield the records of a sealed segment, verified, with their hashes. Raises DamagedError."""
    segment = Segment.open_sealed(path, checked=True)
    try:
        for first_sequence, data in _entries(segment):
            yield decode_as(first_sequence, data), record_hash(data)
    finally:
        segment.close()


def _read_head(directory: Path) -> Head | None:
    try:
        return read_head(directory / HEAD)
    except DamagedError:
        return None


def _segment_paths(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if _SEGMENT_NAME.fullmatch(path.name))


def lost_sequences(
    first_sequence: int, last_sequence: int, now_us: int, why: str
) -> list[SequencesLostRecord]:
    """Make the records that say that the sequences from one to another are lost, mostly one."""
    return [
        SequencesLostRecord(
            first_sequence=first,
            recorded_at_us=now_us,
            lost=min(SEQUENCES_LOST_MAX, last_sequence - first + 1),
            why=why[:WHY_CHARACTERS_MAX],
        )
        for first in range(first_sequence, last_sequence + 1, SEQUENCES_LOST_MAX)
    ]


def build_log(
    survey: LogSurvey, target: Path, note: RepairNote, epoch: int, tail: Sequence[Record]
) -> None:
    """Build the log of what is kept and `tail` in the directory `target`; durable on return.

    target: on the disk of the damaged log, and not there yet. Segments that are whole are linked,
    not copied: nobody writes to them. epoch: higher than of any owner so far. Raises
    StorageFullError, CommitFailedError, OSError.
    """
    target.mkdir()
    write_value(target / NOTE, note)
    parts = [part for part in survey.parts if part.seal is not None or part.row]
    row = parts.pop().row if parts and parts[-1].seal is None else []
    for number, part in enumerate(parts, 1):
        _build_segment(part, _new_segment(target, number))
    options = LogOptions()
    Segment.create(_new_segment(target, len(parts) + 1), options.segment_bytes_max, 0)
    log = LmdbEventLog(target, options, epoch=epoch)
    try:
        for batch in _batches(row):
            log.append_copies([data for _, data in batch])
        for record in tail:
            log.append([record])
    finally:
        log.close()
    for path in (*_segment_paths(target), target, target.parent):
        sync_directory(path)


def _new_segment(target: Path, number: int) -> Path:
    path = target / f"{number:08d}"
    path.mkdir()
    return path


def _build_segment(part: Part, path: Path) -> None:
    """Make a segment that is full of what is kept of one."""
    if part.seal is not None:
        os.link(part.directory / DATA, path / DATA)
        write_seal(path, part.seal)
        return
    map_bytes = 2 * sum(found.size for found in part.row) + EMPTY_SEGMENT_BYTES
    Segment.create(path, map_bytes, 0)
    segment = Segment.open_live(path, map_bytes, writable=True)
    try:
        for batch in _batches(part.row):
            segment.put(batch, 0)
        if part.followed_hash:
            segment.put_followed_hash(part.followed_hash)
        write_seal(path, make_seal(segment))
    finally:
        segment.close()


def _batches(row: Sequence[Found]) -> Iterator[list[tuple[int, bytes]]]:
    """Read records, about SCAN_BYTES_MAX at a time, each with its first sequence."""
    batch: list[tuple[int, bytes]] = []
    batch_bytes = 0
    for found in row:
        batch.append((found.first_sequence, found.read()))
        batch_bytes += found.size
        if batch_bytes >= SCAN_BYTES_MAX:
            yield batch
            batch, batch_bytes = [], 0
    if batch:
        yield batch


def put_in_place(built: Path, log: Path) -> None:
    """Exchange a log that was built with the damaged one, in one step; durable on return.

    A log that is missing altogether is simply replaced. Raises OSError, also where the file system
    cannot exchange two directories: nothing was changed then.
    """
    if log.exists():
        exchange(built, log)
    else:
        built.rename(log)
    sync_directory(log.parent)
    sync_directory(built.parent)


def was_set_aside(log: Path) -> bool:
    """Tell whether a log lies where it does because another was put in its place.

    Otherwise it was being built there, and may be incomplete.
    """
    return bool(_segment_paths(log)) and not was_built_in(log, log.parent.name)


def was_built_in(log: Path, name: str) -> bool:
    """Tell whether a log says that a repair has built it in the directory of that name."""
    try:
        return read_value(log / NOTE, RepairNote).built_in == name
    except (DamagedError, FileNotFoundError, NotADirectoryError):
        return False


def remove_built(log: Path) -> None:
    """Remove what there is of a log that was being built, its note last."""
    for path in (*_segment_paths(log), *([log] if log.exists() else [])):
        shutil.rmtree(path)
