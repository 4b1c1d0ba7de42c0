"""What is done with the disk that a cut left, in a process of its own: recover, check, go on.

A file that a cut broke may end the process that maps it, so nothing of this is done where the test
itself lives.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from actors.directory import BOARDS
from actors.listing import LOG
from persistence.event_log import LmdbEventLog
from persistence.ownership import last_epoch
from persistence.segments import Segment
from tests.durability.checker import check
from tests.durability.journal_file import Journal
from tests.durability.plants import PLANTS
from tests.durability.script import script
from tests.durability.workload import Workload

EPOCH_OF_CREATION = 1  # what a log holds that no owner has opened yet


def go_on(
    directory: str, journal: str, seed: int, commits: int, steps: int, plant: str = ""
) -> int:
    """Do the next `steps` of a script that were not done yet."""
    if plant:
        PLANTS[plant]()
    written = Journal.read(Path(journal))
    done = {line["step"] for line in written.of("done")}
    left = [step for step in script(seed, commits) if step.number not in done]
    logging.disable()
    asyncio.run(Workload(Path(directory), written).run(left[:steps]))
    return 0


def survive(directory: str, journal: str, seed: int, commits: int, steps: int) -> int:
    """Assert that all that the journal promises is there, and still is after some more steps."""
    require_epochs(Path(directory))
    check(Path(directory), Path(journal))
    if steps:
        go_on(directory, journal, seed, commits, steps)
        check(Path(directory), Path(journal))
    return 0


def require_epochs(directory: Path) -> None:
    """Assert that the next owner of each board, even with a clock set back, may write to its log.

    The owner's mark is durable before the log's epoch rises, so that the one is never behind.
    """
    for board in (directory / BOARDS).glob("[!.]*"):
        log = LmdbEventLog.open_readonly(board / LOG)
        (live, _) = log.segments[-1]
        log.close()
        segment = Segment.open_live(live, 0, writable=False)
        epoch = segment.epoch
        segment.close()
        if epoch != EPOCH_OF_CREATION:
            assert last_epoch(board) >= epoch, (
                f"{board.name}: the owner's epoch is behind the log's"
            )
