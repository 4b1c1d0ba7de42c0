"""Kept tops: right as long as they are given again, and said to be stale where they may not be."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openapi_schema_validator import OAS31Validator

from actors.answers import TopAnswer
from actors.calls import Answer, BoardLostError
from actors.errors import Refusal
from actors.questions import NOT_AT_HAND, Ask, Describe, Question, Reply, Top, decode_asks, encode
from node import tops
from node.board_client import Answered, LaneLimits
from node.board_link import BoardLink
from node.board_requests import BoardRequests
from node.openapi import document
from node.tops import BYTES_MAX, FRESH_SECONDS, KEPT_BYTES, Tops
from tests.node.fake_boards import FakeBoards, Raw, call, check_problem, serving
from tests.running_node import RunningNode, wait_until

WAIT_SECONDS = 60  # for what must come about at all
LIMITS = LaneLimits(
    queue_items_max=100, queue_bytes_max=1 << 20, call_items_max=100, call_entries_max=10_000
)
UNAVAILABLE = Refusal("board_unavailable", "its process ended")
FIELDS = {
    "board": "b",
    "period": {"id": "all_time", "start": None, "end": None, "closed": False, "revision": None},
    "members": 1,
    "sequence": 7,
    "entries": [
        {
            "rank": 1,
            "position": 1,
            "member": "ada",
            "score": 12.5,
            "achieved_at": "2026-11-30T00:00:00Z",
        }
    ],
    "next": None,
}


def top(
    period: str | None = None,
    revision: int | None = None,
    limit: int = 10,
    *,
    packed: bool = False,
    after: str | None = None,
    now_us: int = 0,
) -> Top:
    return Top(packed, now_us, period, revision, limit, after)


def run(scenario: Callable[[], Awaitable[Any]]) -> None:
    """Run a coroutine function to its end, which must come."""

    async def bounded() -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await scenario()

    asyncio.run(bounded())


async def settled() -> None:
    """Let everything happen that can happen by itself."""
    for _ in range(10):
        await asyncio.sleep(0)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Source:
    """A board that is asked for tops. Its answers name its sequence; while it is held they wait.

    known: what the gateway knows of the sequence. failure: is raised in the place of an answer.
    size: bytes that an answer is padded to.
    """

    def __init__(self) -> None:
        self.sequence = self.known = 1
        self.asked: list[Top] = []
        self.failure: Exception | None = None
        self.size = 0
        self.clock = Clock()
        self.tops = Tops(self._fetch, lambda: self.known, self.clock)
        self._going = asyncio.Event()
        self._going.set()

    async def _fetch(self, question: Top) -> Answered:
        self.asked.append(question)
        since = self.sequence
        body = msgspec.json.encode({"sequence": since}).ljust(self.size)
        await self._going.wait()
        if self.failure is not None:
            raise self.failure
        self.known = max(self.known, self.sequence)
        return Answered(body, since)

    def hold(self) -> None:
        self._going = asyncio.Event()

    def go(self) -> None:
        self._going.set()

    def write(self) -> None:
        """Apply an event that this gateway was told of."""
        self.sequence += 1
        self.known = self.sequence

    async def ask(self, question: Top, min_sequence: int = 0) -> bytes:
        """Ask as a gateway does: for what is kept first."""
        found = self.tops.find(question, min_sequence)
        return found if found is not None else await self.tops.ask(question, min_sequence)


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tops, "PATIENCE_SECONDS", 0.01)


# How long one is kept


def test_a_top_is_given_again_for_a_short_time() -> None:
    """An answer is given again until FRESH_SECONDS after it was asked for, and then asked anew."""

    async def scenario() -> None:
        source = Source()
        body = await source.ask(top())
        for _ in range(5):
            assert source.tops.find(top(), 0) == body
            source.clock.now += FRESH_SECONDS / 8
        source.clock.now += FRESH_SECONDS / 2
        assert source.tops.find(top(), 0) is None
        await source.ask(top())
        assert source.tops.find(top(), 0) == body
        assert len(source.asked) == 2

    run(scenario)


def test_the_time_counts_from_the_question() -> None:
    """An answer that took long is as old as its question: what came since may miss in it."""

    async def scenario() -> None:
        source = Source()
        source.hold()
        asking = asyncio.create_task(source.ask(top()))
        await settled()
        source.clock.now += 1.1 * FRESH_SECONDS
        source.go()
        await asking
        assert source.tops.find(top(), 0) is None

    run(scenario)


def test_a_later_sequence_ends_it() -> None:
    """An answer is not given again once anything of a later sequence is known."""

    async def scenario() -> None:
        source = Source()
        for sequence in (1, 2, 3):
            assert json.loads(await source.ask(top())) == {"sequence": sequence}
            assert source.tops.find(top(), 0) is not None
            source.write()
            assert source.tops.find(top(), 0) is None
        assert len(source.asked) == 3

    run(scenario)


def test_an_answer_that_was_overtaken_is_not_given_again() -> None:
    """An answer made before a change is right for who asked before it, and for nobody after."""

    async def scenario() -> None:
        source = Source()
        source.hold()
        asking = asyncio.create_task(source.ask(top()))
        await settled()
        source.write()
        source.go()
        assert json.loads(await asking) == {"sequence": 1}
        assert source.tops.find(top(), 0) is None
        assert json.loads(await source.ask(top())) == {"sequence": 2}

    run(scenario)


def test_each_form_of_the_question_is_kept_by_itself() -> None:
    """Period, revision, limit and encoding tell answers apart; the time of asking does not."""
    forms = [
        top(period, revision, limit, packed=packed)
        for period in (None, "daily")
        for revision in (None, 1, 2)
        for limit in (1, 10)
        for packed in (False, True)
    ]

    async def scenario() -> None:
        source = Source()
        for form in forms:
            assert source.tops.find(form, 0) is None
            await source.ask(form)
        assert source.asked == forms
        for form in forms:
            assert source.tops.find(msgspec.structs.replace(form, now_us=9), 0) is not None
        assert len(source.asked) == len(forms)

    run(scenario)


def test_min_sequence_is_kept_to() -> None:
    """An answer of a lower sequence than the caller names is not given, however fresh it is."""

    async def scenario() -> None:
        source = Source()
        source.sequence = source.known = 5
        await source.ask(top())
        assert source.tops.find(top(), 5) is not None
        assert source.tops.find(top(), 6) is None

    run(scenario)


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


# Asking together


def test_one_fetch_is_for_all_who_ask_at_once() -> None:
    """However many ask alike while one is being fetched, the board is asked once."""

    async def scenario() -> None:
        source = Source()
        source.hold()
        asking = [asyncio.create_task(source.ask(top())) for _ in range(100)]
        others = [asyncio.create_task(source.ask(top(limit=5))) for _ in range(100)]
        await settled()
        source.go()
        assert len(set(await asyncio.gather(*asking, *others))) == 1
        assert len(source.asked) == 2

    run(scenario)


def test_a_fetch_from_before_a_change_is_not_joined() -> None:
    """Who asks after a change is known never gets what was fetched before it."""

    async def scenario() -> None:
        source = Source()
        source.hold()
        before = asyncio.create_task(source.ask(top()))
        await settled()
        source.write()
        after = [asyncio.create_task(source.ask(top())) for _ in range(5)]
        await settled()
        assert len(source.asked) == 2
        source.go()
        assert json.loads(await before) == {"sequence": 1}
        assert [json.loads(await each) for each in after] == [{"sequence": 2}] * 5
        assert json.loads(source.tops.find(top(), 0) or b"") == {"sequence": 2}

    run(scenario)


def test_who_leaves_takes_the_fetch_from_nobody() -> None:
    """A caller that gives up while others wait for the same answer leaves it to them."""

    async def scenario() -> None:
        source = Source()
        source.hold()
        asking = [asyncio.create_task(source.ask(top())) for _ in range(3)]
        await settled()
        asking[0].cancel()
        await asyncio.wait(asking[:1])
        source.go()
        assert await asking[1] == await asking[2]
        assert len(source.asked) == 1

    run(scenario)


def test_a_refusal_is_for_all_who_waited_and_is_not_kept() -> None:
    """What the board refuses everyone who waited hears; the next to ask has the board asked."""

    async def scenario() -> None:
        source = Source()
        source.hold()
        source.failure = Refusal("period_not_found", "there is none")
        asking = [asyncio.create_task(source.ask(top("daily"))) for _ in range(3)]
        await settled()
        source.go()
        found = await asyncio.gather(*asking, return_exceptions=True)
        assert [getattr(each, "code", None) for each in found] == ["period_not_found"] * 3
        source.failure = None
        assert json.loads(await source.ask(top("daily"))) == {"sequence": 1}
        assert source.tops._fetches == {}

    run(scenario)


def test_an_answer_asked_for_earlier_replaces_none_asked_for_later() -> None:
    """Of two fetches under way the one begun later is kept, whichever ends first."""

    async def scenario() -> None:
        clock, answers = Clock(), [asyncio.Future[Answered]() for _ in range(2)]
        asked = iter(answers)
        known = 1

        async def fetch(_: Top) -> Answered:
            return await next(asked)

        kept = Tops(fetch, lambda: known, clock)
        first = asyncio.create_task(kept.ask(top(), 0))
        await settled()
        known = 2
        clock.now += 0.01
        second = asyncio.create_task(kept.ask(top(), 0))
        await settled()
        answers[1].set_result(Answered(b"newer", 2))
        assert await second == b"newer"
        answers[0].set_result(Answered(b"older", 1))
        assert await first == b"older"
        assert kept.find(top(), 0) == b"newer"

    run(scenario)


# Against a naive model


class Stepped:
    """A board and its gateways, moved one step at a time; each answer names its sequence."""

    def __init__(self) -> None:
        self.applied = 1
        self.known = 1  # to this gateway
        self.clock = Clock()
        self.tops = Tops(self._fetch, lambda: self.known, self.clock)
        self.sent: list[asyncio.Future[Answered]] = []
        self.begun: list[tuple[asyncio.Future[Answered], int]] = []
        self.made: list[tuple[asyncio.Future[Answered], int, int, int]] = []
        self.written: list[int] = []
        self.asking: list[tuple[asyncio.Task[bytes], int]] = []

    async def _fetch(self, _: Top) -> Answered:
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self.sent.append(answer)
        return await answer

    def step(self, kind: str, which: int) -> None:
        """Do one thing that may happen; which: one of several that it may happen to."""
        if kind == "ask":
            found = self.tops.find(top(), 0)
            if found is not None:
                assert int(found) >= self.known
            else:
                task = asyncio.create_task(self.tops.ask(top(), 0))
                self.asking.append((task, self.known))
        elif kind == "write":
            self.applied += 1
            self.written.append(self.applied)
        elif kind == "another writes":
            self.applied += 1
        elif kind == "acknowledge" and self.written:
            self.known = max(self.known, self.written.pop(which % len(self.written)))
        elif kind == "begin" and self.sent:
            self.begun.append((self.sent.pop(which % len(self.sent)), self.applied))
        elif kind == "answer" and self.begun:
            answer, since = self.begun.pop(which % len(self.begun))
            self.made.append((answer, self.applied, since, self.applied))
        elif kind == "receive" and self.made:
            answer, content, since, until = self.made.pop(which % len(self.made))
            self.known = max(self.known, until)
            answer.set_result(Answered(b"%d" % content, since))
        elif kind == "wait":
            self.clock.now += which * FRESH_SECONDS / 4

    async def finish(self) -> None:
        """Let all that was asked be answered, and look at what each got."""
        while self.sent or self.begun or self.made:
            for kind in ("begin", "answer", "receive"):
                self.step(kind, 0)
                await settled()
        for task, known in self.asking:
            assert int(await task) >= known, "it is older than what was known when it was asked"


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ("ask", "ask", "ask", "write", "another writes", "acknowledge", "begin", "begin",
                 "answer", "answer", "receive", "receive", "wait")
            ),
            st.integers(0, 3),
        ),
        max_size=60,
    )
)  # fmt: skip
def test_no_answer_is_older_than_what_was_known(steps: list[tuple[str, int]]) -> None:
    """Whatever happens in which order, a top holds all that was known when it was asked for."""

    async def scenario() -> None:
        stepped = Stepped()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tops, "PATIENCE_SECONDS", WAIT_SECONDS)  # stale ones are said to be
            for step in steps:
                stepped.step(*step)
                await settled()
            await stepped.finish()

    run(scenario)


# Bytes


def test_the_bytes_are_bounded_and_the_least_recently_asked_goes_first() -> None:
    """Kept tops take BYTES_MAX at most; one that is asked for again and again stays."""

    async def scenario() -> None:
        source = Source()
        source.size = BYTES_MAX // 10 - KEPT_BYTES
        for limit in range(1, 11):
            await source.ask(top(limit=limit))
        assert all(source.tops.find(top(limit=limit), 0) for limit in range(1, 11))
        assert source.tops.find(top(limit=1), 0) is not None  # the first, and now the last
        await source.ask(top(limit=11))
        assert source.tops.find(top(limit=2), 0) is None
        assert source.tops.find(top(limit=1), 0) is not None
        for limit in range(12, 40):
            await source.ask(top(limit=limit))
            assert source.tops._bytes <= BYTES_MAX
            assert source.tops.find(top(limit=1), 0) is not None
        assert len(source.tops._kept) == 10

    run(scenario)


def test_many_small_tops_are_bounded_too() -> None:
    """However little each one is, so many are kept that all they take stays within the bound."""

    async def scenario() -> None:
        source = Source()
        for number in range(2 * BYTES_MAX // KEPT_BYTES):
            await source.tops._fetch_and_keep(top_key(number), top(limit=number))
        assert len(source.tops._kept) <= BYTES_MAX // KEPT_BYTES
        assert source.tops._bytes <= BYTES_MAX

    run(scenario)


def top_key(number: int) -> Any:
    return tops._key(top(limit=number))


def test_a_top_above_the_bound_takes_nobodys_place() -> None:
    """An answer that does not fit is given once, and those that are kept stay."""

    async def scenario() -> None:
        source = Source()
        await source.ask(top(limit=1))
        source.size = BYTES_MAX
        assert len(await source.ask(top(limit=2))) == BYTES_MAX
        assert source.tops.find(top(limit=2), 0) is None
        assert source.tops.find(top(limit=1), 0) is not None

    run(scenario)


# Stale ones


@pytest.mark.parametrize("packed", [False, True])
def test_a_stale_answer_is_valid_and_says_so(packed: bool, short_patience: None) -> None:
    """A stale answer differs from the board's by its mark and its age, in either encoding."""
    encoding: Any = msgspec.msgpack if packed else msgspec.json
    responses = document()["paths"]["/v1/boards/{board}/top"]["get"]["responses"]
    media = responses["200"]["content"]["application/json"]
    validator = OAS31Validator({"components": document()["components"]} | media["schema"])
    answer = msgspec.convert(FIELDS, TopAnswer)

    async def scenario() -> None:
        clock = Clock()
        failing = False

        async def fetch(_: Top) -> Answered:
            if failing:
                raise UNAVAILABLE
            return Answered(encoding.encode(answer), 7)

        kept = Tops(fetch, lambda: 7, clock)
        question = top(packed=packed)
        fresh = encoding.decode(await kept.ask(question, 0))
        assert fresh == FIELDS
        failing = True
        for age in (0.25, 61.5, 86_400.0):
            clock.now = 1_000.0 + age
            stale = encoding.decode(await kept.ask(question, 7))
            assert stale == FIELDS | {"stale": True, "age_seconds": age}
            validator.validate(stale)
        validator.validate(fresh)
        assert not validator.is_valid(fresh | {"stale": 1}), "the schema tells them apart"

    run(scenario)


