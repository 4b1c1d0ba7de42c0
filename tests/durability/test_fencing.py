"""Two processes that each believe they host one board: only the later one may change anything."""

from __future__ import annotations

import json
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.creation import create_board
from actors.last_words import EXIT_COMMIT_FAILED
from actors.listing import LOG
from actors.offline import read_events, verify
from persistence import ownership
from tests.actors.board_harness import NOW_US, SMALL, define
from tests.durability import faults
from tests.durability.faults import Action, State
from tests.durability.trace import Op
from tests.persistence.processes import start
from tests.running_node import wait_until

WAIT_SECONDS = 120  # what no machine needs, however busy
SILENT_SECONDS = 1.0  # how long is listened for what must not come

# Hosts the board as its process does, and submits an event for each key that it reads.
HOST = """
    import asyncio, json, sys
    import msgspec
    from actors.board_actor import OpenReport
    from persistence.segments import Segment
    from tests.actors import test_board_actor as tests
    from tests.actors.board_harness import event

    directory, plant = sys.argv[1:]
    if plant == "no epoch check":
        Segment._require_epoch = lambda *_: None

    async def main():
        actor = tests.hosting(directory)
        report = msgspec.msgpack.decode(await actor.open(), type=OpenReport)
        print(json.dumps(report.failure or "open"), flush=True)
        while key := (await asyncio.to_thread(sys.stdin.readline)).strip():
            (answer,) = await tests.write(actor, event(key=key))
            print(json.dumps([key, answer["status"], answer.get("sequence")]), flush=True)

    asyncio.run(main())
"""


class Host:
    """A process that hosts the board. What it says is read with `said`, None being its end."""

    def __init__(self, directory: Path, plant: str = "") -> None:
        self.process = start(HOST, directory, plant)
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def said(self) -> Any:
        line = self._lines.get(timeout=WAIT_SECONDS)
        return None if line is None else json.loads(line)

    def is_silent(self) -> bool:
        """Listen for a while; tell whether nothing came, not even its end."""
        try:
            self._lines.get(timeout=SILENT_SECONDS)
        except queue.Empty:
            return True
        return False

    def submit(self, key: str) -> None:
        """Have it submit an event, once it runs."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{key}\n")
        self.process.stdin.flush()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        self.await_pause()

    def await_pause(self) -> None:
        stat = Path(f"/proc/{self.process.pid}/stat")
        wait_until(
            lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", 60, "it is paused"
        )

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> int:
        """Wait for its end, and return its exit code."""
        return self.process.wait(WAIT_SECONDS)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    create_board(tmp_path / "b", "b", define(aggregation="sum"), NOW_US, SMALL)
    return tmp_path / "b"


@pytest.fixture
def host(directory: Path) -> Iterator[Callable[..., Host]]:
    """Start hosts of the board; none is left behind."""
    hosts: list[Host] = []

    def started(plant: str = "") -> Host:
        hosts.append(Host(directory, plant))
        return hosts[-1]

    yield started
    for each in hosts:
        each.process.kill()
        each.process.communicate()


Start = Callable[..., Host]


def open_with(started: Start, key: str, plant: str = "") -> Host:
    """Start a host that acknowledges an event, the board's third record."""
    host = started(plant)
    assert host.said() == "open"
    host.submit(key)
    assert host.said() == [key, "applied", 3]
    return host


def disown(directory: Path, how: str) -> None:
    """Take away what a successor would find and kill the owner by."""
    owner = ownership.read_owner(directory / ownership.OWNER)
    assert owner.process is not None
    elsewhere = msgspec.structs.replace(owner.process, pid_namespace="pid:[1]")
    process = None if how == "nameless" else elsewhere
    ownership._write_owner(
        directory / ownership.OWNER, msgspec.structs.replace(owner, process=process)
    )
    (directory / ownership.LOCK).unlink()


def check_log(directory: Path, *keys: str) -> None:
    """Check that the log is sound and holds these keys, each once."""
    report = verify(directory)
    assert report.is_sound, report.findings
    _, events, _ = read_events(directory)
    assert [event.idempotency_key.decode() for event in events] == list(keys)


