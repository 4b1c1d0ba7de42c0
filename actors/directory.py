"""Which boards exist, and where each lives: the catalogue on disk and the Ray actors.

The directory of boards is the catalogue: a board exists when its directory does. Creating one is a
rename into place, deleting one is a rename away, so that a crash leaves it whole or not there. What
is known of a board without waking it comes from its listing file. Methods that touch the disk block
and are called from threads; those that touch Ray do not.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import msgspec
import ray

from actors.board import Board
from actors.board_actor import ActorOptions, BoardActor
from actors.calls import Calls, connect_calls
from actors.creation import create_board
from actors.definition import BOARD_ID, Definition
from actors.errors import Refusal
from actors.janitor import Janitor
from actors.last_words import take_last_words
from actors.listing import Listing, read_listing, rebuild_listing
from persistence.errors import DamagedError, RanknodeError
from persistence.files import free_bytes, make_directory, sync_directory

_LOG = logging.getLogger("ranknode")

BOARDS = "boards"
DELETED = "deleted"

# Ray would restart a process at once, and one whose disk fails over and over again; so the node
# does, after a pause. Only the gateway repeats calls, since only it knows their deadlines.
_REMOTE = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(BoardActor)
_REMOTE_JANITOR = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(Janitor)


class Directory:
    """The boards under one data directory: `listings` by board id, and the `damaged` ones."""

    def __init__(self, data_directory: Path, options: ActorOptions) -> None:
        self.listings: dict[str, Listing] = {}
        self.damaged: set[str] = set()
        self._options = options
        self._encoded_options = msgspec.msgpack.encode(options)
        self._boards = data_directory / BOARDS
        self._deleted = data_directory / DELETED

    def scan(self) -> None:
        """Learn which boards exist; finish what a crash left half created or half deleted.

        Complexity: O(boards). Errors: OSError.
        """
        for directory in (self._boards, self._deleted):
            if not directory.exists():
                make_directory(directory)
        # A killed node may have made these, or renamed a board, without having made that durable: a
        # board that is written to must not vanish.
        sync_directory(self._boards.parent)
        self.purge()
        for path in self._boards.iterdir():
            if path.name.startswith("."):
                shutil.rmtree(path)
            elif BOARD_ID.fullmatch(path.name) and _is_directory(path):
                self._learn(path)
            else:
                _LOG.warning("%s is no board's directory and is left alone", path)

    def _learn(self, path: Path) -> None:
        """Learn what a listing says of a board; one that cannot be read is made anew."""
        board = path.name
        try:
            try:
                self.listings[board] = read_listing(path)
            except (OSError, DamagedError) as error:
                _LOG.warning("the listing of board %s is made anew: %s", board, error)
                self.listings[board] = rebuild_listing(path)
        except (RanknodeError, OSError) as error:
            _LOG.error("board %s cannot be brought up: %s", board, error)
            self.listings.pop(board, None)
            self.damaged.add(board)

    def purge(self) -> None:
        """Remove the data of deleted boards. Errors: OSError."""
        self._sync()  # what is half removed must not come back
        for path in self._deleted.iterdir():
            shutil.rmtree(path, ignore_errors=True)

    def create(self, board: str, definition: Definition, now_us: int) -> Board:
        """Create a board, durably. Returns it as it is after its first records.

        Errors: Refusal board_unavailable where something else lies in its place, FileExistsError,
        StorageFullError, OSError.
        """
        path = self._boards / board
        if os.path.lexists(path) and not _is_directory(path):
            _LOG.warning("%s is no board's directory and is left alone", path)
            raise Refusal(
                "board_unavailable", "what lies in the board's place is none; see the node's log"
            )
        created = create_board(path, board, definition, now_us, self._options.board)
        self.refresh(board)
        return created

    def refresh(self, board: str) -> None:
        """Read a board's listing again, after its definition changed; nothing if it is deleted.

        A creation or deletion that failed may have missed but its last sync; before anyone learns
        of it, it is durable. Errors: OSError.
        """
        self._sync()
        path = self._boards / board
        if _is_directory(path):
            self._learn(path)
        else:
            self.listings.pop(board, None)

    def delete(self, board: str) -> None:
        """Take a board out of the catalogue, durably; `purge` frees its space.

        One that could not be deleted stays listed, so that it can be tried again. Errors: OSError.
        """
        path = self._boards / board
        if path.exists():  # else it was moved before, but that could not be made durable
            path.rename(self._deleted / f"{board}.{secrets.token_hex(8)}")
        self._sync()
        self.listings.pop(board, None)
        self.damaged.discard(board)

    def _sync(self) -> None:
        """Make durable which boards there are."""
        sync_directory(self._boards)
        sync_directory(self._deleted)

    def listing(self, board: str) -> Listing:
        """Return what is known of a board. Errors: Refusal board_not_found, board_unavailable."""
        listing = self.listings.get(board)
        if listing is None:
            if board in self.damaged:
                raise Refusal(
                    "board_unavailable", f"board {board} is damaged; the node's log says how"
                )
            raise Refusal("board_not_found", f"there is no board {board!r}")
        return listing

    def start(self, board: str) -> Any:
        """Start the process that hosts a board; returns its actor handle at once."""
        return _REMOTE.remote(self.path(board), self._encoded_options)

    @staticmethod
    async def reach(actor: Any) -> Calls:
        """Connect to a board's process, once it is up. Errors: BoardLostError, Ray's errors."""
        return await connect_calls(await actor.listen.remote())

    def start_janitor(self) -> Any:
        """Start the process that visits passive boards; returns its actor handle at once."""
        return _REMOTE_JANITOR.remote(self._encoded_options)

    def last_words(self, board: str) -> str | None:
        """Return why the last process that had a board ended itself, once; None if it was ended."""
        return take_last_words(board, self._options.node_directory)

    def path(self, board: str) -> str:
        """Name a board's directory."""
        return str(self._boards / board)

    def free_bytes(self) -> int:
        """Return what the disk of the boards has left for us. Errors: OSError."""
        return free_bytes(self._boards)

    @staticmethod
    def stop(actor: Any) -> None:
        """End a board's process without grace; it can lose nothing."""
        ray.kill(actor, no_restart=True)


def _is_directory(path: Path) -> bool:
    """Tell whether a board may live there; by a link to one it would be there twice."""
    return path.is_dir() and not path.is_symlink()
