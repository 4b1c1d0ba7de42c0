"""Whom a request means to speak to: what keeps browsers' pages out of a node without keys.

A page from anywhere can make a browser on this machine send requests to 127.0.0.1. Whatever changes
something needs a preflight, which nothing here answers; and the browser shows an answer only to the
page's own host. A page can make its host's name mean 127.0.0.1 (DNS rebinding), but then the name
stands in the `Host` header. So a node that trusts whoever reaches it answers to its own names only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from actors.errors import Refusal
from node.config import is_loopback

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(?::[0-9]{0,5})?")


class Hosts:
    """The names a node answers to: the loopback's, and those allowed besides."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(name.lower() for name in allowed)

    def check(self, host: str | None) -> None:
        """Refuse a host that is another machine's; a request that names none is no browser's.

        host: of a `Host` header, or of a target that is a whole URL.

        Errors: Refusal `forbidden`.
        """
        if host is None:
            return
        name = _name(host)
        if name not in self._allowed and not _is_loopback(name):
            raise Refusal(
                "forbidden",
                "Without keys this node answers only to the names of its own machine and to those"
                " in hosts_allowed; the request is for another.",
            )


_is_loopback = lru_cache(maxsize=256)(is_loopback)


@lru_cache(maxsize=256)
def _name(host: str) -> str:
    """Return the name in a `Host` header, without port and brackets; empty where there is none."""
    matched = _HOST.fullmatch(host)
    return matched[1].strip("[]").lower() if matched else ""
