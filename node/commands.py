"""What the commands do: import, export, top and verify.

Each function is one command, from its checked options to its exit code; what goes wrong is raised
as a RanknodeError with a text that stands by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
)
from rich.progress import TimeRemainingColumn as Remaining

from actors.definition import BOARD_ID
from actors.exact import format_time
from actors.exporting import read_export
from actors.offline import verify
from node.client import Client
from node.importing import Summary, import_events
from node.tables import read_top, top_table
from node.transfer import Lines, end_line, header_line, item_line, read_csv, read_ndjson
from persistence.errors import RanknodeError

# The folder of a data directory that holds one directory per board. actors.directory, which makes
# it, is not imported: it loads Ray.
BOARDS = "boards"
PROGRESS_ITEMS = 1000  # how often an export's bar moves


class CommandError(RanknodeError):
    """Raised for what the user of a command can put right."""


class ImportOptions(NamedTuple):
    """How an import reads its file and sends it; `backfill` as `import_events` has it."""

    file_format: str
    batch_events_max: int
    backfill: bool


def run_import(client: Client, board: str, file: str, options: ImportOptions) -> int:
    """Send a file's events and rulings to a board; returns 1 when any was rejected."""
    console, summary = Console(stderr=True), Summary()
    try:
        _send_file(client, board, file, options, summary, console)
    except (KeyboardInterrupt, OSError, RanknodeError):
        _show_break(console, board, summary)
        raise
    _show_summary(console, summary)
    return 1 if summary.rejected else 0


def _send_file(
    client: Client,
    board: str,
    file: str,
    options: ImportOptions,
    summary: Summary,
    console: Console,
) -> None:
    with _reading(file) as (source, size), bar(console, DownloadColumn()) as progress:
        task = progress.add_task(f"importing into {board}", total=size)
        lines = Lines(source)
        items = read_csv(lines) if options.file_format == "csv" else read_ndjson(lines)

        async def send() -> None:
            async with client as node:
                await import_events(
                    node,
                    board,
                    items,
                    summary,
                    backfill=options.backfill,
                    batch_events_max=options.batch_events_max,
                    on_batch=lambda: progress.update(task, completed=lines.bytes_read),
                )

        asyncio.run(send())


def _show_break(console: Console, board: str, summary: Summary) -> None:
    """Say how to go on after a break, and what mode the board was left in."""
    advice = "Run the import again to resume; what has arrived counts once."
    if summary.unfinished:
        advice = f"{board} is left in backfill mode, in which nothing closes. {advice}"
    elif not (summary.applied or summary.duplicates or summary.rulings_applied):
        return
    console.print(advice, markup=False, highlight=False, soft_wrap=True)


def _show_summary(console: Console, summary: Summary) -> None:
    for note in summary.notes:
        console.print(note, markup=False, highlight=False)
    sys.stdout.write(
        f"{summary.applied} applied, {summary.duplicates} duplicates, {summary.rejected} rejected\n"
    )
    if summary.rulings_applied or summary.rulings_skipped:
        sys.stdout.write(
            f"rulings: {summary.rulings_applied} applied, {summary.rulings_skipped} skipped\n"
        )
    for reason in summary.reasons:
        console.print(f"  {reason}", markup=False, highlight=False, soft_wrap=True)
    if summary.rejected > len(summary.reasons):
        console.print(f"  and {summary.rejected - len(summary.reasons)} more")


def run_export(data: Path, board: str, output: Path | None) -> int:
    """Write a board's definition, events and rulings as NDJSON, from its log on disk."""
    definition, items, total = read_export(board_directory(data, board))
    with _writing(output) as target, bar(Console(stderr=True), MofNCompleteColumn()) as progress:
        task = progress.add_task(f"exporting {board}", total=total)
        target.write(header_line(board, definition, ends=True))
        count = 0
        for count, item in enumerate(items, 1):
            target.write(item_line(item, definition.decimals))
            if count % PROGRESS_ITEMS == 0:
                progress.update(task, completed=item.sequence)
        target.write(end_line(count))
        progress.update(task, completed=total)
    return 0


