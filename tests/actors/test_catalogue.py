"""The catalogue of boards on a disk that fails: nothing is told that is not durable."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.board_actor import ActorOptions
from actors.directory import Directory
from actors.errors import Refusal
from tests.actors.board_harness import NOW_US, SMALL, define

OPTIONS = ActorOptions(SMALL, commit_events_max=10)


@pytest.fixture
def catalogue(tmp_path: Path) -> Directory:
    made = Directory(tmp_path, OPTIONS)
    made.scan()
    return made


@pytest.fixture
def fail_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Let the directory of boards fail to be synced, or not any more."""
    real = os.fsync
    failing = [False]

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        boards = (tmp_path / "boards").stat()
        if failing[0] and stat.S_ISDIR(found.st_mode) and found.st_ino == boards.st_ino:
            raise OSError(errno.EIO, "Input/output error")
        real(descriptor)

    def set_failing(fails: bool) -> None:
        failing[0] = fails

    monkeypatch.setattr(os, "fsync", fsync)
    return set_failing


def code_of(catalogue: Directory, board: str) -> str:
    """Ask for a board that is not there, and return the code."""
    with pytest.raises(Refusal) as refusal:
        catalogue.listing(board)
    return refusal.value.code


def test_a_deletion_that_failed_is_not_told(catalogue: Directory, fail_syncs):
    """A board whose deletion is not durable stays listed and unpurged until it is deleted again."""
    catalogue.create("b", define(), NOW_US)
    fail_syncs(True)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            catalogue.delete("b")
        assert catalogue.listing("b")
    for call in (catalogue.purge, lambda: catalogue.refresh("b")):
        with pytest.raises(OSError, match="Input/output"):
            call()
    fail_syncs(False)
    catalogue.delete("b")
    assert code_of(catalogue, "b") == "board_not_found"


def test_a_creation_that_failed_is_not_told(catalogue: Directory, fail_syncs):
    """A board whose name is not durable is not found, and can be created again."""
    fail_syncs(True)
    with pytest.raises(OSError, match="Input/output"):
        catalogue.create("b", define(), NOW_US)
    with pytest.raises(OSError, match="Input/output"):
        catalogue.refresh("b")
    assert code_of(catalogue, "b") == "board_not_found"
    fail_syncs(False)
    catalogue.create("b", define(), NOW_US)
    assert catalogue.listing("b").board == "b"


@pytest.mark.parametrize("kind", ["file", "link to a board", "link to nothing"])
def test_what_is_no_boards_directory_is_left_alone(tmp_path: Path, kind: str, caplog):
    """In a board's place it is no board, none is created over it, and the log names it."""
    catalogue = Directory(tmp_path, OPTIONS)
    catalogue.scan()
    catalogue.create("b", define(), NOW_US)
    foreign = tmp_path / "boards" / "foreign"
    if kind == "file":
        foreign.write_bytes(b"mine")
    else:
        foreign.symlink_to("b" if kind == "link to a board" else "nothing")
    before = sorted((path, path.lstat().st_mtime_ns) for path in tmp_path.rglob("*"))
    found = Directory(tmp_path, OPTIONS)
    found.scan()
    found.refresh("foreign")
    assert (found.listings.keys(), found.damaged) == ({"b"}, set())
    assert code_of(found, "foreign") == "board_not_found"
    with pytest.raises(Refusal) as refusal:
        found.create("foreign", define(), NOW_US)
    assert refusal.value.code == "board_unavailable"
    assert sorted((path, path.lstat().st_mtime_ns) for path in tmp_path.rglob("*")) == before
    told = f"{foreign} is no board's directory and is left alone"
    assert [record.message for record in caplog.records] == [told] * 2
