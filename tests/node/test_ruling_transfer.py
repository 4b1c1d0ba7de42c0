"""Moderation in exports and imports: what is exported makes the same board again, once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest

from actors import exporting
from actors.erasing import Forgettings
from actors.errors import Refusal
from actors.exporting import read_export
from actors.keyset import hash_key_text
from actors.moderation import PSEUDONYM_START
from actors.offline import verify
from actors.questions import (
    Erase,
    Hide,
    OpenDispute,
    Remove,
    SetProfile,
    SettleDispute,
    Top,
    Verdict,
    Void,
)
from actors.rulings import REJECTED, UPHELD
from node.importing_erased import ErasedEvents
from node.importing_rulings import NO_REASON, RulingImport
from node.transfer import FileFormatError
from persistence import sealed_segments
from persistence.errors import DamagedError, RanknodeError
from persistence.files import exchange
from persistence.records import Event
from tests.actors.board_harness import DAY_US, ask
from tests.actors.clocked_board import ClockedBoard
from tests.actors.naive import seeded
from tests.actors.verdicts import erase
from tests.node.disk_boards import DiskBoards, boards_in, run_import
from tests.node.exported_boards import (
    FIRST_DAY,
    OTHER,
    SHOWN,
    exported,
    is_ruling,
    moderated,
    put_away,
    rulings_of,
    shown_audit,
    state,
)
from tests.node.fake_boards import NOW_US


@pytest.fixture
def original(tmp_path: Path) -> Iterator[ClockedBoard]:
    """Make a board on which moderators did all that they can."""
    (tmp_path / "original" / "boards").mkdir(parents=True)
    board = moderated(tmp_path / "original" / "boards")
    yield board
    board.close()


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[DiskBoards]:
    """Make the boards of another node, of which there are none yet."""
    (tmp_path / "copy").mkdir()
    with boards_in(tmp_path / "copy" / "boards") as boards:
        yield boards


def state_of(boards: DiskBoards) -> dict[str, Any]:
    """Give the state of the imported board, which must be sound in every file."""
    boards.close()
    board = ClockedBoard.existing(boards.directory, NOW_US)
    try:
        board.seal()
        board.rebuild()
        found = state(board)
    finally:
        board.close()
    assert verify(board.directory).findings == ()
    return found


def mark(boards: DiskBoards) -> tuple[int, str]:
    """Give what changes with any record."""
    board = boards.host("b").board
    return board.sequence, board.state_digest()


def test_an_export_imports_with_its_moderation(original: ClockedBoard, copies: DiskBoards) -> None:
    """Rankings, hidden members, profiles, disputes and audit come back; once more is nothing."""
    lines = exported(original)
    summary = run_import(copies, lines)
    assert (summary.rejected, summary.duplicates) == (0, 0), summary.reasons
    assert summary.rulings_applied == len(shown_audit(original))
    assert summary.rulings_applied + summary.rulings_skipped == len(rulings_of(lines))
    before = mark(copies)
    summary = run_import(copies, lines)
    assert (summary.applied, summary.rejected, summary.rulings_applied) == (0, 0, 0)
    assert summary.rulings_skipped == len(rulings_of(lines))
    assert mark(copies) == before
    assert state_of(copies) == state(original)


def told(ruling: dict[str, Any]) -> tuple[Any, ...]:
    """Give what a copy's export says of a ruling as its original's does."""
    reason = "" if ruling["reason"].startswith(NO_REASON) else ruling["reason"]
    about = (ruling.get(name) for name in ("member", "event", "profile"))
    return ruling["action"], ruling["actor"], reason, *about


def test_a_copy_exports_as_its_original(original: ClockedBoard, copies: DiskBoards) -> None:
    """An export of what was imported holds the same events, and the same rulings about them."""
    lines = exported(original)
    run_import(copies, lines)
    copies.close()
    copy = ClockedBoard.existing(copies.directory, NOW_US)
    again = exported(copy)
    copy.close()
    assert [line for line in again[:-1] if not is_ruling(line)] == [
        line for line in lines[:-1] if not is_ruling(line)
    ]
    made = [
        told(each)
        for each in rulings_of(lines)
        if each["action"] not in ("erase", "erased") and each.get("profile", {}) is not None
    ]
    assert [told(each) for each in rulings_of(again)] == made
    assert len(made) > 20


def test_an_export_imports_into_its_own_board_as_nothing_new(
    original: ClockedBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A board knows all that an export of it holds, the events of erased members as well."""
    for _ in range(2):
        lines = exported(original)
        assert sum(PSEUDONYM_START.encode() in line for line in lines) > 12
        board = original.host.board
        before = (board.sequence, board.state_digest())
        with put_away(original), boards_in(original.directory.parent) as boards:
            summary = run_import(boards, lines)
            assert (summary.applied, summary.rulings_applied, summary.rejected) == (0, 0, 0)
            assert mark(boards) == before
        original.host.erase_names(original.now_us)
    monkeypatch.setattr(ErasedEvents, "sequence_of", AsyncMock(return_value=None))
    with put_away(original), boards_in(original.directory.parent) as boards:
        assert run_import(boards, lines).applied > 0, "planted: their keys are not known again"


