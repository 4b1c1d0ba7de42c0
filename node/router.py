"""From a method and a raw path to a route: a tree over segments, constant time in the routes.

A path is split at `/` first and each segment decoded afterwards, once, so that a member may hold
any character, `/` included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from actors.errors import Refusal
from node.negotiation import decode
from node.parameters import PATH_PARAMETERS
from node.route import Route


class _Node:
    """What may follow a prefix: words, or one parameter; and the routes that end here."""

    __slots__ = ("methods", "parameter", "parameter_name", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.parameter_name = ""
        self.methods: dict[str, Route] = {}


class Router:
    """Find the route of a request.

    Invariant: below one prefix there is at most one parameter, and a word goes before it.
    Errors: ValueError for a table that breaks it or declares a call twice.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        for route in routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        node = self._root
        for segment in route.segments:
            if segment.startswith("{"):
                name = segment[1:-1]
                if node.parameter_name not in ("", name):
                    raise ValueError(f"{route.path}: two parameters below one prefix")
                node.parameter = node.parameter or _Node()
                node.parameter_name = name
                node = node.parameter
            else:
                node = node.words.setdefault(segment, _Node())
        if route.method in node.methods:
            raise ValueError(f"{route.method} {route.path} is declared twice")
        node.methods[route.method] = route
        if route.method == "GET":
            node.methods["HEAD"] = route

    def match(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """Return the route and its path parameters, decoded but not yet checked.

        Raises Refusal `not_found`, `method_not_allowed` (extra `allow`) or `invalid_field`.
        Complexity: O(len(path)), once more where a member is called like a word.
        """
        segments = path.split("/")[1:]
        found = self._words_first(method, segments)
        if found is not None:
            return found
        allowed: set[str] = set()
        for methods, parameters in _ways(self._root, segments, {}):
            if method in methods:
                return methods[method], parameters
            allowed |= methods.keys()
        if not allowed:
            raise Refusal("not_found", "There is no such path.")
        allow = ", ".join(sorted(allowed))
        raise Refusal("method_not_allowed", f"This path takes {allow}.", allow=allow)

    def _words_first(self, method: str, segments: list[str]) -> tuple[Route, dict[str, str]] | None:
        """Find the route by taking each segment for a word where it can be one."""
        node = self._root
        parameters: dict[str, str] = {}
        for encoded in segments:
            segment = decode(encoded, node.parameter_name or "path")
            word = node.words.get(segment)
            if word is not None:
                node = word
            elif node.parameter is not None and segment:
                parameters[node.parameter_name] = segment
                node = node.parameter
            else:
                return None
        route = node.methods.get(method)
        return None if route is None else (route, parameters)


def _ways(
    node: _Node, segments: list[str], parameters: dict[str, str]
) -> Iterator[tuple[dict[str, Route], dict[str, str]]]:
    """Yield the methods and parameters of each way to read a path, words before parameters.

    A member may be called like a word of the table: what its word does not take is the member's.
    """
    if not segments:
        if node.methods:
            yield node.methods, parameters
        return
    segment = decode(segments[0], node.parameter_name or "path")
    word = node.words.get(segment)
    if word is not None:
        yield from _ways(word, segments[1:], parameters)
    if node.parameter is not None and segment:
        named = {**parameters, node.parameter_name: segment}
        yield from _ways(node.parameter, segments[1:], named)


def read_path(parameters: dict[str, str]) -> dict[str, Any]:
    """Check the parameters of a path. Raises Refusal `invalid_field`."""
    return {name: PATH_PARAMETERS[name][0].read(name, text) for name, text in parameters.items()}
