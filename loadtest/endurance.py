"""A hundred simulated days: what grows, and what does not.

Ten million events of two hundred thousand members go through one board as the node's actor would
write them, with the default configuration, against a clock that is moved by hand. Each day notes
memory, commit times and bytes; every tenth day the board is closed and recovered. Memory must level
off once keys are old enough to be forgotten; only the log may go on growing.
"""

from __future__ import annotations

import argparse
import csv
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl

from actors.creation import create_board
from actors.definition import parse_definition
from actors.logged_board import BoardOptions, LoggedBoard
from actors.questions import Submit
from actors.submission import parse_submission
from loadtest.process_memory import private_bytes
from node.config import Config
from persistence.event_log import LogOptions

DAY_US = 86_400 * 1_000_000
FIRST_DAY_US = 20_000 * DAY_US
BATCH = 1_000
SYNCS_PER_COMMIT = 2  # LMDB syncs the pages, then writes its meta page through to the disk


class Day(NamedTuple):
    """What one simulated day came to; recovery_seconds is 0 on days without one."""

    day: int
    events: int
    private_mib: float
    board_mib: float
    log_mib: float
    commit_ms_median: float
    commit_ms_p99: float
    written_bytes_per_event: float
    recovery_seconds: float


def _written_bytes() -> int:
    """Bytes that this process caused to be sent to the disk."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["write_bytes"])


def _disk_bytes(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def _bodies(
    draw: random.Random, members: int, day: int, events: int
) -> Iterator[tuple[bytes, int]]:
    """Yield a day's batches as request bodies, each with its time of receipt."""
    for first in range(0, events, BATCH):
        now_us = FIRST_DAY_US + day * DAY_US + first * (DAY_US // events)
        rows = ",".join(
            f'{{"member":"member-{draw.randrange(members):017d}","value":{draw.randrange(1000)},'
            f'"idempotency_key":"day-{day}/event-{first + i}"}}'
            for i in range(min(BATCH, events - first))
        )
        yield f'{{"events":[{rows}]}}'.encode(), now_us


def _one_day(
    host: LoggedBoard, draw: random.Random, members: int, day: int, events: int
) -> list[float]:
    """Write a day's events; returns the commits' times in milliseconds."""
    commits = []
    for body, now_us in _bodies(draw, members, day, events):
        submission = parse_submission(Submit(False, now_us, body, body_packed=False))
        planned = host.plan([submission], now_us)
        if planned.record is not None:
            begun = time.perf_counter()
            host.commit([planned.record])
            commits.append(1e3 * (time.perf_counter() - begun))
        host.settle(planned)
        if host.snapshot_due:
            host.write_copy(host.copy_state())
    return commits


def run(directory: Path, days: int, events: int, members: int) -> list[Day]:
    """Simulate `days` days of `events` events each; returns a row a day."""
    config = Config(data_directory=str(directory))
    log_options = LogOptions(
        segment_events_max=config.segment_events_max,
        segment_bytes_max=config.segment_bytes_max,
        reserved_free_bytes=config.reserved_free_bytes,
    )
    options = BoardOptions(log_options, config.snapshot_events)
    path = directory / "endurance"
    definition = parse_definition(b'{"aggregation":"sum"}', packed=False)
    create_board(path, "endurance", definition, FIRST_DAY_US, options)
    host = LoggedBoard.open(path, options)
    draw = random.Random(1)
    rows = []
    for day in range(days):
        before = _written_bytes()
        commits = _one_day(host, draw, members, day, events)
        written = (_written_bytes() - before) / events
        recovery_seconds = 0.0
        if day % 10 == 9:
            digest = host.board.state_digest()
            host.close()
            begun = time.perf_counter()
            host = LoggedBoard.open(path, options)
            recovery_seconds = time.perf_counter() - begun
            if host.board.state_digest() != digest:
                raise SystemExit(f"day {day}: the recovered board has another digest")
        rows.append(
            Day(
                day + 1,
                (day + 1) * events,
                private_bytes() / 2**20,
                host.board.nbytes / 2**20,
                _disk_bytes(path / "log") / 2**20,
                statistics.median(commits),
                statistics.quantiles(commits, n=100)[98],
                written,
                recovery_seconds,
            )
        )
        print(_line(rows[-1]), flush=True)
    host.close()
    return rows


def _line(row: Day) -> str:
    recovery = f"{row.recovery_seconds:.2f}" if row.recovery_seconds else ""
    return (
        f"| {row.day} | {row.events} | {row.private_mib:.0f} | {row.board_mib:.0f}"
        f" | {row.log_mib:.0f} | {row.commit_ms_median:.2f} | {row.commit_ms_p99:.2f}"
        f" | {row.written_bytes_per_event:.0f} | {SYNCS_PER_COMMIT / BATCH:.3f} | {recovery} |"
    )


def _plot(rows: list[Day], path: Path) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415  (after the choice of a backend)

    figure, axes = plt.subplots(3, 1, sharex=True, figsize=(8, 9))
    days = [row.day for row in rows]
    axes[0].plot(days, [row.private_mib for row in rows], label="process, private")
    axes[0].plot(days, [row.board_mib for row in rows], label="board's structures")
    axes[0].set_ylabel("memory, MiB")
    axes[1].plot(days, [row.commit_ms_median for row in rows], label="median")
    axes[1].plot(days, [row.commit_ms_p99 for row in rows], label="99th percentile")
    axes[1].set_ylabel("commit of 1,000 events, ms")
    recovered = [row for row in rows if row.recovery_seconds]
    axes[2].plot(
        [row.day for row in recovered],
        [row.recovery_seconds for row in recovered],
        "o-",
        label="recovery",
    )
    axes[2].set_ylabel("seconds")
    axes[2].set_xlabel("simulated day")
    for axis in axes:
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Run from the command line; the table goes to standard output, files to loadtest/results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--days", type=int, default=100)
    parser.add_argument("--events", type=int, default=100_000, help="events a day")
    parser.add_argument("--members", type=int, default=200_000)
    options = parser.parse_args()
    print(f"Sync mode: every commit synced (LMDB sync=True). Python {sys.version.split()[0]}.\n")
    print(
        "| day | events | private MiB | board MiB | log MiB | commit ms median | p99"
        " | bytes written/event | syncs/event | recovery s |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    results = Path("loadtest/results")
    results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=results) as directory:
        rows = run(Path(directory), options.days, options.events, options.members)
    with (results / "endurance.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Day._fields)
        writer.writerows(rows)
    _plot(rows, results / "endurance.png")
    print(f"\nPlot: {results / 'endurance.png'}")


if __name__ == "__main__":
    main()
