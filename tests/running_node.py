"""A node as a process of its own, for tests that start, ask, kill and count what is left."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgpack

READY_SECONDS_MAX = 60.0
RANKNODE = str(Path(sys.executable).with_name("ranknode"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(condition: Any, seconds: float, what: str) -> None:
    """Wait for something that must come about; a failure says what did not."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


class RunningNode:
    """A node over one data directory; every process it starts shares its session.

    environment: variables that its next start gets besides those of this process.
    """

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = data.with_name(f"{data.name}.out")
        self.directory = data.parent
        self.environment: dict[str, str] = {}
        self._options = options
        self.process: subprocess.Popen[bytes]

    def start(self) -> RunningNode:
        self.launch()
        wait_until(self._is_ready, READY_SECONDS_MAX, f"the node is ready; see {self.output}")
        return self

    def launch(self) -> None:
        """Start the process, and do not wait for it to answer."""
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [RANKNODE, "serve", "--data", self.data, "--port", str(self.port), *self._options],
                cwd=self.directory,
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.output.read_text()
        try:
            return self.call("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def processes(self) -> list[int]:
        """List the living processes of the node's session."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == self.process.pid and fields[0] != "Z":
                found.append(int(entry))
        return found

    def named(self, name: str) -> list[int]:
        """List the node's processes whose command line holds `name`."""
        return [process for process in self.processes() if name in self.command(process)]

    def command(self, process: int) -> str:
        """Return a process's command line, nothing of one that has ended."""
        try:
            return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
        except OSError:
            return ""

    def guard(self) -> int:
        """Find the guard: the node's one child that runs the node's own command."""
        (guard,) = [p for p in self.named("serve --data") if p != self.process.pid]
        return guard

    def kill_all(self) -> None:
        """Kill everything at once, as a power cut would."""
        while processes := self.processes():
            for process in processes:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)
        self.process.wait()

    def stop(self, seconds: float = 10.0) -> int:
        """Stop in order; nothing of the node may be left after `seconds`."""
        self.process.terminate()
        exit_code = self.process.wait(seconds)
        wait_until(lambda: not self.processes(), 1.0, f"nothing is left of {self.processes()}")
        return exit_code

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        seconds: float = 30.0,
        *,
        packed: bool = False,
        key: str | None = None,
    ) -> tuple[int, Any]:
        """Call the node; returns the status and the decoded body.

        A body of bytes is sent as it is. packed: body and answer are MessagePack. key: comes along.
        """
        kind = "application/msgpack" if packed else "application/json"
        headers = {"Content-Type": kind, "Accept": kind}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        data = body
        if body is not None and not isinstance(body, bytes):
            data = msgpack.packb(body) if packed else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            text = answer.read()
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()
        if answer.headers.get_content_type() == "application/msgpack":
            return answer.status, msgpack.unpackb(text)
        if text and answer.headers.get_content_type() == "text/plain":
            return answer.status, text.decode()
        return answer.status, json.loads(text) if text else None

    def ask(self, path: str) -> Any:
        """Read from the node, which must answer with 200."""
        status, body = self.call("GET", path)
        assert status == 200, body
        return body


def clean_up(node: RunningNode) -> None:
    """Kill what still runs of a node, and remove what it leaves outside of its directory."""
    if hasattr(node, "process"):
        node.kill_all()
    lock = node.data / "node.lock"
    if lock.exists():
        # A node that was killed together with its guard leaves Ray's directory to the next.
        shutil.rmtree(Path(lock.read_text()), ignore_errors=True)
