"""Every way in which a traced run may be cut off, each recovered from and checked.

Owns the way from a trace to verdicts: the model of the disk is fed call by call, states that a cut
may leave there are written out, and a process of its own says of each whether it holds all that was
acknowledged before. What was tried with the same acknowledgements is not tried again.
"""

from __future__ import annotations

import copy
import itertools
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.durability import faults
from tests.durability.disk_model import (
    EVERYTHING,
    NAMES_ALONE,
    NOTHING,
    Choice,
    Disk,
    State,
    materialise,
    read_state,
)
from tests.durability.faults import Ended, Zygote
from tests.durability.trace import Entry, Op, read_trace
from tests.persistence.log_samples import seeded

COMMITS = 20  # of a run: long enough for a third snapshot, with which the first one goes
LANES = 2  # processes that work at once
QUEUED_MAX = 4 * LANES  # jobs in memory that wait for one
NAMING = {Op.RENAME, Op.CREATE, Op.MKDIR, Op.LINK, Op.UNLINK, Op.RMDIR}
LATER_CUTS = 1  # of a successor's run, mostly, besides the one at its end


class Run(NamedTuple):
    """A traced run of the workload below `root`: its calls in order, and its journal's lines.

    mark: the last one before the first call. found, left: what is there before and at the end.
    """

    root: Path
    seed: int
    mark: int
    entries: list[Entry]
    journal: list[tuple[int, str]]
    found: State
    left: State

    @property
    def disk(self) -> Disk:
        """Give the disk that the run began with."""
        return Disk(str(self.root), self.found)

    @property
    def cut_points(self) -> list[int]:
        """List the entries after which a cut differs from later ones: marks change no file."""
        following = [*self.entries[1:], None]
        return [n for n, entry in enumerate(following) if entry is None or entry.op != Op.MARK]

    def after(self, disk: Disk, chosen: Sequence[int]) -> Iterator[tuple[int, int, str]]:
        """Feed the run to a disk; yield index, last mark and description of each chosen entry."""
        wanted = set(chosen)
        mark = self.mark
        for index, entry in enumerate(self.entries):
            disk.apply(entry)
            mark = entry.mark if entry.op == Op.MARK else mark
            if index in wanted:
                path = entry.path.removeprefix(str(self.root))
                yield index, mark, f"after {index}, {Op(entry.op).name} {path}"

    def journal_until(self, mark: int) -> str:
        """Return the journal as it was before the acknowledgement after `mark`."""
        kept = itertools.takewhile(lambda line: line[0] <= mark, self.journal)
        return "".join(text for _, text in kept)


class Verdict(NamedTuple):
    """What became of one state: where the cut was, whether it cost anything, what was wrong."""

    where: str
    lost: bool
    wrong: str


