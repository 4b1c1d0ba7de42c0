"""Changes of a board's life: begun by requests, and not broken off with them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from actors.errors import Refusal
from actors.questions import Describe
from node.boards import NodeBoards
from node.config import Config
from tests.node.test_failing_boards import FakeCalls, FakeDirectory, Process, run, until

REQUEST_SECONDS = 0.3
QUESTION = Describe(False, 0)


class HeldCalls(FakeCalls):
    """A connection to a process that cannot finish until it may."""

    def __init__(self, process: Process, may_close: asyncio.Event) -> None:
        super().__init__(process)
        self._may_close = may_close

    async def call(self, method: str, payload: bytes) -> Any:
        if method == "close":
            await self._may_close.wait()
        return await super().call(method, payload)


class Boards(FakeDirectory):
    """A directory of boards, which all exist."""

    def __init__(self) -> None:
        super().__init__()
        self.may_close = asyncio.Event()
        self.deleted: list[str] = []
        self.damaged: set[str] = set()

    async def reach(self, process: Process) -> HeldCalls:
        return HeldCalls(process, self.may_close)

    def listing(self, board: str) -> Any:
        return SimpleNamespace(board=board)

    def refresh(self, board: str) -> None:
        pass

    def delete(self, board: str) -> None:
        self.deleted.append(board)

    def purge(self) -> None:
        pass

    def running(self) -> int:
        """Count the processes that nobody has ended."""
        return sum(not process.stopped for process in self.started)


def boards_over(directory: Boards) -> NodeBoards:
    config = Config(
        data_directory="unused",
        boards_active_max=1,
        request_seconds_max=REQUEST_SECONDS,
        min_sequence_wait_seconds=0.1,
    )
    return NodeBoards(config, directory)  # type: ignore[arg-type]


@pytest.mark.parametrize("waits", ["until it is refused", "a moment"])
def test_who_gives_up_waiting_leaves_no_process_behind(waits: str) -> None:
    """A board that is being put away for another one is, though whoever asked for that has gone."""

    async def scenario() -> None:
        directory = Boards()
        boards = boards_over(directory)
        await boards.ask("first", QUESTION, None)
        asking = asyncio.create_task(boards.ask("second", QUESTION, None))
        if waits == "a moment":
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        else:
            with pytest.raises(Refusal, match="being brought up"):
                await asking
        directory.may_close.set()
        await until(lambda: len(directory.started) == 2)
        assert await boards.ask("second", QUESTION, None) == b"answer"
        assert [process.stopped for process in directory.started] == [True, False]
        assert await boards.ask("first", QUESTION, None) == b"answer"
        assert directory.running() == 1
        await boards.close(0.1)

    run(scenario)


def test_a_deletion_goes_on_without_who_asked_for_it() -> None:
    """A board whose process is being ended is deleted, whether or not anyone waits for that."""

    async def scenario() -> None:
        directory = Boards()
        boards = boards_over(directory)
        await boards.ask("b", QUESTION, None)
        deleting = asyncio.create_task(boards.delete("b"))
        await asyncio.sleep(0)
        deleting.cancel()
        await asyncio.gather(deleting, return_exceptions=True)
        await until(lambda: directory.deleted == ["b"])
        assert directory.running() == 0
        await boards.close(0.1)

    run(scenario)
