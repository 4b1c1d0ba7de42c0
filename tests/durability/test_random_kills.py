"""A node whose processes are killed at random, over and over, while clients write and read."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from tests.durability.journal import Client, Journal, Watcher, check_board, check_files
from tests.persistence.log_samples import seeded
from tests.running_node import RunningNode, wait_until

CONFIG = """
segment_events_max = 400
commit_events_max = 400
snapshot_events = 500
"""
EXIT_RAY_LOST = 75
BOARDS = ("singles", "batches", "both")
PASSIVE = ("passive-0", "passive-1")  # boards that nobody asks for: only the janitor visits them
WINDOW_SECONDS = 4
WINDOWS_PER_ROUND = 6
PAUSE_SECONDS = (0.1, 0.8)  # between one kill and the next
APPEAR_SECONDS = 5  # for a victim that is being started
WORK_SECONDS = 120  # until a node that was started again, on a busy machine, serves every board

# What is killed, by what its command line holds; of several the seed chooses one.
IN_THE_NODE = {"board": "ray::BoardActor", "janitor": "ray::Janitor", "worker": "ray::IDLE"}
ENDS_THE_NODE = {
    "raylet": "/raylet/raylet ",
    "gcs_server": "/gcs/gcs_server ",
    "guard": "serve --data",
    "node": "serve --data",
}
VICTIMS = IN_THE_NODE | ENDS_THE_NODE


class Chaos:
    """Kills a node's processes by a seed, and starts the node again whenever it ended.

    kills: by victim; in_flight: those of them while a journal waited for an answer.
    """

    def __init__(self, node: RunningNode, journals: Sequence[Journal], seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self.in_flight: Counter[str] = Counter()
        self.starts = 0
        self._node = node
        self._journals = journals
        self._random = seeded(seed)

    def run(self) -> None:
        """Kill each kind of process whose end ends the node once, and between them the others."""
        for fatal in self._random.sample(list(ENDS_THE_NODE), len(ENDS_THE_NODE)):
            for kind in (*self._random.sample(list(IN_THE_NODE), len(IN_THE_NODE)), fatal):
                time.sleep(self._random.uniform(*PAUSE_SECONDS))
                self._strike(kind)
            self._start_again()

    def _strike(self, kind: str) -> None:
        """Kill a process of some kind, while a journal waits for an answer if it can be had.

        There may be none: a board is held back, no worker idle. A round comes to each kind often.
        """
        deadline = time.monotonic() + APPEAR_SECONDS
        while not (found := self._processes(kind)) and time.monotonic() < deadline:
            time.sleep(0.02)
        if not found:
            return
        victim = self._random.choice(found)
        deadline = time.monotonic() + 1
        while not (in_flight := any(journal.unanswered for journal in self._journals)):
            if time.monotonic() > deadline:
                break
        if self._kill(victim):
            self.kills[kind] += 1
            self.in_flight[kind] += in_flight

    def _kill(self, process: int) -> bool:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:  # it ended by itself, as an idle worker may
            return False
        return True

    def _processes(self, kind: str) -> list[int]:
        found = self._node.named(VICTIMS[kind])
        itself = self._node.process.pid
        return [p for p in found if (p == itself) == (kind == "node")]

    def _start_again(self) -> None:
        """Start the node, which is ending, and let it work; nothing of it may be left by then."""
        ended = self._node.process.poll
        wait_until(lambda: ended() is not None, 20, "the node ends")
        assert ended() in (-signal.SIGKILL, EXIT_RAY_LOST)
        wait_until(lambda: not self._node.processes(), 10, "nothing is left of the node that ended")
        self._node.start()
        self.starts += 1
        wait_for_work(self._journals)


def wait_for_work(journals: Sequence[Journal]) -> None:
    """Wait until each journal had another answer; a board that died often is held back a while."""
    noted = [len(journal.acknowledged) for journal in journals]

    def worked() -> bool:
        return all(len(j.acknowledged) > n for j, n in zip(journals, noted, strict=True))

    wait_until(worked, WORK_SECONDS, "every journal goes on")


def create_boards(node: RunningNode, windows: int) -> float:
    """Create the boards, with a row of windows that close one by one; returns when all have."""
    begun = datetime.now(UTC)

    def instant(after_seconds: float) -> str:
        return (begun + timedelta(seconds=after_seconds)).isoformat()

    fixed = [
        {
            "name": f"w{number}",
            "start": instant(number * WINDOW_SECONDS - 60),
            "end": instant((number + 1) * WINDOW_SECONDS),
        }
        for number in range(windows)
    ]
    definition = {"aggregation": "sum", "periods": ["all_time", *fixed], "grace_seconds": 1}
    for board in (*BOARDS, *PASSIVE):
        status, answer = node.call("PUT", f"/v1/boards/{board}", definition)
        assert status == 201, answer
    return begun.timestamp() + windows * WINDOW_SECONDS + 2


def clients(node: RunningNode) -> tuple[list[Journal], list[Watcher]]:
    """Start game servers that send single events and batches, and a dashboard for each board."""
    journals = [
        *(Journal(node, f"single-{number}", "singles") for number in range(3)),
        *(Journal(node, f"batch-{number}", "batches", batch=40) for number in range(2)),
        *(Journal(node, f"both-{batch}", "both", batch) for batch in (1, 7)),
    ]
    watchers = [Watcher(node, board) for board in BOARDS]
    everyone: list[Client] = [*journals, *watchers]
    for client in everyone:
        client.start()
    wait_for_work(journals)
    return journals, watchers


def run_chaos(make_node: Callable[..., RunningNode], seed: int, rounds: int) -> Chaos:
    """Let a node live through some rounds of kills, and hold it against what its clients noted."""
    config = make_node().data.with_name("chaos.toml")
    config.write_text(CONFIG)
    node = make_node("data", "--config", str(config)).start()
    windows = WINDOWS_PER_ROUND * rounds
    closed_at = create_boards(node, windows)
    journals, watchers = clients(node)
    chaos = Chaos(node, journals, seed)
    for _ in range(rounds):
        chaos.run()
    time.sleep(max(closed_at - time.time(), 0))
    for client in (*journals, *watchers):
        client.end()
    for board in (*BOARDS, *PASSIVE):
        truth = check_board(
            node,
            board,
            [journal for journal in journals if journal.board == board],
            [watcher for watcher in watchers if watcher.board == board],
        )
        assert len(truth.board.closed) == windows, "a window did not close"
    assert node.stop() == 0
    check_files(node)
    return chaos


def seeds() -> list[int]:
    """Name the seeds of a long run: one, or as many as TORTURE_SEEDS says."""
    return list(range(int(os.environ.get("TORTURE_SEEDS", "1"))))


def check_all_was_hit(chaos: Chaos, rounds: int) -> None:
    assert set(chaos.in_flight) == set(VICTIMS)
    assert all(chaos.in_flight.values()), chaos.in_flight
    assert chaos.starts == rounds * len(ENDS_THE_NODE)


def test_random_kills(make_node: Callable[..., RunningNode]) -> None:
    """Whatever is killed while commits are in flight, what was said or shown is on disk once."""
    check_all_was_hit(run_chaos(make_node, seed=7, rounds=1), 1)


@pytest.mark.durability
@pytest.mark.parametrize("seed", seeds())
def test_random_kills_for_long(make_node: Callable[..., RunningNode], seed: int) -> None:
    """The same for longer, by any seed."""
    check_all_was_hit(run_chaos(make_node, seed, rounds=4), 4)