class Laboratory:
    """Runs workloads and recovers from what cuts leave, below `directory`, which it may fill.

    Running: `record`. Trying: `cut`, `crash_then_cut`, `cut_recovery`; then `verdicts`. A context.
    steps: of the script, by which each recovered disk goes on before it is checked once more.
    beginning: what there is before a run.
    """

    def __init__(self, directory: Path, steps: int = 1, beginning: State | None = None) -> None:
        self._directory = directory
        self._beginning = beginning or State({})
        self._steps = steps
        self._numbers = itertools.count()
        self._lanes = ThreadPoolExecutor(LANES, "lane")
        self._own = threading.local()
        self._waiting = threading.BoundedSemaphore(QUEUED_MAX)
        self._jobs: list[Future[list[Verdict]]] = []
        self._seen: set[tuple[bytes, str]] = set()
        self._lock = threading.Lock()  # of `_seen`
        self._zygotes = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lanes.shutdown(cancel_futures=True)
        self._zygotes.close()

    def record(self, seed: int, plant: str = "") -> Run:
        """Run the workload to its end."""
        return self._run("run", self._beginning, "", 0, {"seed": seed, "plant": plant})

    # Trying

    def cut(self, run: Run, chosen: Sequence[int], parts: int) -> None:
        """Cut a run after the chosen entries; of what was pending, leave nothing, all, and parts.

        parts: how many states are drawn for each entry, besides the certain ones.
        """
        disk = run.disk
        for index, mark, where in run.after(disk, chosen):
            states = self._new_states(run, disk, index, mark, parts)
            self._submit(self._survive_all, run, where, mark, states)

    def crash_then_cut(
        self,
        run: Run,
        chosen: Sequence[int],
        parts: int,
        plant: str = "",
        later_cuts: int = LATER_CUTS,
    ) -> None:
        """Kill a run after the chosen entries, let a successor go on, and cut that one.

        What the killed process left pending still is when its successor begins. plant: a fault of
        the successor. later_cuts: how often its run is cut, besides at its end.
        """
        disk = run.disk
        for _, mark, where in run.after(disk, chosen):
            seen = disk.after_cut(EVERYTHING)
            carried = copy.deepcopy(disk)
            more = parts, plant, later_cuts
            self._submit(self._go_on_and_cut, run, where, mark, seen, carried, *more)

    def cut_recovery(self, run: Run, chosen: Sequence[int], parts: int) -> None:
        """Cut a run after the chosen entries, and cut the recovery from what was left again."""
        disk = run.disk
        for index, mark, where in run.after(disk, chosen):
            left = disk.after_cut(Choice.seeded(f"{run.seed} recovery {index}"))
            carried = Disk(str(run.root), left)
            more = parts, "", LATER_CUTS
            self._submit(self._go_on_and_cut, run, where, mark, left, carried, *more)

    def verdicts(self) -> list[Verdict]:
        """Wait for all that is tried, and return what came of it."""
        jobs, self._jobs = self._jobs, []
        return [verdict for job in jobs for verdict in job.result()]

    def _submit(self, job: Callable[..., list[Verdict]], *arguments: Any) -> None:
        """Let a lane do a job, in time."""
        self._waiting.acquire()
        future = self._lanes.submit(job, *arguments)
        future.add_done_callback(lambda _: self._waiting.release())
        self._jobs.append(future)

    def _new_states(
        self, run: Run, disk: Disk, index: int, mark: int, parts: int
    ) -> list[tuple[str, bool, State]]:
        """Name the states that a cut may leave here, those that were not tried, and what lacks."""
        choices = {"nothing": NOTHING, "everything": EVERYTHING, "names alone": NAMES_ALONE}
        for part in range(parts):
            choices[f"part {part}"] = Choice.seeded(f"{run.seed} {index} {part}")
        whole = disk.after_cut(EVERYTHING)
        journal = run.journal_until(mark)
        states = []
        for name, choice in choices.items():
            state = disk.after_cut(choice)
            key = (state.digest, journal)
            with self._lock:
                if key not in self._seen:
                    states.append((name, state != whole, state))
                self._seen.add(key)
        return states

    # What lanes do

    def _survive_all(
        self, run: Run, where: str, mark: int, states: list[tuple[str, bool, State]]
    ) -> list[Verdict]:
        """Recover from each state, check it, go on, and check again."""
        verdicts = []
        for name, lost, state in states:
            with self._place(state, run.journal_until(mark)) as place:
                arguments = {"seed": run.seed, "steps": self._steps}
                ended = self._work(place, "survive", arguments)
            wrong = f"code {ended.code}: {ended.output}" if ended.code else ""
            verdicts.append(Verdict(f"{where}: {name}", lost, wrong))
        return verdicts

    def _go_on_and_cut(
        self,
        run: Run,
        where: str,
        mark: int,
        state: State,
        carried: Disk,
        parts: int,
        plant: str,
        later_cuts: int,
    ) -> list[Verdict]:
        """Go on from what a crash left, and cut that at its end and at some drawn points."""
        arguments = {"seed": run.seed, "steps": self._steps, "plant": plant}
        later = self._run("go_on", state, run.journal_until(mark), mark, arguments)
        carried.root = str(later.root)
        points = later.cut_points
        rng = seeded(f"{run.seed} later {where}")
        chosen = [points[-1], *rng.sample(points, min(later_cuts, len(points)))]
        verdicts = []
        for index, later_mark, there in later.after(carried, chosen):
            states = self._new_states(later, carried, index, later_mark, parts)
            verdicts += self._survive_all(later, f"{where}, then {there}", later_mark, states)
        return verdicts

    def _run(
        self, work: str, state: State, journal: str, mark: int, arguments: dict[str, Any]
    ) -> Run:
        """Do a traced work on a disk; it must succeed, unless with a planted fault."""
        with self._place(state, journal) as place:
            ended = self._work(place, work, arguments, traced=True)
            assert ended.code == 0 or arguments["plant"], ended.output
            lines = (place / "journal").read_text().splitlines(keepends=True)
            return Run(
                root=place / "disk",
                seed=arguments["seed"],
                mark=mark,
                entries=list(read_trace(place / "trace")),
                journal=[(json.loads(line).get("mark", 0), line) for line in lines],
                found=state,
                left=read_state(place / "disk"),
            )

    def _work(
        self, place: Path, work: str, arguments: dict[str, Any], *, traced: bool = False
    ) -> Ended:
        with faults.State(place / "state") as counters:
            return self._zygote().run(
                *self._job(work, place, arguments),
                output=place / "output",
                root=place / "disk" if traced else None,
                state=counters if traced else None,
                trace=place / "trace" if traced else None,
            )

    def _job(self, work: str, place: Path, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return a zygote's work and its arguments."""
        where = {"directory": str(place / "disk"), "journal": str(place / "journal")}
        return work, where | {"commits": COMMITS} | arguments

    def _zygote(self) -> Zygote:
        """Return the zygote of the calling thread."""
        if not hasattr(self._own, "zygote"):
            self._own.zygote = self._zygotes.enter_context(Zygote())
        zygote: Zygote = self._own.zygote
        return zygote

    @contextmanager
    def _place(self, state: State, journal: str) -> Iterator[Path]:
        """Make a directory with a disk in this state and a journal."""
        place = self._directory / str(next(self._numbers))
        place.mkdir()
        materialise(state, place / "disk")
        (place / "journal").write_text(journal)
        yield place
        shutil.rmtree(place)


def sampled(run: Run, points: Sequence[int], count: int, purpose: str) -> list[int]:
    """Choose points evenly, each at a drawn place in its share of them, as `purpose` has it."""
    rng = seeded(f"{run.seed} {purpose}")
    shares = [len(points) * share // count for share in range(count + 1)]
    return [
        points[rng.randrange(low, high)] for low, high in itertools.pairwise(shares) if low < high
    ]


def naming(run: Run) -> list[int]:
    """List the entries that changed a name."""
    return [index for index, entry in enumerate(run.entries) if entry.op in NAMING]


def require_sound(verdicts: Sequence[Verdict], at_least: int) -> None:
    """Assert that as many states were tried, that cuts cost something, and that all were sound."""
    wrong = [f"{each.where}\n{each.wrong}" for each in verdicts if each.wrong]
    assert not wrong, f"{len(wrong)} of {len(verdicts)} states\n" + "\n".join(wrong[:3])
    assert len(verdicts) >= at_least
    assert sum(verdict.lost for verdict in verdicts) > len(verdicts) // 3
