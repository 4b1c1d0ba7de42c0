"""Whatever is killed, what was acknowledged is there once, and nothing is left running."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from tests.durability.journal import Journal, Sight, Watcher, check_board, check_files
from tests.running_node import RunningNode, wait_until

EXIT_RAY_LOST = 75
ANSWERS_BEFORE_KILL = 40
STOP_SECONDS_MAX = 10.0
SETTLE_SECONDS = 0.5


def journals(node: RunningNode) -> list[Journal]:
    """Create the board and start writers; returns when each has been acknowledged often."""
    assert node.call("PUT", "/v1/boards/b", {"aggregation": "sum"})[0] == 201
    writers = [Journal(node, f"w{number}") for number in range(4)]
    for writer in writers:
        writer.start()
    wait_until(
        lambda: all(len(w.acknowledged) >= ANSWERS_BEFORE_KILL for w in writers), 60, "writers work"
    )
    return writers


def end_and_check(node: RunningNode, writers: list[Journal]) -> None:
    """Let the writers finish, and hold the board against what they noted; then stop the node."""
    for writer in writers:
        writer.end()
    check_board(node, "b", writers)
    assert node.stop() == 0
    check_files(node)


@pytest.mark.parametrize("whole_session", [False, True])
def test_killed_node(make_node: Callable[..., RunningNode], whole_session: bool) -> None:
    """After kill -9 of the node, alone or with all it started, nothing acknowledged is lost."""
    node = make_node().start()
    writers = journals(node)
    if whole_session:
        node.kill_all()
    else:
        node.process.kill()
        node.process.wait()
        wait_until(lambda: not node.processes(), 5, "the guard leaves nothing running")
    node.start()
    end_and_check(node, writers)


def test_killed_board(make_node: Callable[..., RunningNode]) -> None:
    """After kill -9 of a board's process the node brings it up again by itself."""
    node = make_node().start()
    writers = journals(node)
    (board,) = node.named("ray::BoardActor")
    os.kill(board, signal.SIGKILL)
    noted = [len(writer.acknowledged) for writer in writers]
    wait_until(
        lambda: all(len(w.acknowledged) > n + 5 for w, n in zip(writers, noted, strict=True)),
        30,
        "the board answers again",
    )
    assert node.process.poll() is None
    end_and_check(node, writers)


@pytest.mark.parametrize("victim", ["gcs_server", "raylet", "guard"])
def test_killed_service(make_node: Callable[..., RunningNode], victim: str) -> None:
    """Without one of Ray's services, or its guard, a node ends, and its next start answers."""
    node = make_node().start()
    writers = journals(node)
    if victim == "guard":
        os.kill(node.guard(), signal.SIGKILL)
    else:
        os.kill(node.named(f"/{victim} ")[0], signal.SIGKILL)
    assert node.process.wait(10) == EXIT_RAY_LOST
    wait_until(lambda: not node.processes(), 5, "nothing is left running")
    node.start()
    end_and_check(node, writers)


def test_paused_board(make_node: Callable[..., RunningNode]) -> None:
    """A board that was stopped, and its node killed, does not stand in its successor's way."""
    node = make_node().start()
    writers = journals(node)
    (board,) = node.named("ray::BoardActor")
    os.kill(board, signal.SIGSTOP)
    node.process.kill()
    node.process.wait()
    node.start()
    assert board not in node.processes()
    end_and_check(node, writers)


def other_processes(node: RunningNode) -> dict[str, int]:
    """Find what runs beside the node, its guard, Ray's two services and the boards, by program."""
    known = {p for name in ("serve --data", "ray::BoardActor") for p in node.named(name)}
    known |= {p for name in ("/raylet/raylet ", "/gcs/gcs_server ") for p in node.named(name)}
    others = {p: node.command(p) for p in node.processes() if p not in known}
    return {_program(command): process for process, command in others.items() if command}


def _program(command: str) -> str:
    """Name a process by its title, or by the script that it runs."""
    words = command.split()
    return next((word for word in words if word.endswith(".py")), words[0])


