"""Lines of moderation in files: what is refused of them, and that nothing worse comes of any."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.answers import Action
from node.client import NodeError
from node.transfer import BadRow, RulingRow, read_ndjson
from tests.node.disk_boards import DiskBoards, audit, boards_in, run_import
from tests.node.fake_boards import KeyedBoards

HEADER = b'{"definition":{"aggregation":"sum"}}'
EVENT = {
    "member": "a/b",
    "value": 3,
    "idempotency_key": "k",
    "occurred_at": "2025-11-29T00:00:00Z",
}
BY = {"actor": "mod", "reason": "why"}
ABOUT_EVENT = BY | {"event": EVENT}
ABOUT_MEMBER = BY | {"member": "a/b"}


def line(ruling: Any) -> bytes:
    return json.dumps({"moderation": ruling}).encode()


def event_line(**fields: Any) -> bytes:
    return json.dumps(EVENT | fields).encode()


@pytest.fixture
def boards(tmp_path: Path) -> Iterator[DiskBoards]:
    """Make boards among which "b" has one event."""
    with boards_in(tmp_path / "boards") as made:
        run_import(made, [HEADER, event_line()])
        yield made


def mark(boards: DiskBoards) -> tuple[int, str]:
    board = boards.host("b").board
    return board.sequence, board.state_digest()


REFUSED = {
    "no object": 7,
    "null": None,
    "no action": BY,
    "unknown action": ABOUT_MEMBER | {"action": "ban"},
    "unknown field": ABOUT_MEMBER | {"action": "hide", "color": "red"},
    "no actor": {"action": "hide", "reason": "why", "member": "ada"},
    "actor no text": ABOUT_MEMBER | {"action": "hide", "actor": 7},
    "actor empty": ABOUT_MEMBER | {"action": "hide", "actor": ""},
    "actor too long": ABOUT_MEMBER | {"action": "hide", "actor": "é" * 65},
    "reason too long": ABOUT_MEMBER | {"action": "hide", "reason": "x" * 1001},
    "no member": BY | {"action": "hide"},
    "member empty": BY | {"action": "remove", "member": ""},
    "member a dot": BY | {"action": "remove", "member": "."},
    "member two dots": BY | {"action": "remove", "member": ".."},
    "member a path": BY | {"action": "remove", "member": "../../b"},
    "member unknown": BY | {"action": "remove", "member": "nobody"},
    "member not composed": BY | {"action": "hide", "member": "e\u0301"},
    "event of a member's": ABOUT_EVENT | {"action": "hide"},
    "member of an event's": ABOUT_EVENT | {"action": "void", "member": "ada"},
    "no event": BY | {"action": "void"},
    "event no object": BY | {"action": "void", "event": [EVENT]},
    "event of another content": ABOUT_EVENT | {"action": "void", "event": EVENT | {"value": 4}},
    "event without a key": BY | {"action": "void", "event": {"member": "a", "value": 1}},
    "event deeply nested": BY
    | {"action": "void", "event": {"member": json.loads("[" * 400 + "]" * 400)}},
    "profile no object": BY | {"action": "profile", "member": "ada", "profile": [1]},
    "profile of other fields": BY | {"action": "profile", "member": "ada", "profile": {"a": 1}},
    "profile too large": BY
    | {"action": "profile", "member": "ada", "profile": {"display_name": "x" * 1100}},
    "dispute without id": ABOUT_EVENT | {"action": "dispute"},
    "settled, never opened": ABOUT_EVENT | {"action": "uphold", "dispute": "9"},
    "settled by number": ABOUT_EVENT | {"action": "uphold", "dispute": 9},
    "erased nobody": BY | {"action": "erase"},
}


@pytest.mark.parametrize("ruling", REFUSED.values(), ids=REFUSED)
def test_a_bad_line_of_moderation_is_refused_by_its_number(boards: DiskBoards, ruling: Any) -> None:
    """It is counted and named, changes nothing, and keeps no other line from its effect."""
    before = mark(boards)
    summary = run_import(boards, [HEADER, event_line(), line(ruling)])
    assert (summary.rejected, summary.rulings_applied, summary.rulings_skipped) == (1, 0, 0)
    assert summary.reasons[0].startswith("line 3: ")
    assert mark(boards) == before
    assert all(call[0] in ("create", "ask", "submit") for call in boards.calls), "none is deleted"
    good = line(ABOUT_MEMBER | {"action": "hide"})
    summary = run_import(boards, [HEADER, line(ruling), good, event_line(idempotency_key="k2")])
    assert (summary.rejected, summary.rulings_applied, summary.applied) == (1, 1, 1)
    assert [item.action for item in audit(boards.host("b"))] == ["hide"]


def test_a_line_of_moderation_holds_nothing_else() -> None:
    """A line that is an event as well is neither."""
    both = json.dumps(EVENT | {"moderation": ABOUT_MEMBER | {"action": "hide"}}).encode()
    (row,) = read_ndjson([both])
    assert isinstance(row, BadRow)
    assert "nothing else" in row.reason


def test_an_event_of_a_ruling_keeps_its_exact_text() -> None:
    """What stands under "event" goes into the request byte by byte, never through a float."""
    event = b'{"member":"a","value":0.10000000000000000001,"idempotency_key":"k"}'
    written = b'{"moderation":{"action":"void","actor":"m","reason":"r","event":%s}}' % event
    (row,) = read_ndjson([written])
    assert isinstance(row, RulingRow)
    assert isinstance(row.ruling.event, msgspec.Raw)
    assert bytes(row.ruling.event) == event


def test_a_ruling_counts_the_event_that_it_brings(boards: DiskBoards) -> None:
    """A ruling about an event that the board lacks brings it along, which is counted."""
    brought = EVENT | {"idempotency_key": "new", "member": "ada"}
    summary = run_import(boards, [line(BY | {"action": "void", "event": brought})])
    assert (summary.applied, summary.rulings_applied, summary.rejected) == (1, 1, 0)
    board = boards.host("b").board
    assert list(board.rulings.voided) == [board.sequence - 1]


def test_what_other_moderators_did_stays(boards: DiskBoards) -> None:
    """A ruling of a file is its own: one of other words in the audit does not stand for it."""
    first = line(ABOUT_EVENT | {"action": "dispute", "dispute": "1"})
    second = line(ABOUT_EVENT | {"action": "dispute", "dispute": "1", "reason": "another"})
    assert run_import(boards, [event_line(), first]).rulings_applied == 1
    assert run_import(boards, [event_line(), second]).rulings_applied == 1
    assert [item.reason for item in audit(boards.host("b"))] == ["another", "why"]


def test_a_file_of_events_alone_asks_for_no_audit() -> None:
    """A key that may submit events, and no more, is enough for a file without rulings."""
    keyed = KeyedBoards()
    keyed.has("b")
    run_import(keyed, [event_line()])
    assert [call[0] for call in keyed.calls] == ["submit"]


def test_a_ruling_for_a_board_that_is_gone_ends_the_import(boards: DiskBoards) -> None:
    """What concerns every line is not counted as a fault of one."""
    with pytest.raises(NodeError, match="board_not_found"):
        run_import(boards, [line(ABOUT_MEMBER | {"action": "hide"})], board="gone")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3)
    ),
    max_leaves=6,
)
TEXTS = st.sampled_from(["", "ada", "..", "a/b", "1", "\ud800", "é\x00", "x" * 200]) | st.text(
    max_size=9
)
FIELDS = {
    "action": st.sampled_from(get_args(Action)) | JSON,
    "actor": TEXTS | JSON,
    "reason": TEXTS | JSON,
    "at": TEXTS | JSON,
    "key": TEXTS | JSON,
    "member": TEXTS | JSON,
    "event": st.just(EVENT) | JSON,
    "dispute": TEXTS | JSON,
    "profile": st.just({}) | JSON,
}
GOOD = st.sampled_from([
    *(ABOUT_MEMBER | {"action": action} for action in ("hide", "unhide", "remove", "erase")),
    *(ABOUT_EVENT | {"action": action, "dispute": "1"} for action in ("dispute", "uphold")),
    ABOUT_EVENT | {"action": "void"},
    ABOUT_MEMBER | {"action": "profile", "profile": {"display_name": "Ada"}},
])  # fmt: skip
CHANGES = st.fixed_dictionaries({}, optional=FIELDS)
RULINGS = st.builds(operator.or_, GOOD, st.just({}) | CHANGES) | CHANGES | JSON


@pytest.fixture(scope="module")
def worn_boards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DiskBoards]:
    """Make boards whose "b" takes whatever comes of many lines."""
    with boards_in(tmp_path_factory.mktemp("worn") / "boards") as made:
        run_import(made, [HEADER, event_line()])
        yield made


@settings(max_examples=150, deadline=None)
@given(rulings=st.lists(RULINGS, min_size=1, max_size=6))
def test_every_line_of_moderation_is_taken_or_refused(
    worn_boards: DiskBoards, rulings: list[Any]
) -> None:
    """Whatever stands under "moderation", each line is counted once, and nothing is raised."""
    lines = [line(ruling) for ruling in rulings]
    summary = run_import(worn_boards, lines)
    counted = summary.rejected + summary.rulings_applied + summary.rulings_skipped
    assert counted == len(lines)
    assert (worn_boards.directory / "b").is_dir()
