"""Whether everything that the workload's journal promises is there, once, and adds up.

The check opens the boards anew, as their owner, and compares them with the journal, with a naive
model of the events in the log, with a full replay, and with what the offline verifier finds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from actors.board_actor import ActorOptions
from actors.closed_window import ClosedWindow
from actors.counting import Window
from actors.definition import Definition, apply_changes, from_record
from actors.directory import BOARDS, Directory
from actors.logged_board import LoggedBoard
from actors.offline import verify
from actors.questions import Digest, Question, Top
from actors.sealed import NotAtHandError
from persistence.records import DefinitionRecord, Event, EventsRecord, Record
from tests.actors.board_harness import ask, instant, read, replayed, score_of, submit_all
from tests.actors.naive_board import Kept, NaiveBoard, Sent
from tests.durability.journal_file import Journal, Line
from tests.durability.script import BEGIN_US, DEFINITION, OPTIONS

ENTRIES_MAX = 1_000  # of one answer; there are fewer members
FETCHES_MAX = 3


def check(directory: Path, journal: Path, mark: int | None = None) -> None:
    """Assert that the boards in a data directory are what its journal promises.

    mark: the last acknowledgement that counts; all of them without one. Errors: AssertionError.
    """
    promised = Journal.read(journal, mark)
    catalogue = Directory(directory, ActorOptions(OPTIONS, commit_events_max=1))
    catalogue.scan()
    assert not catalogue.damaged, f"damaged: {catalogue.damaged}"
    for board in dict.fromkeys(line["board"] for line in promised.of("trying")):
        there = board in catalogue.listings
        deleting = any(line["what"] == "Delete" for line in promised.of("trying", board))
        if promised.of("deleted", board):
            assert not there, f"{board} was deleted and is back"
        elif promised.of("created", board) and not deleting:
            assert there, f"{board} was created and is lost"
        if there:
            _check_board(directory / BOARDS / board, promised)


def _check_board(directory: Path, promised: Journal) -> None:
    now_us = max((line["at_us"] for line in promised.of("trying")), default=BEGIN_US)
    host = LoggedBoard.open(directory, OPTIONS)
    try:
        records = list(host.log.read())
        events = [
            record.row(index)
            for record in records
            if isinstance(record, EventsRecord)
            for index in range(record.count)
        ]
        _check_keys(host, promised, events, now_us)
        _check_definitions(host, promised, records)
        assert host.board.state_digest() == replayed(host.log).state_digest(), "replay differs"
        for window in [*host.board.windows.values(), *host.board.closed.values()]:
            _check_standings(host, window, events, now_us)
        _check_published(host, promised, now_us)
    finally:
        host.close()
    report = verify(directory)
    assert report.is_sound, report.findings


def _check_keys(host: LoggedBoard, promised: Journal, events: Sequence[Event], now_us: int) -> None:
    """Assert that each key is in the log once, where it was acknowledged, as a retry is told."""
    board = host.directory.name
    uses = Counter(event.idempotency_key.decode() for event in events)
    assert not [key for key, count in uses.items() if count > 1], f"keys that count twice: {uses}"
    for line in promised.of("seen", board):
        assert host.log.last_sequence >= line["sequence"], f"{line} was seen and is lost"
    known = {event.idempotency_key.decode(): event for event in events}
    lines = [*promised.of("applied", board), *promised.of("duplicate", board)]
    for line in lines:
        event = known.get(line["event"]["idempotency_key"])
        assert event is not None, f"{line} was acknowledged and is lost"
        assert _as_sent(event) == (line["sequence"], *_content(line)), f"{line} became {event}"
    if not lines:
        return
    last_sequence = host.log.last_sequence
    (reply,) = submit_all(host, [{"events": [line["event"] for line in lines]}], now_us)
    again = [(result["status"], result["sequence"]) for result in read(reply)["results"]]
    assert again == [("duplicate", line["sequence"]) for line in lines], "a retry counts again"
    assert host.log.last_sequence == last_sequence


def _as_sent(event: Event) -> tuple[int, str, int, int]:
    return event.sequence, event.member.decode(), event.values[0], event.occurred_at_us


def _content(line: Line) -> tuple[str, int, int]:
    event = line["event"]
    return event["member"], event["value"], instant(event["occurred_at"].replace("+00:00", "Z"))


def _check_definitions(host: LoggedBoard, promised: Journal, records: Sequence[Record]) -> None:
    """Assert that a change that was acknowledged holds from the sequence that its answer named."""
    for line in promised.of("changed", host.directory.name):
        in_force: Definition | None = None
        for record in records:
            if isinstance(record, DefinitionRecord) and record.first_sequence <= line["sequence"]:
                in_force = from_record(record.definition)
        assert in_force is not None
        again = apply_changes(in_force, json.dumps(line["fields"]).encode(), packed=False)
        assert again == in_force, f"{line} was acknowledged and is lost"


def _check_standings(
    host: LoggedBoard, window: Window | ClosedWindow, events: Sequence[Event], now_us: int
) -> None:
    """Assert that a window's standings are those of the events in it, before it closed."""
    last_sequence = host.log.last_sequence
    closed_at = window.closed_sequence if isinstance(window, ClosedWindow) else last_sequence + 1
    model = NaiveBoard(DEFINITION, 0)
    model.rulings.authors = {event.sequence: event.member.decode() for event in events}
    model.events = [
        Kept(event.sequence, _sent(event), event.occurred_at_us, event.received_at_us)
        for event in events
        if event.sequence < closed_at and window.holds(event.occurred_at_us)
    ]
    answer = _ask(host, Top(False, now_us, window.id, None, ENTRIES_MAX, None))
    entries = [
        (entry["member"], score_of(entry["score"]), instant(entry["achieved_at"]))
        for entry in answer["entries"]
    ]
    assert entries == model.order(), f"{window.id} does not add up"


def _sent(event: Event) -> Sent:
    return Sent(event.member.decode(), (Decimal(event.values[0]),), event.idempotency_key.decode())


def _check_published(host: LoggedBoard, promised: Journal, now_us: int) -> None:
    """Assert that a closed window has its published digest, or is older than those kept."""
    for line in promised.of("published", host.directory.name):
        window = line["window"]
        if window in host.board.closed:
            found = _ask(host, Digest(False, now_us, window, None))
            assert found["digest"] == line["digest"], f"{line} was published, and is {found}"
        else:
            kept = min(host.board.closed, default=window)
            assert window < kept, f"{line} was published, and is not closed"


def _ask(host: LoggedBoard, question: Question) -> dict[str, Any]:
    """Ask, sealing and fetching first what is not in memory."""
    for _ in range(FETCHES_MAX):
        try:
            return ask(host, question)
        except NotAtHandError as error:
            host.seal_all()
            if host.archives.missing:
                host.rebuild_archives(host.archives.sealed)
            for window, revision in error.revisions:
                found = host.archives.read(host.board.closed[window], revision)
                host.archives.keep(revision, *found)
    raise AssertionError(f"{question} could not be answered")
