"""A board's top as a table for a terminal, with the scores' exact text."""

from __future__ import annotations

from urllib.parse import urlencode

import msgspec
from rich.table import Table
from rich.text import Text

from node.client import Client, board_path


class TopEntry(msgspec.Struct):
    """An entry as it is shown; the score stays the text that the node sent."""

    rank: int
    member: str
    score: msgspec.Raw
    achieved_at: str


class TopPeriod(msgspec.Struct):
    """The window that a page is of."""

    id: str


class TopPage(msgspec.Struct):
    """The first entries of a board's window."""

    board: str
    period: TopPeriod
    members: int
    entries: list[TopEntry]


async def read_top(client: Client, board: str, limit: int, period: str | None = None) -> TopPage:
    """Ask for the first entries of a window, the board's first if none is named. Raises NodeError.

    period: as the contract's queries take it.
    """
    query = {"limit": str(limit)} | ({"period": period} if period is not None else {})
    answer = await client.request("GET", f"{board_path(board, 'top')}?{urlencode(query)}")
    return msgspec.json.decode(answer, type=TopPage)


def top_table(page: TopPage, title: str) -> Table:
    """Make the table of a board's top."""
    table = Table(title=title, caption=f"{page.members} members")
    table.add_column("rank", justify="right")
    table.add_column("member")
    table.add_column("score", justify="right")
    table.add_column("achieved at")
    for entry in page.entries:
        score = bytes(entry.score).decode().strip("[]").replace(",", ", ")
        # Text, since a member's name may hold what rich would take for markup.
        table.add_row(str(entry.rank), Text(entry.member), score, entry.achieved_at)
    return table
