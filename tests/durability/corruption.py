"""A board whose every file is known, and what it must say whatever happens to one of them.

Owns the scene, four directories of a board: as it is (`now`), as it was (`old`), as it will be
(`new`), and another board of the same name (`other`); the ways to damage a file (`Damage`); and the
judgement (`judge`): a damaged board says exactly what the sound one does, or refuses with an error
that names the file. What the sound one says is recorded when the scene is made.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from actors.logged_board import BoardOptions
from actors.offline import read_events, verify
from actors.questions import Digest, Periods, Question, Top
from actors.sealed import NotAtHandError
from persistence.errors import DamagedError, FormatTooNewError, RanknodeError
from persistence.event_log import LogOptions
from tests.actors.board_harness import DAY_US, ask, statuses
from tests.actors.clocked_board import ClockedBoard

OPTIONS = BoardOptions(
    log=LogOptions(segment_events_max=60, segment_bytes_max=1 << 20, reserved_free_bytes=0),
    snapshot_events=1_000,
)
BEGINNING = "2026-03-02T15:00:00Z"
DEFINITION: dict[str, Any] = {
    "aggregation": "sum",
    "score": [{"name": "points", "decimals": 1}],
    "periods": [
        "all_time",
        "daily",
        {"name": "cup", "start": BEGINNING, "end": "2026-03-04T12:00:00Z"},
    ],
    "keep_closed_periods": 3,
}
DAYS = {"old": 4, "now": 6, "new": 8}  # how long a state has been played
SNAPSHOT_DAYS = (2, 3, 5, 7)  # the last two are kept
LARGE_DAYS = (1, 3, 6)
LARGE_BATCH = 60  # the events of a record that takes pages of its own
MEMBERS = ("mary1934", "Ada", "Zoë", "名前")
FETCHES_MAX = 4
REFUSALS = (DamagedError, FormatTooNewError)
# Where a change may be harmless: in the free pages of a segment, and in what processes share.
HOLDS_NOTHING = re.compile(r"/data\.mdb$|/lock\.mdb$|^owner\.lock$")
# What the next owner writes anew when it is damaged.
IS_A_COPY = re.compile(r"^log/head$|^owner$|^board\.msgpack$|^archives/")


class Damage(msgspec.Struct, frozen=True):
    """What happens to one file, named below the board's directory.

    write: `data` over what is at `at`. cut: to `size` bytes. extend: by `data`. replace: by the
    same file of the state `source`. swap: for the file `source`. remove.
    """

    file: str
    kind: str
    at: int = 0
    size: int = 0
    data: bytes = b""
    source: str = ""

    def apply(self, board: Path, scene: Path) -> bool:
        """Damage the board in a directory; tells whether that changed anything."""
        path = board / self.file
        before = path.read_bytes()
        if self.kind == "write":
            after = before[: self.at] + self.data + before[self.at + len(self.data) :]
        elif self.kind == "cut":
            after = before[: self.size]
        elif self.kind == "extend":
            after = before + self.data
        elif self.kind == "replace":
            after = (scene / self.source / "b" / self.file).read_bytes()
        elif self.kind == "swap":
            after = (board / self.source).read_bytes()
            (board / self.source).write_bytes(before)
        else:
            path.unlink()
            return True
        path.write_bytes(after)
        return after != before


class Judgement(msgspec.Struct):
    """What became of a damaged board.

    verdict: `equal` where it said what the sound one does, `refused` where a part of it was
    refused, `unchanged`, or what it did wrong. refusals: who refused, and why. found: the files in
    which the verifier found something, before and after the board was opened.
    """

    verdict: str
    refusals: dict[str, str] = {}
    found: list[str] = []
    found_after: list[str] = []


class Truth(msgspec.Struct, frozen=True):
    """What a state says, to whom everything it was sent is sent again, and once it plays on."""

    now_us: int
    answers: str
    events: str
    statuses: str
    after: str


class Scene(msgspec.Struct, frozen=True):
    """The directory of the states, and what they say, by their logs' last sequences."""

    directory: Path
    now_us: int
    truths: dict[int, Truth]


