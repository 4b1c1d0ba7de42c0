"""What many boards on one node cost: memory, bringing one up, and putting those away that idle.

There are more boards than the node may have in memory. Each is asked for once, in turn: the first
ones find room, for each of the others one is put away.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from actors.directory import BOARDS
from actors.logged_board import BoardOptions
from loadtest.board_marks import Figure
from loadtest.filled_boards import create, fill_with_numbered, numbered_name
from loadtest.nodes import Node, running_node
from loadtest.process_memory import Memory, memory_of

BOARD_PROCESS = "ray::BoardActor"
PUT_AWAY_SECONDS_MAX = 120.0  # besides the time for which a board has to be idle
LOOK_SECONDS = 0.1
MIB = 1 << 20


class Boards(NamedTuple):
    """How many boards there are, in memory at once, and members on each.

    idle_seconds: after which one is put away; longer than asking for all of them takes.
    """

    boards: int = 200
    active: int = 50
    members: int = 1_000
    idle_seconds: float = 60.0


def many_figures(directory: Path, options: BoardOptions, plan: Boards) -> Iterator[Figure]:
    """Fill boards, have a node bring them up one by one, and wait until it has put all away."""
    data = directory / "data"
    (data / BOARDS).mkdir(parents=True)
    names = [f"board-{number:04d}" for number in range(plan.boards)]
    for name in names:
        with closing(create(data / BOARDS / name, options)) as host:
            fill_with_numbered(host, random.Random(name), plan.members)
    settings = directory / "many.toml"
    settings.write_text(
        f"boards_active_max = {plan.active}\nboard_idle_seconds = {plan.idle_seconds}\n"
    )
    with running_node(data, "--config", str(settings)) as node:
        before = _whole(node)
        seconds = [_first_use(node, name) for name in names[: plan.active]]
        yield from _activation_figures("brought up, first use to answer", seconds)
        yield from _memory_figures(node, plan.active, before)
        seconds = [_first_use(node, name) for name in names[plan.active :]]
        yield from _activation_figures("the same, another put away for it", seconds)
        _require_at_most(node, plan.active)
        yield Figure("a rank on a board in memory, median", 1e3 * _again(node, names[-1]), "ms")
        yield Figure(
            "all put away after the last use", _all_put_away(node, plan), "s", "",
            f"boards idle for {plan.idle_seconds:g} s are",
        )  # fmt: skip


def _first_use(node: Node, board: str) -> float:
    """Ask for a member of a board; returns how long the answer took."""
    begun = time.perf_counter()
    status, answer = node.call("GET", f"/v1/boards/{board}/members/{numbered_name(0).decode()}")
    if status != 200:
        raise SystemExit(f"{board} answered {status}: {answer}")
    return time.perf_counter() - begun


def _again(node: Node, board: str) -> float:
    return statistics.median(_first_use(node, board) for _ in range(20))


def _activation_figures(what: str, seconds: Sequence[float]) -> Iterator[Figure]:
    each = sorted(seconds)
    for name, place in (("median", 0.5), ("99th percentile", 0.99), ("worst", 1.0)):
        value = 1e3 * each[math.ceil(place * len(each)) - 1]
        yield Figure(f"{what}, {name}", value, "ms", "", f"{len(each)} boards")


def _memory_figures(node: Node, boards: int, before: int) -> Iterator[Figure]:
    _require_at_most(node, boards)
    each = [memory_of(process) for process in node.processes(BOARD_PROCESS)]
    note = f"median of {len(each)} boards in memory"
    for name, values in zip(Memory._fields, zip(*each, strict=True), strict=True):
        yield Figure(f"a board's process: {name}", statistics.median(values) / MIB, "MiB", "", note)
    yield Figure("all processes of boards: pss", sum(each.pss for each in each) / MIB, "MiB")
    yield Figure("the node without any board: pss", before / MIB, "MiB", "", "Ray's included")
    yield Figure("the node with all of them: pss", _whole(node) / MIB, "MiB")


def _whole(node: Node) -> int:
    """Return the memory of all processes of a node, what they share counted once."""
    return sum(memory_of(process).pss for process in node.processes(""))


def _require_at_most(node: Node, boards: int) -> None:
    """Errors: SystemExit where more boards have a process than may."""
    found = len(node.processes(BOARD_PROCESS))
    if not 0 < found <= boards:
        raise SystemExit(f"{found} boards are in memory, {boards} may be")


def _all_put_away(node: Node, plan: Boards) -> float:
    begun = time.monotonic()
    while node.processes(BOARD_PROCESS):
        if time.monotonic() - begun > plan.idle_seconds + PUT_AWAY_SECONDS_MAX:
            raise SystemExit(f"boards are still in memory:\n{node.log.read_text()}")
        time.sleep(LOOK_SECONDS)
    return time.monotonic() - begun
