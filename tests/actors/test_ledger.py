"""Tables whose digest is kept up to date."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from actors.ledger import Ledger
from actors.rulings import Dispute, Rulings

KEYS = (b"", b"a", b"\xc3\xa9", 0, 1, -1, 2**63 - 1)
VALUES: tuple[Any, ...] = (0, 1, b"", b"1", "1", (1, b"a"), Dispute(1, b"a", ("cup",), "", "", 0))

changes = st.lists(
    st.tuples(st.sampled_from(KEYS), st.none() | st.sampled_from(VALUES)), max_size=12
)


def made(history: list[Any]) -> tuple[Ledger[Any, Any], dict[Any, Any]]:
    """Make a table by puts, and drops where there is no value, and a dict by the same."""
    ledger: Ledger[Any, Any] = Ledger()
    table: dict[Any, Any] = {}
    for key, value in history:
        if value is None:
            ledger.drop(key)
            table.pop(key, None)
        else:
            ledger.put(key, value)
            table[key] = value
    return ledger, table


@given(changes, changes)
def test_equal_tables_have_equal_digests(one, other):
    """A digest is equal exactly where the tables are, whatever their histories were."""
    (first, table), (second, other_table) = made(one), made(other)
    assert (first.digest == second.digest) == (table == other_table)
    again, _ = made([*table.items()][::-1])
    assert again.digest == first.digest


@given(changes)
def test_a_ledger_is_a_table(history):
    """It holds what was put last under each key, and nothing that was dropped."""
    ledger, table = made(history)
    assert dict(ledger.items()) == table
    assert len(ledger) == len(table)
    assert set(ledger) == set(table)
    for key in KEYS:
        assert ledger.get(key) == table.get(key)
        assert (key in ledger) == (key in table)


@given(changes)
def test_a_dumped_ledger_comes_back(history):
    """What is loaded from a dump has the entries and the digest of what was dumped."""
    ledger, table = made(history)
    loaded: Ledger[Any, Any] = Ledger()
    loaded.load(ledger.dump())
    assert dict(loaded.items()) == table
    assert loaded.digest == ledger.digest


@given(changes)
def test_an_emptied_ledger_is_as_new(history):
    """Dropping everything leads back to the digest of an empty table."""
    ledger, _ = made(history)
    for key in KEYS:
        ledger.drop(key)
    assert (len(ledger), ledger.digest) == (0, Ledger().digest)


def test_rulings_digest_each_table():
    """The same entry in another table is another digest, and so is another value in its place."""
    digests = {Rulings().digest}
    for table in ("voided", "removed", "hidden", "profiles", "disputes"):
        rulings = Rulings()
        for value in (1, 2):
            getattr(rulings, table).put(b"a", value)
            digests.add(rulings.digest)
    assert len(digests) == 11


def test_rulings_come_back():
    """Rulings that were dumped are loaded with every table and the order of their records."""
    rulings = Rulings()
    rulings.voided.put(3, 9)
    rulings.removed.put(b"a", 10)
    rulings.hidden.put(b"b", 11)
    rulings.profiles.put(b"c", b"{}")
    rulings.disputes.put(12, Dispute(3, b"a", ("cup", "all_time"), "why", "ref", 1))
    rulings.records.extend([9, 10, 11, 12])
    loaded = Rulings.load(rulings.dump())
    assert loaded.digest == rulings.digest
    assert loaded.dump() == rulings.dump()
    assert loaded.disputes.get(12) == rulings.disputes.get(12)
    assert not loaded.counts(b"a", 10)
    assert loaded.counts(b"a", 11)
    assert not loaded.counts(b"x", 3)
