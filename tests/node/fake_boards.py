"""Stand-ins for the boards, and a gateway around them on a free port."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from actors.answers import BatchAnswer, EventAnswer, Result
from actors.errors import Refusal
from actors.questions import Change, Describe, Erase, Question, Submit, Top, Verdict
from actors.submission import parse_submission
from node.access import Access
from node.config import Config
from node.gateway import Gateway
from node.key_file import KeyFile
from node.metrics import BoardFigures

NOW_US = 1_764_500_000_000_000
ANSWER = {"answer": 1}


def encoded(value: Any, packed: bool) -> bytes:
    return msgspec.msgpack.encode(value) if packed else msgspec.json.encode(value)


class FakeBoards:
    """Remembers what it was asked; `behave` is called first and may raise or wait."""

    def __init__(self) -> None:
        self.ready = True
        self.calls: list[tuple[Any, ...]] = []
        self.figures = BoardFigures(0, 0, 0, {}, {}, 0, {})
        self.behave: Callable[[], Any] = lambda: None

    async def _note(self, *call: Any) -> None:
        self.calls.append(call)
        waiting = self.behave()
        if waiting is not None:
            await waiting

    async def create(
        self, board: str, definition: bytes, *, definition_packed: bool, packed: bool, now_us: int
    ) -> tuple[bool, bytes]:
        await self._note("create", board, definition, definition_packed, packed, now_us)
        return board == "new", encoded(ANSWER, packed)

    async def list(
        self, limit: int, after: str | None, patterns: tuple[str, ...], *, packed: bool
    ) -> bytes:
        await self._note("list", limit, after, packed)
        return encoded(ANSWER, packed)

    async def measure(self) -> BoardFigures:
        await self._note("measure")
        return self.figures

    async def ids(self, patterns: tuple[str, ...]) -> Sequence[str]:
        return []

    async def delete(self, board: str) -> None:
        await self._note("delete", board)

    async def ask(self, board: str, question: Question, min_sequence: int | None) -> bytes:
        await self._note("ask", board, question, min_sequence)
        return encoded(ANSWER, question.packed)

    def kept_top(self, board: str, question: Top, min_sequence: int | None) -> bytes | None:
        return None

    async def top(self, board: str, question: Top, min_sequence: int | None) -> bytes:
        return await self.ask(board, question, min_sequence)

    async def submit(self, board: str, question: Submit | Change | Verdict) -> bytes:
        await self._note("submit", board, question)
        if isinstance(question, Erase):
            return encoded({"board": board, "sequence": 7}, question.packed)
        return encoded(ANSWER, question.packed)


class AcceptingBoards(FakeBoards):
    """Boards that apply every event, each with the next sequence of its board.

    refusals: what a board refuses instead. waits: what is awaited before a board acts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sequences: defaultdict[str, int] = defaultdict(lambda: 1)
        self.refusals: dict[str, Refusal] = {}
        self.waits: dict[str, Callable[[], Any]] = {}

    async def _act(self, board: str) -> None:
        if board in self.waits:
            await self.waits[board]()
        if board in self.refusals:
            raise self.refusals[board]

    async def ask(self, board: str, question: Question, min_sequence: int | None) -> bytes:
        await self._note("ask", board, question, min_sequence)
        await self._act(board)
        return encoded(ANSWER | {"board": board}, question.packed)

    async def submit(self, board: str, question: Submit | Change) -> bytes:
        assert isinstance(question, Submit)
        await self._note("submit", board, question)
        await self._act(board)
        submission = parse_submission(question)
        results: list[Result] = []
        for event in submission.events:
            if isinstance(event, Refusal):
                field = event.extra.get("field")
                results.append(Result("rejected", None, event.code, event.detail, str(field)))
            else:
                self.sequences[board] += 1
                results.append(Result("applied", self.sequences[board]))
        applied = sum(result.status == "applied" for result in results)
        if not submission.batch:
            return encoded(EventAnswer("applied", self.sequences[board], []), question.packed)
        answer = BatchAnswer(
            results, applied, 0, len(results) - applied, self.sequences[board]
        )  # fmt: skip
        return encoded(answer, question.packed)


