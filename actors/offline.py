"""What is done with a board's files while no node, or another process, has it open: read only.

Owns the verification of a board's directory, and the reading of its events.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from actors.archives import Archives
from actors.board import Board
from actors.closed_window import ClosedWindow, revised_by
from actors.definition import Definition
from actors.exporting import read_export
from actors.forgetting import same_key
from actors.listing import LISTING, LOG, listing_of_log, log_place, read_listing
from actors.logged_board import ARCHIVES
from persistence.archive import archive_path, list_archives
from persistence.errors import RanknodeError
from persistence.event_log import LmdbEventLog
from persistence.records import Event, EventsRecord, Record
from persistence.verify import APPLY_ERRORS, BoardReport, Finding, verify_board

CHECKS_MAX = 3  # of a board whose log is exchanged while it is checked


def read_events(directory: Path) -> tuple[Definition, Iterator[Event], int]:
    """Read a board's events from its log, as `read_export` does, and nothing else.

    Returns the current definition, the events in order of their sequences, and how many there may
    be at most.
    """
    definition, items, last_sequence = read_export(directory)
    return definition, (item for item in items if isinstance(item, Event)), last_sequence


class _AuditedBoard(Board):
    """A board that looks for a second use of a key before it applies a record."""

    def audit(self, record: Record, log: LmdbEventLog) -> list[str]:
        """List the keys of a record that were used before, within their retention."""
        if not isinstance(record, EventsRecord):
            return []
        again = _repeated_keys(record)
        for index, sequence in self.keys.find_all(record.key_ends, record.keys):
            event = record.row(index)
            if same_key(self.identity.hash_key, event, log.event(sequence)):
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
    for _ in range(CHECKS_MAX):
        place = log_place(directory)
        report = _verify(directory, progress)
        if report.is_sound or log_place(directory) == place:
            break  # otherwise a name was taken out of the log meanwhile, and two logs were mixed
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
        listed = read_listing(directory)
        if msgspec.structs.replace(listed, next_due_us=None, erasing=False) == said:
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
            closed_once |= {
                name: board.closed[name] for name in revised_by(record) if name in board.closed
            }
    except (RanknodeError, *APPLY_ERRORS):
        return []  # the replay's own findings say so already
    archives = Archives(directory, board, 0)
    findings = []
    for window, revision in listed:
        closed = closed_once.get(window)
        file = f"{ARCHIVES}/{archive_path(directory, window, revision).name}"
        if closed is None or not 1 <= revision <= closed.revision:
            findings.append(Finding(file, None, "is of no window that the log closes"))
            continue
        try:
            archives.read(closed, revision)
        except FileNotFoundError:
            continue  # it is written after the closing, and again whenever it is lost
        except (RanknodeError, OSError) as error:
            sequence = closed.revisions[revision - 1].sequence
            findings.append(Finding(file, sequence, str(error)))
    return findings
