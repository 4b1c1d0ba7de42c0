from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from rich.console import Console

from actors.errors import Refusal
from node.client import ATTEMPTS_MAX, Client, NodeError, board_path
from node.importing import REASONS_MAX, Summary, import_events
from node.samples import SAMPLES, load_samples, sample_lines
from node.transfer import read_ndjson
from tests.node.fake_boards import FakeBoards, KeyedBoards, serving

HEADER = b'{"board":"other","definition":{"aggregation":"sum","mode":"live","min_value":0.10}}'


def event(number: int, value: object = 1) -> bytes:
    return json.dumps({"member": "a", "value": value, "idempotency_key": f"k{number}"}).encode()


class Pauses:
    """Waits for nothing and remembers for how long it should have waited."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def run_import(
    boards: KeyedBoards, lines: list[bytes], batch: int = 2, pauses: Pauses | None = None
) -> Summary:
    async def run() -> Summary:
        async with serving(boards) as gateway, Client(gateway.url, pauses or Pauses()) as client:
            return await import_events(
                client,
                "b",
                read_ndjson(lines),
                batch_events_max=batch,
                on_batch=lambda: None,
            )

    return asyncio.run(run())


def made() -> KeyedBoards:
    """Make boards that have the board "b" already."""
    boards = KeyedBoards()
    boards.definitions["b"] = b"{}"
    return boards


def test_an_import_sends_every_event_in_order() -> None:
    """All events arrive, in the file's order, in batches of at most the size asked for."""
    boards = made()
    summary = run_import(boards, [event(number) for number in range(5)])
    assert (summary.applied, summary.duplicates, summary.rejected) == (5, 0, 0)
    assert list(boards.events["b"]) == ["k0", "k1", "k2", "k3", "k4"]
    assert len(boards.calls) == 3


def test_an_import_run_again_counts_nothing_twice() -> None:
    """What arrived before a break is a duplicate when the import is run again."""
    boards = made()
    lines = [event(number) for number in range(4)]
    run_import(boards, lines[:3])
    summary = run_import(boards, lines)
    assert (summary.applied, summary.duplicates, summary.rejected) == (1, 3, 0)


def test_rejected_lines_are_counted_and_named() -> None:
    """A rejected event and a line that is none are reported by line; the others count."""
    lines = [event(0), event(1, 5_000_000), b"nonsense", event(3)]
    summary = run_import(made(), lines)
    assert (summary.applied, summary.rejected) == (2, 2)
    assert sorted(reason[:7] for reason in summary.reasons) == ["line 2:", "line 3:"]
    assert any("value_not_allowed" in reason for reason in summary.reasons)


def test_only_the_first_reasons_are_kept() -> None:
    """However many lines are rejected, the report stays short and the count exact."""
    summary = run_import(made(), [event(number, 5_000_000) for number in range(50)])
    assert summary.rejected == 50
    assert len(summary.reasons) == REASONS_MAX


def test_an_event_that_spoils_its_batch_is_found() -> None:
    """A batch that is refused as a whole is halved until only the culprit is left out."""
    boards = made()
    take = boards.take

    def choosy(board: str, given: dict[str, Any]) -> dict[str, Any]:
        if given["member"] == "spoiler":
            raise Refusal("malformed_body", "unreadable")
        return take(board, given)

    boards.take = choosy  # type: ignore[method-assign]
    lines = [event(number) for number in range(7)]
    lines[4] = lines[4].replace(b'"a"', b'"spoiler"')
    summary = run_import(boards, lines, batch=7)
    assert (summary.applied + summary.duplicates, summary.rejected) == (6, 1)
    assert summary.reasons == ["line 5: malformed_body: unreadable"]
    assert len(boards.events["b"]) == 6


