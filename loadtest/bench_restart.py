"""How long a restart takes until the first right answer.

The node's board is opened in a process of its own, as its actor does it, from a snapshot and from
its log alone; the whole node is started as its users start it. Redis loads its append-only file as
events wrote it, and as it is once rewritten, which is its snapshot. All files are in the page
cache.
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from actors.directory import BOARDS
from actors.logged_board import SNAPSHOTS, LoggedBoard
from actors.questions import Ask, Member
from actors.replies import reply_at_once
from loadtest.bench_data import BOARD, first_rank, member_id
from loadtest.bench_marks import (
    EVENTS,
    FROM_LOG,
    FROM_SNAPSHOT,
    SECONDS,
    WHOLE_NODE,
    Case,
    Results,
)
from loadtest.bench_systems import Seeds, ask, rotated
from loadtest.client_process import ClientProcess
from loadtest.filled_boards import BEGUN_US, default_options
from loadtest.nodes import running_node
from loadtest.peers.processes import REDIS_DURABLE, AbsentError, running_redis
from loadtest.process_memory import private_bytes

AS_WRITTEN = "Redis, append-only file as events wrote it"
REWRITTEN = "Redis, append-only file rewritten"
ASKED = 1  # the member who is asked for first
OPEN_SECONDS_MAX = 600.0
REWRITE_LOOK_SECONDS = 0.05


class Opened(NamedTuple):
    """What opening a board came to.

    seconds: until its first answer, which says `rank`. replayed: events read from the log.
    structures_bytes: of members and standings. resident_bytes: what the process grew by, its
    idempotency keys left out.
    """

    seconds: float
    rank: int
    replayed: int
    structures_bytes: int
    resident_bytes: int


class Opening(NamedTuple):
    """A board to be opened in a process that has opened none."""

    directory: Path

    async def open(self) -> Opened:
        """Open it, and ask for a rank."""
        gc.collect()
        resident = private_bytes()
        question = Ask(0, Member(False, BEGUN_US, "all_time", None, member_id(ASKED)))
        begun = time.perf_counter()
        with closing(LoggedBoard.open(self.directory, default_options())) as host:
            reply = reply_at_once(host, question)
            seconds = time.perf_counter() - begun
            gc.collect()
            board = host.board
            (window,) = board.windows.values()
            return Opened(
                seconds,
                msgspec.json.decode(reply.unwrap())["entry"]["rank"],
                host.report.events_replayed,
                board.members.nbytes + window.nbytes,
                private_bytes() - resident - board.keys.nbytes,
            )


def open_board(directory: Path, members: int) -> Opened:
    """Open a board in a fresh process. Errors: SystemExit where its first answer is wrong."""
    with ClientProcess() as process:
        opened = process.run(Opening(directory).open, OPEN_SECONDS_MAX)
    if opened.rank != first_rank(ASKED, members):
        raise SystemExit(f"{directory} came back with a wrong rank: {opened.rank}")
    return opened


def measure_restart(
    directory: Path, seeds: Seeds, results: Results, members: int, rounds: int
) -> dict[str, str]:
    """Measure every way to come back in every round; returns what was skipped, and why."""
    places = _places(directory, seeds)
    ways: list[Callable[[], None]] = [
        partial(_from_snapshot, places["snapshot"], results, members),
        partial(_from_log, places["log"], results, members),
        partial(_whole_node, places["node"], results, members),
    ]
    skipped = {}
    try:
        places |= _redis_places(directory, seeds)
        for system, name in ((AS_WRITTEN, "redis"), (REWRITTEN, "redis-rewritten")):
            ways.append(partial(_redis, places[name], results, members, system))
    except AbsentError as error:
        skipped = dict.fromkeys((AS_WRITTEN, REWRITTEN), str(error))
    for number in range(rounds):
        for way in rotated(ways, number):
            way()
    shutil.rmtree(directory)
    return skipped


def _places(directory: Path, seeds: Seeds) -> dict[str, Path]:
    """Copy the node's seed for each way that it comes back."""
    places = {name: directory / name for name in ("snapshot", "log", "node")}
    directory.mkdir()
    for place in places.values():
        place.mkdir(mode=0o700)
        shutil.copytree(seeds.node / BOARDS / BOARD, place / BOARDS / BOARD)
    shutil.rmtree(places["log"] / BOARDS / BOARD / SNAPSHOTS)
    return places


def _redis_places(directory: Path, seeds: Seeds) -> dict[str, Path]:
    """Copy Redis' seed, and rewrite the append-only file of one. Errors: AbsentError."""
    places = {name: directory / name for name in ("redis", "redis-rewritten")}
    for place in places.values():
        shutil.copytree(seeds.redis, place)
    with running_redis(places["redis-rewritten"], REDIS_DURABLE) as server:
        server.ask("BGREWRITEAOF")
        while server.information("aof_rewrite_in_progress"):
            time.sleep(REWRITE_LOOK_SECONDS)
        if server.information("aof_last_bgrewrite_status") != "ok":
            raise SystemExit("Redis could not rewrite its file")
    return places


def _from_snapshot(place: Path, results: Results, members: int) -> None:
    opened = open_board(place / BOARDS / BOARD, members)
    if opened.replayed:
        raise SystemExit("the board came back from more than its snapshot")
    results.note(Case("restart", "", None, FROM_SNAPSHOT), SECONDS, opened.seconds)


def _from_log(place: Path, results: Results, members: int) -> None:
    opened = open_board(place / BOARDS / BOARD, members)
    if opened.replayed != members:
        raise SystemExit("the board came back from less than its log")
    case = Case("restart", "", None, FROM_LOG)
    results.note(case, SECONDS, opened.seconds)
    results.note(case, EVENTS, opened.replayed / opened.seconds)


def _whole_node(data: Path, results: Results, members: int) -> None:
    path = f"/v1/boards/{BOARD}/members/{member_id(ASKED)}?read=actor"
    begun = time.perf_counter()
    with running_node(data) as node:
        status, answer = ask(node.port, path)
        seconds = time.perf_counter() - begun
    if status != 200 or answer["entry"]["rank"] != first_rank(ASKED, members):
        raise SystemExit(f"the node came back with {status} {answer}")
    results.note(Case("restart", "", None, WHOLE_NODE), SECONDS, seconds)


def _redis(place: Path, results: Results, members: int, system: str) -> None:
    begun = time.perf_counter()
    with running_redis(place, REDIS_DURABLE) as server:
        index = server.ask("ZREVRANK", BOARD, member_id(ASKED))
        seconds = time.perf_counter() - begun
    if index + 1 != first_rank(ASKED, members):
        raise SystemExit(f"Redis came back with a wrong rank: {index + 1}")
    case = Case("restart", "", None, system)
    results.note(case, SECONDS, seconds)
    results.note(case, EVENTS, members / seconds)
