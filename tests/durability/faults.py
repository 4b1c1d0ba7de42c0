"""The Python side of `interposer.c`: its state file, and processes that it stands before.

Owns how a fault is armed and how a test learns that it fired. A `Zygote` is a process that has the
interposer loaded and everything imported, and forks one child for each case: a case costs
milliseconds instead of the start of a Python with its native modules.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Self

from tests.durability.trace import Op

INTERPOSER = Path(__file__).with_name(f"interposer{sysconfig.get_config_var('EXT_SUFFIX')}")

_VERSION, _CALLS, _FIRE_AT, _ACTION, _TIMES, _FIRED, _MASK, _ELIGIBLE, _LAST_HIT, _MARK = range(10)
_BY_OPERATION = 16
_PATH_AT = 1024
_STATE_BYTES = 4096


class Action(IntEnum):
    """What becomes of the call that is hit."""

    KILL_BEFORE = 1
    KILL_AFTER = 2
    TEAR = 3
    EIO = 4
    ENOSPC = 5
    EINTR = 6
    SHORT_WRITE = 7
    LIE = 8
    STOP = 9


class State:
    """The interposer's state file at `path`, shared with every process that is attached to it.

    Arming: `arm`. Asking: `calls`, `fired`, `hit`, `mark`, `calls_by`.
    """

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(_STATE_BYTES))
        self.path = path
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), _STATE_BYTES)
        self._words = memoryview(self._bytes).cast("Q")
        self._words[_VERSION] = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._words.release()
        self._bytes.close()

    def arm(
        self, fire_at: int, action: Action, times: int = 1, operations: Collection[Op] = ()
    ) -> None:
        """Hit the call number `fire_at` from here on, 1 the next, and `times` in all; 0: all.

        operations: what alone is counted and hit; all, if none is named.
        """
        self._words[_FIRE_AT] = 0
        self._words[_MASK] = sum(1 << operation for operation in operations)
        self._words[_ACTION] = action
        self._words[_TIMES] = times
        self._words[_ELIGIBLE] = self._words[_FIRED] = 0
        self._words[_FIRE_AT] = fire_at

    def disarm(self) -> None:
        """Let every call pass."""
        self._words[_FIRE_AT] = 0

    @property
    def calls(self) -> int:
        """Return how many calls were counted."""
        return self._words[_CALLS]

    @property
    def fired(self) -> int:
        """Return how many calls were hit."""
        return self._words[_FIRED]

    @property
    def hit(self) -> tuple[Op, str] | None:
        """Return operation and path of the call that was hit last; of a rename, the former path."""
        if not self._words[_LAST_HIT]:
            return None
        path = self._bytes[_PATH_AT:].split(b"\0", 1)[0]
        return Op(self._words[_LAST_HIT]), path.decode()

    @property
    def mark(self) -> int:
        """Return the last mark."""
        return self._words[_MARK]

    def calls_by(self, operation: Op) -> int:
        """Return how many calls of an operation, or marks, were counted."""
        return self._words[_BY_OPERATION + operation]


def environment(root: Path, state: Path, trace: Path | None = None) -> dict[str, str]:
    """Return what a process needs in its environment to be counted from its beginning."""
    found = os.environ | {
        "LD_PRELOAD": str(INTERPOSER),
        "INTERPOSER_ROOT": str(root),
        "INTERPOSER_STATE": str(state),
    }
    return found | ({"INTERPOSER_TRACE": str(trace)} if trace else {})


@contextmanager
def fast_directory() -> Iterator[Path]:
    """Make a directory in memory, where there is one: killing processes needs no real disk."""
    memory = Path("/dev/shm")  # noqa: S108  (its owner alone may read what is made in it)
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="ranknode-", dir=where) as directory:
        yield Path(directory)


@dataclass(frozen=True)
class Ended:
    """How a child ended. code: as of a Popen, the negative number of the signal that killed it."""

    code: int
    output: str


class Zygote:
    """A process that forks children with the interposer before them. `run` each; a context."""

    def __init__(self) -> None:
        assert INTERPOSER.exists(), f"{INTERPOSER} is not built: make install"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.durability.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ
            | {
                "LD_PRELOAD": str(INTERPOSER),
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # it ends when nobody is left to ask it

    def run(
        self,
        work: str,
        arguments: dict[str, Any],
        *,
        output: Path,
        root: Path | None = None,
        state: State | None = None,
        trace: Path | None = None,
    ) -> Ended:
        """Do one of the zygote's works in a child of its own, and return how that ended.

        output: a file for what it prints. root, state: what is counted, and where; nothing is
        without them.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job = {
            "work": work,
            "arguments": arguments,
            "output": str(output),
            "root": str(root) if root else None,
            "state": str(state.path) if state else None,
            "trace": str(trace) if trace else None,
        }
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the zygote has ended"
        return Ended(int(answer), output.read_text())
