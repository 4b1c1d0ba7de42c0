"""The model of a disk with a cache: what is durable when, and what a cut may leave of the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.durability.disk_model import (
    EVERYTHING,
    NOTHING,
    PAGE_BYTES,
    SECTOR_BYTES,
    Choice,
    Disk,
    State,
    materialise,
)
from tests.durability.trace import (
    DSYNC,
    EXCHANGING,
    TRUNCATING,
    Entry,
    Op,
    pack_entry,
    read_trace,
)

ROOT = "/disk"
SEEDS = 200

Files = dict[str, bytes | None]


def entry(
    op: Op, path: str, target: str = "", offset: int = 0, data: bytes = b"", flags: int = 0
) -> Entry:
    """Make an entry; paths are relative to the root."""
    full_target = f"{ROOT}/{target}" if target else ""
    return Entry(op, flags, f"{ROOT}/{path}".rstrip("/"), full_target, offset, 0, data)


def create(path: str, flags: int = TRUNCATING) -> Entry:
    return entry(Op.CREATE, path, flags=flags)


def write(path: str, data: bytes, offset: int = 0, flags: int = 0) -> Entry:
    return entry(Op.WRITE, path, offset=offset, data=data, flags=flags)


def sync(path: str) -> Entry:
    return entry(Op.SYNC, path)


def rename(path: str, target: str) -> Entry:
    return entry(Op.RENAME, path, target)


def disk(*entries: Entry, found: Files | None = None) -> Disk:
    made = Disk(ROOT, State(found or {}))
    for each in entries:
        made.apply(each)
    return made


def seeded_states(made: Disk, kind: Callable[[Choice], bool] = lambda _: True) -> Iterator[Files]:
    """Yield what many cuts leave, of those choices that are of one kind."""
    for seed in range(SEEDS):
        choice = Choice.seeded(str(seed))
        if kind(choice):
            yield made.after_cut(choice).files


def in_order(choice: Choice) -> bool:
    return choice.in_order


def by_sector(choice: Choice) -> bool:
    return choice.unit_bytes == SECTOR_BYTES


def contents(made: Disk, path: str, kind: Callable[[Choice], bool] = lambda _: True) -> set[bytes]:
    """Return every content of a file that was seen after a cut."""
    return {files[path] or b"" for files in seeded_states(made, kind) if path in files}


def replacement(*left_out: str) -> list[Entry]:
    """Replace a file as `write_atomically` does, leaving out some of its steps."""
    new = b"n" * 3 * SECTOR_BYTES
    steps = {
        "create": create("a.tmp"),
        "write": write("a.tmp", new),
        "sync": sync("a.tmp"),
        "rename": rename("a.tmp", "a"),
        "sync directory": sync(""),
    }
    return [step for name, step in steps.items() if name not in left_out]


def test_data_is_pending_until_its_file_is_synced():
    """A cut loses written data, or not; after a sync of the file it cannot."""
    made = disk(create("a"), sync(""), write("a", b"data"))
    assert made.after_cut(NOTHING).files == {"a": b""}
    assert made.after_cut(EVERYTHING).files == {"a": b"data"}
    assert contents(made, "a") == {b"", b"data", bytes(4)}
    made.apply(sync("a"))
    assert made.pending == 0
    assert contents(made, "a") == {b"data"}


def test_a_synced_write_is_durable_at_once_and_nothing_else_is():
    """An O_DSYNC write takes its sectors along as they are, and leaves others pending."""
    far = 2 * SECTOR_BYTES
    before = write("a", b"old", far), write("a", b"head")
    made = disk(create("a"), sync(""), *before, write("a", b"tail", 4, DSYNC))
    durable = b"headtail".ljust(far + 3, b"\0")
    assert made.after_cut(NOTHING).files == {"a": durable}
    assert contents(made, "a") == {durable, durable[:far] + b"old"}


def test_a_name_is_pending_until_its_directory_is_synced():
    """A file that was synced may still have no name, nor has what is below a lost directory."""
    made = disk(entry(Op.MKDIR, "d"), create("d/a"), write("d/a", b"x"), sync("d/a"))
    assert made.after_cut(NOTHING).files == {}
    made.apply(sync("d"))
    assert made.after_cut(NOTHING).files == {}
    made.apply(sync(""))
    assert made.after_cut(NOTHING).files == {"d": None, "d/a": b"x"}
    assert made.pending == 0


def test_a_file_is_followed_through_its_renaming():
    """What was written and synced under one name is there under the other."""
    made = disk(create("a.tmp"), write("a.tmp", b"12"), sync("a.tmp"), rename("a.tmp", "a"))
    made.apply(write("a", b"3", 2))
    assert made.after_cut(EVERYTHING).files == {"a": b"123"}
    made.apply(sync("a"))
    made.apply(sync(""))
    assert made.after_cut(NOTHING).files == {"a": b"123"}


def test_an_atomic_replacement_leaves_the_old_or_the_new_file():
    """Written aside, synced and renamed, a file is whole after any cut at any step."""
    old, new = b"old", b"n" * 3 * SECTOR_BYTES
    made = disk(found={"a": old})
    seen = set()
    for step in replacement():
        made.apply(step)
        seen |= contents(made, "a")
    assert seen == {old, new}
    assert made.after_cut(NOTHING).files == {"a": new}


@pytest.mark.parametrize(
    ("left_out", "fault"),
    [("sync", b""), ("sync directory", b"old")],
)
def test_a_replacement_that_leaves_out_a_sync_is_seen(left_out, fault):
    """Without the sync of the file its new name may show nothing, without the other the old one."""
    made = disk(*replacement(left_out), found={"a": b"old"})
    assert fault in contents(made, "a")


def test_sectors_are_written_whole_in_any_order():
    """A write over three sectors leaves each subset of them, by page all or none."""
    old, new = b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES
    made = disk(write("a", 3 * new), found={"a": 3 * old})
    assert len(contents(made, "a", by_sector)) == 2**3
    for content in contents(made, "a", by_sector):
        for start in range(0, 3 * SECTOR_BYTES, SECTOR_BYTES):
            assert content[start : start + SECTOR_BYTES] in (old, new)
    assert contents(made, "a", lambda c: c.unit_bytes == PAGE_BYTES) == {3 * old, 3 * new}


def test_a_sector_has_only_versions_that_it_had():
    """Of two writes to one sector the second never reaches the disk without the first."""
    made = disk(write("a", b"12"), write("a", b"3", 1), found={"a": b"00"})
    assert contents(made, "a") == {b"00", b"12", b"13"}


def test_what_was_never_written_reads_as_zeros():
    """A hole, and what a longer size covers before its data is there, are zeros."""
    made = disk(create("a"), write("a", b"x", 5), sync("a"), sync(""))
    assert made.after_cut(NOTHING).files == {"a": bytes(5) + b"x"}
    made.apply(entry(Op.TRUNCATE, "a", offset=8))
    made.apply(sync("a"))
    assert made.after_cut(NOTHING).files == {"a": bytes(5) + b"x" + bytes(2)}


def test_sizes_are_pending_until_the_file_is_synced():
    """Cutting and emptying a file may be lost with the cut, and so may growing it."""
    made = disk(entry(Op.TRUNCATE, "a", offset=1), found={"a": b"123"})
    assert made.after_cut(NOTHING).files == {"a": b"123"}
    assert made.after_cut(EVERYTHING).files == {"a": b"1"}
    made.apply(create("a"))
    assert made.after_cut(EVERYTHING).files == {"a": b""}
    assert made.after_cut(NOTHING).files == {"a": b"123"}
    made.apply(sync("a"))
    assert made.after_cut(NOTHING).files == {"a": b""}


def test_names_of_a_directory_change_in_order_or_in_any():
    """The kinder mode leaves a prefix of what was done to a directory, the stricter any subset."""
    made = disk(create("1"), create("2"), entry(Op.LINK, "2", "3"), entry(Op.UNLINK, "1"))
    prefixes: list[set[str]] = [set(), {"1"}, {"1", "2"}, {"1", "2", "3"}, {"2", "3"}]
    ordered = {frozenset(files) for files in seeded_states(made, in_order)}
    assert ordered == set(map(frozenset, prefixes))
    subsets = {frozenset(files) for files in seeded_states(made, lambda c: not c.in_order)}
    assert subsets == ordered | {frozenset("3"), frozenset("2"), frozenset("13"), frozenset()}


def test_a_removal_is_pending_until_its_directory_is_synced():
    """A file that was removed may come back after a cut."""
    made = disk(entry(Op.UNLINK, "d/a"), entry(Op.RMDIR, "d"), found={"d": None, "d/a": b"x"})
    assert made.after_cut(NOTHING).files == {"d": None, "d/a": b"x"}
    assert made.after_cut(EVERYTHING).files == {}
    made.apply(sync(""))
    assert made.after_cut(NOTHING).files == {}


def test_moving_between_directories_needs_both_synced():
    """What is moved is in the one directory or in the other, never in both, never gone."""
    found: Files = {"d": None, "d/b": None, "d/b/f": b"x", "e": None}
    there = {"d": None, "e": None, "e/b": None, "e/b/f": b"x"}
    made = disk(rename("d/b", "e/b"), found=found)
    for directory in ("d", "e"):
        states = list(seeded_states(made))
        assert all(files in (found, there) for files in states)
        assert found in states
        made.apply(sync(directory))
    assert made.after_cut(NOTHING).files == there


def test_two_names_trade_places_at_once_or_not():
    """After a cut each has its own content or the other's, and what follows is of what they are."""
    found: Files = {"a": None, "a/x": b"1", "d": None, "d/b": None, "d/b/y": b"2"}
    traded: Files = {"a": None, "a/y": b"2", "d": None, "d/b": None, "d/b/x": b"1"}
    made = disk(entry(Op.RENAME, "a", "d/b", flags=EXCHANGING), found=found)
    for directory in ("", "d"):
        states = list(seeded_states(made))
        assert found in states
        assert all(files in (found, traded) for files in states)
        made.apply(sync(directory))
    assert made.after_cut(NOTHING).files == traded
    made.apply(entry(Op.UNLINK, "d/b/x"))
    assert made.after_cut(EVERYTHING).files == {p: c for p, c in traded.items() if p != "d/b/x"}


