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
from actors.questions import Top
from node.client import ATTEMPTS_MAX, Client, NodeError, board_path
from node.importing import REASONS_MAX, Summary, import_events
from node.samples import SAMPLES, load_samples, sample_lines
from node.transfer import read_ndjson
from persistence.errors import RanknodeError
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
    boards: KeyedBoards,
    lines: list[bytes],
    batch: int = 2,
    *,
    pauses: Pauses | None = None,
    backfill: bool = False,
    summary: Summary | None = None,
) -> Summary:
    summary = summary or Summary()

    async def run() -> None:
        async with serving(boards) as gateway, Client(gateway.url, pauses or Pauses()) as client:
            await import_events(
                client,
                "b",
                read_ndjson(lines),
                summary,
                backfill=backfill,
                batch_events_max=batch,
                on_batch=lambda: None,
            )

    asyncio.run(run())
    return summary


def made() -> KeyedBoards:
    """Make boards that have the board "b" already."""
    boards = KeyedBoards()
    boards.has("b")
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


def test_a_board_that_stays_in_backfill_is_noted() -> None:
    """An import into a board that is in backfill mode, as after a repair, says how that ends."""
    boards = made()
    boards.current["b"]["mode"] = "backfill"
    for _ in range(2):
        summary = run_import(boards, [HEADER, event(1)])
        assert "b is in backfill mode" in summary.notes[-1]
        assert "--backfill" in summary.notes[-1]
    assert boards.changes == []
    assert len(run_import(boards, [HEADER, event(1)], backfill=True).notes) == 1
    assert boards.current["b"]["mode"] == "live"
    assert len(run_import(boards, [HEADER, event(1)]).notes) == 1


LIVE, BACKFILL = b'{"mode":"live"}', b'{"mode":"backfill"}'


def kinds(boards: KeyedBoards) -> list[str]:
    """Name what was sent to the boards, in order: created, changed, described or submitted."""
    return [call[0] for call in boards.calls]


def test_a_backfill_makes_the_round_trip() -> None:
    """A board that is there is in backfill mode for all events, and live again after the last."""
    boards, modes = made(), []
    take = boards.take

    def watched(board: str, given: dict[str, Any]) -> dict[str, Any]:
        modes.append(boards.current["b"]["mode"])
        return take(board, given)

    boards.take = watched  # type: ignore[method-assign]
    summary = run_import(boards, [event(number) for number in range(5)], backfill=True)
    assert (summary.applied, summary.unfinished) == (5, {})
    assert modes == ["backfill"] * 5
    assert boards.changes == [BACKFILL, LIVE]


def test_a_backfill_with_a_header_is_one_round_trip() -> None:
    """A board that the header creates is in backfill mode already, and ends as the header says."""
    boards = KeyedBoards()
    run_import(boards, [HEADER, event(1)], backfill=True)
    assert boards.changes == [b'{"mode":"live","min_value":0.10}']


@pytest.mark.parametrize("backfill", [False, True])
def test_a_file_that_was_cut_leaves_the_end_to_another_import(backfill: bool) -> None:
    """Nothing closes while lines are missing: what closes without them would stay closed."""
    boards = KeyedBoards()
    lines = [HEADER, event(1), event(2)]
    cut = run_import(boards, [*lines[:-1], lines[-1][:-9]], backfill=backfill)
    assert (cut.applied, cut.rejected, cut.unreadable) == (1, 1, 1)
    assert "b stays in backfill mode" in cut.notes[-1]
    assert cut.unfinished
    assert boards.changes == []
    whole = run_import(boards, lines, backfill=backfill)
    assert (whole.applied, whole.duplicates, whole.unfinished) == (1, 1, {})
    assert boards.changes == [b'{"mode":"live","min_value":0.10}']


def test_a_backfill_into_a_board_of_its_own_definition() -> None:
    """A header does not change a board that is there, and its history goes in all the same."""
    boards = made()
    summary = run_import(boards, [HEADER, event(1)], backfill=True)
    assert (summary.applied, len(summary.notes)) == (1, 1)
    assert boards.changes == [BACKFILL, LIVE]


