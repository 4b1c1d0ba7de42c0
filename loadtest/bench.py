"""ranknode side by side with what a studio would run instead, on the same work on one machine.

`python -m loadtest.bench [--only rank,top] [--members N] [--seconds S] [--rounds N]` prints a
table of each kind of work and of the marks, and writes them with plots into `loadtest/results/`.
What a machine lacks (Redis, Node) is left out, and said. It ends with 1 where a mark is missed.
`--logged 10000000` also takes batches on a board with so many events, which takes minutes to fill.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from loadtest.bench_batches import measure_batches
from loadtest.bench_data import STRIDE, TOP_LIMIT
from loadtest.bench_http import Bench, measure_event, measure_rank, measure_top
from loadtest.bench_marks import WORKS, Results, verdicts
from loadtest.bench_memory import measure_memory
from loadtest.bench_report import document, plot
from loadtest.bench_restart import measure_restart
from loadtest.bench_systems import Seeds, require_agreement, running_systems
from loadtest.bench_visible import measure_visible
from loadtest.client_process import ClientProcess
from loadtest.machine import describe

READ_CONNECTIONS = (1, 32, 128)
EVENT_CONNECTIONS = (32, 128)
RESULTS = Path("loadtest/results")


class Plan(NamedTuple):
    """What is measured. seconds: of a run; rounds: of everything; logged: see Seeds."""

    works: tuple[str, ...] = tuple(WORKS)
    members: int = 1_000_000
    seconds: float = 3.0
    rounds: int = 3
    logged: int = 0


def measure(directory: Path, plan: Plan) -> tuple[Results, dict[str, str]]:
    """Measure what was planned, with all data below `directory`, which is empty.

    Returns the figures, and what was skipped and why. Errors: SystemExit for an answer that is
    wrong or does not come.
    """
    results = Results()
    skipped: dict[str, str] = {}
    seeds = Seeds(directory, plan.members, plan.logged)
    if "memory" in plan.works:
        _say("memory")
        skipped |= measure_memory(directory / "memory", seeds, results, plan.members)
    if "restart" in plan.works:
        _say("restart")
        place = directory / "restart"
        skipped |= measure_restart(place, seeds, results, plan.members, plan.rounds)
    if set(plan.works) - {"memory", "restart"}:
        with running_systems(directory, seeds) as running, ClientProcess() as clients:
            bench = Bench(
                running,
                clients,
                results,
                plan.members,
                plan.seconds,
                plan.rounds,
                long_log=plan.logged > 0,
            )
            require_agreement(running, plan.members)
            for work, measure_work in _OVER_HTTP.items():
                if work in plan.works:
                    _say(work)
                    measure_work(bench)
            skipped |= running.skipped
    return results, skipped


_OVER_HTTP: dict[str, Callable[[Bench], None]] = {
    "rank": partial(measure_rank, connections=READ_CONNECTIONS),
    "top": measure_top,
    "event": partial(measure_event, connections=EVENT_CONNECTIONS),
    "batches": measure_batches,
    "visible": measure_visible,
}


def _say(work: str) -> None:
    print(f"measuring: {work}", file=sys.stderr, flush=True)


def _plan() -> Plan:
    default = Plan()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", type=_works, default=default.works, help=",".join(WORKS))
    parser.add_argument("--members", type=_members, default=default.members)
    parser.add_argument("--seconds", type=float, default=default.seconds, help="of each run")
    parser.add_argument("--rounds", type=int, default=default.rounds)
    parser.add_argument("--logged", type=int, default=default.logged, help="events, for batches")
    options = parser.parse_args()
    return Plan(options.only, options.members, options.seconds, options.rounds, options.logged)


def _works(text: str) -> tuple[str, ...]:
    works = text.split(",")
    if unknown := [work for work in works if work not in WORKS]:
        raise argparse.ArgumentTypeError(f"no kind of work: {', '.join(unknown)}")
    return tuple(work for work in WORKS if work in works)


def _members(text: str) -> int:
    members = int(text)
    if not TOP_LIMIT <= members < STRIDE:
        raise argparse.ArgumentTypeError(f"from {TOP_LIMIT} to {STRIDE - 1:,}")
    return members


def main() -> None:
    """Run from the command line."""
    plan = _plan()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that all servers end
    with tempfile.TemporaryDirectory(prefix="ranknode-bench-") as directory:
        machine = describe(Path(directory))
        results, skipped = measure(Path(directory), plan)
    RESULTS.mkdir(parents=True, exist_ok=True)
    found = verdicts(results, plan.works)
    text = "".join(document(machine, plan.works, results, found, skipped))
    (RESULTS / "bench.md").write_text(text)
    print(text)
    for path in (RESULTS / "bench.md", *plot(results, plan.works, RESULTS)):
        print(f"written: {path}")
    raise SystemExit(1 if any(verdict.missed for verdict in found) else 0)


if __name__ == "__main__":
    main()
