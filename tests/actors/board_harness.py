"""What the tests of boards share: definitions, bodies, boards in memory and on disk, and answers.

Bodies are written as a client would write them; answers come back with exact decimals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from actors import queries
from actors.board import Board
from actors.counting import Window
from actors.creation import create_board
from actors.definition import Definition, apply_changes, parse_definition
from actors.errors import Refusal
from actors.event_answers import settle
from actors.intake import Plan, plan
from actors.logged_board import BoardOptions, LoggedBoard, PlannedRuling
from actors.questions import Question, Reply, Submit, Verdict
from actors.standings import listing_digest
from actors.submission import parse_submission
from persistence.event_log import EventLog, LogOptions, MemoryEventLog
from persistence.records import DefinitionRecord, EventsRecord, Record, WindowOpenedRecord

DAY_US = 86_400 * 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW_US = 20_000 * DAY_US + 12 * 3_600 * 1_000_000  # noon of 2024-10-04
SMALL = BoardOptions(
    log=LogOptions(segment_events_max=40, segment_bytes_max=1 << 20, reserved_free_bytes=0),
    snapshot_events=1_000,
)


def define(**fields: Any) -> Definition:
    """Make the definition that a PUT with these fields makes; best where it names none."""
    return parse_definition(json.dumps({"aggregation": "best"} | fields).encode(), packed=False)


def score_keys(*keys: str) -> list[dict[str, Any]]:
    """Write score keys, each as a direction and decimals: "desc2"."""
    return [
        {"name": f"key{index}", "direction": key.rstrip("0123456789"), "decimals": int(key[-1])}
        for index, key in enumerate(keys)
    ]


def at(us: int) -> str:
    """Write an instant as a client does."""
    return (EPOCH + timedelta(microseconds=us)).isoformat()


def instant(text: str) -> int:
    """Read an instant of an answer, which is in UTC with Z."""
    assert text.endswith("Z")
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)


def event(member: str = "ada", value: Any = 1, key: str = "k", **rest: Any) -> dict[str, Any]:
    """Write an event; occurred_at may be given in microseconds."""
    if isinstance(rest.get("occurred_at"), int):
        rest["occurred_at"] = at(rest["occurred_at"])
    return {"member": member, "value": value, "idempotency_key": key} | rest


class Unsealed:
    """Closed windows that stay in memory."""

    def __init__(self, board: Board) -> None:
        self.board = board

    def standings(self, window: str, revision: int) -> Window | None:
        return self.board.unsealed.get(window)

    def is_missing(self, window: str, revision: int) -> bool:
        return False

    def digest(self, window: str, revision: int) -> str | None:
        columns = self.board.unsealed[window].standings.listing()
        return listing_digest(columns, self.board.definition.decimals).hex()


class MemoryBoard:
    """A board over a log in memory, with the same three steps as a LoggedBoard."""

    def __init__(self, definition: Definition | None = None, hash_key: bytes = bytes(16)) -> None:
        self.board = Board()
        self.archives = Unsealed(self.board)
        self.log = MemoryEventLog()
        records: list[Record] = [
            DefinitionRecord(
                first_sequence=1,
                recorded_at_us=NOW_US,
                board="b",
                incarnation="one",
                hash_key=hash_key,
                created_at_us=NOW_US,
                definition=(definition or define()).to_record(),
            ),
            WindowOpenedRecord(
                first_sequence=2,
                recorded_at_us=NOW_US,
                window="all_time",
                start_us=None,
                end_us=None,
            ),
        ]
        self.log.append(records)
        for record in records:
            self.board.apply(record)

    def plan(self, submissions: Sequence[Any], recorded_at_us: int) -> Plan:
        return plan(self.board, self._events_at, submissions, recorded_at_us)

    def _events_at(self, sequence: int) -> EventsRecord:
        record = self.log.record_at(sequence)
        assert isinstance(record, EventsRecord)
        return record

    def commit(self, records: Sequence[Record]) -> None:
        self.log.append(records)

    def settle(self, planned: Plan) -> list[Reply]:
        improved = self.board.apply(planned.record) if planned.record else {}
        return settle(self.board, planned, improved)


Host = MemoryBoard | LoggedBoard


def in_memory(**fields: Any) -> MemoryBoard:
    """Make a board in memory by the fields of its definition."""
    return MemoryBoard(define(**fields))


def change(host: MemoryBoard, now_us: int = NOW_US, **fields: Any) -> None:
    """Change a board's definition as a PATCH does."""
    changed = apply_changes(host.board.definition, json.dumps(fields).encode(), packed=False)
    record = DefinitionRecord(
        first_sequence=host.board.sequence + 1,
        recorded_at_us=now_us,
        definition=changed.to_record(),
        **host.board.identity._asdict(),
    )
    host.commit([record])
    host.board.apply(record)


