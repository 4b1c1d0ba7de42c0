"""Tops of boards that cannot be reached: as they were last, and said to be so."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from openapi_schema_validator import OAS31Validator

from actors.answers import TopAnswer
from actors.errors import Refusal
from actors.questions import Top
from node import tops
from node.board_client import Answered
from node.openapi import document
from node.tops import FRESH_SECONDS, Tops
from tests.node.top_source import Clock, Source, run, settled, top
from tests.running_node import RunningNode, wait_until

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


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tops, "PATIENCE_SECONDS", 0.01)


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
        for age in (0.25, 1.5, 59.875):
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
    """Kill the board's process, once there is one: its successor gets its name only when it is."""
    wait_until(lambda: node.named("ray::BoardActor"), 60, "the board has a process")
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
            sequence = put(node, "b", f"m{round_}", value)
            (entry,) = node.ask(f"{target}?min_sequence={sequence}")["entries"]
            assert (entry["member"], entry["score"]) == (f"m{round_}", sum(range(value + 1)))
        if round_ < 2:
            assert node.call("DELETE", "/v1/boards/b")[0] == 204
            assert node.call("GET", target)[0] == 404
    sequence = put(node, "b", "last", 1)
    fresh = node.ask(target)
    assert "stale" not in fresh
    for packed in (False, True):
        # Where one process ends, the next is there soon; where several do, the next one waits.
        seen = []
        for _ in range(10):
            kill_board(node)
            status, stale = node.call("GET", target, packed=packed)
            seen.append((status, stale))
            if "stale" in stale:
                break
        assert (status, stale.pop("stale", None)) == (200, True), seen
        assert 0 <= stale.pop("age_seconds") < 600
        assert stale == fresh
        status, problem = node.call("GET", f"{target}?min_sequence={sequence + 1}")
        assert (status, problem.get("stale")) == (503, None)
        status, own = node.call("GET", f"{target}?read=actor")
        assert status in (200, 503)
        assert "stale" not in own
        wait_until(lambda: node.ask(target) == fresh, 120, "it is back")
        wait_until(lambda: node.call("GET", target, packed=True)[1] == fresh, 120, "it is back")
    sequence = put(node, "b", "first", 10_000)
    assert members(node.ask(f"{target}?min_sequence={sequence}"))[0] == "first"
    assert node.stop() == 0
