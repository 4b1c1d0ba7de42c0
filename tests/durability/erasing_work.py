"""A board that takes names off its disk: how it came to that, the work itself, and what is checked.

`play` makes a board on which two names wait to be erased, beside one that was erased before, and
`EXPECTED` beside it, what it must answer from then on. `erase` does the work as a board's process
does; `finish` checks what is there after it, wherever it ended, does what is left, and checks that.
"""

from __future__ import annotations

import json
import logging
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from actors.last_words import EXIT_COMMIT_FAILED
from actors.logged_board import BoardOptions
from actors.offline import verify
from actors.questions import Disputes
from actors.shown_log import ERASING
from persistence.errors import CommitFailedError, FencedError, RanknodeError
from persistence.event_log import LogOptions
from tests.actors.board_harness import at, replayed
from tests.actors.clocked_board import ClockedBoard
from tests.actors.verdicts import dispute, hide, profile, settle, void
from tests.actors.verdicts import erase as erase_member
from tests.durability.plants import PLANTS
from tests.durability.workload import EXIT_REFUSED

BOARDS = "boards"  # below a case's directory, as below a node's
EXPECTED = "expected.json"
NAME = "zelda-of-hyrule"
GHOST = "link-in-disguise"  # never plays
FIRST = "ganon-the-first"  # was erased before
SECRETS = (NAME, GHOST, FIRST, "key-of-zelda", "her-avatar")
ATTEMPTS_MAX = 2
DAYS = ("2026-11-30T12:00:00Z", "2026-12-01T12:00:00Z", "2026-12-02T12:00:00Z")
OPTIONS = BoardOptions(
    log=LogOptions(segment_events_max=16, segment_bytes_max=1 << 20, reserved_free_bytes=0),
    snapshot_events=1_000,
)


def play(directory: Path) -> None:
    """Make the board, and what it must answer, below `directory`."""
    (directory / BOARDS).mkdir()
    board = ClockedBoard(
        directory / BOARDS, DAYS[0], OPTIONS,
        aggregation="sum", periods=["all_time", "daily"], grace_seconds=0, key_retention_days=None,
    )  # fmt: skip
    for _ in range(4):
        _add(board)  # a segment without any of the names
    _add(board, FIRST, NAME)
    board.at(DAYS[1])
    erase_member(board, FIRST)
    board.host.erase_names(board.now_us)  # leaves a snapshot of the end of a segment
    hers = _add(board, NAME)
    profile(board, NAME, b'{"avatar_url":"her-avatar"}')
    settle(board, dispute(board, hers, opened_by=NAME), "upheld", note=f"it was {NAME}")
    hide(board, GHOST)
    profile(board, GHOST, b'{"display_name":"link-in-disguise"}')
    board.at(DAYS[2])
    void(board, _add(board, NAME))
    board.seal()
    board.snapshot()
    _add(board)
    erase_member(board, GHOST)
    erase_member(board, NAME)
    _add(board)
    assert board.host.shown_log.erasing
    board.close()
    expected = {
        "now_us": board.now_us,
        "state_digest": board.host.board.state_digest(),
        "answers": _asked_aside(directory, board.now_us),
    }
    (directory / EXPECTED).write_text(json.dumps(expected))


def _asked_aside(directory: Path, now_us: int) -> dict[str, Any]:
    """Ask a copy of the board, since asking makes the archives that the work is to make."""
    aside = directory / "aside"
    shutil.copytree(directory / BOARDS, aside)
    board = ClockedBoard.existing(aside, now_us, OPTIONS)
    answers = _answers(board)
    board.close()
    shutil.rmtree(aside)
    return answers


def _add(board: ClockedBoard, *others: str) -> int:
    """Submit two rounds of events; returns the sequence of the last one of hers, if any is."""
    sequence, day = 0, DAYS.index(at(board.now_us).replace("+00:00", "Z"))
    for number in range(2):
        board.batch(*[board.event(number + 1, member=each) for each in ("ada", "bob", *others)])
        if NAME in others:
            key = f"key-of-zelda-{day}-{number}"
            sequence = board.send(3, member=NAME, key=key)["sequence"]
    return sequence


