"""The `ranknode` command: its options, and one line for whatever goes wrong.

Every command imports what it needs when it runs, so that `--help` and typing errors answer at once.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import click

from node.config import API_KEY, ConfigError, load
from persistence.errors import RanknodeError

DEFAULT_URL = "http://127.0.0.1:8080"


class _ConfigRefused(click.ClickException):
    """What a refused configuration ends the command with."""

    exit_code = 2


class _Commands(click.Group):
    """A group whose commands end with one clear line instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            raise _ConfigRefused(str(error)) from error
        except BrokenPipeError:
            raise  # the reader of our output has seen enough; click ends quietly
        except (RanknodeError, OSError) as error:
            raise click.ClickException(str(error) or type(error).__name__) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ranknode", prog_name="ranknode")
def main() -> None:
    """Run and use a ranking server for games."""


class _BoardId(click.ParamType[str]):
    """A board's id, checked before anything is sent or opened."""

    name = "board"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from actors.definition import BOARD_ID  # noqa: PLC0415  (loads the native modules)

        if BOARD_ID.fullmatch(value) is None:
            self.fail(f"{value!r} is no board's id: {BOARD_ID.pattern}", param, ctx)
        return value


class _Duration(click.ParamType[int]):
    """A time as a number and its unit, in seconds."""

    name = "duration"
    units: ClassVar = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):  # the default
            return value
        number, unit = value[:-1], self.units.get(value[-1:])
        if unit is None or not number.isdecimal() or len(number) > 6:
            self.fail(f"{value!r} is no duration, as 90s, 30m, 12h or 7d", param, ctx)
        return int(number) * unit


