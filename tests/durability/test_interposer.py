"""What stands before libc: it counts what it should, and each fault is what its name says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durability.faults import Action, State, environment
from tests.durability.trace import DSYNC, EXCHANGING, Op, read_trace

WAIT_SECONDS = 60  # what no machine needs, however busy

WRITER = """
    import os
    file = os.open("file", os.O_CREAT | os.O_RDWR)
    written = os.write(file, b"eight by")
    os.fsync(file)
    print(written)
"""
EVERYTHING = """
    import ctypes, os
    os.mkdir("a")
    file = os.open("a/file", os.O_CREAT | os.O_RDWR | os.O_DSYNC)
    os.write(file, b"one")
    os.pwritev(file, [b"t", b"wo"], 8)
    os.ftruncate(file, 20)
    os.posix_fallocate(file, 0, 30)
    copy = os.open("copy", os.O_CREAT | os.O_RDWR | os.O_TRUNC)
    os.sendfile(copy, file, 0, 3)
    os.copy_file_range(file, copy, 3, 8, 3)
    os.fdatasync(copy)
    os.link("copy", "a/link")
    os.rename("copy", "a/renamed")
    os.fsync(os.open("a", os.O_RDONLY))
    with open("../outside", "wb", buffering=0) as outside:
        outside.write(b"not counted")
    ctypes.CDLL(None).interposer_mark(ctypes.c_uint64(7))
    os.unlink("link", dir_fd=os.open("a", os.O_RDONLY))
    os.unlink("a/file")
    os.write(file, b"nobody can see this")
    os.unlink("a/renamed")
    os.rmdir("a")
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    with State(tmp_path / "state") as made:
        yield made


def start(code: str, root: Path, state: State, trace: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-c", textwrap.dedent(code)],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(root, state.path, trace),
    )


def run(code: str, root: Path, state: State, trace: Path | None = None) -> tuple[int, str, str]:
    """Run code in the root; returns its code and what it printed."""
    with start(code, root, state, trace) as process:
        printed, errors = process.communicate(timeout=WAIT_SECONDS)
    return process.returncode, printed.strip(), errors


def test_every_call_below_the_root_is_recorded(tmp_path: Path, root: Path, state: State) -> None:
    """A trace has each call with its path, place and bytes, in order; nothing from elsewhere."""
    code, _, errors = run(EVERYTHING, root, state, tmp_path / "trace")
    assert code == 0, errors
    entries = list(read_trace(tmp_path / "trace"))
    found = [(Op(e.op).name, e.path.removeprefix(f"{root}/"), e.offset, e.data) for e in entries]
    assert found == [
        ("MKDIR", "a", 0, b""),
        ("CREATE", "a/file", 0, b""),
        ("WRITE", "a/file", 0, b"one"),
        ("WRITE", "a/file", 8, b"two"),
        ("TRUNCATE", "a/file", 20, b""),
        ("TRUNCATE", "a/file", 30, b""),
        ("CREATE", "copy", 0, b""),
        ("WRITE", "copy", 0, b"one"),
        ("WRITE", "copy", 3, b"two"),
        ("SYNC", "copy", 0, b""),
        ("LINK", "copy", 0, b""),
        ("RENAME", "copy", 0, b""),
        ("SYNC", "a", 0, b""),
        ("MARK", "", 0, (7).to_bytes(8, "little")),
        ("UNLINK", "a/link", 0, b""),
        ("UNLINK", "a/file", 0, b""),
        ("UNLINK", "a/renamed", 0, b""),
        ("RMDIR", "a", 0, b""),
    ]
    assert [entry.target for entry in entries if entry.target] == [
        f"{root}/a/link", f"{root}/a/renamed",
    ]  # fmt: skip
    durable = [Op(entry.op) for entry in entries if entry.flags & DSYNC]
    assert durable == [Op.CREATE, Op.WRITE, Op.WRITE, Op.TRUNCATE, Op.TRUNCATE]
    assert state.calls == len(entries) - 1
    assert (state.mark, state.calls_by(Op.MARK), state.calls_by(Op.WRITE)) == (7, 1, 4)


