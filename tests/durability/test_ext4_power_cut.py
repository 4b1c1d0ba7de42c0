"""Cuts of ext4's power under real work: what was acknowledged is there after the next mount.

The journals of acknowledgements lie outside of the images. The cuts are real, but come only where
they happen to; those of `test_power_cut.py` come everywhere.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from actors.last_words import EXIT_COMMIT_FAILED
from tests.durability.ext4_image import Ext4Image, loop_devices, new_image, why_not
from tests.durability.faults import Ended, Zygote
from tests.durability.journal import Client, Journal, Watcher, check_board, check_files
from tests.durability.journal_file import Journal as WorkloadJournal
from tests.durability.workload import EXIT_REFUSED
from tests.persistence.log_samples import seeded
from tests.running_node import RunningNode, wait_until

COMMITS = 20
MARKS = 150  # fewer than a run has, so that a cut after one of them comes before its end
CUT_SECONDS_MAX = 0.02  # after the mark that is waited for; a step takes about as long
WORK_SECONDS_MAX = 60.0
BOARDS_BEFORE_CUT = 5
SMALL_BOARDS = """
segment_events_max = 50
segment_bytes_max = 4194304
snapshot_events = 60
commit_events_max = 20
reserved_free_bytes = 1048576
"""

MakeNode = Callable[..., RunningNode]


@pytest.fixture(scope="module")
def mountable(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip where no image can be mounted."""
    reason = why_not(tmp_path_factory.mktemp("mountable"))
    if reason:
        pytest.skip(reason)


@pytest.fixture
def image(mountable: None, tmp_path: Path) -> Iterator[Ext4Image]:
    """Mount a fresh ext4; no mount, loop device or image is left afterwards."""
    with new_image(tmp_path / "ext4") as made:
        yield made
    assert not (tmp_path / "ext4").exists()
    assert loop_devices(tmp_path) == []


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as made:
        yield made


def marks(journal: Path) -> int:
    """Return how many acknowledgements a journal holds."""
    return journal.read_text().count('"mark"') if journal.exists() else 0


def cut_workload(
    image: Ext4Image, zygote: Zygote, tmp_path: Path, seed: int, plant: str = ""
) -> Ended:
    """Run the workload on an image, cut its power at a drawn moment, and check what is left.

    Returns how recovering ended.
    """
    rng = seeded(f"ext4 {seed}")
    directory, journal = image.mounted / f"data-{seed}", tmp_path / f"journal-{seed}"
    paths = {"directory": str(directory), "journal": str(journal)}
    script = {"seed": seed, "commits": COMMITS}
    # The first cut comes while the boards' directories and the first board are made.
    awaited = rng.randint(1, MARKS) if seed else 0
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(
            zygote.run, "run", paths | script | {"plant": plant}, output=tmp_path / "output"
        )
        wait_until(
            lambda: directory.exists() and marks(journal) >= awaited, WORK_SECONDS_MAX, "it works"
        )
        time.sleep(rng.uniform(0, CUT_SECONDS_MAX))
        image.cut_power()
        ended = running.result(WORK_SECONDS_MAX)
    # It was cut off in the middle of a step: the disk failed it, and it acknowledged no more.
    assert ended.code in (1, EXIT_COMMIT_FAILED, EXIT_REFUSED), ended
    written = WorkloadJournal.read(journal)
    assert len(written.of("trying")) == len(written.of("done")) + 1 or not awaited
    image.remount()
    return zygote.run("survive", paths | script | {"steps": 2}, output=tmp_path / "output")


def test_a_board_survives_power_cuts(image: Ext4Image, zygote: Zygote, tmp_path: Path):
    """Cut off while it is created, written to, snapshot and closed, a board has all it told."""
    for seed in range(5):
        survived = cut_workload(image, zygote, tmp_path, seed)
        assert survived.code == 0, survived.output


