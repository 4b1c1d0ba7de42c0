"""Who makes a call, and whether they may: decided for every request before anything is looked up.

Owns the order: is there a key, is it good, has it called too often, may it do this here. A failed
authentication is one answer whatever was wrong, and a lack of permission is one answer whether or
not the board exists, so neither can be used to find anything out.

Failures are counted by client address, and answered with 429 beyond a rate, so that a client with
an old key slows down. A good key passes from such an address too: behind one address there may be
many clients, and guessing 256 bits needs no bound to be hopeless.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
from multidict import CIMultiDictProxy

from actors.errors import Refusal
from node import signatures
from node.buckets import Bucket, BucketTable
from node.config import Config, ConfigError, is_loopback
from node.key_file import KeyFile, KeysUnreadableError
from node.keys import Key, Scope, covers, opens, read_bearer

UNAUTHENTICATED = "This call needs a good key: Authorization: Bearer KEY, or a signature."
FORBIDDEN = "The key is not for this call, or not for this board."

_BEARER = "bearer "
_IPV6_PREFIX = 64  # of an address: one client has all that share it


class Head(NamedTuple):
    """What of a request decides who makes it; method and target as in the request line."""

    method: str
    target: str
    headers: CIMultiDictProxy[str]
    address: str


class Caller(msgspec.Struct, frozen=True):
    """Who makes a call.

    key_id: None on a node without keys, where everyone may do everything. boards: patterns of the
    boards the call may be about. source: what every event of it is stamped with. body_digest: the
    SHA-256 that its body must have; None where it is not signed.
    """

    key_id: str | None = None
    boards: tuple[str, ...] = ("*",)
    source: str | None = None
    body_digest: bytes | None = None

    def covers(self, board: str) -> bool:
        """Say whether the call may be about a board, by the board's id alone."""
        return covers(self.boards, board)


ANYONE = Caller()
NOBODY = Caller(boards=())  # who calls what is open to everyone


class Access:
    """The keys' say over every call, as the keys are now."""

    def __init__(
        self, keys: KeyFile, config: Config, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keys = keys
        self._config = config
        self._clock = clock
        self._failures = BucketTable(
            config.auth_failures_per_second,
            config.auth_failures_burst,
            config.auth_failures_addresses_max,
        )
        self._buckets: dict[str, tuple[Key, Bucket]] = {}

    @property
    def trusting(self) -> bool:
        """Whether there are no keys, so that everyone who reaches the node may do everything."""
        try:
            return self._keys.current() is None
        except KeysUnreadableError:
            return False

    def admit(
        self, head: Head, scope: Scope, board: str | None, now_us: int, *, with_body: bool
    ) -> Caller:
        """Return who makes a call that they may make.

        scope: what the call needs. board: the one it is about, if its path names one, as decoded
        and not checked. with_body: the call takes a body; of a signed one, it is to be given to
        `check_body` before it is used. Errors: Refusal unauthenticated, forbidden, rate_limited;
        board_unavailable while the keys cannot be read.
        """
        if scope is Scope.OPEN:
            return NOBODY
        try:
            keys = self._keys.current()
        except KeysUnreadableError:
            raise Refusal(
                "board_unavailable", "The keys cannot be read now; the node's log says why."
            ) from None
        if keys is None:
            return ANYONE
        key, body_digest = self._recognise(head, keys, now_us, with_body)
        if key is None:
            raise self._failed(head.address)
        self._count(key, keys)
        if not key.scope.includes(scope) or not (board is None or covers(key.boards, board)):
            raise Refusal("forbidden", FORBIDDEN)
        return Caller(key.id, key.boards, key.source, body_digest)

    def check_body(self, head: Head, caller: Caller, body: bytes) -> None:
        """Refuse a body that is not the one that was signed. Errors: as of a bad signature."""
        if caller.body_digest is not None and not signatures.is_body(body, caller.body_digest):
            raise self._failed(head.address)

    def _recognise(
        self, head: Head, keys: Mapping[str, Key], now_us: int, with_body: bool
    ) -> tuple[Key | None, bytes | None]:
        """Find the key that a request was made with, and the digest that its body must have."""
        given = head.headers.getall("Authorization", [])
        inputs = head.headers.getall("Signature-Input", [])
        if len(given) == 1 and not inputs:
            scheme, text = given[0][: len(_BEARER)], given[0][len(_BEARER) :]
            presented = read_bearer(text.strip(" "))
            if presented is None or scheme.lower() != _BEARER:
                return None, None
            key = keys.get(presented.id)
            return (key if opens(key, presented.secret, now_us) else None), None
        if given:
            return None, None
        signed = signatures.read_signed(
            head.method,
            head.target,
            inputs,
            head.headers.getall("Signature", []),
            head.headers.getall("Content-Digest", []),
            with_body=with_body,
        )
        if signed is None:
            return None, None
        key = keys.get(signed.key_id)
        seconds_max = self._config.signature_seconds_max
        if not signatures.verifies(key, signed, now_us, seconds_max):
            return None, None
        return key, signed.body_digest

    def _failed(self, address: str) -> Refusal:
        """Count a failed authentication, and make its answer."""
        wait_seconds = self._failures.take(_client(address), self._clock())
        if wait_seconds:
            return _too_often("Too many calls without a good key came from here.", wait_seconds)
        return Refusal("unauthenticated", UNAUTHENTICATED)

    def _count(self, key: Key, keys: Mapping[str, Key]) -> None:
        """Count a call against its key's rate. Errors: Refusal rate_limited."""
        known, bucket = self._buckets.get(key.id, (None, None))
        if bucket is None or known != key:
            self._buckets = {i: entry for i, entry in self._buckets.items() if i in keys}
            bucket = self._new_bucket(key)
            self._buckets[key.id] = (key, bucket)
        wait_seconds = bucket.take(self._clock())
        if wait_seconds:
            raise _too_often("The key's rate is used up.", wait_seconds)

    def _new_bucket(self, key: Key) -> Bucket:
        """Make a key's bucket; one with a rate of its own may use up a second's worth at once."""
        if key.requests_per_second is not None:
            return Bucket(key.requests_per_second, max(1.0, key.requests_per_second))
        return Bucket(self._config.key_requests_per_second, self._config.key_requests_burst)


def _too_often(detail: str, wait_seconds: float) -> Refusal:
    return Refusal("rate_limited", detail, retry_after_seconds=math.ceil(wait_seconds))


def _client(address: str) -> str:
    """Name whom an address belongs to: of IPv6, the network that one client has to itself."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:  # not an IP socket
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:  # as a socket for both has it
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed), _IPV6_PREFIX), strict=False))


def check_reach(host: str, keys: KeyFile) -> None:
    """Refuse to listen beyond loopback while there are no keys. Errors: ConfigError.

    From this look on the keys are watched: a file that is there now must stay.
    """
    try:
        if keys.current() is not None or is_loopback(host):
            return
    except KeysUnreadableError:
        return  # nobody is let in until they can be read
    raise ConfigError(
        f"host: {host} is not loopback, and without keys everyone who reaches the port could change"
        " every board; make a key with `ranknode key create --data DIR --scope admin`"
    )
