"""How a board's process ends itself, and where its node finds the reason.

Ray only tells that a process ended. So one that ends itself leaves a file of its board's name in a
directory that the node chose, beside Ray's own files: the board's disk may be what failed. One that
was killed leaves none.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import NoReturn

EXIT_COMMIT_FAILED = 74  # EX_IOERR of sysexits.h

_LOG = logging.getLogger("ranknode.board")
_SUFFIX = ".last-words"


def end_process(board: str, directory: str, reason: str) -> NoReturn:
    """End the process at once: nothing may be answered from a state the disk may not hold.

    directory: where the node looks for last words; empty for a process without a node.
    """
    _LOG.critical("board %s: its process ends: %s", board, reason)
    if directory:
        with contextlib.suppress(OSError):  # they only explain; the end itself must come
            _path(directory, board).write_text(reason)
    os._exit(EXIT_COMMIT_FAILED)


def take_last_words(board: str, directory: str) -> str | None:
    """Return why a board's process ended itself, once; None where it was ended."""
    path = _path(directory, board)
    try:
        words = path.read_text()
        path.unlink()
    except FileNotFoundError:
        return None
    return f"it ended itself with exit code {EXIT_COMMIT_FAILED}: {words}"


def _path(directory: str, board: str) -> Path:
    return Path(directory) / f"{board}{_SUFFIX}"
