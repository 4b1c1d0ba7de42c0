"""What a running node sees of its file of keys, and when."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from node import key_file
from node.key_file import FILE, KeyFile, KeysUnreadableError
from tests.node.key_samples import add_key, change_key, revoke
from tests.node.test_keys import SECRET


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
