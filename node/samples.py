"""Two boards of real results to look at: Formula 1 points and fastest laps since 2010."""

from __future__ import annotations

import importlib.resources
import itertools
from typing import Any

import msgspec
from rich.columns import Columns
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from node.client import Client, NodeError, board_path
from node.config import API_KEY
from node.importing import Summary, import_events
from node.tables import read_top, top_table
from node.transfer import Header, read_ndjson
from persistence.errors import RanknodeError

SEASON = "yearly:2018-01-01"  # the last one in the file


class Sample(msgspec.Struct, frozen=True):
    """A board and the file of its events. tops: windows to show, each with its title."""

    board: str
    title: str
    file: str
    definition: dict[str, Any]
    tops: dict[str, str]


SAMPLES = (
    Sample(
        "f1-points",
        "Formula 1 points",
        "formula1_points.ndjson",
        {
            "aggregation": "sum",
            "score": [{"name": "points", "direction": "desc", "decimals": 1}],
            "rank_method": "competition",
            "periods": ["yearly", "all_time"],
            # The races are years old: their keys must not be forgotten before they arrive.
            "key_retention_days": None,
        },
        {SEASON: "Formula 1 points of 2018", "all_time": "Formula 1 points since 2010"},
    ),
    Sample(
        "f1-fastest-laps",
        "Formula 1 fastest laps, in milliseconds",
        "formula1_fastest_laps.ndjson",
        {
            "aggregation": "best",
            "score": [{"name": "lap_ms", "direction": "asc", "decimals": 0}],
            "rank_method": "competition",
            "periods": ["all_time", "daily"],
            "key_retention_days": None,
        },
        {"all_time": "Formula 1 fastest laps, in milliseconds"},
    ),
)
BATCH_EVENTS = 500
TOP_ENTRIES = 5
FIRST_RECORDS = 2  # a board's log begins with its definition and the opening of all_time


class _Description(msgspec.Struct):
    sequence: int
    mode: str
    periods: list[Any]


async def load_samples(url: str, console: Console | None = None, *, key: str | None = None) -> None:
    """Load the sample boards into the node at `url`, once, and show what to try.

    key: of scope admin, for a node that has keys.
    The history goes in while a board is in backfill mode; then its seasons and race days close.
    Raises NodeError when the node cannot be reached, RanknodeError when it refused an event or has
    other boards of these names.
    """
    console = console or Console(stderr=True)
    async with Client(url, key=key) as client:
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
            tables = [
                top_table(await read_top(client, sample.board, TOP_ENTRIES, period), title)
                for period, title in sample.tops.items()
            ]
            console.print(Columns(tables))
    _show_calls(console, url, with_key=key is not None)


async def _load(client: Client, sample: Sample, progress: Progress) -> None:
    """Create a board and send its events, unless it holds them all."""
    lines = sample_lines(sample)
    task = progress.add_task(sample.title, total=len(lines))
    if await _is_loaded(client, sample, len(lines)):
        progress.update(task, completed=len(lines))
        return
    summary = Summary()
    await import_events(
        client,
        sample.board,
        itertools.chain([_header(sample)], read_ndjson(lines)),
        summary,
        backfill=True,
        batch_events_max=BATCH_EVENTS,
        on_batch=lambda: progress.advance(task, BATCH_EVENTS),
    )
    if summary.rejected:
        raise RanknodeError(f"{sample.board} refused a sample: {summary.reasons[0]}")


async def _is_loaded(client: Client, sample: Sample, events: int) -> bool:
    """Tell whether a board holds all of its events and is live again, as after a whole load."""
    try:
        answer = await client.request("GET", board_path(sample.board))
    except NodeError as error:
        if error.code != "board_not_found":
            raise
        return False
    found = msgspec.json.decode(answer, type=_Description)
    if found.periods != sample.definition["periods"]:
        raise RanknodeError(
            f"there is another board {sample.board}, with other periods; delete it to load this one"
        )
    return found.mode == "live" and found.sequence >= events + FIRST_RECORDS


def _header(sample: Sample) -> Header:
    """Write a sample's definition as the first line of an export has it."""
    written = msgspec.json.encode(sample.definition)
    return Header(msgspec.json.decode(written, type=dict[str, msgspec.Raw]))


def sample_lines(sample: Sample) -> list[bytes]:
    """Read the events of a sample, one line each."""
    folder = importlib.resources.files("node") / "samples"
    return (folder / sample.file).read_bytes().splitlines()


def _show_calls(console: Console, url: str, *, with_key: bool) -> None:
    console.print("Try:")
    header = f'-H "Authorization: Bearer ${API_KEY}" ' if with_key else ""
    for path in (
        f"{board_path('f1-points', 'top')}?period={SEASON}&limit=3",
        f"{board_path('f1-points', 'members', 'hamilton')}?period={SEASON}",
        f"{board_path('f1-points', 'periods')}?kind=yearly&limit=3",
    ):
        call = f"  curl {header}'{url}{path}'"
        console.print(call, highlight=False, soft_wrap=True, markup=False)
