"""Archives on disk: what is read is what was written, and what is not is noticed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence import archive as archive_module
from persistence.archive import (
    ArchiveHeader,
    archive_path,
    list_archives,
    read_archive,
    read_archive_header,
    remove_archives,
    remove_unfinished,
    write_archive,
)
from persistence.column_file import write_columns
from persistence.errors import DamagedError, FormatTooNewError
from persistence.snapshot import read_snapshot, write_snapshot
from tests.persistence.log_samples import seeded

DAY = "daily:2026-11-30"
COLUMNS = [("ends", b"1" * 70), ("names", b"2" * 5), ("rows", b"")]

headers = st.builds(
    ArchiveHeader,
    incarnation=st.text(max_size=16),
    window=st.sampled_from([DAY, "weekly:2026-11-30", "cup", "a-b_c"]),
    revision=st.integers(1, 1_000),
    sequence=st.integers(1, 2**63 - 1),
    members=st.integers(0, 2**32),
    digest=st.text("0123456789abcdef", min_size=64, max_size=64),
)


def header(window: str = DAY, revision: int = 1) -> ArchiveHeader:
    return ArchiveHeader("i", window, revision, sequence=9, members=2, digest="0" * 64)


@given(headers, st.dictionaries(st.text(max_size=9), st.binary(max_size=300), max_size=4))
def test_round_trip(tmp_path_factory, written, columns):
    """What is read is what was written, and the header alone is the header of the whole."""
    directory = tmp_path_factory.mktemp("archives") / "made when needed"
    path = write_archive(directory, written, list(columns.items()))
    archive = read_archive(directory, written.window, written.revision)
    assert archive.header == written
    assert {name: bytes(column) for name, column in archive.columns.items()} == columns
    assert read_archive_header(directory, written.window, written.revision) == written
    assert list(list_archives(directory)) == [(written.window, written.revision)]
    path.unlink()


def test_every_flipped_byte_and_cut_is_noticed(tmp_path):
    """An archive with a changed byte, cut short or extended is DamagedError."""
    path = write_archive(tmp_path, header(), COLUMNS)
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
            read_archive(tmp_path, DAY, 1)


def test_the_header_can_be_read_alone(tmp_path):
    """Damage of the header is found without the columns; damage behind it takes the whole file."""
    path = write_archive(tmp_path, header(), [("rows", bytes(100_000))])
    content = path.read_bytes()
    header_end = content.index(b"rows") + 4 + 5 + 16  # the column's length, then the seal
    for position in range(header_end):
        changed = bytearray(content)
        changed[position] ^= 0x10
        path.write_bytes(changed)
        # A version is told before the seal is looked at, so a flip in it may pass for a later one.
        with pytest.raises((DamagedError, FormatTooNewError)):
            read_archive_header(tmp_path, DAY, 1)
    for end in range(header_end):
        path.write_bytes(content[:end])
        with pytest.raises(DamagedError):
            read_archive_header(tmp_path, DAY, 1)
    path.write_bytes(content[: header_end + 1_000])
    assert read_archive_header(tmp_path, DAY, 1) == header()
    with pytest.raises(DamagedError):
        read_archive(tmp_path, DAY, 1)


@pytest.mark.parametrize("read", [read_archive, read_archive_header])
def test_another_windows_archive_is_refused(tmp_path, read):
    """An archive under the name of another window or revision is DamagedError."""
    path = write_archive(tmp_path, header(), COLUMNS)
    for window, revision in (("daily:2026-12-01", 1), (DAY, 2), ("cup", 1)):
        other = archive_path(tmp_path, window, revision)
        other.write_bytes(path.read_bytes())
        with pytest.raises(DamagedError, match=f"revision 1 of {DAY}"):
            read(tmp_path, window, revision)


@pytest.mark.parametrize("read", [read_archive, read_archive_header])
def test_foreign_files_are_refused(tmp_path, read):
    """A snapshot is no archive, nor is a file with another header; an archive is no snapshot."""
    path = archive_path(tmp_path, DAY, 1)
    write_snapshot(tmp_path, 7, {}, COLUMNS).rename(path)
    with pytest.raises(DamagedError):
        read(tmp_path, DAY, 1)
    fields = msgspec.to_builtins(header())
    for damaged in ({}, fields | {"revision": "1"}, fields | {"members": None}):
        write_columns(path, b"RNKARCH\0", damaged, COLUMNS)
        with pytest.raises(DamagedError):
            read(tmp_path, DAY, 1)
    write_archive(tmp_path, header(), COLUMNS).rename(tmp_path / f"{7:020d}.snapshot")
    with pytest.raises(DamagedError):
        read_snapshot(tmp_path / f"{7:020d}.snapshot")
    with pytest.raises(FileNotFoundError):
        read(tmp_path, DAY, 1)


def test_a_later_format_is_told_from_damage(tmp_path, monkeypatch):
    """An archive that a later version wrote is FormatTooNewError, not DamagedError."""
    monkeypatch.setattr("persistence.column_file.FORMAT_VERSION", 2)
    write_archive(tmp_path, header(), COLUMNS)
    monkeypatch.undo()
    for read in (read_archive, read_archive_header):
        with pytest.raises(FormatTooNewError):
            read(tmp_path, DAY, 1)


def test_an_interrupted_write_leaves_the_former_file(tmp_path, monkeypatch):
    """A write that fails leaves the archives as they were."""
    write_archive(tmp_path, header(), COLUMNS)

    def fail(*_: object) -> None:
        raise OSError(28, "planted")

    for function in ("rename", "replace"):
        monkeypatch.setattr(Path, function, fail)
    for revision in (1, 2):
        with pytest.raises(OSError, match="planted"):
            write_archive(tmp_path, header(revision=revision), [])
    monkeypatch.undo()
    assert list(list_archives(tmp_path)) == [(DAY, 1)]
    assert {n: bytes(c) for n, c in read_archive(tmp_path, DAY, 1).columns.items()} == dict(COLUMNS)


def test_removing_keeps_what_is_kept(tmp_path):
    """Archives of other windows and revisions go, half-written files too, and nothing else."""
    for window, revision in ((DAY, 1), (DAY, 12), ("cup", 1), ("weekly:2026-11-30", 1)):
        write_archive(tmp_path, header(window, revision), COLUMNS)
    kept = [archive_path(tmp_path, "cup", 1), tmp_path / "note.txt", tmp_path / "x.y.archive"]
    for path in kept[1:]:
        path.write_text("not ours")
    archive_path(tmp_path, "cup", 2).with_name("cup.2.archive.tmp").write_bytes(b"half")
    remove_archives(tmp_path, {("cup", 1)})
    remove_unfinished(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    remove_archives(tmp_path / "missing", ())
    assert list(list_archives(tmp_path / "missing")) == []


def test_what_was_interrupted_does_not_come_back(tmp_path, monkeypatch):
    """Removing it is durable: it may name a member who is said to be erased by then."""
    synced: list[Path] = []
    monkeypatch.setattr(archive_module, "sync_directory", synced.append)
    remove_unfinished(tmp_path)
    assert synced == []
    (tmp_path / f"{DAY}.1.archive.tmp").write_bytes(b"ada")
    remove_unfinished(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert synced == [tmp_path]
