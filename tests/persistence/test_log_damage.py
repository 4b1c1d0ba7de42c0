from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from persistence import sealed_segments
from persistence.errors import DamagedError
from persistence.event_log import LmdbEventLog
from tests.persistence.log_samples import SMALL, events, history, seeded
from tests.persistence.processes import start

PAGE_BYTES = 4096

# Opens each damaged copy as a reader and as the next owner, in a process of its own: LMDB ends
# the process where it trusts what it should not. Prints one outcome per copy.
TRIAL = """
    import shutil, sys
    from pathlib import Path
    from tests.persistence.log_samples import SMALL, events
    from persistence.errors import DamagedError
    from persistence.event_log import LmdbEventLog
    from persistence.records import EMPTY_HASH, encode

    def content(log):
        return [repr(list(map(record.row, range(record.count)))) if hasattr(record, "row")
                else repr(record) for record in log.read()]

    def outcome(directory, expected):
        try:
            log = LmdbEventLog.open_readonly(directory, SMALL)
            try:
                if content(log) != expected:
                    return "OTHER CONTENT"
            finally:
                log.close()
            for epoch in (2, 3):
                log = LmdbEventLog(directory, SMALL, epoch=epoch)
                try:
                    for _ in range(3):
                        log.append([events(log.last_sequence + 1, 5)])
                    if content(log)[:len(expected)] != expected:
                        return "OTHER CONTENT AFTER WRITING"
                    if len(content(log)) != len(expected) + 3 * (epoch - 1):
                        return "LOST WRITES"
                finally:
                    log.close()
        except DamagedError:
            return "damaged"
        return "harmless"

    sound, scratch, segment = (Path(argument) for argument in sys.argv[1:4])
    log = LmdbEventLog.open_readonly(sound, SMALL)
    expected = content(log)
    log.close()
    for line in sys.stdin:
        position, content_now = line.split()
        shutil.copytree(sound, scratch)
        with (scratch / segment).open("r+b") as file:
            file.seek(int(position))
            file.write(bytes.fromhex(content_now))
        print(outcome(scratch, expected), flush=True)
        shutil.rmtree(scratch)
"""


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """Write a log of a sealed and a live segment, with records within pages and over many."""
    log = LmdbEventLog(tmp_path / "sound", SMALL, epoch=1, create=True)
    for record in history(4):
        log.append([record])
    log.append([events(log.last_sequence + 1, 30, text_bytes=120)])
    for count in (1, 2, 3):
        log.append([events(log.last_sequence + 1, count)])
    assert log.stats.segments == 2
    log.close()
    return tmp_path / "sound"


def outcomes(sound: Path, file: Path, changes: list[tuple[int, bytes]]) -> list[str]:
    """Return what becomes of copies of the log in each of which one place of `file` is changed."""
    child = start(TRIAL, sound, sound.with_name("scratch"), file)
    printed, _ = child.communicate("".join(f"{at} {now.hex()}\n" for at, now in changes))
    lines = printed.splitlines()
    assert len(lines) == len(changes), f"crashed ({child.returncode}) at {changes[len(lines)]}"
    assert child.returncode == 0
    return lines


def flipped(content: bytes, flips: list[tuple[int, int]]) -> list[tuple[int, bytes]]:
    return [(at, bytes([content[at] ^ change])) for at, change in flips]