@pytest.mark.durability
def test_a_board_survives_many_power_cuts(image: Ext4Image, zygote: Zygote, tmp_path: Path):
    """Cut off at any of many moments, a board has all it told."""
    for seed in range(5, 35):
        survived = cut_workload(image, zygote, tmp_path, seed)
        assert survived.code == 0, survived.output


def test_a_board_without_syncs_is_caught(image: Ext4Image, zygote: Zygote, tmp_path: Path):
    """The check of these tests fails for a board whose commits are not synced."""
    survived = cut_workload(image, zygote, tmp_path, 1, plant="sync-off")
    assert survived.code == 1
    assert "DamagedError" in survived.output or "AssertionError" in survived.output


def test_a_copy_of_the_disk_holds_what_was_acknowledged(
    image: Ext4Image, zygote: Zygote, tmp_path: Path
):
    """The disk as it is at one instant of the work, mounted elsewhere, has all that was told."""
    directory, journal = image.mounted / "data", tmp_path / "journal"
    workload = subprocess.Popen(
        [sys.executable, "-m", "tests.durability.workload", directory, journal, "--seed", "9"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: marks(journal) >= MARKS // 2, WORK_SECONDS_MAX, "it works")
        workload.send_signal(signal.SIGSTOP)
        told = marks(journal)
        with image.copied(tmp_path) as copy:
            assert workload.poll() is None
            workload.kill()  # the owner that the copy names; a successor would kill it
            workload.wait()
            assert marks(journal) == told
            survived = zygote.run(
                "check",
                {"directory": str(copy.mounted / "data"), "journal": str(journal)},
                output=tmp_path / "output",
            )
    finally:
        workload.kill()
        workload.wait()
    assert survived.code == 0, survived.output


# A whole node


class Creator(Client):
    """An operator who creates one board after the other, and notes which were acknowledged."""

    def __init__(self, node: RunningNode) -> None:
        super().__init__(node, "")
        self.name = "creator"
        self.acknowledged: list[str] = []

    def work(self) -> None:
        board = f"board-{len(self.acknowledged)}"
        try:
            status, _ = self.node.call("PUT", f"/v1/boards/{board}", {"aggregation": "sum"}, 15)
        except OSError:
            status = 0
        if status in (200, 201):
            self.acknowledged.append(board)
        else:
            time.sleep(0.05)


@pytest.mark.durability
def test_a_node_survives_a_power_cut(image: Ext4Image, make_node: MakeNode, tmp_path: Path):
    """A node under writes, reads and creations, cut off: what was told and seen holds, once."""
    config = tmp_path / "small.toml"
    config.write_text(SMALL_BOARDS)
    node = make_node(str(image.mounted / "deep" / "data"), "--config", str(config))
    node.output, node.directory = tmp_path / "node.out", tmp_path
    node.start()
    assert node.call("PUT", "/v1/boards/b", {"aggregation": "sum"})[0] == 201
    writers = [Journal(node, f"w{n}", batch=1 + 6 * n) for n in range(3)]
    watcher, creator = Watcher(node, "b"), Creator(node)
    clients = [*writers, watcher, creator]
    for client in clients:
        client.start()
    snapshots = node.data / "boards/b/snapshots"
    wait_until(lambda: list(snapshots.glob("*.snapshot")), 30, "snapshots are written")
    wait_until(lambda: len(creator.acknowledged) >= BOARDS_BEFORE_CUT, 30, "boards are created")
    time.sleep(seeded("node").uniform(0, CUT_SECONDS_MAX))
    wait_until(lambda: any(writer.unanswered for writer in writers), 30, "an event is in flight")
    image.cut_power()
    node.kill_all()
    image.remount()
    node.start()
    for client in clients:
        client.end()
    check_board(node, "b", writers, [watcher])
    listed = {board["board"] for board in node.ask("/v1/boards?limit=1000")["boards"]}
    assert {"b", *creator.acknowledged} <= listed
    assert node.stop() == 0
    check_files(node)
