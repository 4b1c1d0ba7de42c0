"""The process that `faults.Zygote` starts: it forks a child for each job that it reads.

A job is a line of JSON on the standard input; its answer is a line with the child's exit code. A
child ends within JOB_SECONDS_MAX, or is killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.durability import workload
from tests.durability.erasing_work import erase, finish
from tests.durability.plants import PLANTS, READING
from tests.durability.script import COMMITS
from tests.durability.survivor import go_on, survive

JOB_SECONDS_MAX = 120  # what no machine needs, however busy


def run(directory: str, journal: str, seed: int, commits: int = COMMITS, plant: str = "") -> int:
    """Run the workload, or what is left of it."""
    return workload.run(Path(directory), Path(journal), seed, commits, plant)


def check(directory: str, journal: str, mark: int | None = None) -> int:
    """Check what is there."""
    workload.check(Path(directory), Path(journal), mark)
    return 0


def recover(
    directory: str, journal: str, seed: int, commits: int = COMMITS, plant: str = ""
) -> int:
    """Check what a crash left, go on to the end, and check that."""
    if plant in READING:
        PLANTS[plant]()
    if Path(directory).exists():
        check(directory, journal)
    code = run(directory, journal, seed, commits, plant)
    assert code == 0, f"the workload did not go on: {code}"
    return check(directory, journal)


WORKS = {
    "run": run, "check": check, "recover": recover, "go_on": go_on, "survive": survive,
    "erase": erase, "finish": finish,
}  # fmt: skip


def _attach(job: dict[str, Any]) -> None:
    names = [job[name] and os.fsencode(job[name]) for name in ("root", "state", "trace")]
    ctypes.CDLL(None).interposer_attach(*map(ctypes.c_char_p, names))


def _do(job: dict[str, Any]) -> None:
    """Do a job as the child, which this ends."""
    signal.alarm(JOB_SECONDS_MAX)
    code = 1
    try:
        output = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        _attach(job)
        code = WORKS[job["work"]](**job["arguments"])
    except BaseException:  # noqa: BLE001  (it is told, and the code is the child's answer)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Fork for each job until the standard input ends."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _do(json.loads(line))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