@pytest.mark.parametrize("segment", ["00000001", "00000002"])
def test_a_flipped_bit_never_becomes_other_content(sound, segment):
    """A flipped bit anywhere in data.mdb is harmless or DamagedError; nothing crashes."""
    file = Path(segment) / "data.mdb"
    content = (sound / file).read_bytes()
    rng = seeded(segment)
    changes = []
    for page in range(len(content) // PAGE_BYTES):
        start_at = page * PAGE_BYTES
        # The headers, of pages and of meta pages, are where LMDB keeps what it trusts.
        spots = rng.sample(range(152 if page < 2 else 64), 36 if page < 2 else 4)
        spots += rng.sample(range(PAGE_BYTES), 10)
        changes += [(start_at + spot, 1 << rng.randrange(8)) for spot in spots]
        changes += [(start_at + rng.randrange(PAGE_BYTES), 0xFF) for _ in range(3)]
    found = outcomes(sound, file, flipped(content, changes))
    assert set(found) <= {"harmless", "damaged"}, set(found)
    assert found.count("damaged") > len(found) // 10


@pytest.mark.parametrize("segment", ["00000001", "00000002"])
def test_a_page_written_elsewhere_never_becomes_other_content(sound, segment):
    """A page that is blank, or holds another page of the file, is harmless or DamagedError."""
    file = Path(segment) / "data.mdb"
    content = (sound / file).read_bytes()
    pages = [content[at : at + PAGE_BYTES] for at in range(0, len(content), PAGE_BYTES)]
    rng = seeded(segment)
    changes = []
    for number in range(len(pages)):
        others = [bytes(PAGE_BYTES), b"\xff" * PAGE_BYTES, *rng.sample(pages, 4)]
        changes += [(number * PAGE_BYTES, other) for other in others]
    found = outcomes(sound, file, changes)
    assert set(found) == {"harmless", "damaged"}


def test_a_flipped_meta_page_does_not_lose_a_commit(sound):
    """When the newest meta page is unusable, the log is behind its head and is refused."""
    file = Path("00000002") / "data.mdb"
    content = (sound / file).read_bytes()
    transactions = [
        int.from_bytes(content[page * PAGE_BYTES + 144 :][:8], "little") for page in (0, 1)
    ]
    older, newest = sorted(transactions)
    page = transactions.index(newest)
    # The bits of the newest transaction's number that make it older than the other.
    bits = [1 << bit for bit in range(8) if newest ^ 1 << bit < older]
    assert bits
    changes = [(page * PAGE_BYTES + 144, bit) for bit in bits]
    # Its magic, its format and its page type.
    changes += [(page * PAGE_BYTES + at, bit) for at, bit in ((16, 1), (20, 1), (10, 8))]
    found = outcomes(sound, file, flipped(content, changes))
    assert set(found) == {"damaged"}


@pytest.mark.parametrize("file", ["00000001/sealed", "head"])
def test_a_flipped_bit_beside_the_segments(sound, file):
    """A flipped bit in a seal is DamagedError; in the head's newest slot it is made good."""
    content = (sound / file).read_bytes()
    flips = [(at, 1 << at % 8) for at in range(0, len(content), 3)]
    found = outcomes(sound, Path(file), flipped(content, flips))
    assert set(found) == {"damaged" if file.endswith("sealed") else "harmless"}


@pytest.mark.parametrize("file", ["00000001/data.mdb", "00000002/data.mdb"])
@pytest.mark.parametrize("size", [0, 100, 4096, 8192, 12_288])
def test_a_cut_segment_is_refused(sound, file, size):
    """A segment cut short, or empty, is damage and is not taken for a new one."""
    with (sound / file).open("r+b") as data:
        data.truncate(size)
    with pytest.raises(DamagedError):
        read_all(sound)


@pytest.mark.parametrize("file", ["00000001/data.mdb", "00000002/data.mdb"])
def test_a_missing_file_is_refused(sound, file):
    """A segment without its data is damage, and opening does not create it anew."""
    (sound / file).unlink()
    with pytest.raises(DamagedError):
        read_all(sound)
    with pytest.raises(DamagedError):
        read_all(sound, epoch=2)
    assert not (sound / file).exists()


@pytest.mark.parametrize("segment", ["00000001", "00000002"])
def test_a_missing_segment_is_refused(sound, segment):
    """A log that lost a whole segment, the first or the last, is refused."""
    shutil.rmtree(sound / segment)
    with pytest.raises(DamagedError):
        read_all(sound)
    with pytest.raises(DamagedError):
        LmdbEventLog(sound, SMALL, epoch=2)


def test_a_log_without_segments_is_refused(sound):
    """A head without any segment is a lost log, not a new one."""
    for segment in sound.glob("0*"):
        shutil.rmtree(segment)
    with pytest.raises(DamagedError):
        LmdbEventLog(sound, SMALL, epoch=2)


def test_an_older_copy_is_refused(sound):
    """A segment replaced by its own older copy is behind the head, and left as it is."""
    older = sound.with_name("older")
    shutil.copytree(sound, older)
    log = LmdbEventLog(sound, SMALL, epoch=2)
    log.append([events(log.last_sequence + 1, 1)])
    log.close()
    shutil.copy(older / "00000002" / "data.mdb", sound / "00000002" / "data.mdb")
    before = (sound / "00000002" / "data.mdb").read_bytes()
    with pytest.raises(DamagedError, match="lost"):
        LmdbEventLog(sound, SMALL, epoch=3)
    assert (sound / "00000002" / "data.mdb").read_bytes() == before


def test_a_damaged_segment_is_walked_once(sound, monkeypatch):
    """Whoever asks again for what lies in a segment found damaged costs no walk: it stays so."""
    walks = []

    def walk(directory: Path, _seal: object) -> None:
        walks.append(directory)
        raise DamagedError(f"{directory}: planted")

    monkeypatch.setattr(sealed_segments, "open_checked", walk)
    log = LmdbEventLog(sound, SMALL, epoch=2)
    texts = set()
    for sequence in (1, 2, 3, 3):
        with pytest.raises(DamagedError) as error:
            log.record_at(sequence)
        texts.add(str(error.value))
    assert (len(walks), len(texts)) == (1, 1)
    log.append([events(log.last_sequence + 1, 1)])
    log.close()


def read_all(directory: Path, epoch: int | None = None) -> None:
    log = LmdbEventLog(directory, SMALL, epoch)
    try:
        list(log.read())
    finally:
        log.close()
