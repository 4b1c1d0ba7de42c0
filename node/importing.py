"""Sending a file's events to a board: in batches, in order, resumable because keys make it so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from actors.answers import BatchAnswer
from node.client import Client, NodeError, board_path
from node.transfer import BadRow, Header, Item, Row, batch_body

BATCH_BYTES_MAX = 1024 * 1024  # well below the node's own bound on a body
REASONS_MAX = 10

# A batch refused as a whole with one of these holds something that makes it unreadable.
_BODY_STATUSES = frozenset({400, 413, 422})


class Summary:
    """What came of an import; `reasons` are the first few refusals, with the lines' numbers."""

    def __init__(self) -> None:
        self.applied = 0
        self.duplicates = 0
        self.rejected = 0
        self.reasons: list[str] = []
        self.notes: list[str] = []

    def reject(self, line: int, reason: str) -> None:
        """Count a line that does not count."""
        self.rejected += 1
        if len(self.reasons) < REASONS_MAX:
            self.reasons.append(f"line {line}: {reason}")


async def import_events(
    client: Client,
    board: str,
    items: Iterable[Item],
    *,
    batch_events_max: int,
    on_batch: Callable[[], None],
) -> Summary:
    """Send all events, one batch at a time so that their order stays the file's.

    A definition in the file creates the board if it is missing. Such a board takes its events in
    backfill mode, since in live mode old ones are refused, and goes live at the end. Run again
    after a break: what arrived before counts as duplicates. When it returns, all that is applied
    is on disk. Raises NodeError when the node cannot take the events, FileFormatError from
    `items`.
    """
    summary = Summary()
    goes_live = False
    for batch in _batches(items, batch_events_max):
        if isinstance(batch, Header):
            goes_live = await _create(client, board, batch, summary)
        elif isinstance(batch, BadRow):
            summary.reject(batch.line, batch.reason)
        else:
            await _send(client, board, batch, summary)
        on_batch()
    if goes_live:
        await client.request("PATCH", board_path(board), b'{"mode":"live"}')
    return summary


def _batches(items: Iterable[Item], events_max: int) -> Iterator[Header | BadRow | list[Row]]:
    """Gather events that follow each other into batches; pass on everything else."""
    rows: list[Row] = []
    size = 0
    for item in items:
        if not isinstance(item, Row):
            yield item
            continue
        if len(rows) == events_max or (rows and size + len(item.event) > BATCH_BYTES_MAX):
            yield rows
            rows, size = [], 0
        rows.append(item)
        size += len(item.event)
    if rows:
        yield rows


async def _create(client: Client, board: str, header: Header, summary: Summary) -> bool:
    """Create the board; return whether it must be set live at the end."""
    live = header.definition.get("mode", msgspec.Raw(b'"live"')) == msgspec.Raw(b'"live"')
    definition = header.definition | {"mode": msgspec.Raw(b'"backfill"')}
    try:
        await client.request("PUT", board_path(board), msgspec.json.encode(definition))
    except NodeError as error:
        if error.code != "board_exists":
            raise
        summary.notes.append(f"{board} exists with a definition of its own, which is kept")
        return False
    return live


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
