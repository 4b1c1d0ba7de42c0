from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.definition import BOARD_ID
from node import key_file
from node.key_file import FILE, KeyFile, KeysError, KeysUnreadableError, changing_keys, read_keys
from node.keys import (
    CREDENTIALS_MAX,
    PATTERNS_MAX,
    Credential,
    Key,
    Scope,
    bearer,
    can_cover,
    covers,
    hash_of,
    new_id,
    new_secret,
    opens,
    read_bearer,
)
from persistence.files import TEMPORARY_SUFFIX
from tests.node.fake_boards import NOW_US
from tests.node.key_samples import add_key, change_key, revoke

ID = "00112233aabb"
SECRET = "5e" * 32


def key(**fields: Any) -> Key:
    made: dict[str, Any] = {
        "id": ID,
        "scope": Scope.SUBMIT,
        "kind": "bearer",
        "created_at_us": NOW_US,
        "credentials": (Credential(hash_of(SECRET)),),
    }
    return Key(**made | fields)


def test_scopes_are_ordered() -> None:
    """Reading is part of submit, submit of admin, and what is open of all."""
    order = [Scope.OPEN, Scope.READ, Scope.SUBMIT, Scope.ADMIN]
    assert list(Scope) == order
    for rank, scope in enumerate(order):
        assert [scope.includes(other) for other in order] == [n <= rank for n in range(4)]


def test_a_bearer_key_is_read_as_it_was_written() -> None:
    """A key carries its id and 256 bits, and no two are alike."""
    drawn = {bearer(new_id(), new_secret()) for _ in range(100)}
    assert len(drawn) == 100
    for text in drawn:
        presented = read_bearer(text)
        assert presented is not None
        assert bearer(*presented) == text
        assert len(presented.secret) * 4 == 256


@pytest.mark.parametrize(
    "text",
    ["", "rnk", f"rnk_{ID}", f"rnk_{ID}_", f"rnk_{ID}_{SECRET}0", f"rnk_{ID}_{SECRET[1:]}",
     f"RNK_{ID}_{SECRET}", f"rnk_{ID.upper()}_{SECRET}", f"rnk_{ID}_{SECRET.upper()}",
     f"rnk_{ID}_{SECRET}\n", f" rnk_{ID}_{SECRET}", f"rnk_{ID}_{'é' * 64}", "rnk_" * 1000],
)  # fmt: skip
def test_what_is_no_key_is_none(text: str) -> None:
    """Only the one form of a key is read."""
    assert read_bearer(text) is None


def test_a_secret_opens_its_own_key_only() -> None:
    """The right secret opens a key until it expires; nothing opens an unknown or a revoked one."""
    assert opens(key(), SECRET, NOW_US)
    assert not opens(key(), "5f" * 32, NOW_US)
    assert not opens(None, SECRET, NOW_US)
    assert not opens(key(credentials=(), revoked_at_us=NOW_US), SECRET, NOW_US)
    expiring = key(credentials=(Credential(hash_of(SECRET), NOW_US),))
    assert opens(expiring, SECRET, NOW_US - 1)
    assert not opens(expiring, SECRET, NOW_US)
    assert not opens(key(kind="ed25519"), SECRET, NOW_US)


def test_an_unknown_key_is_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret is hashed and compared in constant time whether or not there is such a key."""
    compared = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr("node.keys.hmac.compare_digest", compare)
    for candidate in (None, key(), key(credentials=(), revoked_at_us=NOW_US)):
        compared.clear()
        opens(candidate, "5f" * 32, NOW_US)
        assert compared
        assert all(a == hash_of("5f" * 32) and len(b) == 32 for a, b in compared)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "x"), ("id", "A" * 12), ("name", "a\nb"), ("name", "x" * 129), ("name", " a"),
        ("scope", Scope.OPEN), ("boards", ()), ("boards", ("a",) * (PATTERNS_MAX + 1)),
        ("boards", ("",)), ("boards", ("A*",)), ("boards", ("a" * 65,)), ("boards", ("a b",)),
        ("boards", ("a/*",)), ("source", ""), ("source", "x" * 65), ("source", "e\u0301"),
        ("requests_per_second", 0.0), ("requests_per_second", 1e-310),
        ("requests_per_second", -1.0),
        ("requests_per_second", float("nan")), ("requests_per_second", float("inf")),
        ("requests_per_second", 1e7),
        ("credentials", (Credential(b"x" * 32),) * (CREDENTIALS_MAX + 1)),
    ],
)  # fmt: skip
def test_a_field_out_of_bounds_is_refused_by_name(field: str, value: Any) -> None:
    """Every field of a key has bounds; what breaks them is refused with the field's name."""
    with pytest.raises(ValueError, match=f"^{field}:"):
        key(**{field: value})


def test_what_contradicts_itself_is_refused() -> None:
    """An admin key cannot sign, a reader has no source, a revoked key nothing that opens it."""
    with pytest.raises(ValueError, match=r"^scope: an admin key cannot sign"):
        key(kind="ed25519", scope=Scope.ADMIN)
    with pytest.raises(ValueError, match=r"^source:"):
        key(scope=Scope.READ, source="s")
    with pytest.raises(ValueError, match=r"^credentials:"):
        key(revoked_at_us=NOW_US)


@pytest.mark.parametrize(
    ("patterns", "board", "covered"),
    [
        (("*",), "arena", True), (("arena-*",), "arena-1", True), (("arena-*",), "arena", False),
        (("arena-*",), "my-arena-1", False), (("a?",), "ab", True), (("a?",), "a", False),
        (("a[0-3]",), "a3", True), (("a[!0-3]",), "a3", False), (("x", "y"), "y", True),
        (("arena",), "arena\n", False), ((), "arena", False),
    ],
)  # fmt: skip
def test_patterns_cover_whole_ids(patterns: tuple[str, ...], board: str, covered: bool) -> None:
    """A pattern is a glob over the whole id; any of several is enough, none is none."""
    assert covers(patterns, board) is covered


