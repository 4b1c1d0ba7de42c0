"""What a board remembers of a window that closed; its standings are in archives, one a revision.

A closed window never changes, moderation aside: what a ruling changes makes another revision.
"""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple, Self

from actors.members import Members
from actors.standings import Standings
from persistence.records import Record, RulingRecord, WindowClosedRecord
from persistence.rulings import MemberErased, Row, RowChange

_DIGEST_MODULUS = 1 << 128


class Revision(NamedTuple):
    """One form of a closed window's standings.

    sequence: of the record that made it. members and digest: of all that stood, hidden ones
    included; the digest is free of their order, and empty once the revision is not kept any more,
    because it named a member who was erased.
    """

    sequence: int
    members: int
    digest: bytes


class ClosedWindow(NamedTuple):
    """A closed window. Bounds in microseconds, start included, end excluded.

    opened_sequence: of the record that opened it. closes_at_us: when it was due. revisions: at
    least one; the first is what it closed with. hidden: the members who stand in it and are hidden
    now, in the order of their hiding.
    """

    id: str
    kind: str
    start_us: int | None
    end_us: int
    opened_sequence: int
    closes_at_us: int
    closed_at_us: int
    revisions: tuple[Revision, ...]
    hidden: tuple[bytes, ...]

    @classmethod
    def from_header(cls, row: list[Any]) -> Self:
        """Make one of a list of plain values, as a snapshot's header has it."""
        *fields, revisions, hidden = row
        return cls._make([*fields, tuple(map(Revision._make, revisions)), tuple(hidden)])

    def holds(self, occurred_at_us: int) -> bool:
        """Tell whether an instant lies in the window."""
        return (
            self.start_us is None or self.start_us <= occurred_at_us
        ) and occurred_at_us < self.end_us

    @property
    def revision(self) -> int:
        """The number of the newest revision, from 1."""
        return len(self.revisions)

    @property
    def kept(self) -> list[int]:
        """The numbers of the revisions that are kept."""
        return [number for number, each in enumerate(self.revisions, 1) if each.digest]

    @property
    def newest(self) -> Revision:
        """The newest revision."""
        return self.revisions[-1]

    def at(self, revision: int) -> ClosedWindow:
        """Return the window as it was with an earlier revision, hiding aside."""
        return self._replace(revisions=self.revisions[:revision])

    @property
    def closed_sequence(self) -> int:
        """The sequence of the record that closed it; no later event counts in it."""
        return self.revisions[0].sequence

    @property
    def shown(self) -> int:
        """How many members stand in its newest revision, without those who are hidden."""
        return self.newest.members - len(self.hidden)

    def revised(
        self, sequence: int, member: bytes, change: RowChange, rules: dict[str, Any]
    ) -> ClosedWindow:
        """Make the window as it is after a ruling changed a member's row."""
        before, after = (
            entry_digest(rules, member, row) if row is not None else 0
            for row in (change.before, change.after)
        )
        members = self.newest.members + (after != 0) - (before != 0)
        newest = Revision(sequence, members, changed_digest(self.newest.digest, after - before))
        gone = change.after is None
        hidden = tuple(name for name in self.hidden if not (gone and name == member))
        return self._replace(revisions=(*self.revisions, newest), hidden=hidden)

    def without(
        self, name: bytes, pseudonym: bytes, sequence: int, row: Row | None, rules: dict[str, Any]
    ) -> ClosedWindow:
        """Make the window as it is after a member that was ever in it was erased.

        row: what it has in the newest revision. No earlier revision is kept.
        """
        revisions = [each._replace(digest=b"") for each in self.revisions]
        revisions[-1] = self.newest
        if row is not None:
            change = entry_digest(rules, pseudonym, row) - entry_digest(rules, name, row)
            revisions[-1] = self.newest._replace(digest=b"")
            digest = changed_digest(self.newest.digest, change)
            revisions.append(Revision(sequence, self.newest.members, digest))
        hidden = tuple(pseudonym if each == name else each for each in self.hidden)
        return self._replace(revisions=tuple(revisions), hidden=hidden)


def changed_digest(digest: bytes, change: int) -> bytes:
    """Return a digest of standings after entries whose digests differ by `change` changed."""
    total = int.from_bytes(digest, "little") + change
    return (total % _DIGEST_MODULUS).to_bytes(16, "little")


def entry_digest(rules: dict[str, Any], member: bytes, row: Row) -> int:
    """Return what one entry adds to a digest of standings."""
    members = Members(bytes(16))
    standings = Standings(members, **rules)
    ends = array("I", [len(member)])
    (slot,) = members.record(ends, member, members.plan(ends, member, 1), 1)
    standings.put(slot, row.score, row.achieved_at_us, row.flags)
    return int.from_bytes(standings.digest, "little")


def revised_by(record: Record) -> list[str]:
    """Name the closed windows that may have another revision after a record."""
    if isinstance(record, WindowClosedRecord):
        return [record.window]
    if not isinstance(record, RulingRecord):
        return []
    if isinstance(record.ruling, MemberErased):
        return [place.window for place in record.ruling.places if place.row is not None]
    return [change.window for change in getattr(record.ruling, "changes", ())]
