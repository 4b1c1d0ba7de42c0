from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from actors.definition import BOARD_ID
from node.keys import (
    CREDENTIALS_MAX,
    PATTERNS_MAX,
    Credential,
    Key,
    Scope,
    bearer,
    can_cover,
    covers,
    hash_of,
    new_id,
    new_secret,
    opens,
    read_bearer,
)
from tests.node.fake_boards import NOW_US

ID = "00112233aabb"
SECRET = "5e" * 32


def key(**fields: Any) -> Key:
    made: dict[str, Any] = {
        "id": ID,
        "scope": Scope.SUBMIT,
        "kind": "bearer",
        "created_at_us": NOW_US,
        "credentials": (Credential(hash_of(SECRET)),),
    }
    return Key(**made | fields)


def test_scopes_are_ordered() -> None:
    """Reading is part of submit, submit of admin, and what is open of all."""
    order = [Scope.OPEN, Scope.READ, Scope.SUBMIT, Scope.ADMIN]
    assert list(Scope) == order
    for rank, scope in enumerate(order):
        assert [scope.includes(other) for other in order] == [n <= rank for n in range(4)]


def test_a_bearer_key_is_read_as_it_was_written() -> None:
    """A key carries its id and 256 bits, and no two are alike."""
    drawn = {bearer(new_id(), new_secret()) for _ in range(100)}
    assert len(drawn) == 100
    for text in drawn:
        presented = read_bearer(text)
        assert presented is not None
        assert bearer(*presented) == text
        assert len(presented.secret) * 4 == 256


@pytest.mark.parametrize(
    "text",
    ["", "rnk", f"rnk_{ID}", f"rnk_{ID}_", f"rnk_{ID}_{SECRET}0", f"rnk_{ID}_{SECRET[1:]}",
     f"RNK_{ID}_{SECRET}", f"rnk_{ID.upper()}_{SECRET}", f"rnk_{ID}_{SECRET.upper()}",
     f"rnk_{ID}_{SECRET}\n", f" rnk_{ID}_{SECRET}", f"rnk_{ID}_{'é' * 64}", "rnk_" * 1000],
)  # fmt: skip
def test_what_is_no_key_is_none(text: str) -> None:
    """Only the one form of a key is read."""
    assert read_bearer(text) is None


def test_a_secret_opens_its_own_key_only() -> None:
    """The right secret opens a key until it expires; nothing opens an unknown or a revoked one."""
    assert opens(key(), SECRET, NOW_US)
    assert not opens(key(), "5f" * 32, NOW_US)
    assert not opens(None, SECRET, NOW_US)
    assert not opens(key(credentials=(), revoked_at_us=NOW_US), SECRET, NOW_US)
    expiring = key(credentials=(Credential(hash_of(SECRET), NOW_US),))
    assert opens(expiring, SECRET, NOW_US - 1)
    assert not opens(expiring, SECRET, NOW_US)
    assert not opens(key(kind="ed25519"), SECRET, NOW_US)


def test_an_unknown_key_is_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret is hashed and compared in constant time whether or not there is such a key."""
    compared = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr("node.keys.hmac.compare_digest", compare)
    for candidate in (None, key(), key(credentials=(), revoked_at_us=NOW_US)):
        compared.clear()
        opens(candidate, "5f" * 32, NOW_US)
        assert compared
        assert all(a == hash_of("5f" * 32) and len(b) == 32 for a, b in compared)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "x"), ("id", "A" * 12), ("name", "a\nb"), ("name", "x" * 129), ("name", " a"),
        ("scope", Scope.OPEN), ("boards", ()), ("boards", ("a",) * (PATTERNS_MAX + 1)),
        ("boards", ("",)), ("boards", ("A*",)), ("boards", ("a" * 65,)), ("boards", ("a b",)),
        ("boards", ("a/*",)), ("source", ""), ("source", "x" * 65), ("source", "e\u0301"),
        ("requests_per_second", 0.0), ("requests_per_second", 1e-310),
        ("requests_per_second", -1.0),
        ("requests_per_second", float("nan")), ("requests_per_second", float("inf")),
        ("requests_per_second", 1e7),
        ("credentials", (Credential(b"x" * 32),) * (CREDENTIALS_MAX + 1)),
    ],
)  # fmt: skip
def test_a_field_out_of_bounds_is_refused_by_name(field: str, value: Any) -> None:
    """Every field of a key has bounds; what breaks them is refused with the field's name."""
    with pytest.raises(ValueError, match=f"^{field}:"):
        key(**{field: value})


def test_what_contradicts_itself_is_refused() -> None:
    """An admin key cannot sign, a reader has no source, a revoked key nothing that opens it."""
    with pytest.raises(ValueError, match=r"^scope: an admin key cannot sign"):
        key(kind="ed25519", scope=Scope.ADMIN)
    with pytest.raises(ValueError, match=r"^source:"):
        key(scope=Scope.READ, source="s")
    with pytest.raises(ValueError, match=r"^credentials:"):
        key(revoked_at_us=NOW_US)


@pytest.mark.parametrize(
    ("patterns", "board", "covered"),
    [
        (("*",), "arena", True), (("arena-*",), "arena-1", True), (("arena-*",), "arena", False),
        (("arena-*",), "my-arena-1", False), (("a?",), "ab", True), (("a?",), "a", False),
        (("a[0-3]",), "a3", True), (("a[!0-3]",), "a3", False), (("x", "y"), "y", True),
        (("arena",), "arena\n", False), ((), "arena", False),
    ],
)  # fmt: skip
def test_patterns_cover_whole_ids(patterns: tuple[str, ...], board: str, covered: bool) -> None:
    """A pattern is a glob over the whole id; any of several is enough, none is none."""
    assert covers(patterns, board) is covered


@pytest.mark.parametrize(
    ("pattern", "possible"),
    [
        ("*", True), ("arena-*", True), ("*-x", True), ("?_", True), ("[a-]b", True),
        ("[!a]*", True), ("[]a]", True), ("[", False), ("a[b", False), ("[]", False),
        ("[!]", False), ("a!", False), ("]", False), ("-a", False), ("_*", False),
        ("[_-]*", False), ("[b-a]", False), ("*[!a-z0-9_-]*", False),
    ],
)  # fmt: skip
def test_a_pattern_can_cover_an_id_or_it_cannot(pattern: str, possible: bool) -> None:
    """A pattern is known to match no id there could be; short ids are asked one by one here."""
    characters = "".join(map(chr, range(33, 127)))
    texts = [*characters, *map("".join, product(characters, repeat=2)), "arena-1", "a-x"]
    matching = [each for each in texts if BOARD_ID.fullmatch(each) and covers((pattern,), each)]
    assert can_cover(pattern) is possible
    assert bool(matching) is possible
