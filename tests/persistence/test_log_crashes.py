from __future__ import annotations

import signal
from pathlib import Path

import pytest

from persistence.errors import DamagedError
from persistence.event_log import LmdbEventLog
from persistence.ownership import Ownership
from persistence.records import EMPTY_HASH
from tests.persistence.log_samples import SMALL, seeded
from tests.persistence.processes import start

KILLS = 40

# Appends until it is killed, and tells each acknowledged sequence with its hash on a pipe.
WRITER = """
    import os, random, signal, sys
    from pathlib import Path
    from tests.persistence.log_samples import SMALL, events
    from persistence import segments
    from persistence.event_log import LmdbEventLog
    from persistence.ownership import Ownership

    def plant(fault, log):
        if fault == "lost commit":
            segments.commit = lambda transaction: transaction.abort()
        elif fault == "early acknowledgement":
            store = log._store
            def acknowledge_first(items, end):
                print(end[0], end[1].hex(), flush=True)
                if rng.random() < 0.2:
                    os.kill(os.getpid(), signal.SIGKILL)
                store(items, end)
            log._store = acknowledge_first

    directory, seed = Path(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(seed)
    ownership = Ownership.take(directory)
    log = LmdbEventLog(directory / "log", SMALL, epoch=ownership.epoch, create=True)
    plant(sys.argv[3], log)
    print("open", flush=True)
    while True:
        first, records = log.last_sequence + 1, []
        for _ in range(rng.randint(1, 3)):
            records.append(events(first, rng.randint(1, 25)))
            first = records[-1].last_sequence + 1
        log.append(records)
        print(log.last_sequence, log.last_hash.hex(), flush=True)
"""


def kill_writers(directory: Path, kills: int, fault: str = "") -> dict[int, str]:
    """Start and kill writers one after another; check after each what it acknowledged.

    Returns the hash of every acknowledged sequence.
    """
    rng = seeded(9)
    acknowledged = {0: EMPTY_HASH.hex()}
    for kill in range(kills):
        child = start(WRITER, directory, kill, fault)
        assert child.stdout.readline() == "open\n"
        lines = [child.stdout.readline() for _ in range(rng.randint(0, 12))]
        child.send_signal(signal.SIGKILL)
        rest, _ = child.communicate()
        lines += rest.splitlines(keepends=True)
        whole = [line.split() for line in lines if line.endswith("\n")]
        acknowledged |= {int(sequence): chain for sequence, chain in whole}
        log = LmdbEventLog.open_readonly(directory / "log", SMALL)
        try:
            newest = sorted(acknowledged)[-20:]
            assert log.last_sequence >= newest[-1]
            for sequence in newest:
                assert log.hash_at(sequence).hex() == acknowledged[sequence]
        finally:
            log.close()
    return acknowledged


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path):
    """Every acknowledged append is there, with its hash, after its writer was killed."""
    acknowledged = kill_writers(tmp_path, KILLS)
    ownership = Ownership.take(tmp_path)
    log = LmdbEventLog(tmp_path / "log", SMALL, epoch=ownership.epoch)
    assert sum(record.count for record in log.read()) == log.last_sequence
    for sequence, chain in acknowledged.items():
        assert log.hash_at(sequence).hex() == chain
    assert log.stats.segments > KILLS // 4
    log.close()
    ownership.release()


@pytest.mark.parametrize(
    ("fault", "noticed"),
    [
        ("lost commit", pytest.raises(DamagedError, match="last commits are lost")),
        ("early acknowledgement", pytest.raises(AssertionError, match="last_sequence")),
    ],
)
def test_the_kill_test_notices_a_planted_fault(tmp_path: Path, fault: str, noticed):
    """A log that acknowledges what it did not commit fails the test above."""
    with noticed:
        kill_writers(tmp_path, KILLS, fault)
