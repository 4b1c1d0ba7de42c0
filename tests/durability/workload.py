"""One board hosted by its real actor, without Ray, from a script that a seed makes.

    python -m tests.durability.workload DIRECTORY JOURNAL [--seed N] [--commits K] [--plant NAME]

DIRECTORY is a node's data directory; what was acknowledged is in JOURNAL before it is marked. Run
again after a crash it recovers, does the step it was in once more with the same keys, and goes on.
Its clock is the script's. Ends with 0, with 74 as a board's process does after a failed commit, or
with EXIT_REFUSED when the same step was refused several times. `check` says whether all is there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from actors import board_actor
from actors.board_actor import NOT_AT_HAND, ActorOptions, BoardActor
from actors.definition import parse_definition
from actors.directory import Directory
from actors.questions import (
    Ask,
    Change,
    Digest,
    Question,
    Reply,
    Submit,
    Top,
    decode_replies,
    encode,
)
from persistence.errors import RanknodeError
from tests.durability.checker import check
from tests.durability.journal_file import Journal
from tests.durability.plants import PLANTS
from tests.durability.script import (
    COMMITS,
    DEFINITION,
    OPTIONS,
    Create,
    Delete,
    Patch,
    Publish,
    Reopen,
    Step,
    Write,
    script,
)

__all__ = ["EXIT_REFUSED", "check", "main", "run"]

EXIT_REFUSED = 75
ATTEMPTS_MAX = 4
NEVER_SECONDS = 3_600.0
OPTIONS_OF_ACTOR = ActorOptions(OPTIONS, commit_events_max=12)


class RefusedError(Exception):
    """Raised when a step was not done; it may be tried again."""


class Workload:
    """The steps of a script against the boards of a data directory."""

    def __init__(self, directory: Path, journal: Journal) -> None:
        self._journal = journal
        self._directory = Directory(directory, OPTIONS_OF_ACTOR)
        self._actors: dict[str, BoardActor] = {}
        self._now_us = 0
        # Nothing happens by itself at an instant that no script knows.
        board_actor._now_us = lambda: self._now_us
        board_actor.TICK_SECONDS = NEVER_SECONDS
        board_actor.OPEN_RETRY_SECONDS_MAX = 0.0

    async def run(self, steps: list[Step]) -> None:
        """Do what was not done yet."""
        done = {line["step"] for line in self._journal.of("done")}
        await self._patiently(self._scan, "the boards are looked for")
        for step in steps:
            if step.number in done:
                continue
            self._now_us = step.at_us
            what = type(step).__name__
            about = {"step": step.number, "what": what, "at_us": step.at_us, "board": step.board}
            self._journal.note("trying", **about)
            await self._patiently(partial(self._do, step), f"step {step.number}")
            self._journal.note("done", step=step.number)
        for board in list(self._actors):
            await self._put_away(board, 0.0)

    async def _patiently(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        """Do something, as a client does that repeats what was refused."""
        for attempt in range(ATTEMPTS_MAX):
            try:
                await work()
            except (RefusedError, RanknodeError, OSError) as error:
                self._journal.note("refused", work=name, why=repr(error))
                if attempt == ATTEMPTS_MAX - 1:
                    raise RefusedError(f"{name}: {error!r}") from error
            else:
                return

    async def _scan(self) -> None:
        self._directory.scan()

    async def _do(self, step: Step) -> None:
        match step:
            case Create():
                self._create(step)
            case Write():
                await self._write(step)
            case Patch():
                await self._patch(step)
            case Reopen():
                await self._put_away(step.board, step.snapshot_seconds)
                await self._actor(step.board).open()
            case Publish():
                await self._publish(step)
            case Delete():
                await self._delete(step)
        actor = self._actors.get(step.board)
        if actor is not None and actor._host is not None:
            await actor._keeper.finish(0.0)  # so that each run makes the same calls

    def _actor(self, board: str) -> BoardActor:
        if board not in self._actors:
            options = msgspec.msgpack.encode(OPTIONS_OF_ACTOR)
            self._actors[board] = BoardActor(self._directory.path(board), options)
        return self._actors[board]

    # Boards

    def _create(self, step: Create) -> None:
        """Create a board as the node does: one that is there with this definition is the same."""
        definition = parse_definition(json.dumps(DEFINITION).encode(), packed=False)
        self._directory.refresh(step.board)
        if step.board not in self._directory.listings:
            self._directory.create(step.board, definition, step.at_us)
        self._journal.acknowledge("created", board=step.board)

    async def _delete(self, step: Delete) -> None:
        await self._put_away(step.board, 0.0)
        if step.board in self._directory.listings:
            self._directory.delete(step.board)
        self._journal.acknowledge("deleted", board=step.board)
        self._directory.purge()

    async def _put_away(self, board: str, snapshot_seconds: float) -> None:
        """Put a board away as the node does: one that does not end in order recovers later."""
        actor = self._actors.pop(board, None)
        if actor is not None:
            try:
                await actor.close(snapshot_seconds)
            except OSError as error:
                self._journal.note("refused", work=f"putting {board} away", why=repr(error))

    # Writing and reading

    async def _write(self, step: Write) -> None:
        """Submit each body on its own call, and read meanwhile: what is seen is on disk, too."""
        actor = self._actor(step.board)
        await self._close_due(actor)
        top = self._ask(actor, Top(False, step.at_us, None, None, 1, None))
        bodies = [self._submit(actor, step, body) for body in step.bodies]
        *found, seen = await asyncio.gather(*bodies, top, return_exceptions=True)
        for result in (*found, seen):
            if isinstance(result, BaseException):
                raise result
        self._journal.acknowledge("seen", board=step.board, sequence=seen["sequence"])

    async def _close_due(self, actor: BoardActor) -> None:
        """Let the board close what is due, as its tick does, and seal it: each run alike."""
        await actor.open()
        if actor._host is not None and actor._host.board.due(self._now_us):
            actor._write_soon()
            assert actor._writing is not None
            await actor._writing
            await actor._keeper.finish(0.0)

    async def _submit(self, actor: BoardActor, step: Write, body: dict[str, Any]) -> None:
        sent = Submit(False, step.at_us, json.dumps(body).encode(), False)
        answer = await self._ask(actor, sent)
        events = body.get("events", [body])
        for event, result in zip(events, answer.get("results", [answer]), strict=True):
            if result["status"] == "rejected":
                assert result["code"] in ("value_not_allowed", "period_closed"), result
            else:
                self._journal.acknowledge(
                    result["status"], board=step.board, event=event, sequence=result["sequence"]
                )

    async def _patch(self, step: Patch) -> None:
        body = json.dumps(step.fields).encode()
        answer = await self._ask(self._actor(step.board), Change(False, step.at_us, body, False))
        self._journal.acknowledge(
            "changed", board=step.board, fields=step.fields, sequence=answer["sequence"]
        )

    async def _publish(self, step: Publish) -> None:
        actor = self._actor(step.board)
        await actor.open()
        assert actor._host is not None
        for window in list(actor._host.board.closed):
            answer = await self._ask(actor, Digest(False, step.at_us, window, None))
            self._journal.acknowledge(
                "published", board=step.board, window=window, digest=answer["digest"]
            )

    async def _ask(self, actor: BoardActor, question: Question) -> dict[str, Any]:
        """Ask as the gateway does. Errors: RefusedError for what may be tried again."""
        asks = encode([Ask(0, question)])
        call = actor.write if isinstance(question, Submit | Change) else actor.read
        (reply,) = decode_replies(await call(asks))
        if reply.code == NOT_AT_HAND:
            (reply,) = decode_replies(await actor.read_slowly(asks))
        return _answer(reply)


def _answer(reply: Reply) -> dict[str, Any]:
    if reply.code in ("board_unavailable", "storage_full"):
        raise RefusedError(reply.code, reply.detail)
    if reply.code:
        return {"status": "rejected", "code": reply.code} | reply.extra
    answer: dict[str, Any] = json.loads(reply.body)
    return answer


def run(directory: Path, journal: Path, seed: int, commits: int = COMMITS, plant: str = "") -> int:
    """Run the workload in this process, which afterwards is of no other use; returns its code."""
    if plant:
        PLANTS[plant]()
    logging.disable()
    try:
        asyncio.run(Workload(directory, Journal.read(journal)).run(script(seed, commits)))
    except RefusedError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_REFUSED
    return 0


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commits", type=int, default=COMMITS)
    parser.add_argument("--plant", choices=PLANTS, default="")
    options = parser.parse_args()
    sys.exit(run(options.directory, options.journal, options.seed, options.commits, options.plant))


if __name__ == "__main__":
    main()
