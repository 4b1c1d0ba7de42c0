"""What `ranknode rebuild` does: a board made again from its log, and compared with what is known.

Owns the questions to a running node. Its log grows meanwhile, so an answer is compared with the
rebuild at the very sequence that it carries.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import msgspec
from rich.console import Console
from rich.progress import MofNCompleteColumn, ProgressColumn, Task
from rich.table import Table
from rich.text import Text
from yarl import URL

from actors.exact import format_time
from actors.rebuilding import NOT_THERE, Comparison, Rebuild, newest_snapshot
from node.client import Client, NodeError, board_path
from node.commands import CommandError, bar, board_directory
from persistence.snapshot import snapshot_sequence

SHOWN_SEQUENCES = 1000  # how often the bar moves
PROBE_SECONDS = 2.0  # until an address is taken for one that nobody listens on
PAGE_WINDOWS = 1000
TABLE_COLUMNS = 240  # where no terminal says how wide it is: two digests of 64 digits, and room

Show = Callable[[int, int], None]


class _Described(msgspec.Struct):
    created_at: str


class _Listed(msgspec.Struct):
    id: str
    closed: bool
    digest: str | None


class _Page(msgspec.Struct):
    periods: list[_Listed]
    next: str | None


class _Digest(msgspec.Struct):
    sequence: int
    digest: str


class Node(NamedTuple):
    """The node to compare with, which one may do without where it was not named."""

    url: str
    key: str | None
    is_named: bool


class _Answers(NamedTuple):
    """What a node says: digests by window, as of a sequence; and the published ones of closed."""

    digests: dict[str, _Digest]
    published: dict[str, str]


class _Rate(ProgressColumn):
    """How many sequences a second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:,.0f}/s")


def run_rebuild(data: Path, board: str, node: Node) -> int:
    """Rebuild a board from its log and compare digests; returns 1 when any differs.

    The newest snapshot and the archives on disk are compared whether or not the node is.
    """
    directory = board_directory(data, board)
    if node.is_named and not _listens(node.url):
        raise CommandError(f"no node answers at {node.url}")
    rebuild = Rebuild(directory)
    with bar(Console(stderr=True), MofNCompleteColumn(), _Rate()) as progress:
        task = progress.add_task(f"rebuilding {board}", total=None)

        def show(done: int, total: int) -> None:
            if done % SHOWN_SEQUENCES == 0 or done == total:
                progress.update(task, completed=done, total=total)

        comparisons = _replay(rebuild, directory, show)
        comparisons += _against_node(rebuild, node, show)
        comparisons += rebuild.compare_archives()
    return _show(rebuild, [*comparisons, *rebuild.differences])


def _replay(rebuild: Rebuild, directory: Path, show: Show) -> list[Comparison]:
    """Replay the log, say how fast that was, and compare with the newest snapshot on the way."""
    snapshot = newest_snapshot(directory)  # before the log is opened, which then reaches as far
    stop = None if snapshot is None else snapshot_sequence(snapshot)
    comparisons: list[Comparison] = []
    seconds = -time.monotonic()
    for sequence in rebuild.follow(show, () if stop is None else (stop,)):
        if snapshot is not None and sequence == stop:
            seconds += time.monotonic()
            comparisons = rebuild.compare_snapshot(snapshot)
            seconds -= time.monotonic()
    seconds += time.monotonic()
    _say(
        f"{directory.name}: {rebuild.events} events in {seconds:.2f} s,"
        f" {rebuild.events / seconds:,.0f} events/s, sequence {rebuild.board.sequence}"
    )
    if snapshot is None:
        _say("compared with no snapshot: there is none")
    elif not comparisons:
        _say(f"compared with no snapshot: the log does not reach {snapshot.name}, or it is gone")
    else:
        _say(f"compared with {snapshot.name}")
    return comparisons


def _against_node(rebuild: Rebuild, node: Node, show: Show) -> list[Comparison]:
    """Ask a node for its digests and compare; one that was not named need not know the board."""
    if not _listens(node.url):
        _say(f"compared with no node: none answers at {node.url}")
        return []
    closed_before = set(rebuild.board.closed)
    try:
        answers = asyncio.run(_ask(node, rebuild))
    except (NodeError, CommandError) as error:
        if node.is_named:
            raise
        _say(f"compared with no node: {node.url}: {error}")
        return []
    _say(f"compared with the node at {node.url}")
    comparisons = []
    for sequence in rebuild.follow(show, {answer.sequence for answer in answers.digests.values()}):
        comparisons += [
            Comparison(window, sequence, rebuild.digest(window), answer.digest, "node")
            for window, answer in answers.digests.items()
            if answer.sequence == sequence
        ]
    compared = {comparison.of for comparison in comparisons}
    for window, answer in answers.digests.items():
        if answer.sequence > rebuild.board.sequence:
            raise CommandError(
                f"the node is at sequence {answer.sequence}, but the log ends at"
                f" {rebuild.board.sequence}: it is not that of this node"
            )
        if window not in compared:
            comparisons.append(
                Comparison(window, answer.sequence, "no record ends here", answer.digest, "node")
            )
    return comparisons + _published(rebuild, answers, closed_before)


