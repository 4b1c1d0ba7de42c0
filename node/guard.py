"""The guard: a small process that outlives its node just long enough to leave nothing running.

A node that is killed cannot clean up after itself, and Ray's processes can live on for a while, or
for ever. So the node forks a guard before it starts anything. The guard holds the read end of a
pipe whose write end dies with the node, however it dies; then it kills every process that has a
file of the node's Ray directory open, which Ray's processes all have, removes that directory, and
ends. A starting node does the same for a predecessor whose guard was killed too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

KILL_ROUNDS_MAX = 100
KILL_ROUND_SECONDS = 0.02


class Guard(NamedTuple):
    """The guard as its node sees it: its process id, and the pipe's end that keeps it waiting."""

    process: int
    pipe: int

    def dismiss(self) -> None:
        """Let the guard clean up, and wait until it has."""
        os.close(self.pipe)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.process, 0)


def _has_open(process: str, directory: str) -> bool:
    """Tell whether a process has a file below `directory` open, a removed one included."""
    try:
        descriptors = os.listdir(f"/proc/{process}/fd")
    except OSError:  # it ended meanwhile, or is another user's
        return False
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{process}/fd/{descriptor}").startswith(directory):
                return True
    return False


def users_of(directory: Path) -> list[int]:
    """List the processes that have a file below `directory` open."""
    prefix = f"{directory}/"
    return [int(p) for p in os.listdir("/proc") if p.isdigit() and _has_open(p, prefix)]


def clear(directory: Path, spared: Collection[int]) -> None:
    """Kill the users of a Ray directory, those spared aside, until none is left; remove it.

    Bounded in time: what cannot be killed within two seconds is left to the next start.
    """
    for _ in range(KILL_ROUNDS_MAX):
        users = [process for process in users_of(directory) if process not in spared]
        if not users:
            break
        for process in users:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(KILL_ROUND_SECONDS)
    shutil.rmtree(directory, ignore_errors=True)


def start_guard(directory: Path) -> Guard:
    """Fork the guard of the Ray directory `directory`.

    Must be called while the process has one thread and no event loop.
    """
    node = os.getpid()
    read_end, write_end = os.pipe()
    process = os.fork()
    if process != 0:
        os.close(read_end)
        return Guard(process, write_end)
    try:
        os.close(write_end)
        # Signals to the node's group are for the node; the guard goes when the node has gone.
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        while os.read(read_end, 1):
            pass
        clear(directory, spared={node, os.getpid()})
    finally:
        os._exit(0)
