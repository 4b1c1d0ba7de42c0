"""A table whose digest is kept up to date: equal tables, equal digests, whatever their history.

Pure. The digest is the sum, modulo 2^128, of a hash of each entry, so that a change costs O(1).
"""

from __future__ import annotations

import hashlib
from collections.abc import ItemsView, Iterable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

KeyT = TypeVar("KeyT", bound=bytes | int)
ValueT = TypeVar("ValueT")

_MODULUS = 1 << 128


def _term(key: object, value: object) -> int:
    entry = msgspec.msgpack.encode((key, value))
    return int.from_bytes(hashlib.blake2b(entry, digest_size=16).digest(), "little")


class Ledger(Generic[KeyT, ValueT]):
    """A mapping from names or sequences to values that MessagePack can hold.

    Reading: `get`, `in`, `len()`, iteration over keys, `items`. Changing: `put`, `drop`. Keeping:
    `dump`, `load`. Complexity: O(1) each, but for iteration and keeping.
    """

    def __init__(self) -> None:
        self._entries: dict[KeyT, ValueT] = {}
        self._sum = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[KeyT]:
        return iter(self._entries)

    def __contains__(self, key: KeyT) -> bool:
        return key in self._entries

    def get(self, key: KeyT) -> ValueT | None:
        """Return the value of a key, None where it has none."""
        return self._entries.get(key)

    def items(self) -> ItemsView[KeyT, ValueT]:
        """Return keys with their values, in the order in which these were put."""
        return self._entries.items()

    def put(self, key: KeyT, value: ValueT) -> None:
        """Set the value of a key; one that has one already keeps its place among the others."""
        former = 0 if key not in self._entries else _term(key, self._entries[key])
        self._entries[key] = value
        self._sum -= former
        self._sum = (self._sum + _term(key, value)) % _MODULUS

    def rename(self, key: KeyT, other: KeyT) -> None:
        """Give the value of a key, if it has one, to another, which has none, in its place.

        Complexity: O(entries).
        """
        if key in self._entries:
            entries = [(other if each == key else each, value) for each, value in self.items()]
            self._entries, self._sum = {}, 0
            self.load(entries)

    def drop(self, key: KeyT) -> None:
        """Forget a key, if it is there."""
        if key in self._entries:
            self._sum = (self._sum - _term(key, self._entries.pop(key))) % _MODULUS

    @property
    def digest(self) -> bytes:
        """The 16 bytes of the digest."""
        return self._sum.to_bytes(16, "little")

    def dump(self) -> list[tuple[KeyT, ValueT]]:
        """List the entries, for `load`."""
        return list(self._entries.items())

    def load(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Put entries that `dump` listed."""
        for key, value in entries:
            self.put(key, value)
