from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from node.samples import SAMPLES, sample_lines

OFFICIAL = Path(__file__).parents[1] / "data" / "f1"
POINTS, LAPS = SAMPLES


def official(name: str) -> list[dict[str, str]]:
    with (OFFICIAL / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def events(sample: Any) -> list[dict[str, Any]]:
    return [json.loads(line, parse_float=Decimal) for line in sample_lines(sample)]


def test_the_points_are_those_of_the_official_tables() -> None:
    """Each driver's points of each season, and of all, are exactly those of the sport's tables."""
    official_points: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for row in official("official_points.csv"):
        official_points[row["season"], row["driver"]] += Decimal(row["points"])
    counted: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for event in events(POINTS):
        counted[event["occurred_at"][:4], event["member"]] += event["value"]
    differing = {
        key: (counted[key], official_points[key])
        for key in counted.keys() | official_points.keys()
        if counted[key] != official_points[key]
    }
    assert differing == {}


def test_the_laps_are_those_of_the_official_tables() -> None:
    """Each driver's fastest lap of each race is that of the sport's tables."""
    laps = Counter(
        (row["race_date"], row["driver"], int(row["lap_ms"]))
        for row in official("official_fastest_laps.csv")
    )
    assert laps == Counter(
        (event["occurred_at"][:10], event["member"], event["value"]) for event in events(LAPS)
    )


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.board)
def test_every_sample_has_a_key_of_its_own(sample: Any) -> None:
    """Loading a sample twice counts it once, since no two events share a key."""
    keys = [event["idempotency_key"] for event in events(sample)]
    assert len(set(keys)) == len(keys) > 3000
