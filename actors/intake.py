"""New events against a board: which of them count, as one record for the log.

Owns the contract's order of checks: shape, key, age, rules (precision, range, bounds, source,
future), windows. Nothing here changes the board: a plan is made from its state, then the shell
commits the plan's records, then the board applies them, then `settle` makes the answers. A batch of
many requests is planned in the order of their arrival, each event seeing those before it. Where the
log is damaged, an event whose key cannot be confirmed is refused, and it alone.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from actors.answers import BatchAnswer, EventAnswer, Result
from actors.board import DAY_US, Board
from actors.counting import Window
from actors.errors import Refusal
from actors.forgetting import join
from actors.keyset import hash_key_text
from actors.periods import Bounds
from actors.questions import Reply
from actors.submission import Cells, Event, Submission, shape
from actors.views import standing_of
from actors.windows import counting_windows
from persistence.errors import DamagedError
from persistence.records import Event as LoggedEvent
from persistence.records import EventsRecord, OpenedWindow

OCCURRED_AT_GIVEN = 1
WHOLE_MAX = 2**53 - 1
DECIMAL_MAX = 10**15 - 1

EventAt = Callable[[int], LoggedEvent]

_ENCODE = (msgspec.json.Encoder().encode, msgspec.msgpack.Encoder().encode)
_DAMAGED = "the board's log is damaged where this key may be; see the node's log"
_TOO_OLD = "occurred_at is older than keys are remembered"
_CLOCK_BEHIND = "the node's clock is behind what it was, and keys of that time are forgotten"


class Counted(NamedTuple):
    """An event that counts, or a repetition of one: sequence and instant are the first one's."""

    sequence: int
    duplicate: bool
    occurred_at_us: int


Outcome = Counted | Refusal


class Plan(NamedTuple):
    """What will become of a batch of submissions once `record` (if any) is on disk.

    damage: what of the log was found damaged while keys were looked up, each once.
    """

    submissions: Sequence[Submission]
    cells: list[list[Cells | Refusal]]
    outcomes: list[list[Outcome]]
    record: EventsRecord | None
    damage: Sequence[str]


class _Columns:
    """The record in the making: one append per accepted event, columns at the end."""

    def __init__(self) -> None:
        self.members: list[bytes] = []
        self.keys: list[bytes] = []
        self.values = array("q")
        self.occurred_at_us = array("q")
        self.received_at_us = array("q")
        self.flags = bytearray()
        self.sources: dict[str, int] = {}
        self.source_indexes = array("H")
        self.opened: dict[str, OpenedWindow] = {}

    def add(self, cells: Cells, occurred_at_us: int, received_at_us: int) -> None:
        assert not isinstance(cells.values, Refusal)
        self.members.append(cells.member)
        self.keys.append(cells.key)
        self.values.extend(cells.values)
        self.occurred_at_us.append(occurred_at_us)
        self.received_at_us.append(received_at_us)
        self.flags.append(0 if cells.occurred_at_us is None else OCCURRED_AT_GIVEN)
        self.source_indexes.append(
            0
            if cells.source is None
            else self.sources.setdefault(cells.source, len(self.sources) + 1)
        )

    def to_record(self, board: Board, recorded_at_us: int) -> EventsRecord:
        first_sequence = board.sequence + 1
        member_ends, members = join(self.members)
        key_ends, keys = join(self.keys)
        return EventsRecord(
            first_sequence=first_sequence,
            recorded_at_us=recorded_at_us,
            keys_per_value=len(board.definition.score),
            previous_sequences=board.members.plan(member_ends, members, first_sequence),
            occurred_at_us=self.occurred_at_us,
            received_at_us=self.received_at_us,
            values=self.values,
            member_ends=member_ends,
            members=members,
            key_ends=key_ends,
            keys=keys,
            sources=tuple(self.sources),
            source_indexes=self.source_indexes,
            opened=tuple(self.opened.values()),
            flags=bytes(self.flags),
        )


