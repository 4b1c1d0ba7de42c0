"""Reading what surrounds a body: Accept, Content-Type, paths and query strings, all strictly.

Pure text in, values or refusals out. Nothing is repaired: an escape that is none, bytes that are
not UTF-8 and a name given twice are refused.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from actors.errors import Refusal, invalid_field

JSON = "application/json"
PACKED = "application/msgpack"

_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?P<authority>[^/?#]*)(?P<rest>.*)", re.DOTALL)
# How exactly a range of media types names one of the two forms; the most exact range counts.
_JSON_RANGES = {JSON: 3, "application/*": 2, "*/*": 1}
_PACKED_RANGES = {PACKED: 3, "application/*": 2, "*/*": 1}


@lru_cache(maxsize=256)
def wants_packed(accept: str) -> bool:
    """Say whether MessagePack is preferred to JSON (RFC 9110, 12.5.1); JSON wins a draw.

    Raises Refusal `not_acceptable` when neither is.
    """
    if not accept.strip():
        return False
    ranges = [_weighted(part) for part in accept.split(",") if part.strip()]
    json_weight = _weight(ranges, _JSON_RANGES)
    packed_weight = _weight(ranges, _PACKED_RANGES)
    if max(json_weight, packed_weight) <= 0:
        raise Refusal("not_acceptable", f"Answers come as {JSON} or {PACKED}.")
    return packed_weight > json_weight


def _weighted(part: str) -> tuple[str, float]:
    """Split `type;q=0.5` into the type and its weight; a weight that is none counts as 0."""
    media_type, *parameters = (piece.strip() for piece in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            matched = re.fullmatch(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?", value.strip())
            return media_type.lower(), float(value) if matched else 0.0
    return media_type.lower(), 1.0


def _weight(ranges: list[tuple[str, float]], exactness: dict[str, int]) -> float:
    matching = [(exactness[name], weight) for name, weight in ranges if name in exactness]
    return max(matching)[1] if matching else 0.0


@lru_cache(maxsize=256)
def is_packed(content_type: str | None) -> bool:
    """Say whether a body is MessagePack, else it is JSON.

    Raises Refusal `unsupported_media_type` for anything else, a charset besides UTF-8 included.
    """
    media_type, *parameters = (piece.strip().lower() for piece in (content_type or "").split(";"))
    if media_type == PACKED:
        return True
    charsets = {text.partition("=")[2].strip('"') for text in parameters if "charset=" in text}
    if media_type != JSON or not charsets <= {"utf-8"}:
        raise Refusal("unsupported_media_type", f"A body is {JSON} in UTF-8 or {PACKED}.")
    return False


def read_authority(target: str) -> str | None:
    """Return the host that a target names if it is a whole URL (RFC 9112, 3.2.2), else None."""
    found = None if target.startswith("/") else _URL.fullmatch(target)
    return None if found is None else found["authority"]


def split_target(target: str) -> tuple[str, str]:
    """Split a request's target into its path and its query, both still encoded.

    A target may also be a whole URL; `read_authority` tells whose.
    """
    if not target.startswith("/"):
        found = _URL.fullmatch(target)
        if found is not None:
            target = found["rest"] if found["rest"].startswith("/") else "/" + found["rest"]
    path, _, query = target.partition("?")
    return path, query


def decode(text: str, field: str) -> str:
    """Undo percent-encoding, once. Raises Refusal `invalid_field`."""
    if text.isascii() and "%" not in text:
        return text
    if _BAD_ESCAPE.search(text):
        raise invalid_field(field, "has a % that no two hexadecimal digits follow")
    try:
        # The HTTP parser hands over bytes that are not UTF-8 as surrogates.
        return unquote_to_bytes(text.encode("utf-8", "surrogateescape")).decode("utf-8")
    except UnicodeError:
        raise invalid_field(field, "is not UTF-8") from None


def parse_query(query: str) -> dict[str, str]:
    """Decode a query string (application/x-www-form-urlencoded). Raises Refusal `invalid_field`.

    Complexity: O(len(query)), which the limit on the request line bounds.
    """
    found: dict[str, str] = {}
    for pair in query.split("&"):
        if not pair:
            continue
        encoded_name, _, encoded_value = pair.partition("=")
        name = decode(encoded_name.replace("+", " "), "query")
        if name in found:
            raise invalid_field(name, "is given more than once")
        found[name] = decode(encoded_value.replace("+", " "), name)
    return found
