"""A board's replies to questions: from its state at once, or from its log in a thread.

Owns what becomes of a question that cannot be answered: a refusal goes back as it is, a mistake of
the program is logged and takes no other question with it.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import msgspec

from actors import histories, queries
from actors.errors import Refusal
from actors.logged_board import LoggedBoard, Walked
from actors.questions import Ask, Audit, History, LogQuestion, Reply, Verdict
from actors.sealed import NotAtHandError
from persistence.errors import DamagedError
from persistence.records import Event, Record

_LOG = logging.getLogger("ranknode.board")
_ENCODE = (msgspec.json.Encoder().encode, msgspec.msgpack.Encoder().encode)


def refused(refusal: Refusal) -> Reply:
    """Make the reply of a refusal."""
    return Reply(b"", refusal.code, refusal.detail, refusal.extra)


def damaged(host: LoggedBoard, error: Exception) -> Refusal:
    """Log what of the board's files is damaged, and make the refusal of what needed it."""
    _LOG.error("%s: is damaged: %s", host.directory, error)
    return Refusal("board_unavailable", "the board's files are damaged; see the node's log")


def reply_at_once(host: LoggedBoard, ask: Ask) -> Reply:
    """Answer from what is in memory. Errors: NotAtHandError where that is not enough."""
    if host.board.sequence < ask.min_sequence:
        return refused(Refusal("not_yet", f"the board has not reached sequence {ask.min_sequence}"))
    if isinstance(ask.question, LogQuestion):
        raise NotAtHandError([], standings=False)
    try:
        return Reply(queries.answer(host.board, host.archives, ask.question))
    except Refusal as refusal:
        return refused(refusal)
    except NotAtHandError:
        raise
    except Exception:  # noqa: BLE001  one question's bug must not take the call's other questions with it
        _LOG.exception("a question could not be answered")
        return refused(Refusal("internal_error", "the board could not answer this question"))


class LogReader:
    """Replies from a board's log: one thread reads, while the board goes on."""

    def __init__(self) -> None:
        self._reader = ThreadPoolExecutor(1, "log")

    def check_soon(self, host: LoggedBoard) -> None:
        """Have the log checked as far as nobody has read it yet; nobody waits for it."""
        self._reader.submit(host.log.check_sealed)

    async def walk(self, host: LoggedBoard, verdict: Verdict) -> Walked | None:
        """Read the events that planning a verdict will need, without holding up commits."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._reader, host.walk, verdict)
        except (Refusal, DamagedError):
            return None  # planning says so

    async def reply(self, host: LoggedBoard, question: LogQuestion) -> Reply:
        """Answer a page of the log; never raises but for a mistake of the program."""
        try:
            if isinstance(question, History):
                body: object = await self._history(host, question)
            else:
                assert isinstance(question, Audit)
                body = await self._audit(host, question)
        except Refusal as refusal:
            return refused(refusal)
        except DamagedError as error:
            return refused(damaged(host, error))
        return Reply(_ENCODE[question.packed](body))

    async def _history(self, host: LoggedBoard, question: History) -> object:
        walk = histories.begin_history(host.board, question)
        member = question.member.encode()

        def read() -> list[Event]:
            return list(host.shown_log.events_of(member, walk.limit, walk.sequence))

        events = await asyncio.get_running_loop().run_in_executor(self._reader, read)
        return histories.answer_history(host.board, question, events)

    async def _audit(self, host: LoggedBoard, question: Audit) -> object:
        sequences = histories.begin_audit(host.board, question)

        def read() -> list[Record]:
            return [host.shown_log.ruling_at(sequence) for sequence in sequences]

        records = await asyncio.get_running_loop().run_in_executor(self._reader, read)
        return histories.answer_audit(host.board, records)
