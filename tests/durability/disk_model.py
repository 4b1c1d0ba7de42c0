"""A disk with a volatile cache, fed by a trace: what a power cut may leave of files and names.

Owns the rules of what is durable when. They are those that POSIX promises, not the kinder ones of
one file system:

    data      a write is pending until its file is synced, or durable at once by O_DSYNC
    sizes     growing, cutting and allocating are pending until the file is synced
    names     creating, renaming, linking and removing are pending until each directory that it
              changes is synced; a synced file may still have no name; two names that trade places
              do both or neither
    sectors   512 bytes are written whole: a cut is between sectors, never inside of one

Pending changes reach the disk in any order and number: of a unit of data any version since the last
sync, of names any subset, or in the kinder mode an ordered prefix for each directory. What was
never written reads as zeros. Files are followed by what they are, not by what they are called.

A trace is what `interposer.c` writes. The approach is that of ALICE (Pillai and others, "All File
Systems Are Not Created Equal", OSDI 2014), which derives the states that an abstract file system
may leave from the calls of a program, and of CrashMonkey (Mohan and others, "Finding Crash-
Consistency Bugs with Bounded Black-Box Crash Testing", OSDI 2018), which recovers from each of them
and compares with what had been persisted.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.durability.trace import DSYNC, EXCHANGING, TRUNCATING, Entry, Op
from tests.persistence.log_samples import seeded

SECTOR_BYTES = 512
PAGE_BYTES = 4096
_GONE = " (deleted)"  # how the kernel names an open file that has no name any more


class State(NamedTuple):
    """What a disk holds after a cut: content by path below the root, None for a directory."""

    files: dict[str, bytes | None]

    @property
    def digest(self) -> bytes:
        """Return a hash that two states share only if they are equal."""
        digest = hashlib.blake2b(digest_size=16)
        for path in sorted(self.files):
            content = self.files[path]
            size = -1 if content is None else len(content)
            digest.update(f"{path}\0{size}\0".encode())
            digest.update(content or b"")
        return digest.digest()


def materialise(state: State, directory: Path) -> None:
    """Write a state out below `directory`, which must be empty or missing."""
    directory.mkdir(exist_ok=True)
    for path in sorted(state.files):
        content = state.files[path]
        if content is None:
            (directory / path).mkdir()
        else:
            (directory / path).write_bytes(content)


def read_state(directory: Path) -> State:
    """Read what is below `directory`."""
    return State(
        {
            str(path.relative_to(directory)): None if path.is_dir() else path.read_bytes()
            for path in directory.rglob("*")
        }
    )


class _Change(NamedTuple):
    """A pending change of a file: bytes from `start` on, and the size of the file after it."""

    start: int
    data: bytes
    size: int


@dataclass(eq=False)
class _File:
    """A file as processes see it, and what of it is durable."""

    live: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[_Change] = field(default_factory=list)

    def write(self, start: int, data: bytes, *, durable: bool) -> None:
        if start > len(self.live):
            self.live.extend(bytes(start - len(self.live)))
        self.live[start : start + len(data)] = data
        self.pending.append(_Change(start, data, len(self.live)))
        if durable:
            self._sync_range(start, start + len(data))

    def resize(self, size: int) -> None:
        cut = len(self.live) - size
        if cut > 0:
            del self.live[size:]
            self.pending.append(_Change(size, bytes(cut), size))
        else:
            self.live.extend(bytes(-cut))
            self.pending.append(_Change(size, b"", size))

    def sync(self) -> None:
        if self.pending:
            self.durable = bytearray(self.live)
            self.pending.clear()

    def _sync_range(self, start: int, end: int) -> None:
        """Make the sectors of a range durable as they are, and the size with them."""
        start -= start % SECTOR_BYTES
        end += -end % SECTOR_BYTES
        _fit(self.durable, len(self.live))
        self.durable[start:end] = self.live[start:end]
        kept = []
        for change in self.pending:
            before = change.data[: max(start - change.start, 0)]
            after = change.data[max(end - change.start, 0) :]
            pieces = [(change.start, before), (max(change.start, end), after)]
            kept += [_Change(at, data, len(self.live)) for at, data in pieces if data]
        self.pending = kept

    def after_cut(self, choice: Choice) -> bytes:
        """Return what a cut leaves: of each unit one of its versions, of the sizes one."""
        if not self.pending or choice.data == 0:
            return bytes(self.durable)
        if choice.data == 1:
            return bytes(self.live)
        content = bytearray(self.durable)
        _fit(content, max(len(self.durable), *(change.size for change in self.pending)))
        versions: dict[int, list[_Change]] = {}
        unit = choice.unit_bytes
        for change in self.pending:
            for number in range(
                change.start // unit, -(-(change.start + len(change.data)) // unit)
            ):
                versions.setdefault(number, []).append(change)
        for number, changes in versions.items():
            for change in changes[: choice.version(len(changes))]:
                start = max(change.start, number * unit)
                end = min(change.start + len(change.data), (number + 1) * unit, len(content))
                content[start:end] = change.data[start - change.start : end - change.start]
        sizes = [len(self.durable), *(change.size for change in self.pending)]
        _fit(content, sizes[choice.version(len(sizes) - 1)])
        return bytes(content)


@dataclass(eq=False)
class _Directory:
    """A directory: its names as processes see them, and those that are durable."""

    live: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)


_Node = _File | _Directory
_Names = dict[_Directory, dict[str, "_Node"]]


@dataclass(eq=False)
class _NameChange:
    """A pending change of names: a node leaves one place, or comes to another, or both at once.

    other: the node that comes to the first place meanwhile, where two trade places. unsynced: the
    directories that it changes and that were not synced since.
    """

    node: _Node
    source: tuple[_Directory, str] | None
    target: tuple[_Directory, str] | None
    other: _Node | None = None
    unsynced: list[_Directory] = field(default_factory=list)

    @property
    def places(self) -> list[tuple[_Directory, str]]:
        return [place for place in (self.source, self.target) if place is not None]

    def apply(self, names: _Names) -> None:
        if self.source is not None:
            directory, name = self.source
            if self.other is not None:
                names[directory][name] = self.other
            elif names[directory].get(name) is self.node:
                del names[directory][name]
        if self.target is not None:
            directory, name = self.target
            names[directory][name] = self.node


@dataclass(frozen=True)
class Choice:
    """Which pending changes a cut lets through, each with a chance, drawn from `rng`.

    names, data: the chances, from 0, nothing, to 1, everything. unit_bytes: what data is written
    in. in_order: whether the names of a directory change in the order of the calls.
    """

    rng: random.Random
    names: float
    data: float
    unit_bytes: int = SECTOR_BYTES
    in_order: bool = False

    @classmethod
    def seeded(cls, seed: str) -> Choice:
        """Draw a choice of any kind."""
        rng = seeded(seed)
        names, data = rng.choices([0, 0.1, 0.5, 0.9, 1], k=2)
        unit_bytes = rng.choice([SECTOR_BYTES, PAGE_BYTES])
        return cls(rng, names, data, unit_bytes, in_order=rng.random() < 0.5)

    def takes_name(self) -> bool:
        """Draw whether a change of names reached the disk."""
        return self.rng.random() < self.names

    def names_in_order(self, most: int) -> int:
        """Draw how many of a directory's changes, from the first on, reached the disk."""
        return self._count(most, self.names)

    def version(self, most: int) -> int:
        """Draw how many of the changes of one unit, from the first on, reached the disk."""
        return self._count(most, self.data)

    def _count(self, most: int, chance: float) -> int:
        if self.rng.random() < chance:
            return most
        return self.rng.randint(0, most) if chance else 0


