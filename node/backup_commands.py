"""What `ranknode backup` does: a copy of a data directory, beside the node that serves it.

Owns which files a data directory has besides its boards, and what is said of each. A board that
cannot be read is left out; what concerns the backup as a whole, as a disk that does not take it,
ends it.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.progress import Progress, TextColumn

from actors.copying import BoardCopy, copy_board
from node import key_file
from node.commands import BOARDS, CommandError, bar, board_directories
from persistence.backup import (
    PARTIAL_SUFFIX,
    BackupExistsError,
    BoardGoneError,
    building,
    file_bytes,
)
from persistence.errors import DamagedError, FormatTooNewError, RanknodeError
from persistence.files import sync_directory, write_atomically

SHOWN_SEQUENCES = 10_000  # how often a bar moves while a copy is verified


def run_backup(data: Path, target: Path) -> int:
    """Copy a data directory to `target`, which must not exist; returns 1 if anything is missing.

    Each board is copied as of one place of its log, behind everything that was acknowledged before
    the command began; boards are independent of each other, and those created later are not in it.
    `target` appears when all of it is durable.
    """
    if target.resolve().is_relative_to(data.resolve()):
        raise CommandError(f"{target} lies in {data}, where nothing but its node may put anything")
    directories = board_directories(data)
    begun = time.monotonic()
    try:
        with building(target) as partial, _amounts() as progress:
            backup = _Backup(partial, progress)
            backup.copy_keys(data)
            backup.copy_boards(directories)
    except BackupExistsError:
        raise
    except (KeyboardInterrupt, OSError, RanknodeError):
        broken = target.with_name(target.name + PARTIAL_SUFFIX)
        _say(Console(stderr=True), f"The broken backup is left in {broken}; remove it.")
        raise
    seconds = time.monotonic() - begun
    _say(
        Console(),
        f"{backup.boards} boards, {decimal(backup.bytes)} in {seconds:.1f} s,"
        f" {decimal(round(backup.bytes / seconds))}/s: {target}",
    )
    return 0 if backup.is_complete else 1


def _amounts() -> Progress:
    return bar(Console(stderr=True), TextColumn("{task.fields[amount]}"))


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


class _Backup:
    """A backup that is being made in a directory, and what became of it so far."""

    def __init__(self, directory: Path, progress: Progress) -> None:
        self.boards = 0
        self.bytes = 0
        self.is_complete = True
        self._directory = directory
        self._progress = progress

    def copy_keys(self, data: Path) -> None:
        """Copy the API keys; damaged ones too, since without any a node would let everyone in."""
        try:
            content = (data / key_file.FILE).read_bytes()
        except FileNotFoundError:
            return
        write_atomically(self._directory / key_file.FILE, [content], key_file.MODE)
        try:
            key_file.decode(content)
        except (DamagedError, FormatTooNewError) as error:
            self._fail(f"{key_file.FILE}: copied as it is, but {error}")

    def copy_boards(self, directories: list[Path]) -> None:
        """Copy boards one after the other, and say of each what became of it."""
        boards = self._directory / BOARDS
        boards.mkdir()
        for directory in directories:
            begun = time.monotonic()
            copy = self._copy(directory, boards / directory.name)
            if copy is None:
                continue
            self.boards += 1
            self.bytes += copy.bytes
            self._say(
                f"{directory.name}: sequence {copy.last_sequence}, {decimal(copy.bytes)}"
                f" in {time.monotonic() - begun:.1f} s"
            )
            for why in copy.left_out:
                self._say(f"  left out, and made again when it is needed: {why}")
        sync_directory(boards)

    def _copy(self, source: Path, target: Path) -> BoardCopy | None:
        """Copy one board; None if it cannot be, of which nothing is left then."""
        task = self._progress.add_task(source.name, total=None, amount="")
        copied_bytes, total_bytes = 0, file_bytes(source)

        def copied(count: int) -> None:
            nonlocal copied_bytes
            copied_bytes += count
            amount = f"{decimal(copied_bytes)} of {decimal(total_bytes)}"
            self._progress.update(task, completed=copied_bytes, total=total_bytes, amount=amount)

        def checked(done: int, total: int) -> None:
            if done % SHOWN_SEQUENCES == 0 or done == total:
                amount = f"sequence {done} of {total} verified"
                self._progress.update(task, completed=done, total=total, amount=amount)

        try:
            return copy_board(source, target, copied, checked)
        except BoardGoneError:
            self._say(f"{source.name}: was deleted meanwhile")
        except (DamagedError, FormatTooNewError, OSError) as error:
            why = str(error).replace(str(target), str(source))
            self._fail(f"{source.name}: not copied: {why}")
        finally:
            self._progress.remove_task(task)
        if target.exists():
            shutil.rmtree(target)
        return None

    def _say(self, line: str) -> None:
        _say(Console(), line)

    def _fail(self, line: str) -> None:
        self._say(line)
        self.is_complete = False
