"""From a method and a raw path to a route: a tree over segments, constant time in the routes.

A path is split at `/` first and each segment decoded afterwards, once, so that a member may hold
any character, `/` included.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from actors.errors import Refusal
from node.negotiation import decode
from node.parameters import PATH_PARAMETERS
from node.routes import Route


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
        Complexity: O(len(path)).
        """
        node = self._root
        parameters: dict[str, str] = {}
        for encoded in path.split("/")[1:]:
            segment = decode(encoded, node.parameter_name or "path")
            word = node.words.get(segment)
            if word is not None:
                node = word
            elif node.parameter is not None and segment:
                parameters[node.parameter_name] = segment
                node = node.parameter
            else:
                raise Refusal("not_found", "There is no such path.")
        if not node.methods:
            raise Refusal("not_found", "There is no such path.")
        route = node.methods.get(method)
        if route is None:
            allow = ", ".join(sorted(node.methods))
            raise Refusal("method_not_allowed", f"This path takes {allow}.", allow=allow)
        return route, parameters


def read_path(parameters: dict[str, str]) -> dict[str, Any]:
    """Check the parameters of a path. Raises Refusal `invalid_field`."""
    return {name: PATH_PARAMETERS[name][0].read(name, text) for name, text in parameters.items()}
