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

# What PATCH may have changed after events were accepted that it would refuse: the contract's
# defaults, and what refuses nothing.
_NULL = msgspec.Raw(b"null")
_DEFAULT_RULES = {
    "mode": msgspec.Raw(b'"live"'), "min_value": _NULL, "max_value": _NULL, "sources": _NULL,
}  # fmt: skip
_RELAXED_RULES = _DEFAULT_RULES | {"mode": msgspec.Raw(b'"backfill"')}


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
    backfill mode and without the rules that may have become stricter since; both are set at the
    end. Run again
    after a break: what arrived before counts as duplicates. When it returns, all that is applied
    is on disk. Raises NodeError when the node cannot take the events, FileFormatError from
    `items`.
    """
    summary = Summary()
    stricter: dict[str, msgspec.Raw] = {}
    for batch in _batches(items, batch_events_max):
        if isinstance(batch, Header):
            stricter = await _create(client, board, batch, summary)
        elif isinstance(batch, BadRow):
            summary.reject(batch.line, batch.reason)
        else:
            await _send(client, board, batch, summary)
        on_batch()
    if stricter:
        await client.request("PATCH", board_path(board), msgspec.json.encode(stricter))
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


async def _create(
    client: Client, board: str, header: Header, summary: Summary
) -> dict[str, msgspec.Raw]:
    """Create the board so that all its history is accepted.

    Returns what must be set at the end: rules may be stricter today than when an event came.
    """
    wanted = {name: header.definition.get(name, rule) for name, rule in _DEFAULT_RULES.items()}
    definition = header.definition | _RELAXED_RULES
    try:
        await client.request("PUT", board_path(board), msgspec.json.encode(definition))
    except NodeError as error:
        if error.code != "board_exists":
            raise
        summary.notes.append(f"{board} exists with a definition of its own, which is kept")
        return {}
    return {name: rule for name, rule in wanted.items() if rule != _RELAXED_RULES[name]}


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
