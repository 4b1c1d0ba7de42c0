from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from node.cli import main
from node.config import MIB, Config, ConfigError, is_loopback, load

DATA = {"data_directory": "d"}


def test_later_sources_override_earlier_ones(tmp_path: Path) -> None:
    """The file overrides the defaults, the environment the file, options the environment."""
    file = tmp_path / "ranknode.toml"
    file.write_text('port = 1\nconnections_max = 2\nbody_seconds_max = 3\nhost = "::1"\n')
    environment = {"RANKNODE_PORT": "4", "RANKNODE_CONNECTIONS_MAX": "5", "PATH": "/bin"}
    config = load(file, environment, DATA | {"port": 6, "host": None})
    assert (config.port, config.connections_max, config.body_seconds_max) == (6, 5, 3.0)
    assert config.host == "::1"
    assert config.body_bytes_max == 4 * MIB


def test_the_defaults_are_valid() -> None:
    """A node starts with nothing but a directory, on loopback."""
    config = load(None, {}, DATA)
    assert config == Config(data_directory="d")
    assert is_loopback(config.host)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("prot = 80", "prot"),
        ("port = 65536", "port"),
        ("port = -1", "port"),
        ('port = "80"', "port"),
        ("port = true", "port"),
        ("port = 80.5", "port"),
        ("body_bytes_max = 0", "body_bytes_max"),
        ("request_seconds_max = 0", "request_seconds_max"),
        ("request_seconds_max = nan", "request_seconds_max"),
        ("keepalive_seconds = inf", "keepalive_seconds"),
        ('data_directory = ""', "data_directory"),
        ("signature_seconds_max = 0", "signature_seconds_max"),
        ("key_requests_per_second = 0", "key_requests_per_second"),
        ("key_requests_per_second = 1e-310", "key_requests_per_second"),
        ("auth_failures_per_second = 1e-310", "auth_failures_per_second"),
        ("auth_failures_burst = 0.5", "auth_failures_burst"),
        ("queue_bytes_max = 1", "body_bytes_max"),
        ("call_items_max = 5000", "call_items_max"),
        ("commit_events_max = 20000000", "commit_events_max"),
        ("min_sequence_wait_seconds = 11", "min_sequence_wait_seconds"),
        ("port = ", "ranknode.toml"),
    ],
)
def test_nonsense_in_a_file_is_refused_by_name(text: str, named: str, tmp_path: Path) -> None:
    """A setting that is unknown, of a wrong type or out of bounds is refused with its name."""
    file = tmp_path / "ranknode.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=rf"^(\S*/)?{named}:"):
        load(file, {}, {} if named == "data_directory" else DATA)


@pytest.mark.parametrize(
    ("name", "text"),
    [("RANKNODE_PROT", "80"), ("RANKNODE_PORT", "http"), ("RANKNODE_PORT", ""),
     ("RANKNODE_PORT", "tcp://10.0.0.1:8080"), ("RANKNODE_BODY_SECONDS_MAX", "-1")],
)  # fmt: skip
def test_nonsense_in_the_environment_is_refused_by_name(name: str, text: str) -> None:
    """A variable of ours that is unknown or no such value is refused with its name."""
    with pytest.raises(ConfigError, match=f"(?i){name.removeprefix('RANKNODE_')}"):
        load(None, {name: text}, DATA)


def test_a_data_directory_is_needed() -> None:
    """A node is never started on a directory that nobody named."""
    with pytest.raises(ConfigError, match=r"data_directory.*--data"):
        load(None, {}, {})


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
     ("10.0.0.1", False), ("localhost.example.com", False), ("", False)],
)  # fmt: skip
def test_only_loopback_counts_as_loopback(host: str, loopback: bool) -> None:
    """A name is not trusted to be the machine itself, apart from localhost."""
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    "arguments",
    [["--data", "d", "--host", "10.0.0.1"], ["--data", "d", "--port", "70000"], [],
     ["--data", "d", "--config", "/nonexistent/ranknode.toml"]],
)  # fmt: skip
def test_serve_refuses_a_bad_configuration_with_one_line(arguments: list[str]) -> None:
    """A configuration that is refused ends the command with 2 and one line, before Ray starts."""
    result = CliRunner().invoke(main, ["serve", *arguments], env={"RANKNODE_PORT": None})
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