def _answers(board: ClockedBoard) -> dict[str, Any]:
    """Ask what nobody but those who are erased may notice any of it in."""
    listed = board.periods()["periods"]
    disputes = board.ask(Disputes(False, board.now_us, None, None, 100, None))
    answers = {
        # A listing names a digest once the archive is there; here it is asked for by itself.
        "periods": [item | {"digest": None} for item in listed],
        "top": {item["id"]: board.top(item["id"])["entries"] for item in listed},
        "digests": {item["id"]: board.digest(item["id"]) for item in listed},
        "disputes": disputes["disputes"],
    }
    plain: dict[str, Any] = json.loads(json.dumps(answers, default=str))
    return plain


def named_files(directory: Path) -> list[str]:
    """List the files below `directory` that hold anything of those who are erased."""
    return [
        str(path.relative_to(directory))
        for path in sorted(directory.rglob("*"))
        if path.is_file() and any(secret.encode() in path.read_bytes() for secret in SECRETS)
    ]


class _Trial:
    """The board in a directory, and what it must be."""

    def __init__(self, directory: Path, expected: Path) -> None:
        self.directory = directory / BOARDS / "b"
        self._expected = json.loads(expected.read_text())
        self.board = ClockedBoard.existing(directory / BOARDS, self._expected["now_us"], OPTIONS)

    def require_answers(self) -> None:
        """Assert that the board answers as it did, and with none of the names."""
        assert _answers(self.board) == self._expected["answers"]
        host = self.board.host
        rulings = map(host.shown_log.ruling_at, host.board.rulings.records)
        shown = list(map(repr, rulings))
        for member in ("ada", "bob", *(name.decode() for name in host.board.rulings.erased)):
            if host.board.members.find(member.encode()) >= 0:
                shown += map(repr, host.shown_log.events_of(member.encode()))
        assert not [text for text in shown if any(secret in text for secret in SECRETS)]

    def require_state(self) -> None:
        """Assert that the state is the one that was live, or what finishing made of it."""
        host = self.board.host
        if host.shown_log.erasing:
            assert host.board.state_digest() == self._expected["state_digest"]
        assert replayed(host.log).state_digest() == host.board.state_digest()


def erase(directory: str, expected: str, plant: str = "") -> int:
    """Take the names off the disk, trying again what failed; returns the process's code."""
    if plant:
        PLANTS[plant]()
    logging.disable()
    try:
        trial = _Trial(Path(directory), Path(expected))
    except (RanknodeError, OSError):
        return EXIT_REFUSED
    for _ in range(ATTEMPTS_MAX):
        try:
            trial.board.host.erase_names(trial.board.now_us)
        except (CommitFailedError, FencedError):
            return EXIT_COMMIT_FAILED
        except (RanknodeError, OSError):
            with suppress(OSError):  # of an archive that is to be made again
                trial.require_answers()
        else:
            with suppress(OSError):  # of the owner's mark
                trial.board.close()
            return 0
    return EXIT_REFUSED


def finish(directory: str, expected: str, plant: str = "") -> int:
    """Assert that all is as it was, take off the disk what is left, and assert that it is gone."""
    logging.disable()
    found = named_files(Path(directory))
    trial = _Trial(Path(directory), Path(expected))
    board = trial.board
    assert board.host.shown_log.erasing or not found, f"said to be gone, but in {found}"
    trial.require_state()
    trial.require_answers()
    if board.host.shown_log.erasing:
        board.host.erase_names(board.now_us)
    assert not board.host.shown_log.erasing
    assert named_files(Path(directory)) == []
    assert not (trial.directory / ERASING).exists()
    _require_use(trial)
    return 0


def _require_use(trial: _Trial) -> None:
    """Assert that the board is sound, comes up again, and remembers the keys that were used."""
    board = trial.board
    state = board.host.board.state_digest()
    board.reopen()
    assert board.host.report.snapshots_skipped == ()
    assert board.host.board.state_digest() == state
    trial.require_state()
    trial.require_answers()
    used = board.event(3, member="ada", key="key-of-zelda-0-0")
    assert board.batch(used, board.event(1, member="ada", key="new")) == ["duplicate", "applied"]
    board.close()
    report = verify(trial.directory)
    assert report.is_sound, report.findings
