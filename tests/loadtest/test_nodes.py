"""Nodes for what measures them: one that does not start, or ends by itself, says why."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from loadtest.nodes import running_node

GONE_SECONDS_MAX = 30.0


def test_a_node_that_does_not_start_says_why(tmp_path: Path) -> None:
    """The caller ends with what the node logged."""
    absent = tmp_path / "absent.toml"
    with (
        pytest.raises(SystemExit, match=r"the node did not start:(.|\n)*absent\.toml"),
        running_node(tmp_path / "data", "--config", str(absent)),
    ):
        pytest.fail("there is no node")


def test_a_node_that_was_killed_is_not_passed_over(tmp_path: Path) -> None:
    """A node answers inside of the block; one that has ended otherwise than in order is named."""
    nodes = []

    def answer_and_be_killed() -> None:
        with running_node(tmp_path / "data") as node:
            assert node.call("GET", "/healthz")[0] == 200
            assert node.processes("ray::")
            nodes.append(node)
            os.kill(node.pid, signal.SIGKILL)

    with pytest.raises(SystemExit, match=f"ended with -{signal.SIGKILL:d}"):
        answer_and_be_killed()
    deadline = time.monotonic() + GONE_SECONDS_MAX
    while nodes[0].processes(""):
        assert time.monotonic() < deadline, "its guard leaves nothing running"
        time.sleep(0.1)
