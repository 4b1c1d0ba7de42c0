from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as generate_ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from node import key_commands
from node.cli import main
from node.config import API_KEY, load
from node.key_file import FILE, KeyFile, read_keys
from node.keys import CREDENTIALS_MAX, Scope, opens, read_bearer
from tests.node.fake_boards import KeyedBoards, serving
from tests.node.key_samples import add_key

NOW_US = 1_800_000_000_000_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the commands see a time that stands still; its one entry may be changed."""
    now_us = [NOW_US]
    monkeypatch.setattr(key_commands, "_now_us", lambda: now_us[0])
    return now_us


def invoke(data: Path, *arguments: str, expected: int = 0, **environment: str) -> Result:
    command, *rest = arguments
    result = CliRunner().invoke(main, ["key", command, *rest, "--data", str(data)], env=environment)
    assert result.exit_code == expected, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def create(data: Path, *options: str) -> str:
    """Make a key by the command, and return what it printed for scripts."""
    return invoke(data, "create", *options).stdout


def key_id(printed: str) -> str:
    presented = read_bearer(printed.strip())
    if presented is not None:
        return presented.id
    return printed.splitlines()[0].removeprefix("keyid: ")


def is_good(data: Path, printed: str, now_us: int = NOW_US) -> bool:
    presented = read_bearer(printed.strip())
    assert presented is not None
    return opens(read_keys(data)[presented.id], presented.secret, now_us)


def test_a_key_is_printed_once_and_kept_as_a_hash(data: Path) -> None:
    """`key create` makes the directory, prints the key alone, and keeps nothing that opens it."""
    result = invoke(data, "create", "--scope", "submit")
    assert result.stdout.count("\n") == 1
    presented = read_bearer(result.stdout.strip())
    assert presented is not None
    assert is_good(data, result.stdout)
    assert presented.secret not in result.stderr
    assert presented.secret not in (data / FILE).read_text()
    assert presented.secret not in invoke(data, "list").output


def test_a_key_is_what_it_was_asked_to_be(data: Path) -> None:
    """Every option of `key create` is a field of the key, and `key list` shows it."""
    printed = create(
        data, "--scope", "submit", "--boards", "arena-*", "--boards", "cup", "--source", "m[b]3",
        "--rate", "2.5", "--name", "the [red] servers",
    )  # fmt: skip
    (key,) = read_keys(data).values()
    assert key.id == key_id(printed)
    assert (key.scope, key.kind, key.boards) == (Scope.SUBMIT, "bearer", ("arena-*", "cup"))
    assert (key.source, key.requests_per_second, key.name) == ("m[b]3", 2.5, "the [red] servers")
    assert key.created_at_us == NOW_US
    shown = invoke(data, "list", COLUMNS="200").stdout
    for text in (key.id, "the [red] servers", "submit", "bearer", "arena-* cup", "m[b]3", "2.5/s"):
        assert text in shown


def test_a_key_is_for_all_boards_unless_it_is_said(data: Path) -> None:
    """Without patterns a key is for every board, without a rate it has the node's."""
    create(data, "--scope", "admin")
    (key,) = read_keys(data).values()
    assert (key.boards, key.requests_per_second, key.source) == (("*",), None, None)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--scope", "root"], "scope"),
        ([], "scope"),
        (["--scope", "read", "--boards", "A"], "boards"),
        (["--scope", "read", *(["--boards", "a"] * 33)], "boards"),
        (["--scope", "read", "--source", "s"], "source"),
        (["--scope", "submit", "--source", "x" * 65], "source"),
        (["--scope", "read", "--name", "a\tb"], "name"),
        (["--scope", "read", "--boards", "["], "boards"),
        (["--scope", "read", "--boards", "-*"], "boards"),
        (["--scope", "read", "--rate", "0"], "requests_per_second"),
        (["--scope", "read", "--rate", "1e-310"], "requests_per_second"),
        (["--scope", "read", "--rate", "x"], "rate"),
        (["--scope", "admin", "--sign"], "cannot sign"),
        (["--scope", "read", "--sign", "--public-key", "x"], "sign"),
        (["--scope", "read", "--public-key", "/nonexistent"], "/nonexistent"),
    ],
)
def test_a_key_that_makes_no_sense_is_refused(options: list[str], named: str, data: Path) -> None:
    """What is out of bounds is one line that names the field, and no key is made."""
    result = CliRunner().invoke(main, ["key", "create", "--data", str(data), *options])
    assert result.exit_code != 0
    assert result.stdout == ""
    assert named in result.stderr
    assert "Traceback" not in result.stderr
    assert not (data / FILE).exists()