def test_a_ruling_is_a_line_with_the_fields_of_its_action(original: ClockedBoard) -> None:
    """Who, why, when, by which key, and what it is about: an event as its own line has it."""
    lines = exported(original)
    rulings = rulings_of(lines)
    about = {
        "void": ["event"], "hide": ["member"], "unhide": ["member"], "remove": ["member"],
        "profile": ["member", "profile"], "dispute": ["event", "dispute"],
        "uphold": ["event", "dispute"], "reject": ["event", "dispute"],
        "erase": ["member"], "erased": ["member"],
    }  # fmt: skip
    assert {each["action"] for each in rulings} == about.keys()
    for ruling in rulings:
        assert list(ruling) == ["action", "actor", "reason", "at", "key", *about[ruling["action"]]]
    events = {line.strip() for line in lines if not is_ruling(line)}
    for line in filter(is_ruling, lines):
        raw = msgspec.json.decode(line, type=dict[str, dict[str, msgspec.Raw]])["moderation"]
        assert "event" not in raw or bytes(raw["event"]) in events
    assert rulings[0] == {
        "action": "void", "actor": "mod", "reason": "why", "at": FIRST_DAY, "key": None,
        "event": {
            "member": "ada", "value": [10.5, 2], "idempotency_key": "key-0",
            "occurred_at": FIRST_DAY,
        },
    }  # fmt: skip
    opened = [each["dispute"] for each in rulings if each["action"] == "dispute"]
    settled = [each["dispute"] for each in rulings if each["action"] in ("uphold", "reject")]
    assert set(settled) < set(opened)


def test_an_export_says_that_the_log_was_written_again_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that was exchanged to erase a name is not called damaged; read again, it is whole."""
    monkeypatch.setattr(sealed_segments, "SEALED_OPEN_MAX", 4)
    board = ClockedBoard(tmp_path, FIRST_DAY, aggregation="sum")
    for number in range(8):  # segments, more of them than a reader has open at once
        board.batch(*(board.event(number, member=member) for member in ["ada", "zed"] * 20))
    erase(board, "zed")
    board.close()
    aside = tmp_path / "aside"
    shutil.copytree(board.directory, aside / "b")
    export = read_export(board.directory)
    first = next(export.items)
    assert isinstance(first, Event)
    rewritten = ClockedBoard.existing(aside, FIRST_DAY)
    rewritten.host.erase_names(rewritten.now_us)
    rewritten.close()
    exchange(aside / "b" / "log", board.directory / "log")
    with pytest.raises(RanknodeError, match="run this again") as refused:
        list(export.items)
    assert not isinstance(refused.value, DamagedError)
    items = read_export(board.directory).items
    members = {item.member for item in items if isinstance(item, Event)}
    assert len(members) == 2
    assert b"zed" not in members


def breaking(lines: list[bytes], count: int) -> Iterator[bytes]:
    """Give the first lines, and break off."""
    yield from lines[:count]
    raise FileFormatError("it breaks off")


def test_an_import_that_breaks_off_resumes(original: ClockedBoard, copies: DiskBoards) -> None:
    """Broken off behind each line in turn, and run again, an import ends as one that did not."""
    lines = exported(original)
    breaks = 0
    for count in range(1, len(lines)):
        with pytest.raises(FileFormatError, match="it breaks off"):
            run_import(copies, breaking(lines, count))
        breaks += 1
    assert breaks == len(lines) - 1 > 40
    summary = run_import(copies, lines)
    assert summary.rejected == 0, summary.reasons
    assert summary.rulings_applied <= 1, "each was made by the import that first came to it"
    assert state_of(copies) == state(original)


def test_an_import_whose_answers_get_lost_makes_nothing_twice(
    original: ClockedBoard, copies: DiskBoards
) -> None:
    """Where the answer to every change is lost once, all is as if none had been."""
    lost: list[bool] = []

    def lose() -> None:
        lost.append(len(lost) % 2 == 0)
        if lost[-1]:
            raise Refusal("outcome_unknown", "the answer is lost")

    copies.behind = lose
    summary = run_import(copies, exported(original))
    assert (summary.rejected, summary.reasons) == (0, [])
    assert sum(lost) > 40
    copies.behind = lambda: None
    assert state_of(copies) == state(original)


def test_what_earlier_imports_made_is_known_by_the_audit(
    original: ClockedBoard, copies: DiskBoards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: an import that does not read the audit removes what was earned after a removal.

    Where that would happen, the line is refused instead, and changes nothing.
    """
    lines = exported(original)
    run_import(copies, lines)
    dan = ("dan", Decimal("2.5"))
    assert dan in scores(copies)

    monkeypatch.setattr(RulingImport, "_read_audit", AsyncMock(return_value={}))
    summary = run_import(copies, lines)
    removals = [number for number, line in enumerate(lines, 1) if b'"action":"remove"' in line]
    refused = [reason for reason in summary.reasons if "remove: 'dan' has events" in reason]
    assert [reason.split(":")[0] for reason in refused] == [f"line {each}" for each in removals]
    assert len(removals) == 2
    assert dan in scores(copies)

    monkeypatch.setattr(RulingImport, "_require_none_later", AsyncMock())
    run_import(copies, lines)
    assert dan not in scores(copies)


