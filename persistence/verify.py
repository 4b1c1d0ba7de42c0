"""The offline checker of a board's directory: every byte that a recovery may rely on.

Owns the list of what is checked: the pages of each segment, each record's hash, order and chain,
the seals, both slots of the head, the owner's mark, what the board itself can tell of a record
(`audit`), and that each snapshot equals the replay at its sequence. Left out is what holds nothing:
the free pages of a segment beyond LMDB's list of them, `lock.mdb` and `owner.lock`. Goes on after a
finding where that makes sense. Writes nothing, so it may run beside the node that serves the board.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from persistence.chained_log import decode_as
from persistence.errors import DamagedError, FormatTooNewError, OutdatedError, RanknodeError
from persistence.event_log import HEAD, LmdbEventLog
from persistence.head import Head, head_findings, read_head
from persistence.ownership import OWNER, read_owner
from persistence.pages import page_findings
from persistence.records import (
    EMPTY_HASH,
    Record,
    SequencesLostRecord,
    previous_hash,
    record_hash,
)
from persistence.recovery import LOAD_ERRORS, Load, Machine, load_snapshot, reason
from persistence.segments import DATA, SEALED, Segment, read_seal
from persistence.snapshot import list_snapshots, snapshot_sequence

LOG = "log"
SNAPSHOTS = "snapshots"
FIRST_EPOCH = 1  # of a board that was created, and never opened
Progress = Callable[[int, int], None]

# How a state may refuse a record that no correct writer would have logged.
APPLY_ERRORS = (RanknodeError, ValueError, LookupError, TypeError, AssertionError)


class AuditedMachine(Machine, Protocol):
    """A state that can look at a record before it applies it."""

    def audit(self, record: Record, log: LmdbEventLog) -> list[str]:
        """List what in `record` no correct writer would have logged after this state."""


AuditedT = TypeVar("AuditedT", bound=AuditedMachine)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: in which file, at which record's first sequence, and what."""

    file: str
    record: int | None
    what: str

    def __str__(self) -> str:
        where = self.file if self.record is None else f"{self.file}: the record at {self.record}"
        return f"{where}: {self.what}"


