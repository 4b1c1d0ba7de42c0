"""What `ranknode key …` does: keys made, listed, rotated and revoked, on the data directory itself.

A node that runs beside it follows at once. A secret is printed once, on standard output and nowhere
else; what is said about it goes to standard error, so that a script can take the output as it is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_public_key,
)
from rich.console import Console
from rich.table import Table
from rich.text import Text

from actors.exact import format_time
from node.key_file import FILE, KEYS_MAX, KeysError, changing_keys, read_keys
from node.keys import (
    CREDENTIALS_MAX,
    ID,
    Credential,
    Key,
    Scope,
    bearer,
    can_cover,
    hash_of,
    new_id,
    new_secret,
    read_bearer,
)

PEM_BYTES_MAX = 64 * 1024


class KeyOptions(NamedTuple):
    """What a new key is to be; the fields are those of `node.keys.Key`.

    sign: make a pair of which the node keeps the public half. public_key: a file with the public
    half of a pair that is there already.
    """

    scope: str
    boards: tuple[str, ...]
    source: str | None
    rate: float | None
    name: str
    sign: bool
    public_key: Path | None


class _Made(NamedTuple):
    """What a key was just given: what is kept of it, and what its holder is shown.

    secret: what is shown is kept nowhere else.
    """

    credential: Credential
    shown: str
    secret: bool = True


def run_create(data: Path, options: KeyOptions) -> int:
    """Make a key and print it. Errors: KeysError, which names the field; OSError."""
    if options.sign and options.public_key is not None:
        raise KeysError("sign: a new pair is made, or a public key is given, not both")
    signs = options.sign or options.public_key is not None
    with changing_keys(data, make=True) as keys:
        key_id = new_id()
        while key_id in keys:
            key_id = new_id()
        made = _signing(key_id, options.public_key) if signs else _bearer(key_id)
        try:
            key = Key(
                id=key_id,
                name=options.name,
                scope=Scope(options.scope),
                kind="ed25519" if signs else "bearer",
                boards=options.boards,
                source=options.source,
                requests_per_second=options.rate,
                created_at_us=_now_us(),
                credentials=(made.credential,),
            )
        except ValueError as error:
            raise KeysError(str(error)) from None
        for pattern in key.boards:
            if not can_cover(pattern):
                raise KeysError(f"boards: {pattern!r} matches no board's id")
        _make_room(keys)
        keys[key_id] = key
    _show(made, key, data)
    return 0


def run_list(data: Path) -> int:
    """Print what is known of every key, which is no secret."""
    table = Table()
    for column in ("id", "name", "scope", "kind", "boards", "source", "rate", "state"):
        table.add_column(column, overflow="fold", no_wrap=column == "id")
    now_us = _now_us()
    for key in read_keys(data).values():
        rate = key.requests_per_second
        # Text, since what a user wrote may hold what rich would take for markup.
        table.add_row(
            key.id,
            Text(key.name),
            key.scope.value,
            key.kind,
            Text(" ".join(key.boards)),
            Text(key.source or ""),
            "" if rate is None else f"{rate:g}/s",
            _state(key, now_us),
        )
    Console().print(table)
    return 0


def run_rotate(data: Path, key_text: str, overlap_seconds: int, public_key: Path | None) -> int:
    """Give a key a new secret, or pair, under its id, and print it.

    The old one is good for `overlap_seconds` more. Errors: KeysError, OSError.
    """
    with changing_keys(data) as keys:
        old = _find(keys, key_text)
        if old.revoked_at_us is not None:
            raise KeysError(f"key {old.id} was revoked; make a new one")
        if public_key is not None and old.kind != "ed25519":
            raise KeysError(f"public_key: key {old.id} does not sign")
        now_us = _now_us()
        until_us = now_us + overlap_seconds * 1_000_000
        former = tuple(
            Credential(credential.value, min(credential.expires_at_us or until_us, until_us))
            for credential in old.credentials
            if overlap_seconds and credential.good(now_us)
        )
        if len(former) >= CREDENTIALS_MAX:
            raise KeysError(
                f"overlap: {len(former)} secrets of key {old.id} are good already; wait until one"
                " has expired, or rotate without an overlap"
            )
        made = _bearer(old.id) if old.kind == "bearer" else _signing(old.id, public_key)
        key = msgspec.structs.replace(old, credentials=(made.credential, *former))
        keys[old.id] = key
    _show(made, key, data)
    if former:
        _say(f"The old one is good until {_time(until_us)}.")
    return 0


def run_revoke(data: Path, key_text: str) -> int:
    """End a key for good. Errors: KeysError, OSError."""
    with changing_keys(data) as keys:
        key = _find(keys, key_text)
        if key.revoked_at_us is None:
            keys[key.id] = msgspec.structs.replace(key, credentials=(), revoked_at_us=_now_us())
    _say(f"Key {key.id} is revoked.")
    return 0


def _find(keys: Mapping[str, Key], text: str) -> Key:
    """Find a key by its id, or by the whole of it, as it may have been found where it leaked."""
    presented = read_bearer(text)
    key = keys.get(text if presented is None else presented.id)
    if key is None:
        # The text is not repeated: it may hold a secret.
        raise KeysError(
            f"there is no such key; an id matches {ID.pattern}, see `ranknode key list`"
        )
    return key


def _make_room(keys: dict[str, Key]) -> None:
    """Forget the key that was revoked first if there are as many as there may be."""
    if len(keys) < KEYS_MAX:
        return
    revoked = [key for key in keys.values() if key.revoked_at_us is not None]
    if not revoked:
        raise KeysError(f"there are {KEYS_MAX} keys already; revoke one")
    del keys[min(revoked, key=lambda key: key.revoked_at_us or 0).id]


def _bearer(key_id: str) -> _Made:
    secret = new_secret()
    return _Made(Credential(hash_of(secret)), bearer(key_id, secret) + "\n")


def _signing(key_id: str, file: Path | None) -> _Made:
    """Make a pair, or take the public half of one. Errors: KeysError, OSError."""
    # Text before a PEM block is a comment (RFC 7468, 5.2).
    shown = f"keyid: {key_id}\n"
    if file is not None:
        return _Made(Credential(_read_public_key(file)), shown, secret=False)
    private_key = Ed25519PrivateKey.generate()
    pem = private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return _Made(Credential(private_key.public_key().public_bytes_raw()), shown + pem.decode())


def _read_public_key(file: Path) -> bytes:
    with file.open("rb") as source:
        content = source.read(PEM_BYTES_MAX)
    try:
        public_key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise KeysError(f"public_key: {file} holds no public key in PEM") from None
    if not isinstance(public_key, Ed25519PublicKey):
        raise KeysError(f"public_key: {file} is not of Ed25519")
    return public_key.public_bytes_raw()


def _show(made: _Made, key: Key, data: Path) -> None:
    sys.stdout.write(made.shown)
    sys.stdout.flush()
    kept = data.resolve() / FILE
    _say(f"Key {key.id} in {kept}: scope {key.scope.value}, boards {' '.join(key.boards)}.")
    if made.secret:
        _say("It is shown this once, and nobody can find it out later.")


def _say(text: str) -> None:
    Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)


def _state(key: Key, now_us: int) -> str:
    if key.revoked_at_us is not None:
        return f"revoked {_time(key.revoked_at_us)}"
    former = [c.expires_at_us for c in key.credentials if c.expires_at_us and c.good(now_us)]
    return f"good; an old one until {_time(max(former))}" if former else "good"


def _time(us: int) -> str:
    return format_time(us - us % 1_000_000)


def _now_us() -> int:
    return time.time_ns() // 1_000
