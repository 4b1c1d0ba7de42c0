"""A board that another process owns and writes, step by step as a test says.

LMDB lets a process open a file once only, so whoever reads beside a writer needs one elsewhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.persistence import processes

_OWNER = """
    import json, sys
    from pathlib import Path
    from persistence.event_log import LogOptions
    from actors.logged_board import BoardOptions
    from tests.actors.clocked_board import ClockedBoard

    options = BoardOptions(
        LogOptions(segment_events_max=40, segment_bytes_max=1 << 20, reserved_free_bytes=0), 1000
    )
    board = ClockedBoard(Path(sys.argv[1]), sys.argv[2], options, **json.loads(sys.argv[3]))
    for line in sys.stdin:
        print(json.dumps(eval(line), default=str), flush=True)
    board.close()
"""


class BoardProcess:
    """The board `b` below a directory, in a process: `do` evaluates a text about `board` there."""

    def __init__(self, directory: Path, now: str, **fields: Any) -> None:
        self.directory = directory / "b"
        self._process = processes.start(_OWNER, directory, now, json.dumps(fields))
        self.do("None")

    def do(self, expression: str) -> Any:
        """Let the process evaluate an expression and return what it came to."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(expression + "\n")
        stdin.flush()
        answer = stdout.readline()
        assert answer, "the process ended"
        return json.loads(answer)

    def add(self, count: int) -> list[str]:
        """Submit events under keys of their own, at the clock's time; returns their statuses."""
        return self.do(
            f"board.batch(*[board.event(n, None, f'm{{n % 7}}') for n in range({count})])"
        )

    def end(self) -> None:
        """Give the board up in order, and end the process."""
        if self._process.poll() is None:
            self._process.communicate(timeout=60)
        assert self._process.returncode == 0

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.communicate(timeout=60)
