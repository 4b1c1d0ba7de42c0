from collections.abc import Mapping

from actors.event_rows import EventRows

def write_results(
    rows: EventRows, start: int, end: int, rejected: Mapping[int, bytes], packed: bool
) -> bytes: ...
