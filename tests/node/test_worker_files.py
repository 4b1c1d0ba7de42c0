"""Files of processes that have ended: removed in time, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from node.worker_files import sweep


def ended() -> int:
    """Return the id of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        return process.pid


def test_only_old_files_of_ended_processes_go(tmp_path: Path) -> None:
    """What names a living process, no process, or has changed lately, stays."""
    gone, alive = ended(), os.getpid()
    logs = tmp_path / "session" / "logs"
    logs.mkdir(parents=True)
    names = ["worker-a1-ff-{}.out", "python-core-worker-a1_{}.log", "event_CORE_WORKER_{}.log"]
    removed = [logs / name.format(gone) for name in names] + [tmp_path / f"{gone}.calls"]
    kept = [logs / name.format(alive) for name in names]
    kept += [tmp_path / f"{alive}.calls", logs / "raylet.out", logs / f"{gone}.json"]
    for path in (*removed, *kept):
        path.write_bytes(b"")
        os.utime(path, (1_000, 1_000))
    lately = tmp_path / f"new-{gone}.log"
    lately.write_bytes(b"")
    assert sweep(tmp_path, 2_000) == len(removed)
    assert [path for path in removed if path.exists()] == []
    assert [path for path in (*kept, lately) if not path.exists()] == []
