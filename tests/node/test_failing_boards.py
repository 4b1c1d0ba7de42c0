"""Boards whose processes end: noticed unasked, followed by others, held back if it recurs."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import logging
import re
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import ray.exceptions

from actors.board_actor import ActorOptions, OpenReport
from actors.calls import Answer, BoardLostError
from actors.creation import create_board
from actors.directory import Directory
from actors.errors import Refusal
from actors.last_words import EXIT_COMMIT_FAILED, take_last_words
from actors.questions import Ask, Describe, Reply, encode
from node import active_board, restarts
from node.active_board import ActiveBoard
from node.board_client import LaneLimits
from node.boards import NodeBoards
from node.config import Config
from node.restarts import Restarts
from persistence.errors import CommitFailedError
from tests.actors.board_harness import NOW_US, SMALL, at, define
from tests.durability import faults
from tests.durability.faults import Action, State
from tests.durability.journal import Journal, check_board, check_files
from tests.durability.trace import Op
from tests.persistence.processes import start
from tests.running_node import RunningNode, wait_until

WAIT_SECONDS = 120  # what no machine needs, however busy
LIMITS = LaneLimits(
    queue_items_max=100, queue_bytes_max=1 << 20, call_items_max=100, call_entries_max=100
)
ASK = Ask(0, Describe(False, 0))

_JSON = {"Content-Type": "application/json"}

MakeNode = Callable[..., RunningNode]


# One board's life, with processes that are none


class Process:
    """A board's process as Ray shows it. reports: what opening comes to, one after the other."""

    def __init__(self, *reports: OpenReport | Exception) -> None:
        self._ended = asyncio.get_running_loop().create_future()
        self._reports = list(reports)
        self.asked = 0
        self.stopped = False

    def __getattr__(self, method: str) -> Any:
        class Remote:
            @staticmethod
            def remote(*_: Any) -> Awaitable[bytes]:
                return asyncio.ensure_future(self._call(method))

        return Remote

    async def _call(self, method: str) -> bytes:
        if self._ended.done() or method == "wait_for_end":
            await asyncio.shield(self._ended)
        if method == "open":
            report = self._reports.pop(0) if len(self._reports) > 1 else self._reports[0]
            if isinstance(report, Exception):
                raise report
            return msgspec.msgpack.encode(report)
        self.asked += 1
        return encode([Reply(b"answer")])

    def end(self) -> None:
        """Die."""
        self._ended.set_exception(ray.exceptions.ActorDiedError())
        self._ended.exception()


class FakeCalls:
    """A connection to a process that is none."""

    def __init__(self, process: Process) -> None:
        self.ended = asyncio.Event()
        self.ended.set()
        self._process = process

    async def call(self, method: str, _payload: bytes) -> Answer:
        try:
            return Answer(await self._process._call(method), 1, 1)
        except ray.exceptions.ActorDiedError:
            raise BoardLostError("it died") from None

    def close(self) -> None:
        pass


class FakeDirectory:
    """Starts processes that are none; `opening` is what the next ones report."""

    def __init__(self, *opening: OpenReport | Exception) -> None:
        self.opening = opening or (OpenReport(recovered="sequence 1"),)
        self.started: list[Process] = []
        self.words: str | None = None

    def start(self, _board: str) -> Process:
        self.started.append(Process(*self.opening))
        return self.started[-1]

    async def reach(self, process: Process) -> FakeCalls:
        return FakeCalls(process)

    def stop(self, process: Process) -> None:
        process.stopped = True

    def last_words(self, _board: str) -> str | None:
        return self.words


def run(scenario: Callable[[], Awaitable[Any]]) -> None:
    """Run a coroutine function to its end, which must come."""

    async def bounded() -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await scenario()

    asyncio.run(bounded())


async def until(condition: Callable[[], Any]) -> None:
    while not condition():  # noqa: ASYNC110  (nobody tells when it holds)
        await asyncio.sleep(0.001)


def active(directory: FakeDirectory, ends: Restarts | None = None) -> ActiveBoard:
    return ActiveBoard("b", directory, LIMITS, ends or Restarts())  # type: ignore[arg-type]


async def refused(board: ActiveBoard) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await board.writes.ask(ASK)
    return caught.value


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "FIRST_WAIT_SECONDS", 0.01)