def test_a_paused_process_is_ended_by_its_successor(directory: Path, host: Start) -> None:
    """A process that was stopped over its replacement is killed before its successor answers."""
    former = open_with(host, "one")
    former.pause()
    former.submit("two")
    successor = host()
    assert successor.said() == "open"
    assert former.end() == -signal.SIGKILL
    former.wake()
    successor.submit("two")
    assert successor.said() == ["two", "applied", 4]
    assert former.said() is None
    check_log(directory, "one", "two")


def wake_over_a_successor(
    directory: Path, host: Start, how: str, written: bool, plant: str = ""
) -> None:
    """Wake a process that its successor could not kill: it must end without acknowledging."""
    former = open_with(host, "one", plant)
    former.pause()
    former.submit("two")
    disown(directory, how)
    successor = host()
    assert successor.said() == "open"
    assert former.process.poll() is None
    if written:
        successor.submit("three")
        assert successor.said() == ["three", "applied", 4]
    former.wake()
    assert former.said() is None, "it acknowledged what it may no longer write"
    assert former.end() == EXIT_COMMIT_FAILED
    successor.submit("two")
    assert successor.said() == ["two", "applied", 4 + written]
    check_log(directory, "one", *["three"] * written, "two")


@pytest.mark.parametrize("how", ["nameless", "elsewhere"])
@pytest.mark.parametrize("written", [False, True])
def test_a_process_that_cannot_be_killed_is_fenced(
    directory: Path, host: Start, how: str, written: bool
) -> None:
    """Without name or lock the former owner lives on; the epoch refuses its write, and it ends."""
    wake_over_a_successor(directory, host, how, written)


def test_a_missing_epoch_check_is_noticed(directory: Path, host: Start) -> None:
    """The same check fails for a process that writes without asking for the epoch."""
    with pytest.raises(AssertionError, match="it acknowledged"):
        wake_over_a_successor(directory, host, "nameless", written=False, plant="no epoch check")


@contextmanager
def paused_in_a_commit(
    directory: Path, host: Start, operation: Op, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Host]:
    """Give a process that was stopped inside the transaction of the event "two"."""
    with State(directory.with_name("state")) as state, monkeypatch.context() as patch:
        for name, value in faults.environment(directory / LOG, state.path).items():
            patch.setenv(name, value)
        former = open_with(host, "one")
        patch.undo()
        state.arm(1, Action.STOP, operations=[operation])
        former.submit("two")
        former.await_pause()
        assert state.fired == 1
        assert state.hit is not None
        assert state.hit[1].endswith("data.mdb")
        yield former


@pytest.mark.parametrize("operation", [Op.WRITE, Op.SYNC])
def test_a_process_paused_inside_a_commit_blocks_nobody(
    directory: Path, host: Start, operation: Op, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped with LMDB's lock held, before a write or a sync, it is killed and never writes."""
    with paused_in_a_commit(directory, host, operation, monkeypatch) as former:
        successor = host()
        assert successor.said() == "open"
        assert former.end() == -signal.SIGKILL
        assert former.said() is None
        successor.submit("two")
        assert successor.said() == ["two", "applied", 4]
        check_log(directory, "one", "two")


def test_a_commit_that_cannot_be_ended_is_waited_for(
    directory: Path, host: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process paused inside a commit that cannot be killed holds its successor up, no more.

    What it commits when it is woken came before the successor's epoch, and counts; nothing after.
    """
    with paused_in_a_commit(directory, host, Op.SYNC, monkeypatch) as former:
        disown(directory, "elsewhere")
        successor = host()
        assert successor.is_silent()
        former.wake()
        assert former.said() == ["two", "applied", 4]
        assert successor.said() == "open"
        former.submit("three")
        assert former.said() is None
        assert former.end() == EXIT_COMMIT_FAILED
        for key, status, sequence in (("two", "duplicate", 4), ("three", "applied", 5)):
            successor.submit(key)
            assert successor.said() == [key, status, sequence]
        check_log(directory, "one", "two", "three")
