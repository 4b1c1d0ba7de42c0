"""What an API key is: its scope, its boards, and what it is recognised by. Pure: no disk, no HTTP.

A bearer key is `rnk_<id>_<secret>`. The id names it everywhere and is no secret; of the secret only
the SHA-256 is kept. A plain hash suffices because the secret is 256 random bits: salts and slow
hashes defend what a person chose and an attacker could guess, and nobody enumerates 2^256. It also
keeps the check cheap enough to make for every request. Of a signing key the node has only the
public half.
"""

from __future__ import annotations

import enum
import fnmatch
import hashlib
import hmac
import re
import secrets
import string
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from actors.exact import check_name
from actors.submission import SOURCE_BYTES_MAX

PREFIX = "rnk"
ID_BYTES = 6  # enough that no two of a node's keys meet; whoever makes one looks
SECRET_BYTES = 32
CREDENTIAL_BYTES = 32  # of a SHA-256, and of an Ed25519 public key
CREDENTIALS_MAX = 4  # valid at once: the newest, and those that rotations let live on for a while
NAME_BYTES_MAX = 128
PATTERNS_MAX = 32
PATTERN_LENGTH_MAX = 64  # as long as a board's id
RATE_MIN = 0.001  # requests a second; no wait is above 1,000 seconds
RATE_MAX = 1_000_000  # requests a second; beyond what a node can answer, so as good as none

ID = re.compile(rf"[0-9a-f]{{{2 * ID_BYTES}}}")
_BEARER = re.compile(rf"{PREFIX}_({ID.pattern})_([0-9a-f]{{{2 * SECRET_BYTES}}})")
_PATTERN = re.compile(rf"[a-z0-9_*?\[\]!-]{{1,{PATTERN_LENGTH_MAX}}}")
_PATTERN_PART = re.compile(r"\[!?\]?[^\]]*\]|.")  # as fnmatch reads it: a set, or a character
_ID_BEGINS_WITH = string.ascii_lowercase + string.digits
_ID_GOES_ON_WITH = _ID_BEGINS_WITH + "_-"

# What an unknown key is compared with, so that it takes as long as a known one. No secret hashes to
# it that anyone could find.
_NO_CREDENTIAL = secrets.token_bytes(CREDENTIAL_BYTES)


class Scope(enum.Enum):
    """What a call needs and a key allows; each includes those before it, `open` needs no key."""

    OPEN = "open"
    READ = "read"
    SUBMIT = "submit"
    ADMIN = "admin"

    def includes(self, other: Scope) -> bool:
        """Say whether what this allows is enough for `other`."""
        return _RANK[self] >= _RANK[other]


_RANK = {scope: rank for rank, scope in enumerate(Scope)}


