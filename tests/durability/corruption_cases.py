"""The ways in which one file of a board is damaged: every one, or a seeded sample of each kind.

Owns what a disk or an operator may do to a file: other bits and bytes, at random and about every
boundary of a record, a page or a slot; lost and repeated ends; pages of zeros; files in each
other's place, older and newer ones, another board's, none.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from persistence.salvage import find_records
from tests.durability.corruption import Damage

PAGE_BYTES = 4096
META_BYTES = 152  # of a meta page, that LMDB uses
SLOT_BYTES = 64
NEAR = (-1, 0, 1)  # about a boundary
FLIPS_PER_BYTE = 1 / 80  # at random places


def files(board: Path) -> list[str]:
    """List a board's files, by their paths below its directory."""
    return sorted(str(path.relative_to(board)) for path in board.rglob("*") if path.is_file())


def all_cases(scene: Path, seed: int) -> list[Damage]:
    """List the cases of every file, those at random places drawn by `seed`."""
    board = scene / "now" / "b"
    cases = [
        case
        for file in files(board)
        for case in (*_changed(board, file, seed), *_resized(board, file), *_misplaced(scene, file))
    ]
    return list(dict.fromkeys(cases))


def sample(cases: list[Damage], count: int, seed: int) -> list[Damage]:
    """Draw about `count` cases, some of every kind for every file."""
    rng = random.Random(seed)  # noqa: S311  (not for secrets)
    groups: dict[tuple[str, str], list[Damage]] = {}
    for case in cases:
        groups.setdefault((case.file, case.kind), []).append(case)
    share = count / len(cases)
    return [
        case
        for group in groups.values()
        for case in rng.sample(group, min(len(group), max(2, round(share * len(group)))))
    ]


def _boundaries(path: Path) -> list[int]:
    """List where something begins or ends in a file: pages, slots, records and their headers."""
    size = path.stat().st_size
    step = PAGE_BYTES if size >= PAGE_BYTES else SLOT_BYTES
    found = {0, size, *range(0, size, step)}
    if path.name == "data.mdb":
        for record in find_records(path).records:
            found |= {record.offset, record.offset + 72, record.offset + record.size}
            found.add(record.offset + record.size - 16)
    return sorted(found)


def _changed(board: Path, file: str, seed: int) -> Iterator[Damage]:
    path = board / file
    content = path.read_bytes()
    rng = random.Random(f"{seed} {file}")  # noqa: S311  (not for secrets)
    places = {
        at + near for at in _boundaries(path) for near in NEAR if 0 <= at + near < len(content)
    }
    places |= set(rng.sample(range(len(content)), round(len(content) * FLIPS_PER_BYTE)))
    if path.name == "data.mdb":
        places |= {page * PAGE_BYTES + at for page in (0, 1) for at in range(0, META_BYTES, 2)}
    elif len(content) < PAGE_BYTES:
        places |= set(range(0, len(content), 3))
    for at in sorted(places):
        yield Damage(file, "write", at=at, data=bytes([content[at] ^ 1 << rng.randrange(8)]))
        if rng.random() < 0.25:
            yield Damage(file, "write", at=at, data=bytes([rng.randrange(256)]))
    for at in range(0, len(content), PAGE_BYTES):
        rest = min(PAGE_BYTES, len(content) - at)
        yield Damage(file, "write", at=at, data=bytes(rest))
        yield Damage(file, "write", at=at, data=rng.randbytes(rest))


def _resized(board: Path, file: str) -> Iterator[Damage]:
    path = board / file
    size = path.stat().st_size
    for at in _boundaries(path):
        for near in NEAR:
            if 0 <= at + near < size:
                yield Damage(file, "cut", size=at + near)
    content = path.read_bytes()
    for data in (b"\0", b"?", bytes(16), bytes(PAGE_BYTES), content[-64:], content):
        if data:
            yield Damage(file, "extend", data=data)


def _misplaced(scene: Path, file: str) -> Iterator[Damage]:
    yield Damage(file, "remove")
    for state in ("old", "new", "other"):
        if (scene / state / "b" / file).exists():
            yield Damage(file, "replace", source=state)
    for other in files(scene / "now" / "b"):
        if other > file:
            yield Damage(file, "swap", source=other)