def test_a_process_that_ended_is_followed_unasked(
    short_waits: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody needs to ask for a board: each end is noticed, logged once, and made up for."""

    async def scenario() -> None:
        directory = FakeDirectory()
        board = active(directory)
        await board.started()
        assert (await board.writes.ask(ASK)).body == b"answer"
        directory.words = "it ended itself with exit code 74: the disk failed"
        for number in (1, 2, 3):
            directory.started[-1].end()
            await until(lambda n=number: len(directory.started) == n + 1)
            assert directory.started[-2].stopped
        assert (await board.writes.ask(ASK)).body == b"answer"
        await board.end(Refusal("board_unavailable", "the test is over"))
        assert directory.started[-1].stopped

    with caplog.at_level(logging.ERROR, "ranknode"):
        run(scenario)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 3
    assert all("exit code 74: the disk failed" in line for line in told)


def test_a_board_is_reached_however_early() -> None:
    """Whoever asks before the board's life has begun waits for its process, as everyone does."""

    async def scenario() -> None:
        board = active(FakeDirectory())
        assert (await (await board.reach()).call("write", b"")).since == 1
        await board.end(Refusal("board_unavailable", "the test is over"))
        with pytest.raises(Refusal, match="put away"):
            await board.reach()

    run(scenario)


def test_a_board_that_is_held_back_says_so_at_once() -> None:
    """While the next start has to wait, reads and writes are refused with the time it takes."""

    async def scenario() -> None:
        directory, ends = FakeDirectory(), Restarts()
        for _ in range(4):
            ends.started()
            ends.ended()
        board = active(directory, ends)
        await board.started()  # the wait is no reason to keep a request waiting
        refusal = await refused(board)
        assert refusal.code == "board_unavailable"
        assert "held back" in refusal.detail
        assert refusal.extra == {"retry_after_seconds": 4}
        for ask in (board.reads.ask(ASK), board.read_slowly(ASK), board.wait_for(9, 9)):
            with pytest.raises(Refusal, match="held back"):
                await ask
        assert directory.started == []
        await board.put_away(1, 1)
        assert directory.started == []

    run(scenario)


def test_a_board_stays_held_back_when_it_is_put_away() -> None:
    """Bringing a board up anew, as anybody may who asks for it, starts no process too early."""

    async def scenario() -> None:
        directory, ends = FakeDirectory(), Restarts()
        board = active(directory, ends)
        for number in (1, 2):
            await until(lambda n=number: len(directory.started) == n)
            await board.started()
            directory.started[-1].end()
        await until(lambda: ends.wait_seconds)
        for _ in range(3):
            await board.put_away(1, 1)
            board = active(directory, ends)
            assert "ended 2 times" in (await refused(board)).detail
        assert len(directory.started) == 2
        await board.end(Refusal("board_unavailable", "the test is over"))

    run(scenario)


def test_a_board_that_cannot_be_opened_is_told_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The same failure is logged once, another one again, and what opened in the end as well."""
    monkeypatch.setattr(active_board, "OPEN_AGAIN_SECONDS_MIN", 0.001)
    failures = [OpenReport(failure=why) for why in ("cut", "cut", "cut", "torn")]

    async def scenario() -> None:
        directory = FakeDirectory(*failures, OpenReport(recovered="sequence 9"))
        board = active(directory)
        await board.started()
        await until(lambda: len(caplog.records) == 3)
        assert len(directory.started) == 1
        await board.end(Refusal("board_unavailable", "the test is over"))

    with caplog.at_level(logging.INFO, "ranknode"):
        run(scenario)
    told = [record.getMessage().rpartition(": ")[2] for record in caplog.records]
    assert told == ["cut", "torn", "sequence 9"]


def test_a_mistake_while_opening_is_held_back_too(
    short_waits: None, caplog: pytest.LogCaptureFixture
) -> None:
    """A process whose opening fails in an unforeseen way is ended and follows the same pauses."""

    async def scenario() -> None:
        error = ray.exceptions.RayTaskError("open", "Traceback: ZeroDivisionError", None)
        directory, ends = FakeDirectory(error), Restarts()
        board = active(directory, ends)
        await until(lambda: len(directory.started) == 3)
        assert ends.ends >= 2
        assert all(process.stopped for process in directory.started[:2])
        await board.end(Refusal("board_unavailable", "the test is over"))

    with caplog.at_level(logging.ERROR, "ranknode"):
        run(scenario)
    assert "a mistake of the program" in caplog.text


# The janitor

FAILING_JANITOR = """
    import sys
    import msgspec
    from actors.board_actor import ActorOptions
    from actors.janitor import Janitor
    from persistence.event_log import LmdbEventLog
    from tests.actors.board_harness import SMALL

    board, words = sys.argv[1:]
    def fail(*_):
        raise OSError(5, "the disk failed")
    LmdbEventLog._store = fail
    print(Janitor(msgspec.msgpack.encode(ActorOptions(SMALL, 10, words))).close_due(board))
"""


def test_a_janitor_whose_commit_failed_ends(tmp_path: Path) -> None:
    """The process that visits passive boards is as strict: it ends, and leaves the reason."""
    cup = {"name": "cup", "start": at(NOW_US), "end": at(NOW_US + 1)}
    create_board(tmp_path / "b", "b", define(periods=[cup]), NOW_US, SMALL)
    process = start(FAILING_JANITOR, tmp_path / "b", tmp_path)
    printed, _ = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, printed) == (EXIT_COMMIT_FAILED, "")
    words = take_last_words("b", str(tmp_path))
    assert words is not None
    assert "exit code 74" in words
    assert "the disk failed" in words
    assert take_last_words("b", str(tmp_path)) is None


# A whole node on a disk that fails


def is_held_back(node: RunningNode) -> bool:
    """Submit an event to board b; tell whether it was refused before it was sent anywhere."""
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=30)
    event = {"member": "m", "value": 1, "idempotency_key": "held back"}
    try:
        connection.request("POST", "/v1/boards/b/events", json.dumps(event), _JSON)
        answer = connection.getresponse()
        problem = json.loads(answer.read())
    finally:
        connection.close()
    if answer.status == 504:  # it came between two pauses, and was sent
        return False
    assert (answer.status, problem["code"]) == (503, "board_unavailable")
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    return "held back" in problem["detail"]


def pauses(node: RunningNode) -> list[str]:
    """List how soon the process of board b was started again after each of its ends."""
    told = re.findall(
        r"board b: its process ended, it is started again (.*)", node.output.read_text()
    )
    assert all("exit code 74" in line and "Input/output error" in line for line in told), told
    return [line.partition(": ")[0] for line in told]


@pytest.mark.parametrize("operation", [Op.WRITE, Op.SYNC])
def test_a_failing_disk(make_node: MakeNode, tmp_path: Path, operation: Op) -> None:
    """A board whose disk refuses commits is held back, loses nothing, and troubles no other."""
    node = make_node()
    with State(tmp_path / "state") as state:
        segment = node.data / "boards" / "b" / "log" / "00000001"
        node.environment = faults.environment(segment, state.path)
        node.start()
        for board in ("b", "c"):
            assert node.call("PUT", f"/v1/boards/{board}", {"aggregation": "sum"})[0] == 201
        journals = [Journal(node, f"w{number}", "b", batch=1 + number) for number in range(3)]
        beside = Journal(node, "beside", "c")
        for journal in (*journals, beside):
            journal.start()
        everyone = [*journals, beside]
        wait_until(lambda: all(j.acknowledged for j in everyone), 60, "all are acknowledged")
        state.arm(1, Action.EIO, times=0, operations=[operation])
        wait_until(lambda: len(pauses(node)) >= 2, 60, "the board's process ended twice")
        acknowledged = [len(journal.acknowledged) for journal in journals]
        unconcerned = len(beside.acknowledged)
        wait_until(lambda: len(pauses(node)) >= 4, 120, "the board's process ended four times")
        assert pauses(node)[:4] == ["at once", "in 1 s", "in 2 s", "in 4 s"]
        assert state.fired >= 4
        wait_until(lambda: is_held_back(node), 60, "the board is held back")
        assert node.call("GET", "/v1/boards/b/top")[0] == 503
        assert [len(journal.acknowledged) for journal in journals] == acknowledged
        wait_until(lambda: len(beside.acknowledged) > unconcerned + 20, 60, "the other goes on")
        assert set(beside.statuses) == {200}
        state.disarm()
        wait_until(
            lambda: all(
                len(j.acknowledged) > n for j, n in zip(journals, acknowledged, strict=True)
            ),
            90,
            "the board is back by itself",
        )
        for journal in everyone:
            journal.end()
        statuses = {status for journal in journals for status in journal.statuses}
        assert statuses == {200, 503, 504}
        check_board(node, "b", journals)
        check_board(node, "c", [beside])
        assert node.stop() == 0
    check_files(node)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.EIO, "failed"), "board_unavailable"),
        (OSError(errno.ENOSPC, "full"), "storage_full"),
        (CommitFailedError("failed"), "board_unavailable"),
    ],
)
def test_a_disk_that_fails_at_a_creation_is_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    """A board that cannot be created or deleted for its disk is refused, and may be tried again."""

    def fail(*_: Any) -> None:
        raise error

    async def scenario() -> None:
        directory = Directory(tmp_path, ActorOptions(SMALL, 1))
        directory.scan()
        boards = NodeBoards(Config(data_directory=str(tmp_path)), directory)
        create = partial(
            boards.create, "b", b'{"aggregation":"sum"}', definition_packed=False, packed=False
        )
        monkeypatch.setattr(directory, "create", fail)
        with pytest.raises(Refusal) as refused:
            await create(now_us=NOW_US)
        assert refused.value.code == code
        assert directory.listings == {}
        create_board(tmp_path / "boards" / "b", "b", define(), NOW_US, SMALL)
        directory.scan()
        if isinstance(error, OSError):
            monkeypatch.setattr(directory, "delete", fail)
            with pytest.raises(Refusal) as refused:
                await boards.delete("b")
            assert refused.value.code == code
            assert "b" in directory.listings

    asyncio.run(scenario())
