"""A damaged board made whole again from what is legible of it: planned first, then carried out.

Owns what is given up and what takes its place: behind the longest valid row of records the log
goes on with a record of the sequences that are lost; snapshots and archives that do not belong to
it any more are set aside. Nothing is deleted. Only for whoever owns the board.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from actors.archives import Archives
from actors.board import Board
from actors.creation import first_windows
from actors.definition import Definition
from actors.listing import LOG
from actors.logged_board import ARCHIVES, SNAPSHOTS, BoardOptions, LoggedBoard
from actors.periods import ALL_TIME
from actors.replay import require_identity
from actors.witnesses import Witness, find_witnesses, require_end
from persistence.archive import archive_path, list_archives
from persistence.errors import DamagedError, FormatTooNewError, RanknodeError
from persistence.event_log import LmdbEventLog, LogOptions
from persistence.files import TEMPORARY_SUFFIX, make_directory, sync_directory
from persistence.ownership import Ownership, leave_epoch
from persistence.records import SEQUENCE_MAX, DefinitionRecord, Event, EventsRecord, Record
from persistence.recovery import LOAD_ERRORS, LOG_HASH, reason
from persistence.repair import (
    LogSurvey,
    RepairNote,
    build_log,
    lost_sequences,
    put_in_place,
    remove_built,
    survey_log,
    was_built_in,
    was_set_aside,
)
from persistence.snapshot import (
    list_snapshots,
    read_snapshot,
    read_snapshot_header,
    snapshot_sequence,
)
from persistence.verify import APPLY_ERRORS

ASIDE = "damaged-"  # begins the name of a directory of what was set aside
DROPPED = "dropped.ndjson"
UNFINISHED = "unfinished"  # marks a directory whose log is not put in place yet
_BUILT = {UNFINISHED, DROPPED, DROPPED + TEMPORARY_SUFFIX, LOG}

WriteEvents = Callable[[Path, Definition, Iterator[Event]], None]


class Dropped(NamedTuple):
    """What is legible of what is given up: events, received from when to when, and other records.

    The others are closings, opened windows and changes of the definition.
    """

    events: int
    first_received_us: int
    last_received_us: int
    others: int


@dataclass(frozen=True)
class RepairPlan:
    """What a repair comes to.

    damage: what is wrong with the log, None where it stays as it is. survey: what is kept of it.
    lost: the first and last sequence that are lost, None where none is. tail: the records that the
    repaired log goes on with. set_aside: snapshots and archives that belong to it no more.
    held_back: whether the board is left in backfill mode, so that no window closes before what is
    legible was imported again. aside: where everything goes.
    """

    directory: Path
    damage: str | None
    survey: LogSurvey
    lost: tuple[int, int] | None
    tail: tuple[Record, ...]
    definition: Definition
    dropped: Dropped
    set_aside: tuple[Path, ...]
    held_back: bool
    now_us: int

    @property
    def aside(self) -> Path:
        """Name the directory for what is set aside, below the board's own."""
        now = datetime.fromtimestamp(self.now_us // 1_000_000, UTC)
        return self.directory / f"{ASIDE}{now:%Y%m%dT%H%M%SZ}-{self.now_us % 1_000_000:06d}"

    def events(self) -> Iterator[Event]:
        """Yield the events that are dropped but legible, in order."""
        for record in self.survey.dropped():
            if isinstance(record, EventsRecord):
                yield from map(record.row, range(record.count))


def plan_repair(directory: Path, now_us: int) -> RepairPlan:
    """Find out what can be kept of the board in `directory`; changes nothing.

    Complexity: O(log + snapshots + archives). Raises DamagedError where not even the board's
    definition is legible, or the log is another board's; FormatTooNewError; OSError.
    """
    witnesses = find_witnesses(directory / SNAPSHOTS, directory / ARCHIVES)
    damage = _damage(directory, witnesses)
    snapshots = {snapshot_sequence(path): path for path in list_snapshots(directory / SNAPSHOTS)}
    survey = survey_log(directory / LOG)
    while (replay := _Replay(survey, snapshots)).refused:
        survey = survey_log(directory / LOG, until=replay.board.sequence)
    board, tail = replay.board, list[Record]()
    if damage is not None and board.sequence == 0:
        tail.append(_first_definition(survey, directory, now_us))
        board.apply(tail[0])
    require_identity(board, directory)
    set_aside = [*replay.unfit, *_unfit_archives(directory / ARCHIVES, board)]
    dropped, lost = _dropped(survey), None
    held_back = damage is not None and dropped.events > 0 and _may_close(board.definition)
    if damage is not None:
        begun = board.sequence
        known = max([survey.known, *_sequences(witnesses, board.identity.incarnation)])
        lost = (begun + 1, known) if known > begun else None
        tail += lost_sequences(begun + 1, known, now_us, damage)
        tail += _continuation(board, known, now_us, held_back=held_back)
    return RepairPlan(
        directory=directory,
        damage=damage,
        survey=survey,
        lost=lost,
        tail=tuple(tail),
        definition=board.definition,
        dropped=dropped,
        set_aside=tuple(set_aside),
        held_back=held_back,
        now_us=now_us,
    )


def _damage(directory: Path, witnesses: list[Witness]) -> str | None:
    """Say what is wrong with the log, None where a board comes of it. Raises FormatTooNewError."""
    try:
        log = LmdbEventLog.open_readonly(directory / LOG)
    except FormatTooNewError:
        raise
    except RanknodeError as error:
        return _shortened(error, directory)
    board = Board()
    try:
        for record in log.read():
            board.apply(record)
            board.unsealed.clear()
        require_identity(board, directory)
        require_end(witnesses, board.identity.incarnation, board.sequence)
    except FormatTooNewError:
        raise
    except APPLY_ERRORS as error:
        return _shortened(error, directory)
    finally:
        log.close()
    return None


def _shortened(error: Exception, directory: Path) -> str:
    """Give an error's text with paths below the board's directory."""
    return reason(error).replace(f"{directory}/", "")


class _Replay:
    """The board that the records that are kept make.

    refused: whether it could not apply one of them; unfit: the snapshots that are damaged, or are
    not what it was at their sequence.
    """

    def __init__(self, survey: LogSurvey, snapshots: dict[int, Path]) -> None:
        self.board = Board()
        self.refused = False
        unfit = dict(snapshots)
        try:
            for record, record_hash in survey.kept():
                self.board.apply(record)
                self.board.unsealed.clear()
                path = unfit.get(self.board.sequence)
                if path is not None and self._fits(path, record_hash):
                    del unfit[self.board.sequence]
        except APPLY_ERRORS:
            self.refused = True
        self.unfit = list(unfit.values())

    def _fits(self, path: Path, log_hash: bytes) -> bool:
        try:
            snapshot = read_snapshot(path)
            state = Board.load(snapshot.header, snapshot.columns).state_digest()
        except LOAD_ERRORS:
            return False
        return (snapshot.header.get(LOG_HASH), state) == (log_hash, self.board.state_digest())


def _first_definition(survey: LogSurvey, directory: Path, now_us: int) -> DefinitionRecord:
    """Make the first record again, from a later definition or from a snapshot."""
    for record in survey.dropped():
        if isinstance(record, DefinitionRecord) and record.board == directory.name:
            return replace(record, first_sequence=1, recorded_at_us=now_us)
    for path in list_snapshots(directory / SNAPSHOTS):
        try:
            _, header = read_snapshot_header(path)
            board, incarnation, hash_key, created_at_us = header["identity"]
            return DefinitionRecord(
                first_sequence=1,
                recorded_at_us=now_us,
                board=board,
                incarnation=incarnation,
                hash_key=hash_key,
                created_at_us=created_at_us,
                definition=header["definition"],
            )
        except LOAD_ERRORS:
            continue
    raise DamagedError(
        f"{directory}: neither its log nor a snapshot holds a legible definition; put back a backup"
    )


def _sequences(witnesses: list[Witness], incarnation: str) -> list[int]:
    return [each.sequence for each in witnesses if each.incarnation == incarnation]


def _unfit_archives(directory: Path, board: Board) -> list[Path]:
    """List the archives that are damaged, or not those of the windows that the board has closed."""
    archives = Archives(directory, board, 0)
    unfit = []
    for window, revision in sorted(list_archives(directory)):
        closed = board.closed.get(window)
        try:
            if closed is not None and revision in closed.kept:
                archives.read(closed, revision)
                continue
        except RanknodeError:
            pass
        unfit.append(archive_path(directory, window, revision))
    return unfit


def _dropped(survey: LogSurvey) -> Dropped:
    events = others = last_us = 0
    first_us: int | None = None
    for record in survey.dropped():
        if isinstance(record, EventsRecord):
            events += record.count
            earliest = min(record.received_at_us)
            first_us = earliest if first_us is None else min(first_us, earliest)
            last_us = max(last_us, *record.received_at_us)
        else:
            others += 1
    return Dropped(events, first_us or 0, last_us, others)


def _may_close(definition: Definition) -> bool:
    return definition.mode == "live" and definition.periods != (ALL_TIME.id,)


def _continuation(board: Board, known: int, now_us: int, *, held_back: bool) -> list[Record]:
    """Make what the log goes on with behind the sequences up to `known`, which are lost."""
    windows = first_windows(board.definition, 2, now_us)
    created = board.sequence > windows[-1].last_sequence if windows else True
    # Where the board's own beginning is damaged, so may be the windows that it opens itself.
    lost = [] if created else [each for each in windows if each.window not in board.windows]
    records: list[Record] = [
        replace(window, first_sequence=known + place) for place, window in enumerate(lost, 1)
    ]
    if held_back:
        backfill = msgspec.structs.replace(board.definition, mode="backfill")
        records.append(
            DefinitionRecord(
                first_sequence=known + 1 + len(records),
                recorded_at_us=now_us,
                definition=backfill.to_record(),
                **board.identity._asdict(),
            )
        )
    return records


def carry_out(plan: RepairPlan, ownership: Ownership, write_events: WriteEvents) -> None:
    """Repair the board as planned, and bring it up once; it is not owned any more on return.

    write_events: writes a file of events, durably. After a crash at any moment the board is as it
    was, or repaired; `plan_repair` finds what is left to do. Raises StorageFullError,
    CommitFailedError, OSError.
    """
    directory, aside = plan.directory, plan.aside
    _remove_debris(directory)
    epoch = max(ownership.epoch, plan.survey.epoch + 1)
    if plan.damage is not None:
        make_directory(aside)
        (aside / UNFINISHED).touch()
        sync_directory(aside)
        if plan.dropped.events:
            write_events(aside / DROPPED, plan.definition, plan.events())
        note = RepairNote(aside.name, plan.now_us, plan.damage)
        build_log(plan.survey, aside / LOG, note, epoch, plan.tail)
        put_in_place(aside / LOG, directory / LOG)
        (aside / UNFINISHED).unlink()
        sync_directory(aside)
    # Only now: until the log knows of the sequences that are lost, they bear witness to them.
    for path in plan.set_aside:
        target = aside / path.parent.name
        make_directory(target)
        path.rename(target / path.name)
        sync_directory(target)
        sync_directory(path.parent)
    ownership.release()
    if epoch > ownership.epoch:
        leave_epoch(directory, epoch)
    _bring_up(directory)


def _remove_debris(directory: Path) -> None:
    """Remove what repairs that were cut short had built and not put in place.

    Whatever is not marked as unfinished is kept, however little of it its user has left there, and
    so is what holds anything that is not built. The mark goes last.
    """
    for aside in directory.glob(f"{ASIDE}*"):
        mark, names = aside / UNFINISHED, {path.name for path in aside.iterdir()}
        if not names:
            aside.rmdir()
        elif UNFINISHED not in names or not names <= _BUILT:
            continue
        elif was_built_in(directory / LOG, aside.name) or was_set_aside(aside / LOG):
            mark.unlink()
        else:
            remove_built(aside / LOG)
            for name in names - {LOG, UNFINISHED}:
                (aside / name).unlink()
            mark.unlink()
            aside.rmdir()


def _bring_up(directory: Path) -> None:
    """Open the board as a node does, which puts right what follows from its log."""
    host = LoggedBoard.open(directory, BoardOptions(LogOptions(), snapshot_events=SEQUENCE_MAX))
    try:
        host.seal_all()
        if host.archives.missing:
            host.rebuild_archives(host.archives.sealed)
    finally:
        host.close()
