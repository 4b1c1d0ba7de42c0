"""What moderators decided of a board's events and members: their part of its state. Pure."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

from actors.ledger import Ledger

OPEN, UPHELD, REJECTED = "open", "upheld", "rejected"


class Dispute(msgspec.Struct, frozen=True, array_like=True):
    """A dispute about the event with `sequence`, of `member`; windows: those it counted in.

    note, actor, settled_at_us and settled_sequence, that of the record, belong to its settlement:
    None while it is open.
    """

    sequence: int
    member: bytes
    windows: tuple[str, ...]
    reason: str
    opened_by: str
    opened_at_us: int
    status: str = OPEN
    note: str | None = None
    actor: str | None = None
    settled_at_us: int | None = None
    settled_sequence: int | None = None


class Erasure(msgspec.Struct, frozen=True, array_like=True):
    """Who was erased: the member with `slot`, -1 for one that never had an event.

    sequence: of the record of it. finished: of the record that says that nothing is left on disk;
    None until then.
    """

    sequence: int
    slot: int
    finished: int | None = None


class _Dump(msgspec.Struct, frozen=True, array_like=True):
    voided: list[tuple[int, int]]
    removed: list[tuple[bytes, int]]
    hidden: list[tuple[bytes, int]]
    profiles: list[tuple[bytes, bytes]]
    disputes: list[tuple[int, Dispute]]
    erased: list[tuple[bytes, Erasure]]
    records: list[int]


class Rulings:
    """The rulings that hold.

    voided: the ruling's sequence by that of the event. removed, hidden: that of the ruling by
    member. profiles: JSON by member. disputes: by the sequence of the record that opened them.
    erased: by pseudonym. records: the sequences of all rulings, in order.
    """

    def __init__(self) -> None:
        self.voided: Ledger[int, int] = Ledger()
        self.removed: Ledger[bytes, int] = Ledger()
        self.hidden: Ledger[bytes, int] = Ledger()
        self.profiles: Ledger[bytes, bytes] = Ledger()
        self.disputes: Ledger[int, Dispute] = Ledger()
        self.erased: Ledger[bytes, Erasure] = Ledger()
        self.records = array("q")

    def counts(self, member: bytes, sequence: int) -> bool:
        """Tell whether an event of a member still counts, as far as rulings go."""
        return sequence > (self.removed.get(member) or 0) and sequence not in self.voided

    @property
    def last_sequence(self) -> int:
        """The sequence of the last ruling, 0 without any."""
        return self.records[-1] if self.records else 0

    @property
    def erasing(self) -> list[bytes]:
        """The pseudonyms of those whose names are not off the disk yet, the oldest first."""
        return [name for name, erasure in self.erased.items() if erasure.finished is None]

    @property
    def digest(self) -> bytes:
        """Digest everything but the order of the rulings. Complexity: O(1)."""
        ledgers = (
            self.voided, self.removed, self.hidden, self.profiles, self.disputes, self.erased,
        )  # fmt: skip
        counted = f"{len(self.records)} {self.last_sequence}".encode()
        return b"".join(ledger.digest for ledger in ledgers) + counted

    def dump(self) -> bytes:
        """Copy everything, for `load`."""
        return msgspec.msgpack.encode(
            _Dump(
                self.voided.dump(),
                self.removed.dump(),
                self.hidden.dump(),
                self.profiles.dump(),
                self.disputes.dump(),
                self.erased.dump(),
                self.records.tolist(),
            )
        )

    @classmethod
    def load(cls, dumped: Any) -> Rulings:
        """Make what `dump` copied. Errors: msgspec.DecodeError."""
        parts = msgspec.msgpack.decode(dumped, type=_Dump)
        rulings = cls()
        rulings.voided.load(parts.voided)
        rulings.removed.load(parts.removed)
        rulings.hidden.load(parts.hidden)
        rulings.profiles.load(parts.profiles)
        rulings.disputes.load(parts.disputes)
        rulings.erased.load(parts.erased)
        rulings.records = array("q", parts.records)
        return rulings