def test_a_file_without_a_name_left_is_no_matter():
    """Writing to what was removed or replaced, as the kernel names it, changes nothing."""
    made = disk(write("a (deleted)", b"x"), sync("a (deleted)"), found={"b": b"y"})
    assert made.after_cut(EVERYTHING).files == {"b": b"y"}


def test_an_entry_that_does_not_fit_is_refused():
    """A trace that names what is not there is an error, not a state."""
    with pytest.raises(KeyError):
        disk(write("a", b"x"))
    with pytest.raises(AssertionError, match="no file"):
        disk(write("d", b"x"), found={"d": None})


def test_states_are_written_out_and_told_apart(tmp_path: Path):
    """What is on disk is the state, and different states have different digests."""
    state = State({"d": None, "d/a": b"x", "d/e": None})
    materialise(state, tmp_path / "out")
    assert (tmp_path / "out/d/a").read_bytes() == b"x"
    assert list((tmp_path / "out/d/e").iterdir()) == []
    others: list[Files] = [{"d": None, "d/a": b"x"}, {"d": None, "d/a": b"y", "d/e": None},
                           {"d": None, "d/a": b"x", "d/e": b""}]  # fmt: skip
    assert len({each.digest for each in (state, *map(State, others))}) == 4


def test_choices_are_repeatable_and_differ():
    """The same seed makes the same cut; many seeds make many kinds."""
    made = disk(*(create(str(n)) for n in range(8)))
    one, again = (made.after_cut(Choice.seeded("s")) for _ in range(2))
    assert one == again
    assert len({frozenset(files) for files in seeded_states(made)}) > SEEDS // 10


def test_a_trace_ends_where_its_writer_was_killed(tmp_path: Path):
    """Entries are read as they were written; the part of one at the end is none."""
    entries = [
        *replacement(),
        entry(Op.MARK, "", data=(7).to_bytes(8, "little")),
        write("ü", b"\0\xff", flags=DSYNC),
    ]
    packed = b"".join(map(pack_entry, entries))
    (tmp_path / "trace").write_bytes(packed)
    assert list(read_trace(tmp_path / "trace")) == entries
    assert entries[-2].mark == 7
    (tmp_path / "trace").write_bytes(packed[:-1])
    assert list(read_trace(tmp_path / "trace")) == entries[:-1]
