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
API_KEY = "RANKNODE_KEY"  # what commands call a node with; no setting

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=1, le=10**9)]
Bytes = Annotated[int, Meta(ge=1, le=2**40)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Rate = Annotated[float, Meta(ge=0.001, le=10**6)]  # as of one key
HostName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9.:_-]{1,253}$")]


class ConfigError(RanknodeError):
    """Raised for a configuration that names what does not exist or asks for what makes no sense."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a node was told to be.

    data_directory: where the boards live; created if missing.
    port: 0 takes any free one.

    hosts_allowed: names besides the loopback's that a `Host` header may have without keys; in the
    environment joined by commas.

    HTTP
    body_bytes_max: of a request's body: 5,000 events with every name at its longest fit.
    bodies_bytes_max: of all bodies in memory, from arrival to answer; a few times that is needed,
    for each body is copied on its way to its board.
    header_bytes_max: of a request line, and of each header; `headers_max` counts them.
    head_bytes_max: of a request line and all headers: what common servers allow.
    header_seconds_max: for a whole head, from connecting or from its first byte on.
    body_seconds_max: for a body to arrive; `request_seconds_max`: for the board to answer then.
    answer_seconds_max: for a client to take its answer; the largest needs a third of a megabit/s.
    answers_bytes_max: of all answers that wait for their clients; beyond it those that have waited
    longest are dropped.
    requests_max: being answered at once: four full lanes, so that a stuck board leaves room.
    min_sequence_wait_seconds: how long a read waits for its `min_sequence`.
    linger_seconds: how long the rest of a refused body is read, so that the refusal is seen.
    drain_seconds: how long a stopping node waits for the requests under way.
    connections_max: at once; each may hold about 100 KiB, of a head and a little read ahead.
    gateways: processes that share the port, for machines with more cores; the bounds and rates
    above and below are each one's own.

    Keys
    key_requests_per_second, key_requests_burst: of one key that has no rate of its own. A client's
    batch counts once. Half of what two cores answer at best: a bound on one key that runs wild, not
    what a game meets first, which is a full queue.
    auth_failures_per_second, auth_failures_burst: of calls without a good key from one address
    before they get 429; an old key retried by hand never does, one in a loop soon.
    auth_failures_addresses_max: addresses remembered for that, about 300 bytes each.
    signature_seconds_max: how far a signature's time may be from ours, either way: for so long an
    overheard request can be sent again, and by so much clocks may be wrong.

    Boards
    queue_items_max: requests in each lane (reads, writes) of each board, waiting or being answered:
    a fraction of a second's work; `queue_bytes_max` of them may wait.
    call_items_max: questions in one call of a board's actor; call_entries_max: entries in their
    answers, so that a call answers within a tenth of a second or so, in some megabytes.
    commit_events_max: events in one commit of a log, whose sources 16 bits tell apart.
    boards_active_max: boards in memory at once; one idle for `board_idle_seconds` is put away.
    snapshot_events: events from one snapshot to the next.
    archive_cache_bytes_max: of closed windows' standings that a board keeps in memory once asked.
    segment_events_max, segment_bytes_max: what a log's segment holds before it is sealed.
    reserved_free_bytes: free disk below which writes are refused.
    """

    data_directory: Annotated[str, Meta(min_length=1)]
    host: str = "127.0.0.1"
    port: Port = 8080
    hosts_allowed: Annotated[tuple[HostName, ...], Meta(max_length=100)] = ()

    body_bytes_max: Bytes = 4 * MIB
    bodies_bytes_max: Bytes = 64 * MIB
    header_bytes_max: Annotated[int, Meta(ge=KIB, le=MIB)] = 8 * KIB
    headers_max: Annotated[int, Meta(ge=16, le=1000)] = 64
    head_bytes_max: Annotated[int, Meta(ge=KIB, le=MIB)] = 16 * KIB
    header_seconds_max: Seconds = 10.0
    body_seconds_max: Seconds = 10.0
    request_seconds_max: Seconds = 10.0
    answer_seconds_max: Seconds = 30.0
    answers_bytes_max: Annotated[int, Meta(ge=MIB, le=2**40)] = 64 * MIB
    requests_max: Count = 4_096
    min_sequence_wait_seconds: Annotated[float, Meta(ge=0, le=3600)] = 1.0
    keepalive_seconds: Seconds = 75.0
    linger_seconds: Annotated[float, Meta(ge=0, le=60)] = 2.0
    drain_seconds: Annotated[float, Meta(ge=0, le=3600)] = 2.5
    connections_max: Count = 12_000
    gateways: Annotated[int, Meta(ge=1, le=64)] = 1

    key_requests_per_second: Rate = 10_000.0
    key_requests_burst: Count = 10_000
    auth_failures_per_second: Rate = 1.0
    auth_failures_burst: Count = 10
    auth_failures_addresses_max: Count = 4_096
    signature_seconds_max: Annotated[float, Meta(ge=1, le=3600)] = 300.0

    queue_items_max: Count = 1_024
    queue_bytes_max: Bytes = 32 * MIB
    call_items_max: Count = 512
    call_entries_max: Count = 20_000
    commit_events_max: Annotated[int, Meta(ge=1, le=65_535)] = 5_000
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
        self._check_order("header_bytes_max", "head_bytes_max")
        self._check_order("body_bytes_max", "bodies_bytes_max")
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
        if name.startswith(ENVIRONMENT_PREFIX) and name != API_KEY
    }
    fields = {field.name: field for field in msgspec.structs.fields(Config)}
    settings = {}
    for name, text in _known(texts, "the environment").items():
        try:
            # A variable is always text; numbers and lists are read from it here and nowhere else.
            value = text.split(",") if isinstance(fields[name].default, tuple) else text
            settings[name] = msgspec.convert(value, fields[name].type, strict=False)
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
