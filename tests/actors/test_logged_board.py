"""A board's directory: how it comes to be, what is found wrong in it, what a listing shows."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from actors import creation, listing, logged_board
from actors.creation import create_board
from actors.definition import from_record
from actors.listing import read_listing
from actors.logged_board import LoggedBoard
from actors.offline import read_events, verify
from actors.questions import Change
from persistence.errors import DamagedError, OwnershipError, StorageFullError
from persistence.event_log import LmdbEventLog
from persistence.records import EventsRecord, Record
from tests.actors.board_harness import (
    DAY_US,
    NOW_US,
    SMALL,
    define,
    event,
    on_disk,
    replayed,
    statuses,
    submit,
)

# Creation


def test_a_created_board_is_whole(tmp_path):
    """What create_board returns is what opening finds: definition, window, listing, a sound log."""
    definition = define(aggregation="sum", sources=["s"])
    created = create_board(tmp_path / "b", "b", definition, NOW_US, SMALL)
    shown = read_listing(tmp_path / "b")
    assert (shown.board, shown.created_at_us) == ("b", NOW_US)
    assert shown.definition == definition
    assert verify(tmp_path / "b").is_sound
    opened = LoggedBoard.open(tmp_path / "b", SMALL)
    assert opened.board.state_digest() == created.state_digest()
    assert list(opened.board.windows) == ["all_time"]
    opened.close()
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_boards_of_one_name_are_told_apart(tmp_path):
    """A board created again has another incarnation, and so other fingerprints and cursors."""
    boards = [
        create_board(tmp_path / name, "b", define(), NOW_US, SMALL) for name in ("one", "two")
    ]
    assert len({board.identity.incarnation for board in boards}) == 2
    assert len({board.identity.hash_key for board in boards}) == 2


def test_a_board_that_exists_is_left_alone(tmp_path):
    """Creating a board over another is refused and changes nothing of it."""
    create_board(tmp_path / "b", "b", define(), NOW_US, SMALL)
    before = (tmp_path / "b" / "board.msgpack").read_bytes()
    with pytest.raises(FileExistsError):
        create_board(tmp_path / "b", "b", define(aggregation="sum"), NOW_US, SMALL)
    assert (tmp_path / "b" / "board.msgpack").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


CREATION_STEPS: list[tuple[object, str]] = [
    (creation, "LmdbEventLog"),
    (LmdbEventLog, "append"),
    (logged_board.Board, "apply"),
    (listing, "write_value"),
    (creation, "sync_directory"),
    (Path, "rename"),
]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("owner", "step"), CREATION_STEPS, ids=lambda part: str(part)[:24])
def test_a_crash_during_creation_leaves_no_board_or_a_whole_one(
    owner, step, when, tmp_path, monkeypatch
):
    """Wherever creation is cut short, the board is whole or not there; debris has a dotted name."""
    real = getattr(owner, step)

    def crash(*arguments, **options):
        if when == "after":
            real(*arguments, **options)
        raise KeyboardInterrupt

    # A power cut cleans nothing up.
    monkeypatch.setattr(creation.shutil, "rmtree", lambda *_, **__: None)
    monkeypatch.setattr(owner, step, crash)
    with pytest.raises(KeyboardInterrupt):
        create_board(tmp_path / "b", "b", define(), NOW_US, SMALL)
    monkeypatch.undo()
    visible = [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")]
    if visible:
        assert verify(tmp_path / "b").is_sound
        LoggedBoard.open(tmp_path / "b", SMALL).close()
        return
    create_board(tmp_path / "b", "b", define(), NOW_US, SMALL)
    assert verify(tmp_path / "b").is_sound


def test_a_creation_that_fails_cleans_up(tmp_path, monkeypatch):
    """A creation refused for want of room leaves nothing behind."""

    def full(*_: object) -> None:
        raise StorageFullError("the disk is full")

    monkeypatch.setattr(LmdbEventLog, "append", full)
    with pytest.raises(StorageFullError):
        create_board(tmp_path / "b", "b", define(), NOW_US, SMALL)
    assert list(tmp_path.iterdir()) == []


# Opening


def test_a_board_has_one_owner(tmp_path):
    """A second owner in the same process is refused; the first goes on."""
    host = on_disk(tmp_path / "b")
    with pytest.raises(OwnershipError):
        logged_board.Ownership.take(tmp_path / "b", seconds_max=0.0)
    assert submit(host, event())["status"] == "applied"
    host.close()


def test_a_failed_opening_gives_the_board_back(tmp_path):
    """A board that could not be opened, its log being damaged, can be once it is repaired."""
    on_disk(tmp_path / "b").close()
    head = tmp_path / "b" / "log" / "head"
    sound = head.read_bytes()
    head.write_bytes(bytes(len(sound)))
    with pytest.raises(DamagedError):
        LoggedBoard.open(tmp_path / "b", SMALL)
    head.write_bytes(sound)
    LoggedBoard.open(tmp_path / "b", SMALL).close()


def test_a_lost_listing_is_written_again(tmp_path):
    """The copy of the definition beside the log comes back from the log."""
    on_disk(tmp_path / "b", aggregation="sum").close()
    before = read_listing(tmp_path / "b")
    (tmp_path / "b" / "board.msgpack").unlink()
    LoggedBoard.open(tmp_path / "b", SMALL).close()
    assert read_listing(tmp_path / "b") == before


def test_two_snapshots_are_kept_and_a_broken_one_is_passed_over(tmp_path):
    """The last two snapshots stay; a damaged one falls back to the other, then to a full replay."""
    host = on_disk(tmp_path / "b")
    for number in range(4):
        submit(host, event(key=f"k{number}", member=f"m{number}"))
        host.write_copy(host.copy_state())
    submit(host, event(key="tail", member="tail"))
    digest = host.board.state_digest()
    host.close()
    older, newest = sorted((tmp_path / "b" / "snapshots").iterdir())
    for damaged, expected in (([], 6), ([newest], 5), ([newest, older], 0)):
        for path in damaged:
            path.write_bytes(path.read_bytes()[:-1] + b"?")
        host = LoggedBoard.open(tmp_path / "b", SMALL)
        assert host.report.snapshot_sequence == expected
        assert len(host.report.snapshots_skipped) == len(damaged)
        assert host.board.state_digest() == digest
        host.close()


def test_a_snapshot_is_due_by_events(tmp_path):
    """A snapshot is due once as many events as declared are in none, and not while one is made."""
    host = on_disk(tmp_path / "b", msgspec.structs.replace(SMALL, snapshot_events=5))
    assert not host.snapshot_due
    statuses(host, *(event(key=f"k{number}") for number in range(5)))
    assert host.snapshot_due
    copy = host.copy_state()
    assert not host.snapshot_due
    assert not host.snapshot_current
    submit(host, event(key="meanwhile"))
    host.write_copy(copy)
    assert not host.snapshot_current
    host.close()


# Changing


def test_a_change_is_logged_once(tmp_path):
    """A PATCH that changes nothing takes no sequence; one that does survives and is listed."""
    host = on_disk(tmp_path / "b")
    same = json.dumps({"grace_seconds": 300}).encode()
    assert host.changed_definition(Change(False, NOW_US, same, False)) is None
    record = host.changed_definition(Change(False, NOW_US, b'{"sources":["s"]}', False))
    host.commit([record])
    host.apply_all([record])
    assert host.board.sequence == 3
    assert read_listing(tmp_path / "b").definition.sources == ("s",)
    host.close()
    host = LoggedBoard.open(tmp_path / "b", SMALL)
    assert host.board.definition == from_record(record.definition)
    assert submit(host, event(source="t"))["code"] == "source_not_allowed"
    host.close()


# Reading and verifying


def test_events_are_read_back_in_order(tmp_path):
    """The log gives back every accepted event once, as it was sent, with its sequence."""
    host = on_disk(tmp_path / "b", score=[{"name": "s", "decimals": 1}])
    statuses(host, event(value=1.5, source="s"), event(), event(value=-2, key="l", member="bo"))
    host.close()
    definition, events, last_sequence = read_events(tmp_path / "b")
    assert definition.decimals == (1,)
    assert last_sequence == 4
    assert [(e.sequence, e.member, e.values, e.idempotency_key, e.source) for e in events] == [
        (3, b"ada", (15,), b"k", "s"),
        (4, b"bo", (-20,), b"l", None),
    ]


def _events_record(first_sequence: int, member: bytes, key: bytes, received_at_us: int) -> Record:
    return EventsRecord(
        first_sequence=first_sequence,
        recorded_at_us=received_at_us,
        keys_per_value=1,
        previous_sequences=array("q", [0]),
        occurred_at_us=array("q", [received_at_us]),
        received_at_us=array("q", [received_at_us]),
        values=array("q", [1]),
        member_ends=array("I", [len(member)]),
        members=member,
        key_ends=array("I", [len(key)]),
        keys=key,
        sources=(),
        source_indexes=array("H", [0]),
        flags=b"\x01",
    )


def _plant(directory: Path, make: Callable[[LoggedBoard], Record]) -> list[str]:
    """Log a record that no board would, and return what the verifier then says of it."""
    host = LoggedBoard.open(directory, SMALL)
    record = make(host)
    host.commit([record])
    host.close()
    report = verify(directory)
    return [finding.what for finding in report.findings if finding.record == record.first_sequence]


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """Make a board with two events, keys k and l, in one record."""
    host = on_disk(tmp_path / "b")
    statuses(host, event(key="k"), event(member="bo", key="l"))
    host.close()
    report = verify(tmp_path / "b")
    assert report.is_sound
    assert report.state_digest == host.board.state_digest()
    return tmp_path / "b"


def test_the_verifier_finds_a_second_use_of_a_key(sound):
    """A key that counts twice within its retention is found, and named by both sequences."""
    found = _plant(sound, lambda host: _events_record(5, b"cy", b"l", NOW_US))
    assert found == ["event 5 uses the key of event 4 again"]


def test_the_verifier_finds_a_second_use_within_one_record(sound):
    """A key that one record holds twice is found."""

    def make(host: LoggedBoard) -> Record:
        ends = array("I", [1, 2])
        return EventsRecord(
            first_sequence=5,
            recorded_at_us=NOW_US,
            keys_per_value=1,
            previous_sequences=array("q", [0, 0]),
            occurred_at_us=array("q", [NOW_US] * 2),
            received_at_us=array("q", [NOW_US] * 2),
            values=array("q", [1, 1]),
            member_ends=ends,
            members=b"cd",
            key_ends=ends,
            keys=b"xx",
            sources=(),
            source_indexes=array("H", [0, 0]),
            flags=bytes(2),
        )

    assert _plant(sound, make) == ["event 6 uses the key of event 5 again"]


def test_the_verifier_allows_a_key_after_its_retention(sound):
    """A key may come again once it was forgotten."""
    host = LoggedBoard.open(sound, SMALL)
    later = NOW_US + 40 * DAY_US
    assert submit(host, event(member="cy", key="other"), later)["status"] == "applied"
    assert submit(host, event(member="cy", key="k"), later)["status"] == "applied"
    host.close()
    assert verify(sound).is_sound


def test_the_verifier_finds_a_record_of_another_board(sound, tmp_path):
    """A definition of another board in the log is found."""

    def make(host: LoggedBoard) -> Record:
        changed = host.changed_definition(Change(False, NOW_US, b'{"grace_seconds":1}', False))
        return type(changed)(**(vars(changed) | {"incarnation": "another"}))

    (found,) = _plant(sound, make)
    assert "another board" in found


def test_a_replay_of_the_log_is_the_live_board(sound):
    """The whole log makes the state that the board had when it was closed."""
    host = LoggedBoard.open(sound, SMALL)
    assert replayed(host.log).state_digest() == host.board.state_digest()
    host.close()