class _Judge:
    """The checks that need the board's state, for one batch.

    Invariant: `columns` holds the accepted events so far, and `row_of_key` where each key stands;
    `damage` says, once each, what of the log could not be read.
    """

    def __init__(self, board: Board, event_at: EventAt, check_totals: bool) -> None:
        self.board = board
        self.definition = board.definition
        self.event_at = event_at
        self.columns = _Columns()
        self.row_of_key: dict[bytes, int] = {}
        self.damage: dict[str, None] = {}
        self.totals: dict[tuple[str, bytes], list[int]] | None = {} if check_totals else None
        retention_days = self.definition.key_retention_days
        live = self.definition.mode == "live"
        self.retention_us = retention_days * DAY_US if live and retention_days else None
        self.floor_us = board.keys_floor_us if live else None
        self.limits = _limits(self.definition.decimals)

    def judge(self, cells: Cells, now_us: int, candidates: Sequence[int]) -> Outcome:
        """Decide one event; an accepted one is added to the columns."""
        earlier = self._repetition_of(cells, candidates)
        if earlier is not None:
            return earlier
        occurred_at_us = now_us if cells.occurred_at_us is None else cells.occurred_at_us
        windows = counting_windows(self.board, occurred_at_us, now_us, self.columns.opened)
        refusal = (
            self._too_old(occurred_at_us, now_us, cells.occurred_at_us)
            or self._against_rules(cells, windows)
            or self._in_future(occurred_at_us, now_us)
        )
        if refusal is not None:
            return refusal
        if not windows:
            return Refusal("period_closed", "no open window of the board holds occurred_at")
        if self.totals is not None:
            self._add_to_totals(cells, windows)
        row = len(self.columns.members)
        self.row_of_key[cells.key] = row
        self.columns.add(cells, occurred_at_us, now_us)
        for window in windows:
            if isinstance(window, Bounds):
                self.columns.opened[window.id] = OpenedWindow(
                    window.id, window.start_us, window.end_us
                )
        return Counted(self.board.sequence + 1 + row, False, occurred_at_us)

    def _repetition_of(self, cells: Cells, candidates: Sequence[int]) -> Outcome | None:
        row = self.row_of_key.get(cells.key)
        if row is not None:
            sequence = self.board.sequence + 1 + row
            return _same_or_conflict(sequence, self._accepted(row), cells)
        unconfirmed = None
        for sequence in candidates:
            try:
                logged = self.event_at(sequence)
            except DamagedError as error:
                self.damage[str(error)] = None
                unconfirmed = Refusal("board_unavailable", _DAMAGED)
                continue  # another may be the key's own
            if logged.idempotency_key == self._as_logged(cells.key, logged):
                return _same_or_conflict(sequence, logged, cells)
        return unconfirmed

    def _as_logged(self, key: bytes, logged: LoggedEvent) -> bytes:
        """Give a key as an event that was logged would hold it."""
        return hash_key_text(self.board.identity.hash_key, key) if logged.key_hashed else key

    def _accepted(self, row: int) -> LoggedEvent:
        """Read back an event of this batch that is not logged yet."""
        columns = self.columns
        width = len(self.definition.score)
        source_index = columns.source_indexes[row]
        return LoggedEvent(
            sequence=self.board.sequence + 1 + row,
            previous_sequence=0,
            member=columns.members[row],
            values=tuple(columns.values[row * width : (row + 1) * width]),
            idempotency_key=columns.keys[row],
            occurred_at_us=columns.occurred_at_us[row],
            received_at_us=columns.received_at_us[row],
            source=list(columns.sources)[source_index - 1] if source_index else None,
            occurred_at_given=bool(columns.flags[row] & OCCURRED_AT_GIVEN),
        )

    def _too_old(self, occurred_at_us: int, now_us: int, given_us: int | None) -> Refusal | None:
        forgotten = self.floor_us is not None and occurred_at_us < self.floor_us
        aged = self.retention_us is not None and occurred_at_us < now_us - self.retention_us
        if forgotten or aged:
            return Refusal("event_too_old", _CLOCK_BEHIND if given_us is None else _TOO_OLD)
        return None

    def _against_rules(self, cells: Cells, windows: Sequence[Window | Bounds]) -> Refusal | None:
        values, definition = cells.values, self.definition
        if isinstance(values, Refusal):
            return values
        if self.totals is not None and self._leaves_range(cells.member, values, windows):
            return Refusal(
                "value_out_of_range",
                "the member's total would leave the exact range",
                field="value",
            )
        low, high = definition.min_value, definition.max_value
        if (low is not None and any(map(int.__lt__, values, low))) or (
            high is not None and any(map(int.__gt__, values, high))
        ):
            return Refusal(
                "value_not_allowed",
                "value is outside the board's min_value or max_value",
                field="value",
            )
        if definition.sources is not None and cells.source not in definition.sources:
            return Refusal(
                "source_not_allowed", "the board does not accept this source", field="source"
            )
        return None

    def _in_future(self, occurred_at_us: int, now_us: int) -> Refusal | None:
        if occurred_at_us > now_us + self.definition.future_tolerance_seconds * 1_000_000:
            return Refusal(
                "occurred_in_future",
                "occurred_at is later than now and the tolerance",
                field="occurred_at",
            )
        return None

    def _total(self, window: Window | Bounds, member: bytes) -> Sequence[int]:
        assert self.totals is not None
        total: Sequence[int] | None = self.totals.get((window.id, member))
        if total is None and isinstance(window, Window):
            slot = self.board.members.find(member)
            row = window.row(slot) if slot >= 0 else None
            if row is not None:
                return row.score
        return total or [0] * len(self.limits)

    def _leaves_range(
        self, member: bytes, values: Sequence[int], windows: Sequence[Window | Bounds]
    ) -> bool:
        return any(
            abs(total + value) > limit
            for window in windows
            for total, value, limit in zip(
                self._total(window, member), values, self.limits, strict=True
            )
        )

    def _add_to_totals(self, cells: Cells, windows: Sequence[Window | Bounds]) -> None:
        assert self.totals is not None
        assert not isinstance(cells.values, Refusal)
        for window in windows:
            total = self._total(window, cells.member)
            self.totals[window.id, cells.member] = [
                a + b for a, b in zip(total, cells.values, strict=True)
            ]


