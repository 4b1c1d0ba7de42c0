"""What the machine is that a benchmark ran on: the first thing to know about any figure."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from datetime import UTC, datetime
from pathlib import Path

from loadtest.peers.processes import version_of

LIBRARIES = ("ranknode", "ray", "aiohttp", "uvloop", "lmdb", "msgspec", "redis", "hiredis")
MOUNTS = Path("/proc/self/mounts")


def describe(directory: Path) -> str:
    """Write a Markdown list. directory: where the data of all systems lies."""
    rows = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system of the data": file_system(directory.resolve(), MOUNTS.read_text()),
        "Python": platform.python_version(),
        "libraries": ", ".join(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES),
        "Redis": number_in(version_of("redis-server", "--version")),
        "Node": number_in(version_of("node", "--version")),
    }
    return "".join(f"- {name}: {value}\n" for name, value in rows.items())


def number_in(text: str) -> str:
    """Find the version's number in what a program says of itself."""
    found = re.search(r"\d+\.\d+\.\d+", text)
    return "not installed" if found is None else found[0]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def file_system(directory: Path, mounts: str) -> str:
    """Find the type of the file system that holds a directory, in what the kernel lists."""
    found = {Path(point): kind for _, point, kind, *_ in map(str.split, mounts.splitlines())}
    return next(found[each] for each in (directory, *directory.parents) if each in found)
