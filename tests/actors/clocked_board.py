"""A board on disk with a clock that is moved by hand, kept as its process keeps it.

What is due is closed before each write and each read; what an answer needs is fetched from its
archive first. Instants are texts in UTC, as clients write them, or microseconds.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from actors import periods
from actors.errors import Refusal
from actors.logged_board import BoardOptions, LoggedBoard, PlannedRuling
from actors.questions import Change, Digest, Member, Periods, Question, Top, Verdict
from actors.sealed import NotAtHandError
from tests.actors.board_harness import (
    SMALL,
    ask,
    committed,
    event,
    instant,
    on_disk,
    read,
    refusal_of,
    statuses,
    submit_all,
)
from tests.actors.zones import python_zone

FETCHES_MAX = 3


def _us(when: str | int) -> int:
    return instant(when) if isinstance(when, str) else when


@contextmanager
def zone_data(name: str) -> Iterator[None]:
    """Let every zone's data be those of another one, as after an update of the database."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(periods, "load_zone", lambda _: python_zone(name))
        yield


class ClockedBoard:
    """The board `b` in a directory.

    Moving its clock: `at`. Writing: `send`, `batch`, `rule`, `patch`, `close_due`. Asking: `ask`,
    `top`, `scores`, `digest`, `periods`, `refusal`. Keeping: `seal`, `snapshot`, `reopen`.
    """

    def __init__(
        self, directory: Path, now: str | int, options: BoardOptions = SMALL, **fields: Any
    ) -> None:
        on_disk(directory / "b", options, _us(now), **fields).close()
        self._adopt(directory / "b", _us(now), options)

    @classmethod
    def existing(cls, directory: Path, now: str | int, options: BoardOptions = SMALL) -> Self:
        """Open the board that is there."""
        board = cls.__new__(cls)
        board._adopt(directory / "b", _us(now), options)
        return board

    def _adopt(self, directory: Path, now_us: int, options: BoardOptions) -> None:
        self.directory = directory
        self.now_us = now_us
        self._options = options
        self._keys = map("key-{}".format, itertools.count())
        self.host = LoggedBoard.open(directory, options)

    def at(self, now: str | int) -> None:
        """Move the clock, and close what is due then."""
        self.now_us = _us(now)
        self.close_due()

    def close_due(self) -> None:
        self.host.close_due(self.now_us)

    # Writing

    def event(self, value: Any, occurred_at: Any = None, member: str = "ada", **rest: Any) -> Any:
        """Write an event under a key of its own, unless one is named."""
        when = {} if occurred_at is None else {"occurred_at": occurred_at}
        return event(member, value, rest.pop("key", None) or next(self._keys), **when, **rest)

    def send(self, value: Any, occurred_at: Any = None, member: str = "ada", **rest: Any) -> Any:
        """Submit one event and return its answer."""
        self.close_due()
        body = self.event(value, occurred_at, member, **rest)
        (reply,) = submit_all(self.host, [body], self.now_us)
        return read(reply)

    def counted(self, value: Any, occurred_at: Any = None, **rest: Any) -> list[str]:
        """Submit one event and name the windows that it counted in."""
        answer = self.send(value, occurred_at, **rest)
        assert answer["status"] == "applied", answer
        return [standing["period"] for standing in answer["standings"]]

    def batch(self, *events: Any) -> list[str]:
        """Submit events as one batch; returns statuses and codes."""
        self.close_due()
        return statuses(self.host, *events, now_us=self.now_us)

    def rule(self, verdict: Verdict, *lost: str, crashes: bool = False) -> PlannedRuling:
        """Let a verdict hold, with every closed window sealed before. Errors: Refusal.

        crashes: end between the commit and the change, lose some directories, and come back.
        """
        self.close_due()
        self.seal()
        self.rebuild()
        planned = committed(self.host, verdict)
        if crashes:
            self.reopen(*lost)
        else:
            self.host.rule(planned)
        return planned

    def tried(self, verdict: Verdict) -> PlannedRuling | Refusal:
        """Let a verdict hold, or give the refusal."""
        try:
            return self.rule(verdict)
        except Refusal as refusal:
            return refusal

    def patch(self, **fields: Any) -> None:
        """Change the definition, and close what is due by the changed one, as a PATCH does."""
        question = Change(False, self.now_us, json.dumps(fields).encode(), False)
        record = self.host.changed_definition(question)
        if record is not None:
            self.host.commit([record])
            self.host.apply_all([record])
        self.close_due()
        self.host.archives.forget_expired()
        self.host.archives.remove_expired()

    # Asking

    def ask(self, question: Question) -> dict[str, Any]:
        """Ask at the clock's time, fetching from archives what is not in memory."""
        for _ in range(FETCHES_MAX):
            try:
                return ask(self.host, question)
            except NotAtHandError as error:
                self.seal()
                self.rebuild()
                for window, revision in error.revisions if error.standings else ():
                    found = self.host.archives.read(self.host.board.closed[window], revision)
                    self.host.archives.keep(revision, *found)
        raise AssertionError(f"{question} could not be answered")

    def refusal(self, make: Callable[..., Question], period: str | None, *rest: Any) -> str:
        """Ask what is refused, and return the code."""
        return refusal_of(self.host, make(False, self.now_us, period, None, *rest)).code

    def top(
        self,
        period: str | None = None,
        limit: int = 100,
        after: Any = None,
        revision: int | None = None,
    ) -> dict[str, Any]:
        return self.ask(Top(False, self.now_us, period, revision, limit, after))

    def scores(self, period: str | None = None, revision: int | None = None) -> dict[str, Any]:
        """Return the members' scores in a window, best first."""
        entries = self.top(period, revision=revision)["entries"]
        return {entry["member"]: entry["score"] for entry in entries}

    def member(self, member: str, period: str | None = None) -> dict[str, Any]:
        return self.ask(Member(False, self.now_us, period, None, member))

    def digest(self, period: str, revision: int | None = None) -> str:
        digest: str = self.ask(Digest(False, self.now_us, period, revision))["digest"]
        return digest

    def periods(
        self, kind: str | None = None, limit: int = 100, after: Any = None
    ) -> dict[str, Any]:
        return self.ask(Periods(False, self.now_us, kind, limit, after))

    def ids(self, kind: str | None = None) -> list[str]:
        """List the ids of the windows, newest first."""
        return [item["id"] for item in self.periods(kind)["periods"]]

    @property
    def archives(self) -> set[str]:
        """Name the archive files that are there."""
        return {path.name for path in (self.directory / "archives").glob("*")}

    # Keeping

    def seal(self) -> None:
        """Write what is closed to its archives, and let it leave memory."""
        self.host.seal_all()

    def rebuild(self) -> None:
        """Make archives that are lost or damaged again."""
        if self.host.archives.missing:
            self.host.make_archives(self.host.archives.sealed)

    def snapshot(self) -> None:
        self.host.write_copy(self.host.copy_state())

    def reopen(self, *lost: str) -> None:
        """Stop the board where it stands, lose some of its directories, and open it again."""
        self.host.close()
        for name in lost:
            shutil.rmtree(self.directory / name, ignore_errors=True)
        self.host = LoggedBoard.open(self.directory, self._options)

    def close(self) -> None:
        self.host.close()
