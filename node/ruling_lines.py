"""How a ruling stands in a file of import and export: one line of NDJSON, under "moderation".

Owns the fields of such a line and which of them each action has. It must not know HTTP or the disk.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from actors.answers import Action
from actors.histories import audit_item
from persistence.records import RulingRecord

FORGOTTEN = b"null"  # the profile of a member who was erased since

_FIELDS: dict[Action, frozenset[str]] = {
    "void": frozenset({"event"}),
    "hide": frozenset({"member"}),
    "unhide": frozenset({"member"}),
    "remove": frozenset({"member"}),
    "profile": frozenset({"member", "profile"}),
    "dispute": frozenset({"event", "dispute"}),
    "uphold": frozenset({"event", "dispute"}),
    "reject": frozenset({"event", "dispute"}),
    "erase": frozenset({"member"}),
    "erased": frozenset({"member"}),
}


class RulingLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ruling as a file has it; its texts are those of the audit.

    at and key: when it was made on the board that the file is of, and the id of the API key that it
    came with. event: JSON, as the event's own line has it. dispute: the id that a dispute had, by
    which a settlement finds it in the file. profile: JSON, FORGOTTEN where it went with a name.
    """

    action: Action
    actor: str
    reason: str
    at: str = ""
    key: str | None = None
    member: str | UnsetType = UNSET
    event: Raw | UnsetType = UNSET
    dispute: str | UnsetType = UNSET
    profile: Raw | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Refuse a line without a field that its action has, or with one that it has not."""
        wanted = _FIELDS[self.action]
        for name in ("member", "event", "dispute", "profile"):
            if (getattr(self, name) is not UNSET) != (name in wanted):
                needed = "needs" if name in wanted else "has no"
                raise ValueError(f"{self.action} {needed} `{name}`")


_decode = msgspec.json.Decoder(RulingLine).decode


def read_ruling(raw: Raw) -> RulingLine:
    """Read what stands under "moderation". Errors: ValueError, RecursionError."""
    return _decode(raw)


def write_ruling(record: RulingRecord, event: bytes | None) -> bytes:
    """Write a ruling as a line; event: that it is about, as JSON."""
    item = audit_item(record)
    known: dict[str, Any] = {
        "member": item.member,
        "event": None if event is None else Raw(event),
        "dispute": item.dispute,
        "profile": Raw(getattr(record.ruling, "profile", b"") or FORGOTTEN),
    }
    line = RulingLine(
        action=item.action,
        actor=item.actor,
        reason=item.reason,
        at=item.at,
        key=item.key,
        **{name: known[name] for name in _FIELDS[item.action]},
    )
    return msgspec.json.encode({"moderation": line}) + b"\n"
