"""How much memory a process has for itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Memory(NamedTuple):
    """The memory of a process in bytes.

    rss: all that is resident. pss: the same, what is shared divided among those who share it. uss:
    what would be free without it. anonymous: without the pages of files that it maps, as those of
    the log, which the kernel takes back when it needs them.
    """

    rss: int
    pss: int
    uss: int
    anonymous: int


def memory_of(process: int) -> Memory:
    """Look up the memory of a process."""
    names = ("Rss", "Pss", "Private_Clean", "Private_Dirty", "Anonymous")
    amounts = dict.fromkeys(names, 0)
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in amounts:
            amounts[name] = int(rest.split()[0]) * 1024
    uss = amounts["Private_Clean"] + amounts["Private_Dirty"]
    return Memory(amounts["Rss"], amounts["Pss"], uss, amounts["Anonymous"])


def private_bytes(process: int | None = None) -> int:
    """Return the memory of a process alone, this one by default.

    Pages of the log that it maps are the kernel's to take back.
    """
    lines = Path(f"/proc/{process or os.getpid()}/status").read_text().splitlines()
    (resident,) = [line for line in lines if line.startswith("RssAnon:")]
    return int(resident.split()[1]) * 1024
