"""Rebuilds beside a node that goes on writing, and without one: what is compared, and shown."""

from __future__ import annotations

import re
import threading
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from actors import rebuilding
from actors.board import Board
from node import rebuild_commands
from node.cli import main
from persistence.records import EventsRecord, Record
from tests.node.test_windows import at, cup, fill, listed
from tests.running_node import RunningNode, free_port, wait_until

MakeNode = Callable[..., RunningNode]
CONFIG = "segment_events_max = 150\ncommit_events_max = 150\nsnapshot_events = 100\n"


class Miscounting(Board):
    """A board that counts one event of its first batch for one more than its value."""

    def apply(self, record: Record) -> dict[str, bytes]:
        first = isinstance(record, EventsRecord) and self.sequence < 5
        if first and isinstance(record, EventsRecord):
            values = array("q", record.values)
            values[0] += 1
            record = replace(record, values=values)
        return super().apply(record)


@pytest.fixture
def node(make_node: MakeNode, tmp_path: Path) -> RunningNode:
    """Start a node with a board of small segments whose one cup closes and one goes on."""
    (tmp_path / "small.toml").write_text(CONFIG)
    node = make_node("data", "--config", str(tmp_path / "small.toml")).start()
    definition = cup(2.0)
    later = {"name": "later", "start": at(-60), "end": at(3600)}
    definition["periods"] += ["daily", later]
    fill(node, "b", definition)
    wait_until(lambda: listed(node, "b")["closed"], 20, "the cup closes")
    return node


def post(node: RunningNode, number: int) -> None:
    events = [
        {"member": f"m{i}", "value": number, "idempotency_key": f"{number}-{i}"} for i in range(7)
    ]
    assert node.call("POST", "/v1/boards/b/events", {"events": events})[0] == 200


def rebuild(node: RunningNode, *options: str) -> Result:
    return CliRunner().invoke(main, ["rebuild", "b", "--data", str(node.data), *options])


def rows(result: Result) -> dict[tuple[str, str], list[str]]:
    """Read the table: what was compared and where, to sequence, both digests, and the verdict."""
    cells = [line.split("│")[1:-1] for line in result.stdout.splitlines() if line.startswith("│")]
    stripped = [[cell.strip() for cell in row] for row in cells]
    return {
        (of, source): [sequence, rebuilt, other, equal]
        for of, sequence, rebuilt, other, sources, equal in stripped
        for source in sources.split(", ")
    }


def verdicts(result: Result) -> dict[tuple[str, str], str]:
    return {compared: row[-1] for compared, row in rows(result).items()}


def test_a_rebuild_equals_the_node_under_writes(node: RunningNode) -> None:
    """Every window of a node that goes on writing digests as the rebuild does at that sequence."""
    number, ended = 0, threading.Event()

    def write() -> None:
        nonlocal number
        while not ended.is_set():
            number += 1
            post(node, number)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_until(lambda: number > 40, 60, "segments fill")
        sequences = set()
        for _ in range(5):
            before = number
            result = rebuild(node, "--url", node.url)
            assert result.exit_code == 0, result.output
            assert f"compared with the node at {node.url}" in result.stdout
            found = rows(result)
            daily = [of for of, source in found if of.startswith("daily:") and source == "node"]
            assert daily
            for of in ("all_time", "later", *daily):
                assert found[of, "node"][-1] == "yes"
                sequences.add(found[of, "node"][0])
            assert found["cup", "node"] == found["cup", "archive"]
            assert found["cup", "node"][1] == listed(node, "b")["digest"]
            assert number > before, "the log grew meanwhile"
        assert len(sequences) > 5
    finally:
        ended.set()
        writer.join()
    assert "1 windows closed with what their closing records say" in result.stdout
    assert "none different" in result.stdout
    assert node.stop() == 0


