"""More than a node can do: it refuses what is too much, keeps what it accepted, and recovers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from loadtest.overload import Plan, Report, broken_promises, measure

# So small that a few hundred clients are too many for it, however quick the machine is.
SETTINGS = "queue_items_max = 32\ncall_items_max = 16\nrequests_max = 48\n"
PLAN = Plan(
    seconds=1.5,
    capacity_seconds=1.0,
    capacity_clients=16,
    clients=300,
    rate=20_000.0,
    node_growth_mib_max=150.0,
    board_growth_mib_max=100.0,
)
KEPT = Report(
    capacity=1.0,
    rate=3.0,
    seconds=1.0,
    statuses=Counter({200: 1, 503: 2}),
    odd_statuses=[],
    lost=0,
    unsent=0,
    p50_seconds=0.1,
    p99_seconds=0.2,
    p99_served_seconds=0.2,
    node_mib=(50.0, 60.0, 60.0),
    board_mib=(50.0, 60.0, 60.0),
    idle_seconds=0.001,
    recovery_seconds=0.1,
    missing=0,
)


def test_overload_is_refused_and_survived(tmp_path: Path) -> None:
    """All is answered, with 200, 429 or 503; what was acknowledged is there; memory is bounded."""
    report = measure(tmp_path, PLAN, SETTINGS)
    assert report.lost == 0
    assert report.odd_statuses == []
    offered = int((PLAN.rate or 0) * PLAN.seconds)
    assert report.statuses.total() + report.unsent == offered
    assert report.statuses[200] > 0, "some were accepted"
    assert report.statuses[503] > 0, "it was overloaded"
    assert report.missing == 0
    for broken in broken_promises(report, PLAN):
        # How soon it is quick again depends on what else the machine does; `make overload` says.
        assert "itself again" in broken


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lost": 1}, "never answered"),
        ({"odd_statuses": [500]}, "500"),
        ({"node_mib": (50.0, 201.0, 60.0)}, "the node grew by 151 MiB"),
        ({"board_mib": (50.0, 151.0, 60.0)}, "the board grew by 101 MiB"),
        ({"recovery_seconds": 10.1}, "itself again"),
        ({"missing": 1}, "1 acknowledged events are missing"),
    ],
)
def test_a_broken_promise_is_named(changes: dict[str, Any], named: str) -> None:
    """Each promise of the report is checked, and one that was kept is not named."""
    assert broken_promises(KEPT, PLAN) == []
    (broken,) = broken_promises(KEPT._replace(**changes), PLAN)
    assert named in broken
