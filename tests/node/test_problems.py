from __future__ import annotations

import asyncio
import logging

import pytest

from actors.errors import Refusal
from node import problems
from tests.node.fake_boards import FakeBoards, ask_once, call, check_problem, serving


@pytest.mark.parametrize("code", sorted(problems.TABLE))
def test_every_refusal_becomes_its_problem(code: str) -> None:
    """Each code of the contract has its status; fields that help come along."""

    def refuse() -> None:
        raise Refusal(code, "because", field="value", sequence=17)

    boards = FakeBoards()
    boards.behave = refuse
    answer, _ = ask_once("POST", "/v1/boards/b/events", b"{}", boards=boards)
    problem = check_problem(answer, problems.TABLE[code][0], code)
    assert problem["detail"] == "because"
    assert problem["field"] == "value"
    assert problem["sequence"] == 17


def test_a_refusal_may_say_when_to_come_back() -> None:
    """Retry-After is the refusal's own time where it has one."""

    def refuse() -> None:
        raise Refusal("overloaded", "full", retry_after_seconds=7)

    boards = FakeBoards()
    boards.behave = refuse
    answer, _ = ask_once("GET", "/v1/boards/b/top", boards=boards)
    check_problem(answer, 503, "overloaded")
    assert answer.headers["retry-after"] == "7"


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "code"),
    [
        ("GET", "/v1/boards/b/top", None, 503, "board_unavailable"),
        ("POST", "/v1/boards/b/events", b"{}", 504, "outcome_unknown"),
        ("PUT", "/v1/boards/b", b"{}", 504, "outcome_unknown"),
        ("DELETE", "/v1/boards/b", None, 504, "outcome_unknown"),
    ],
)
def test_a_passed_deadline_tells_reads_from_writes(
    method: str, target: str, body: bytes | None, status: int, code: str
) -> None:
    """A read may simply be asked again; of a write the outcome is unknown."""
    boards = FakeBoards()
    boards.behave = lambda: asyncio.sleep(60)
    settings = {"request_seconds_max": 0.05, "min_sequence_wait_seconds": 0.01}
    answer, _ = ask_once(method, target, body, boards=boards, settings=settings)
    check_problem(answer, status, code)


@pytest.mark.parametrize("error", [ValueError("secret"), Refusal("no_such_code", "secret")])
def test_an_unforeseen_error_shows_nothing(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """What nobody foresaw is 500 without internals, and logged once with the request's id."""

    def fail() -> None:
        raise error

    boards = FakeBoards()
    boards.behave = fail
    with caplog.at_level(logging.WARNING):
        answer, _ = ask_once("GET", "/v1/boards/b/top", boards=boards, X_Request_Id="mine")
    check_problem(answer, 500, "internal_error")
    assert b"secret" not in answer.body
    assert len(caplog.records) == 1
    assert "mine" in caplog.records[0].getMessage()


@pytest.mark.parametrize(
    ("sent", "kept"),
    [("abc-1", True), ("with a space", True), ("x" * 128, True), ("x" * 129, False),
     ("\x7f", False), ("é", False)],
)  # fmt: skip
def test_every_answer_carries_a_request_id(sent: str, kept: bool) -> None:
    """The caller's id comes back if it is short printable ASCII, else a new one is made."""
    for target in ("/v1/boards/b/top", "/nothing"):
        answer, _ = ask_once("GET", target, X_Request_Id=sent)
        assert (answer.headers["x-request-id"] == sent) is kept
        assert answer.headers["x-request-id"]


def test_new_request_ids_differ() -> None:
    """Two requests without an id get two ids."""

    async def run() -> set[str]:
        async with serving(FakeBoards()) as gateway:
            answers = [await call(gateway.port, "GET", "/healthz") for _ in range(3)]
            return {answer.headers["x-request-id"] for answer in answers}

    assert len(asyncio.run(run())) == 3
