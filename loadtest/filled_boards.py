"""Boards on disk for benchmarks, with as many members and events as are wanted.

Owns what their events look like. Each batch is one record and one synced commit, as the intake
would make it; only the intake's checks are left out. Names and keys have 24 bytes.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from actors.board import DAY_US, Board
from actors.creation import create_board
from actors.definition import parse_definition
from actors.exact import format_time
from actors.forgetting import join
from actors.logged_board import BoardOptions, LoggedBoard
from node.config import Config
from persistence.event_log import LogOptions
from persistence.records import EventsRecord

BEGUN_US = 20_000 * DAY_US  # 2024-10-04
ASKED_US = BEGUN_US + 2 * DAY_US  # when the cup is over, its grace included
CUP = "cup"  # the window that closes: all events are in it
VALUE_MAX = 1_000_000
NAME_BYTES = 24
FILL_EVENTS = 10_000  # a commit, where nothing of the log is measured


def default_options() -> BoardOptions:
    """Keep a board as a node does by default."""
    config = Config(data_directory=".")
    log = LogOptions(
        segment_events_max=config.segment_events_max,
        segment_bytes_max=config.segment_bytes_max,
        reserved_free_bytes=config.reserved_free_bytes,
    )
    return BoardOptions(log, config.snapshot_events, config.archive_cache_bytes_max)


def create(directory: Path, options: BoardOptions, **fields: Any) -> LoggedBoard:
    """Create a board of best scores in `directory` and open it.

    fields: more of its definition.
    """
    body = msgspec.json.encode({"aggregation": "best"} | fields)
    definition = parse_definition(body, packed=False)
    create_board(directory, directory.name, definition, BEGUN_US, options)
    return LoggedBoard.open(directory, options)


def with_cup(kind: str) -> list[Any]:
    """List the periods of a board that has a window of a kind, and the cup."""
    bounds = {"start": format_time(BEGUN_US), "end": format_time(BEGUN_US + DAY_US)}
    return [kind, {"name": CUP} | bounds]


def draw_names(draw: random.Random, count: int) -> list[bytes]:
    """Draw the names of members."""
    return [draw.randbytes(NAME_BYTES // 2).hex().encode() for _ in range(count)]


def numbered_name(number: int) -> bytes:
    """Name a member whose name need not be remembered."""
    return b"member-%017d" % number


def count_batch(
    host: LoggedBoard,
    draw: random.Random,
    members: Sequence[bytes],
    values: Sequence[int] | None = None,
) -> None:
    """Commit and apply one record: an event of each of `members`, with a random value and time.

    values: theirs, where they are not to be random.
    """
    record = make_batch(host.board, draw, members, values)
    host.commit([record])
    host.board.apply(record)


def make_batch(
    board: Board,
    draw: random.Random,
    members: Sequence[bytes],
    values: Sequence[int] | None = None,
) -> EventsRecord:
    """Make the board's next record, as `count_batch` commits and applies it."""
    count = len(members)
    first_sequence = board.sequence + 1
    member_ends, text = join(members)
    key_ends, keys = join([b"event-%018d" % (first_sequence + row) for row in range(count)])
    return EventsRecord(
        first_sequence=first_sequence,
        recorded_at_us=BEGUN_US,
        keys_per_value=1,
        previous_sequences=board.members.plan(member_ends, text, first_sequence),
        occurred_at_us=array("q", draw.choices(range(BEGUN_US, BEGUN_US + DAY_US), k=count)),
        received_at_us=array("q", [BEGUN_US]) * count,
        values=array("q", draw.choices(range(VALUE_MAX), k=count) if values is None else values),
        member_ends=member_ends,
        key_ends=key_ends,
        source_indexes=array("H", [0]) * count,
        flags=bytes(count),
        members=text,
        keys=keys,
        sources=(),
    )


def fill_with_members(
    host: LoggedBoard, draw: random.Random, names: Sequence[bytes], batch_events: int
) -> None:
    """Have every member play once."""
    for start in range(0, len(names), batch_events):
        count_batch(host, draw, names[start : start + batch_events])


def fill_with_numbered(
    host: LoggedBoard, draw: random.Random, members: int, batch_events: int = FILL_EVENTS
) -> None:
    """Have as many members play once; their names are those of their numbers, from 0.

    Records smaller than FILL_EVENTS are committed together.
    """
    for first in range(0, members, FILL_EVENTS):
        records = []
        end = min(first + FILL_EVENTS, members)
        for start in range(first, end, batch_events):
            names = [numbered_name(each) for each in range(start, min(start + batch_events, end))]
            records.append(make_batch(host.board, draw, names))
            host.board.apply(records[-1])
        host.commit(records)


def fill_with_events(
    host: LoggedBoard,
    draw: random.Random,
    names: Sequence[bytes],
    events: int,
    batch_events: int,
    regular: tuple[bytes, int],
) -> None:
    """Have members drawn from `names` play `events` times together, with regular ones in between.

    regular: another member, and after how many events it plays again, at the same distance all
    through the log.
    """
    name, step = regular
    for first in range(0, events, batch_events):
        members = draw.choices(names, k=min(batch_events, events - first))
        for row in range(-first % step, len(members), step):
            members[row] = name
        count_batch(host, draw, members)
