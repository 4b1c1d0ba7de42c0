"""Two boards of real results to look at: Formula 1 points and fastest laps since 2010."""

from __future__ import annotations

import importlib.resources
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from node.client import Client, NodeError, board_path
from node.importing import import_events
from node.tables import TopPage, read_top, top_table
from node.transfer import read_ndjson
from persistence.errors import RanknodeError


class Sample(msgspec.Struct, frozen=True):
    """A board and the file of its events."""

    board: str
    title: str
    file: str
    definition: dict[str, Any]


SAMPLES = (
    Sample(
        "f1-points",
        "Formula 1 points",
        "formula1_points.ndjson",
        {
            "aggregation": "sum",
            "score": [{"name": "points", "direction": "desc", "decimals": 1}],
            "rank_method": "competition",
            # The races are years old: their keys must not be forgotten before they arrive.
            "key_retention_days": None,
        },
    ),
    Sample(
        "f1-fastest-laps",
        "Formula 1 fastest laps, in milliseconds",
        "formula1_fastest_laps.ndjson",
        {
            "aggregation": "best",
            "score": [{"name": "lap_ms", "direction": "asc", "decimals": 0}],
            "key_retention_days": None,
        },
    ),
)
BATCH_EVENTS = 500
TOP_ENTRIES = 5
FIRST_RECORDS = 2  # a board's log begins with its definition and the opening of its window


class _Description(msgspec.Struct):
    sequence: int


async def load_samples(url: str, console: Console | None = None) -> None:
    """Load the sample boards into the node at `url`, once, and show what to try.

    Raises NodeError when the node cannot be reached, RanknodeError when it refused an event.
    """
    console = console or Console(stderr=True)
    async with Client(url) as client:
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed} of {task.total} events"),
            console=console,
            transient=True,
        ) as progress:
            for sample in SAMPLES:
                await _load(client, sample, progress)
        for sample in SAMPLES:
            page = await read_top(client, sample.board, TOP_ENTRIES)
            console.print(top_table(page, sample.title))
    _show_calls(console, url, page)


async def _load(client: Client, sample: Sample, progress: Progress) -> None:
    """Create a board and send its events, unless it holds them all."""
    lines = sample_lines(sample)
    task = progress.add_task(sample.title, total=len(lines))
    try:
        body = msgspec.json.encode(sample.definition)
        await client.request("PUT", board_path(sample.board), body)
    except NodeError as error:
        if error.code != "board_exists":
            raise
    answer = await client.request("GET", board_path(sample.board))
    description = msgspec.json.decode(answer, type=_Description)
    if description.sequence >= len(lines) + FIRST_RECORDS:
        progress.update(task, completed=len(lines))
        return
    summary = await import_events(
        client,
        sample.board,
        read_ndjson(lines),
        batch_events_max=BATCH_EVENTS,
        on_batch=lambda: progress.advance(task, BATCH_EVENTS),
    )
    if summary.rejected:
        raise RanknodeError(f"{sample.board} refused a sample: {summary.reasons[0]}")


def sample_lines(sample: Sample) -> list[bytes]:
    """Read the events of a sample, one line each."""
    folder = importlib.resources.files("node") / "samples"
    return (folder / sample.file).read_bytes().splitlines()


def _show_calls(console: Console, url: str, page: TopPage) -> None:
    console.print("Try:")
    member = page.entries[0].member if page.entries else "hamilton"
    for path in (
        f"{board_path('f1-points', 'top')}?limit=3",
        board_path("f1-fastest-laps", "members", member),
        f"{board_path('f1-points', 'around')}?rank=10&above=2&below=2",
    ):
        console.print(f"  curl '{url}{path}'", highlight=False, soft_wrap=True, markup=False)
