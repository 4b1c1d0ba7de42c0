"""Measure what a large board answers: queries, a member's history, and how long erasing one takes.

`python -m loadtest.bench_queries [--members 1000000] [--events 10000000]` prints a Markdown table;
calls are given as median / 99th percentile / worst. It takes four minutes, 2 GB in a temporary
directory and about 1 GB of memory. It ends with 1 where a mark is missed by more than noise
explains.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from actors.logged_board import BoardOptions
from loadtest.figures import TABLE_HEAD, Figure, missed_marks
from loadtest.filled_boards import default_options
from loadtest.history_figures import Length, history_figures
from loadtest.query_figures import query_figures


class Plan(NamedTuple):
    """What is measured: a board of `members`, of which some are hidden, and a log of a length.

    calls: of each query. cold_calls, warm_calls: of a history. All in each encoding.
    """

    options: BoardOptions
    members: int = 1_000_000
    hidden: int = 1_000
    calls: int = 2_000
    length: Length = Length()
    cold_calls: int = 5
    warm_calls: int = 50


def measure(directory: Path, plan: Plan) -> Iterator[Figure]:
    """Measure boards below `directory`, one at a time; each is removed again."""
    yield from query_figures(directory, plan.options, plan.members, plan.hidden, plan.calls)
    yield from history_figures(
        directory, plan.options, plan.length, plan.cold_calls, plan.warm_calls
    )


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = Plan(default_options())
    parser.add_argument("--members", type=int, default=default.members)
    parser.add_argument("--events", type=int, default=default.length.events)
    parser.add_argument("--calls", type=int, default=default.calls, help="of each query")
    options = parser.parse_args()
    length = default.length._replace(events=options.events)
    plan = default._replace(members=options.members, calls=options.calls, length=length)
    print(f"{plan.members:,} members; calls: median / 99th percentile / worst\n\n{TABLE_HEAD}")
    figures = []
    with tempfile.TemporaryDirectory(prefix="ranknode-bench-") as directory:
        for figure in measure(Path(directory), plan):
            print(figure.line, flush=True)
            figures.append(figure)
    missed = missed_marks(figures)
    for mark in missed:
        print(f"MISSED: {mark}")
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