def test_a_board_that_does_not_answer_is_waited_for_a_while(short_patience: None) -> None:
    """After PATIENCE_SECONDS the last answer is given, and the board still waited for once."""

    async def scenario() -> None:
        source = Source()
        fresh = await source.ask(top())
        source.clock.now += 2 * FRESH_SECONDS
        source.hold()
        for _ in range(3):
            stale = json.loads(await source.ask(top()))
            assert stale == {"sequence": 1, "stale": True, "age_seconds": 0.2}
        assert len(source.asked) == 2, "one fetch is enough to find out when it is back"
        source.go()
        await settled()
        assert source.tops.find(top(), 0) == fresh

    run(scenario)


@pytest.mark.parametrize("code", ["overloaded", "board_not_found", "period_not_found", "not_yet"])
def test_other_refusals_are_passed_on(code: str, short_patience: None) -> None:
    """Only a board that cannot be reached is answered for; what it refuses is refused."""

    async def scenario() -> None:
        source = Source()
        await source.ask(top())
        source.clock.now += 2 * FRESH_SECONDS
        source.failure = Refusal(code, "planted")
        with pytest.raises(Refusal) as caught:
            await source.ask(top())
        assert caught.value.code == code

    run(scenario)


def test_a_mistake_of_the_program_is_not_covered_up(short_patience: None) -> None:
    """What nobody foresaw is raised, whatever is kept."""

    async def scenario() -> None:
        source = Source()
        await source.ask(top())
        source.clock.now += 2 * FRESH_SECONDS
        source.failure = ZeroDivisionError("planted")
        with pytest.raises(ZeroDivisionError):
            await source.ask(top())

    run(scenario)


