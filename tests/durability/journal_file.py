"""The workload's journal: what it tried, and what was acknowledged, one JSON object a line.

It lies outside of what is crashed. Each acknowledgement has a number, which the workload hands to
the interposer as a mark once its line is written: a trace cut after mark n promises what is
acknowledged by the numbers 1 to n. A line that a kill cut short was not acknowledged.
"""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Line = dict[str, Any]


@dataclass
class Journal:
    """A journal as it is.

    Acknowledged: `created`, `applied`, `duplicate`, `seen`, `changed`, `published`, `deleted`.
    Noted: `trying` before a step, `refused`, `done` after it.
    """

    path: Path
    lines: list[Line] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, mark: int | None = None) -> Journal:
        """Read a journal up to the acknowledgement after `mark`, or all of it."""
        texts = path.read_text().split("\n") if path.exists() else []
        lines = [json.loads(text) for text in texts[:-1]]
        if mark is not None:
            later = (place for place, line in enumerate(lines) if line.get("mark", 0) > mark)
            lines = lines[: next(later, None)]
        return cls(path, lines)

    def of(self, kind: str, board: str | None = None) -> list[Line]:
        """Return the lines of a kind, of one board or of all."""
        return [
            line
            for line in self.lines
            if line["kind"] == kind and board in (None, line.get("board"))
        ]

    @property
    def mark(self) -> int:
        """Return the number of the last acknowledgement."""
        return max((line["mark"] for line in self.lines if "mark" in line), default=0)

    def note(self, kind: str, **fields: Any) -> None:
        """Append a line that promises nothing."""
        self._append({"kind": kind} | fields)

    def acknowledge(self, kind: str, **fields: Any) -> None:
        """Append an acknowledgement, and mark it in the trace."""
        mark = self.mark + 1
        self._append({"kind": kind, "mark": mark} | fields)
        _set_mark(mark)

    def _append(self, line: Line) -> None:
        self.lines.append(line)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _set_mark(number: int) -> None:
    """Tell the interposer, where there is one."""
    mark = getattr(ctypes.CDLL(None), "interposer_mark", None)
    if mark is not None:
        mark(ctypes.c_uint64(number))