def _limits(decimals: Sequence[int]) -> list[int]:
    """Give the largest magnitude of a scaled value or total, per score key."""
    return [DECIMAL_MAX if places else WHOLE_MAX for places in decimals]


def _same_or_conflict(sequence: int, earlier: LoggedEvent, cells: Cells) -> Outcome:
    """Compare contents; the instant counts only where both sides gave one.

    Whose event it was is not known any more where its member was erased.
    """
    same = (
        (earlier.key_hashed or earlier.member == cells.member)
        and earlier.values == cells.values
        and earlier.source == cells.source
        and (
            cells.occurred_at_us is None
            or not earlier.occurred_at_given
            or cells.occurred_at_us == earlier.occurred_at_us
        )
    )
    if same:
        return Counted(sequence, True, earlier.occurred_at_us)
    return Refusal(
        "idempotency_conflict",
        "the key was used before, for an event with other content",
        sequence=sequence,
    )


def _shapes(submission: Submission, decimals: tuple[int, ...]) -> list[Cells | Refusal]:
    shaped: list[Cells | Refusal] = []
    for event in submission.events:
        if isinstance(event, Event):
            try:
                shaped.append(shape(event, submission.packed, decimals))
            except Refusal as refusal:
                shaped.append(refusal)
        else:
            shaped.append(event)
    return shaped


def _totals_in_danger(board: Board, cells: Sequence[Cells]) -> bool:
    """Tell whether any total of a sum board could leave the exact range by this batch.

    The bound is far away in practice, so that one addition spares a check for each event.
    """
    if board.definition.aggregation != "sum":
        return False
    highest = max((w.magnitude for w in board.windows.values()), default=0)
    for cell in cells:
        if not isinstance(cell.values, Refusal):
            highest += max(map(abs, cell.values))
    return highest > min(_limits(board.definition.decimals))


