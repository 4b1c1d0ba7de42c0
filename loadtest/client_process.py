"""A process for clients, so that what they do is not done in the process that measures."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

ANSWER_SECONDS_MAX = 60.0  # for a run besides what it was asked to last

Result = TypeVar("Result")
Run = Callable[[], Coroutine[Any, Any, Result]]


class ClientProcess:
    """A process that runs coroutines, one after the other: `with ClientProcess() as clients: …`."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def run(self, make: Run[Result], seconds: float) -> Result:
        """Have it run what `make` makes there, which lasts `seconds` or a little more.

        make, and what comes back: can be pickled. Errors: SystemExit where nothing comes back.
        """
        self._pipe.send(make)
        if not self._pipe.poll(seconds + ANSWER_SECONDS_MAX):
            raise SystemExit("the clients did not end")
        try:
            result: Result = self._pipe.recv()
        except EOFError:
            raise SystemExit("the clients failed; their error stands above") from None
        return result


def _serve(pipe: Connection) -> None:
    while True:
        try:
            make = pipe.recv()
        except EOFError:
            return
        pipe.send(uvloop.run(make()))
