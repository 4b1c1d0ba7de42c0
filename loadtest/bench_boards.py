"""Measure how a board grows: one of many millions of members, and many small ones on one node.

`python -m loadtest.bench_boards WHAT [--members N]` prints a Markdown table, and writes it to
loadtest/results/boards-WHAT.md; it ends with 1 where a mark is missed. WHAT is

    large   one board of 25 million: memory, recovery, reads while a snapshot is made. It takes
            ten minutes, 8 GB in a temporary directory and as much memory
    many    two hundred boards, fifty in memory: memory, bringing up, putting away
    sizes   what a rank and an event cost a board of 10 thousand to 10 million
    replay  how long a board takes to come up, from a snapshot and from its log alone
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from loadtest.board_marks import Figure, table
from loadtest.filled_boards import default_options
from loadtest.large_figures import large_figures, traffic_for
from loadtest.machine import describe
from loadtest.many_figures import Boards, many_figures
from loadtest.replay_figures import replay_figures
from loadtest.size_figures import size_figures

RESULTS = Path("loadtest/results")
SIZE_ROUNDS = 15


class Work(NamedTuple):
    """Something to measure. measure: takes a directory and a number of members."""

    title: str
    members: int
    measure: Callable[[Path, int], Iterator[Figure]]


WORKS = {
    "large": Work(
        "One large board",
        25_000_000,
        lambda directory, members: large_figures(
            directory, default_options(), members, traffic_for(members)
        ),
    ),
    "many": Work(
        "Many boards on one node",
        1_000,
        lambda directory, members: many_figures(
            directory, default_options(), Boards(members=members)
        ),
    ),
    "sizes": Work(
        "Cost by the size of a board",
        10_000_000,
        lambda directory, members: size_figures(directory, default_options(), members, SIZE_ROUNDS),
    ),
    "replay": Work(
        "Bringing a board up",
        1_000_000,
        lambda directory, members: replay_figures(directory, default_options(), members),
    ),
}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=WORKS)
    parser.add_argument("--members", type=int, help="of a board, the largest one of several")
    options = parser.parse_args()
    work = WORKS[options.what]
    members = options.members or work.members
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that the node ends
    figures: list[Figure] = []

    def noted(measured: Iterator[Figure]) -> Iterator[Figure]:
        for figure in measured:
            figures.append(figure)
            yield figure

    lines = []
    with tempfile.TemporaryDirectory(prefix="ranknode-bench-") as directory:
        lines.append(f"# {work.title}\n\n{describe(Path(directory))}\n")
        print(lines[0], end="")
        for line in table(noted(work.measure(Path(directory), members))):
            print(line, end="", flush=True)
            lines.append(line)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"boards-{options.what}.md"
    path.write_text("".join(lines))
    print(f"\nwritten: {path}")
    raise SystemExit(1 if any(figure.missed for figure in figures) else 0)


if __name__ == "__main__":
    main()