class _DirectoryPath(click.ParamType[Path]):
    """A directory's path; an empty one, as of an unset variable, is not the current one."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if value == "":
            self.fail("it is empty", param, ctx)
        return Path(value)


_data = click.option(
    "--data", metavar="DIR", required=True, type=_DirectoryPath(), help="The node's data."
)
_url = click.option("--url", default=DEFAULT_URL, show_default=True, help="The node's address.")
_key = click.option(
    "--key",
    envvar=API_KEY,
    metavar="KEY",
    help=f"The API key to call with; other users of the machine do not see one in ${API_KEY}.",
)


@main.command()
@click.option("--data", metavar="DIR", help="Where the boards live; created if missing.")
@click.option("--host", help="The address to listen on; without keys a loopback one. [127.0.0.1]")
@click.option("--port", type=int, help="The port to listen on; 0 takes a free one. [8080]")
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Settings in TOML; RANKNODE_… in the environment and options here override it.",
)
@click.option(
    "--gateways", type=int, help="Processes that share the port, for machines with more cores. [1]"
)
@click.option("--samples", is_flag=True, help="Load two boards of Formula 1 results to try.")
def serve(
    data: str | None,
    host: str | None,
    port: int | None,
    config_file: Path | None,
    gateways: int | None,
    samples: bool,
) -> None:
    """Serve boards over HTTP until told to stop."""
    options = {"data_directory": data, "host": host, "port": port, "gateways": gateways}
    config = load(config_file, os.environ, options)
    from node import runtime  # noqa: PLC0415  (loads Ray: seconds)

    _end(runtime.serve(config, samples))


@main.command(name="import")
@click.argument("board", type=_BoardId())
@click.argument("file")
@_url
@_key
@click.option(
    "--batch",
    "batch_events_max",
    type=click.IntRange(1, 5000),
    default=1000,
    show_default=True,
    help="Events in a request.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["ndjson", "csv"]),
    help="What FILE is; by default its name tells.",
)
@click.option(
    "--backfill",
    is_flag=True,
    help="Put a board that is there into backfill mode first, and live again at the end.",
)
def import_(
    board: str,
    file: str,
    url: str,
    key: str | None,
    batch_events_max: int,
    file_format: str | None,
    backfill: bool,
) -> None:
    """Send the events and rulings of FILE (NDJSON or CSV, - for standard input) to BOARD.

    Each event needs an idempotency key, and a ruling that the board's audit has already is skipped,
    so an import that broke off is simply run again. Rulings need an admin key. A first line
    as `export` writes it creates the board, which takes its history in backfill mode: nothing
    closes before all has arrived. --backfill does the same with a board that is there; while the
    import is broken off, it stays in that mode. Ends with 1 if any line was rejected.
    """
    from node import commands  # noqa: PLC0415  (loads an HTTP client)
    from node.client import Client  # noqa: PLC0415

    chosen = file_format or ("csv" if file.lower().endswith(".csv") else "ndjson")
    options = commands.ImportOptions(chosen, batch_events_max, backfill)
    _end(commands.run_import(Client(url, key=key), board, file, options))


@main.command()
@click.argument("board", type=_BoardId())
@_data
@click.option("--output", metavar="FILE", type=click.Path(path_type=Path), help="[standard output]")
def export(board: str, data: Path, output: Path | None) -> None:
    """Write BOARD's definition, every event and every ruling as NDJSON, beside a running node too.

    A ruling is a line under "moderation": who, why, when, by which API key. Nobody who was erased
    is named.
    """
    from node import commands  # noqa: PLC0415  (loads the storage)

    _end(commands.run_export(data, board, output))


@main.command()
@click.argument("board", type=_BoardId())
@_url
@_key
@click.option("--limit", type=click.IntRange(1, 1000), default=10, show_default=True)
@click.option("--period", help="The window, as `weekly` or `weekly:previous`. [the board's first]")
def top(board: str, url: str, key: str | None, limit: int, period: str | None) -> None:
    """Print the first entries of BOARD."""
    from node import commands  # noqa: PLC0415  (loads an HTTP client)
    from node.client import Client  # noqa: PLC0415

    _end(commands.run_top(Client(url, key=key), board, limit, period))


@main.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--board", help="Only this one.")
@click.option("--repair", is_flag=True, help="Make damaged boards whole; no node may serve DIR.")
@click.option("--yes", is_flag=True, help="Repair without asking.")
def verify(directory: Path, board: str | None, repair: bool, yes: bool) -> None:
    """Check every board in DIR: checksums, hashes, keys, snapshots.

    Changes nothing without --repair, which shows what would be given up and asks before it does
    anything: of a damaged log the longest valid part is kept; the events behind it that are legible
    are written to a file that `import` takes; what is damaged is set aside, not deleted. Ends with
    0 if everything is sound or was repaired, with 1 if anything is damaged.
    """
    from node import commands, repair_commands  # noqa: PLC0415  (loads the storage)

    if repair:
        _end(repair_commands.run_repair(directory, board, lambda ask: yes or click.confirm(ask)))
    if yes:
        raise click.UsageError("--yes goes with --repair")
    _end(commands.run_verify(directory, board))


_public_key = click.option(
    "--public-key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The public half of an Ed25519 pair of your own, in PEM.",
)


@main.group(name="key")
def key_() -> None:
    """Make and end API keys, also beside a running node, which follows at once.

    The first one ends the time in which everyone who reaches the node may do everything.
    """


@key_.command(name="create")
@_data
@click.option(
    "--scope",
    type=click.Choice(["read", "submit", "admin"]),
    required=True,
    help="What it allows: queries; events too; everything.",
)
@click.option(
    "--boards",
    multiple=True,
    default=("*",),
    metavar="PATTERN",
    help="The boards it is for, as 'arena-*'; may be given several times. [all]",
)
@click.option("--source", help="The source of every event sent with it; another one is refused.")
@click.option("--rate", type=float, help="Requests a second; a batch is one. [the node's setting]")
@click.option("--name", default="", help="What you call it.")
@click.option(
    "--sign", is_flag=True, help="Sign requests with a new pair instead of sending a key."
)
@_public_key
def create_key(
    data: Path,
    scope: str,
    boards: tuple[str, ...],
    source: str | None,
    rate: float | None,
    name: str,
    sign: bool,
    public_key: Path | None,
) -> None:
    """Make a key and print it, this once; the node keeps what recognises it."""
    from node import key_commands  # noqa: PLC0415  (loads cryptography)

    options = key_commands.KeyOptions(scope, boards, source, rate, name, sign, public_key)
    _end(key_commands.run_create(data, options))


@key_.command(name="list")
@_data
def list_keys(data: Path) -> None:
    """Show every key, without what is secret."""
    from node import key_commands  # noqa: PLC0415  (loads cryptography)

    _end(key_commands.run_list(data))


@key_.command(name="rotate")
@click.argument("key_id", metavar="ID")
@_data
@click.option(
    "--overlap",
    type=_Duration(),
    default=0,
    metavar="DURATION",
    help="How long the old one stays good, as 12h. [it ends at once]",
)
@_public_key
def rotate_key(key_id: str, data: Path, overlap: int, public_key: Path | None) -> None:
    """Give the key ID a new secret and print it, this once."""
    from node import key_commands  # noqa: PLC0415  (loads cryptography)

    _end(key_commands.run_rotate(data, key_id, overlap, public_key))


@key_.command(name="revoke")
@click.argument("key_id", metavar="ID")
@_data
def revoke_key(key_id: str, data: Path) -> None:
    """End the key ID, or the whole key given in its place, at once and for good."""
    from node import key_commands  # noqa: PLC0415  (loads cryptography)

    _end(key_commands.run_revoke(data, key_id))


@main.command()
@click.argument("target", metavar="TARGET", type=click.Path(path_type=Path))
@_data
def backup(target: Path, data: Path) -> None:
    """Copy all boards and the API keys in DIR to TARGET, also beside a running node.

    What was acknowledged before is in the copy, which is verified; `serve --data TARGET` serves it.
    TARGET must not exist; it appears when it is whole, until then it is TARGET.partial. Ends with 1
    if a board could not be copied; the others are.
    """
    from node import backup_commands  # noqa: PLC0415  (loads the storage)

    _end(backup_commands.run_backup(data, target))


@main.command()
@click.argument("board", type=_BoardId())
@_data
@click.option("--url", help=f"The node to compare with. [{DEFAULT_URL}, if one answers there]")
@_key
def rebuild(board: str, data: Path, url: str | None, key: str | None) -> None:
    """Rebuild BOARD from its log alone, and compare digests with whatever else knows the board.

    That is the running node (an admin key, where it has keys), the newest snapshot, the closing
    records and the archives. Changes nothing. Ends with 1 if any digest differs.
    """
    from node import rebuild_commands  # noqa: PLC0415  (loads the storage, and an HTTP client)

    node = rebuild_commands.Node(url or DEFAULT_URL, key, is_named=url is not None)
    _end(rebuild_commands.run_rebuild(data, board, node))


def _end(exit_code: int) -> None:
    click.get_current_context().exit(exit_code)