def test_min_sequence_forbids_what_is_older(short_patience: None) -> None:
    """Who names a sequence that the last answer has not reached waits for the board instead."""

    async def scenario() -> None:
        source = Source()
        source.sequence = source.known = 5
        await source.ask(top())
        source.write()
        source.hold()
        assert json.loads(await source.ask(top(), 5))["stale"] is True
        waiting = asyncio.create_task(source.ask(top(), 6))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        source.go()
        assert json.loads(await waiting) == {"sequence": 6}
        source.write()
        source.failure = UNAVAILABLE
        with pytest.raises(Refusal, match="its process ended"):
            await source.ask(top(), 7)

    run(scenario)


def test_where_nothing_is_kept_the_board_is_waited_for(short_patience: None) -> None:
    """A window that was never asked for has no stale answer: the refusal is passed on."""

    async def scenario() -> None:
        source = Source()
        await source.ask(top())
        source.failure = UNAVAILABLE
        with pytest.raises(Refusal, match="its process ended"):
            await source.ask(top("daily"))
        source.failure = None
        source.hold()
        waiting = asyncio.create_task(source.ask(top("daily")))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        source.go()
        assert json.loads(await waiting) == {"sequence": 1}

    run(scenario)


# In their place: a board's lanes, and a gateway


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


