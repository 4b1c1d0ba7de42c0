"""What a moderator decided, as it stands in the log: the payload of a record of rulings.

A ruling holds what follows from it as well: the row of each score that it changes, before and
after. So a replay needs no other record to apply it, and one that reached other rows is noticed.
Knows no board: a row is numbers whose meaning is the standings' business.
"""

from __future__ import annotations

import msgspec


class Row(msgspec.Struct, frozen=True, array_like=True):
    """All that standings keep of a member: scaled score keys, achieved_at, and a byte of flags."""

    score: tuple[int, ...]
    achieved_at_us: int
    flags: int


class RowChange(msgspec.Struct, frozen=True, array_like=True):
    """A member's row in one window; None where it does not stand."""

    window: str
    before: Row | None
    after: Row | None


class Ruling(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The root of all rulings. member: whom it is about, UTF-8."""

    member: bytes


class EventVoided(Ruling, frozen=True):
    """The event with `sequence` no longer counts."""

    sequence: int
    changes: tuple[RowChange, ...]


class MemberHidden(Ruling, frozen=True):
    """A member leaves every answer; closed: the closed windows that it stands in."""

    closed: tuple[str, ...]


class MemberShown(Ruling, frozen=True):
    """A hidden member is back with everything earned meanwhile."""


class MemberRemoved(Ruling, frozen=True):
    """No event of the member before this record counts."""

    changes: tuple[RowChange, ...]


class ProfileSet(Ruling, frozen=True):
    """What is shown with a member's entries; profile: JSON, as it is answered."""

    profile: bytes


class DisputeOpened(Ruling, frozen=True):
    """Somebody disputes the event with `sequence`; windows: those that it counted in."""

    sequence: int
    opened_by: str
    windows: tuple[str, ...]


class DisputeSettled(Ruling, frozen=True):
    """The dispute that the record with sequence `dispute` opened is settled.

    One that is upheld voids its event; changes are what follows from that.
    """

    dispute: int
    upheld: bool
    changes: tuple[RowChange, ...]


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A closed window that a member stands in, with its row, or once stood in: None then."""

    window: str
    row: Row | None


class MemberErased(Ruling, frozen=True):
    """A member has no name any more, but the pseudonym `member`.

    slot: its number in the order of members' first events. name: of one that never had an event,
    whose slot is -1, until nothing else on disk holds it; empty then, and otherwise. places: the
    closed windows that it is in.
    """

    slot: int
    name: bytes
    places: tuple[Place, ...]


class ErasureFinished(Ruling, frozen=True):
    """Nothing on the board's disk holds the name any more that the pseudonym `member` replaced."""


AnyRuling = (
    EventVoided
    | MemberHidden
    | MemberShown
    | MemberRemoved
    | ProfileSet
    | DisputeOpened
    | DisputeSettled
    | MemberErased
    | ErasureFinished
)


class RulingPayload(msgspec.Struct, frozen=True, array_like=True):
    """A ruling and who gave it. key: the id of the API key that it came with; None without keys."""

    actor: str
    reason: str
    key: str | None
    ruling: AnyRuling


encode_ruling = msgspec.msgpack.Encoder().encode
decode_ruling = msgspec.msgpack.Decoder(RulingPayload).decode
