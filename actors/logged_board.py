"""A board with its log and snapshots, without processes or network: persist, then apply.

Owns the order in which things become true: a plan is made from the board, its record is committed,
then the board applies it. The shells (the Ray actor, the verifier, the benchmarks, the tests)
decide when; they call `commit` from one thread and everything else from where the board lives.
Files of a board's directory: `log/`, `snapshots/`, the owner's mark, and `board.msgpack`, a copy of
the current definition for listings. While a name is taken out of the log, `erasing/` is a second
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from actors.archives import Archives
from actors.board import Board
from actors.closed_window import ClosedWindow, revised_by
from actors.counting import Window
from actors.definition import apply_changes
from actors.errors import Refusal
from actors.event_answers import settle
from actors.intake import Plan, plan
from actors.listing import LOG, promise_erasing, refuse_newer_listing, show_listing
from actors.moderation import Log, mentions, plan_ruling, walked_member
from actors.questions import Change, Erase, Reply, Verdict
from actors.replay import UNSEALED_MAX, recover_board, require_identity
from actors.ruling_effects import revise
from actors.shown_log import ShownLog
from actors.submission import Submission
from actors.witnesses import find_witnesses, require_end
from persistence.errors import DamagedError, RanknodeError, StorageFullError
from persistence.event_log import LmdbEventLog, LogOptions
from persistence.ownership import Ownership
from persistence.records import (
    DefinitionRecord,
    Event,
    Record,
    RulingRecord,
    WindowClosedRecord,
)
from persistence.recovery import RecoveryReport
from persistence.rulings import MemberErased
from persistence.snapshot import Column, prune_snapshots, remove_snapshots, write_snapshot

ARCHIVES = "archives"
SNAPSHOTS = "snapshots"
CLOSINGS_PER_COMMIT_MAX = 64


class BoardOptions(msgspec.Struct, frozen=True):
    """How a board is kept.

    snapshot_events: events logged from one snapshot to the next. archive_cache_bytes_max: of closed
    windows' standings that are kept in memory once asked for.
    """

    log: LogOptions
    snapshot_events: int
    archive_cache_bytes_max: int = 256 << 20


class StateCopy(NamedTuple):
    """A board's state, copied out of the board so that it can be written while the board lives."""

    sequence: int
    header: dict[str, Any]
    columns: Sequence[Column]


class Walked(NamedTuple):
    """The events of a member from the one with sequence `head` on, newest first.

    rulings: how many there were; mentioned: whether any of them holds the member's name, asked only
    where that is to be erased.
    """

    member: bytes
    head: int
    events: list[Event]
    rulings: int
    mentioned: bool


class PlannedRuling(NamedTuple):
    """A ruling to be committed, if `record` is one, and what its answer says.

    sequence: of the record that makes it so, this or an earlier one. standings: of closed windows
    that it changes, as they are before; of what is beyond UNSEALED_MAX, and where a name is erased,
    the next revision is made from the archive of the one before.
    """

    record: RulingRecord | None
    sequence: int
    standings: dict[str, Window]


