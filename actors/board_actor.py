"""The process that hosts one board: its loop, its writer thread, its batches.

Owns when things happen. State changes only on the loop, in one step without awaits; commits run in
the one writer thread while reads are answered; what gathers during a commit goes out as the next.
An error of a commit ends the process with EXIT_COMMIT_FAILED before anything is answered, and the
next one recovers. A board that cannot be opened stays here unopened, says why, and is tried again
after a back-off; when a process that ended is followed by another is for the node to say. It must
not know HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec

from actors import queries, questions
from actors.calls import serve_calls
from actors.errors import Refusal
from actors.garbage import spare_what_is_loaded
from actors.keeper import Keeper, StoppedError
from actors.last_words import end_process
from actors.logged_board import BoardOptions, LoggedBoard, Walked
from actors.measures import Measures, Observer, resident_bytes, snapshot_time_us
from actors.moderation import answer_ruling
from actors.questions import (
    NOT_AT_HAND,
    Ask,
    Change,
    Describe,
    LogQuestion,
    Question,
    Reply,
    Submit,
    Verdict,
)
from actors.replay import describe_recovery
from actors.replies import LogReader, damaged, refused, reply_at_once
from actors.sealed import NotAtHandError
from actors.submission import Submission, parse_submission
from persistence.errors import (
    CommitFailedError,
    DamagedError,
    FencedError,
    RanknodeError,
    StorageFullError,
)
from persistence.records import Record

_LOG = logging.getLogger("ranknode.board")

OPEN_RETRY_SECONDS_MAX = 60.0
TICK_SECONDS = 0.25  # how late a window may close by itself
FETCHES_MAX = 3  # an archive that was fetched may be pushed out before it is asked
READ_SLICE_SECONDS = 0.005  # reads give way to others after this long


class ActorOptions(msgspec.Struct, frozen=True):
    """How a board is hosted.

    commit_events_max: events gathered into one commit. node_directory: of the node that runs the
    process, for its socket, and for why it ended itself; open to one user alone.
    """

    board: BoardOptions
    commit_events_max: int
    node_directory: str = ""


class OpenReport(msgspec.Struct, frozen=True):
    """What opening a board came to: how it was recovered, or why it could not be and until when."""

    recovered: str = ""
    failure: str = ""
    retry_after_seconds: float = 0.0


class _Ruling(NamedTuple):
    """A verdict, and the events that were read for it."""

    verdict: Verdict
    walked: Walked | None


class _Upkeep(NamedTuple):
    """Work of the keeper's that nothing else may come between."""

    work: Callable[[], Awaitable[None]]


class _Job(NamedTuple):
    """A submission, a change, a verdict or upkeep in the writer's queue."""

    work: Submission | Change | _Ruling | _Upkeep
    events: int
    reply: asyncio.Future[Reply]


def _now_us() -> int:
    return time.time_ns() // 1_000


