"""What LMDB would trust of a file, checked before it is mapped.

LMDB takes offsets, lengths and flags of its pages as they are: one out of place may end the process
or make it read something else. So each file is walked by lmdb's own offline verifier first, which
reads and never maps it, and what that leaves open is checked here. Knows nothing of records.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import lmdb.verify

from persistence.errors import DamagedError

_META = struct.Struct("<16xII16xI")  # of a meta page: magic, format, and the page size
_META_MAGIC = 0xBEEFC0DE
_META_FORMAT = 1
_FLAGS = struct.Struct("<44xH46xH50xQ")  # of both trees in a meta page, and its transaction
_FREE_TREE_FLAGS = 0x08  # its keys are integers
_RECORDS_TREE_FLAGS = 0


def page_findings(path: Path) -> list[str]:
    """List what is wrong with the pages of a file that nobody writes.

    Its free pages are not read, but the list of them is: a page in use must not be on it.
    Complexity: O(pages in use).
    """
    try:
        findings: list[str] = lmdb.verify.verify(str(path))  # type: ignore[no-untyped-call]
        return findings or _flag_findings(path)
    except (lmdb.verify.VerifyError, OSError) as error:
        return [str(error)]


def _flag_findings(path: Path) -> list[str]:
    """Look at the flags of the two trees, which may be valid and still not be those of a segment.

    LMDB reads keys in another order for some, and ends the process for others.
    """
    with path.open("rb") as file:
        content = file.read(2 * mmap.PAGESIZE)
    metas = [_FLAGS.unpack_from(content, page * mmap.PAGESIZE) for page in (0, 1)]
    free_tree, records_tree, _ = max(metas, key=lambda meta: meta[-1])
    if (free_tree, records_tree) == (_FREE_TREE_FLAGS, _RECORDS_TREE_FLAGS):
        return []
    return [f"its trees have the flags {free_tree} and {records_tree}"]


def require_meta(path: Path) -> None:
    """Raise DamagedError unless a file begins as this machine writes it, with pages of its size.

    Errors: OSError.
    """
    try:
        with path.open("rb") as file:
            start = file.read(_META.size)
    except FileNotFoundError as error:
        raise DamagedError(f"{path}: is missing") from error
    expected = (_META_MAGIC, _META_FORMAT, mmap.PAGESIZE)
    if len(start) < _META.size or _META.unpack(start) != expected:
        raise DamagedError(f"{path}: does not begin with a meta page of this machine")


def require_pages(path: Path, pages: int) -> None:
    """Raise DamagedError unless a file reaches to its last page.

    A page that was cut off is no error to whoever maps the file, but the end of its process.
    """
    try:
        missing = pages * mmap.PAGESIZE - path.stat().st_size
    except FileNotFoundError as error:
        raise DamagedError(f"{path}: is missing") from error
    if missing > 0:
        raise DamagedError(f"{path}: was cut, {missing} bytes are missing")