def scores(boards: DiskBoards) -> list[tuple[str, Any]]:
    """List the imported board's members of all time, with the first key of their scores."""
    top = ask(boards.host("b"), Top(False, NOW_US, None, None, 100, None))
    return [(entry["member"], entry["score"][0]) for entry in top["entries"]]


def test_an_export_holds_no_name_that_is_still_on_disk(
    original: ClockedBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While an erasure is not finished the log holds the name, its export what it will hold."""
    names, keys = (b"yan", b"nil"), (b"key-15", b"key-16", b"key-17")
    original.host.log.seal_live()
    logged = b"".join(path.read_bytes() for path in original.directory.rglob("data.mdb"))
    assert all(name in logged for name in names + keys)
    lines = exported(original)
    text = b"".join(lines)
    assert [word for word in (*names, b"zed", *keys) if word in text] == []
    with monkeypatch.context() as planted:
        planted.setattr(exporting, "_find_names", lambda *_: Forgettings())
        assert all(name in b"".join(exported(original)) for name in names)
    hash_key = original.host.board.identity.hash_key
    assert all(hash_key_text(hash_key, key).hex().encode() in text for key in keys)
    original.host.erase_names(original.now_us)
    finished = exported(original)
    assert finished[: len(lines) - 1] == lines[:-1]
    assert [each["action"] for each in rulings_of(finished[len(lines) - 1 :])] == ["erased"] * 2


def test_a_name_that_comes_back_is_a_member_of_its_own(
    original: ClockedBoard, copies: DiskBoards
) -> None:
    """Who plays again under an erased name is exported under it, with the later events alone."""
    original.send([1, 1], member="yan", key="again")
    lines = exported(original)
    theirs = [json.loads(line) for line in lines if b'"member":"yan"' in line]
    assert [event["idempotency_key"] for event in theirs] == ["again"]
    assert run_import(copies, lines).rejected == 0
    assert state_of(copies) == state(original)


MEMBERS = ("ada", "bob", "cyd", "zed")
STEPS = 70
# Any instant of the two days before the gateway's clock.
DAYS_US = range(NOW_US - 2 * DAY_US, NOW_US, 1_000_000)


def drawn_verdict(board: ClockedBoard, rng: Random, sequences: list[int]) -> Verdict:
    """Draw what a moderator decides, in few words, so that many are alike."""
    now_us, member = board.now_us, rng.choice([*MEMBERS, "nobody"])
    by = (rng.choice(["mod", "ada"]), rng.choice(["why", "as zed says", "bob"]), None)
    sequence = rng.choice(sequences)
    open_ones = [str(each) for each in board.host.board.rulings.disputes] or ["1"]
    choices = [
        *[Void(False, now_us, *by, sequence)] * 3,
        *[Hide(False, now_us, *by, member, rng.random() < 0.6)] * 3,
        Remove(False, now_us, *by, member),
        *[SetProfile(False, now_us, "", "", None, member, rng.choice([SHOWN, OTHER]))] * 2,
        *[OpenDispute(False, now_us, *by, sequence)] * 3,
        *[SettleDispute(False, now_us, *by, rng.choice(open_ones), rng.choice([UPHELD, REJECTED]))]
        * 3,
    ]
    if rng.random() < 0.05:
        return Erase(False, now_us, *by, member)
    return rng.choice(choices)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("aggregation", ["best", "sum", "latest"])
def test_any_moderated_history_comes_back(aggregation: str, seed: int, tmp_path: Path) -> None:
    """Whatever was played and decided, in whatever order, an import ends in the same state."""
    rng = seeded(seed)
    (tmp_path / "original" / "boards").mkdir(parents=True)
    original = ClockedBoard(
        tmp_path / "original" / "boards", NOW_US, aggregation=aggregation, grace_seconds=0,
        periods=["all_time", "daily"], key_retention_days=None, mode="backfill",
    )  # fmt: skip
    sequences = [original.send(1, DAYS_US[0], member="ada")["sequence"]]
    for _ in range(STEPS):
        if rng.random() < 0.5:
            value, when = rng.randrange(-3, 9), rng.choice(DAYS_US)
            sent = original.send(value, when, member=rng.choice(MEMBERS))
            sequences.append(sent["sequence"])
        else:
            original.tried(drawn_verdict(original, rng, sequences))
        if rng.random() < 0.02:
            original.host.erase_names(original.now_us)
    original.patch(mode="live")
    original.seal()
    lines = exported(original)
    with boards_in(tmp_path / "boards") as copies:
        part = rng.randrange(1, len(lines))
        with pytest.raises(FileFormatError, match="it breaks off"):
            run_import(copies, breaking(lines, part))
        assert run_import(copies, lines).rejected == 0
        assert state_of(copies) == state(original)
    original.close()
