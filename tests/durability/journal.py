"""Clients that note what a node told them, so that it can be held against what is on disk.

A `Journal` is a game server: it sends events, one by one or in batches, each again and again with
the same keys until it is answered, and notes what was acknowledged. A `Watcher` is a dashboard: it
reads one board over and over and notes what it saw. `check_board` compares both with the log.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from actors.board import Board
from actors.listing import LOG
from actors.offline import verify
from actors.questions import Digest
from persistence.event_log import LmdbEventLog
from persistence.records import Event, EventsRecord
from tests.actors.board_harness import Unsealed, ask
from tests.running_node import RunningNode

REQUEST_SECONDS_MAX = 15.0  # more than a node takes to answer anything
JOIN_SECONDS_MAX = 60.0
RETRY_SECONDS = 0.05
WATCH_SECONDS = 0.03
MEMBERS = 7
UNDECIDED = (503, 504)  # what a node may answer instead; the same keys are sent again


class Client(threading.Thread):
    """A thread that asks a node until it is told to end; what went wrong in it is raised there."""

    def __init__(self, node: RunningNode, board: str) -> None:
        super().__init__(daemon=True)
        self.node = node
        self.board = board
        self.statuses: Counter[int] = Counter()
        self._ended = threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                self.work()
        except BaseException as error:  # noqa: BLE001  (it is raised again by whoever ends the thread)
            self._failure = error

    def work(self) -> None:
        raise NotImplementedError

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Call the node; 0 for an answer that never came."""
        try:
            status, answer = self.node.call(
                method, f"/v1/boards/{self.board}/{path}", body, REQUEST_SECONDS_MAX
            )
        except OSError:
            status, answer = 0, None
        self.statuses[status] += 1
        return status, answer

    def end(self) -> None:
        """Let it finish what it does, and raise what went wrong."""
        self._ended.set()
        self.join(JOIN_SECONDS_MAX)
        assert not self.is_alive(), f"{self.name} does not end"
        if self._failure is not None:
            raise self._failure


class Journal(Client):
    """A game server. batch: events in a request. It ends when its last request is answered.

    acknowledged: the sequence of each key that was. unanswered: whether a request is under way.
    """

    def __init__(self, node: RunningNode, name: str, board: str = "b", batch: int = 1) -> None:
        super().__init__(node, board)
        self.name = name
        self.acknowledged: dict[str, int] = {}
        self.unanswered = False
        self._batch = batch
        self._sent = 0

    def event(self, number: int) -> dict[str, Any]:
        """Write the event of a number; its key tells the number."""
        return {
            "member": f"m{number % MEMBERS}",
            "value": 1 + number % 5,
            "idempotency_key": f"{self.name}/{number}",
        }

    def work(self) -> None:
        events = [self.event(self._sent + place) for place in range(self._batch)]
        body = events[0] if self._batch == 1 else {"events": events}
        while True:
            self.unanswered = True
            status, answer = self.ask("POST", "events", body)
            self.unanswered = False
            if status == 200:
                break
            assert status in (0, *UNDECIDED), answer
            time.sleep(RETRY_SECONDS)
        for event, result in zip(events, answer.get("results", [answer]), strict=True):
            assert result["status"] in ("applied", "duplicate"), result
            self.acknowledged[event["idempotency_key"]] = result["sequence"]
        self._sent += self._batch


@dataclass(frozen=True)
class Sight:
    """What one read saw: all members' scores at a sequence."""

    sequence: int
    scores: dict[str, int]


class Watcher(Client):
    """A dashboard: reads standings and closed windows, in which nothing may ever go back.

    sights: what it saw, newest last. digests: those of the closed windows.
    """

    def __init__(self, node: RunningNode, board: str) -> None:
        super().__init__(node, board)
        self.name = f"watcher of {board}"
        self.sights: list[Sight] = []
        self.digests: dict[str, str] = {}

    def work(self) -> None:
        status, answer = self.ask("GET", "top?limit=100")
        if status == 200:
            scores = {entry["member"]: entry["score"] for entry in answer["entries"]}
            seen = Sight(answer["sequence"], scores)
            if self.sights:
                assert seen.sequence >= self.sights[-1].sequence, "a read went back"
            self.sights.append(seen)
            status, answer = self.ask("GET", "periods?limit=100")
        if status == 200:
            self._note(answer["periods"])
        assert status in (0, 200, *UNDECIDED), answer
        time.sleep(WATCH_SECONDS)

    def _note(self, periods: list[dict[str, Any]]) -> None:
        closed = {each["id"]: each["digest"] for each in periods if each["closed"]}
        assert self.digests.keys() <= closed.keys(), "a closed window opened again"
        for window, digest in closed.items():
            if digest is not None:  # it is while the window's archive is being made
                assert self.digests.setdefault(window, digest) == digest, f"{window} changed"


