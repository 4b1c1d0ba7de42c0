"""The root of ranknode's errors, and those that the disk can cause."""

from __future__ import annotations


class RanknodeError(Exception):
    """The root of every error that ranknode raises on purpose."""


class StorageFullError(RanknodeError):
    """Raised before a write for which there is no room; nothing was written, reads go on."""


class CommitFailedError(RanknodeError):
    """Raised when a commit or sync itself failed: what is on disk is unknown, the process ends."""


class DamagedError(RanknodeError):
    """Raised when what is on disk is not what was written: says which record of which file."""


class FormatTooNewError(RanknodeError):
    """Raised for data that a newer version wrote."""


def written_by_newer(what: str, newest: int) -> FormatTooNewError:
    """Make the error for data of a format, or kind, beyond the `newest` that this version knows."""
    return FormatTooNewError(
        f"{what}: it was written by a newer ranknode; this one reads up to {newest}"
    )


class OutdatedError(RanknodeError):
    """Raised for what an earlier version wrote and this one makes anew instead of reading it."""


class FencedError(RanknodeError):
    """Raised for a write by a process that is no longer the owner of its board."""


class OwnershipError(RanknodeError):
    """Raised when a board's former owner cannot be made sure of: it lives on, or holds the lock."""
