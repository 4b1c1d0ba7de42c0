"""Cases of one fault each: the workload with a fault at one of its calls, and what came of it.

Owns how cases are drawn, run side by side and judged. A case is a child of a zygote that runs the
workload until the fault ends it, or to its end; then another that recovers, goes on to the end, and
checks after both.
"""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from tests.durability.faults import Action, Ended, State, Zygote, fast_directory
from tests.durability.trace import Entry, Op, read_trace

WORKERS = 2
SEED = 1

# What a call was about, by the path it was made on; the first that fits.
KINDS = {
    "creation": r"/boards/\.|/boards$",
    "deletion": r"/deleted(/|$)",
    "new segment": r"/log/\d{8}\.new(/|$)|/log$",
    "commit": r"/log/\d{8}/(data|lock)\.mdb$",
    "seal": r"/log/\d{8}(/sealed.*)?$",
    "head": r"/log/head(\.tmp)?$",
    "snapshot": r"/snapshots(/|$)",
    "archive": r"/archives(/|$)",
    "listing": r"/board\.msgpack(\.tmp)?$",
    "owner": r"/owner(\.lock)?$",
    "board": r"/boards/[a-z]+$",
    "data directory": r"/data$",
}
# What no step of the workload does.
OTHER_KINDS = {"log exchange": r"/boards/b/erasing$", "log being built": r"/boards/b/erasing/"}
KILLS = (Action.KILL_BEFORE, Action.KILL_AFTER, Action.TEAR)


def kind_of(path: str) -> str:
    """Name what a call on a path was about."""
    kinds = OTHER_KINDS | KINDS
    return next((kind for kind, form in kinds.items() if re.search(form, path)), "another")


@dataclass(frozen=True)
class Case:
    """A fault: what happens to the call number `at`.

    times: to how many calls; 0: to all after it. again_at: the same happens once more, to that call
    of the process that recovers; 0: it does not.
    """

    at: int
    action: Action
    times: int = 1
    seed: int = SEED
    plant: str = ""
    again_at: int = 0


@dataclass(frozen=True)
class Outcome:
    """What came of a case. hit: operation and kind; marks: acknowledgements when it ended."""

    case: Case
    fired: int
    hit: tuple[Op, str] | None
    marks: int
    ended: Ended
    recovered: Ended

    @property
    def survived(self) -> bool:
        """Whether the next process found all that was promised, and went on."""
        return self.recovered.code == 0

    def __str__(self) -> str:
        return f"{self.case} {self.hit}: {self.ended}\n{self.recovered.output}"


class Cases:
    """Zygotes and a directory for cases. Learning: `trace`. Running: `run`."""

    def __init__(self, directory: Path, zygotes: Sequence[Zygote]) -> None:
        self._directory = directory
        self._idle: SimpleQueue[tuple[Zygote, Path]] = SimpleQueue()
        self._pool = ThreadPoolExecutor(len(zygotes))
        for number, zygote in enumerate(zygotes):
            place = directory / str(number)
            place.mkdir()
            self._idle.put((zygote, place))

    def trace(self, seed: int = SEED, plant: str = "") -> list[Entry]:
        """Run the workload without a fault and return what it did; call n is entry n, from 1.

        Marks are left in, and are no calls.
        """
        with self._place() as (zygote, place), State(place / "state") as state:
            trace = place / "trace"
            ended = self._work(zygote, place, "run", seed, plant, state, trace)
            assert ended.code == 0, ended
            entries = list(read_trace(trace))
            calls = len(entries) - state.calls_by(Op.MARK)
            assert calls == state.calls, "a call failed, so that they cannot be told by number"
        return entries

    def run(self, cases: Iterable[Case]) -> list[Outcome]:
        """Run cases side by side."""
        return list(self._pool.map(self._run, cases))

    def _run(self, case: Case) -> Outcome:
        with self._place() as (zygote, place), State(place / "state") as state:
            state.arm(case.at, case.action, case.times)
            ended = self._work(zygote, place, "run", case.seed, case.plant, state)
            hit = state.hit and (state.hit[0], kind_of(state.hit[1]))
            fired, marks = state.fired, state.mark
            if case.again_at:
                state.arm(case.again_at, case.action)
                self._work(zygote, place, "run", case.seed, case.plant, state)
                fired += state.fired
            recovered = self._work(zygote, place, "recover", case.seed, case.plant)
            return Outcome(case, fired, hit, marks, ended, recovered)

    def _work(
        self,
        zygote: Zygote,
        place: Path,
        work: str,
        seed: int,
        plant: str,
        state: State | None = None,
        trace: Path | None = None,
    ) -> Ended:
        data = place / "data"
        arguments: dict[str, Any] = {
            "directory": str(data), "journal": str(place / "journal"), "seed": seed, "plant": plant,
        }  # fmt: skip
        root = data if state else None
        output = place / "output"
        return zygote.run(work, arguments, output=output, root=root, state=state, trace=trace)

    @contextmanager
    def _place(self) -> Iterator[tuple[Zygote, Path]]:
        """Lend a zygote and its place, and empty that afterwards."""
        zygote, place = self._idle.get()
        try:
            yield zygote, place
        finally:
            for path in place.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            self._idle.put((zygote, place))


