"""No silent corruption: whatever happens to a file, a board says what is true, or that it cannot.

Thousands of damaged boards are judged by `corruption.judge`, in processes that may die of it.
"""

from __future__ import annotations

import base64
import os
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from tests.durability.corruption import Damage, Judgement, make_scene
from tests.durability.corruption_cases import all_cases, sample
from tests.durability.faults import fast_directory

WORKERS = 2
CASE_SECONDS_MAX = 60.0  # a case takes a twentieth of a second; beyond this it hangs
SAMPLE = 450
SEED = 20261130
PLANTED_CASES = 400
# The files whose checksums a planted fault does not compare.
PLANTED = {
    "records": "log/00000003/data.mdb",
    "columns": "snapshots/",
    "head": "log/head",
    "seal": "sealed",
}


class Worker:
    """A process that judges, and is replaced when it dies or hangs."""

    def __init__(self, scene: Path, *faults: str) -> None:
        self._arguments = [
            sys.executable,
            "-m",
            "tests.durability.corruption_worker",
            scene,
            *faults,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def judge(self, case: Damage) -> Judgement:
        """Have a case judged; the end of the process is a judgement too."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(base64.b64encode(msgspec.msgpack.encode(case)) + b"\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], CASE_SECONDS_MAX)[0]:
            self.end(kill=True)
            return Judgement("hangs")
        line = process.stdout.readline()
        if not line:
            return Judgement(f"the process died: {self.end(kill=True)}")
        return msgspec.msgpack.decode(base64.b64decode(line), type=Judgement)

    def end(self, *, kill: bool = False) -> int | None:
        """End the process; returns its exit code."""
        if self._process is None:
            return None
        process, self._process = self._process, None
        if kill:
            process.kill()
        process.communicate()
        return process.returncode


def judged(scene: Path, cases: Sequence[Damage], *faults: str) -> list[tuple[Damage, Judgement]]:
    """Judge cases in two processes side by side."""

    def run(share: Sequence[Damage]) -> list[tuple[Damage, Judgement]]:
        worker = Worker(scene, *faults)
        try:
            return [(case, worker.judge(case)) for case in share]
        finally:
            worker.end()

    with ThreadPoolExecutor(WORKERS) as pool:
        shares = pool.map(run, [cases[start::WORKERS] for start in range(WORKERS)])
        return [result for share in shares for result in share]


@pytest.fixture(scope="module")
def scene() -> Iterator[Path]:
    """Make the scene where damage is cheap: what is judged is no sync."""
    with fast_directory() as directory:
        make_scene(directory / "scene")
        yield directory / "scene"


def require_truth(results: list[tuple[Damage, Judgement]]) -> Counter[str]:
    """Fail for every case that came to anything but the truth or a refusal; count the verdicts."""
    wrong = [
        (case, judgement)
        for case, judgement in results
        if judgement.verdict not in ("equal", "refused", "unchanged")
    ]
    assert not wrong, f"{len(wrong)} of {len(results)}, such as {wrong[:5]}"
    verdicts = Counter(judgement.verdict for _, judgement in results)
    assert verdicts["refused"] > len(results) // 10, verdicts
    assert verdicts["equal"] > len(results) // 10, verdicts
    return verdicts


def test_damage_is_made_good_or_refused(scene: Path) -> None:
    """A damaged board answers as the sound one, or says which file it refuses: a sample."""
    cases = sample(all_cases(scene, SEED), SAMPLE, SEED)
    assert {case.kind for case in cases} == {
        "write", "cut", "extend", "replace", "swap", "remove",
    }  # fmt: skip
    require_truth(judged(scene, cases))


@pytest.mark.durability
def test_all_damage_is_made_good_or_refused(scene: Path) -> None:
    """A damaged board answers as the sound one, or says which file it refuses: thousands of cases.

    RANKNODE_TEST_SEED draws other random places.
    """
    cases = all_cases(scene, int(os.environ.get("RANKNODE_TEST_SEED", SEED)))
    assert len(cases) > 3_000
    require_truth(judged(scene, cases))


@pytest.mark.parametrize("fault", PLANTED)
def test_a_checksum_that_nobody_compares_is_caught(scene: Path, fault: str) -> None:
    """With one kind of checksum unchecked, damage goes unseen or is answered: the judge says so."""
    cases = [
        case
        for case in all_cases(scene, SEED)
        if PLANTED[fault] in case.file and case.kind == "write" and len(case.data) == 1
    ]
    chosen = sample(cases, PLANTED_CASES, SEED)
    wrong = [
        judgement.verdict
        for _, judgement in judged(scene, chosen, fault)
        if judgement.verdict not in ("equal", "refused", "unchanged")
    ]
    assert wrong, f"none of {len(chosen)} was noticed"
