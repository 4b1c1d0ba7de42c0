"""A whole node with keys: from the command that makes one to the event that it stamps."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from node.config import API_KEY
from node.key_file import FILE
from tests.running_node import RANKNODE, RunningNode, wait_until

MakeNode = Callable[..., RunningNode]
EVENTS = "/v1/boards/arena-1/events"


def run(*arguments: str | Path, key: str | None = None, expected: int = 0) -> str:
    """Run a command, and return what it printed for scripts."""
    environment = {name: text for name, text in os.environ.items() if name != API_KEY}
    ran = subprocess.run(
        [RANKNODE, *map(str, arguments)],
        env=environment if key is None else environment | {API_KEY: key},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == expected, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr
    return ran.stdout.strip() or ran.stderr.strip()


def call(
    node: RunningNode, key: str | None, method: str, path: str, body: Any = None
) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=30)
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    return answer.status, json.loads(text) if text else None


def event(key: str, **rest: Any) -> dict[str, Any]:
    return {"member": "ada", "value": 1, "idempotency_key": key} | rest


def holds(directory: Path, secrets: list[str]) -> list[Path]:
    """List the files below a directory in which any of the secrets stands."""
    found = []
    for path in directory.rglob("*"):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            found += [path for secret in secrets if secret.encode() in content]
    return found


def test_a_node_with_keys_from_its_first_start(make_node: MakeNode, tmp_path: Path) -> None:
    """Keys made before and beside a node count at once, until revoked; nothing of it holds one."""
    node = make_node()
    admin = run("key", "create", "--data", node.data, "--scope", "admin")
    node.start()
    assert call(node, None, "GET", EVENTS.replace("events", "top"))[0] == 401
    assert call(node, admin, "PUT", "/v1/boards/arena-1", {"aggregation": "sum"})[0] == 201
    assert call(node, admin, "PUT", "/v1/boards/cup", {"aggregation": "sum"})[0] == 201

    options = ("--scope", "submit", "--boards", "arena-*", "--source", "server-3")
    server = run("key", "create", "--data", node.data, *options)
    batch = {"events": [event("a"), event("b", source="server-4"), event("c", source="server-3")]}
    status, answer = call(node, server, "POST", EVENTS, batch)
    codes = [result.get("code", result["status"]) for result in answer["results"]]
    assert (status, codes) == (200, ["applied", "source_not_allowed", "applied"])
    assert call(node, server, "POST", EVENTS.replace("arena-1", "cup"), batch)[0] == 403
    assert call(node, server, "POST", EVENTS.replace("arena-1", "none"), batch)[0] == 403
    repeated = event("a", source="server-3")
    assert call(node, admin, "POST", EVENTS, repeated)[1]["status"] == "duplicate"

    limited = run("key", "create", "--data", node.data, "--scope", "admin", "--boards", "c*")
    listed = call(node, limited, "GET", "/v1/boards")[1]
    assert ([board["board"] for board in listed["boards"]], listed["next"]) == (["cup"], None)

    key_id = server.split("_")[1]
    rotated = run("key", "rotate", key_id, "--data", node.data, "--overlap", "1h")
    for good in (server, rotated):
        assert call(node, good, "POST", EVENTS, event("d"))[0] == 200
    file = tmp_path / "events.ndjson"
    file.write_text(json.dumps(event("e")) + "\n")
    assert "1 applied" in run("import", "arena-1", file, "--url", node.url, key=rotated)
    assert "unauthenticated" in run("import", "arena-1", file, "--url", node.url, expected=1)
    assert "ada" in run("top", "arena-1", "--url", node.url, "--key", rotated)
    run("key", "revoke", key_id, "--data", node.data)
    for ended in (server, rotated):
        assert call(node, ended, "POST", EVENTS, event("f"))[0] == 401

    secrets = [key.split("_")[2] for key in (admin, server, limited, rotated)]
    ray_directory = Path((node.data / "node.lock").read_text())
    assert ray_directory.is_dir()
    for directory in (node.data, ray_directory):
        assert holds(directory, secrets) == []
        assert holds(directory, [key_id]) or directory != node.data, (
            "the search finds what is there"
        )
    (node.data / FILE).unlink()
    assert call(node, admin, "GET", "/v1/boards")[0] == 503
    assert node.stop() == 0
    log = node.output.read_text()
    assert "it is gone" in log
    assert [secret for secret in secrets if secret in log] == []


def test_samples_need_a_key_where_there_are_keys(make_node: MakeNode, monkeypatch: Any) -> None:
    """`serve --samples` says which variable it misses; with a key in it the samples are there."""
    node = make_node("data", "--samples")
    admin = run("key", "create", "--data", node.data, "--scope", "admin")
    monkeypatch.delenv(API_KEY, raising=False)
    node.start()
    wait_until(lambda: API_KEY in node.output.read_text(), 30, "the log says what is missing")
    assert call(node, admin, "GET", "/v1/boards")[1]["boards"] == []
    assert node.stop() == 0
    monkeypatch.setenv(API_KEY, admin)
    node.start()
    wait_until(lambda: "curl" in node.output.read_text(), 90, "the samples are shown")
    log = node.output.read_text()
    assert f'-H "Authorization: Bearer ${API_KEY}"' in log
    assert len(call(node, admin, "GET", "/v1/boards")[1]["boards"]) == 2
    secret = admin.split("_")[2]
    boards = node.named("ray::")
    assert boards
    for process in boards:
        assert secret.encode() not in Path(f"/proc/{process}/environ").read_bytes()
    assert secret not in log
    assert node.stop() == 0