def test_a_backfill_of_no_board_sends_nothing() -> None:
    """A board that is not there, in a file without a header, is refused before any event."""
    boards, summary = KeyedBoards(), Summary()
    with pytest.raises(NodeError, match="board_not_found"):
        run_import(boards, [event(1)], backfill=True, summary=summary)
    assert kinds(boards) == ["ask"]
    assert summary.unfinished == {}


@pytest.mark.parametrize(
    ("first", "unfinished"),
    [(HEADER, {"mode", "min_value"}), (event(0), {"mode"})],
    ids=["header", "board"],
)
def test_a_broken_backfill_stays_open_and_resumes(first: bytes, unfinished: set[str]) -> None:
    """After a break nothing has closed; run again, the rest counts and the board goes live."""

    def fail() -> None:
        if len(boards.events["b"]) >= 4:
            raise Refusal("storage_full", "no room")

    boards, summary = KeyedBoards(), Summary()
    if first is not HEADER:
        boards.has("b")
    lines = [first, *(event(number) for number in range(1, 7))]
    boards.behave = fail
    with pytest.raises(NodeError, match="storage_full"):
        run_import(boards, lines, backfill=True, summary=summary)
    assert set(summary.unfinished) == unfinished
    assert boards.current["b"]["mode"] == "backfill"
    boards.behave = lambda: None
    summary = run_import(boards, lines, backfill=True)
    assert summary.applied + summary.duplicates == len(boards.events["b"])
    assert (summary.duplicates, summary.unfinished) == (4, {})
    assert boards.current["b"]["mode"] == "live"


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


def load(boards: KeyedBoards, times: int = 1) -> str:
    """Load the samples into a node, and return what was shown."""
    shown = io.StringIO()

    async def run() -> None:
        async with serving(boards) as gateway:
            for _ in range(times):
                await load_samples(gateway.url, Console(file=shown, width=200))

    asyncio.run(run())
    return shown.getvalue()


def test_the_samples_are_loaded_once() -> None:
    """A first load sends every line of both boards and closes them; a second only shows them."""
    boards = KeyedBoards()
    load(boards)
    assert set(boards.definitions) == {sample.board for sample in SAMPLES}
    for sample in SAMPLES:
        assert len(boards.events[sample.board]) == len(sample_lines(sample))
        assert boards.current[sample.board] == sample.definition | {
            "mode": "live", "min_value": None, "max_value": None, "sources": None,
        }  # fmt: skip
    assert boards.changes == [LIVE] * len(SAMPLES)
    first = len(boards.calls)
    load(boards)
    assert set(kinds(boards)[first:]) == {"ask"}


def test_a_load_that_broke_off_is_resumed() -> None:
    """A board that was left in backfill mode gets its rest, and goes live, at the next start."""
    boards = KeyedBoards()
    load(boards)
    points = SAMPLES[0].board
    for number, key in enumerate(list(boards.events[points])):
        if number % 3:
            del boards.events[points][key]
    boards.current[points]["mode"] = "backfill"
    load(boards)
    assert len(boards.events[points]) == len(sample_lines(SAMPLES[0]))
    assert boards.current[points]["mode"] == "live"


def test_another_board_of_a_samples_name_is_left_alone() -> None:
    """A board with other periods gets no samples; the error names it."""
    boards = KeyedBoards()
    boards.has("f1-points")
    boards.current["f1-points"]["periods"] = ["all_time"]
    with pytest.raises(RanknodeError, match="f1-points"):
        load(boards)
    assert kinds(boards) == ["ask"]


def test_the_samples_show_a_season_beside_all_time() -> None:
    """The tops of the last season and of all time are shown, and three calls about seasons."""
    boards = KeyedBoards()
    shown = load(boards)
    periods = [call[2].period for call in boards.calls if isinstance(call[-1], Top)]
    assert periods == ["yearly:2018-01-01", "all_time", "all_time"]
    (titles,) = [line for line in shown.splitlines() if "points of 2018" in line]
    assert "points since 2010" in titles
    assert "a[b]" in shown
    calls = [line for line in shown.splitlines() if "curl '" in line]
    assert len(calls) == 3
    assert sum("period=yearly:2018-01-01" in line for line in calls) == 2
    assert sum("/periods?kind=yearly" in line for line in calls) == 1
