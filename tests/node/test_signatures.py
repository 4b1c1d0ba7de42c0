from __future__ import annotations

import asyncio
import base64
import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from actors.questions import Submit
from node.keys import Credential, Key, Scope, new_secret
from node.signatures import Signed, is_body, read_signed, verifies
from tests.node.fake_boards import NOW_US, FakeBoards, Raw, call, check_problem, serving
from tests.node.key_samples import (
    NOW_SECONDS,
    add_key,
    add_signing_key,
    base64_of,
    change_key,
    revoke,
    signed,
)

EVENTS = "/v1/boards/arena/events"
BODY = b'{"member":"ada","value":1,"idempotency_key":"k"}'

# The Ed25519 key of RFC 9421, B.1.4.
RFC_KEY = Ed25519PrivateKey.from_private_bytes(
    base64.urlsafe_b64decode("n4Ni-HpISpVObnQMW0wOhCKROaIKqKtW_2ZYb2p9KcU=")
)
KEY_ID = "00112233aabb"
KEY = Key(
    id=KEY_ID,
    scope=Scope.SUBMIT,
    kind="ed25519",
    created_at_us=0,
    credentials=(Credential(RFC_KEY.public_key().public_bytes_raw()),),
)


def test_the_rfcs_own_signature_verifies() -> None:
    """The example of RFC 9421, B.2.6, is a good signature of its key."""
    base = (
        b'"date": Tue, 20 Apr 2021 02:07:55 GMT\n"@method": POST\n"@path": /foo\n'
        b'"@authority": example.com\n"content-type": application/json\n"content-length": 18\n'
        b'"@signature-params": ("date" "@method" "@path" "@authority" "content-type"'
        b' "content-length");created=1618884473;keyid="test-key-ed25519"'
    )
    signature = base64.b64decode(
        "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw=="
    )
    example = Signed(KEY_ID, 1_618_884_473, signature, base, None)
    assert verifies(KEY, example, 1_618_884_473_000_000, 300)
    assert not verifies(KEY, example._replace(base=base + b" "), 1_618_884_473_000_000, 300)
    no_signer = msgspec.structs.replace(KEY, kind="bearer")
    assert not verifies(no_signer, example, 1_618_884_473_000_000, 300)


@pytest.mark.parametrize(
    ("method", "target", "digest", "signature"),
    [
        (
            "POST",
            "/v1/boards/arena/events",
            "OkBja25nEcU/+U4X+BXS7W5gCUi6TI//gC577IjgQto=",
            "UnRRnxJy3LdiHAOB1HbSWlCPSnpG848ioazgFJbSRc4/PLjmo7A1TAzBt3yN8UytMKwO/2Upc7eg440XjGQ6Aw==",
        ),
        (
            "GET",
            "/v1/boards/arena/top?limit=3",
            None,
            "CAxjpnqzHINFNat+KpRI6Z0xi3A9PXzvLf4Dv9Kj9qIu6EBBy/12RLfixQUOduBlFJGY1s/hhkWX3iMld2iICQ==",
        ),
    ],
)
def test_the_form_is_fixed(method: str, target: str, digest: str | None, signature: str) -> None:
    """Two requests signed with another tool, by the form's text alone, stay good for ever."""
    components = '"@method" "@request-target"' + (' "content-digest"' if digest else "")
    parameters = f'({components});created=1764500000;keyid="{KEY_ID}";alg="ed25519"'
    found = read_signed(
        method,
        target,
        [f"sig={parameters}"],
        [f"sig=:{signature}:"],
        [f"sha-256=:{digest}:"] if digest else [],
        with_body=digest is not None,
    )
    assert found is not None
    assert (found.key_id, found.created_seconds) == (KEY_ID, 1_764_500_000)
    assert verifies(KEY, found, 1_764_500_000_000_000, 300)
    if digest is not None:
        assert found.body_digest is not None
        assert is_body(BODY, found.body_digest)
        assert not is_body(BODY + b" ", found.body_digest)


@pytest.fixture
def signer(tmp_path: Path) -> tuple[str, Ed25519PrivateKey]:
    return add_signing_key(tmp_path, "submit")


