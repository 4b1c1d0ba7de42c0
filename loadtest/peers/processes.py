"""The peers as processes, each running until the end of a block.

Redis lies in a directory of the caller's and listens on a Unix socket there. What a machine lacks
is an AbsentError, which says what.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from loadtest.nodes import HOST, free_port

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.005  # between two looks at whether a peer answers
INSTALL_SECONDS_MAX = 120.0
REDIS_PLAIN = ("--save", "", "--appendonly", "no")
# The log is never rewritten by itself, for that would happen within a measurement.
REDIS_DURABLE = (
    *("--save", "", "--appendonly", "yes", "--appendfsync", "always"),
    *("--auto-aof-rewrite-percentage", "0"),
)
FOLDER = Path(__file__).parent
SCRIPT = FOLDER / "event.lua"
NODE_SERVICE = FOLDER / "node_service"
NODE_INSTALLED = FOLDER.parents[1] / "var" / "node_service"  # git ignores it


class AbsentError(Exception):
    """Raised for a peer that this machine cannot run; says why."""


class Redis:
    """A Redis that answers: `socket_path`, and `client` to ask it by."""

    def __init__(self, directory: Path) -> None:
        self.socket_path = directory / "redis.sock"
        self.client = redis.Redis(
            unix_socket_path=str(self.socket_path),
            decode_responses=True,
            retry=Retry(NoBackoff(), 0),  # whoever waits for it decides how often to look
        )

    def ask(self, *command: str | bytes | int) -> Any:
        """Send one command and return its answer."""
        return self.client.execute_command(*command)  # type: ignore[no-untyped-call]

    def information(self, name: str) -> Any:
        """Return one of the fields of INFO."""
        return self.client.info()[name]


@contextmanager
def running_redis(directory: Path, options: Sequence[str]) -> Iterator[Redis]:
    """Run a Redis over a directory; its data is loaded when the block begins.

    Errors: AbsentError; SystemExit where it does not start.
    """
    program = _program("redis-server")
    directory.mkdir(exist_ok=True)
    server = Redis(directory)
    command = [program, "--port", "0", "--unixsocket", str(server.socket_path)]
    command += ["--dir", str(directory), *options]
    with _running(command, directory / "redis.log") as process:
        _await(process, lambda: bool(server.ask("PING")), directory / "redis.log")
        try:
            yield server
        finally:
            server.client.close()


@contextmanager
def running_python_service(directory: Path, server: Redis) -> Iterator[int]:
    """Run the service in Python before a Redis; yields its port. Errors: SystemExit."""
    port = free_port()
    command = [sys.executable, str(FOLDER / "python_service.py"), str(port)]
    with _running_service([*command, str(server.socket_path)], port, directory / "python.log"):
        yield port


@contextmanager
def running_node_service(directory: Path, server: Redis) -> Iterator[int]:
    """Run the service in Node before a Redis; yields its port. Errors: AbsentError, SystemExit."""
    program = _program("node")
    _install_node_service()
    port = free_port()
    command = [program, str(NODE_INSTALLED / "service.js"), str(port), str(server.socket_path)]
    with _running_service([*command, str(SCRIPT)], port, directory / "node.log"):
        yield port


def version_of(*command: str) -> str:
    """Return what a program says of its version, nothing where it is not installed."""
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.stdout.strip()


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise AbsentError(f"{name} is not installed")
    return path


def _install_node_service() -> None:
    """Install what the lock file names, once for each lock file. Errors: AbsentError."""
    done = NODE_INSTALLED / "installed-lock.json"
    lock = (NODE_SERVICE / "package-lock.json").read_bytes()
    NODE_INSTALLED.mkdir(parents=True, exist_ok=True)
    for path in NODE_SERVICE.iterdir():
        if path.is_file():
            shutil.copy(path, NODE_INSTALLED)
    if done.exists() and done.read_bytes() == lock:
        return
    command = [_program("npm"), "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    try:
        said = subprocess.run(
            command,
            cwd=NODE_INSTALLED,
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_SECONDS_MAX,
        )
    except subprocess.TimeoutExpired:
        raise AbsentError(f"npm ci took more than {INSTALL_SECONDS_MAX:.0f} s") from None
    if said.returncode:
        reason = next((line for line in said.stderr.splitlines() if "error" in line), "")
        raise AbsentError(f"npm ci failed: {reason}")
    done.write_bytes(lock)


@contextmanager
def _running_service(command: list[str], port: int, log: Path) -> Iterator[None]:
    def answers() -> bool:
        with socket.create_connection((HOST, port), timeout=1):
            return True

    with _running(command, log) as process:
        _await(process, answers, log)
        yield


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"NODE_ENV": "production"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(process: subprocess.Popen[bytes], answers: Any, log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError, redis.ConnectionError):  # a Redis that loads refuses by the latter
            if answers():
                return
        time.sleep(LOOK_SECONDS)
    raise SystemExit(f"a peer did not start:\n{log.read_text()}")
