"""Kept tops: asked of the board once for many, and given again only as long as they are right."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from actors.errors import Refusal
from actors.questions import Top
from node import tops
from node.board_client import Answered
from node.tops import BYTES_MAX, FRESH_SECONDS, KEPT_BYTES, Tops
from tests.node.top_source import Clock, Source, run, settled, top

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


def test_nothing_from_before_a_ruling_is_given() -> None:
    """A kept answer that a ruling came after is not even given as a stale one."""

    async def scenario() -> None:
        ruled = 0
        failing = False

        async def fetch(_: Top) -> Answered:
            if failing:
                raise Refusal("board_unavailable", "planted")
            return Answered(b"{}", 5)

        kept = Tops(fetch, lambda: 5, Clock(), lambda: ruled)
        await kept.ask(top(), 0)
        failing = True
        assert b"stale" in await kept.ask(top(), 0)
        ruled = 5
        assert b"stale" in await kept.ask(top(), 0), "it was asked for after the ruling"
        ruled = 6
        with pytest.raises(Refusal, match="planted"):
            await kept.ask(top(), 0)

    run(scenario)


def test_what_is_old_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A top that nobody may be given any more does not stay in memory, nor is it given."""

    async def scenario() -> None:
        monkeypatch.setattr(tops, "STALE_SECONDS_MAX", 0.01)
        failing = False

        async def fetch(_: Top) -> Answered:
            if failing:
                raise Refusal("board_unavailable", "planted")
            return Answered(b"{}", 5)

        clock = Clock()
        kept = Tops(fetch, lambda: 5, clock)
        await kept.ask(top(), 0)
        failing = True
        clock.now += 1
        with pytest.raises(Refusal, match="planted"):
            await kept.ask(top(), 0)
        while kept._kept:  # noqa: ASYNC110  (nobody tells when it goes)
            await asyncio.sleep(0.001)
        assert kept._bytes == 0

    run(scenario)
