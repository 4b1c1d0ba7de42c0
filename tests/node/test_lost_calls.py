"""Lanes whose board has no process left: what was sent may have been applied, the rest was not."""

from __future__ import annotations

import asyncio

import pytest

from actors.calls import BoardLostError
from actors.errors import Refusal
from node import board_client
from node.board_client import Lane
from tests.node.test_board_client import LIMITS, Board, ask, asking, behind_a_call, run


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(board_client, "RETRY_SECONDS", 0.0)


@pytest.mark.parametrize(
    ("changes", "lost", "code"),
    [
        (True, 0, "board_unavailable"),
        (True, 1, "outcome_unknown"),
        (False, 1, "board_unavailable"),
    ],
)
def test_a_change_that_was_sent_is_never_said_to_be_unsent(changes, lost, code):
    """Where no process is left to ask, what was sent may have been applied; what waits was not."""

    async def scenario():
        board = Board()
        refusal = Refusal("board_unavailable", "held back", retry_after_seconds=4)
        board.failures = [*[BoardLostError("the process died")] * lost, refusal, refusal]
        lane = Lane(board.send, LIMITS, changes=changes)
        first, others = await behind_a_call(lane, board, 2)
        board.go()
        found = await asyncio.gather(first, *others, return_exceptions=True)
        assert [each.code for each in found] == [code, "board_unavailable", "board_unavailable"]
        assert found[1].extra == {"retry_after_seconds": 4}

    run(scenario)


@pytest.mark.parametrize(
    ("changes", "answer", "code"),
    [
        (True, "board_unavailable", "outcome_unknown"),
        (True, "storage_full", "storage_full"),
        (False, "board_unavailable", "board_unavailable"),
    ],
)
def test_a_successor_that_is_not_open_knows_nothing_of_what_was_sent(changes, answer, code):
    """What was lost and is then refused by an unopened board may have been applied before."""

    async def scenario():
        board = Board()
        board.failures = [BoardLostError("the process died")]
        board.refused, board.code = {1}, answer
        lane = Lane(board.send, LIMITS, changes=changes)
        found = await asyncio.gather(*asking(lane, 1, 2), return_exceptions=True)
        assert (found[0].code, found[1]) == (code, b"2")
        with pytest.raises(Refusal) as caught:  # nothing was lost of this one
            await lane.ask(ask(1))
        assert caught.value.code == answer

    run(scenario)


def test_a_change_in_flight_when_its_lane_stops_has_an_unknown_outcome():
    """A board that is put away refuses what waits, and does not know of what it was sent."""

    async def scenario():
        board = Board()
        lane = Lane(board.send, LIMITS, changes=True)
        first, others = await behind_a_call(lane, board, 2)
        await lane.stop(Refusal("board_unavailable", "the board is being put away"))
        found = await asyncio.gather(first, *others, return_exceptions=True)
        assert [each.code for each in found] == ["outcome_unknown", *["board_unavailable"] * 2]

    run(scenario)