class KeyedBoards(FakeBoards):
    """Boards that keep events by key, their numbers as text, and refuse values above 1000000."""

    def __init__(self) -> None:
        super().__init__()
        self.definitions: dict[str, bytes] = {}
        self.current: dict[str, dict[str, Any]] = {}  # what changes made of the definitions
        self.changes: list[bytes] = []
        self.events: defaultdict[str, dict[str, Any]] = defaultdict(dict)

    async def create(
        self, board: str, definition: bytes, *, definition_packed: bool, packed: bool, now_us: int
    ) -> tuple[bool, bytes]:
        await self._note("create", board)
        if self.definitions.get(board, definition) != definition:
            raise Refusal("board_exists", "it is another one")
        created = board not in self.definitions
        self.definitions[board] = definition
        self.current[board] = {"mode": "live", **json.loads(definition)}
        return created, b"{}"

    def has(self, board: str, mode: str = "live") -> None:
        """Have a board from the start."""
        self.definitions[board] = b"{}"
        self.current[board] = {"mode": mode}

    async def ask(self, board: str, question: Question, min_sequence: int | None) -> bytes:
        await self._note("ask", board, question)
        sequence = len(self.events[board]) + 2
        if isinstance(question, Describe):
            if board not in self.definitions:
                raise Refusal("board_not_found", f"there is no board {board}")
            return encoded(self.current[board] | {"sequence": sequence}, False)
        entries = [
            {"rank": 1, "member": "a[b]", "score": 1.5, "achieved_at": "2026-01-01T00:00:00Z"},
        ]
        period = question.period if isinstance(question, Top) else None
        answer = {"board": board, "period": {"id": period or "all_time"}, "members": 1}
        return encoded(answer | {"sequence": sequence, "entries": entries}, False)

    async def submit(self, board: str, question: Submit | Change) -> bytes:
        await self._note("submit", board)
        if board not in self.definitions:
            raise Refusal("board_not_found", f"there is no board {board}")
        if isinstance(question, Change):
            self.changes.append(question.body)
            self.current[board] |= json.loads(question.body)
            return b"{}"
        try:
            events = json.loads(question.body, parse_float=str, parse_int=str)["events"]
        except ValueError:
            raise Refusal("malformed_body", "it is no JSON") from None
        results = [self.take(board, event) for event in events]
        statuses = [result["status"] for result in results]
        return encoded(
            {
                "results": results,
                "applied": statuses.count("applied"),
                "duplicates": statuses.count("duplicate"),
                "rejected": statuses.count("rejected"),
                "sequence": len(self.events[board]) + 2,
            },
            False,
        )

    def take(self, board: str, event: dict[str, Any]) -> dict[str, Any]:
        key = event["idempotency_key"]
        if key in self.events[board]:
            return {"status": "duplicate", "sequence": 1}
        if isinstance(event["value"], str) and float(event["value"]) > 1_000_000:
            return {"status": "rejected", "code": "value_not_allowed", "detail": "too much"}
        self.events[board][key] = event
        return {"status": "applied", "sequence": 1}


def config(**settings: Any) -> Config:
    settings.setdefault("hosts_allowed", ("x", "test"))
    return Config(data_directory="unused", port=0, **settings)


@contextlib.asynccontextmanager
async def serving(
    boards: FakeBoards, data: Path | None = None, **settings: Any
) -> AsyncIterator[Gateway]:
    """Run a gateway; `data` is where its keys are, without it there are none."""
    made = config(**settings)
    access = Access(KeyFile(data or Path(made.data_directory)), made)
    gateway = Gateway(boards, made, access, clock_us=lambda: NOW_US)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()


class Raw:
    """An answer as it came over the socket."""

    def __init__(self, data: bytes) -> None:
        head, _, self.body = data.partition(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(status_line.split()[1])
        self.headers = {name.lower(): value for name, value in (x.split(": ", 1) for x in lines)}

    def json(self) -> Any:
        return json.loads(self.body)


async def exchange(port: int, data: bytes) -> Raw:
    """Send bytes as they are, and read until the server hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await writer.drain()
        return Raw(await asyncio.wait_for(reader.read(), 10))
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def call(
    port: int, method: str, target: str, body: bytes | None = None, **headers: str
) -> Raw:
    """Make one request with exactly this target; header names are written with underscores."""
    lines = [f"{method} {target} HTTP/1.1", "Host: test", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body is not None:
        if not any(name.lower() == "content_type" for name in headers):
            lines.append("Content-Type: application/json")
        lines.append(f"Content-Length: {len(body)}")
    return await exchange(port, "\r\n".join([*lines, "", ""]).encode() + (body or b""))


def ask_once(
    method: str,
    target: str,
    body: bytes | None = None,
    boards: FakeBoards | None = None,
    settings: dict[str, Any] | None = None,
    **headers: str,
) -> tuple[Raw, FakeBoards]:
    boards = boards or FakeBoards()

    async def run() -> Raw:
        async with serving(boards, **(settings or {})) as gateway:
            return await call(gateway.port, method, target, body, **headers)

    return asyncio.run(run()), boards


def check_problem(answer: Raw, status: int, code: str) -> dict[str, Any]:
    """Check that an answer is a complete problem, and return it."""
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"]
    assert answer.headers["server"] == "ranknode"
    problem: dict[str, Any] = answer.json()
    assert problem["status"] == status
    assert problem["code"] == code
    assert problem["type"] == f"urn:ranknode:problem:{code}"
    assert problem["title"]
    assert problem["detail"]
    assert ("retry-after" in answer.headers) == (status in (429, 503))
    return problem