def test_a_header_creates_the_board_in_backfill_and_sets_it_live() -> None:
    """History is imported in backfill mode; at the end the board is as its definition says."""
    boards = KeyedBoards()
    summary = run_import(boards, [HEADER, event(1)])
    assert summary.applied == 1
    created = msgspec.json.decode(boards.definitions["b"])
    assert created == {
        "aggregation": "sum", "mode": "backfill",
        "min_value": None, "max_value": None, "sources": None,
    }  # fmt: skip
    assert boards.changes == [b'{"mode":"live","min_value":0.10}']


def test_a_board_that_is_there_keeps_its_definition() -> None:
    """A header never changes a board: the import goes on and says so."""
    boards = made()
    summary = run_import(boards, [HEADER, event(1)])
    assert summary.applied == 1
    assert len(summary.notes) == 1
    assert boards.definitions == {"b": b"{}"}
    assert boards.changes == []


def failing(times: int, fail: Callable[[], None]) -> Callable[[], None]:
    remaining = [times]

    def behave() -> None:
        if remaining[0]:
            remaining[0] -= 1
            fail()

    return behave


@pytest.mark.parametrize("code", ["overloaded", "rate_limited", "outcome_unknown"])
def test_a_busy_node_is_asked_again(code: str) -> None:
    """503, 429 and 504 are tried again with growing pauses, with the same keys."""

    def fail() -> None:
        raise Refusal(code, "busy", retry_after_seconds=1)

    boards, pauses = made(), Pauses()
    boards.behave = failing(3, fail)
    summary = run_import(boards, [event(1)], pauses=pauses)
    assert summary.applied == 1
    assert len(boards.calls) == 4
    assert pauses.seconds == sorted(pauses.seconds)
    if code != "outcome_unknown":
        assert pauses.seconds[0] >= 1


def test_a_node_that_stays_busy_ends_the_import() -> None:
    """The attempts are bounded; what the node said last is the error."""

    def fail() -> None:
        raise Refusal("overloaded", "too much")

    boards, pauses = made(), Pauses()
    boards.behave = failing(1000, fail)
    with pytest.raises(NodeError, match="overloaded: too much"):
        run_import(boards, [event(1)], pauses=pauses)
    assert len(boards.calls) == ATTEMPTS_MAX
    assert len(pauses.seconds) == ATTEMPTS_MAX - 1


def test_an_unreachable_node_is_an_error_with_its_address() -> None:
    """A connection that nobody takes is tried again, then reported with the address."""

    async def run() -> None:
        async with serving(FakeBoards()) as gateway:
            url = gateway.url
        async with Client(url, pauses) as client:
            with pytest.raises(NodeError, match=url):
                await client.request("GET", "/healthz")

    pauses = Pauses()
    asyncio.run(run())
    assert len(pauses.seconds) == ATTEMPTS_MAX - 1


def test_a_refusal_is_not_tried_again() -> None:
    """A request that can never succeed is sent once."""
    boards, pauses = KeyedBoards(), Pauses()
    with pytest.raises(NodeError, match="board_not_found"):
        run_import(boards, [event(1)], pauses=pauses)
    assert pauses.seconds == []
    assert len(boards.calls) == 1


def test_a_path_carries_any_member() -> None:
    """Slashes, percent signs and dots in a member are encoded."""
    assert board_path("b", "members", "a/b%") == "/v1/boards/b/members/a%2Fb%25"


def test_the_samples_are_loaded_once() -> None:
    """A first load sends every line of both boards; a second sends nothing and shows them."""

    async def run() -> tuple[int, int]:
        async with serving(boards) as gateway:
            await load_samples(gateway.url, console)
            first = len(boards.calls)
            await load_samples(gateway.url, console)
            return first, len(boards.calls) - first

    boards, console = KeyedBoards(), Console(file=io.StringIO(), width=200)
    first, second = asyncio.run(run())
    assert set(boards.definitions) == {sample.board for sample in SAMPLES}
    for sample in SAMPLES:
        assert len(boards.events[sample.board]) == len(sample_lines(sample))
    assert first > 10
    submits = [call for call in boards.calls[first:] if call[0] == "submit"]
    assert submits == []
    assert second == 6
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count("curl '") == 6
    assert "a[b]" in shown
