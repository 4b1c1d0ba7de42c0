"""The memory of a copied state: it goes back once the snapshot is written, and not before."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from actors.keeper import Keeper
from actors.logged_board import LoggedBoard, StateCopy
from actors.measures import Measures
from actors.members import Members, give_back
from persistence import snapshot
from persistence.snapshot import Column
from tests.actors.board_harness import SMALL, event, on_disk, submit

PAGE_BYTES = 4096


def has_gone(column: bytes) -> bool:
    """Tell whether the whole pages inside a column were given back: they read as zeros."""
    return not any(column[PAGE_BYTES:-PAGE_BYTES])


def test_a_column_that_is_given_back_takes_no_memory() -> None:
    """Its whole pages are the system's again; a column smaller than these stays as it is."""
    members = Members(bytes(16))
    ends = array("I", range(8, 8 * 5_001, 8))
    blob = b"".join(b"%08d" % number for number in range(5_000))
    members.record(ends, blob, members.plan(ends, blob, 1), 1)
    columns = dict(members.dump())
    assert not has_gone(columns["names"])
    digest = bytes(columns["digest"])
    give_back(columns.items())
    assert has_gone(columns["names"])
    assert has_gone(columns["heads"])
    assert columns["digest"] == digest
    members._check()


@pytest.mark.parametrize("fails", [False, True])
def test_a_copy_is_given_back_behind_its_snapshot(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on disk is the whole state, and the copy of it is gone, also if the disk failed."""
    host = on_disk(tmp_path / "b")
    for first in range(0, 2_000, 1_000):
        events = [event(f"member-{n}", n, f"key-{n}") for n in range(first, first + 1_000)]
        submit(host, {"events": events})
    copies: list[StateCopy] = []
    copy_state, write_snapshot = host.copy_state, snapshot.write_snapshot
    monkeypatch.setattr(host, "copy_state", lambda: copies.append(copy_state()) or copies[0])
    written: list[bool] = []

    def write(
        directory: Path, sequence: int, header: dict[str, Any], columns: Sequence[Column]
    ) -> Path:
        written.append(has_gone(bytes(dict(columns)["members/names"])))
        if fails:
            raise OSError("the disk failed")
        return write_snapshot(directory, sequence, header, columns)

    monkeypatch.setattr("actors.logged_board.write_snapshot", write)
    digest = host.board.state_digest()

    async def keep() -> None:
        with ThreadPoolExecutor(1) as committer:
            keeper = Keeper(host, pytest.fail, pytest.fail, committer, Measures())
            await keeper.copy_if_due()
            await keeper.finish(0)

    asyncio.run(keep())
    assert written == [False], "it was there while it was written"
    (copy,) = copies
    assert has_gone(bytes(dict(copy.columns)["members/names"]))
    host.close()
    again = LoggedBoard.open(tmp_path / "b", SMALL)
    assert again.report.snapshot_sequence == (0 if fails else copy.sequence)
    assert again.board.state_digest() == digest
    again.close()
