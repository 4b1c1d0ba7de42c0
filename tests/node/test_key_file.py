"""The file of keys: what it holds, who may change it, and what is no file of keys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from node import key_file
from node.key_file import FILE, KeyFile, KeysError, KeysUnreadableError, changing_keys, read_keys
from node.keys import (
    CREDENTIALS_MAX,
    PATTERNS_MAX,
    Credential,
)
from persistence.files import TEMPORARY_SUFFIX
from tests.node.fake_boards import NOW_US
from tests.node.key_samples import add_key
from tests.node.test_keys import SECRET, key


def test_the_file_is_its_owners_alone_and_holds_no_secret(tmp_path: Path) -> None:
    """keys.json has mode 0600 whatever the umask, a version, and hashes in the place of secrets."""
    before = os.umask(0)
    try:
        text = add_key(tmp_path, "admin", SECRET)
    finally:
        os.umask(before)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    content = (tmp_path / FILE).read_text()
    assert json.loads(content)["version"] == 1
    assert SECRET not in content
    assert text.split("_")[1] in content
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_keys_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Every field survives the file."""
    full = key(
        name='n "ü"', boards=("a-*", "b?"), source="s", requests_per_second=2.5,
        credentials=(Credential(b"\0" * 32), Credential(b"\xff" * 32, NOW_US)),
    )  # fmt: skip
    gone = key(id="ffffffffffff", credentials=(), revoked_at_us=NOW_US)
    with changing_keys(tmp_path) as keys:
        keys |= {full.id: full, gone.id: gone}
    assert read_keys(tmp_path) == {full.id: full, gone.id: gone}


def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    """When making a change raises, the file stays as it was."""
    add_key(tmp_path, "read")
    before = (tmp_path / FILE).read_bytes()

    def change() -> None:
        with changing_keys(tmp_path) as keys:
            keys.clear()
            raise KeyError

    with pytest.raises(KeyError):
        change()
    assert (tmp_path / FILE).read_bytes() == before