@dataclass(frozen=True)
class BoardReport:
    """What a verification saw, and what it found.

    state_digest is that of the whole replay, None if that was not possible. lost: what a repair
    has given up, which is no finding any more.
    """

    directory: Path
    records: int
    last_sequence: int
    last_hash: str
    log_bytes: int
    segments: int
    snapshots: int
    state_digest: str | None
    findings: tuple[Finding, ...]
    lost: tuple[SequencesLostRecord, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Tell whether nothing was found."""
        return not self.findings


def verify_board(
    directory: Path,
    fresh: Callable[[], AuditedT],
    load: Load[AuditedT],
    *,
    confirm_keys: bool = True,
    progress: Progress | None = None,
) -> BoardReport:
    """Check the board in `directory`; what is wrong is in the report, not raised.

    confirm_keys: whether the board audits each record, which looks up earlier events in the log.
    progress: called with the sequences done and their total. Complexity: O(log + snapshots).
    """
    # Whatever a running writer adds meanwhile is newer than these, so they are read before the log.
    snapshots = list_snapshots(directory / SNAPSHOTS)
    head, findings = _head(directory / LOG / HEAD)
    try:
        log = LmdbEventLog.open_readonly(directory / LOG, strict=False)
    except (RanknodeError, OSError) as error:
        findings.append(Finding(LOG, None, str(error)))
        findings.extend(_segment_findings(directory))
        return BoardReport(directory, 0, 0, "", 0, 0, len(snapshots), None, tuple(findings))
    try:
        check = _Check(log, fresh(), load, snapshots, findings)
        if head is not None:
            check.head(head)
        check.owner(directory)
        check.records(confirm_keys, progress)
        check.remaining_snapshots()
        return check.report(directory)
    finally:
        log.close()


def _head(path: Path) -> tuple[Head | None, list[Finding]]:
    """Read the head, and list what is wrong with its file."""
    findings = [Finding(f"{LOG}/{HEAD}", None, what) for what in head_findings(path)]
    try:
        return read_head(path), findings
    except RanknodeError:
        return None, findings


def _segment_findings(directory: Path) -> list[Finding]:
    """Look at each segment, by itself, of a log that cannot be opened as a whole."""
    findings = []
    for path in sorted((directory / LOG).glob("[0-9]*")):
        file = f"{LOG}/{path.name}"
        structure = page_findings(path / DATA)
        findings += [Finding(f"{file}/{DATA}", None, what) for what in structure]
        if not structure:
            findings += _record_findings(path, file)
        try:
            read_seal(path)
        except (DamagedError, FormatTooNewError) as error:
            findings.append(Finding(f"{file}/{SEALED}", None, str(error)))
    return findings


def _record_findings(path: Path, file: str) -> list[Finding]:
    findings = []
    try:
        segment = Segment.open_live(path, 0, writable=False)
    except DamagedError as error:
        return [Finding(f"{file}/{DATA}", None, str(error))]
    file = f"{file}/{DATA}"
    try:
        from_sequence = 0
        while chunk := segment.chunk(from_sequence):
            for first_sequence, data in chunk:
                try:
                    decode_as(first_sequence, data)
                except (DamagedError, FormatTooNewError) as error:
                    findings.append(Finding(file, first_sequence, str(error)))
            from_sequence = chunk[-1][0] + 1
    except DamagedError as error:
        findings.append(Finding(file, None, str(error)))
    finally:
        segment.close()
    return findings


class _Check(Generic[AuditedT]):
    """One pass over a log, with the replay beside it for as long as nothing is damaged."""

    def __init__(
        self,
        log: LmdbEventLog,
        machine: AuditedT,
        load: Load[AuditedT],
        snapshots: list[Path],
        findings: list[Finding],
    ) -> None:
        self._log = log
        self._machine = machine
        self._load = load
        self._snapshots = {snapshot_sequence(path): path for path in snapshots}
        self._snapshot_count = len(snapshots)
        self._findings = findings
        self._intact = True  # whether everything so far was applied
        self._end: tuple[int, bytes] | None = (0, EMPTY_HASH)  # None behind a damaged record
        self._records = 0
        self._lost: list[SequencesLostRecord] = []

    def head(self, head: Head) -> None:
        """Find a log that lost its end."""
        try:
            self._log.require_head(head)
        except DamagedError as error:
            self._find(f"{LOG}/{HEAD}", None, str(error))

    def owner(self, directory: Path) -> None:
        """Find an owner's mark that is lost, or older than the log that it is the owner of."""
        try:
            # In this order: an owner leaves its mark before it takes the log.
            log_epoch = self._log.epoch
            epoch = read_owner(directory / OWNER).epoch
        except FileNotFoundError:
            if log_epoch > FIRST_EPOCH:
                self._find(OWNER, None, "is missing")
        except (DamagedError, FormatTooNewError) as error:
            self._find(OWNER, None, str(error))
        else:
            if epoch < log_epoch:
                self._find(OWNER, None, f"its epoch, {epoch}, is before the log's, {log_epoch}")

    def records(self, confirm_keys: bool, progress: Progress | None) -> None:
        """Go through every record of every segment, and the snapshots on the way."""
        for index, (path, seal) in enumerate(self._log.segments):
            file = f"{LOG}/{path.name}/{DATA}"
            records_before = self._records
            try:
                for first_sequence, data in self._log.scan_segment(index):
                    self._records += 1
                    self._record(file, first_sequence, data, confirm_keys)
                    if progress is not None:
                        progress(first_sequence, self._log.last_sequence)
            except DamagedError as error:
                self._lose_track(file, None, str(error))
            if seal is not None and self._end is not None:
                sealed = (seal.records, (seal.last_sequence, seal.last_hash))
                if sealed != (self._records - records_before, self._end):
                    sealed_file = f"{LOG}/{path.name}/{SEALED}"
                    self._find(sealed_file, None, "the segment is not what was sealed")
                else:
                    self._end = seal.end
                    self._followed(index, file, seal.followed_hash)
        if self._records == 0 and self._intact:
            self._find(LOG, None, "does not begin with a definition")
        if progress is not None:
            progress(self._log.last_sequence, self._log.last_sequence)

    def _followed(self, index: int, file: str, followed_hash: bytes) -> None:
        """Find a segment that does not remember, as its seal does, what the next one goes on from.

        Whoever makes a lost seal again relies on it.
        """
        try:
            if self._log.followed_hash(index) != followed_hash:
                self._find(file, None, "does not remember which hash the next segment goes on from")
        except DamagedError as error:
            self._find(file, None, str(error))

    def _record(self, file: str, first_sequence: int, data: bytes, confirm_keys: bool) -> None:
        try:
            record = decode_as(first_sequence, data)
        except (DamagedError, FormatTooNewError) as error:
            self._lose_track(file, first_sequence, str(error))
            return
        if self._end not in (None, (first_sequence - 1, previous_hash(data))):
            self._lose_track(file, first_sequence, "does not follow the record before")
        self._end = record.last_sequence, record_hash(data)
        if isinstance(record, SequencesLostRecord):
            self._lost.append(record)
        if not self._intact:
            return
        try:
            if confirm_keys:
                for what in self._machine.audit(record, self._log):
                    self._find(file, first_sequence, what)
            self._machine.apply(record)
        except APPLY_ERRORS as error:
            self._lose_track(file, first_sequence, f"cannot be applied: {reason(error)}")
            self._end = record.last_sequence, record_hash(data)
            return
        path = self._snapshots.pop(record.last_sequence, None)
        if path is not None:
            self._snapshot(path, self._machine.state_digest())

    def remaining_snapshots(self) -> None:
        """Check the snapshots that no record led to: by themselves, as far as that goes."""
        for path in self._snapshots.values():
            self._snapshot(path, None)

    def _snapshot(self, path: Path, digest: str | None) -> None:
        try:
            machine = load_snapshot(path, self._log, self._load)
        except FileNotFoundError:
            return  # a running writer has pruned it
        except OutdatedError:
            return  # a board does without it, and drops it with its next ones
        except LOAD_ERRORS as error:
            self._find(f"{SNAPSHOTS}/{path.name}", None, reason(error))
            return
        if digest is not None and machine.state_digest() != digest:
            self._find(f"{SNAPSHOTS}/{path.name}", None, "is not the state that the replay reaches")

    def report(self, directory: Path) -> BoardReport:
        """Return what was seen and found."""
        return BoardReport(
            directory=directory,
            records=self._records,
            last_sequence=self._log.last_sequence,
            last_hash=self._log.last_hash.hex(),
            log_bytes=self._log.stats.bytes,
            segments=self._log.stats.segments,
            snapshots=self._snapshot_count,
            state_digest=self._machine.state_digest() if self._intact and self._records else None,
            findings=tuple(self._findings),
            lost=tuple(self._lost),
        )

    def _find(self, file: str, record: int | None, what: str) -> None:
        self._findings.append(Finding(file, record, what))

    def _lose_track(self, file: str, record: int | None, what: str) -> None:
        """Note a finding behind which the replay would mean nothing."""
        self._find(file, record, what)
        self._intact = False
        self._end = None
