"""A full disk and a full map refuse writes and nothing else, and lose nothing, wherever it ends."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.logged_board import LoggedBoard
from actors.offline import verify
from actors.questions import Top
from persistence.errors import CommitFailedError, StorageFullError
from tests.actors.board_harness import NOW_US, SMALL, ask, event, on_disk, submit
from tests.durability.faults import Zygote
from tests.durability.journal_file import Journal
from tests.durability.workload import EXIT_REFUSED

SIZES_KIB = range(1_024, 1_216, 16)  # from too little for one board to almost enough for two
ROOMY_KIB = 64 << 10
PAGE_BYTES = 4_096
NAME_BYTES = 128  # the longest there is
COMMITS_MAX = 50
ROOMY_SEGMENTS = msgspec.structs.replace(
    SMALL, log=msgspec.structs.replace(SMALL.log, segment_events_max=10_000)
)


@contextlib.contextmanager
def small_disk(path: Path, kib: int) -> Iterator[None]:
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", path]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root, where it may mount, can make a disk that is small enough to fill")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def large_batch(first: int, events: int) -> dict[str, Any]:
    """Make a batch that takes about 300 bytes an event."""
    return {
        "events": [
            event(f"{number:0{NAME_BYTES}d}", 1, f"{number:0{NAME_BYTES}d}")
            for number in range(first, first + events)
        ]
    }


def test_a_disk_too_small_for_the_work_loses_nothing(tmp_path: Path) -> None:
    """Wherever there is no more room, what was acknowledged is there, and goes on with room."""
    acknowledged = set()
    refused = 0
    with Zygote() as zygote:
        for kib in SIZES_KIB:
            place, journal = tmp_path / str(kib), tmp_path / f"{kib}.journal"
            arguments = {"directory": str(place / "data"), "journal": str(journal), "seed": 1}
            with small_disk(place, kib):
                ended = zygote.run("run", arguments, output=tmp_path / "output")
                assert ended.code in (0, EXIT_REFUSED), (kib, ended)
                refused += ended.code == EXIT_REFUSED
                acknowledged.add(Journal.read(journal).mark)
                resize = ["mount", "-o", f"remount,size={ROOMY_KIB}k", place]
                subprocess.run(resize, check=True)
                recovered = zygote.run("recover", arguments, output=tmp_path / "output")
                assert recovered.code == 0, (kib, recovered)
    assert refused > len(SIZES_KIB) // 2
    assert len(acknowledged) >= 4, "the room ended at the same place each time"


@pytest.mark.parametrize("free_pages", range(0, 40, 8))
def test_a_disk_that_fills_up_during_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_pages: int
) -> None:
    """Where room is taken after it was checked, the commit fails, and no earlier one is lost."""
    disk = tmp_path / "disk"
    with small_disk(disk, 8 << 10):
        host = on_disk(disk / "b", ROOMY_SEGMENTS)
        monkeypatch.setattr(host.log, "check_room", lambda _bytes_needed: None)
        assert submit(host, large_batch(0, 20))["results"]
        with (disk / "ballast").open("wb", buffering=0) as file:
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(PAGE_BYTES))
            file.truncate(max(file.tell() - free_pages * PAGE_BYTES, 0))
        acknowledged = [large_batch(0, 20)]

        def submit_more() -> None:
            for number in range(1, COMMITS_MAX):
                submit(host, large_batch(20 * number, 20))
                acknowledged.append(large_batch(20 * number, 20))

        with pytest.raises(CommitFailedError, match="No space left on device"):
            submit_more()
        with pytest.raises(CommitFailedError, match="an earlier commit failed"):
            submit(host, large_batch(20 * COMMITS_MAX, 1))
        assert len(ask(host, Top(False, NOW_US, None, None, 1_000, None))["entries"]) == 20 * len(
            acknowledged
        )
        host.close()
        (disk / "ballast").unlink()
        assert verify(disk / "b").is_sound
        host = LoggedBoard.open(disk / "b", ROOMY_SEGMENTS)
        for batch in acknowledged:
            found = {result["status"] for result in submit(host, batch)["results"]}
            assert found == {"duplicate"}
        last = large_batch(20 * len(acknowledged), 20)
        assert {result["status"] for result in submit(host, last)["results"]} == {"applied"}
        host.close()
        assert verify(disk / "b").is_sound


def test_a_commit_that_no_map_holds_is_refused(tmp_path: Path) -> None:
    """What is larger than a segment's map is refused before it is written; other writes go on."""
    host = on_disk(tmp_path / "b", ROOMY_SEGMENTS)
    submit(host, event("ada", 1, "first"))
    last_sequence = host.log.last_sequence
    with pytest.raises(StorageFullError, match="no segment has room"):
        submit(host, large_batch(0, 5_000))
    assert host.log.last_sequence == host.board.sequence == last_sequence
    assert len(ask(host, Top(False, NOW_US, None, None, 1, None))["entries"]) == 1
    assert submit(host, event("ada", 1, "first"))["status"] == "duplicate"
    assert submit(host, event("ada", 2, "second"))["sequence"] == last_sequence + 1
    for number in range(2 * COMMITS_MAX):
        batch = large_batch(20 * number, 20)
        assert {result["status"] for result in submit(host, batch)["results"]} == {"applied"}
    assert host.log.stats.segments > 1, "a map did not fill up"
    host.close()
    assert verify(tmp_path / "b").is_sound