def send(
    data: Path,
    method: str,
    target: str,
    headers: dict[str, str],
    body: bytes | None = None,
    **settings: Any,
) -> tuple[Raw, FakeBoards]:
    boards = FakeBoards()

    async def run() -> Raw:
        async with serving(boards, data, **settings) as gateway:
            return await call(gateway.port, method, target, body, **headers)

    return asyncio.run(run()), boards


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("POST", EVENTS, BODY),
        ("GET", "/v1/boards/arena/top", None),
        ("GET", "/v1/boards/arena/top?limit=3&period=daily", None),
        ("HEAD", "/v1/boards/arena/top", None),
        ("GET", "/v1/boards/arena/members/a%2Fb%C3%A9?", None),
        ("GET", "http://test/v1/boards/arena/top", None),
    ],
)
def test_a_signed_request_is_let_in(
    method: str, target: str, body: bytes | None, tmp_path: Path, signer: Any
) -> None:
    """A request signed over its method, its target as sent and its body reaches the board."""
    answer, boards = send(tmp_path, method, target, signed(*signer, method, target, body), body)
    assert answer.status == 200, answer.body
    assert len(boards.calls) == 1
    if body is not None:
        assert boards.calls == [("submit", "arena", Submit(False, NOW_US, body, False))]


def spoiled(headers: dict[str, str], **changes: str | None) -> dict[str, str]:
    """Change headers; None leaves one out."""
    return {name: value for name, value in (headers | changes).items() if value is not None}


DIGEST = f"sha-256=:{base64_of(hashlib.sha256(BODY).digest())}:"
SPOILED: dict[str, Any] = {
    "no signature": lambda h: spoiled(h, Signature=None),
    "no input": lambda h: spoiled(h, Signature_Input=None),
    "no digest": lambda h: spoiled(h, Content_Digest=None),
    "another label": lambda h: spoiled(h, Signature_Input=h["Signature_Input"].replace("sig", "s")),
    "another key": lambda h: spoiled(
        h, Signature_Input=h["Signature_Input"].replace('keyid="', 'keyid="0')
    ),
    "an unknown key": lambda h: spoiled(
        h, Signature_Input=h["Signature_Input"].rsplit("keyid", 1)[0]
        + f'keyid="{KEY_ID}";alg="ed25519"'
    ),
    "another time": lambda h: spoiled(
        h, Signature_Input=h["Signature_Input"].replace(str(NOW_SECONDS), str(NOW_SECONDS + 1))
    ),
    "another algorithm": lambda h: spoiled(
        h, Signature_Input=h["Signature_Input"].replace("ed25519", "hmac-sha256")
    ),
    "no algorithm": lambda h: spoiled(
        h, Signature_Input=h["Signature_Input"].replace(';alg="ed25519"', "")
    ),
    "a nonce": lambda h: spoiled(h, Signature_Input=h["Signature_Input"] + ';nonce="1"'),
    "another order": lambda h: spoiled(
        h, Signature_Input=h["Signature_Input"].replace(
            '"@method" "@request-target"', '"@request-target" "@method"')
    ),
    "fewer components": lambda h: spoiled(
        h, Signature_Input=h["Signature_Input"].replace(' "content-digest"', "")
    ),
    "two signatures": lambda h: spoiled(
        h, Signature=f"{h['Signature']}, {h['Signature']}",
        Signature_Input=f"{h['Signature_Input']}, {h['Signature_Input']}",
    ),
    "a header twice": lambda h: h | {"signature_input": h["Signature_Input"]},
    "a signature cut": lambda h: spoiled(h, Signature=f"sig=:{h['Signature'][9:]}"),
    "no base64": lambda h: spoiled(h, Signature="sig=:?:"),
    "loose base64": lambda h: spoiled(h, Signature=h["Signature"].replace("==:", "=:")),
    "zeros": lambda h: spoiled(h, Signature=f"sig=:{base64_of(bytes(64))}:"),
    "another digest": lambda h: spoiled(
        h, Content_Digest=f"sha-256=:{base64_of(bytes(32))}:"
    ),
    "another hash": lambda h: spoiled(h, Content_Digest=h["Content_Digest"].replace("256", "512")),
    "two digests": lambda h: spoiled(h, Content_Digest=f"{DIGEST}, sha-512=:eHg=:"),
    "a bearer beside it": lambda h: h | {"Authorization": f"Bearer rnk_{KEY_ID}_{new_secret()}"},
}  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_another_form_is_a_failed_authentication(spoil: Any, tmp_path: Path, signer: Any) -> None:
    """A signature that is missing a part, of another form, or of other content is 401."""
    headers = signed(*signer, "POST", EVENTS, BODY)
    answer, boards = send(tmp_path, "POST", EVENTS, spoil(headers), BODY)
    check_problem(answer, 401, "unauthenticated")
    assert boards.calls == []


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("POST", EVENTS, BODY + b" "),
        ("POST", EVENTS.replace("arena", "other"), BODY),
        ("POST", EVENTS + "?", BODY),
        ("POST", EVENTS.replace("arena", "%61rena"), BODY),
    ],
    ids=["body", "board", "query", "encoding"],
)
def test_a_signature_is_of_one_request(
    method: str, target: str, body: bytes, tmp_path: Path, signer: Any
) -> None:
    """Another body, path, query or way to write them is another request, and 401."""
    headers = signed(*signer, "POST", EVENTS, BODY)
    answer, boards = send(tmp_path, method, target, headers, body)
    check_problem(answer, 401, "unauthenticated")
    assert boards.calls == []


