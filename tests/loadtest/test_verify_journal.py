"""What was acknowledged, held against the log: each fault that is planted is found and named."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from actors.forgetting import join
from loadtest.filled_boards import create, default_options
from loadtest.generator_notes import Acknowledged
from loadtest.verify_journal import Cup, Findings, verify_board, verify_journals
from persistence.records import EventsRecord, Record, WindowClosedRecord

ENDS_US = 1_000
CLOSED_AT = 6
BOARD = "steady-run-0"


class Sent(NamedTuple):
    """An event of the log."""

    key: str
    member: str = "ada"
    value: int = 5
    occurred_at_us: int = 10
    received_at_us: int = 10


def record(first_sequence: int, *sent: Sent) -> EventsRecord:
    member_ends, members = join([each.member.encode() for each in sent])
    key_ends, keys = join([each.key.encode() for each in sent])
    return EventsRecord(
        first_sequence=first_sequence,
        recorded_at_us=10,
        keys_per_value=1,
        previous_sequences=array("Q", [0] * len(sent)),
        occurred_at_us=array("q", [each.occurred_at_us for each in sent]),
        received_at_us=array("q", [each.received_at_us for each in sent]),
        values=array("q", [each.value for each in sent]),
        member_ends=member_ends,
        key_ends=key_ends,
        source_indexes=array("H", [0] * len(sent)),
        flags=bytes(len(sent)),
        members=members,
        keys=keys,
        sources=(),
    )


def told(sent: Sent, sequence: int, *windows: str, duplicate: bool = False) -> Acknowledged:
    return Acknowledged(BOARD, sent.key, sent.member, sent.value, sequence, duplicate, windows)


def found(
    records: Iterable[Record],
    journal: Iterable[Acknowledged],
    seeds: int = 0,
    cup: Cup | None = None,
) -> Findings:
    by_key: dict[str, list[Acknowledged]] = {}
    for each in journal:
        by_key.setdefault(each.key, []).append(each)
    findings = Findings()
    verify_board(records, by_key, seeds, cup, findings)
    return findings


ONE, TWO = Sent("event-1"), Sent("event-2", "bob", 7)
LOG = [record(3, Sent("seed-1"), Sent("seed-2")), record(5, ONE), record(6, TWO)]
JOURNAL = [told(ONE, 5), told(TWO, 6)]


def test_what_was_acknowledged_and_is_there_once_is_in_order() -> None:
    """Nothing is found where the log holds what was sent; what nobody acknowledged may be there."""
    findings = found([*LOG, record(7, Sent("event-3"))], JOURNAL, 2)
    assert findings == Findings(acknowledged=2)


def test_a_lost_event_is_found() -> None:
    """An acknowledged event that is not in the log is lost, by its key."""
    findings = found(LOG[:2], JOURNAL, 2)
    assert findings.lost == ["event-2: not in the log as 6"]
    assert findings.doubled == []


def test_an_event_in_another_place_or_changed_is_lost() -> None:
    """An event must be at the sequence that was answered, with its member and its value."""
    for altered in (
        told(ONE, 4),
        told(ONE._replace(member="eve"), 5),
        told(ONE._replace(value=6), 5),
    ):
        assert found(LOG, [altered, JOURNAL[1]], 2).lost == [
            f"event-1: not in the log as {altered.sequence}"
        ]


def test_a_lost_seed_is_found() -> None:
    """What was acknowledged before the run must be there as well."""
    assert found(LOG[1:], JOURNAL, 2).lost == ["2 of 2 events before the run"]


def test_a_doubled_event_is_found() -> None:
    """A key that is in the log twice is doubled, acknowledged or not."""
    assert found([*LOG, record(7, ONE)], JOURNAL, 2).doubled == ["event-1: in the log as 7 as well"]
    assert found([*LOG, record(7, ONE)], [], 2).doubled == ["event-1: in the log as 7 as well"]


def test_an_event_that_was_applied_twice_is_doubled() -> None:
    """Of all answers to one key, one says that it was applied; the others name its sequence."""
    storm = [told(ONE, 5, duplicate=True), told(ONE, 5), told(ONE, 5, duplicate=True)]
    assert found(LOG, [*storm, JOURNAL[1]], 2) == Findings(acknowledged=2)
    assert found(LOG, [*storm, told(ONE, 5)], 2).doubled == ["event-1: applied more than once"]
    assert found(LOG, [*storm, told(ONE, 4, duplicate=True)], 2).lost == [
        "event-1: not in the log as 4"
    ]


BEFORE = Sent("event-1")
LATE = Sent("event-2", "ada", 7, ENDS_US - 1, ENDS_US)
CLOSED = WindowClosedRecord(
    first_sequence=CLOSED_AT, recorded_at_us=10, window="cup", members=1, digest=bytes(16)
)
TOO_LATE = Sent("event-3", "ada", 1, ENDS_US - 1, ENDS_US + 9)
AFTER = Sent("event-4", "bob", 1, ENDS_US, ENDS_US)
CUP_LOG = [record(4, BEFORE), record(5, LATE), CLOSED, record(7, TOO_LATE, AFTER)]
CUP_JOURNAL = [
    told(BEFORE, 4, "all_time", "cup"),
    told(LATE, 5, "all_time", "cup"),
    told(TOO_LATE, 7, "all_time"),
    told(AFTER, 8, "all_time"),
]
CUP = Cup(ENDS_US, {"ada": 12})


def test_events_around_the_cups_end_count_where_they_belong() -> None:
    """In time and before the closing is in the cup; each side of the end is counted."""
    findings = found(CUP_LOG, CUP_JOURNAL, cup=CUP)
    assert findings.misplaced == []
    assert findings.sides == {"before": 1, "late": 1, "after": 2}


def test_a_misplaced_event_is_found() -> None:
    """An answer that names the cup must be right, and so must one that does not."""
    wrong = [told(BEFORE, 4, "all_time"), CUP_JOURNAL[1], told(TOO_LATE, 7, "all_time", "cup")]
    assert found(CUP_LOG, wrong, cup=CUP).misplaced == [
        "event-1: counted in all_time",
        "event-3: counted in all_time, cup",
    ]


def test_a_closed_cup_with_other_scores_is_found() -> None:
    """The closed cup holds the scores of the events that belong to it, and no one else's."""
    for scores, named in (
        ({"ada": 11}, "ada: 11 in the cup, 12 by the log"),
        ({}, "ada: 0 in the cup, 12 by the log"),
        ({"ada": 12, "bob": 1}, "bob: 1 in the cup, 0 by the log"),
    ):
        assert found(CUP_LOG, CUP_JOURNAL, cup=Cup(ENDS_US, scores)).misplaced == [named]