def make_scene(directory: Path) -> None:
    """Write the states, and beside them what they say."""
    now_us = _play_states(directory, DAYS, 0.0)
    _play_states(directory, {"other": DAYS["now"]}, 0.5)
    truths = dict(_truth(directory, state, now_us[state]) for state in ("now", "new"))
    scene = Scene(directory, now_us["now"], truths)
    (directory / "scene").write_bytes(msgspec.msgpack.encode(scene, enc_hook=str))


def read_scene(directory: Path) -> Scene:
    """Read what `make_scene` wrote."""
    content = (directory / "scene").read_bytes()
    return msgspec.msgpack.decode(content, type=Scene, dec_hook=lambda kind, text: kind(text))


def _play_states(directory: Path, days: dict[str, int], own: float) -> dict[str, int]:
    """Play a board and copy its directory at the ends of some days; returns when that was."""
    ends = {}
    board = ClockedBoard(_made(directory / "played"), BEGINNING, OPTIONS, **DEFINITION)
    beginning_us = board.now_us
    for day in range(1, max(days.values()) + 1):
        board.at(beginning_us + day * DAY_US)
        bodies = _bodies(day, own)
        assert set(board.batch(*bodies)) == {"applied"}
        board.seal()
        if day in SNAPSHOT_DAYS:
            board.snapshot()
        for state in [state for state, last in days.items() if last == day]:
            board.close()
            shutil.copytree(directory / "played", directory / state)
            ends[state] = board.now_us
            board = ClockedBoard.existing(directory / "played", board.now_us, OPTIONS)
    board.close()
    shutil.rmtree(directory / "played")
    return ends


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory


def _bodies(day: int, own: float = 0.0) -> list[dict[str, Any]]:
    """Give a day's events: a few, or so many that their record does not fit into a page."""
    return [
        {
            "member": MEMBERS[number % len(MEMBERS)],
            "value": day + number * 0.5 + own,
            "idempotency_key": f"{day}/{number}",
        }
        for number in range(LARGE_BATCH if day in LARGE_DAYS else 7)
    ]


def _truth(directory: Path, state: str, now_us: int) -> tuple[int, Truth]:
    played = directory / "played"
    shutil.copytree(directory / state, played)
    events = _events(played / "b")
    board = ClockedBoard.existing(played, now_us, OPTIONS)
    sequence = board.host.board.sequence
    said, again = answers(board), _sent_again(board)
    after = _played_on(board)
    board.close()
    shutil.rmtree(played)
    return sequence, Truth(now_us, said, events, again, after)


def _events(board: Path) -> str:
    return repr(list(read_events(board)[1]))


def _sent_again(board: ClockedBoard) -> str:
    """Send everything of `now` again, day by day. Errors: what a key could not be confirmed by."""
    found = [statuses(board.host, *_bodies(day), now_us=board.now_us) for day in range(1, 7)]
    if "board_unavailable" in itertools.chain(*found):
        for _ in board.host.log.read():
            pass  # it comes to the damage that the answers speak of, or they are wrong
    return repr(found)


def _played_on(board: ClockedBoard) -> str:
    """Play on for a day that closes a window, and return the answers."""
    ahead = {"member": "Ada", "value": 3, "idempotency_key": "ahead/1"}
    late = {"member": "late", "value": 0.5, "idempotency_key": "ahead/2"}
    board.batch(ahead, late, ahead)
    board.at(board.now_us + DAY_US)
    board.batch(ahead | {"idempotency_key": "ahead/3"})
    return answers(board)


def answers(board: ClockedBoard) -> str:
    """Ask everything, once the archives that are missing are made again, as a keeper does."""
    board.seal()
    board.rebuild()
    listed = _asked(board, Periods(False, board.now_us, None, 100, None))
    windows = [item["id"] for item in listed["periods"]]
    tops = [_asked(board, Top(False, board.now_us, each, None, 100, None)) for each in windows]
    digests = [_asked(board, Digest(False, board.now_us, each, None)) for each in windows]
    return repr([board.host.board.state_digest(), listed, tops, digests])