NOTHING = Choice(seeded(0), names=0, data=0)
EVERYTHING = Choice(seeded(0), names=1, data=1)
NAMES_ALONE = Choice(seeded(0), names=1, data=0)  # as where data is written late


class Disk:
    """Everything below one root directory. Feeding: `apply`. Asking: `after_cut`, `pending`.

    root: as paths of the trace begin; another may be set where a second trace goes on. found: what
    is there, durably, before the first entry.
    """

    def __init__(self, root: str, found: State | None = None) -> None:
        self.root = root.rstrip("/")
        self._root = _Directory()
        self._names: list[_NameChange] = []
        for path, content in sorted(found.files.items() if found else ()):
            node = (
                _Directory() if content is None else _File(bytearray(content), bytearray(content))
            )
            directory, name = self._place(f"{self.root}/{path}")
            directory.live[name] = directory.durable[name] = node

    # Feeding

    def apply(self, entry: Entry) -> None:
        """Go on by one entry; one that does not fit what is there is a KeyError."""
        if entry.op == Op.MARK or entry.path.endswith(_GONE):
            return  # what has no name is lost in any case
        match entry.op:
            case Op.WRITE:
                durable = bool(entry.flags & DSYNC)
                self._file(entry.path).write(entry.offset, entry.data, durable=durable)
            case Op.SYNC:
                self._sync(self._node(entry.path))
            case Op.RENAME:
                self._move(entry.path, entry.target, exchanging=bool(entry.flags & EXCHANGING))
            case Op.TRUNCATE:
                self._file(entry.path).resize(entry.offset)
            case Op.CREATE:
                self._create(entry.path, truncating=bool(entry.flags & TRUNCATING))
            case Op.UNLINK | Op.RMDIR:
                source = self._place(entry.path)
                self._change(self._node(entry.path), source, None)
            case Op.MKDIR:
                self._change(_Directory(), None, self._place(entry.path))
            case Op.LINK:
                self._change(self._node(entry.path), None, self._place(entry.target))
            case _:
                raise AssertionError(f"no operation has the number {entry.op}")

    def _create(self, path: str, *, truncating: bool) -> None:
        directory, name = self._place(path)
        if name not in directory.live:
            self._change(_File(), None, (directory, name))
        elif truncating:
            self._file(path).resize(0)

    def _move(self, path: str, target: str, *, exchanging: bool) -> None:
        other = self._node(target) if exchanging else None
        self._change(self._node(path), self._place(path), self._place(target), other)

    def _change(
        self,
        node: _Node,
        source: tuple[_Directory, str] | None,
        target: tuple[_Directory, str] | None,
        other: _Node | None = None,
    ) -> None:
        change = _NameChange(node, source, target, other)
        change.unsynced = [*dict.fromkeys(directory for directory, _ in change.places)]
        change.apply({directory: directory.live for directory in change.unsynced})
        self._names.append(change)

    def _sync(self, node: _Node) -> None:
        if isinstance(node, _File):
            node.sync()
            return
        waiting = []
        for change in self._names:
            change.unsynced = [other for other in change.unsynced if other is not node]
            if change.unsynced:
                waiting.append(change)
            else:
                change.apply({directory: directory.durable for directory, _ in change.places})
        self._names = waiting

    # Asking

    @property
    def pending(self) -> int:
        """Return how many changes a cut may lose, of names and of what has a name."""
        files = {id(node): node for node in self._nodes(self._root)}.values()
        return len(self._names) + sum(len(n.pending) for n in files if isinstance(n, _File))

    def after_cut(self, choice: Choice) -> State:
        """Return the state that a cut leaves now."""
        names = self._names_after(choice)
        files: dict[str, bytes | None] = {}

        def walk(directory: _Directory, prefix: str) -> None:
            for name, node in sorted(names.get(directory, directory.durable).items()):
                files[prefix + name] = None
                if isinstance(node, _File):
                    files[prefix + name] = node.after_cut(choice)
                else:
                    walk(node, f"{prefix}{name}/")

        walk(self._root, "")
        return State(files)

    def _names_after(self, choice: Choice) -> _Names:
        """Return the names in each directory that a pending change concerns."""
        touched = dict.fromkeys(place[0] for change in self._names for place in change.places)
        names = {directory: dict(directory.durable) for directory in touched}
        left = dict.fromkeys(touched, len(self._names))
        if choice.in_order:
            for directory in touched:
                waiting = sum(directory in change.unsynced for change in self._names)
                left[directory] = choice.names_in_order(waiting)
        for change in self._names:
            kept = all(left[directory] > 0 for directory in change.unsynced)
            for directory in change.unsynced:
                left[directory] -= 1
            if kept and (choice.in_order or choice.takes_name()):
                change.apply(names)
        return names

    # Finding

    def _nodes(self, directory: _Directory) -> Iterator[_Node]:
        for node in directory.live.values():
            yield node
            if isinstance(node, _Directory):
                yield from self._nodes(node)

    def _place(self, path: str) -> tuple[_Directory, str]:
        """Return the directory that a path names a place in, and the name there."""
        *parents, name = self._parts(path)
        directory = self._root
        for parent in parents:
            node = directory.live[parent]
            assert isinstance(node, _Directory), f"{path}: {parent} is no directory"
            directory = node
        return directory, name

    def _node(self, path: str) -> _Node:
        if path == self.root:
            return self._root
        directory, name = self._place(path)
        return directory.live[name]

    def _file(self, path: str) -> _File:
        node = self._node(path)
        assert isinstance(node, _File), f"{path} is no file"
        return node

    def _parts(self, path: str) -> list[str]:
        assert path.startswith(f"{self.root}/"), f"{path} is not below {self.root}"
        return path[len(self.root) + 1 :].split("/")


def _fit(content: bytearray, size: int) -> None:
    """Cut or extend with zeros, in place, to `size`."""
    del content[size:]
    content.extend(bytes(size - len(content)))