def test_a_signing_keys_private_half_is_printed_once(data: Path) -> None:
    """`key create --sign` prints the id and a PEM as one text, and keeps the public half alone."""
    result = invoke(data, "create", "--scope", "submit", "--sign")
    private_key = load_pem_private_key(result.stdout.encode(), None)
    assert isinstance(private_key, Ed25519PrivateKey)
    (key,) = read_keys(data).values()
    assert (key.id, key.kind) == (key_id(result.stdout), "ed25519")
    assert [c.value for c in key.credentials] == [private_key.public_key().public_bytes_raw()]
    for kept in ((data / FILE).read_bytes(), result.stderr.encode()):
        assert private_key.private_bytes_raw() not in kept
        assert result.stdout.splitlines()[2].encode() not in kept


def public_pem(private_key: Any) -> bytes:
    pem: bytes = private_key.public_key().public_bytes(
        Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
    )
    return pem


def test_a_pair_of_ones_own_can_be_used(data: Path, tmp_path: Path) -> None:
    """`key create --public-key` takes the public half in PEM, and prints nothing secret."""
    private_key = Ed25519PrivateKey.generate()
    file = tmp_path / "public.pem"
    file.write_bytes(public_pem(private_key))
    printed = create(data, "--scope", "read", "--public-key", str(file))
    (key,) = read_keys(data).values()
    assert printed == f"keyid: {key.id}\n"
    assert [c.value for c in key.credentials] == [private_key.public_key().public_bytes_raw()]


def test_what_is_no_public_key_is_refused(data: Path, tmp_path: Path) -> None:
    """Another kind of key, a private one, and a file that is none are refused by name."""
    private_pem = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    file = tmp_path / "key.pem"
    for content in (public_pem(generate_ec(SECP256R1())), private_pem, b"", b"x" * 100_000):
        file.write_bytes(content)
        options = ["--scope", "read", "--public-key", str(file)]
        result = invoke(data, "create", *options, expected=1)
        assert result.stderr.startswith("Error: public_key: ")
        assert content == b"" or content.splitlines()[-1] not in result.stderr.encode()


def test_a_rotation_ends_the_old_secret(data: Path) -> None:
    """`key rotate` gives a new secret under the same id; the old one is no good any more."""
    old = create(data, "--scope", "submit", "--boards", "a-*", "--name", "n")
    before = read_keys(data)[key_id(old)]
    new = invoke(data, "rotate", key_id(old)).stdout
    assert key_id(new) == key_id(old)
    assert (is_good(data, old), is_good(data, new)) == (False, True)
    after = read_keys(data)[key_id(new)]
    assert (after.boards, after.name, after.scope) == (before.boards, before.name, before.scope)


def test_a_rotation_can_let_the_old_secret_live_on(data: Path) -> None:
    """With an overlap both are good until it ends, to the microsecond; `key list` says when."""
    old = create(data, "--scope", "submit")
    result = invoke(data, "rotate", key_id(old), "--overlap", "12h")
    ends_us = NOW_US + 12 * 3600 * 1_000_000
    assert is_good(data, old, ends_us - 1)
    assert not is_good(data, old, ends_us)
    assert is_good(data, result.stdout, ends_us + 1)
    assert "2027-01-15T20:00:00Z" in result.stderr
    assert "2027-01-15T20:00:00Z" in invoke(data, "list", COLUMNS="200").stdout


def test_a_later_rotation_never_lengthens_a_life(data: Path, clock: list[int]) -> None:
    """What was to end sooner still does; without an overlap all former secrets end at once."""
    first = create(data, "--scope", "submit")
    second = invoke(data, "rotate", key_id(first), "--overlap", "60s").stdout
    third = invoke(data, "rotate", key_id(first), "--overlap", "1d").stdout
    soon, later = NOW_US + 61_000_000, NOW_US + 3600_000_000
    assert [is_good(data, key, NOW_US) for key in (first, second, third)] == [True] * 3
    assert [is_good(data, key, soon) for key in (first, second, third)] == [False, True, True]
    clock[0] = later
    fourth = invoke(data, "rotate", key_id(first)).stdout
    goods = [is_good(data, key, later) for key in (first, second, third, fourth)]
    assert goods == [False, False, False, True]


