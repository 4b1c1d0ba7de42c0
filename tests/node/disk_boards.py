"""Boards on disk behind a gateway, in the process of a test: kept as their own processes keep them.

One call follows the other, with nothing in between, so that a test may break off anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from actors import histories, queries
from actors.creation import create_board
from actors.definition import parse_definition
from actors.errors import Refusal
from actors.logged_board import LoggedBoard
from actors.moderation import answer_ruling
from actors.questions import Audit, Change, Describe, History, Question, Submit, Verdict
from actors.submission import parse_submission
from node.client import Client
from node.importing import Summary, import_events
from node.transfer import read_ndjson
from tests.actors.board_harness import SMALL, committed, settled
from tests.node.fake_boards import NOW_US, FakeBoards, serving


class DiskBoards(FakeBoards):
    """The boards in a directory; those that are asked for are open until `close`.

    behind: called behind every change, which is on disk by then; what it raises takes the place of
    the answer.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__()
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.behind: Callable[[], None] = lambda: None
        self._open: dict[str, LoggedBoard] = {}

    def host(self, board: str) -> LoggedBoard:
        """Open a board, or find it open."""
        if not (self.directory / board).is_dir():
            raise Refusal("board_not_found", f"there is no board {board}")
        if board not in self._open:
            self._open[board] = LoggedBoard.open(self.directory / board, SMALL)
        return self._open[board]

    def close(self) -> None:
        """Give all boards up."""
        while self._open:
            self._open.popitem()[1].close()

    async def create(
        self, board: str, definition: bytes, *, definition_packed: bool, packed: bool, now_us: int
    ) -> tuple[bool, bytes]:
        await self._note("create", board)
        wanted = parse_definition(definition, definition_packed)
        is_new = not (self.directory / board).exists()
        if is_new:
            create_board(self.directory / board, board, wanted, now_us, SMALL)
        elif self.host(board).board.definition != wanted:
            raise Refusal("board_exists", "it is another one")
        return is_new, self._described(board, now_us)

    def _described(self, board: str, now_us: int) -> bytes:
        host = self.host(board)
        return queries.answer(host.board, host.archives, Describe(False, now_us))

    async def ask(self, board: str, question: Question, min_sequence: int | None) -> bytes:
        await self._note("ask", board, question)
        host = self.host(board)
        if isinstance(question, Audit):
            records = list(
                map(host.shown_log.ruling_at, histories.begin_audit(host.board, question))
            )
            return msgspec.json.encode(histories.answer_audit(host.board, records))
        if isinstance(question, History):
            walk = histories.begin_history(host.board, question)
            events = list(
                host.shown_log.events_of(question.member.encode(), walk.limit, walk.sequence)
            )
            return msgspec.json.encode(histories.answer_history(host.board, question, events))
        return queries.answer(host.board, host.archives, question)

    async def submit(self, board: str, question: Submit | Change | Verdict) -> bytes:
        await self._note("submit", board, question)
        host = self.host(board)
        host.close_due(question.now_us)
        host.seal_all()
        answer = self._changed(board, host, question)
        self.behind()
        return answer

    def _changed(self, board: str, host: LoggedBoard, question: Submit | Change | Verdict) -> bytes:
        if isinstance(question, Submit):
            (reply,) = settled(host, [parse_submission(question)], question.now_us)
            return reply.unwrap()
        if isinstance(question, Change):
            record = host.changed_definition(question)
            if record is not None:
                host.commit([record])
                host.apply_all([record])
                host.close_due(question.now_us)
            return self._described(board, question.now_us)
        planned = committed(host, question)
        host.rule(planned)
        return answer_ruling(host.board, question, planned.sequence)


@contextlib.contextmanager
def boards_in(directory: Path) -> Iterator[DiskBoards]:
    """Keep the boards in a directory open for a while."""
    boards = DiskBoards(directory)
    try:
        yield boards
    finally:
        boards.close()


async def _no_pause(_seconds: float) -> None:
    return


def run_import(
    boards: FakeBoards, lines: Iterable[bytes], board: str = "b", batch: int = 4, **how: Any
) -> Summary:
    """Import lines as the command does; summary: one to count in, which outlives a break."""
    summary: Summary = how.pop("summary", None) or Summary()

    async def run() -> None:
        async with serving(boards) as gateway, Client(gateway.url, _no_pause) as client:
            await import_events(
                client,
                board,
                read_ndjson(lines),
                summary,
                backfill=how.get("backfill", False),
                batch_events_max=batch,
                on_batch=lambda: None,
            )

    asyncio.run(run())
    return summary


def audit(host: LoggedBoard) -> list[Any]:
    """List a board's whole audit, newest first."""
    question = Audit(False, NOW_US, 10_000, None)
    records = list(map(host.shown_log.ruling_at, histories.begin_audit(host.board, question)))
    return histories.answer_audit(host.board, records).records
