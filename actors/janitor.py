"""Closing what is due on boards that nobody uses, one after the other in one process.

A board that is asked for closes its own windows. For the others a process each would be far too
much at midnight, so the janitor opens one, closes what is due, seals it, and puts it away.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from actors.board_actor import ActorOptions
from actors.last_words import end_process
from actors.logged_board import LoggedBoard
from persistence.errors import CommitFailedError, RanknodeError


class Janitor:
    """The process that visits passive boards. Whoever calls it keeps the board from being used."""

    def __init__(self, options: bytes) -> None:
        self._options = msgspec.msgpack.decode(options, type=ActorOptions)

    def close_due(self, directory: str) -> str:
        """Close and seal what is due; returns why that could not be done, or nothing.

        A commit that fails in itself ends the process, as it does everywhere.
        Complexity: O(snapshot + newer events + members of what closes).
        """
        try:
            host = LoggedBoard.open(Path(directory), self._options.board)
            try:
                host.close_due(time.time_ns() // 1_000)
                host.seal_all()
                if host.snapshot_due:
                    host.write_copy(host.copy_state())
            finally:
                host.close()
        except CommitFailedError as error:
            end_process(Path(directory).name, self._options.node_directory, str(error))
        except (RanknodeError, OSError) as error:
            return str(error) or type(error).__name__
        return ""