def run_top(client: Client, board: str, limit: int, period: str | None) -> int:
    """Print the first entries of a board's window; of its first period where none is named."""

    async def ask() -> None:
        async with client as node:
            page = await read_top(node, board, limit, period)
            Console().print(top_table(page, f"{board} {page.period.id}"))

    asyncio.run(ask())
    return 0


def run_verify(data: Path, board: str | None) -> int:
    """Check the boards on disk; returns 1 when anything is wrong with one."""
    console = Console()
    damaged = False
    directories = [board_directory(data, board)] if board else board_directories(data)
    with bar(Console(stderr=True), MofNCompleteColumn()) as progress:
        for directory in directories:
            checked = check_board(directory, progress)
            show_check(console, directory, checked)
            damaged = damaged or bool(checked.findings)
    return 1 if damaged else 0


class Checked(NamedTuple):
    """What came of a verification: what is wrong, and what was given up by an earlier repair."""

    findings: list[str]
    notes: list[str]


def check_board(directory: Path, progress: Progress) -> Checked:
    """Verify one board, with a bar of its own."""
    task = progress.add_task(directory.name, total=None)

    def show(done: int, total: int) -> None:
        progress.update(task, completed=done, total=total)

    try:
        report = verify(directory, show)
    except OSError as error:
        return Checked([str(error)], [])
    finally:
        progress.remove_task(task)
    notes = [
        f"sequences {record.first_sequence} to {record.last_sequence} were lost; given up"
        f" {format_time(record.recorded_at_us)}, since {record.why}"
        for record in report.lost
    ]
    return Checked(list(map(str, report.findings)), notes)


def show_check(console: Console, directory: Path, checked: Checked) -> None:
    """Print what came of a verification."""
    state = "damaged" if checked.findings else "sound"
    say(console, f"{directory.name}: {state}")
    for line in (*checked.findings, *checked.notes):
        say(console, f"  {line}")


def say(console: Console, line: str) -> None:
    """Print a line as it is, however wide the terminal."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def board_directories(data: Path) -> list[Path]:
    """List the directories of all boards; a name that is no board's id is half-built or foreign.

    So is what has such a name and is no directory of its own: it is said, and left alone.
    """
    if not (data / BOARDS).is_dir():
        raise CommandError(f"{data} is no data directory: it has no folder {BOARDS}")
    named = sorted(
        path for path in (data / BOARDS).iterdir() if BOARD_ID.fullmatch(path.name) is not None
    )
    directories = [path for path in named if path.is_dir() and not path.is_symlink()]
    for path in named:
        if path not in directories:
            say(Console(stderr=True), f"{path.name}: left out, as by a node: it is no directory")
    return directories


def board_directory(data: Path, board: str) -> Path:
    """Return the directory of one board, which must be there."""
    directory = data / BOARDS / board
    if BOARD_ID.fullmatch(board) is None or not directory.is_dir():
        raise CommandError(f"there is no board {board!r} in {data}")
    return directory


def bar(console: Console, *amounts: ProgressColumn) -> Progress:
    """Make a command's progress bar, which leaves nothing on the screen."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *amounts,
        Remaining(),
        console=console,
        transient=True,
    )


@contextlib.contextmanager
def _reading(file: str) -> Iterator[tuple[BinaryIO, int | None]]:
    """Open the source; its size is None where it has none, as a pipe."""
    if file == "-":
        yield sys.stdin.buffer, None
    else:
        with Path(file).open("rb") as source:
            yield source, os.fstat(source.fileno()).st_size or None


@contextlib.contextmanager
def _writing(output: Path | None) -> Iterator[BinaryIO]:
    """Open the target; a file appears under its name only when it is whole."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    partial = output.with_name(output.name + ".partial")
    try:
        with partial.open("wb") as target:
            yield target
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)
