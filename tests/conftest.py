"""Nodes for the tests, and the promise that none of them is left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.running_node import RunningNode, clean_up


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., RunningNode]]:
    """Make nodes over directories below tmp_path; what still runs at the end is killed."""
    nodes: list[RunningNode] = []

    def make(name: str = "data", *options: str) -> RunningNode:
        nodes.append(RunningNode(tmp_path / name, *options))
        return nodes[-1]

    yield make
    for node in nodes:
        clean_up(node)
