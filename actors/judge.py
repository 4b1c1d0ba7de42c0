"""The rules for new events: which rows of a plan count, and why the others do not.

Owns the contract's order of checks: shape, key, age, rules (precision, range, bounds, source,
future), windows. Shape was looked at when the rows were made. Keys are looked up for all rows at
once. Of the rest, rows that no rule can speak against, whichever order they are asked in, are
accepted together by the bounds of their columns; the others are judged one by one, each seeing
those before it. Nothing here changes the board. Where the log is damaged, an event whose key cannot
be confirmed is refused, and it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from actors.board import DAY_US, Board
from actors.counting import Window
from actors.errors import Refusal
from actors.event_rows import APPLIED, UNDECIDED, EventRows, LoggedRows
from actors.periods import Bounds
from actors.submission import Cells
from actors.windows import Span, counting_windows
from persistence.errors import DamagedError
from persistence.records import EventsRecord, OpenedWindow

WHOLE_MAX = 2**53 - 1
DECIMAL_MAX = 10**15 - 1

EventsAt = Callable[[int], EventsRecord]

_DAMAGED = "the board's log is damaged where this key may be; see the node's log"
_TOO_OLD = "occurred_at is older than keys are remembered"
_CLOCK_BEHIND = "the node's clock is behind what it was, and keys of that time are forgotten"


class Judge:
    """Decides the rows of one plan, by the board as it is.

    span: instants whose windows are known. Afterwards `opened` holds the windows that the accepted
    rows are the first events of, by id, and `damage`, once each, what of the log could not be read.
    """

    def __init__(
        self, board: Board, events_at: EventsAt, rows: EventRows, span: Span | None
    ) -> None:
        self.opened: dict[str, OpenedWindow] = {}
        self.damage: dict[str, None] = {}
        self._board = board
        self._definition = board.definition
        self._events_at = events_at
        self._rows = rows
        self._span = span
        self._applied_repeats: dict[int, int] = {}  # by the first row with the key
        self._limits = _limits(self._definition.decimals)
        self._totals: dict[tuple[str, bytes], list[int]] | None = (
            {} if self._totals_in_danger() else None
        )
        retention_days = self._definition.key_retention_days
        live = self._definition.mode == "live"
        self._retention_us = retention_days * DAY_US if live and retention_days else None
        self._floor_us = board.keys_floor_us if live else None
        self._tolerance_us = self._definition.future_tolerance_seconds * 1_000_000

    def decide(self) -> None:
        """Decide every row, and give those that count their sequences. Complexity: O(rows)."""
        rows, first_sequence = self._rows, self._board.sequence + 1
        self._confirm_keys()
        self._accept_plain()
        repeats = dict(rows.repeats(self._board.identity.hash_key))
        for row in repeats:
            rows.reconsider(row)
        for row in rows.undecided():
            rows.number(row, first_sequence)
            self._judge(row, repeats.get(row, row))
        rows.number(len(rows), first_sequence)

    # Keys

    def _confirm_keys(self) -> None:
        """Decide the rows whose keys were used before, by what is logged under them."""
        rows, hash_key = self._rows, self._board.identity.hash_key
        candidates = self._board.keys.find_all(rows.key_ends, rows.keys)
        unconfirmed = []
        place = 0
        while place < len(candidates):
            row, sequence = candidates[place]
            try:
                logged = LoggedRows(self._events_at(sequence))
            except DamagedError as error:
                self.damage[str(error)] = None
                unconfirmed.append(row)
                place += 1
            else:
                place = rows.confirm_logged(candidates, place, logged, hash_key)
        for row in unconfirmed:
            if rows.statuses[row] == UNDECIDED:  # no other candidate was the key's own
                rows.refuse(row, Refusal("board_unavailable", _DAMAGED))

    # All at once

    def _accept_plain(self) -> None:
        """Accept the rows that each of the rules below would let pass, by the strictest receipt.

        Within the span an event counts for open windows, whatever the time. Where a total might
        leave its range, nothing is plain.
        """
        received_at_us = self._rows.received_at_us
        if self._span is None or not self._span.windows or self._totals is not None:
            return
        earliest_us = self._span.start_us
        if self._floor_us is not None:
            earliest_us = max(earliest_us, self._floor_us)
        if self._retention_us is not None:
            earliest_us = max(earliest_us, max(received_at_us) - self._retention_us)
        latest_us = min(self._span.end_us - 1, min(received_at_us) + self._tolerance_us)
        bounds = self._definition.min_value, self._definition.max_value
        self._rows.accept_plain(earliest_us, latest_us, *bounds, self._definition.sources)

    # One by one

    def _judge(self, row: int, first_row: int) -> None:
        """Decide a row whose key the board does not know; first_row: the first one that has it."""
        rows = self._rows
        earlier = self._applied_repeats.get(first_row, first_row)
        if earlier != row and rows.statuses[earlier] == APPLIED:
            rows.confirm_within(row, earlier)
            return
        cells = rows.cells(row)
        occurred_at_us, now_us = rows.occurred_at_us[row], rows.received_at_us[row]
        windows = counting_windows(self._board, occurred_at_us, now_us, self.opened)
        refusal = (
            self._too_old(occurred_at_us, now_us, cells.occurred_at_us)
            or self._against_rules(cells, windows)
            or self._in_future(occurred_at_us, now_us)
        )
        if refusal is None and not windows:
            refusal = Refusal("period_closed", "no open window of the board holds occurred_at")
        if refusal is not None:
            rows.refuse(row, refusal)
            return
        if self._totals is not None:
            self._add_to_totals(cells, windows)
        rows.apply(row)
        self._applied_repeats[first_row] = row
        for window in windows:
            if isinstance(window, Bounds):
                self.opened[window.id] = OpenedWindow(window.id, window.start_us, window.end_us)

    def _too_old(self, occurred_at_us: int, now_us: int, given_us: int | None) -> Refusal | None:
        forgotten = self._floor_us is not None and occurred_at_us < self._floor_us
        aged = self._retention_us is not None and occurred_at_us < now_us - self._retention_us
        if forgotten or aged:
            return Refusal("event_too_old", _CLOCK_BEHIND if given_us is None else _TOO_OLD)
        return None

    def _against_rules(self, cells: Cells, windows: Sequence[Window | Bounds]) -> Refusal | None:
        values, definition = cells.values, self._definition
        if isinstance(values, Refusal):
            return values
        if self._totals is not None and self._leaves_range(cells.member, values, windows):
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
        if occurred_at_us > now_us + self._tolerance_us:
            return Refusal(
                "occurred_in_future",
                "occurred_at is later than now and the tolerance",
                field="occurred_at",
            )
        return None

    # Totals

    def _totals_in_danger(self) -> bool:
        """Tell whether any total of a sum board could leave the exact range by these rows.

        The bound is far away in practice, so that one addition spares a check for each event.
        """
        if self._definition.aggregation != "sum":
            return False
        highest = max((w.magnitude for w in self._board.windows.values()), default=0)
        return highest + self._rows.magnitude > min(self._limits)

    def _total(self, window: Window | Bounds, member: bytes) -> Sequence[int]:
        assert self._totals is not None
        total: Sequence[int] | None = self._totals.get((window.id, member))
        if total is None and isinstance(window, Window):
            slot = self._board.members.find(member)
            row = window.row(slot) if slot >= 0 else None
            if row is not None:
                return row.score
        return total or [0] * len(self._limits)

    def _leaves_range(
        self, member: bytes, values: Sequence[int], windows: Sequence[Window | Bounds]
    ) -> bool:
        return any(
            abs(total + value) > limit
            for window in windows
            for total, value, limit in zip(
                self._total(window, member), values, self._limits, strict=True
            )
        )

    def _add_to_totals(self, cells: Cells, windows: Sequence[Window | Bounds]) -> None:
        assert self._totals is not None
        assert not isinstance(cells.values, Refusal)
        for window in windows:
            total = self._total(window, cells.member)
            self._totals[window.id, cells.member] = [
                a + b for a, b in zip(total, cells.values, strict=True)
            ]


def _limits(decimals: Sequence[int]) -> list[int]:
    """Give the largest magnitude of a scaled value or total, per score key."""
    return [DECIMAL_MAX if places else WHOLE_MAX for places in decimals]