def test_commands_at_once_lose_no_key(tmp_path: Path) -> None:
    """Commands in several processes wait for each other: every key that was made is there."""
    script = (
        "import sys; from pathlib import Path; from tests.node.key_samples import add_key;"
        "[add_key(Path(sys.argv[1]), 'read') for _ in range(10)]"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", script, str(tmp_path)]
    processes = [subprocess.Popen(command, cwd=root) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert len(read_keys(tmp_path)) == 40


def test_a_command_that_waits_too_long_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for another command is bounded."""
    monkeypatch.setattr(key_file, "LOCK_SECONDS_MAX", 0.1)
    with changing_keys(tmp_path), pytest.raises(KeysError, match="another command"):
        add_key(tmp_path, "read")


def test_keys_that_the_node_could_not_read_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command run as another user than the node's is refused: the keys would lock all out."""
    (tmp_path / "node.lock").touch()
    add_key(tmp_path, "read")
    monkeypatch.setattr(os, "geteuid", lambda: (tmp_path / "node.lock").stat().st_uid + 1)
    with pytest.raises(KeysError, match="runs as the user"):
        add_key(tmp_path, "read")
    assert len(read_keys(tmp_path)) == 1


DAMAGED = {
    "empty": b"",
    "cut": b'{"version":1,"keys":[{"id":"00',
    "no version": b'{"keys":[]}',
    "version 0": b'{"version":0,"keys":[]}',
    "a text as version": b'{"version":"1","keys":[]}',
    "not UTF-8": b'{"version":1,"keys":[],"\xff":1}',
    "unknown field": b'{"version":1,"keys":[],"more":1}',
    "nested": b"[" * 100_000,
    "a key without fields": b'{"version":1,"keys":[{}]}',
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_refused(content: bytes, tmp_path: Path) -> None:
    """What is no whole file of keys is refused by commands, naming the file, and by the node."""
    add_key(tmp_path, "read")
    watched = KeyFile(tmp_path)
    assert watched.current()
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(KeysError, match=FILE):
        read_keys(tmp_path)
    with pytest.raises(KeysError), changing_keys(tmp_path):
        pass
    with pytest.raises(KeysUnreadableError):
        watched.current()
    with pytest.raises(KeysUnreadableError):
        KeyFile(tmp_path).current()
    assert (tmp_path / FILE).read_bytes() == content


@pytest.mark.parametrize(
    "change",
    [
        {"scope": "open"}, {"scope": "root"}, {"kind": "hmac"}, {"boards": []}, {"id": "x"},
        {"credentials": [{"value": "eHg="}]}, {"credentials": [{"value": "?"}]},
        {"kind": "ed25519", "scope": "admin"}, {"extra": 1}, {"requests_per_second": -1},
    ],
)  # fmt: skip
def test_a_damaged_key_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    """One key that makes no sense makes the whole file unreadable, rather than being left out."""
    add_key(tmp_path, "read")
    file = json.loads((tmp_path / FILE).read_text())
    file["keys"][0] |= change
    (tmp_path / FILE).write_text(json.dumps(file))
    with pytest.raises(KeysUnreadableError):
        KeyFile(tmp_path).current()


def lead_nowhere(path: Path) -> None:
    path.symlink_to(path.with_name("nothing"))


@pytest.mark.parametrize("make", [lead_nowhere, os.mkfifo, Path.mkdir])
def test_what_is_no_file_of_keys_is_not_taken_for_none(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    """A link that leads nowhere, a pipe, a directory: nobody is let in, and nothing waits."""
    make(tmp_path / FILE)
    with pytest.raises(KeysUnreadableError):
        KeyFile(tmp_path).current()
    with pytest.raises((KeysError, IsADirectoryError)):
        read_keys(tmp_path)
    with pytest.raises((KeysError, IsADirectoryError)):
        add_key(tmp_path, "read")
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_keys_are_not_written_through_what_was_left_behind(tmp_path: Path) -> None:
    """A file of the temporary name is not followed, and its mode not taken over."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"kept")
    data = tmp_path / "data"
    data.mkdir()
    temporary = data / f"{FILE}{TEMPORARY_SUFFIX}"
    temporary.symlink_to(elsewhere)
    add_key(data, "read")
    assert elsewhere.read_bytes() == b"kept"
    temporary.touch(0o666)
    temporary.chmod(0o666)
    add_key(data, "read")
    assert (data / FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in data.iterdir()] == [FILE]
    assert len(read_keys(data)) == 2


def test_a_key_that_is_there_twice_is_damage(tmp_path: Path) -> None:
    """Two keys of one id are not a choice to be made."""
    add_key(tmp_path, "read")
    file = json.loads((tmp_path / FILE).read_text())
    file["keys"] *= 2
    (tmp_path / FILE).write_text(json.dumps(file))
    with pytest.raises(KeysUnreadableError, match="twice"):
        KeyFile(tmp_path).current()


def test_a_newer_file_is_refused_in_clear_words(tmp_path: Path) -> None:
    """A file of a later version is neither read nor overwritten, and the word is `newer`."""
    content = b'{"version":2,"keys":{"anything":"else"}}'
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(KeysError, match="newer"):
        add_key(tmp_path, "read")
    with pytest.raises(KeysUnreadableError, match="newer"):
        KeyFile(tmp_path).current()
    assert (tmp_path / FILE).read_bytes() == content


def test_the_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file too large is not read, and one with too many keys neither."""
    for _ in range(3):
        add_key(tmp_path, "read")
    size = (tmp_path / FILE).stat().st_size
    monkeypatch.setattr(key_file, "FILE_BYTES_MAX", size - 1)
    with pytest.raises(KeysUnreadableError, match="larger"):
        KeyFile(tmp_path).current()
    monkeypatch.setattr(key_file, "FILE_BYTES_MAX", size)
    assert KeyFile(tmp_path).current()
    monkeypatch.setattr(key_file, "KEYS_MAX", 2)
    with pytest.raises(KeysUnreadableError, match="more than 2"):
        KeyFile(tmp_path).current()


def test_as_many_keys_as_there_may_be_fit() -> None:
    """The most keys, every field at its longest, stay within the file's bound."""
    longest = key(
        name='"' * 128,
        boards=tuple(f"{n:02}" + "*" * 62 for n in range(PATTERNS_MAX)),
        source='"' * 64,
        requests_per_second=999_999.999_999_999,
        revoked_at_us=None,
        credentials=(Credential(b"\xff" * 32, 2**62),) * CREDENTIALS_MAX,
    )
    full = {
        f"{n:012x}": msgspec.structs.replace(longest, id=f"{n:012x}")
        for n in range(key_file.KEYS_MAX)
    }
    content = key_file.encode(full)
    assert len(content) < key_file.FILE_BYTES_MAX
    assert key_file.decode(content) == full