class LoggedBoard:
    """One board, open for writing by this process alone.

    Opening: `open`, `report`. Writing: `plan` → `commit` → `settle`; `plan_ruling` → `commit` →
    `rule`; `changed_definition` and `closings` → `commit` → `apply_all`. Reading: `board`,
    `archives`, `shown_log`. Keeping: `snapshot_due`, `copy_state`, `write_copy`, `make_archives`,
    `close`. Taking names off the disk: `erase_names`, or its steps.
    """

    def __init__(
        self,
        directory: Path,
        options: BoardOptions,
        ownership: Ownership,
        log: LmdbEventLog,
        recovered: tuple[Board, RecoveryReport],
    ) -> None:
        self.directory = directory
        self.log = log
        self.board, self.report = recovered
        self.archives = Archives(directory / ARCHIVES, self.board, options.archive_cache_bytes_max)
        self.archives.survey()
        self._options = options
        self._ownership = ownership
        # A copy that could not be written counts for what is due, not for what is kept.
        self._copied_sequence = self._kept_sequence = self.report.snapshot_sequence
        self.shown_log = ShownLog(directory, self.board, log)

    @classmethod
    def open(cls, directory: Path, options: BoardOptions) -> LoggedBoard:
        """Become the board's one owner and recover its state from disk.

        Complexity: O(snapshot + newer events). Errors: DamagedError, OwnershipError,
        FormatTooNewError, OSError.
        """
        if not directory.is_dir():
            raise DamagedError(f"{directory}: is missing")
        ownership = Ownership.take(directory)
        try:
            refuse_newer_listing(directory)
            log = LmdbEventLog(directory / LOG, options.log, epoch=ownership.epoch)
            try:
                board, report = recover_board(log, directory / SNAPSHOTS, directory / ARCHIVES)
                require_identity(board, directory)
                witnesses = find_witnesses(directory / SNAPSHOTS, directory / ARCHIVES)
                require_end(witnesses, board.identity.incarnation, board.sequence)
                show_listing(directory, board)
                return cls(directory, options, ownership, log, (board, report))
            except BaseException:
                log.close()
                raise
        except BaseException:
            ownership.release()
            raise

    def plan(self, submissions: Sequence[Submission], recorded_at_us: int) -> Plan:
        """Decide what becomes of submissions, changing nothing."""
        return plan(self.board, self.shown_log.events_at, submissions, recorded_at_us)

    def commit(self, records: Sequence[Record]) -> None:
        """Write records to the log; they are on disk when it returns. Errors: the log's."""
        self.log.append(records)

    def settle(self, planned: Plan) -> list[Reply]:
        """Apply a plan whose record is on disk and answer its submissions."""
        improved = {} if planned.record is None else self.board.apply(planned.record)
        if planned.record is not None and planned.record.opened:
            show_listing(self.directory, self.board)
        return settle(self.board, planned, improved)

    def changed_definition(self, change: Change) -> DefinitionRecord | None:
        """Make the record of a change, or None where nothing changes. Errors: Refusal."""
        definition = apply_changes(self.board.definition, change.body, change.body_packed)
        if definition == self.board.definition:
            return None
        return DefinitionRecord(
            first_sequence=self.board.sequence + 1,
            recorded_at_us=change.now_us,
            definition=definition.to_record(),
            **self.board.identity._asdict(),
        )

    def walk(self, verdict: Verdict) -> Walked | None:
        """Read the events that planning a verdict will need; None where it needs none.

        For any thread: the board may change meanwhile. Complexity: O(the member's events). Errors:
        Refusal; the log's DamagedError.
        """
        member = walked_member(self.board, self.shown_log.event, verdict)
        if member is None:
            return None
        events = list(self.shown_log.events_of(member))
        rulings = len(self.board.rulings.records)
        mentioned = isinstance(verdict, Erase) and self._mentions(member, 0, rulings)
        head = events[0].sequence if events else 0
        return Walked(member, head, events, rulings, mentioned)

    def _mentions(self, name: bytes, start: int, end: int) -> bool:
        sequences = self.board.rulings.records[start:end]
        return mentions(self.board, name, map(self.shown_log.ruling_at, sequences))

    def plan_ruling(self, verdict: Verdict, walked: Walked | None = None) -> PlannedRuling:
        """Work out what follows from a moderator's verdict, and read what it changes.

        Called from the writing thread: nothing changes the board meanwhile. walked: events that
        were read before. Complexity: O(the member's events since, and theirs in all x kinds of
        windows + members of closed windows that change). Errors: Refusal, also board_unavailable
        until the archives that it changes are there; the log's DamagedError.
        """

        def events_of(member: bytes) -> Iterator[Event]:
            known = walked if walked is not None and walked.member == member else None
            for event in self.shown_log.events_of(member):
                if known is not None and event.sequence == known.head:
                    yield from known.events
                    return
                yield event

        def mentioned(name: bytes) -> bool:
            known = walked if walked is not None and walked.member == name else None
            if known is not None and known.mentioned:
                return True
            start = 0 if known is None else known.rulings
            return self._mentions(name, start, len(self.board.rulings.records))

        log = Log(self.shown_log.event, events_of, mentioned)
        made = plan_ruling(self.board, log, verdict)
        if isinstance(made, int):
            return PlannedRuling(None, made, {})
        standings = {}
        if isinstance(made.ruling, MemberErased):
            self._promise_erasing()
        else:
            closed = [
                self.board.closed[each] for each in revised_by(made) if each in self.board.closed
            ]
            standings = {each.id: self._sealed(each) for each in closed[:UNSEALED_MAX]}
        return PlannedRuling(made, made.first_sequence, standings)

    def _promise_erasing(self) -> None:
        """See to it that the node knows that a name has to go, whatever happens from here on."""
        try:
            promise_erasing(self.directory, self.board)
        except OSError as error:
            raise StorageFullError(f"the board's listing: {error}") from error

    def _sealed(self, closed: ClosedWindow) -> Window:
        """Read the newest standings of a closed window, which no thread may be writing."""
        missing = self.archives.is_missing(closed.id, closed.revision)
        if closed.id in self.board.unsealed or missing:
            raise Refusal("board_unavailable", f"{closed.id} is being sealed")
        try:
            window, _ = self.archives.read(closed, closed.revision)
        except (RanknodeError, OSError) as error:
            self.archives.lose(closed.id, closed.revision)
            raise Refusal("board_unavailable", f"{closed.id} is to be sealed again") from error
        return window

    def rule(self, planned: PlannedRuling) -> None:
        """Apply a ruling whose record is on disk; closed windows that it changes must be sealed."""
        if planned.record is None:
            return
        self.board.unsealed.update(planned.standings)
        ruling = planned.record.ruling
        if isinstance(ruling, MemberErased):
            name = self.board.members.name(ruling.slot) if ruling.slot >= 0 else ruling.name
            self.shown_log.forget(name, ruling.member, planned.sequence)
        self.board.apply(planned.record)
        for window in revised_by(planned.record):
            closed = self.board.closed.get(window)
            if closed is not None and window not in self.board.unsealed:
                self.archives.lose(window, closed.revision)
        if isinstance(ruling, MemberErased):
            self.archives.forget_expired()
            show_listing(self.directory, self.board)

    def closings(self, now_us: int) -> list[Record]:
        """Make the records that close what is due, the earliest first, as many as one commit takes.

        History that goes live may have thousands of windows due at once: call it until none is.
        """
        return [
            WindowClosedRecord(
                first_sequence=self.board.sequence + 1 + place,
                recorded_at_us=now_us,
                window=window.id,
                members=window.size,
                digest=window.digest,
            )
            for place, window in enumerate(self.board.due(now_us)[:CLOSINGS_PER_COMMIT_MAX])
        ]

    def apply_all(self, records: Sequence[Record]) -> None:
        """Apply changes and closings that are on disk, and show them in listings."""
        for record in records:
            self.board.apply(record)
        self.shown_log.drop_finished()
        show_listing(self.directory, self.board)

    def close_due(self, now_us: int) -> None:
        """Close what is due, at once, where nobody else uses the board. Errors: the log's."""
        while records := self.closings(now_us):
            self.commit(records)
            self.apply_all(records)

    def seal_all(self) -> None:
        """Seal what is closed, at once, where nobody else uses the board. Errors: OSError."""
        for name, window in list(self.board.unsealed.items()):
            closed = self.board.closed[name]
            self.archives.sealed(closed, self.archives.seal(closed, window))
        self.archives.forget_expired()
        if self.archives.expired:
            self.archives.remove_expired()

    def make_archives(self, sealed: Callable[[ClosedWindow, str], object]) -> None:
        """Make missing archives again; for a background thread.

        Each from the revision before and the ruling between the two, if that is at hand, and what
        is left by replaying the log aside. sealed: called with each closed window, as it is at that
        revision, and the digest, as soon as its archive is there. Errors: DamagedError, OSError.
        """
        left = False
        for window, revision in sorted(self.archives.missing):
            closed = self.board.closed.get(window)
            if closed is not None and closed.revision >= revision:
                digest = self._derived(closed.at(revision))
                if digest is None:
                    left = True
                else:
                    sealed(closed.at(revision), digest)
        if left:
            self.rebuild_archives(sealed)

    def _derived(self, closed: ClosedWindow) -> str | None:
        """Seal the newest revision of a window, made from the one before; None if that cannot be.

        Complexity: O(members).
        """
        try:
            if closed.revision == 1:
                return None
            before, _ = self.archives.read(closed, closed.revision - 1)
            record = self.shown_log.ruling_at(closed.newest.sequence)
            if not isinstance(record, RulingRecord):
                return None  # it closed the window
            names = self.shown_log.names_of(record.ruling.member)
            revise(before, record.ruling, names)
        except (RanknodeError, LookupError, OSError):
            return None
        if (before.size, before.digest) != (closed.newest.members, closed.newest.digest):
            return None
        return self.archives.seal(closed, before)

    def rebuild_archives(self, sealed: Callable[[ClosedWindow, str], object]) -> None:
        """Make missing archives again by replaying the log aside; as `make_archives`.

        Complexity: O(log).
        """
        wanted = set(self.archives.missing)
        last = dict(sorted(wanted))
        aside = Board()
        for record in self.log.read():
            aside.apply(record)
            for name in revised_by(record):
                closed = aside.closed.get(name)
                if closed is None or name not in aside.unsealed:
                    continue
                if (name, closed.revision) in wanted:
                    sealed(closed, self.archives.seal(closed, aside.unsealed[name]))
                if closed.revision >= last.get(name, 0):
                    del aside.unsealed[name]

    @property
    def snapshot_due(self) -> bool:
        """Whether replaying what no snapshot holds would take longer than it should.

        Not while closed standings are only in memory: a snapshot does not hold them.
        """
        return (
            not self.board.unsealed
            and self.board.sequence - self._copied_sequence >= self._options.snapshot_events
        )

    @property
    def snapshot_current(self) -> bool:
        """Whether the newest snapshot holds everything."""
        return self.board.sequence == self._kept_sequence

    @property
    def sequences_behind_snapshot(self) -> int:
        """How much of the log a recovery would replay behind the newest snapshot."""
        return self.board.sequence - self._kept_sequence

    def copy_state(self) -> StateCopy:
        """Copy the state; the board must not change meanwhile, it may be read."""
        header, columns = self.board.dump()
        header["log_hash"] = self.log.last_hash
        self._copied_sequence = self.board.sequence
        return StateCopy(self.board.sequence, header, columns)

    def write_copy(self, copy: StateCopy) -> None:
        """Write a copied state as a snapshot, durably, and drop all but the last two."""
        snapshots = self.directory / SNAPSHOTS
        write_snapshot(snapshots, copy.sequence, copy.header, copy.columns)
        prune_snapshots(snapshots)
        self._kept_sequence = copy.sequence

    def put_log_in_place(self) -> None:
        """Go on with the log that was built, in the place of the former one and of its snapshots.

        Called by the thread that commits. Errors: as `LmdbEventLog.put_in_place`.
        """
        # They hold the names, and are of a history that no log will have.
        remove_snapshots(self.directory / SNAPSHOTS)
        self._copied_sequence = self._kept_sequence = 0
        self.shown_log.put_in_place()

    def erase_names(self, now_us: int) -> None:
        """Take every name off the disk at once, where nobody else uses the board.

        Errors: those of the steps.
        """
        self.seal_all()
        self.make_archives(self.archives.sealed)
        self.archives.remove_expired()
        self.shown_log.require_exchange()
        self.log.seal_live()
        self.shown_log.write_again(self.board.rulings.erasing, lambda: None)
        self.put_log_in_place()
        self.shown_log.remove_former()
        self.write_copy(self.copy_state())
        records = self.shown_log.finished(self.board.rulings.erasing, now_us)
        self.commit(records)
        self.apply_all(records)

    def close(self) -> None:
        """Give the board up; everything acknowledged is on disk already."""
        self.log.close()
        self._ownership.release()
