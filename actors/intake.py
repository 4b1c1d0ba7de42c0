"""New events against a board: a plan of what will become of them, as one record for the log.

Nothing here changes the board: a plan is made from its state, then the shell commits the plan's
record, then the board applies it, then `actors.event_answers` makes the answers. A batch of many
requests is planned in the order of their arrival, each event seeing those before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from actors.board import Board
from actors.errors import Refusal
from actors.event_rows import APPLIED, DUPLICATE, REJECTED, EventRows
from actors.judge import EventsAt, Judge
from actors.submission import Submission
from actors.windows import Span, span_around
from persistence.records import EventsRecord


class Tally(NamedTuple):
    """What became of one submission's events; last_sequence: of those that count, 0 for none."""

    applied: int
    duplicates: int
    refusals: dict[int, Refusal]
    last_sequence: int


class Plan(NamedTuple):
    """What will become of a batch of submissions once `record` (if any) is on disk.

    rows: all their events in order, decided. span: instants whose windows are known, if any.
    damage: what of the log was found damaged while keys were looked up, each once.
    """

    submissions: Sequence[Submission]
    rows: EventRows
    span: Span | None
    record: EventsRecord | None
    damage: Sequence[str]

    def parts(self) -> Iterator[tuple[Submission, int, int]]:
        """Yield each submission with its first row and the one behind its last."""
        start = 0
        for submission in self.submissions:
            end = start + len(submission.events)
            yield submission, start, end
            start = end

    def tally(self, start: int, end: int) -> Tally:
        """Sum up the rows from `start` on, before `end`; refusals by row."""
        rows, statuses = self.rows, self.rows.statuses
        last = statuses.rfind(APPLIED, start, end)
        refused = statuses.count(REJECTED, start, end)
        return Tally(
            statuses.count(APPLIED, start, end),
            statuses.count(DUPLICATE, start, end),
            {row: rows.refusals[row] for row in range(start, end) if row in rows.refusals}
            if refused
            else {},
            rows.sequences[last] if last >= 0 else 0,
        )


def plan(
    board: Board, events_at: EventsAt, submissions: Sequence[Submission], recorded_at_us: int
) -> Plan:
    """Decide every event of `submissions`, in order, against the board as it is.

    events_at: reads the record that holds an event by its sequence, to confirm that a key was used.
    recorded_at_us: the server's time, which the record keeps.
    Complexity: O(bytes). Changes nothing.
    """
    rows = EventRows(board.definition.decimals, sum(len(each.events) for each in submissions))
    for each in submissions:
        rows.take(each.events, each.packed, each.received_at_us)
    if not len(rows):
        return Plan(submissions, rows, None, None, ())
    # Where an event in the middle occurred, most of the others did as well.
    span = span_around(board, rows.occurred_at_us[len(rows) // 2])
    judge = Judge(board, events_at, rows, span)
    judge.decide()
    record = _record(board, rows, judge, recorded_at_us) if APPLIED in rows.statuses else None
    return Plan(submissions, rows, span, record, tuple(judge.damage))


def _record(board: Board, rows: EventRows, judge: Judge, recorded_at_us: int) -> EventsRecord:
    first_sequence = board.sequence + 1
    columns = rows.applied_columns()
    return EventsRecord(
        first_sequence=first_sequence,
        recorded_at_us=recorded_at_us,
        previous_sequences=board.members.plan(
            columns["member_ends"], columns["members"], first_sequence
        ),
        opened=tuple(judge.opened.values()),
        **columns,
    )