@pytest.mark.parametrize(
    ("pattern", "possible"),
    [
        ("*", True), ("arena-*", True), ("*-x", True), ("?_", True), ("[a-]b", True),
        ("[!a]*", True), ("[]a]", True), ("[", False), ("a[b", False), ("[]", False),
        ("[!]", False), ("a!", False), ("]", False), ("-a", False), ("_*", False),
        ("[_-]*", False), ("[b-a]", False), ("*[!a-z0-9_-]*", False),
    ],
)  # fmt: skip
def test_a_pattern_can_cover_an_id_or_it_cannot(pattern: str, possible: bool) -> None:
    """A pattern is known to match no id there could be; short ids are asked one by one here."""
    characters = "".join(map(chr, range(33, 127)))
    texts = [*characters, *map("".join, product(characters, repeat=2)), "arena-1", "a-x"]
    matching = [each for each in texts if BOARD_ID.fullmatch(each) and covers((pattern,), each)]
    assert can_cover(pattern) is possible
    assert bool(matching) is possible


# The file


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


# What a running node sees


def test_without_a_file_there_are_no_keys(tmp_path: Path) -> None:
    """A node that never saw a file has no keys; the first key is seen at once."""
    watched = KeyFile(tmp_path)
    assert watched.current() is None
    text = add_key(tmp_path, "read")
    assert list(watched.current() or ()) == [text.split("_")[1]]


def test_every_change_is_seen_at_once(tmp_path: Path) -> None:
    """What a command wrote counts from the next look on, however fast one follows another."""
    add_key(tmp_path, "read")
    watched = KeyFile(tmp_path)
    for count in range(2, 30):
        add_key(tmp_path, "read")
        assert len(watched.current() or ()) == count


def test_an_unchanged_file_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking costs a stat, not a read."""
    add_key(tmp_path, "read")
    watched = KeyFile(tmp_path)
    reads = []
    read = key_file._read
    monkeypatch.setattr(key_file, "_read", lambda path: reads.append(path) or read(path))
    for _ in range(100):
        assert watched.current()
    assert len(reads) == 1


def test_a_file_that_vanishes_does_not_fall_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Having seen keys, a node is never without: gone, damaged or empty, nobody is let in."""
    add_key(tmp_path, "read")
    watched = KeyFile(tmp_path)
    assert watched.current()
    kept = (tmp_path / FILE).read_bytes()
    with caplog.at_level(logging.INFO):
        (tmp_path / FILE).unlink()
        for _ in range(3):
            with pytest.raises(KeysUnreadableError, match="gone"):
                watched.current()
    assert len(caplog.records) == 1, "said once per change"
    (tmp_path / FILE).write_bytes(kept)
    assert watched.current()
    (tmp_path / FILE).write_bytes(b'{"version":1,"keys":[]}')
    assert watched.current() == {}


def test_a_damaged_file_that_vanishes_does_not_fall_open(tmp_path: Path) -> None:
    """Also a file that could never be read says that there are keys."""
    (tmp_path / FILE).write_bytes(b"{")
    watched = KeyFile(tmp_path)
    with pytest.raises(KeysUnreadableError):
        watched.current()
    (tmp_path / FILE).unlink()
    with pytest.raises(KeysUnreadableError):
        watched.current()


def test_only_revoked_keys_are_keys(tmp_path: Path) -> None:
    """A file in which every key was revoked lets nobody in, and is not taken for none."""
    revoke(tmp_path, add_key(tmp_path, "admin"))
    keys = KeyFile(tmp_path).current()
    assert keys is not None
    assert all(not key.credentials for key in keys.values())


def test_a_file_that_cannot_be_read_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of the disk, or a lack of descriptors, lets nobody in while it lasts, not longer."""
    add_key(tmp_path, "read")
    watched = KeyFile(tmp_path)

    def fail(_path: Path) -> Any:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched, caplog.at_level(logging.INFO):
        patched.setattr(key_file, "_read", fail)
        for _ in range(3):
            with pytest.raises(KeysUnreadableError, match="Too many open files"):
                watched.current()
    assert len(caplog.records) == 1
    assert watched.current()


def test_the_log_says_what_is_wrong_once_and_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each change is one line with the file's name; hashes and secrets stay out of it."""
    text = add_key(tmp_path, "read", SECRET)
    watched = KeyFile(tmp_path)
    with caplog.at_level(logging.DEBUG):
        watched.current()
        damaged = (tmp_path / FILE).read_bytes().replace(b'"read"', b'"none"')
        (tmp_path / FILE).write_bytes(damaged)
        for _ in range(3):
            with pytest.raises(KeysUnreadableError):
                watched.current()
        (tmp_path / FILE).unlink()
        add_key(tmp_path, "read", SECRET)
        watched.current()
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3, messages
    assert FILE in messages[1]
    stored = json.loads(damaged)["keys"][0]["credentials"][0]["value"]
    for message in messages:
        assert SECRET not in message
        assert text not in message
        assert stored not in message


def test_a_changed_key_is_seen(tmp_path: Path) -> None:
    """A key's new limits count at once."""
    text = add_key(tmp_path, "read")
    watched = KeyFile(tmp_path)
    assert watched.current()
    change_key(tmp_path, text, boards=("x-*",))
    (found,) = (watched.current() or {}).values()
    assert found.boards == ("x-*",)
