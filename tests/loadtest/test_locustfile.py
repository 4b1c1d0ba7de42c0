"""Locust's users, against a server that answers as the test wants."""

from __future__ import annotations

import json
import pkgutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import loadtest
from loadtest.generator_notes import Notes, read_journals, read_notes
from loadtest.run_profile import LOCUSTFILE

LOCUST_SECONDS_MAX = 120.0
STALL_SECONDS = 1.5
STALL_AFTER = 50  # reads
FACTOR, SECONDS = 0.02, 3.0
USERS = 4


class Stub(ThreadingHTTPServer):
    """Answers like a node; once it stalls, as a whole, and every tenth event it refuses.

    stalls: how often it did. refused: how many events it refused.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.lock = threading.Lock()
        self.reads = 0
        self.sequence = 0
        self.stalls = 0
        self.refused = 0

    def read(self) -> None:
        with self.lock:
            self.reads += 1
            if self.reads == STALL_AFTER:
                self.stalls += 1
                time.sleep(STALL_SECONDS)

    def event(self, event: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self.lock:
            self.sequence += 1
            if self.sequence % 10 == 0:
                self.refused += 1
                return 503, {"code": "overloaded"}
            standings = [{"period": "all_time", "score": event["value"]}]
            return 200, {"status": "applied", "sequence": self.sequence, "standings": standings}


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Stub

    def do_PUT(self) -> None:
        self._answer(201, self._body())

    def do_GET(self) -> None:
        self.server.read()
        self._answer(200, {"sequence": 10**9, "entry": {"member": "m", "score": 10**9}})

    def do_POST(self) -> None:
        body = self._body()
        if "events" in body:
            self._answer(200, {"applied": len(body["events"])})
        elif "members" in body:
            self.server.read()
            self._answer(200, {"entries": []})
        else:
            self._answer(*self.server.event(body))

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, status: int, body: Any) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = Stub()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def start_locust(url: str, notes: Path, users: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "locust", "-f", LOCUSTFILE, "--host", url, "--headless"]
    command += ["-u", str(users), "-r", "100", "--traffic", "steady", "--notes", notes]
    command += ["--factor", str(FACTOR), "--seconds", str(SECONDS), "--exit-code-on-error", "0"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LOCUST_SECONDS_MAX, check=False
    )


def run_locust(url: str, notes: Path, users: int) -> Notes:
    ended = start_locust(url, notes, users)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (each,) = read_notes(notes)
    return each


def test_a_stall_delays_every_call_that_is_due_meanwhile(stub: Stub, tmp_path: Path) -> None:
    """Latency counts from when a call was due: a node that stalls cannot hide behind its callers.

    Four users have four calls under way when it stalls; those that are due in that time are slow
    as well. What is refused is an error, and not in the journal.
    """
    notes = run_locust(f"http://127.0.0.1:{stub.server_port}", tmp_path, USERS)
    assert stub.stalls == 1
    latencies_us = [us for each in notes.latencies_us.values() for us in each]
    slow = sum(us > 0.1 * 1e6 for us in latencies_us)
    assert slow > 10 * USERS
    assert max(latencies_us) > 0.9 * STALL_SECONDS * 1e6
    assert stub.refused > 0
    assert notes.errors == {"event": {"RefusedError: 503 overloaded": stub.refused}}
    acknowledged = [each.sequence for each in read_journals(tmp_path)]
    assert sorted(acknowledged) == [n for n in range(1, stub.sequence + 1) if n % 10]
    assert len(notes.lags_us) == len(acknowledged)


def test_a_run_without_a_node_ends(tmp_path: Path) -> None:
    """Where nobody listens, Locust ends by saying so instead of offering load to nobody."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        ended = start_locust(f"http://127.0.0.1:{nobody.getsockname()[1]}", tmp_path, USERS)
    assert ended.returncode != 0
    assert "cannot be reached" in ended.stderr
    assert read_notes(tmp_path) == []


def test_only_locustfile_brings_gevent() -> None:
    """Nothing else here can replace what blocks in a process that measures or tests."""
    modules = [
        module.name
        for module in pkgutil.walk_packages(loadtest.__path__, "loadtest.")
        if module.name != "loadtest.locustfile"
    ]
    assert "loadtest.run_profile" in modules
    code = (
        f"import sys, {', '.join(modules)}; print('gevent' in sys.modules, 'locust' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["False", "False"]
    assert "gevent" not in sys.modules, "nor what pytest loads"
