"""The `ranknode` command: its options, and one line for whatever goes wrong.

Every command imports what it needs when it runs, so that `--help` and typing errors answer at once.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from node.config import ConfigError, load
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


_url = click.option("--url", default=DEFAULT_URL, show_default=True, help="The node's address.")


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
@click.option("--samples", is_flag=True, help="Load two boards of Formula 1 results to try.")
def serve(
    data: str | None, host: str | None, port: int | None, config_file: Path | None, samples: bool
) -> None:
    """Serve boards over HTTP until told to stop."""
    options = {"data_directory": data, "host": host, "port": port}
    config = load(config_file, os.environ, options)
    from node import runtime  # noqa: PLC0415  (loads Ray: seconds)

    _end(runtime.serve(config, samples))


@main.command(name="import")
@click.argument("board", type=_BoardId())
@click.argument("file")
@_url
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
    batch_events_max: int,
    file_format: str | None,
    backfill: bool,
) -> None:
    """Send the events of FILE (NDJSON or CSV, - for standard input) to BOARD.

    Each needs an idempotency key, so an import that broke off is simply run again. A first line
    as `export` writes it creates the board, which takes its history in backfill mode: nothing
    closes before all has arrived. --backfill does the same with a board that is there; while the
    import is broken off, it stays in that mode. Ends with 1 if any event was rejected.
    """
    from node import commands  # noqa: PLC0415  (loads an HTTP client)

    chosen = file_format or ("csv" if file.lower().endswith(".csv") else "ndjson")
    options = commands.ImportOptions(chosen, batch_events_max, backfill)
    _end(commands.run_import(url, board, file, options))


@main.command()
@click.argument("board", type=_BoardId())
@click.option(
    "--data", metavar="DIR", required=True, type=click.Path(path_type=Path), help="The node's data."
)
@click.option("--output", metavar="FILE", type=click.Path(path_type=Path), help="[standard output]")
def export(board: str, data: Path, output: Path | None) -> None:
    """Write BOARD's definition and every event as NDJSON, also beside a running node."""
    from node import commands  # noqa: PLC0415  (loads the storage)

    _end(commands.run_export(data, board, output))


@main.command()
@click.argument("board", type=_BoardId())
@_url
@click.option("--limit", type=click.IntRange(1, 1000), default=10, show_default=True)
@click.option("--period", help="The window, as `weekly` or `weekly:previous`. [the board's first]")
def top(board: str, url: str, limit: int, period: str | None) -> None:
    """Print the first entries of BOARD."""
    from node import commands  # noqa: PLC0415  (loads an HTTP client)

    _end(commands.run_top(url, board, limit, period))


@main.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--board", help="Only this one.")
def verify(directory: Path, board: str | None) -> None:
    """Check every board in DIR: checksums, hashes, keys, snapshots.

    Changes nothing. Ends with 1 if anything is wrong.
    """
    from node import commands  # noqa: PLC0415  (loads the storage)

    _end(commands.run_verify(directory, board))


def _end(exit_code: int) -> None:
    click.get_current_context().exit(exit_code)
