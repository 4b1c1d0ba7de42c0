"""What a member costs in memory: in a sorted set of Redis, and in a board.

Idempotency keys are left out of both: Redis has only the set, and of the board's process what its
keys take is subtracted. Compared are the bytes of the structures, as each system counts its own;
what an allocator adds to them depends on its build, and shows in `used_memory` and what is
resident.
"""

from __future__ import annotations

from pathlib import Path

from actors.directory import BOARDS
from loadtest.bench_data import BOARD
from loadtest.bench_marks import ALLOCATED, BYTES, RESIDENT, Case, Results
from loadtest.bench_restart import open_board
from loadtest.bench_systems import RANKNODE, REDIS, Seeds, add_members
from loadtest.peers.processes import REDIS_PLAIN, AbsentError, running_redis


def measure_memory(directory: Path, seeds: Seeds, results: Results, members: int) -> dict[str, str]:
    """Measure both once, for it does not vary; returns what was skipped, and why."""
    opened = open_board(seeds.node / BOARDS / BOARD, members)
    case = Case("memory", "", None, RANKNODE)
    results.note(case, BYTES, opened.structures_bytes / members)
    results.note(case, RESIDENT, opened.resident_bytes / members)
    case = Case("memory", "", None, REDIS)
    fields = {ALLOCATED: "used_memory", RESIDENT: "used_memory_rss"}
    try:
        with running_redis(directory, REDIS_PLAIN) as server:
            before = {each: server.information(field) for each, field in fields.items()}
            add_members(server, members)
            every_member = 0
            counted = server.ask("MEMORY", "USAGE", BOARD, "SAMPLES", every_member)
            results.note(case, BYTES, counted / members)
            for measure, field in fields.items():
                grown = server.information(field) - before[measure]
                results.note(case, measure, grown / members)
    except AbsentError as error:
        return {REDIS: str(error)}
    return {}
