"""What `ranknode verify --repair` does: checks, says what would be given up, asks, and repairs.

Until that is agreed to it only reads, and has taken nothing from anyone.

Owns what is said, and that no node serves the data meanwhile: one that does is left alone, unlike a
board's process that outlived its node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn

from actors.definition import Definition
from actors.exact import format_time
from actors.repairing import DROPPED, RepairPlan, carry_out, plan_repair
from node.commands import (
    Checked,
    bar,
    board_directories,
    board_directory,
    check_board,
    say,
    show_check,
)
from node.runtime import DataLock
from node.transfer import event_line, header_line
from persistence.errors import DamagedError, RanknodeError
from persistence.files import write_atomically
from persistence.ownership import Ownership
from persistence.records import Event

Confirm = Callable[[str], bool]


def run_repair(data: Path, board: str | None, confirm: Confirm) -> int:
    """Check boards and repair those that are damaged, each once `confirm` says so.

    Returns 1 if any is damaged at the end. Raises DataInUseError where a node serves the data and
    anything is to be repaired; a sound board is left as it is.
    """
    console = Console()
    sound = True
    directories = [board_directory(data, board)] if board else board_directories(data)
    for directory in directories:
        checked = _check(directory)
        show_check(console, directory, checked)
        if checked.findings:
            sound = _repair(console, data, directory, confirm) and sound
    return 0 if sound else 1


def _check(directory: Path) -> Checked:
    with bar(Console(stderr=True), MofNCompleteColumn()) as progress:
        return check_board(directory, progress)


def _repair(console: Console, data: Path, directory: Path, confirm: Confirm) -> bool:
    """Repair one board, once that is agreed to; returns whether it is sound then."""
    lock = DataLock(data)
    try:
        plan = plan_repair(directory, time.time_ns() // 1_000)
        for line in _described(plan):
            say(console, f"  {line}")
        if not confirm(f"Repair {directory.name}?"):
            return False
        _carry_out(plan)
    except (RanknodeError, OSError) as error:
        say(console, f"  cannot be repaired: {error}")
        return False
    finally:
        lock.release()
    checked = _check(directory)
    show_check(console, directory, checked)
    return not checked.findings


def _carry_out(shown: RepairPlan) -> None:
    """Repair a board as was shown, once no process that outlived its node writes to it any more.

    Raises DamagedError where one has written in between.
    """
    ownership = Ownership.take(shown.directory)
    try:
        plan = plan_repair(shown.directory, shown.now_us)
        if list(_described(plan)) != list(_described(shown)):
            raise DamagedError("it changed meanwhile; run this again")
        carry_out(plan, ownership, _write_events)
    finally:
        ownership.release()


def _described(plan: RepairPlan) -> Iterator[str]:
    """Say line by line what a repair would do."""
    if plan.damage is not None:
        yield f"the log: {plan.damage}"
        yield f"kept: {_sequences(1, plan.survey.end[0])}"
        yield from _lost(plan)
    for path in plan.set_aside:
        yield f"set aside, since the log does not say so: {path.parent.name}/{path.name}"
    if plan.damage is not None or plan.set_aside:
        yield f"what is damaged goes to {plan.aside}"
    else:
        yield "nothing is dropped; what is damaged is a copy of what the log says"


def _lost(plan: RepairPlan) -> Iterator[str]:
    if plan.lost is None:
        yield "dropped: nothing; every record that was committed is legible"
        return
    dropped = plan.dropped
    yield f"dropped: {_sequences(*plan.lost)}, which no other event will have"
    if not dropped.events:
        yield "none of the events among them is legible"
        return
    first, last = format_time(dropped.first_received_us), format_time(dropped.last_received_us)
    yield f"legible of them: {dropped.events} events, received from {first} to {last}"
    if dropped.others:
        yield f"and {dropped.others} records that are no events"
    file = plan.aside / DROPPED
    yield f"these events go to {file}, to be imported again:"
    yield f"  ranknode import {plan.directory.name} {file} --backfill"
    if plan.held_back:
        yield "until then the board is in backfill mode, in which no window closes"


def _sequences(first: int, last: int) -> str:
    return f"sequences {first} to {last}" if last >= first else "nothing"


def _write_events(path: Path, definition: Definition, events: Iterator[Event]) -> None:
    def lines() -> Iterator[bytes]:
        yield header_line(path.parent.parent.name, definition, ends=False)
        for event in events:
            yield event_line(event, definition.decimals)

    write_atomically(path, lines())
