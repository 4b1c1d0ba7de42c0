from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from persistence.errors import OwnershipError
from persistence.event_log import LmdbEventLog
from persistence.ownership import (
    OWNER_BYTES,
    Ownership,
    leave_epoch,
    read_owner,
    this_process,
)
from tests.persistence.log_samples import SMALL, definition, window
from tests.persistence.processes import start

OWNER = """
    import sys
    from pathlib import Path
    from persistence.ownership import Ownership
    ownership = Ownership.take(Path(sys.argv[1]))
    print(ownership.epoch, flush=True)
    sys.stdin.readline()
    ownership.release()
    print("released", flush=True)
    sys.stdin.readline()
"""

# Stops in the middle of a write transaction, with LMDB's writer lock held.
STOPPED_WRITER = """
    import os, signal, sys
    from pathlib import Path
    from tests.persistence.log_samples import SMALL, definition
    from persistence import segments
    from persistence.event_log import LmdbEventLog
    from persistence.ownership import Ownership
    ownership = Ownership.take(Path(sys.argv[1]))
    log = LmdbEventLog(Path(sys.argv[1]) / "log", SMALL, epoch=ownership.epoch, create=True)
    log.append([definition()])
    def stop(transaction):
        print("stopping", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    segments.commit = stop
    from tests.persistence.log_samples import window
    log.append([window(2)])
"""


def test_epochs_rise(tmp_path):
    """Each ownership has a larger epoch, even if the clock goes back or the record is lost."""
    epochs = []
    for _ in range(3):
        ownership = Ownership.take(tmp_path)
        epochs.append(ownership.epoch)
        ownership.release()
    far = epochs[-1] + 10**15
    leave_epoch(tmp_path, far)
    ownership = Ownership.take(tmp_path)
    assert ownership.epoch == far + 1
    ownership.release()
    for damage in (lambda path: path.write_bytes(b"\xff{"), Path.unlink):
        damage(tmp_path / "owner")
        ownership = Ownership.take(tmp_path)
        epochs.append(ownership.epoch)
        ownership.release()
    assert epochs == sorted(set(epochs))


def test_one_process_owns_a_directory_once(tmp_path):
    """A second taking in the same process is refused and harms neither process nor ownership."""
    ownership = Ownership.take(tmp_path)
    with pytest.raises(OwnershipError, match=r"owner\.lock"):
        Ownership.take(tmp_path, seconds_max=0.05)
    ownership.release()
    Ownership.take(tmp_path).release()


def test_releasing_twice_leaves_the_next_owner_alone(tmp_path):
    """A second release changes nothing, even when the directory has a new owner."""
    former = Ownership.take(tmp_path)
    former.release()
    owner = Ownership.take(tmp_path)
    record = (tmp_path / "owner").read_bytes()
    former.release()
    assert (tmp_path / "owner").read_bytes() == record
    owner.release()


def test_a_living_owner_is_ended(tmp_path):
    """Whoever takes a directory kills the process that owns it and then owns it."""
    child = start(OWNER, tmp_path)
    epoch = int(child.stdout.readline())
    ownership = Ownership.take(tmp_path)
    assert ownership.epoch > epoch
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    ownership.release()


def test_a_released_owner_lives(tmp_path):
    """A process that gave a directory up is not killed by the next owner."""
    child = start(OWNER, tmp_path)
    child.stdout.readline()
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "released\n"
    ownership = Ownership.take(tmp_path)
    assert child.poll() is None
    child.communicate("\n")
    assert child.returncode == 0
    ownership.release()


def test_a_process_that_took_over_the_pid_lives(tmp_path):
    """A process is told by pid and start time: another one with the pid is left alone."""
    child = start("import sys; sys.stdin.readline()")
    us = this_process()
    for change in (
        {"start_ticks": 1},
        {"start_ticks": start_ticks(child.pid), "boot_id": "another"},
        {"start_ticks": start_ticks(child.pid), "pid_namespace": "pid:[1]"},
    ):
        process = {
            "pid": child.pid,
            "start_ticks": 1,
            "boot_id": us.boot_id,
            "pid_namespace": us.pid_namespace,
        }
        record = {"epoch": 1, "process": process | change}
        (tmp_path / "owner").write_bytes(json.dumps(record).encode().ljust(OWNER_BYTES))
        Ownership.take(tmp_path).release()
        assert child.poll() is None
    child.communicate("\n")
    assert child.returncode == 0


def test_a_dead_owner_is_no_obstacle(tmp_path):
    """The record of a process that is gone is passed over."""
    child = start(OWNER, tmp_path)
    child.stdout.readline()
    child.kill()
    child.communicate()
    process = read_owner(tmp_path / "owner").process
    assert process is not None
    assert process.pid == child.pid
    Ownership.take(tmp_path).release()


def test_an_owner_whose_lock_was_replaced_is_ended(tmp_path):
    """A living owner is ended even when its lock file was deleted and so no longer guards."""
    child = start(OWNER, tmp_path)
    child.stdout.readline()
    (tmp_path / "owner.lock").unlink()
    ownership = Ownership.take(tmp_path)
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    ownership.release()


def test_a_stopped_writer_does_not_block_its_successor(tmp_path):
    """A process stopped inside a write transaction holds LMDB's lock; the successor frees it."""
    child = start(STOPPED_WRITER, tmp_path)
    assert child.stdout.readline() == "stopping\n"
    while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        os.sched_yield()
    ownership = Ownership.take(tmp_path)
    log = LmdbEventLog(tmp_path / "log", SMALL, epoch=ownership.epoch, create=True)
    assert list(log.read()) == [definition()]
    log.append([window(2)])
    log.close()
    ownership.release()
    child.communicate()
    assert child.returncode == -signal.SIGKILL


def start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