def test_a_cup_that_was_never_closed_is_found() -> None:
    """A closing that the log does not hold is none."""
    (named,) = found([*CUP_LOG[:2], CUP_LOG[3]], CUP_JOURNAL, cup=CUP).misplaced
    assert "does not say" in named


def test_the_logs_of_all_boards_are_read(tmp_path: Path) -> None:
    """Each event is looked for on its own board, on disk; one of a foreign board is lost."""
    (tmp_path / "boards").mkdir()
    for name in ("one", "two"):
        host = create(tmp_path / "boards" / name, default_options())
        host.commit([record(host.board.sequence + 1, Sent("seed-1"), Sent(f"event-{name}"))])
        host.close()
    journal = [
        Acknowledged(name, f"event-{name}", "ada", 5, 4, False, ()) for name in ("one", "two")
    ]
    boards = {"one": 1, "two": 1}
    assert verify_journals(tmp_path, boards, journal, None) == Findings(acknowledged=2)
    foreign = [each for each in journal if each.board == "one"]
    foreign.append(Acknowledged("one", "event-two", "ada", 5, 4, False, ()))
    foreign.append(Acknowledged("three", "event-3", "ada", 5, 4, False, ()))
    assert verify_journals(tmp_path, boards, foreign, None).lost == [
        "three: no board of the run",
        "event-two: not in the log as 4",
    ]