class BoardActor:
    """One board behind methods that take and return bytes, `read` and `write` before all."""

    def __init__(self, directory: str, options: bytes) -> None:
        self._directory = Path(directory)
        self._options = msgspec.msgpack.decode(options, type=ActorOptions)
        self._writer = ThreadPoolExecutor(1, "writer")
        self._ticking: asyncio.Task[None] | None = None
        self._log_reader = LogReader()
        self._opening = asyncio.Lock()
        self._host: LoggedBoard | None = None
        self._keeper: Keeper
        self._failure: Refusal | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._queue: deque[_Job] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._damage_logged: set[str] = set()
        self._measures = Measures()
        self._observer = Observer()
        self._moved = asyncio.Condition()
        self._closing = False
        self._socket = ""
        self._server: asyncio.Server | None = None

    async def listen(self) -> str:
        """Take calls at a socket from now on, the board opened or not; returns its path."""
        self._socket = f"{self._options.node_directory}/{os.getpid()}.calls"
        self._server = await serve_calls(
            self._socket,
            {
                "read": self.read,
                "write": self._write_by_call,
                "read_slowly": self.read_slowly,
                "wait_for": self._wait_for,
                "measure": self.measure,
                "close": self._close,
            },
            lambda: 0 if self._host is None else self._host.board.sequence,
            lambda: 0 if self._host is None else self._host.board.rulings.last_sequence,
        )
        return self._socket

    # Opening

    async def open(self) -> bytes:
        """Open the board if it is not open yet; answers with an OpenReport, never raises."""
        try:
            host = await self._opened()
        except Refusal as refusal:
            failure = str(refusal.__cause__ or refusal)
            wait_seconds = max(self._retry_at - time.monotonic(), 0.0)
            return msgspec.msgpack.encode(
                OpenReport(failure=failure, retry_after_seconds=wait_seconds)
            )
        return msgspec.msgpack.encode(OpenReport(recovered=describe_recovery(host.report)))

    async def wait_for_end(self) -> None:
        """Never answer: whoever waits for this hears from Ray when the process has ended."""
        await asyncio.Future()

    async def _opened(self) -> LoggedBoard:
        """Return the open board. Errors: Refusal board_unavailable."""
        if self._host is not None:
            return self._host
        async with self._opening:
            if self._host is not None:
                return self._host
            if self._closing:
                raise Refusal("board_unavailable", "the board is being put away")
            if self._failure is not None and time.monotonic() < self._retry_at:
                raise self._failure
            await self._open_now()
            assert self._host is not None
            return self._host

    async def _open_now(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            host = await loop.run_in_executor(self._writer, self._open_and_close_due)
        except CommitFailedError as error:
            self._end(str(error))
        except (RanknodeError, OSError) as error:
            self._failures += 1
            wait_seconds = min(2.0**self._failures, OPEN_RETRY_SECONDS_MAX)
            self._retry_at = time.monotonic() + wait_seconds
            self._failure = Refusal(
                "board_unavailable",
                f"the board cannot be brought up ({type(error).__name__}); the node's log says why",
                retry_after_seconds=round(wait_seconds),
            )
            raise self._failure from error
        self._failure, self._failures = None, 0
        spare_what_is_loaded()
        self._host = host
        self._observer = Observer()
        self._keeper = Keeper(
            host,
            lambda error: self._end(repr(error)),
            self._exclusively,
            self._writer,
            self._measures,
        )
        self._ticking = asyncio.create_task(self._tick(host))
        self._ticking.add_done_callback(self._end_on_error)
        self._keeper.seal_soon()
        self._keeper.erase_soon()
        self._log_reader.check_soon(host)

    def _open_and_close_due(self) -> LoggedBoard:
        """Open the board, and close what came due meanwhile before anyone asks for it."""
        host = LoggedBoard.open(self._directory, self._options.board)
        try:
            self._measures.recovered(host.report, snapshot_time_us(self._directory))
            host.close_due(_now_us())
        except StorageFullError:
            pass  # it is tried again on every tick; until then the windows stay open
        except BaseException:
            host.close()
            raise
        return host

    async def _tick(self, host: LoggedBoard) -> None:
        """Close windows when they are due, whether or not anyone writes."""
        while not self._closing and host is self._host:
            if host.board.due(_now_us()) and (host.log.claimed or host.log.claimable):
                self._write_soon()
            if host.log.claimed:
                self._keeper.erase_soon()
            await asyncio.sleep(TICK_SECONDS)

    # Reading

    async def read(self, payload: bytes) -> bytes:
        """Answer a list of asks with a list of replies, each by itself."""
        asks = questions.decode_asks(payload)
        try:
            host = await self._opened()
        except Refusal as refusal:
            return questions.encode([refused(refusal)] * len(asks))
        replies = []
        slice_ends = time.monotonic() + READ_SLICE_SECONDS
        for ask in asks:
            try:
                replies.append(reply_at_once(host, ask))
            except NotAtHandError:
                replies.append(refused(Refusal(NOT_AT_HAND, "it is on disk")))
            if time.monotonic() > slice_ends:
                await asyncio.sleep(0)
                slice_ends = time.monotonic() + READ_SLICE_SECONDS
        return questions.encode(replies)

    async def read_slowly(self, payload: bytes) -> bytes:
        """Answer asks whose answers must be fetched from disk first, one after the other."""
        try:
            host = await self._opened()
            replies = [
                await self._fetch_and_answer(host, ask) for ask in questions.decode_asks(payload)
            ]
        except Refusal as refusal:
            replies = [refused(refusal)] * len(questions.decode_asks(payload))
        return questions.encode(replies)

    async def _fetch_and_answer(self, host: LoggedBoard, ask: Ask) -> Reply:
        if isinstance(ask.question, LogQuestion) and host.board.sequence >= ask.min_sequence:
            return await self._log_reader.reply(host, ask.question)
        for _ in range(FETCHES_MAX):
            try:
                return reply_at_once(host, ask)
            except NotAtHandError as error:
                await self._keeper.fetch(error)
        raise Refusal("board_unavailable", "the window's archive is being pushed out of memory")

    async def wait_for(self, sequence: int, seconds: float) -> None:
        """Return when the board has reached `sequence`, after `seconds`, or if it is not open."""
        host = self._host
        if host is None:
            return

        async def reached() -> None:
            async with self._moved:
                await self._moved.wait_for(lambda: host.board.sequence >= sequence)

        try:
            await asyncio.wait_for(reached(), seconds)
        except TimeoutError:
            return

    async def _write_by_call(self, payload: bytes) -> bytes:
        """Write, unless the board is being put away: then the process ends without an answer.

        Whoever asks meanwhile, as another gateway may, asks the next process.
        """
        if self._closing:
            await asyncio.Future()
        return await self.write(payload)

    async def _wait_for(self, payload: bytes) -> bytes:
        await self.wait_for(*msgspec.msgpack.decode(payload, type=tuple[int, float]))
        return b""

    # Writing

    async def write(self, payload: bytes) -> bytes:
        """Submit and change: each ask is one submission or change, each reply its result."""
        asks = questions.decode_asks(payload)
        try:
            await self._opened()
        except Refusal as refusal:
            return questions.encode([refused(refusal)] * len(asks))
        replies: list[Reply | asyncio.Future[Reply]] = [self._enqueue(ask.question) for ask in asks]
        return questions.encode(
            [reply if isinstance(reply, Reply) else await reply for reply in replies]
        )

    def _enqueue(self, question: Question) -> Reply | asyncio.Future[Reply]:
        if self._closing:
            return refused(Refusal("board_unavailable", "the board is being put away"))
        if isinstance(question, Submit):
            try:
                submission = parse_submission(question)
            except Refusal as refusal:
                return refused(refusal)
            return self._queued(submission, len(submission.events))
        if isinstance(question, Verdict):
            return asyncio.create_task(self._walk_and_rule(question))
        assert isinstance(question, Change)
        return self._queued(question)

    def _queued(
        self, work: Submission | Change | _Ruling | _Upkeep, events: int = 0
    ) -> asyncio.Future[Reply]:
        job = _Job(work, events, asyncio.Future())
        self._queue.append(job)
        self._write_soon()
        return job.reply

    async def _walk_and_rule(self, verdict: Verdict) -> Reply:
        """Read what a verdict needs, which may be much, before it takes its turn."""
        try:
            walked = await self._log_reader.walk(await self._opened(), verdict)
        except Refusal as refusal:
            return refused(refusal)
        if self._closing:
            return refused(Refusal("board_unavailable", "the board is being put away"))
        return await self._queued(_Ruling(verdict, walked))

    def _write_soon(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_queued())
            self._writing.add_done_callback(self._end_on_error)

    def _gather(self) -> list[_Job]:
        """Take from the queue what goes into one commit: submissions together, a change alone."""
        jobs = [self._queue.popleft()]
        if isinstance(jobs[0].work, Submission):
            events = jobs[0].events
            while self._queue and isinstance(self._queue[0].work, Submission):
                events += self._queue[0].events
                if events > self._options.commit_events_max:
                    break
                jobs.append(self._queue.popleft())
        return jobs

    async def _write_queued(self) -> None:
        host = await self._opened()
        while True:
            if not host.log.claimed and host.log.claimable:
                host = await self._reopened(host)
            await self._close_due(host)
            if not self._queue:
                return
            jobs = self._gather()
            if isinstance(jobs[0].work, _Upkeep):
                await self._keep_up(jobs[0].work, jobs[0].reply)
                continue
            if isinstance(jobs[0].work, Change):
                replies = [await self._change(host, jobs[0].work)]
            elif isinstance(jobs[0].work, _Ruling):
                replies = [await self._rule(host, jobs[0].work)]
            else:
                replies = await self._submit(host, jobs)
            for job, reply in zip(jobs, replies, strict=True):
                if not job.reply.done():
                    job.reply.set_result(reply)
            async with self._moved:
                self._moved.notify_all()
            await self._keeper.copy_if_due()

    async def _exclusively(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do some work between two commits. Errors: StoppedError, those of the work."""
        if self._closing:
            raise StoppedError
        await self._queued(_Upkeep(work))

    async def _keep_up(self, upkeep: _Upkeep, done: asyncio.Future[Reply]) -> None:
        """Do the keeper's work, whose errors are the keeper's to judge."""
        try:
            await upkeep.work()
        except (RanknodeError, OSError) as error:
            done.set_exception(error)
        else:
            done.set_result(Reply())
        async with self._moved:
            self._moved.notify_all()

    async def _reopened(self, host: LoggedBoard) -> LoggedBoard:
        """Open the board again, now that there is room to become its writer."""
        self._host = None
        self._keeper.stop()
        for job in self._queue:
            if isinstance(job.work, _Upkeep):
                job.reply.set_exception(StoppedError())
        self._queue = deque(job for job in self._queue if not isinstance(job.work, _Upkeep))
        await self._keeper.finish(0)
        await asyncio.get_running_loop().run_in_executor(self._writer, host.close)
        return await self._opened()

    async def _submit(self, host: LoggedBoard, jobs: list[_Job]) -> list[Reply]:
        submissions = [job.work for job in jobs if isinstance(job.work, Submission)]
        planned = host.plan(submissions, _now_us())
        for damage in planned.damage:
            if damage not in self._damage_logged:
                self._damage_logged.add(damage)
                self._measures.damaged_records += 1
                _LOG.error("%s: the log is damaged: %s", host.directory, damage)
        if planned.record is not None:
            try:
                await self._commit(host, [planned.record])
            except StorageFullError as error:
                self._measures.refuse("storage_full", sum(job.events for job in jobs))
                return [refused(Refusal("storage_full", str(error)))] * len(jobs)
        replies = host.settle(planned)
        self._measures.settled(planned, _now_us())
        return replies

    async def _close_due(self, host: LoggedBoard) -> None:
        """Close the windows that are due before anything else is planned."""
        now_us = _now_us()
        while host.log.claimed and (records := host.closings(now_us)):
            try:
                await self._commit(host, records)
            except StorageFullError:
                return
            host.apply_all(records)
            self._keeper.seal_soon()

    async def _change(self, host: LoggedBoard, change: Change) -> Reply:
        try:
            record = host.changed_definition(change)
            if record is not None:
                await self._commit(host, [record])
                host.apply_all([record])
                self._keeper.seal_soon()
                await self._close_due(host)
        except Refusal as refusal:
            return refused(refusal)
        except StorageFullError as error:
            return refused(Refusal("storage_full", str(error)))
        describe = Describe(change.packed, change.now_us)
        return Reply(queries.answer(host.board, host.archives, describe))

    async def _rule(self, host: LoggedBoard, ruling: _Ruling) -> Reply:
        """Let a moderator's verdict be a record, and apply it to closed windows as well."""
        loop = asyncio.get_running_loop()
        await self._keeper.sealed()
        try:
            planned = await loop.run_in_executor(self._writer, host.plan_ruling, *ruling)
            if planned.record is not None:
                await self._commit(host, [planned.record])
                host.rule(planned)
                self._keeper.seal_soon()
                self._keeper.erase_soon()
        except Refusal as refusal:
            self._keeper.seal_soon()  # it may be for an archive that has to be made again
            return refused(refusal)
        except StorageFullError as error:
            return refused(Refusal("storage_full", str(error)))
        except DamagedError as error:
            return refused(damaged(host, error))
        return Reply(answer_ruling(host.board, ruling.verdict, planned.sequence))

    async def _commit(self, host: LoggedBoard, records: Sequence[Record]) -> None:
        """Commit in the writer thread. A commit that fails in itself ends the process."""
        loop = asyncio.get_running_loop()
        begun = time.monotonic()
        try:
            await loop.run_in_executor(self._writer, host.commit, records)
        except (CommitFailedError, FencedError) as error:
            self._end(str(error))
        self._measures.commit_seconds.add(time.monotonic() - begun)

    def _end(self, reason: str) -> NoReturn:
        end_process(self._directory.name, self._options.node_directory, reason)

    def _end_on_error(self, task: asyncio.Task[Any]) -> None:
        """Stop the board after a programmer's error: it recovers from what is on disk."""
        if not task.cancelled() and task.exception() is not None:
            self._end(repr(task.exception()))

    # Watching

    async def measure(self, _payload: bytes = b"") -> bytes:
        """Answer with the Measures of this process, whether or not the board is open."""
        host, measures = self._host, self._measures
        measures.resident_bytes = resident_bytes()
        measures.state = None
        if host is not None:
            at_us = measures.snapshot_at_us
            age_seconds = None if at_us is None else max(_now_us() - at_us, 0) / 1_000_000
            queued = [job.events for job in self._queue]
            measures.state = self._observer.look(host, age_seconds, queued)
        return msgspec.msgpack.encode(measures)

    # Putting away

    async def close(self, snapshot_seconds: float) -> bool:
        """Finish what is queued, snapshot if that fits into `snapshot_seconds`, give up the board.

        Returns whether the newest snapshot holds everything.
        """
        self._closing = True
        if self._host is None:
            return False
        host, loop = self._host, asyncio.get_running_loop()
        if self._writing is not None:
            await self._writing
        await self._keeper.finish(snapshot_seconds)
        await loop.run_in_executor(self._writer, host.close)
        return host.snapshot_current

    async def _close(self, payload: bytes) -> bytes:
        await self.close(msgspec.msgpack.decode(payload, type=float))
        self._leave_socket()
        return b""

    def _leave_socket(self) -> None:
        if self._server is not None:
            self._server.close()
        Path(self._socket).unlink(missing_ok=True)