def _asked(board: ClockedBoard, question: Question) -> dict[str, Any]:
    """Ask, and fetch or make again what is not at hand, as a board's keeper does."""
    for _ in range(FETCHES_MAX):
        try:
            return ask(board.host, question)
        except NotAtHandError as error:
            board.seal()
            board.rebuild()
            archives = board.host.archives
            for window, revision in error.revisions:
                try:
                    found = archives.read(board.host.board.closed[window], revision)
                    archives.keep(revision, *found)
                except (RanknodeError, OSError):
                    archives.missing.add((window, revision))
    raise AssertionError(f"{question} could not be answered")


def judge(scene: Scene, damage: Damage, work: Path) -> Judgement:
    """Damage a copy of `now` in the directory `work`, and see what becomes of it."""
    shutil.copytree(scene.directory / "now", work)
    try:
        if not damage.apply(work / "b", scene.directory):
            return Judgement("unchanged")
        return _judged(scene, damage, work)
    finally:
        shutil.rmtree(work)


class _WrongError(Exception):
    """Raised for an answer that is neither the truth nor a refusal."""


def _judged(scene: Scene, damage: Damage, work: Path) -> Judgement:
    judgement = Judgement("equal")

    def tried(who: str, act: Callable[[], None]) -> bool:
        try:
            act()
        except REFUSALS as error:
            if str(work / "b") not in str(error):
                raise _WrongError(f"a refusal that names no file: {error}") from error
            judgement.refusals[who] = str(error)
        return who not in judgement.refusals

    judgement.found = [finding.file for finding in verify(work / "b").findings]
    try:
        tried("reader", lambda: _require(_events(work / "b"), scene, "events"))
        tried("owner", lambda: _own(scene, work, tried))
    except _WrongError as error:
        return msgspec.structs.replace(judgement, verdict=str(error))
    judgement.found_after = [finding.file for finding in verify(work / "b").findings]
    judgement.verdict = _verdict(damage, judgement)
    return judgement


def _verdict(damage: Damage, judgement: Judgement) -> str:
    """Compare what the verifier found with what happened."""
    if judgement.refusals:
        return "refused" if judgement.found else "refused what the verifier finds sound"
    overwritten = damage.kind in ("write", "cut", "extend")
    if overwritten and not HOLDS_NOTHING.search(damage.file) and not judgement.found:
        return "the verifier finds nothing"
    left = [file for file in judgement.found_after if IS_A_COPY.search(file)]
    return f"not made again: {left}" if left else "equal"


def _own(scene: Scene, work: Path, tried: Callable[[str, Callable[[], None]], bool]) -> None:
    """Open the board, ask it everything, send everything again, play on, and open it once more."""
    board = ClockedBoard.existing(work, scene.now_us, OPTIONS)
    try:
        truth = scene.truths.get(board.host.board.sequence)
        if truth is None:
            raise _WrongError(f"opened at sequence {board.host.board.sequence}")
        board.now_us = truth.now_us
        tried("answers", lambda: _same("answers", answers(board), truth.answers))
        tried("keys", lambda: _same("statuses", _sent_again(board), truth.statuses))
        played_on = tried("after", lambda: _same("answers after", _played_on(board), truth.after))
    finally:
        board.close()
    board = ClockedBoard.existing(work, board.now_us, OPTIONS)
    try:
        if played_on:
            tried("reopened", lambda: _same("answers when reopened", answers(board), truth.after))
    finally:
        board.close()


def _require(found: str, scene: Scene, what: str) -> None:
    if all(found != getattr(truth, what) for truth in scene.truths.values()):
        raise _WrongError(f"other {what}: {found[:200]}")


def _same(what: str, found: str, expected: str) -> None:
    if found != expected:
        raise _WrongError(f"other {what}: {found[:200]}")
