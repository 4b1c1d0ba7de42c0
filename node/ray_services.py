"""The processes without which there is no Ray: how a node hears that one of them has ended.

A thread waits for them, not the node's loop: a call of Ray that needs the one that ended, such as
starting a board's process, blocks the loop for as long as Ray hopes for its return.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable
from pathlib import Path

SERVICES = frozenset({"gcs_server", "raylet"})


class RayWatch:
    """The watch over Ray's services, from now on until `dismiss`.

    lost: called in the watch's own thread when one has ended, which may be before this begins; it
    may be replaced at any time.
    """

    def __init__(self, lost: Callable[[], None]) -> None:
        self.lost = lost
        self._dismissed = threading.Event()
        self._services = _open_services()
        threading.Thread(target=self._wait, name="ray watch", daemon=True).start()

    def dismiss(self) -> None:
        """Let Ray's services end without a word."""
        self._dismissed.set()

    def _wait(self) -> None:
        if len(self._services) == len(SERVICES):
            select.select(self._services, [], [])
        if not self._dismissed.is_set():
            self.lost()


def _open_services() -> list[int]:
    """Open a descriptor for each service that lives: children of this process, by name."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    found = []
    for process in children:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            if Path(f"/proc/{process}/comm").read_text().strip() in SERVICES:
                found.append(os.pidfd_open(int(process)))
    return found
