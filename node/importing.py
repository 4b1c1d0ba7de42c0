"""Sending a file's events and rulings to a board, in order, resumable after any break.

Events go in batches, and their keys make a repetition harmless; of rulings `node.importing_rulings`
takes care.

History of any age goes in while its board is in backfill mode, in which nothing closes. The mode is
left only when every event has arrived: what closes stays closed, and an import that is run again
after a break would find its windows shut.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import msgspec

from actors.answers import BatchAnswer
from node.client import Client, NodeError, board_path
from node.importing_erased import ErasedEvents
from node.importing_rulings import RulingImport
from node.transfer import BadRow, Header, Item, Row, RulingRow, batch_body

BATCH_BYTES_MAX = 1024 * 1024  # well below the node's own bound on a body
REASONS_MAX = 10

# A batch refused as a whole with one of these holds something that makes it unreadable.
_BODY_STATUSES = frozenset({400, 413, 422})

# What PATCH may have changed after events were accepted that it would refuse: the contract's
# defaults, and what refuses nothing.
_NULL = msgspec.Raw(b"null")
_LIVE = {"mode": msgspec.Raw(b'"live"')}
_BACKFILL = {"mode": msgspec.Raw(b'"backfill"')}
_NO_RULES = {"min_value": _NULL, "max_value": _NULL, "sources": _NULL}
_DEFAULT_RULES = _LIVE | _NO_RULES
_RELAXED_RULES = _BACKFILL | _NO_RULES


class Summary:
    """What came of an import; `reasons` are the first few refusals, with the lines' numbers.

    unreadable: lines that are neither an event nor a ruling; they are rejected as well.
    rulings_skipped: those that hold already. last_sequence: the highest one that any event of the
    file was found to have. unfinished: what the board is still to be given at the end, its mode
    among it; empty for a board whose definition the import leaves alone, and once it is done.
    """

    def __init__(self) -> None:
        self.applied = 0
        self.duplicates = 0
        self.rejected = 0
        self.unreadable = 0
        self.rulings_applied = 0
        self.rulings_skipped = 0
        self.last_sequence = 0
        self.reasons: list[str] = []
        self.notes: list[str] = []
        self.unfinished: dict[str, msgspec.Raw] = {}

    def reject(self, line: int, reason: str) -> None:
        """Count a line that does not count."""
        self.rejected += 1
        if len(self.reasons) < REASONS_MAX:
            self.reasons.append(f"line {line}: {reason}")


_Line: TypeAlias = Row | RulingRow | BadRow


class _Description(msgspec.Struct):
    mode: str


async def import_events(
    client: Client,
    board: str,
    items: Iterable[Item],
    summary: Summary,
    *,
    backfill: bool,
    batch_events_max: int,
    on_batch: Callable[[], None],
) -> None:
    """Send all events and rulings, one batch at a time so that their order stays the file's.

    A definition in the file creates the board if it is missing. Such a board takes its events in
    backfill mode and without the rules that may have become stricter since; both are set at the
    end. backfill: so does a board that is there already, and it ends live, with everything closed
    that is due. Run again after a break: what arrived before counts as duplicates, and the end is
    made up for; a ruling that was made is not made again. A line that cannot be read, as of a file
    that was cut, leaves the end to another import. When it returns, all that is applied is
    on disk. What comes of it is counted in `summary` as it comes. Errors: NodeError when the node
    cannot take the events, FileFormatError from `items`.
    """
    header, rows = _parted(items)
    if header is not None:
        await _create(client, board, header, summary, backfill=backfill)
    if backfill:
        await _reopen(client, board, summary)
    erased = ErasedEvents(client, board)
    rulings = RulingImport(client, board, summary, erased)
    for batch in _batches(rows, batch_events_max):
        if isinstance(batch, BadRow):
            summary.unreadable += 1
            summary.reject(batch.line, batch.reason)
        elif isinstance(batch, RulingRow):
            await rulings.take(batch)
        elif unknown := await _unknown(batch, erased, summary):
            await _send(client, board, unknown, summary)
        on_batch()
    if summary.unreadable and summary.unfinished:
        summary.notes.append(
            f"{board} stays in backfill mode, in which nothing closes, since lines could not be"
            " read; import the whole file to end that"
        )
    elif summary.unfinished:
        await _change(client, board, summary.unfinished)
        summary.unfinished = {}


def _parted(items: Iterable[Item]) -> tuple[Header | None, Iterator[_Line]]:
    """Part the header, which comes first if there is one, from the lines that follow."""
    source = iter(items)
    first = next(source, None)
    header = first if isinstance(first, Header) else None
    read = [] if first is None else [first]
    lines = itertools.chain(read, source)
    return header, (item for item in lines if not isinstance(item, Header))


def _batches(items: Iterable[_Line], events_max: int) -> Iterator[BadRow | RulingRow | list[Row]]:
    """Gather events that follow each other into batches; pass on everything else.

    A ruling is passed on behind the events before it.
    """
    rows: list[Row] = []
    size = 0
    for item in items:
        if isinstance(item, BadRow):
            yield item
            continue
        if isinstance(item, RulingRow):
            if rows:
                yield rows
            rows, size = [], 0
            yield item
            continue
        if len(rows) == events_max or (rows and size + len(item.event) > BATCH_BYTES_MAX):
            yield rows
            rows, size = [], 0
        rows.append(item)
        size += len(item.event)
    if rows:
        yield rows


async def _create(
    client: Client, board: str, header: Header, summary: Summary, *, backfill: bool
) -> None:
    """Create the board so that all its history is accepted, or go on with one created so.

    One that is in backfill mode already, and will stay so, is noted. What must be set at the end
    is left in the summary: rules may be stricter today than when an event came.
    """
    wanted = {name: header.definition.get(name, rule) for name, rule in _DEFAULT_RULES.items()}
    definition = header.definition | _RELAXED_RULES
    try:
        await client.request("PUT", board_path(board), msgspec.json.encode(definition))
    except NodeError as error:
        if error.code != "board_exists":
            raise
        summary.notes.append(f"{board} exists with a definition of its own, which is kept")
        if not backfill and await _mode(client, board) == "backfill":
            summary.notes.append(
                f"{board} is in backfill mode, in which no window closes; run the import again"
                " with --backfill to end that: what has arrived counts once"
            )
        return
    summary.unfinished = {
        name: rule for name, rule in wanted.items() if rule != _RELAXED_RULES[name]
    }


async def _reopen(client: Client, board: str, summary: Summary) -> None:
    """Bring a board that is there into backfill mode, to be live at the end."""
    mode = await _mode(client, board)
    summary.unfinished |= _LIVE  # first, since a change may arrive and its answer may not
    if mode != "backfill":
        await _change(client, board, _BACKFILL)


async def _mode(client: Client, board: str) -> str:
    answer = await client.request("GET", board_path(board))
    return msgspec.json.decode(answer, type=_Description).mode


async def _change(client: Client, board: str, changes: dict[str, msgspec.Raw]) -> None:
    await client.request("PATCH", board_path(board), msgspec.json.encode(changes))


async def _unknown(rows: list[Row], erased: ErasedEvents, summary: Summary) -> list[Row]:
    """Leave out, and count, the events of erased members that are on the board."""
    unknown = []
    for row in rows:
        sequence = await erased.sequence_of(row.event)
        if sequence is None:
            unknown.append(row)
        else:
            summary.duplicates += 1
            summary.last_sequence = max(summary.last_sequence, sequence)
    return unknown


async def _send(client: Client, board: str, rows: list[Row], summary: Summary) -> None:
    """Send a batch; one that is refused as a whole is halved until the culprit is found."""
    body = batch_body(row.event for row in rows)
    try:
        answer = await client.request("POST", board_path(board, "events"), body)
    except NodeError as error:
        if error.status not in _BODY_STATUSES:
            raise
        if len(rows) == 1:
            summary.reject(rows[0].line, str(error))
            return
        middle = len(rows) // 2
        await _send(client, board, rows[:middle], summary)
        await _send(client, board, rows[middle:], summary)
        return
    results = msgspec.json.decode(answer, type=BatchAnswer)
    summary.applied += results.applied
    summary.duplicates += results.duplicates
    for row, result in zip(rows, results.results, strict=True):
        if result.status == "rejected":
            summary.reject(row.line, f"{result.code}: {result.detail}")
        elif result.sequence is not None:
            summary.last_sequence = max(summary.last_sequence, result.sequence)
