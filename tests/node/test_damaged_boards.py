"""Boards fail alone: whatever is wrong with one directory, the node and the others answer."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.running_node import RANKNODE, RunningNode

MakeNode = Callable[..., RunningNode]


def fill(node: RunningNode, board: str, events: int = 60) -> Any:
    assert node.call("PUT", f"/v1/boards/{board}", {"aggregation": "sum"})[0] == 201
    for start in range(0, events, 20):
        batch = [
            {"member": f"{board}-{i % 7}", "value": i, "idempotency_key": f"k{i}"}
            for i in range(start, start + 20)
        ]
        assert node.call("POST", f"/v1/boards/{board}/events", {"events": batch})[0] == 200
    return node.ask(f"/v1/boards/{board}/digest")


def verify(node: RunningNode) -> str:
    ran = subprocess.run(
        [RANKNODE, "verify", node.data], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    return ran.stdout


def test_listings_are_copies(make_node: MakeNode) -> None:
    """A listing that is lost or damaged is made anew from the log; foreign files are left alone."""
    node = make_node().start()
    digests = {board: fill(node, board) for board in ("lost", "emptied", "flipped", "good")}
    assert node.stop() == 0
    boards = node.data / "boards"
    (boards / "lost" / "board.msgpack").unlink()
    (boards / "emptied" / "board.msgpack").write_bytes(b"")
    content = bytearray((boards / "flipped" / "board.msgpack").read_bytes())
    content[30] ^= 0x5A
    (boards / "flipped" / "board.msgpack").write_bytes(content)
    (boards / "a-file").write_text("not a board")
    found = verify(node)
    for board in ("lost", "emptied", "flipped"):
        assert f"{board}: damaged" in found
    node.start()
    for board, digest in digests.items():
        assert node.ask(f"/v1/boards/{board}/digest") == digest
    listed = [entry["board"] for entry in node.ask("/v1/boards")["boards"]]
    assert listed == sorted(digests)
    assert node.stop() == 0


def test_a_damaged_board_says_so(make_node: MakeNode) -> None:
    """Nothing is answered from a directory that holds no log, another board's, or a cut one."""
    config = make_node().data.with_name("small.toml")
    config.write_text("segment_events_max = 20\ncommit_events_max = 20\n")
    config.parent.joinpath("small.toml")
    node = make_node("data", "--config", str(config)).start()
    digest = fill(node, "good")
    for board in ("gone", "swapped", "cut", "emptied", "hollow"):
        fill(node, board)
    assert node.stop() == 0
    boards = node.data / "boards"
    shutil.rmtree(boards / "gone" / "log")
    for part in ("log", "snapshots"):
        shutil.rmtree(boards / "swapped" / part)
        shutil.copytree(boards / "good" / part, boards / "swapped" / part)
    sealed = boards / "cut" / "log" / "00000001" / "data.mdb"
    os.truncate(sealed, sealed.stat().st_size - 4096)
    (boards / "emptied" / "log" / "00000001" / "data.mdb").write_bytes(b"")
    shutil.rmtree(boards / "hollow")
    (boards / "hollow").mkdir()
    found = verify(node)
    for board in ("gone", "swapped", "cut", "emptied", "hollow"):
        assert f"{board}: damaged" in found
    assert "good: sound" in found
    node.start()
    for board in ("gone", "swapped", "cut", "emptied", "hollow"):
        for method, path, body in (
            ("GET", "top", None),
            ("POST", "events", {"member": "m", "value": 1, "idempotency_key": "new"}),
        ):
            status, problem = node.call(method, f"/v1/boards/{board}/{path}", body)
            assert (status, problem["code"]) == (503, "board_unavailable"), (board, problem)
    assert node.ask("/v1/boards/good/digest") == digest
    assert node.call("DELETE", "/v1/boards/gone")[0] == 204
    assert node.call("DELETE", "/v1/boards/hollow")[0] == 204
    assert node.call("PUT", "/v1/boards/gone", {"aggregation": "sum"})[0] == 201
    assert node.stop() == 0


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[None]:
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", path]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root, where it may mount, can make a disk that is small enough to fill")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def test_full_disk(make_node: MakeNode, tmp_path: Path) -> None:
    """On a full disk reads go on, also of boards brought up only then, and writes come back."""
    config = tmp_path / "full.toml"
    config.write_text("reserved_free_bytes = 2000000\nsegment_bytes_max = 8000000\n")
    event = {"member": "late", "value": 1, "idempotency_key": "late"}
    with small_disk(tmp_path / "disk"):
        node = make_node("disk/data", "--config", str(config)).start()
        digests = {board: fill(node, board) for board in ("up", "down")}
        assert node.stop() == 0
        node.start()
        assert node.ask("/v1/boards/up/digest") == digests["up"]
        filler = tmp_path / "disk" / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        for board, digest in digests.items():
            assert node.ask(f"/v1/boards/{board}/digest") == digest
            status, problem = node.call("POST", f"/v1/boards/{board}/events", event)
            assert (status, problem["code"]) == (507, "storage_full")
        status, problem = node.call("PUT", "/v1/boards/new", {"aggregation": "sum"})
        assert (status, problem["code"]) == (507, "storage_full")
        assert node.call("PUT", "/v1/boards/down", {"aggregation": "sum"})[0] == 200
        assert node.stop() == 0
        with node.output.open("a"):
            node.start()
        for board, digest in digests.items():
            assert node.ask(f"/v1/boards/{board}/digest") == digest
        filler.unlink()
        for board in digests:
            assert node.call("POST", f"/v1/boards/{board}/events", event)[0] == 200
        assert node.stop() == 0
