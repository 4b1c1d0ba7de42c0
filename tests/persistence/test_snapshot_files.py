from __future__ import annotations

import os
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence import files
from persistence.errors import DamagedError
from persistence.snapshot import (
    list_snapshots,
    prune_snapshots,
    read_snapshot,
    snapshot_sequence,
    write_snapshot,
)
from tests.persistence.log_samples import seeded


@given(
    sequence=st.integers(0, 2**63 - 1),
    header=st.dictionaries(st.text(max_size=9), st.integers(0, 9) | st.text() | st.binary()),
    columns=st.dictionaries(st.text(max_size=9), st.binary(max_size=300), max_size=4),
)
def test_round_trip(tmp_path_factory, sequence, header, columns):
    """What is read is what was written, each column on a 64-byte boundary."""
    directory = tmp_path_factory.mktemp("snapshots")
    path = write_snapshot(directory, sequence, header, list(columns.items()))
    snapshot = read_snapshot(path)
    assert (snapshot.sequence, snapshot.header) == (sequence, header)
    assert {name: bytes(column) for name, column in snapshot.columns.items()} == columns
    assert snapshot_sequence(path) == sequence
    path.unlink()


def test_typed_columns_larger_than_a_chunk(tmp_path, monkeypatch):
    """Typed buffers of several chunks come back as the same bytes, and may be cast."""
    monkeypatch.setattr("persistence.column_file.WRITE_BYTES_MAX", 4096)
    monkeypatch.setattr(files, "WRITE_BYTES_MAX", 1000)
    numbers = array("q", range(5_000))
    path = write_snapshot(tmp_path, 7, {}, [("empty", b""), ("numbers", numbers), ("end", b"x")])
    columns = read_snapshot(path).columns
    assert columns["numbers"].cast("q") == numbers
    assert (bytes(columns["empty"]), bytes(columns["end"])) == (b"", b"x")


def test_every_flipped_byte_and_cut_is_noticed(tmp_path):
    """A snapshot with a changed byte, cut short or extended is DamagedError."""
    path = write_snapshot(tmp_path, 7, {"a": 1}, [("one", b"1" * 70), ("two", b"2" * 5)])
    content = path.read_bytes()
    rng = seeded(7)
    damaged = [content[:end] for end in range(len(content))] + [content + b"\0"]
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1 << rng.randrange(8)
        damaged.append(bytes(changed))
    for each in damaged:
        path.write_bytes(each)
        with pytest.raises(DamagedError):
            read_snapshot(path)


def test_a_renamed_snapshot_is_refused(tmp_path):
    """A snapshot under another sequence's name is DamagedError."""
    path = write_snapshot(tmp_path, 7, {}, [])
    renamed = path.rename(tmp_path / f"{8:020d}.snapshot")
    with pytest.raises(DamagedError, match="sequence 7"):
        read_snapshot(renamed)


def test_an_interrupted_write_leaves_the_former_file(tmp_path, monkeypatch):
    """A write that fails at any step leaves the snapshots as they were."""
    kept = write_snapshot(tmp_path, 7, {"kept": True}, [("one", b"1")])
    for function in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            target = os if function == "fsync" else Path

            def fail(*arguments: object) -> None:
                raise OSError(28, "planted")

            patch.setattr(target, function, fail)
            for sequence in (7, 8):
                with pytest.raises(OSError, match="planted"):
                    write_snapshot(tmp_path, sequence, {}, [])
        assert list_snapshots(tmp_path) == [kept]
        assert read_snapshot(kept).header == {"kept": True}
    prune_snapshots(tmp_path)
    assert list(tmp_path.iterdir()) == [kept]


def test_listing_and_pruning(tmp_path):
    """Snapshots are listed newest first; pruning keeps the newest and only touches snapshots."""
    assert list_snapshots(tmp_path / "missing") == []
    paths = [write_snapshot(tmp_path, sequence, {}, []) for sequence in (5, 100, 20, 9)]
    (tmp_path / "note.txt").write_text("not ours")
    assert [snapshot_sequence(path) for path in list_snapshots(tmp_path)] == [100, 20, 9, 5]
    prune_snapshots(tmp_path)
    assert list_snapshots(tmp_path) == [paths[1], paths[2]]
    assert (tmp_path / "note.txt").exists()
    with pytest.raises(AssertionError):
        prune_snapshots(tmp_path, keep=0)


def test_two_columns_of_one_name_are_refused(tmp_path):
    """A snapshot that could not be read back as it was given is not written."""
    with pytest.raises(AssertionError):
        write_snapshot(tmp_path, 1, {}, [("a", b""), ("a", b"")])