def test_a_planted_difference_is_reported(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One score that is off by one in the rebuild differs from the node, everywhere it counts."""
    post(node, 1)
    monkeypatch.setattr(rebuilding, "Board", Miscounting)
    result = rebuild(node, "--url", node.url)
    assert result.exit_code == 1, result.output
    found = verdicts(result)
    assert found["all_time", "node"] == found["later", "node"] == "no"
    assert found["cup", "node"] == found["cup", "archive"] == found["cup", "closing record"] == "no"
    assert "0 windows closed with" in result.stdout
    assert node.stop() == 0


def test_a_stopped_node_is_compared_by_its_snapshot(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a node the newest snapshot's windows, members, keys and state are compared."""
    monkeypatch.setattr("node.cli.DEFAULT_URL", f"http://127.0.0.1:{free_port()}")
    for number in range(40):
        post(node, number)
    published = listed(node, "b")["digest"]
    assert node.stop() == 0
    result = rebuild(node)
    assert result.exit_code == 0, result.output
    assert "compared with no node: none answers at" in result.stdout
    found = rows(result)
    daily = next(of for of, _ in found if of.startswith("daily:"))
    parts = ("all_time", "later", daily, "members", "keys", "state")
    assert found.keys() == {(part, "snapshot") for part in parts} | {("cup", "archive")}
    assert found["cup", "archive"][1] == published
    assert rebuild(node, "--url", f"http://127.0.0.1:{free_port()}").exit_code == 1
    monkeypatch.setattr(rebuilding, "Board", Miscounting)
    different = rebuild(node)
    assert different.exit_code == 1
    assert verdicts(different)["state", "snapshot"] == "no"
    assert verdicts(different)["members", "snapshot"] == "yes"


def test_another_node_at_the_default_address_is_told_apart(
    node: RunningNode, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that serves another board of that name, or none, is not compared with this one."""
    other = make_node("other").start()
    monkeypatch.setattr("node.cli.DEFAULT_URL", other.url)
    for expected in ("board_not_found", "it serves another board 'b'"):
        if expected != "board_not_found":
            fill(other, "b", cup(3600.0))
        result = rebuild(node)
        assert result.exit_code == 0, result.output
        assert f"compared with no node: {other.url}: {expected}" in result.stdout
        assert all(source != "node" for _, source in rows(result))
        named = rebuild(node, "--url", other.url)
        assert named.exit_code == 1
        assert expected in named.stderr
    assert other.stop() == 0
    assert node.stop() == 0


def test_a_copy_that_lags_behind_the_node_is_told(node: RunningNode, tmp_path: Path) -> None:
    """A log on disk that ends before the node's answers is said not to be that node's."""
    copy = tmp_path / "copy"
    assert CliRunner().invoke(main, ["backup", str(copy), "--data", str(node.data)]).exit_code == 0
    post(node, 1)
    options = ["rebuild", "b", "--data", str(copy), "--url", node.url]
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 1
    assert "it is not that of this node" in result.stderr
    assert node.stop() == 0


def test_a_node_that_lags_behind_the_log_is_told(
    node: RunningNode, make_node: MakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node over an older copy of the data is said to lag, or to serve another directory."""
    monkeypatch.setattr("node.client.ATTEMPTS_MAX", 2)
    copy = ["backup", str(tmp_path / "other"), "--data", str(node.data)]
    assert CliRunner().invoke(main, copy).exit_code == 0
    post(node, 1)
    other = make_node("other").start()
    result = rebuild(node, "--url", other.url)
    assert result.exit_code == 1
    assert "it lags behind, or serves another directory" in result.stderr
    assert other.stop() == 0
    assert node.stop() == 0


def test_a_node_with_keys_is_asked_with_one(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that knows keys is compared with where one is given, and where not that is said."""
    monkeypatch.setattr("node.cli.DEFAULT_URL", node.url)
    arguments = ["key", "create", "--data", str(node.data), "--scope", "admin"]
    created = CliRunner().invoke(main, arguments)
    assert created.exit_code == 0, created.output
    (key,) = re.findall(r"rnk_\S+", created.stdout)
    without = rebuild(node)
    assert without.exit_code == 0
    assert f"compared with no node: {node.url}: unauthenticated" in without.stdout
    assert rebuild(node, "--url", node.url).exit_code == 1
    given = rebuild(node, "--key", key)
    assert given.exit_code == 0, given.output
    assert verdicts(given).get(("all_time", "node")) == "yes", given.stdout
    assert key not in given.output
    assert node.stop() == 0


# What a node may answer


def answering(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[rebuild_commands._Answers], Any]
) -> None:
    """Let the node's answers be changed on their way."""
    ask = rebuild_commands._ask

    async def asked(*arguments: Any) -> Any:
        return change(await ask(*arguments))

    monkeypatch.setattr(rebuild_commands, "_ask", asked)


def test_what_a_node_lacks_or_makes_up_is_different(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows that the node forgot or invented, and sequences inside records, are differences."""
    post(node, 1)
    digest = rebuild_commands._Digest

    def forget(answers: Any) -> Any:
        answers.published.pop("cup")
        return answers

    def invent(answers: Any) -> Any:
        return answers._replace(published=answers.published | {"cup-2": "00"})

    def shift(answers: Any) -> Any:
        answer = answers.digests["all_time"]
        changed = digest(answer.sequence - 1, answer.digest)
        return answers._replace(digests=answers.digests | {"all_time": changed})

    for change, compared in ((forget, "cup"), (invent, "cup-2"), (shift, "all_time")):
        with monkeypatch.context() as patch:
            answering(patch, change)
            result = rebuild(node, "--url", node.url)
        assert result.exit_code == 1, result.output
        found = verdicts(result)
        assert found.pop((compared, "node")) == "no"
        assert set(found.values()) == {"yes"}
    assert node.stop() == 0