@pytest.mark.parametrize("fails", [False, True])
def test_an_exchange_is_told_from_a_renaming(
    tmp_path: Path, root: Path, state: State, fails: bool
) -> None:
    """Two names that trade places by one call are in the trace as such, and a fault can hit it."""
    code = """
        import ctypes, os
        os.mkdir("a")
        os.mkdir("b")
        os.rename("a", "c")
        print(ctypes.CDLL(None).renameat2(-100, b"b", -100, b"c", 2))
    """
    if fails:
        state.arm(2, Action.EIO, operations=[Op.RENAME])
    _, printed, errors = run(code, root, state, tmp_path / "trace")
    assert (printed, state.fired) == (("-1", 1) if fails else ("0", 0)), errors
    renames = [entry for entry in read_trace(tmp_path / "trace") if entry.op == Op.RENAME]
    found = [(e.path, e.target, bool(e.flags & EXCHANGING)) for e in renames]
    exchanged = [] if fails else [(f"{root}/b", f"{root}/c", True)]
    assert found == [(f"{root}/a", f"{root}/c", False), *exchanged]


@pytest.mark.parametrize(
    ("at", "action", "ended", "content"),
    [
        (1, Action.KILL_BEFORE, -signal.SIGKILL, None),
        (1, Action.KILL_AFTER, -signal.SIGKILL, b""),
        (2, Action.KILL_BEFORE, -signal.SIGKILL, b""),
        (2, Action.KILL_AFTER, -signal.SIGKILL, b"eight by"),
        (2, Action.TEAR, -signal.SIGKILL, b"eigh"),
        (2, Action.SHORT_WRITE, 4, b"eigh"),
        (2, Action.EINTR, 8, b"eight by"),  # Python itself tries again
        (2, Action.EIO, "Input/output error", b""),
        (2, Action.ENOSPC, "No space left on device", b""),
        (3, Action.EIO, "Input/output error", b"eight by"),
        (3, Action.LIE, 8, b"eight by"),
    ],
)
def test_a_fault_is_what_it_says(
    root: Path, state: State, at: int, action: Action, ended: int | str, content: bytes | None
) -> None:
    """The process ends, is told, or is lied to at the very call that was armed, and only there."""
    state.arm(at, action)
    code, printed, errors = run(WRITER, root, state)
    match ended:
        case str():
            assert ended in errors
        case _ if ended < 0:
            assert code == ended
        case _:
            assert (code, printed) == (0, str(ended)), errors
    file = root / "file"
    assert (file.read_bytes() if file.exists() else None) == content
    assert state.fired == 1
    assert state.hit == ((Op.CREATE, Op.WRITE, Op.SYNC)[at - 1], str(file))


def test_a_lie_is_no_sync(tmp_path: Path, root: Path, state: State) -> None:
    """A sync that only claims to have been one is not in the trace."""
    state.arm(1, Action.LIE, times=0, operations=[Op.SYNC])
    assert run(WRITER, root, state, tmp_path / "trace")[0] == 0
    assert state.fired == state.calls_by(Op.SYNC) == 1
    assert [entry.op for entry in read_trace(tmp_path / "trace")] == [Op.CREATE, Op.WRITE]


def test_a_stopped_process_goes_on_where_it_was(root: Path, state: State) -> None:
    """A process can be stopped before a call, and makes it once it is continued."""
    state.arm(1, Action.STOP, operations=[Op.WRITE])
    with start(WRITER, root, state) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert (root / "file").read_bytes() == b""
        process.send_signal(signal.SIGCONT)
        printed, errors = process.communicate(timeout=WAIT_SECONDS)
    assert printed.strip() == "8", errors
    assert (root / "file").read_bytes() == b"eight by"


def test_a_fault_can_be_aimed_and_repeated(root: Path, state: State) -> None:
    """Only the operations that are named are counted against a fault, as often as it says."""
    code = """
        import os
        file = os.open("file", os.O_CREAT | os.O_RDWR)
        for number in range(6):
            try:
                os.write(file, b"x")
            except OSError:
                print(number, end=" ")
            os.fsync(file)
    """
    state.arm(3, Action.EIO, times=2, operations=[Op.WRITE])
    assert run(code, root, state)[1] == "2 3"
    assert (state.fired, state.calls_by(Op.SYNC), state.calls_by(Op.WRITE)) == (2, 6, 6)
