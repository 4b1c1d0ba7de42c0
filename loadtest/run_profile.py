"""`make loadtest`: a profile's traffic against a node of its own, and whether it kept its promises.

The node runs over a temporary directory, Locust in a process of its own. Then the node's digests
are compared with a rebuild from its log, it is stopped, and what was acknowledged is held against
the log. Files go to `loadtest/results/PROFILE/`. What went wrong is named by a word each, with exit
code 1: errors, lost, doubled, misplaced, changed, differs. A generator that was too busy makes the
figures void, with exit code 2.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from actors.exact import parse_time
from loadtest.generator_notes import Notes, read_journals, read_notes, said_of_cup
from loadtest.nodes import HOST, Node, free_port, running_node
from loadtest.profiles import CUP, CUP_PAGE, PROFILES, Profile
from loadtest.run_report import VOID, Failure, Summary, failures, summarize, table, write_files
from loadtest.verify_journal import Cup, verify_journals

RESULTS = Path("loadtest/results")
LOCUSTFILE = Path(__file__).with_name("locustfile.py")
USERS = 256  # calls under way at most; they are due whether or not there is one free
LOCUST_SECONDS_MAX = 600.0  # for Locust besides the run, before which it fills the boards
EXIT_FAILED = 1
EXIT_VOID = 2


class Plan(NamedTuple):
    """A run. processes: that make the load together."""

    profile: Profile
    factor: float = 0.2
    seconds: float = 60.0
    processes: int = 1


class Result(NamedTuple):
    """What came of a run."""

    summary: Summary
    failures: list[Failure]

    @property
    def exit_code(self) -> int:
        """0 where all was well; what is void may still have failed."""
        words = {failure.word for failure in self.failures}
        if not words:
            return 0
        return EXIT_VOID if words == {VOID} else EXIT_FAILED


def run_profile(plan: Plan, directory: Path, results: Path) -> Result:
    """Run a profile with a node below `directory`; its files are new in `results`.

    Errors: SystemExit where the node or Locust do not do their work.
    """
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    notes_directory = directory / "notes"
    notes_directory.mkdir()
    data = directory / "data"
    with running_node(data) as node:
        _run_locust(plan, node, notes_directory, results)
        notes = read_notes(notes_directory)
        if len(notes) != plan.processes:
            raise SystemExit(f"{len(notes)} of {plan.processes} generators left notes")
        boards = notes[0].boards
        cup = (
            None if plan.profile.cup_share is None else _closed_cup(node, next(iter(boards)), notes)
        )
        differing = [board for board in boards if not _is_rebuilt(data, board, node)]
    findings = verify_journals(data, boards, read_journals(notes_directory), cup)
    summary = summarize(plan.profile.name, plan.factor, plan.seconds, notes, findings)
    found = [Failure("differs", f"{board}: see above") for board in differing]
    found += failures(summary, notes, findings)
    write_files(summary, notes, results)
    return Result(summary, found)


def _run_locust(plan: Plan, node: Node, notes: Path, results: Path) -> None:
    command = [str(Path(sys.executable).with_name("locust")), "--locustfile", str(LOCUSTFILE)]
    command += ["--host", node.url, "--headless", "--users", str(USERS), "--spawn-rate", str(USERS)]
    command += ["--traffic", plan.profile.name, "--factor", str(plan.factor)]
    command += ["--seconds", str(plan.seconds), "--notes", str(notes)]
    command += ["--csv", str(results / "locust"), "--html", str(results / "locust.html")]
    command += ["--only-summary", "--exit-code-on-error", "0"]  # errors are in the notes
    if plan.processes > 1:
        port = str(free_port())
        command += ["--processes", str(plan.processes), "--master-bind-host", HOST]
        command += ["--master-bind-port", port, "--master-port", port]
    path = results / "locust.log"
    with path.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        process.wait(plan.seconds + LOCUST_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"Locust does not end:\n{path.read_text()}") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it may be several processes
        process.wait()
    if process.returncode:
        raise SystemExit(f"Locust ended with {process.returncode}:\n{path.read_text()}")


def _closed_cup(node: Node, board: str, notes: list[Notes]) -> Cup:
    """Read the closed cup whole; its first page is compared with what was said during the run."""
    scores: dict[str, int] = {}
    after = ""
    while True:
        query = f"period={CUP}&limit={CUP_PAGE}" + (f"&after={quote(after)}" if after else "")
        status, answer = node.call("GET", f"/v1/boards/{board}/top?{query}")
        if status != 200 or not answer["period"]["closed"]:
            raise SystemExit(f"the cup is not closed: {status} {answer}")
        if not after:
            notes[0].closed_answers.append(said_of_cup(answer))
        scores |= {entry["member"]: entry["score"] for entry in answer["entries"]}
        after = answer["next"]
        if after is None:
            return Cup(parse_time(answer["period"]["end"]), scores)


def _is_rebuilt(data: Path, board: str, node: Node) -> bool:
    """Compare a board of the node with a rebuild from its log; shows what differs."""
    command = [str(Path(sys.executable).with_name("ranknode")), "rebuild", board]
    command += ["--data", str(data), "--url", node.url]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        print(ended.stdout + ended.stderr)
    return ended.returncode == 0


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = Plan(PROFILES["steady"])
    parser.add_argument("--profile", choices=sorted(PROFILES), default=default.profile.name)
    parser.add_argument("--factor", type=float, default=default.factor)
    parser.add_argument("--seconds", type=float, default=default.seconds)
    parser.add_argument("--processes", type=int, default=default.processes)
    options = parser.parse_args()
    profile = PROFILES[options.profile]
    plan = Plan(profile, options.factor, options.seconds, options.processes)
    results = RESULTS / profile.name
    with tempfile.TemporaryDirectory(prefix="ranknode-loadtest-") as directory:
        result = run_profile(plan, Path(directory), results)
    print(table(result.summary))
    print(f"\nFiles: {results}")
    for word, found in result.failures:
        print(f"{word.upper()}: {found}")
    raise SystemExit(result.exit_code)


if __name__ == "__main__":
    main()