class KeptUp(threading.Thread):
    """Starts a node again whenever it ended, as a service manager would, until `stop`."""

    def __init__(self, node: RunningNode) -> None:
        super().__init__(daemon=True)
        self.starts = 0
        self._node = node
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            while not self._stopped.wait(0.05):
                if self._node.process.poll() is not None:
                    self._start_again()
        except BaseException as error:  # noqa: BLE001  (raised again where the test stops it)
            self._failure = error

    def _start_again(self) -> None:
        assert self._node.process.returncode == EXIT_RAY_LOST
        wait_until(lambda: not self._node.processes(), 10, "nothing is left running")
        self._node.start()
        self.starts += 1

    def stop(self) -> None:
        self._stopped.set()
        self.join(90)
        if self._failure is not None:
            raise self._failure


def test_whatever_else_is_killed(make_node: Callable[..., RunningNode]) -> None:
    """The end of any other process, Ray's helpers and idle workers, costs at most a restart."""
    node = make_node().start()
    writers = journals(node)
    kept_up = KeptUp(node)
    killed: set[str] = set()
    while victims := {n: p for n, p in other_processes(node).items() if n not in killed}:
        name, process = victims.popitem()
        os.kill(process, signal.SIGKILL)
        killed.add(name)
        time.sleep(SETTLE_SECONDS)  # the node may end without it, a little later
        noted = [len(writer.acknowledged) for writer in writers]
        wait_until(
            lambda n=noted: all(len(w.acknowledged) > c for w, c in zip(writers, n, strict=True)),
            90,
            f"it goes on after the end of {name}",
        )
    for writer in writers:
        writer.end()
    kept_up.stop()
    assert len(killed) >= 3
    end_and_check(node, writers)


def test_stopped_under_load(make_node: Callable[..., RunningNode]) -> None:
    """SIGTERM amid writes ends a node in time, in order, and with all that it acknowledged."""
    node = make_node().start()
    writers = journals(node)
    assert any(writer.unanswered for writer in writers)
    assert node.stop(STOP_SECONDS_MAX) == 0
    node.start()
    end_and_check(node, writers)


def test_everything_is_told_to_end(make_node: Callable[..., RunningNode]) -> None:
    """SIGTERM to all processes at once, as a service manager sends it, leaves nothing running."""
    node = make_node().start()
    writers = journals(node)
    for process in node.processes():
        os.kill(process, signal.SIGTERM)
    assert node.process.wait(STOP_SECONDS_MAX) in (0, EXIT_RAY_LOST)
    wait_until(lambda: not node.processes(), 5, "nothing is left running")
    node.start()
    end_and_check(node, writers)


@pytest.mark.parametrize("lie", ["never sent", "other sequence", "never shown", "went back"])
def test_a_lie_is_noticed(make_node: Callable[..., RunningNode], lie: str) -> None:
    """The check of these tests fails for an answer that the log does not hold."""
    node = make_node().start()
    writers = journals(node)
    watcher = Watcher(node, "b")
    watcher.start()
    wait_until(lambda: len(watcher.sights) > 2, 30, "the watcher sees something")
    if lie == "went back":
        watcher.sights.append(Sight(1_000_000, {}))
        wait_until(lambda: not watcher.is_alive(), 30, "the watcher reads again")
        with pytest.raises(AssertionError, match="a read went back"):
            watcher.end()
        watcher.sights.clear()
    else:
        watcher.end()
    for writer in writers:
        writer.end()
    acknowledged = writers[0].acknowledged
    if lie == "never sent":
        acknowledged["w0/1000000"] = 3
    elif lie == "other sequence":
        acknowledged[next(iter(acknowledged))] += 1
    elif lie == "never shown":
        watcher.sights[0].scores["m0"] = -1
    with pytest.raises(AssertionError, match=r"an event is lost|Sight|saw nothing"):
        check_board(node, "b", writers, [watcher])
    assert node.stop() == 0