def plan(
    board: Board, event_at: EventAt, submissions: Sequence[Submission], recorded_at_us: int
) -> Plan:
    """Decide every event of `submissions`, in order, against the board as it is.

    event_at: reads an event of the log by its sequence, to confirm that a key was used.
    recorded_at_us: the server's time, which the record keeps.
    Complexity: O(events). Changes nothing.
    """
    shaped = [_shapes(submission, board.definition.decimals) for submission in submissions]
    cells = [cell for row in shaped for cell in row if isinstance(cell, Cells)]
    candidates: dict[int, list[int]] = {}
    for index, sequence in board.keys.find_all(*join([cell.key for cell in cells])):
        candidates.setdefault(index, []).append(sequence)
    judge = _Judge(board, event_at, _totals_in_danger(board, cells))
    outcomes: list[list[Outcome]] = []
    position = itertools.count()
    for submission, row in zip(submissions, shaped, strict=True):
        now_us = submission.received_at_us
        outcomes.append(
            [
                judge.judge(cell, now_us, candidates.get(next(position), ()))
                if isinstance(cell, Cells)
                else cell
                for cell in row
            ]
        )
    columns = judge.columns
    record = columns.to_record(board, recorded_at_us) if columns.members else None
    return Plan(submissions, shaped, outcomes, record, tuple(judge.damage))


def settle(board: Board, planned: Plan, improved: dict[str, bytes]) -> list[Reply]:
    """Make one reply per submission, after the board has applied the plan's record."""
    replies = []
    for submission, shaped, outcomes in zip(
        planned.submissions, planned.cells, planned.outcomes, strict=True
    ):
        encode = _ENCODE[submission.answer_packed]
        if submission.batch:
            replies.append(Reply(encode(_batch_answer(board, outcomes))))
            continue
        (outcome,), (cells,) = outcomes, shaped
        if isinstance(outcome, Refusal):
            replies.append(Reply(b"", outcome.code, outcome.detail, outcome.extra))
            continue
        assert isinstance(cells, Cells)
        first = planned.record.first_sequence if planned.record is not None else 0
        answer = _event_answer(board, submission, cells, outcome, improved, first)
        replies.append(Reply(encode(answer)))
    return replies


def _event_answer(
    board: Board,
    submission: Submission,
    cells: Cells,
    counted: Counted,
    improved: dict[str, bytes],
    first_sequence: int,
) -> EventAnswer:
    slot = board.members.find(cells.member)
    standings = []
    for window in counting_windows(board, counted.occurred_at_us, submission.received_at_us):
        if isinstance(window, Window) and slot in window.standings:
            better = not counted.duplicate and bool(
                improved[window.id][counted.sequence - first_sequence]
            )
            standings.append(standing_of(board, window, slot, better, submission.answer_packed))
    status = "duplicate" if counted.duplicate else "applied"
    return EventAnswer(status, counted.sequence, standings)


def _batch_answer(board: Board, outcomes: Sequence[Outcome]) -> BatchAnswer:
    results = []
    applied = duplicates = last = 0
    for outcome in outcomes:
        if isinstance(outcome, Refusal):
            field, sequence = outcome.extra.get("field"), outcome.extra.get("sequence")
            results.append(
                Result(
                    "rejected",
                    sequence=int(sequence) if sequence is not None else None,
                    code=outcome.code,
                    detail=outcome.detail,
                    field=str(field) if field is not None else None,
                )
            )
            continue
        if outcome.duplicate:
            duplicates += 1
        else:
            applied += 1
            last = outcome.sequence
        results.append(
            Result("duplicate" if outcome.duplicate else "applied", sequence=outcome.sequence)
        )
    return BatchAnswer(
        results, applied, duplicates, len(outcomes) - applied - duplicates, last or board.sequence
    )