def test_a_signature_is_of_one_method(tmp_path: Path, signer: Any) -> None:
    """What was signed for GET is no good for HEAD."""
    target = "/v1/boards/arena/top"
    headers = signed(*signer, "GET", target)
    assert send(tmp_path, "GET", target, headers)[0].status == 200
    assert send(tmp_path, "HEAD", target, headers)[0].status == 401


@pytest.mark.parametrize(
    ("offset", "status"),
    [(-300, 200), (-301, 401), (300, 200), (301, 401), (0, 200), (-NOW_SECONDS, 401)],
)
def test_a_signature_is_good_for_a_while(
    offset: int, status: int, tmp_path: Path, signer: Any
) -> None:
    """A signature counts within the window around its time, before and after, and not beyond."""
    target = "/v1/boards/arena/top"
    headers = signed(*signer, "GET", target, created=NOW_SECONDS + offset)
    assert send(tmp_path, "GET", target, headers)[0].status == status


def test_the_window_is_a_setting(tmp_path: Path, signer: Any) -> None:
    """signature_seconds_max sets how old a signature may be."""
    target = "/v1/boards/arena/top"
    headers = signed(*signer, "GET", target, created=NOW_SECONDS - 20)
    for seconds, status in ((10, 401), (20, 200)):
        answer, _ = send(tmp_path, "GET", target, headers, signature_seconds_max=seconds)
        assert answer.status == status


def test_a_replay_sends_the_same_event_again(tmp_path: Path, signer: Any) -> None:
    """Within the window a request may come twice; the board gets the same key, and counts once."""
    headers = signed(*signer, "POST", EVENTS, BODY)
    boards = FakeBoards()

    async def run() -> list[int]:
        async with serving(boards, tmp_path) as gateway:
            answers = [await call(gateway.port, "POST", EVENTS, BODY, **headers) for _ in range(2)]
            return [answer.status for answer in answers]

    assert asyncio.run(run()) == [200, 200]
    assert boards.calls[0] == boards.calls[1]


def test_the_two_kinds_of_key_do_not_mix(tmp_path: Path, signer: Any) -> None:
    """A signing key is no bearer, and a bearer's secret signs nothing."""
    key_id, private_key = signer
    public = private_key.public_key().public_bytes_raw().hex()
    private = private_key.private_bytes_raw().hex()
    target = "/v1/boards/arena/top"
    for secret in (public, private, hashlib.sha256(private_key.private_bytes_raw()).hexdigest()):
        authorization = {"Authorization": f"Bearer rnk_{key_id}_{secret}"}
        assert send(tmp_path, "GET", target, authorization)[0].status == 401
    secret = new_secret()
    bearer_id = add_key(tmp_path, "submit", secret).split("_")[1]
    own = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secret))
    assert send(tmp_path, "GET", target, signed(bearer_id, own, "GET", target))[0].status == 401


def test_a_rotated_pair_overlaps_and_a_revoked_one_ends(tmp_path: Path, signer: Any) -> None:
    """Until it expires the old pair signs beside the new one; after a revocation neither does."""
    key_id, old = signer
    new = Ed25519PrivateKey.generate()
    target = "/v1/boards/arena/top"

    def statuses() -> list[int]:
        return [
            send(tmp_path, "GET", target, signed(key_id, key, "GET", target))[0].status
            for key in (old, new)
        ]

    def credentials(expires_at_us: int) -> tuple[Credential, ...]:
        return (
            Credential(new.public_key().public_bytes_raw()),
            Credential(old.public_key().public_bytes_raw(), expires_at_us),
        )

    assert statuses() == [200, 401]
    change_key(tmp_path, key_id, credentials=credentials(NOW_US + 1))
    assert statuses() == [200, 200]
    change_key(tmp_path, key_id, credentials=credentials(NOW_US))
    assert statuses() == [401, 200]
    revoke(tmp_path, key_id)
    assert statuses() == [401, 401]


def test_a_signed_call_can_be_wrong_in_other_ways(tmp_path: Path, signer: Any) -> None:
    """A signed call with too large a body, or one of a wrong form, is told so."""
    headers = signed(*signer, "POST", EVENTS, BODY)
    answer, boards = send(tmp_path, "POST", EVENTS, headers, BODY, body_bytes_max=10)
    check_problem(answer, 413, "body_too_large")
    answer, _ = send(tmp_path, "POST", EVENTS, headers | {"Content_Type": "text/plain"}, BODY)
    check_problem(answer, 415, "unsupported_media_type")
    assert boards.calls == []