def on_disk(
    directory: Path, options: BoardOptions = SMALL, now_us: int = NOW_US, **fields: Any
) -> LoggedBoard:
    """Create a board in `directory` and open it."""
    create_board(directory, "b", define(**fields), now_us, options)
    return LoggedBoard.open(directory, options)


def submit_all(host: Host, bodies: Sequence[Any], now_us: int = NOW_US) -> list[Reply]:
    """Submit request bodies in one plan; bytes are sent as they are, all else as JSON."""
    submissions = []
    for body in bodies:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        submissions.append(parse_submission(Submit(False, now_us, sent, False)))
    return settled(host, submissions, now_us)


def settled(host: Host, submissions: Sequence[Any], now_us: int) -> list[Reply]:
    """Plan, commit and settle."""
    planned = host.plan(submissions, now_us)
    if planned.record is not None:
        host.commit([planned.record])
    return host.settle(planned)


def committed(host: LoggedBoard, verdict: Verdict) -> PlannedRuling:
    """Plan a ruling and commit its record, if there is one; a refusal is raised."""
    planned = host.plan_ruling(verdict)
    if planned.record is not None:
        host.commit([planned.record])
    return planned


def submit(host: Host, body: Any, now_us: int = NOW_US) -> dict[str, Any]:
    """Submit one body and return its answer; a refusal looks as it does in a batch."""
    (reply,) = submit_all(host, [body], now_us)
    return read(reply)


def statuses(host: Host, *events: Mapping[str, Any], now_us: int = NOW_US) -> list[str]:
    """Submit events as one batch and return each one's status, or code where it is refused."""
    answer = submit(host, {"events": list(events)}, now_us)
    return [result.get("code", result["status"]) for result in answer["results"]]


def exact(body: bytes) -> dict[str, Any]:
    """Decode an answer without a binary float in between."""
    decoded: dict[str, Any] = json.loads(body, parse_float=Decimal)
    return decoded


def read(reply: Reply) -> dict[str, Any]:
    """Decode a reply's body, or show its refusal as a batch would."""
    if reply.code:
        return {"status": "rejected", "code": reply.code, "detail": reply.detail} | reply.extra
    return exact(reply.body)


def score_of(cells: Any) -> tuple[Decimal, ...]:
    """Read an answer's score, a number or a list of them."""
    return tuple(map(Decimal, cells if isinstance(cells, list) else [cells]))


def entry_of(entry: dict[str, Any]) -> tuple[int, int, str, tuple[Decimal, ...], int]:
    """Read an answer's entry as the model gives it."""
    score, achieved_at_us = score_of(entry["score"]), instant(entry["achieved_at"])
    return entry["rank"], entry["position"], entry["member"], score, achieved_at_us


def ask(host: Host, question: Question) -> dict[str, Any]:
    """Ask a board; a refusal is raised."""
    return exact(queries.answer(host.board, host.archives, question))


def refusal_of(host: Host, question: Question) -> Refusal:
    """Ask what is refused, and return the refusal."""
    try:
        queries.answer(host.board, host.archives, question)
    except Refusal as refusal:
        return refusal
    raise AssertionError(f"{question} was answered")


def replayed(log: EventLog) -> Board:
    """Make the board that the whole of a log makes."""
    board = Board()
    for record in log.read():
        board.apply(record)
    return board
