"""Kept tops in their place: what a board's lanes tell of, and who is given what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from actors.calls import Answer, BoardLostError
from actors.questions import NOT_AT_HAND, Ask, Describe, Question, Reply, Top, decode_asks, encode
from node.board_client import LaneLimits
from node.board_link import BoardLink
from node.board_requests import BoardRequests
from tests.node.fake_boards import FakeBoards, Raw, call, check_problem, serving
from tests.node.top_source import run, top

LIMITS = LaneLimits(
    queue_items_max=100, queue_bytes_max=1 << 20, call_items_max=100, call_entries_max=10_000
)


class FakeCalls:
    """A board's process; each answer is numbered, and made at the board's sequence."""

    def __init__(self) -> None:
        self.sequence = 1
        self.answers = 0
        self.at_hand = True
        self.lost = False
        self.methods: list[str] = []

    async def call(self, method: str, payload: bytes) -> Answer:
        self.methods.append(method)
        if self.lost:
            raise BoardLostError("planted")
        since = self.sequence
        if method == "write":
            self.sequence += 1
        return Answer(encode(list(self._replies(method, payload))), since, self.sequence)

    def _replies(self, method: str, payload: bytes) -> Iterator[Reply]:
        for _ in decode_asks(payload):
            if method == "read" and not self.at_hand:
                yield Reply(b"", NOT_AT_HAND, "it is on disk")
            else:
                self.answers += 1
                yield Reply(b"answer %d" % self.answers)


class Link(BoardLink):
    def __init__(self) -> None:
        super().__init__(LIMITS)
        self.calls = FakeCalls()

    async def reach(self) -> Any:
        return self.calls


class OneBoard(BoardRequests):
    """A gateway's boards, of which there is one, and it is up."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.the_link = Link()

    def link(self, board: str) -> BoardLink:
        return self.the_link

    async def ready_link(self, board: str) -> BoardLink:
        return self.the_link

    async def changed(self, board: str) -> None:
        raise AssertionError("nothing is changed here")


def test_a_page_that_follows_is_never_kept() -> None:
    """What follows a cursor is asked of the board each time, and nothing else is given for it."""

    async def scenario() -> None:
        boards = OneBoard()
        assert await boards.top("b", top(after="c"), None) == b"answer 1"
        assert boards.kept_top("b", top(after="c"), None) is None
        assert await boards.top("b", top(), None) == b"answer 2"
        assert boards.kept_top("b", top(), None) == b"answer 2"
        assert boards.kept_top("b", top(after="c"), None) is None
        assert await boards.top("b", top(after="c"), None) == b"answer 3"
        assert await boards.top("b", top(), None) == b"answer 2"

    run(scenario)


@pytest.mark.parametrize("lane", ["reads", "writes", "rulings"])
def test_every_lane_tells_of_changes(lane: str) -> None:
    """What the answer to a read, a write or a ruling tells of ends what was kept before."""

    async def scenario() -> None:
        boards = OneBoard()
        link = boards.the_link
        first = await boards.top("b", top(), None)
        assert boards.kept_top("b", top(), None) == first
        if lane == "reads":
            link.calls.sequence += 1  # by another gateway
            assert boards.kept_top("b", top(), None) == first, "nobody has told of it"
        await getattr(link, lane).ask(Ask(0, Describe(False, 0)))
        assert boards.kept_top("b", top(), None) is None
        assert await boards.top("b", top(), None) != first

    run(scenario)


def test_a_sequence_that_is_not_known_yet_is_asked_of_the_board() -> None:
    """A `min_sequence` beyond all that is known goes to the board, which waits for it."""

    async def scenario() -> None:
        boards = OneBoard()
        assert await boards.top("b", top(), None) == b"answer 1"
        assert boards.kept_top("b", top(), 1) == b"answer 1"
        assert boards.kept_top("b", top(), 2) is None
        assert await boards.top("b", top(), 2) == b"answer 2"
        assert await boards.top("b", top(), 1) == b"answer 1"

    run(scenario)


def test_a_top_from_disk_is_kept_too() -> None:
    """A closed window's top that must be fetched from disk is fetched once for many."""

    async def scenario() -> None:
        boards = OneBoard()
        link = boards.the_link
        link.calls.at_hand = False
        found = await asyncio.gather(*(boards.top("b", top("daily"), None) for _ in range(20)))
        assert set(found) == {b"answer 1"}
        assert link.calls.methods == ["read", "read_slowly"]
        assert boards.kept_top("b", top("daily"), None) == b"answer 1"

    run(scenario)


class KeepingBoards(FakeBoards):
    """Boards that have one top at hand."""

    def kept_top(self, board: str, question: Top, min_sequence: int | None) -> bytes | None:
        self.calls.append(("kept", question.after, min_sequence))
        return b'{"kept":true}' if question.after is None and min_sequence is None else None

    async def ask(self, board: str, question: Question, min_sequence: int | None) -> bytes:
        self.calls.append(("ask", board))
        return b'{"asked":true}'

    async def top(self, board: str, question: Top, min_sequence: int | None) -> bytes:
        self.calls.append(("top", board))
        return b'{"top":true}'


@pytest.mark.parametrize(
    ("query", "body", "called"),
    [
        ("", {"kept": True}, ["kept"]),
        ("?limit=5", {"kept": True}, ["kept"]),
        ("?min_sequence=3", {"top": True}, ["kept", "top"]),
        ("?after=c", {"top": True}, ["kept", "top"]),
        ("?read=actor", {"asked": True}, ["ask"]),
        ("?read=actor&min_sequence=3", {"asked": True}, ["ask"]),
    ],
)
def test_read_actor_goes_past_what_is_kept(query: str, body: Any, called: list[str]) -> None:
    """A top that is at hand is given at once, but never to who asks for the board's own answer."""
    boards = KeepingBoards()

    async def ask() -> Raw:
        async with serving(boards) as gateway:
            return await call(gateway.port, "GET", f"/v1/boards/b/top{query}")

    answer = asyncio.run(ask())
    assert (answer.status, answer.json()) == (200, body)
    assert [each[0] for each in boards.calls] == called


def test_a_kept_top_is_for_who_may_ask() -> None:
    """Whether a top is at hand is found out only after everything about the request was checked."""
    boards = KeepingBoards()
    boards.ready = False

    async def ask() -> list[Raw]:
        async with serving(boards) as gateway:
            targets = ("/v1/boards/b/top", "/v1/boards/b/top?limit=0")
            return [await call(gateway.port, "GET", target) for target in targets]

    for answer in asyncio.run(ask()):
        check_problem(answer, 503, "board_unavailable")
    assert boards.calls == []
