"""How long a board takes to come up: from a snapshot, and from its log alone.

A board is opened as its process does it, with its files in the page cache: everything between the
owner's mark and the last record applied, checks of pages and hashes included.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from actors.logged_board import BoardOptions, LoggedBoard
from loadtest.board_marks import OPEN_SNAPSHOT, REPLAY_BATCHES, Figure
from loadtest.filled_boards import create, fill_with_numbered

BATCH_EVENTS = 1_000
ROUNDS = 3
SINGLES_SHARE = 5  # of the members, one in so many plays alone, and all of a board with few


class _Kind(NamedTuple):
    """What is opened. singly: each event is a record."""

    what: str
    mark: str
    singly: bool
    with_snapshot: bool


KINDS = (
    _Kind(OPEN_SNAPSHOT, OPEN_SNAPSHOT, singly=False, with_snapshot=True),
    _Kind(REPLAY_BATCHES, REPLAY_BATCHES, singly=False, with_snapshot=False),
    _Kind("replay of the log alone, records of one event", "", singly=True, with_snapshot=False),
)


def replay_figures(directory: Path, options: BoardOptions, members: int) -> Iterator[Figure]:
    """Time opening boards on which every member played once."""
    for place, kind in enumerate(KINDS):
        events = max(members // SINGLES_SHARE, 1) if kind.singly else members
        path = directory / f"replay-{place}"
        with closing(create(path, options)) as host:
            batch_events = 1 if kind.singly else BATCH_EVENTS
            fill_with_numbered(host, random.Random(events), events, batch_events)
            if kind.with_snapshot:
                host.write_copy(host.copy_state())
            digest = host.board.state_digest()
        seconds = statistics.median(_open_seconds(path, options, digest) for _ in range(ROUNDS))
        if kind.with_snapshot:
            yield Figure(kind.what, seconds, "s", kind.mark, f"{events:,} members")
        else:
            yield Figure(kind.what, events / seconds, "events/s", kind.mark, f"{events:,} events")


def _open_seconds(path: Path, options: BoardOptions, digest: str) -> float:
    begun = perf_counter()
    host = LoggedBoard.open(path, options)
    seconds = perf_counter() - begun
    with closing(host):
        if host.board.state_digest() != digest:
            raise SystemExit(f"{path} came up as another board than it was")
    return seconds
