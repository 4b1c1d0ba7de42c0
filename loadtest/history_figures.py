"""How long it takes to show one member's many events of a long log, and to erase the member.

The log is as long as a busy board's after months, and the member's events lie at the same distance
all through it: each in another record, and the records in every segment.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import msgspec

from actors.listing import LOG
from actors.logged_board import BoardOptions, LoggedBoard
from actors.questions import Ask, Erase, History, decode_asks, encode
from actors.replies import LogReader
from loadtest.figures import ENCODINGS, Figure, of_calls
from loadtest.filled_boards import ASKED_US, create, draw_names, fill_with_events
from persistence.segments import DATA

HISTORY_MARK_MS = 50.0
NAME = "member-with-a-history-01"
WARM_UP_CALLS = 3
STAT_BLOCK_BYTES = 512  # what st_blocks counts, whatever the file system's own are

# What a board goes through to erase a name, by whose method it is, and whether commits wait
# meanwhile.
STEPS = {
    "walk": ("", False),
    "plan_ruling": ("", True),
    "commit": ("", True),
    "rule": ("", True),
    "seal_live": ("log", True),
    "write_again": ("shown_log", False),
    "put_log_in_place": ("", True),
    "remove_former": ("shown_log", False),
    "copy_state": ("", True),
    "write_copy": ("", False),
}


class Length(NamedTuple):
    """How long a log is: events of `members` others, in records of `batch_events`.

    own_events: of the member that is asked for.
    """

    events: int = 10_000_000
    batch_events: int = 1_000
    members: int = 200_000
    own_events: int = 1_000


class _Restart(NamedTuple):
    """What a board is asked after.

    before: done to its files while nobody has them open. waits: until its log was checked, as the
    board's process has done as soon as it is up.
    """

    what: str
    mark_ms: float | None
    before: Callable[[Path], None]
    waits: bool


def history_figures(
    directory: Path, options: BoardOptions, length: Length, cold_calls: int, warm_calls: int
) -> Iterator[Figure]:
    """Time the page of all of the member's events, then its erasure.

    directory: where the board lies meanwhile. Errors: SystemExit for an answer that lacks events.
    """
    path = directory / "histories"
    _create(path, options, length)
    what = f"history of {length.own_events:,} events among {length.events:,}"
    for restart in _RESTARTS:
        seconds: dict[bool, list[float]] = {packed: [] for packed in ENCODINGS}
        for packed in list(ENCODINGS) * cold_calls:
            restart.before(path / LOG)
            with closing(LoggedBoard.open(path, options)) as host:
                if restart.waits:
                    host.log.check_sealed()
                seconds[packed] += asyncio.run(_history_seconds(host, packed, 1, length))
        yield of_calls(f"{what}, {restart.what}", restart.mark_ms, seconds)
    with closing(LoggedBoard.open(path, options)) as host:
        calls = WARM_UP_CALLS + warm_calls
        warm = {
            packed: asyncio.run(_history_seconds(host, packed, calls, length))[WARM_UP_CALLS:]
            for packed in ENCODINGS
        }
        yield of_calls(f"{what}, warm", HISTORY_MARK_MS, warm)
        yield from _erasing_figures(host)
    shutil.rmtree(path)


def _create(path: Path, options: BoardOptions, length: Length) -> None:
    draw = random.Random(length.events)
    names = draw_names(draw, length.members)
    regular = NAME.encode(), length.events // length.own_events
    with closing(create(path, options)) as host:
        fill_with_events(host, draw, names, length.events, length.batch_events, regular)
        host.write_copy(host.copy_state())


def _leave(_directory: Path) -> None:
    """Leave the files as they are, in the page cache."""


def _drop_from_cache(directory: Path) -> None:
    """Have the files of a log read from the disk again."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


_RESTARTS = (
    _Restart("after a restart", HISTORY_MARK_MS, _leave, waits=True),
    _Restart("after a restart, while the log is being checked", None, _leave, waits=False),
    _Restart("after a restart, log not in the page cache", None, _drop_from_cache, waits=False),
)


async def _history_seconds(
    host: LoggedBoard, packed: bool, calls: int, length: Length
) -> list[float]:
    """Ask for the whole history as a board's process is asked for what it reads from its log."""
    reader, seconds = LogReader(), []
    payload = encode([Ask(0, History(packed, ASKED_US, length.own_events, None, NAME))])
    for _ in range(calls):
        begun = perf_counter()
        replies = []
        for ask in decode_asks(payload):
            assert isinstance(ask.question, History)
            replies.append(await reader.reply(host, ask.question))
        encode(replies)
        seconds.append(perf_counter() - begun)
        decode = msgspec.msgpack.decode if packed else msgspec.json.decode
        answer = decode(replies[0].unwrap())
        if (len(answer["events"]), answer["next"]) != (length.own_events, None):
            raise SystemExit(f"the history has {len(answer['events'])} events on its page")
    return seconds


# Erasing


def _erasing_figures(host: LoggedBoard) -> Iterator[Figure]:
    steps = _time_steps(host)
    begun = perf_counter()
    verdict = Erase(False, ASKED_US, "moderator", "", None, NAME)
    planned = host.plan_ruling(verdict, host.walk(verdict))
    assert planned.record is not None
    host.commit([planned.record])
    host.rule(planned)
    yield _seconds("erase: until the name is out of every answer", perf_counter() - begun)
    host.erase_names(ASKED_US)
    yield _seconds("erase: until nothing on disk holds the name", perf_counter() - begun)
    if host.shown_log.erasing or steps.keys() != STEPS.keys():
        raise SystemExit("erasing did not go through its steps")
    for name, (_, waiting) in STEPS.items():
        also = ", commits wait" if waiting else ""
        yield _seconds(f"erase: {name}{also}", steps[name])
    pause, name = max((steps[name], name) for name, (_, waiting) in STEPS.items() if waiting)
    yield _seconds(f"erase: the longest that commits wait ({name})", pause)
    yield _rewritten(host)


def _rewritten(host: LoggedBoard) -> Figure:
    """Sum up the segments that were written again, which remember what their former selves were."""
    segments = host.log.segments
    sizes = {path: (path / DATA).stat().st_blocks * STAT_BLOCK_BYTES for path, _ in segments}
    again = [sizes[path] for path, seal in segments if seal and seal.followed_hash]
    mib, total_mib = sum(again) / 2**20, sum(sizes.values()) / 2**20
    what = f"erase: bytes written again, of {total_mib:.0f} MiB"
    return Figure(what, f"{mib:.0f} MiB in {len(again)} of {len(sizes)} segments")


def _seconds(what: str, seconds: float) -> Figure:
    return Figure(what, f"{seconds:.4f} s")


def _time_steps(host: LoggedBoard) -> dict[str, float]:
    """Have a board note, in what is returned, how long each step takes at most."""
    seconds: dict[str, float] = {}

    def timed(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            begun = perf_counter()
            result = step(*arguments, **options)
            seconds[name] = max(perf_counter() - begun, seconds.get(name, 0.0))
            return result

        return run

    for name, (owner_name, _) in STEPS.items():
        owner = getattr(host, owner_name) if owner_name else host
        setattr(owner, name, timed(name, getattr(owner, name)))
    return seconds