class Credential(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The SHA-256 of a secret, or a public key; good until `expires_at_us`, None is for ever."""

    value: Annotated[bytes, Meta(min_length=CREDENTIAL_BYTES, max_length=CREDENTIAL_BYTES)]
    expires_at_us: int | None = None

    def good(self, now_us: int) -> bool:
        """Say whether it has not expired."""
        return self.expires_at_us is None or now_us < self.expires_at_us


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key as the node keeps it.

    kind: how it is presented, as a bearer's secret or by signing each request. boards: patterns of
    the ids that it is for. source: what its events are stamped with. requests_per_second: None
    takes the node's own rate. credentials: newest first; a revoked key has none.

    Errors: ValueError, which names the field.
    """

    id: str
    name: str = ""
    scope: Scope
    kind: Literal["bearer", "ed25519"]
    boards: tuple[str, ...] = ("*",)
    source: str | None = None
    requests_per_second: float | None = None
    created_at_us: int
    revoked_at_us: int | None = None
    credentials: tuple[Credential, ...]

    def __post_init__(self) -> None:
        if ID.fullmatch(self.id) is None:
            raise ValueError(f"id: must match {ID.pattern}")
        if self.name:
            _check_name("name", self.name, NAME_BYTES_MAX)
        _check_boards(self.boards)
        self._check_scope()
        rate = self.requests_per_second
        if rate is not None and not RATE_MIN <= rate <= RATE_MAX:
            raise ValueError(f"requests_per_second: must be from {RATE_MIN} to {RATE_MAX}")
        if len(self.credentials) > CREDENTIALS_MAX:
            raise ValueError(f"credentials: at most {CREDENTIALS_MAX} are good at once")
        if self.revoked_at_us is not None and self.credentials:
            raise ValueError("credentials: a revoked key has none")

    def _check_scope(self) -> None:
        if self.scope is Scope.OPEN:
            raise ValueError("scope: must be read, submit or admin")
        if self.kind == "ed25519" and self.scope is Scope.ADMIN:
            # Events carry keys that make a repetition harmless; a change of a board does not.
            raise ValueError(
                "scope: an admin key cannot sign, since a signed change could be sent again by"
                " whoever overheard it; make it a bearer key"
            )
        if self.source is not None:
            _check_name("source", self.source, SOURCE_BYTES_MAX)
            if self.scope is Scope.READ:
                raise ValueError("source: a key of scope read submits nothing")


def covers(patterns: tuple[str, ...], board: str) -> bool:
    """Say whether any pattern matches a board's id."""
    return any(pattern == "*" or fnmatch.fnmatchcase(board, pattern) for pattern in patterns)


def can_cover(pattern: str) -> bool:
    """Say whether a pattern that a key may have matches the id of any board there could be."""
    return all(
        part == "*"
        or any(
            fnmatch.fnmatchcase(character, part)
            for character in (_ID_GOES_ON_WITH if place else _ID_BEGINS_WITH)
        )
        for place, part in enumerate(_PATTERN_PART.findall(pattern))
    )


def _check_name(field: str, text: str, bytes_max: int) -> None:
    try:
        check_name(text, bytes_max)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None


def _check_boards(patterns: tuple[str, ...]) -> None:
    if not 1 <= len(patterns) <= PATTERNS_MAX:
        raise ValueError(f"boards: 1 to {PATTERNS_MAX} patterns")
    for pattern in patterns:
        if _PATTERN.fullmatch(pattern) is None:
            raise ValueError(
                f"boards: {pattern[:PATTERN_LENGTH_MAX]!r} matches no board's id; a pattern is at"
                f" most {PATTERN_LENGTH_MAX} of a-z, 0-9, _, -, and *, ?, [seq], [!seq]"
            )


class Presented(NamedTuple):
    """A bearer key as a client presents it. `repr` would show the secret: never log one."""

    id: str
    secret: str


def new_id() -> str:
    """Draw a key's id."""
    return secrets.token_hex(ID_BYTES)


def new_secret() -> str:
    """Draw a bearer's secret: 256 random bits as text."""
    return secrets.token_hex(SECRET_BYTES)


def bearer(key_id: str, secret: str) -> str:
    """Write a bearer key as its holder keeps it."""
    return f"{PREFIX}_{key_id}_{secret}"


def read_bearer(text: str) -> Presented | None:
    """Read a bearer key, or return None for what is none."""
    found = _BEARER.fullmatch(text)
    return Presented(found.group(1), found.group(2)) if found is not None else None


def hash_of(secret: str) -> bytes:
    """Return what is kept of a secret."""
    return hashlib.sha256(secret.encode()).digest()


def opens(key: Key | None, secret: str, now_us: int) -> bool:
    """Say whether a secret is a bearer key's, in a time that does not tell why not."""
    digest = hash_of(secret)
    credentials = key.credentials if key is not None and key.kind == "bearer" else ()
    found = hmac.compare_digest(digest, _NO_CREDENTIAL)
    for credential in credentials:
        same = hmac.compare_digest(digest, credential.value)
        found = found or (same and credential.good(now_us))
    return found
