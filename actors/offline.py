"""What is done with a board's files while no node, or another process, has it open: read only.

Owns the export's reading of events and the verification of a board's directory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from actors.archives import Archives
from actors.board import Board, ClosedWindow
from actors.definition import Definition
from actors.listing import LISTING, LOG, listing_of_log, read_listing
from actors.logged_board import ARCHIVES, SNAPSHOTS
from actors.witnesses import find_witnesses, require_end
from persistence.archive import archive_path, list_archives
from persistence.errors import RanknodeError
from persistence.event_log import LmdbEventLog
from persistence.records import Event, EventsRecord, Record, WindowClosedRecord
from persistence.verify import APPLY_ERRORS, BoardReport, Finding, verify_board


def read_events(directory: Path) -> tuple[Definition, Iterator[Event], int]:
    """Read a board's events from its log, beside a running node.

    Returns the current definition, the events in order of their sequences, and how many there may
    be at most. Errors: DamagedError, FormatTooNewError, OSError.
    """
    witnesses = find_witnesses(directory / SNAPSHOTS, directory / ARCHIVES)
    log = LmdbEventLog.open_readonly(directory / LOG)
    try:
        listing = listing_of_log(log, directory)
        require_end(witnesses, listing.incarnation, log.last_sequence)
    except BaseException:
        log.close()
        raise

    def events() -> Iterator[Event]:
        try:
            for record in log.read():
                if isinstance(record, EventsRecord):
                    yield from map(record.row, range(record.count))
        finally:
            log.close()

    return listing.definition, events(), log.last_sequence


class _AuditedBoard(Board):
    """A board that looks for a second use of a key before it applies a record."""

    def audit(self, record: Record, log: LmdbEventLog) -> list[str]:
        """List the keys of a record that were used before, within their retention."""
        if not isinstance(record, EventsRecord):
            return []
        again = _repeated_keys(record)
        for index, sequence in self.keys.find_all(record.key_ends, record.keys):
            event = record.row(index)
            if log.event(sequence).idempotency_key == event.idempotency_key:
                again.append((event.sequence, sequence))
        return [f"event {later} uses the key of event {earlier} again" for later, earlier in again]


def _repeated_keys(record: EventsRecord) -> list[tuple[int, int]]:
    """List the sequences of the events whose key the same record holds before, and of the first."""
    keys = bytes(record.keys)
    first_uses: dict[bytes, int] = {}
    again = []
    for sequence, (start, end) in enumerate(
        itertools.pairwise([0, *record.key_ends]), record.first_sequence
    ):
        first = first_uses.setdefault(keys[start:end], sequence)
        if first != sequence:
            again.append((sequence, first))
    return again


def verify(directory: Path, progress: Callable[[int, int], None] | None = None) -> BoardReport:
    """Check a board's files offline: log, keys, snapshots, archives, listing. Writes nothing."""
    report = _verify(directory, progress)
    return replace(report, findings=tuple(_below(directory, each) for each in report.findings))


def _below(directory: Path, finding: Finding) -> Finding:
    """Name files below the board's directory, and none of them twice."""
    what = finding.what.replace(f"{directory}/", "").removeprefix(f"{finding.file}: ")
    return replace(finding, what=what)


def _verify(directory: Path, progress: Callable[[int, int], None] | None) -> BoardReport:
    # What a running node archives from here on may be of closings that the log, read after it,
    # does not hold yet.
    archives = sorted(list_archives(directory / ARCHIVES))
    report = verify_board(directory, _AuditedBoard, _AuditedBoard.load, progress=progress)
    try:
        log = LmdbEventLog.open_readonly(directory / LOG, strict=False)
    except (RanknodeError, OSError):
        return report  # which says so already
    try:
        findings = [
            *_listing_findings(directory, log),
            *_archive_findings(directory / ARCHIVES, archives, log),
        ]
    finally:
        log.close()
    return replace(report, findings=(*report.findings, *findings))


def _listing_findings(directory: Path, log: LmdbEventLog) -> list[Finding]:
    try:
        said = listing_of_log(log, directory)
    except (RanknodeError, ValueError) as error:
        return [Finding(LOG, None, str(error))]
    try:
        if msgspec.structs.replace(read_listing(directory), next_due_us=None) == said:
            return []
        what = "is not what the log says"
    except (RanknodeError, OSError) as error:
        what = str(error)
    return [Finding(LISTING, None, what)]


def _archive_findings(
    directory: Path, listed: Iterable[tuple[str, int]], log: LmdbEventLog
) -> list[Finding]:
    """Compare every archive with the standings that a replay closes.

    Those of windows that closed and are no longer kept are left alone: the next owner removes them.
    """
    board = Board()
    closed_once: dict[str, ClosedWindow] = {}
    try:
        for record in log.read():
            board.apply(record)
            board.unsealed.clear()
            if isinstance(record, WindowClosedRecord) and record.window in board.closed:
                closed_once[record.window] = board.closed[record.window]
    except (RanknodeError, *APPLY_ERRORS):
        return []  # the replay's own findings say so already
    archives = Archives(directory, board, 0)
    findings = []
    for window, revision in listed:
        closed = closed_once.get(window)
        file = f"{ARCHIVES}/{archive_path(directory, window, revision).name}"
        if closed is None or closed.revision != revision:
            findings.append(Finding(file, None, "is of no window that the log closes"))
            continue
        try:
            archives.read(closed)
        except FileNotFoundError:
            continue  # it is written after the closing, and again whenever it is lost
        except (RanknodeError, OSError) as error:
            findings.append(Finding(file, closed.sequence, str(error)))
    return findings
