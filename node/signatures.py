"""Signed requests: HTTP Message Signatures (RFC 9421) with Ed25519, in one fixed form.

    Content-Digest: sha-256=:BASE64:
    Signature-Input: sig=PARAMETERS
    Signature: sig=:BASE64:

where PARAMETERS, on one line, are

    ("@method" "@request-target" "content-digest");created=SECONDS;keyid="ID";alg="ed25519"

A call without a body leaves `content-digest` out, the header and its name in the list. Signed is
the text with a line for each component and one for the parameters, joined by line feeds:

    "@method": POST
    "@request-target": /v1/boards/arena/events
    "content-digest": sha-256=:BASE64:
    "@signature-params": PARAMETERS

One form and no other: what a verifier leaves open is what an attacker may choose. Pure: the time is
given by the caller. Nothing here keeps what it has seen, so within the time that `created` may
differ a request can be sent again by whoever overheard it: an event's idempotency key makes that a
duplicate, and only keys that cannot change a board may sign.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from node.keys import ID, Key

SIGNATURE_BYTES = 64
DIGEST_BYTES = 32
KEYS_PARSED_MAX = 1_024

_COMPONENTS = '("@method" "@request-target")'
_COMPONENTS_AND_BODY = '("@method" "@request-target" "content-digest")'
_INPUT = re.compile(
    rf'sig=(\("@method" "@request-target"(?: "content-digest")?\)'
    rf';created=(0|[1-9][0-9]{{0,11}});keyid="({ID.pattern})";alg="ed25519")'
)
_SIGNATURE = re.compile(r"sig=:([A-Za-z0-9+/]+={0,2}):")
_DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/]+={0,2}):")

# Signatures by an unknown key are checked too, against one that nobody has the other half of.
_NOBODY = Ed25519PrivateKey.generate().public_key()


class Signed(NamedTuple):
    """What a request's headers say of its signature; nothing of it is verified yet.

    base: the signed text. body_digest: the SHA-256 its body must have; None where it has no body.
    """

    key_id: str
    created_seconds: int
    signature: bytes
    base: bytes
    body_digest: bytes | None


def read_signed(
    method: str,
    target: str,
    inputs: Sequence[str],
    signatures: Sequence[str],
    digests: Sequence[str],
    *,
    with_body: bool,
) -> Signed | None:
    """Read the headers of a signed request; None where they are not of the one form.

    method and target are those of the request line. inputs, signatures and digests are the values
    of `Signature-Input`, `Signature` and `Content-Digest`, each of which comes once. with_body: the
    call takes a body, which must be covered.
    """
    if len(inputs) != 1 or len(signatures) != 1 or len(digests) != with_body:
        return None
    given = _INPUT.fullmatch(inputs[0])
    signature = _binary(_SIGNATURE, signatures[0], SIGNATURE_BYTES)
    if given is None or signature is None:
        return None
    parameters, created, key_id = given.groups()
    if not parameters.startswith((_COMPONENTS, _COMPONENTS_AND_BODY)[with_body]):
        return None
    lines = [f'"@method": {method}', f'"@request-target": {target}']
    body_digest = None
    if with_body:
        body_digest = _binary(_DIGEST, digests[0], DIGEST_BYTES)
        if body_digest is None:
            return None
        lines.append(f'"content-digest": {digests[0]}')
    lines.append(f'"@signature-params": {parameters}')
    # The HTTP parser hands over bytes that are not UTF-8 as surrogates.
    base = "\n".join(lines).encode("utf-8", "surrogateescape")
    return Signed(key_id, int(created), signature, base, body_digest)


def _binary(form: re.Pattern[str], text: str, size: int) -> bytes | None:
    """Read a byte sequence of exactly `size` bytes, written in the one way there is (RFC 8941)."""
    found = form.fullmatch(text)
    if found is None:
        return None
    try:
        content = base64.b64decode(found.group(1), validate=True)
    except binascii.Error:
        return None
    written_so = base64.b64encode(content).decode() == found.group(1)
    return content if len(content) == size and written_so else None


def verifies(key: Key | None, signed: Signed, now_us: int, seconds_max: float) -> bool:
    """Say whether a signature is a signing key's and from now, give or take `seconds_max`.

    Complexity: about 0.1 ms for each of the key's credentials, of which there is one but for the
    time after a rotation; as long for a key that is unknown.
    """
    credentials = key.credentials if key is not None and key.kind == "ed25519" else ()
    found = False
    for credential in credentials:
        good = _verify(_parsed(credential.value), signed)
        found = found or (good and credential.good(now_us))
    if not credentials:
        _verify(_NOBODY, signed)
    return found and abs(now_us - signed.created_seconds * 1_000_000) <= seconds_max * 1_000_000


def _verify(public_key: Ed25519PublicKey, signed: Signed) -> bool:
    try:
        public_key.verify(signed.signature, signed.base)
    except InvalidSignature:
        return False
    return True


@lru_cache(maxsize=KEYS_PARSED_MAX)
def _parsed(public_key: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public_key)


def is_body(body: bytes, digest: bytes) -> bool:
    """Say whether a body is the one that was signed."""
    return hmac.compare_digest(hashlib.sha256(body).digest(), digest)