# A whole node


def put(node: RunningNode, board: str, member: str, value: int) -> int:
    """Submit an event; returns its sequence."""
    event = {"member": member, "value": value, "idempotency_key": f"{member}-{value}"}
    status, answer = node.call("POST", f"/v1/boards/{board}/events", event)
    assert status == 200, answer
    sequence: int = answer["sequence"]
    return sequence


def members(answer: dict[str, Any]) -> list[str]:
    return [entry["member"] for entry in answer["entries"]]


def kill_board(node: RunningNode) -> None:
    for process in node.named("ray::BoardActor"):
        os.kill(process, signal.SIGKILL)
        wait_until(lambda p=process: p not in node.processes(), 30, "it is dead")


def test_tops_of_a_node(make_node: Callable[..., RunningNode]) -> None:
    """While a board is down its top is stale and says so, and never another board's or too old."""
    node = make_node().start()
    target = "/v1/boards/b/top"
    for round_ in range(3):
        assert node.call("PUT", "/v1/boards/b", {"aggregation": "sum"})[0] == 201
        assert node.ask(target)["entries"] == [], "nothing of the board that was deleted"
        for value in range(1, 20):
            put(node, "b", f"m{round_}", value)
            (entry,) = node.ask(target)["entries"]
            assert (entry["member"], entry["score"]) == (f"m{round_}", sum(range(value + 1)))
        if round_ < 2:
            assert node.call("DELETE", "/v1/boards/b")[0] == 204
            assert node.call("GET", target)[0] == 404
    sequence = put(node, "b", "last", 1)
    fresh = node.ask(target)
    assert "stale" not in fresh
    for packed in (False, True):
        # Where one process ends, the next is there soon; where several do, the next one waits.
        for _ in range(10):
            kill_board(node)
            status, stale = node.call("GET", target, packed=packed)
            if status == 200 and "stale" in stale:
                break
        assert stale.pop("stale") is True
        assert 0 <= stale.pop("age_seconds") < 600
        assert stale == fresh
        status, problem = node.call("GET", f"{target}?min_sequence={sequence + 1}")
        assert (status, problem.get("stale")) == (503, None)
        status, own = node.call("GET", f"{target}?read=actor")
        assert status in (200, 503)
        assert "stale" not in own
        wait_until(lambda: "stale" not in node.ask(target), 120, "it is back")
        assert node.ask(target) == fresh
        assert node.call("GET", target, packed=True)[1] == fresh
    put(node, "b", "first", 10_000)
    assert members(node.ask(target))[0] == "first"
    assert node.stop() == 0