def test_secrets_that_live_on_are_bounded(data: Path, clock: list[int]) -> None:
    """Only so many secrets of a key are good at once; what has expired makes room."""
    key = create(data, "--scope", "submit")
    for _ in range(CREDENTIALS_MAX - 1):
        invoke(data, "rotate", key_id(key), "--overlap", "1h")
    result = invoke(data, "rotate", key_id(key), "--overlap", "1h", expected=1)
    assert "overlap" in result.stderr
    clock[0] += 3600_000_000
    invoke(data, "rotate", key_id(key), "--overlap", "1h")


def test_a_signing_key_is_rotated_too(data: Path, tmp_path: Path) -> None:
    """A rotation makes a new pair, or takes the public half of one's own."""
    made = create(data, "--scope", "submit", "--sign")
    rotated = invoke(data, "rotate", key_id(made), "--overlap", "1m").stdout
    own, file = Ed25519PrivateKey.generate(), tmp_path / "public.pem"
    file.write_bytes(public_pem(own))
    options = ("--overlap", "1m", "--public-key", str(file))
    assert "BEGIN" not in invoke(data, "rotate", key_id(made), *options).stdout
    halves = [load_pem_private_key(text.encode(), None) for text in (made, rotated)]
    (key,) = read_keys(data).values()
    assert [c.value for c in key.credentials] == [
        half.public_key().public_bytes_raw()  # type: ignore[union-attr]
        for half in (own, halves[1], halves[0])
    ]
    bearer = create(data, "--scope", "submit")
    result = invoke(data, "rotate", key_id(bearer), "--public-key", str(file), expected=1)
    assert "does not sign" in result.stderr


def test_a_revoked_key_is_over(data: Path) -> None:
    """`key revoke` leaves nothing that opens it, and it stays in the list; twice is once."""
    key = create(data, "--scope", "admin")
    other = create(data, "--scope", "admin")
    for _ in range(2):
        invoke(data, "revoke", key_id(key))
    assert (is_good(data, key), is_good(data, other)) == (False, True)
    revoked = read_keys(data)[key_id(key)]
    assert (revoked.credentials, revoked.revoked_at_us) == ((), NOW_US)
    assert "revoked" in invoke(data, "list", COLUMNS="200").stdout
    result = invoke(data, "rotate", key_id(key), expected=1)
    assert "was revoked" in result.stderr


def test_a_key_that_leaked_is_revoked_as_it_was_found(data: Path) -> None:
    """The whole key is taken for its id, and nowhere repeated."""
    key = create(data, "--scope", "admin").strip()
    result = invoke(data, "revoke", key)
    assert not is_good(data, key)
    assert key[-64:] not in result.output
    unknown = "rnk_" + "0" * 12 + key[16:]
    for command in ("revoke", "rotate"):
        result = invoke(data, command, unknown, expected=1)
        assert "no such key" in result.stderr
        assert key[-64:] not in result.output


