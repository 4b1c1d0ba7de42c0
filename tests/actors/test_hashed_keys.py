"""Idempotency keys whose text is forgotten: their hashes are remembered as the texts were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.keyset import KEY_HASHED, KeySet, hash_key_text
from actors.members import siphash64, siphash128
from persistence.event_columns import FLAG_KEY_HASHED, FLAG_OCCURRED_AT_GIVEN
from tests.actors.naive import columns

SECRET = b"a secret of 16 b"
HASH_BYTES = 24
DAY = 20_000

keys = st.binary(max_size=6) | st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES)


def remembered(texts: list[bytes], flags: bytes | None = None) -> KeySet:
    """Remember keys, from sequence 1 on, over two days."""
    known, half = KeySet(SECRET), len(texts) // 2
    for part, day in ((slice(0, half), DAY), (slice(half, None), DAY + 1)):
        first_sequence = 1 + (part.start or 0)
        some = None if flags is None else flags[part]
        known.add(*columns(texts[part]), first_sequence, day, some)
    known._check()
    return known


def test_the_sets_flag_is_that_of_the_log() -> None:
    """Both name a hashed key by the same bit."""
    assert KEY_HASHED == FLAG_KEY_HASHED


@given(st.lists(st.tuples(keys, st.booleans(), st.booleans()), max_size=12))
def test_a_hashed_key_is_remembered_as_its_text_was(drawn: list[tuple[bytes, bool, bool]]) -> None:
    """Whichever keys are hashed, what is found by their texts, and the digest, are the same."""
    texts = [text for text, _, _ in drawn]
    stored = [hash_key_text(SECRET, text) if hashed else text for text, hashed, _ in drawn]
    flags = bytes(
        FLAG_KEY_HASHED * hashed | FLAG_OCCURRED_AT_GIVEN * given for _, hashed, given in drawn
    )
    plain, known = remembered(texts), remembered(stored, flags)
    loaded = KeySet.load(known.dump(), SECRET)
    loaded._check()
    assert plain.digest == known.digest == loaded.digest
    assert sorted(dict(known.dump()).items()) == sorted(dict(plain.dump()).items())
    for each in (known, loaded):
        assert [each.find(text) for text in texts] == [plain.find(text) for text in texts]
        assert each.find_all(*columns(texts)) == plain.find_all(*columns(texts))


def test_only_a_flagged_hash_is_taken_for_one() -> None:
    """A text of a hash's size is a text, and so is what is flagged but has another size."""
    text = b"key"
    stored = hash_key_text(SECRET, text)
    unflagged, cut = remembered([stored], bytes([1])), remembered([stored[:-1]], b"\2")
    for known, found in ((unflagged, stored), (cut, stored[:-1])):
        assert known.find(text) == ()
        assert known.find(found) == (1,)
    assert remembered([stored], b"\2").find(text) == (1,)
    assert remembered([stored], b"\3").find(stored) == ()


def test_a_hash_is_of_the_key_under_the_boards_secret() -> None:
    """A hash is the fingerprint and a SipHash-128: it tells nothing without the secret."""
    for key in (b"", b"key", bytes(255)):
        found = hash_key_text(SECRET, key)
        assert found == siphash64(SECRET, key).to_bytes(8, "little") + siphash128(SECRET, key)
        assert len(found) == HASH_BYTES
        assert found != hash_key_text(bytes(16), key)
    assert len({hash_key_text(SECRET, b"%d" % number) for number in range(500)}) == 500
    with pytest.raises(ValueError, match="16 bytes"):
        hash_key_text(b"short", b"key")


@pytest.mark.parametrize("flags", [b"", b"\0", b"\0\0\0"])
def test_flags_are_one_for_each_key(flags: bytes) -> None:
    """Flags of another number than the keys are refused, and change nothing."""
    known = remembered([b"a"])
    digest = known.digest
    with pytest.raises(ValueError, match="one byte per key"):
        known.add(*columns([b"b", b"c"]), 2, DAY + 1, flags)
    assert (known.digest, len(known)) == (digest, 1)
    known._check()
