from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from actors import creation, directory, logged_board
from actors.definition import parse_definition
from actors.questions import Submit
from actors.submission import parse_submission
from node import commands, runtime
from node.cli import main
from node.config import Config
from persistence.event_log import LogOptions
from tests.node.fake_boards import KeyedBoards, serving

NOW_US = 1_764_500_000_000_000
OPTIONS = logged_board.BoardOptions(
    LogOptions(segment_events_max=1000, segment_bytes_max=1 << 24, reserved_free_bytes=0),
    snapshot_events=1000,
)
EVENTS = [
    {
        "member": "ada",
        "value": 12.5,
        "idempotency_key": "k/1",
        "occurred_at": "2025-11-30T10:00:00.5Z",
        "source": "s",
    },
    {"member": "名前", "value": -3, "idempotency_key": "k2", "occurred_at": "2025-11-30T10:00:00Z"},
]


def invoke(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, list(arguments), input=stdin)


def against(boards: KeyedBoards, *arguments: str, stdin: bytes | None = None) -> Result:
    """Run a command against a node with these boards."""

    async def run() -> Result:
        async with serving(boards) as gateway:
            return await asyncio.to_thread(invoke, *arguments, "--url", gateway.url, stdin=stdin)

    return asyncio.run(run())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Make a data directory with the board "b" and two events, and keep it open as a node does."""
    folder = tmp_path / "boards"
    folder.mkdir()
    definition = parse_definition(
        b'{"aggregation":"sum","score":[{"name":"points","direction":"desc","decimals":1}]}', False
    )
    creation.create_board(folder / "b", "b", definition, NOW_US, OPTIONS)
    return tmp_path


def submit(board: logged_board.LoggedBoard, events: list[dict[str, Any]]) -> None:
    body = json.dumps({"events": events}).encode()
    plan = board.plan([parse_submission(Submit(False, NOW_US, body, False))], NOW_US)
    assert plan.record is not None
    board.commit([plan.record])
    board.settle(plan)


def exported(output: bytes | str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    header, *events, end = [json.loads(line) for line in output.splitlines()]
    assert end == {"end": len(events)}
    return header, events


def test_an_export_holds_every_event_while_the_board_is_in_use(data: Path) -> None:
    """`export` works beside the process that writes the board, and loses nothing."""
    board = logged_board.LoggedBoard.open(data / "boards" / "b", OPTIONS)
    try:
        submit(board, EVENTS)
        script = "from node.cli import main; main()"
        command = [sys.executable, "-c", script, "export", "b", "--data", str(data)]
        done = subprocess.run(command, capture_output=True, check=False)
    finally:
        board.close()
    assert done.returncode == 0, done.stderr
    header, events = exported(done.stdout)
    assert header["board"] == "b"
    assert header["definition"]["score"] == [{"name": "points", "direction": "desc", "decimals": 1}]
    assert events == EVENTS


def test_an_export_imports_into_another_node_as_it_was(data: Path, tmp_path: Path) -> None:
    """What `export` writes to a file, `import` sends event by event, and the board with it."""
    board = logged_board.LoggedBoard.open(data / "boards" / "b", OPTIONS)
    submit(board, EVENTS)
    board.close()
    file = tmp_path / "b.ndjson"
    assert invoke("export", "b", "--data", str(data), "--output", str(file)).exit_code == 0
    assert not list(tmp_path.glob("*.partial"))
    boards = KeyedBoards()
    result = against(boards, "import", "copy", str(file))
    assert result.exit_code == 0, result.output
    assert "2 applied, 0 duplicates, 0 rejected" in result.stdout
    definition = parse_definition(boards.definitions["copy"], False)
    assert (definition.aggregation, definition.mode) == ("sum", "backfill")
    assert boards.changes == [b'{"mode":"live"}']
    assert [event["value"] for event in boards.events["copy"].values()] == ["12.5", "-3"]


def test_an_export_of_no_board_leaves_no_file(data: Path, tmp_path: Path) -> None:
    """A board that is not there is one line on stderr, and no file appears."""
    file = tmp_path / "x.ndjson"
    result = invoke("export", "x", "--data", str(data), "--output", str(file))
    assert result.exit_code == 1
    assert result.stderr == f"Error: there is no board 'x' in {data}\n"
    assert not file.exists()


def test_verify_finds_a_sound_board_sound(data: Path) -> None:
    """`verify` ends with 0 where nothing is wrong."""
    result = invoke("verify", str(data))
    assert result.exit_code == 0, result.output
    assert result.stdout == "b: sound\n"


def test_verify_finds_damage(data: Path) -> None:
    """`verify` names what is damaged and ends with 1."""
    board = logged_board.LoggedBoard.open(data / "boards" / "b", OPTIONS)
    submit(board, EVENTS)
    board.close()
    damaged = 0
    for path in (data / "boards" / "b" / "log").rglob("data.mdb"):
        content = bytearray(path.read_bytes())
        place = content.find(b"ada")
        while place >= 0:
            content[place] ^= 1
            damaged += 1
            place = content.find(b"ada", place)
        path.write_bytes(content)
    assert damaged
    result = invoke("verify", str(data), "--board", "b")
    assert result.exit_code == 1, result.output
    first, *findings = result.stdout.splitlines()
    assert first == "b: damaged"
    assert all(re.match(r"  \S+: ", finding) for finding in findings)
    assert "sequence 3" in result.stdout


def test_verify_of_no_data_directory_is_one_line(tmp_path: Path) -> None:
    """A folder that is no data directory is said to be none."""
    result = invoke("verify", str(tmp_path))
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1


def test_commands_and_boards_agree_on_the_folder() -> None:
    """The commands look for boards where the node puts them."""
    assert commands.BOARDS == directory.BOARDS


def test_import_reads_standard_input_and_ends_with_1_on_a_rejection() -> None:
    """Rejected lines are shown with their numbers, and the exit code tells of them."""
    boards = KeyedBoards()
    boards.has("b")
    text = b"member,value,idempotency_key\na,1,k1\na,9000000,k2\na,x,k3\n"
    result = against(boards, "import", "b", "-", "--format", "csv", stdin=text)
    assert result.exit_code == 1, result.output
    assert result.stdout == "1 applied, 0 duplicates, 2 rejected\n"
    assert "line 3: value_not_allowed: too much" in result.stderr
    assert "line 4: value: 'x' is not a number" in result.stderr


def test_import_tells_csv_by_its_name(tmp_path: Path) -> None:
    """A file that ends in .csv is read as CSV."""
    boards = KeyedBoards()
    boards.has("b")
    file = tmp_path / "events.CSV"
    file.write_text("member,value,idempotency_key\na,1,k1\n")
    assert against(boards, "import", "b", str(file)).exit_code == 0
    assert boards.events["b"]["k1"]["value"] == "1"


def test_import_backfills_a_board_that_is_there() -> None:
    """`import --backfill` brings the board into backfill mode and back."""
    boards = KeyedBoards()
    boards.has("b")
    text = b"member,value,idempotency_key\na,1,k1\n"
    arguments = ("import", "b", "-", "--format", "csv", "--backfill")
    result = against(boards, *arguments, stdin=text)
    assert result.exit_code == 0, result.output
    assert result.stdout == "1 applied, 0 duplicates, 0 rejected\n"
    assert boards.changes == [b'{"mode":"backfill"}', b'{"mode":"live"}']


@pytest.mark.parametrize("backfill", [True, False])
def test_an_interrupted_import_says_how_to_go_on(backfill: bool, tmp_path: Path) -> None:
    """Ctrl-C names the mode that the board is left in, and says that running again resumes."""
    boards = KeyedBoards()
    boards.has("b")
    file = tmp_path / "events.ndjson"
    lines = [{"member": "a", "value": 1, "idempotency_key": f"k{n}"} for n in range(3)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    # Tests that run in the background are started with SIGINT ignored, and their children too.
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from node.cli import main; main()"
    )
    options = ["--batch", "1", *(["--backfill"] if backfill else [])]

    async def run() -> tuple[int | None, str]:
        held, released = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            held.set()
            await released.wait()

        boards.behave = lambda: hold() if len(boards.events["b"]) == 2 else None
        async with serving(boards) as gateway:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", script, "import", "b", str(file), "--url", gateway.url,
                *options, stderr=subprocess.PIPE,
            )  # fmt: skip
            await held.wait()
            process.send_signal(signal.SIGINT)
            _, errors = await process.communicate()
            released.set()
        return process.returncode, errors.decode()

    exit_code, errors = asyncio.run(run())
    assert exit_code == 1
    assert "Traceback" not in errors
    assert "Run the import again to resume" in errors
    assert ("b is left in backfill mode" in errors) == backfill
    assert boards.current["b"]["mode"] == ("backfill" if backfill else "live")


@pytest.mark.parametrize(
    ("text", "message"),
    [("member,value\n", "no column idempotency_key"), ("member,value,idempotency_key\n", "")],
)
def test_import_refuses_a_csv_without_keys(text: str, message: str, tmp_path: Path) -> None:
    """Without keys an import could not be run again, so a file without them is refused."""
    file = tmp_path / "events.csv"
    file.write_text(text)
    result = against(KeyedBoards(), "import", "b", str(file))
    assert (result.exit_code == 1) is bool(message)
    assert message in result.stderr


def test_errors_are_one_line(tmp_path: Path) -> None:
    """A missing file and a board that nobody made are one clear line, without a traceback."""
    missing = against(KeyedBoards(), "import", "b", str(tmp_path / "none"))
    file = tmp_path / "events.ndjson"
    file.write_text('{"member":"a","value":1,"idempotency_key":"k"}\n')
    unknown = against(KeyedBoards(), "import", "b", str(file))
    for result in (missing, unknown):
        assert result.exit_code == 1
        assert result.stderr.strip().splitlines()[-1].startswith("Error: ")
        assert "Traceback" not in result.output
    assert "board_not_found" in unknown.stderr


def test_top_prints_exact_scores() -> None:
    """`top` shows what the node sent, markup in names left alone."""
    boards = KeyedBoards()
    result = against(boards, "top", "b", "--limit", "3")
    assert result.exit_code == 0, result.output
    assert "a[b]" in result.stdout
    assert "1.5" in result.stdout
    assert (boards.calls[0][2].limit, boards.calls[0][2].period) == (3, None)


def test_top_asks_for_a_window() -> None:
    """`top --period` passes the window on as it is, and names it."""
    boards = KeyedBoards()
    result = against(boards, "top", "b", "--period", "weekly:previous")
    assert result.exit_code == 0, result.output
    assert boards.calls[0][2].period == "weekly:previous"
    assert "b weekly:previous" in result.stdout


def test_serve_starts_the_node_it_was_told_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`serve` hands its whole configuration on and ends with the node's exit code."""
    served: list[tuple[Config, bool]] = []

    def serve(config: Config, samples: bool) -> int:
        served.append((config, samples))
        return 75

    monkeypatch.setattr(runtime, "serve", serve)
    file = tmp_path / "ranknode.toml"
    file.write_text("boards_active_max = 3\nport = 1\n")
    options = ["--data", "d", "--port", "0", "--config", str(file), "--samples"]
    result = invoke("serve", *options)
    assert result.exit_code == 75, result.output
    assert served == [(Config(data_directory="d", port=0, boards_active_max=3), True)]


def test_help_loads_neither_ray_nor_an_http_client() -> None:
    """`ranknode --help` answers without loading what only some commands need."""
    script = (
        "import sys; from node.cli import main; main(['--help'], standalone_mode=False);"
        "sys.exit(bool({'ray', 'aiohttp', 'lmdb', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"import" in done.stdout