def test_as_many_keys_as_there_may_be(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound a new key takes the place of the one revoked first, or is refused."""
    monkeypatch.setattr(key_commands, "KEYS_MAX", 3)
    keys = [create(data, "--scope", "read") for _ in range(3)]
    result = invoke(data, "create", "--scope", "read", expected=1)
    assert "revoke one" in result.stderr
    assert result.stdout == ""
    invoke(data, "revoke", key_id(keys[1]))
    new = create(data, "--scope", "read")
    assert set(read_keys(data)) == {key_id(key) for key in (keys[0], keys[2], new)}


@pytest.mark.parametrize("command", [["list"], ["rotate", "0" * 12], ["revoke", "0" * 12]])
def test_without_keys_there_is_nothing_to_change(command: list[str], tmp_path: Path) -> None:
    """In a directory without keys a list is empty, and a key is said not to be there."""
    result = invoke(tmp_path, *command, expected=0 if command == ["list"] else 1)
    assert command == ["list"] or "no such key" in result.stderr


@pytest.mark.parametrize("command", [["list"], ["rotate", "0" * 12], ["revoke", "0" * 12]])
def test_no_directory_is_an_error(command: list[str], tmp_path: Path) -> None:
    """A directory that is not there is one line, and only `key create` makes it."""
    result = invoke(tmp_path / "none", *command, expected=1)
    assert "is no directory" in result.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "command", [["create", "--scope", "read"], ["list"], ["rotate", "x"], ["revoke", "x"]]
)
def test_an_empty_directory_is_not_the_current_one(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty `--data` is refused, and nothing is made where the command was run."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["key", *command, "--data", ""])
    assert result.exit_code == 2
    assert "--data" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_new_key_says_where_it_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`key create` names the file in full, so that a directory made by mistake is seen."""
    monkeypatch.chdir(tmp_path)
    result = invoke(Path("tpyo"), "create", "--scope", "read", COLUMNS="400")
    assert f"in {tmp_path.resolve() / 'tpyo' / FILE}:" in result.stderr


@pytest.mark.parametrize("overlap", ["12", "h", "-1h", "1w", "1.5h", "", "9999999d", "1 h"])
def test_a_duration_has_a_number_and_a_unit(overlap: str, data: Path) -> None:
    """What is no duration is refused before anything changes."""
    key = create(data, "--scope", "read")
    result = invoke(data, "rotate", key_id(key), "--overlap", overlap, expected=2)
    assert "overlap" in result.stderr
    assert is_good(data, key)


def test_a_running_node_sees_what_a_command_did(data: Path, clock: list[int]) -> None:
    """Created, rotated, revoked: who watches the file knows at the next look."""
    watched = KeyFile(data)
    assert watched.current() is None
    key = create(data, "--scope", "read")
    seen = watched.current()
    assert seen is not None
    first = seen[key_id(key)].credentials
    invoke(data, "rotate", key_id(key))
    assert (watched.current() or {})[key_id(key)].credentials != first
    invoke(data, "revoke", key_id(key))
    assert (watched.current() or {})[key_id(key)].credentials == ()


# The commands that call a node


@pytest.mark.parametrize("key", ["rnk_secret\n", "rnk_\r\nX: secret", "secret key", "rnk_ß-secret"])
@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_key_that_no_header_holds_is_one_line(key: str, by: str) -> None:
    """A key with a line's end, a space or no ASCII is refused unsent, and not repeated."""
    options = ["--key", key] if by == "option" else []
    result = CliRunner().invoke(main, ["top", "b", *options], env={API_KEY: key})
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("Error: the key (--key or RANKNODE_KEY)")
    assert result.stderr.count("\n") == 1
    assert "secret" not in result.output


def against(data: Path, *arguments: str, **environment: str | None) -> Result:
    """Run a command against a node with the keys in `data` and a board b."""
    boards = KeyedBoards()
    boards.has("b")

    async def run() -> Result:
        async with serving(boards, data) as gateway:
            return await asyncio.to_thread(
                CliRunner().invoke, main, [*arguments, "--url", gateway.url], env=environment
            )

    return asyncio.run(run())


def test_the_commands_take_a_key(tmp_path: Path) -> None:
    """`top` and `import` call with --key or the environment's; without one they say what to do."""
    key = add_key(tmp_path, "submit")
    file = tmp_path / "events.ndjson"
    file.write_text(json.dumps({"member": "a", "value": 1, "idempotency_key": "k"}) + "\n")
    for command in (["top", "b"], ["import", "b", str(file)]):
        without = against(tmp_path, *command, **{API_KEY: None})
        assert without.exit_code == 1
        assert "unauthenticated" in without.stderr
        assert API_KEY in without.stderr
        assert against(tmp_path, *command, "--key", key, **{API_KEY: None}).exit_code == 0
        by_environment = against(tmp_path, *command, **{API_KEY: key})
        assert by_environment.exit_code == 0, by_environment.output
        assert key[-64:] not in by_environment.output
        assert against(tmp_path, *command, "--key", "rnk_x", **{API_KEY: key}).exit_code == 1


def test_the_help_shows_no_key(tmp_path: Path) -> None:
    """A key in the environment is not shown as a default."""
    key = add_key(tmp_path, "read")
    for command in ("top", "import"):
        shown = CliRunner().invoke(main, [command, "--help"], env={API_KEY: key}).output
        assert API_KEY in shown
        assert key not in shown


def test_a_node_does_not_take_the_commands_key_for_a_setting() -> None:
    """The variable that commands read is none of the node's, which refuses others it knows not."""
    environment = {API_KEY: "rnk_x", "RANKNODE_PORT": "1"}
    assert load(None, environment, {"data_directory": "d"}).port == 1


def test_the_clock_is_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key's times are microseconds since the epoch."""
    monkeypatch.undo()
    assert abs(key_commands._now_us() - time.time() * 1e6) < 60e6
