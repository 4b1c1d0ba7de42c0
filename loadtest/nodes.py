"""A node as a process of its own, over a directory that is the caller's, for what measures it.

Owns how such a node is started, asked a few things, and ended with everything that it started.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
CALL_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.1  # between two looks at whether it answers


class Node:
    """A node that answers.

    port, pid, url: where it is. log: the file of what it says.
    """

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.port = port
        self.pid = process.pid
        self.url = f"http://{HOST}:{port}"
        self.log = log
        self._process = process

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Ask once, on a connection of its own; returns the status and the decoded body."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=CALL_SECONDS_MAX)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        finally:
            connection.close()

    def processes(self, name: str) -> list[int]:
        """List its processes whose command line begins with `name`, as `ray::BoardActor`."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    command = Path(f"/proc/{entry}/cmdline").read_bytes()
                    session = os.getsid(int(entry))
                except OSError:
                    continue
                if session == self.pid and command.startswith(name.encode()):
                    found.append(int(entry))
        return found

    def stop(self) -> None:
        """Stop it in order; once more is once. Errors: SystemExit, with its log."""
        self._process.terminate()
        try:
            code = self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            raise self._failure(f"did not stop within {STOP_SECONDS_MAX:.0f} s") from None
        if code:
            raise self._failure(f"ended with {code}")

    def await_ready(self) -> None:
        """Return when it answers. Errors: SystemExit, with its log."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(OSError):
                if self.call("GET", "/readyz")[0] == 200:
                    return
            time.sleep(LOOK_SECONDS)
        raise self._failure("did not start")

    def _failure(self, what: str) -> SystemExit:
        return SystemExit(f"the node {what}:\n{self.log.read_text()}")


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running_node(data_directory: Path, *options: str) -> Iterator[Node]:
    """Run a node until the end of the block, which may stop it sooner.

    options: more of `ranknode serve`. Its log lies beside the data directory. Errors: SystemExit
    where it does not start, or does not end in order.
    """
    port = free_port()
    path = data_directory.with_name(f"{data_directory.name}.log")
    command = [str(Path(sys.executable).with_name("ranknode")), "serve"]
    command += ["--data", str(data_directory), "--port", str(port), *options]
    with path.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    node = Node(process, port, path)
    try:
        node.await_ready()
        yield node
    except BaseException:
        with suppress(SystemExit):  # what went wrong first says more
            node.stop()
        raise
    node.stop()
