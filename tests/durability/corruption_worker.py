"""A process that judges damaged boards, so that what damage does to a process stays in it.

    python -m tests.durability.corruption_worker SCENE [FAULT]

reads cases from its standard input and writes a judgement for each, as lines of base64. FAULT names
a check that is planted away: `records`, `columns`, `head` or `seal`.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from persistence import column_file, head, records, value_file
from tests.durability.corruption import Damage, Judgement, judge, read_scene


class _Unchecked(bytes):
    """A checksum that is equal to every other."""

    __hash__ = bytes.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


class _UncheckedHash:
    """A hash whose digest is equal to every other."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.update = real.update

    def digest(self) -> bytes:
        return _Unchecked(self._real.digest())


def plant(fault: str) -> None:
    """Take the comparison of one kind of checksum away."""
    if fault == "columns":
        make = column_file._digest
        column_file._digest = lambda *given: _UncheckedHash(make(*given))  # type: ignore[assignment]
        return
    module: Any = {"records": records, "head": head, "seal": value_file}[fault]
    name = "_hash" if fault == "records" else "_checksum"
    real = getattr(module, name)
    setattr(module, name, lambda content: _Unchecked(real(content)))


def main(directory: str, *faults: str) -> None:
    """Judge case after case until there are no more."""
    for fault in faults:
        plant(fault)
    scene = read_scene(Path(directory))
    with tempfile.TemporaryDirectory(dir=directory) as work:
        for line in sys.stdin:
            case = msgspec.msgpack.decode(base64.b64decode(line), type=Damage)
            try:
                judgement = judge(scene, case, Path(work) / "judged")
            except Exception as error:  # noqa: BLE001  (whatever it is, it is what is judged)
                judgement = Judgement(f"{type(error).__name__}: {error}")
            answer = base64.b64encode(msgspec.msgpack.encode(judgement)).decode()
            sys.stdout.write(answer + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