@dataclass
class Truth:
    """What the log of a board holds, read record by record from its beginning."""

    board: Board = field(default_factory=Board)
    sequences: dict[str, int] = field(default_factory=dict)
    scores: Counter[str] = field(default_factory=Counter)
    history: dict[int, dict[str, int]] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        """Count an event, by what its key says that was sent."""
        key, member = event.idempotency_key.decode(), event.member.decode()
        assert key not in self.sequences, f"{key} is in the log twice"
        number = int(key.rpartition("/")[2])
        assert (member, event.values) == (f"m{number % MEMBERS}", (1 + number % 5,)), event
        self.sequences[key] = event.sequence
        self.scores[member] += event.values[0]


def read_truth(directory: Path) -> Truth:
    """Read a board's log; it may be in use."""
    truth = Truth()
    log = LmdbEventLog.open_readonly(directory / LOG)
    try:
        for record in log.read():
            truth.board.apply(record)
            if isinstance(record, EventsRecord):
                for index in range(record.count):
                    truth.add(record.row(index))
            truth.history[record.last_sequence] = dict(truth.scores)
    finally:
        log.close()
    return truth


def check_journals(truth: Truth, journals: Sequence[Journal]) -> None:
    """Acknowledged ⊆ log, with the sequence acknowledged; what else is there was sent."""
    for journal in journals:
        acknowledged = journal.acknowledged.items()
        assert acknowledged <= truth.sequences.items(), f"{journal.name}: an event is lost"
    names = {journal.name for journal in journals}
    assert {key.rpartition("/")[0] for key in truth.sequences} <= names


def check_board(
    node: RunningNode,
    board: str,
    journals: Sequence[Journal] = (),
    watchers: Sequence[Watcher] = (),
) -> Truth:
    """Hold a resting board against its log, and the log against what was acknowledged and seen.

    The node must run, and nobody write to the board.
    """
    top = node.ask(f"/v1/boards/{board}/top?limit=100")
    live = live_digests(node, board)
    truth = read_truth(node.data / "boards" / board)
    check_journals(truth, journals)
    assert top["sequence"] == truth.board.sequence
    assert {entry["member"]: entry["score"] for entry in top["entries"]} == dict(truth.scores)
    replayed = replayed_digests(truth)
    assert live.items() <= replayed.items(), "the board is not what a replay makes"
    for watcher in watchers:
        check_sights(truth, watcher)
        assert watcher.digests.items() <= replayed.items(), "a closed window changed"
    return truth


def live_digests(node: RunningNode, board: str) -> dict[str, str]:
    """Ask a node for the digest of every window of a board."""
    windows = [each["id"] for each in node.ask(f"/v1/boards/{board}/periods?limit=100")["periods"]]
    return {
        window: node.ask(f"/v1/boards/{board}/digest?period={window}")["digest"]
        for window in windows
    }


def replayed_digests(truth: Truth) -> dict[str, str]:
    """Compute the same digests from what a replay of the log made."""
    replayed = SimpleNamespace(board=truth.board, archives=Unsealed(truth.board))
    windows = [*truth.board.windows, *truth.board.closed]
    return {window: ask(replayed, Digest(False, 0, window, None))["digest"] for window in windows}


def check_sights(truth: Truth, watcher: Watcher) -> None:
    """Observed ⇒ on disk: at each sequence that was seen, a replay shows the same scores."""
    assert watcher.sights, f"{watcher.name} saw nothing"
    for sight in watcher.sights:
        assert truth.history.get(sight.sequence) == sight.scores, sight


def check_files(node: RunningNode) -> None:
    """Let the offline verifier look at every board of a node that has ended."""
    for directory in (node.data / "boards").iterdir():
        report = verify(directory)
        assert report.is_sound, report.findings
