"""Every limit and default of a node, with its unit in its name.

A `Config` comes from the defaults below, a TOML file, the environment (`RANKNODE_PORT=8080`) and
the command line, each overriding the one before. A name that nothing knows and a value that makes
no sense are refused: a limit that was silently not set is found out about in the worst moment.
"""

from __future__ import annotations

import ipaddress
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from persistence.errors import RanknodeError

ENVIRONMENT_PREFIX = "RANKNODE_"

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=1, le=10**9)]
Bytes = Annotated[int, Meta(ge=1, le=2**40)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class ConfigError(RanknodeError):
    """Raised for a configuration that names what does not exist or asks for what makes no sense."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a node was told to be.

    data_directory: where the boards live; created if missing.
    port: 0 takes any free one.

    HTTP
    body_bytes_max: of a request's body; `header_bytes_max`: of its request line and of each header.
    header_seconds_max: from a connection to its first whole request head.
    body_seconds_max: for a body to arrive; `request_seconds_max`: for the board to answer then.
    min_sequence_wait_seconds: how long a read waits for its `min_sequence`.
    linger_seconds: how long the rest of a refused body is read, so that the refusal is seen.
    drain_seconds: how long a stopping node waits for the requests under way.

    Boards
    queue_items_max, queue_bytes_max: what may wait in each lane (reads, writes) of each board.
    call_items_max: questions in one call of a board's actor.
    commit_events_max: events in one commit of a log.
    boards_active_max: boards in memory at once; one idle for `board_idle_seconds` is put away.
    snapshot_events: events from one snapshot to the next.
    archive_cache_bytes_max: of closed windows' standings that a board keeps in memory once asked.
    segment_events_max, segment_bytes_max: what a log's segment holds before it is sealed.
    reserved_free_bytes: free disk below which writes are refused.
    """

    data_directory: Annotated[str, Meta(min_length=1)]
    host: str = "127.0.0.1"
    port: Port = 8080

    body_bytes_max: Bytes = 4 * MIB
    header_bytes_max: Annotated[int, Meta(ge=KIB, le=MIB)] = 8 * KIB
    headers_max: Annotated[int, Meta(ge=16, le=1000)] = 64
    header_seconds_max: Seconds = 10.0
    body_seconds_max: Seconds = 10.0
    request_seconds_max: Seconds = 10.0
    min_sequence_wait_seconds: Annotated[float, Meta(ge=0, le=3600)] = 1.0
    keepalive_seconds: Seconds = 75.0
    linger_seconds: Annotated[float, Meta(ge=0, le=60)] = 2.0
    drain_seconds: Annotated[float, Meta(ge=0, le=3600)] = 2.5
    connections_max: Count = 20_000

    queue_items_max: Count = 4096
    queue_bytes_max: Bytes = 32 * MIB
    call_items_max: Count = 512
    commit_events_max: Count = 5_000
    boards_active_max: Count = 64
    board_idle_seconds: Seconds = 300.0
    snapshot_events: Count = 1_000_000
    archive_cache_bytes_max: Bytes = 256 * MIB
    segment_events_max: Count = 1_000_000
    segment_bytes_max: Bytes = GIB
    reserved_free_bytes: Annotated[int, Meta(ge=0, le=2**40)] = 64 * MIB

    def __post_init__(self) -> None:
        for name, value in msgspec.structs.asdict(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name}: {value} is not a number of seconds")
        if not is_loopback(self.host):
            raise ValueError(
                f"host: {self.host} is not loopback, and without keys everyone who reaches the"
                " port could change every board"
            )
        self._check_order("body_bytes_max", "queue_bytes_max")
        self._check_order("call_items_max", "queue_items_max")
        self._check_order("commit_events_max", "segment_events_max")
        self._check_order("min_sequence_wait_seconds", "request_seconds_max")

    def _check_order(self, smaller: str, larger: str) -> None:
        if getattr(self, smaller) > getattr(self, larger):
            raise ValueError(f"{smaller}: must not exceed {larger}")


def is_loopback(host: str) -> bool:
    """Say whether a host can only be reached from the machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def load(
    file: Path | None, environment: Mapping[str, str], options: Mapping[str, str | int | None]
) -> Config:
    """Make the configuration from a file, the environment and the command line's options.

    An option that is None was not given. Raises ConfigError, whose text names the setting.
    """
    settings: dict[str, Any] = _from_file(file) if file is not None else {}
    settings |= _from_environment(environment)
    settings |= {name: value for name, value in options.items() if value is not None}
    if "data_directory" not in settings:
        raise ConfigError("data_directory: is missing; give --data DIR")
    try:
        return msgspec.convert(settings, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(_readable(str(error))) from None


def _from_file(file: Path) -> dict[str, Any]:
    try:
        return _known(tomllib.loads(file.read_text("utf-8")), str(file))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from None


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    texts = {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): text
        for name, text in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX)
    }
    types = {field.name: field.type for field in msgspec.structs.fields(Config)}
    settings = {}
    for name, text in _known(texts, "the environment").items():
        try:
            # A variable is always text; numbers are read from it here and nowhere else.
            settings[name] = msgspec.convert(text, types[name], strict=False)
        except msgspec.ValidationError as error:
            shown = ENVIRONMENT_PREFIX + name.upper()
            raise ConfigError(f"{shown}={text}: {_readable(str(error))}") from None
    return settings


def _known(settings: dict[str, Any], origin: str) -> dict[str, Any]:
    unknown = sorted(settings.keys() - set(Config.__struct_fields__))
    if unknown:
        raise ConfigError(f"{unknown[0]}: no such setting (in {origin})")
    return settings


def _readable(error: str) -> str:
    """Put the setting's name first: msgspec writes it last, as "… - at `$.port`"."""
    message, _, path = error.partition(" - at `$")
    name = path.strip("`.")
    return f"{name}: {message}" if name else message