CasesT = TypeVar("CasesT", bound=Cases)


@contextmanager
def cases(make: Callable[[Path, Sequence[Zygote]], CasesT]) -> Iterator[CasesT]:
    """Give Cases, or what `make` makes, with as many zygotes as run side by side."""
    with fast_directory() as directory, ExitStack() as stack:
        zygotes = [stack.enter_context(Zygote()) for _ in range(WORKERS)]
        yield make(directory, zygotes)


def calls_of(trace: Iterable[Entry]) -> list[tuple[Op, str]]:
    """List operation and kind of each call; that of call n is at n - 1."""
    return [(Op(entry.op), kind_of(entry.path)) for entry in trace if entry.op != Op.MARK]


def kills(calls: Sequence[tuple[Op, str]], seed: int = SEED, plant: str = "") -> list[Case]:
    """List a kill before and after each call, and one inside of each write."""
    return by_kind(
        calls,
        (
            Case(number, action, seed=seed, plant=plant)
            for number, (operation, _) in enumerate(calls, 1)
            for action in KILLS
            if action != Action.TEAR or operation == Op.WRITE
        ),
    )


def faults(
    calls: Sequence[tuple[Op, str]],
    action: Action,
    operations: Collection[Op],
    times: int = 1,
    plant: str = "",
) -> list[Case]:
    """List a fault of each call of some operations."""
    return by_kind(
        calls,
        (
            Case(number, action, times, SEED, plant)
            for number, (operation, _) in enumerate(calls, 1)
            if operation in operations
        ),
    )


def by_kind(calls: Sequence[tuple[Op, str]], points: Iterable[Case]) -> list[Case]:
    """Put cases of one kind side by side, so that a sample has its share of each."""
    return sorted(points, key=lambda case: calls[case.at - 1][1])


def spread(points: Sequence[Case], most: int, seed: int = SEED) -> list[Case]:
    """Draw at most `most` of the points: evenly spread, one from each stretch."""
    if len(points) <= most:
        return list(points)
    rng = random.Random(seed)  # noqa: S311  (a repeatable draw is what is wanted)
    stretch = len(points) / most
    return [points[int((number + rng.random()) * stretch)] for number in range(most)]


def require_all_fired(outcomes: Iterable[Outcome]) -> Counter[str]:
    """Assert that every case's fault fired; returns how often on what."""
    hits: Counter[str] = Counter()
    for outcome in outcomes:
        assert outcome.fired, f"{outcome.case} did not fire"
        assert outcome.hit is not None
        hits[outcome.hit[1]] += 1
    return hits


def lost(outcomes: Iterable[Outcome]) -> list[str]:
    """Tell of the cases after which something that was promised was not there."""
    return [str(outcome) for outcome in outcomes if not outcome.survived]