def _published(rebuild: Rebuild, answers: _Answers, closed_before: set[str]) -> list[Comparison]:
    """Compare the published digests of closed windows, which depend on no sequence."""
    unlisted = closed_before - answers.published.keys() - answers.digests.keys()
    return [
        Comparison(
            window,
            rebuild.board.closed[window].newest.sequence if window in rebuild.board.closed else 0,
            rebuild.digest(window) if window in rebuild.board.closed else NOT_THERE,
            answers.published.get(window, NOT_THERE),
            "node",
        )
        for window in (*answers.published, *(unlisted & rebuild.board.closed.keys()))
    ]


async def _ask(node: Node, rebuild: Rebuild) -> _Answers:
    """Ask a node for every window, as of the sequence that was rebuilt or later.

    Raises NodeError; CommandError where it serves another board of that name.
    """
    board = rebuild.board.identity.board
    reached = {"min_sequence": str(rebuild.board.sequence)}
    async with Client(node.url, key=node.key) as client:

        async def get(query: dict[str, str], *path: str) -> bytes:
            return await client.request("GET", f"{board_path(board, *path)}?{urlencode(query)}")

        async def get_reached(query: dict[str, str], *path: str) -> bytes:
            try:
                return await get(reached | query, *path)
            except NodeError as error:
                if error.code != "not_yet":
                    raise
                raise CommandError(
                    f"it has not reached sequence {reached['min_sequence']}, where the log on disk"
                    " ends: it lags behind, or serves another directory"
                ) from error

        described = msgspec.json.decode(await get({}), type=_Described)
        if described.created_at != format_time(rebuild.board.identity.created_at_us):
            raise CommandError(f"it serves another board {board!r} than this one")
        listed: list[_Listed] = []
        after: str | None = ""
        while after is not None:
            query = {"limit": str(PAGE_WINDOWS)} | ({"after": after} if after else {})
            page = msgspec.json.decode(await get_reached(query, "periods"), type=_Page)
            listed += page.periods
            after = page.next
        published = {w.id: w.digest for w in listed if w.closed and w.digest is not None}
        # A window that is empty is not listed; one whose archive is being made again is awaited.
        asked = [w.id for w in listed if w.id not in published]
        asked += [window for window in rebuild.board.windows if window not in asked]
        digests = {}
        for window in asked:
            try:
                answer = await get_reached({"period": window}, "digest")
                digests[window] = msgspec.json.decode(answer, type=_Digest)
            except NodeError as error:
                if error.code != "period_not_found":
                    raise
                digests[window] = _Digest(rebuild.board.sequence, NOT_THERE)
    return _Answers(digests, published)


def _listens(url: str) -> bool:
    """Tell whether anything listens at the address of a node."""
    try:
        address = URL(url)
        with socket.create_connection((address.host or "", address.port or 0), PROBE_SECONDS):
            return True
    except (OSError, ValueError):
        return False


def _say(line: str) -> None:
    Console().print(line, markup=False, highlight=False, soft_wrap=True)


def _show(rebuild: Rebuild, comparisons: list[Comparison]) -> int:
    """Print every comparison, and what they come to; returns the exit code."""
    if comparisons:
        Console(width=None if sys.stdout.isatty() else TABLE_COLUMNS).print(_table(comparisons))
    confirmed = len(rebuild.digests) - len(rebuild.differences)
    _say(f"{confirmed} windows closed with what their closing records say")
    different = sum(not comparison.is_equal for comparison in comparisons)
    _say(f"{len(comparisons)} digests compared, {different or 'none'} different")
    return 1 if different else 0


def _table(comparisons: Iterable[Comparison]) -> Table:
    """Make the table of what was compared; sources that say the same share a row."""
    table = Table()
    for title in ("window", "sequence", "digest rebuilt", "digest there", "there", "equal"):
        table.add_column(title, overflow="fold")
    rows: dict[tuple[str, int, str, str], list[str]] = {}
    for of, sequence, rebuilt, other, against in comparisons:
        rows.setdefault((of, sequence, rebuilt, other), []).append(against)
    for (of, sequence, rebuilt, other), sources in rows.items():
        equal = "yes" if rebuilt == other else "no"
        table.add_row(of, str(sequence), rebuilt, Text(other), ", ".join(sources), equal)
    return table
