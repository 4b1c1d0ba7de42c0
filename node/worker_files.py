"""What boards' processes leave beside Ray's files: removed some time after they have ended.

Ray keeps some files of each process that it ever started, and a killed one leaves its socket. A
node that brings boards up and puts them away all day would fill a disk with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from pathlib import Path

SWEEP_SECONDS = 60.0
KEPT_SECONDS = 600.0  # so that someone can still look at why one ended

_OF_PROCESS = re.compile(r"(?:.*[-_])?(?P<process>[0-9]+)\.(?:calls|err|log|out)")

_LOG = logging.getLogger("ranknode")


def sweep(directory: Path, oldest: float) -> int:
    """Remove files below `directory` named after processes that have ended; returns how many.

    oldest: those changed later stay, by the clock of the files. Complexity: O(files).
    """
    removed = 0
    for path in directory.rglob("*"):
        named = _OF_PROCESS.fullmatch(path.name)
        if named is None or Path(f"/proc/{named['process']}").exists():
            continue
        with contextlib.suppress(FileNotFoundError):
            if path.lstat().st_mtime < oldest and not path.is_dir():
                path.unlink()
                removed += 1
    return removed


async def keep_swept(directory: Path) -> None:
    """Sweep now and then, for ever."""
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        try:
            await asyncio.to_thread(sweep, directory, time.time() - KEPT_SECONDS)
        except OSError as error:
            _LOG.error("files of processes that have ended could not be removed: %s", error)
