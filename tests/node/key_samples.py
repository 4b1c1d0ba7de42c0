"""Keys to call with: made on disk as the commands make them, and requests signed by hand."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.key_file import changing_keys
from node.keys import Credential, Key, Scope, bearer, hash_of, new_id, new_secret
from tests.node.fake_boards import NOW_US

NOW_SECONDS = NOW_US // 1_000_000


def add_key(data: Path, scope: str, secret: str | None = None, **fields: Any) -> str:
    """Add a bearer key, and return it as its holder has it."""
    secret = secret or new_secret()
    credential = Credential(hash_of(secret))
    return bearer(_add(data, scope, kind="bearer", credentials=(credential,), **fields), secret)


def add_signing_key(data: Path, scope: str, **fields: Any) -> tuple[str, Ed25519PrivateKey]:
    """Add a signing key, and return its id and its private half."""
    private_key = Ed25519PrivateKey.generate()
    credential = Credential(private_key.public_key().public_bytes_raw())
    key_id = _add(data, scope, kind="ed25519", credentials=(credential,), **fields)
    return key_id, private_key


def _add(data: Path, scope: str, **fields: Any) -> str:
    with changing_keys(data) as keys:
        key = Key(id=new_id(), scope=Scope(scope), created_at_us=NOW_US, **fields)
        keys[key.id] = key
    return key.id


def change_key(data: Path, bearer_or_id: str, **fields: Any) -> None:
    """Change fields of a key in the file."""
    key_id = bearer_or_id.split("_")[1] if "_" in bearer_or_id else bearer_or_id
    with changing_keys(data) as keys:
        keys[key_id] = msgspec.structs.replace(keys[key_id], **fields)


def revoke(data: Path, bearer_or_id: str) -> None:
    change_key(data, bearer_or_id, credentials=(), revoked_at_us=NOW_US)


def base64_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


def signed(
    key_id: str,
    private_key: Ed25519PrivateKey,
    method: str,
    target: str,
    body: bytes | None = None,
    created: int = NOW_SECONDS,
) -> dict[str, str]:
    """Sign a request; returns its headers, their names with underscores."""
    names, lines, headers = ["@method", "@request-target"], [method, target], {}
    if body is not None:
        digest = f"sha-256=:{base64_of(hashlib.sha256(body).digest())}:"
        names, lines = [*names, "content-digest"], [*lines, digest]
        headers["Content_Digest"] = digest
    quoted = " ".join(f'"{name}"' for name in names)
    parameters = f'({quoted});created={created};keyid="{key_id}";alg="ed25519"'
    base = [f'"{name}": {line}\n' for name, line in zip(names, lines, strict=True)]
    text = "".join(base) + f'"@signature-params": {parameters}'
    return headers | {
        "Signature_Input": f"sig={parameters}",
        "Signature": f"sig=:{base64_of(private_key.sign(text.encode()))}:",
    }
