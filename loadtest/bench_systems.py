"""The systems side by side: their data to begin with, and all of them running over copies of it.

Every system begins with one event of each member, logged and deduplicated by its key. Seeds are
made once and copied, so that each run begins from the same.
"""

from __future__ import annotations

import http.client
import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from actors.directory import BOARDS
from loadtest.bench_data import (
    BATCH_EVENTS,
    BOARD,
    TOP_LIMIT,
    first_rank,
    first_value,
    member_id,
)
from loadtest.filled_boards import count_batch, create, default_options
from loadtest.nodes import HOST, Node, running_node
from loadtest.peers.processes import (
    REDIS_DURABLE,
    SCRIPT,
    AbsentError,
    Redis,
    running_node_service,
    running_python_service,
    running_redis,
)

RANKNODE, PYTHON, NODE, REDIS = "ranknode", "Python service", "Node service", "Redis"
LOGGED_BOARD = "logged"  # the board that has many events
JOURNAL = f"{BOARD}:events"
SAMPLE_MEMBERS = 100
CALL_SECONDS_MAX = 30.0

Thing = TypeVar("Thing")


class System(NamedTuple):
    """A system that speaks HTTP. counted: tells how many events of the board it has counted."""

    name: str
    port: int
    counted: Callable[[], int]


class Running(NamedTuple):
    """What runs: the node, the Redis behind its peers where there is one, and all that speak HTTP.

    skipped: what does not run, and why.
    """

    node: Node
    redis: Redis | None
    systems: list[System]
    skipped: dict[str, str]


class Seeds:
    """Data directories to copy, each made when it is first asked for.

    logged: events that LOGGED_BOARD has, 0 for no such board.
    """

    def __init__(self, directory: Path, members: int, logged: int) -> None:
        self._directory = directory
        self._members = members
        self._logged = logged

    @cached_property
    def node(self) -> Path:
        """A node's data directory: the board with its log and a snapshot."""
        data = self._directory / "node-seed"
        data.mkdir(mode=0o700)  # as a node makes it
        (data / BOARDS).mkdir()
        fill_board(data / BOARDS / BOARD, self._members, self._members)
        if self._logged:
            fill_board(data / BOARDS / LOGGED_BOARD, self._members, self._logged)
        return data

    @cached_property
    def redis(self) -> Path:
        """A Redis' directory, whose append-only file holds the events. Errors: AbsentError."""
        directory = self._directory / "redis-seed"
        options = [*REDIS_DURABLE, "--appendfsync", "no"]  # the last one counts
        with running_redis(directory, options) as server:
            fill_redis(server, self._members)
        return directory


def fill_board(path: Path, members: int, events: int) -> None:
    """Make a board where every member played once and some again, until there are `events`."""
    draw = random.Random(events)
    definition = {"aggregation": "sum", "key_retention_days": None, "periods": ["all_time"]}
    names = [member_id(number).encode() for number in range(members)]
    values = [first_value(number, members) for number in range(members)]
    with closing(create(path, default_options(), **definition)) as host:
        for start in range(0, members, BATCH_EVENTS):
            batch = slice(start, start + BATCH_EVENTS)
            count_batch(host, draw, names[batch], values[batch])
        for start in range(members, events, BATCH_EVENTS):
            count_batch(host, draw, draw.choices(names, k=min(BATCH_EVENTS, events - start)))
        host.write_copy(host.copy_state())


def fill_redis(server: Redis, members: int) -> None:
    """Count one event of each member by the script, in pipelines."""
    count = server.client.register_script(SCRIPT.read_text())
    for start in range(0, members, BATCH_EVENTS):
        pipeline = server.client.pipeline(transaction=False)
        for number in range(start, min(start + BATCH_EVENTS, members)):
            keys = [f"{BOARD}:key:event-{number:018d}", JOURNAL, BOARD]
            count(keys, [member_id(number), first_value(number, members)], client=pipeline)
        pipeline.execute()


