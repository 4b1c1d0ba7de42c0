"""Profiles from requests to the log: at most 1 KiB of JSON that every form of answer can show."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from actors.errors import Refusal, invalid_field
from node import wire

PROFILE_BYTES_MAX = 1_024

_DEPTH_MAX = PROFILE_BYTES_MAX // 2  # what is nested deeper has more brackets than that
_INTEGERS = range(-(2**63), 2**64)  # those that MessagePack has


def encode_profile(profile: wire.Profile) -> bytes:
    """Write a profile as it is kept and answered. Errors: Refusal invalid_field."""
    if profile.extra is not msgspec.UNSET:
        _check_extra(profile.extra)
    encoded = msgspec.json.encode(profile)
    if len(encoded) > PROFILE_BYTES_MAX:
        raise _too_large()
    return encoded


def _too_large() -> Refusal:
    return invalid_field("profile", f"takes at most {PROFILE_BYTES_MAX} bytes as JSON")


def _check_extra(extra: dict[str, Any]) -> None:
    """Refuse what not both of JSON and MessagePack have, where an encoder would put something else.

    Level by level, since a body may be nested deeper than functions may call each other.
    """
    level: list[Any] = [extra]
    for _ in range(_DEPTH_MAX):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                if not all(isinstance(key, str) for key in value):
                    raise invalid_field("extra", "holds a key that is no text")
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif not _is_in_both(value):
                raise invalid_field("extra", "holds what not both JSON and MessagePack have")
        if not below:
            return
        level = below
    raise _too_large()


def _is_in_both(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):  # true and false as well
        return value in _INTEGERS
    return value is None or isinstance(value, str)
