"""A name taken out of records: what stands in the log of a member who was erased.

Owns what of a record goes and what takes its place, for answers given from a log that still holds
the name and for the log that is written without it. Pure.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from actors.keyset import hash_key_text
from actors.rulings import Dispute
from persistence.event_columns import FLAG_KEY_HASHED
from persistence.records import Event, EventsRecord, Record, RulingRecord
from persistence.rulings import DisputeOpened, MemberErased, ProfileSet

ELLIPSIS = "…"  # no text may become longer than texts may be
FEW_NAMES = 8  # a record's text is searched for each of so many, before its rows are looked at


class Forgetting(NamedTuple):
    """One name that is to be forgotten: in records before the sequence `until`, of its erasure.

    hash_key: the board's secret, under which idempotency keys become hashes.
    """

    name: bytes
    pseudonym: bytes
    until: int
    hash_key: bytes

    def event(self, event: Event) -> Event:
        """Return an event without the name."""
        if event.sequence >= self.until or event.member != self.name:
            return event
        return event._replace(
            member=self.pseudonym,
            idempotency_key=self.hashed(event.idempotency_key, hashed=event.key_hashed),
            key_hashed=True,
        )

    def record(self, record: Record) -> Record:
        """Return a record without the name; the same one where it does not hold it.

        Complexity: O(its bytes).
        """
        return forget((self,), record)

    def hashed(self, key: bytes, *, hashed: bool) -> bytes:
        """Return the hash that takes the place of a key; hashed: whether it is there already."""
        return key if hashed else hash_key_text(self.hash_key, key)

    def ruling(self, record: RulingRecord) -> RulingRecord:
        """Return a moderator's record without the name, wherever it stands in the log."""
        ruling, reason = record.ruling, self.text(record.reason)
        if ruling.member == self.name:
            ruling, reason = msgspec.structs.replace(ruling, member=self.pseudonym), ""
        if isinstance(ruling, DisputeOpened):
            opened_by = self.text(ruling.opened_by)
            ruling = msgspec.structs.replace(ruling, opened_by=opened_by)
        elif isinstance(ruling, ProfileSet) and ruling.member == self.pseudonym:
            ruling = msgspec.structs.replace(ruling, profile=b"")
        return replace(record, actor=self.text(record.actor), reason=reason, ruling=ruling)

    def dispute(self, dispute: Dispute) -> Dispute:
        """Return a dispute without the name, as the records of it without the name make it."""
        reason, note = self.text(dispute.reason), dispute.note
        member = dispute.member
        if member == self.name:
            member, reason, note = self.pseudonym, "", None if note is None else ""
        return msgspec.structs.replace(
            dispute,
            member=member,
            reason=reason,
            opened_by=self.text(dispute.opened_by),
            note=None if note is None else self.text(note),
            actor=None if dispute.actor is None else self.text(dispute.actor),
        )

    def text(self, text: str) -> str:
        """Return a text without the name, wherever it stands as a word: it becomes an ellipsis.

        A text that is the name becomes the pseudonym. In scripts that put no space between words,
        which know no upper case either, a word may begin and end anywhere.
        """
        name = self.name.decode()
        written = unicodedata.normalize("NFC", text)
        if name not in written:
            return text
        if name == written:
            return self.pseudonym.decode()
        before = "(?<![^\\W_])" if _is_spaced(name[0]) else ""
        behind = "(?![^\\W_])" if _is_spaced(name[-1]) else ""
        return re.sub(before + re.escape(name) + behind, ELLIPSIS, written)


def _is_spaced(character: str) -> bool:
    """Tell whether a character is of a script that puts spaces between words."""
    return character.isdigit() or character.lower() != character.upper()


def forget(forgettings: Sequence[Forgetting], record: Record) -> Record:
    """Return a record without some names; the same one where it holds none of them.

    forgettings: the oldest erasure first. Complexity: O(its bytes + names), for a ruling O(its
    bytes x names).
    """
    if isinstance(record, EventsRecord):
        return _forget_rows(record, rows_of(forgettings, record))
    if not isinstance(record, RulingRecord):
        return record
    other = record
    for forgetting in forgettings:
        if record.first_sequence < forgetting.until:
            other = forgetting.ruling(other)
        elif record.first_sequence == forgetting.until:
            assert isinstance(record.ruling, MemberErased)
            nameless = msgspec.structs.replace(record.ruling, name=b"")
            other = replace(other, ruling=nameless)
    return record if other == record else other


def rows_of(
    forgettings: Sequence[Forgetting], record: EventsRecord
) -> list[tuple[int, Forgetting]]:
    """List the rows of a record that are of erased members, in order, each with whose it is."""
    members = record.members if isinstance(record.members, bytes) else bytes(record.members)
    by_name: dict[bytes, Forgetting] = {}
    for forgetting in reversed(forgettings):  # of one name erased twice, the first that is later
        if record.first_sequence < forgetting.until:
            by_name[forgetting.name] = forgetting
    few = len(by_name) <= FEW_NAMES
    if not by_name or (few and not any(name in members for name in by_name)):
        return []
    return [
        (row, by_name[member])
        for row, member in enumerate(split(record.member_ends, members))
        if member in by_name
    ]


def _forget_rows(record: EventsRecord, rows: Sequence[tuple[int, Forgetting]]) -> EventsRecord:
    if not rows:
        return record
    members = split(record.member_ends, record.members)
    keys = split(record.key_ends, record.keys)
    flags = bytearray(record.flags)
    for row, forgetting in rows:
        members[row] = forgetting.pseudonym
        keys[row] = forgetting.hashed(keys[row], hashed=bool(flags[row] & FLAG_KEY_HASHED))
        flags[row] |= FLAG_KEY_HASHED
    member_ends, member_text = join(members)
    key_ends, key_text = join(keys)
    return replace(
        record, member_ends=member_ends, members=member_text, key_ends=key_ends, keys=key_text,
        flags=bytes(flags),
    )  # fmt: skip


def same_key(hash_key: bytes, event: Event, earlier: Event) -> bool:
    """Tell whether two events have one idempotency key, whichever of them is a hash by now."""
    keys = [
        each.idempotency_key
        if each.key_hashed or not (event.key_hashed or earlier.key_hashed)
        else hash_key_text(hash_key, each.idempotency_key)
        for each in (event, earlier)
    ]
    return keys[0] == keys[1]


def split(ends: Sequence[int] | memoryview, blob: bytes | bytearray | memoryview) -> list[bytes]:
    """Divide a blob into the texts that end where `ends` says."""
    text, start = bytes(blob), 0
    parts = []
    for end in ends:
        parts.append(text[start:end])
        start = end
    return parts


def join(parts: Sequence[bytes]) -> tuple[array[int], bytes]:
    """Join byte strings to a blob and its uint32 cumulative ends."""
    return array("I", itertools.accumulate(map(len, parts))), b"".join(parts)