def add_members(server: Redis, members: int) -> None:
    """Put the members into the ranking, and nothing else anywhere."""
    for start in range(0, members, BATCH_EVENTS):
        command: list[str | int] = ["ZADD", BOARD]
        for number in range(start, min(start + BATCH_EVENTS, members)):
            command += [first_value(number, members), member_id(number)]
        server.ask(*command)


@contextmanager
def running_systems(directory: Path, seeds: Seeds) -> Iterator[Running]:
    """Run the node and its peers over copies of their seeds."""
    data = directory / "node"
    shutil.copytree(seeds.node, data)
    with ExitStack() as stack:
        node = stack.enter_context(running_node(data))
        systems = [System(RANKNODE, node.port, lambda: board_sequence(node, BOARD))]
        skipped: dict[str, str] = {}
        server = _start_peers(stack, directory, seeds, systems, skipped)
        yield Running(node, server, systems, skipped)
    for leftover in (data, directory / "redis"):
        shutil.rmtree(leftover, ignore_errors=True)


def _start_peers(
    stack: ExitStack,
    directory: Path,
    seeds: Seeds,
    systems: list[System],
    skipped: dict[str, str],
) -> Redis | None:
    """Start what this machine can run, and add it to `systems`; the rest goes to `skipped`."""
    place = directory / "redis"
    try:
        shutil.copytree(seeds.redis, place)
        server = stack.enter_context(running_redis(place, REDIS_DURABLE))
    except AbsentError as error:
        skipped |= dict.fromkeys((REDIS, PYTHON, NODE), str(error))
        return None

    def counted() -> int:
        return int(server.ask("XLEN", JOURNAL))

    for name, start in ((PYTHON, running_python_service), (NODE, running_node_service)):
        try:
            port = stack.enter_context(start(directory, server))
            systems.append(System(name, port, counted))
        except AbsentError as error:
            skipped[name] = str(error)
    return server


def rotated(things: Sequence[Thing], number: int) -> list[Thing]:
    """Order what takes turns for a round: none follows the same one in all of them."""
    first = number % len(things)
    return [*things[first:], *things[:first]]


def board_sequence(node: Node, board: str) -> int:
    """Return how many records and events a board of the node has logged."""
    status, answer = node.call("GET", f"/v1/boards/{board}")
    if status != 200:
        raise SystemExit(f"the board is not there: {answer}")
    sequence: int = answer["sequence"]
    return sequence


def ask(port: int, path: str) -> tuple[int, Any]:
    """Read from a system on a connection of its own; returns the status and the decoded body."""
    connection = http.client.HTTPConnection(HOST, port, timeout=CALL_SECONDS_MAX)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def require_agreement(running: Running, members: int) -> None:
    """Compare everyone's ranks of a sample and top with what they must be. Errors: SystemExit."""
    numbers = random.Random(members).sample(range(members), min(SAMPLE_MEMBERS, members))
    first = sorted(range(members), key=lambda number: first_rank(number, members))[:TOP_LIMIT]
    for system in running.systems:
        for number in numbers:
            path = f"/v1/boards/{BOARD}/members/{member_id(number)}?read=actor"
            _require(system.name, path, _entry(number, members), ask(system.port, path))
        path = f"/v1/boards/{BOARD}/top?limit={TOP_LIMIT}"
        status, answer = ask(system.port, path)
        for number, entry in zip(first, answer["entries"], strict=True):
            _require(system.name, path, _entry(number, members), (status, {"entry": entry}))


def _entry(number: int, members: int) -> dict[str, Any]:
    value = first_value(number, members)
    return {"rank": first_rank(number, members), "member": member_id(number), "score": value}


def _require(name: str, path: str, expected: dict[str, Any], answer: tuple[int, Any]) -> None:
    status, body = answer
    if status != 200 or not expected.items() <= body["entry"].items():
        raise SystemExit(f"{name} answers {path} with {status} {body}, not with {expected}")
