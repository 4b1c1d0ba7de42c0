"""What a board's process loads: there are as many as there are boards in memory."""

from __future__ import annotations

import subprocess
import sys

# Of the gateway and the command line alone; each would cost every board's process megabytes.
NOT_NEEDED = {"aiohttp", "click", "cryptography", "matplotlib", "node", "prometheus_client", "rich"}


def test_a_boards_process_loads_nothing_of_the_gateways() -> None:
    """Neither the actor nor the janitor imports what only the node itself uses."""
    program = (
        "import sys, actors.board_actor, actors.janitor;"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    loaded = set(shown.split())
    assert {"actors", "persistence", "lmdb"} <= loaded
    assert not loaded & NOT_NEEDED
