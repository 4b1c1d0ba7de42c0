"""Nodes for the tests, and the promise that none of them is left behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.running_node import RunningNode


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., RunningNode]]:
    """Make nodes over directories below tmp_path; what still runs at the end is killed."""
    nodes: list[RunningNode] = []

    def make(name: str = "data", *options: str) -> RunningNode:
        nodes.append(RunningNode(tmp_path / name, *options))
        return nodes[-1]

    yield make
    for node in nodes:
        if hasattr(node, "process"):
            node.kill_all()
        lock = node.data / "node.lock"
        if lock.exists():
            # A node that was killed together with its guard leaves Ray's directory to the next.
            shutil.rmtree(Path(lock.read_text()), ignore_errors=True)
