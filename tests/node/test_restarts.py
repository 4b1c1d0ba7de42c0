"""Restarts: a process that ended is followed at once, one that keeps ending ever later."""

from __future__ import annotations

from node.restarts import CALM_SECONDS, WAIT_SECONDS_MAX, Restarts


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def lived(restarts: Restarts, clock: Clock, seconds: float) -> float:
    """Let a process live for some seconds and end; returns how long the next has to wait."""
    restarts.started()
    clock.now += seconds
    restarts.ended()
    return restarts.wait_seconds


def test_the_pause_grows_up_to_a_bound():
    """The first end costs nothing, each in quick succession twice as much, 60 s at most."""
    clock = Clock()
    restarts = Restarts(clock)
    assert restarts.wait_seconds == 0
    waits = []
    for _ in range(100):
        waits.append(lived(restarts, clock, 0.5))
        clock.now += waits[-1]
    assert waits[:9] == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert set(waits[8:]) == {WAIT_SECONDS_MAX}
    assert restarts.ends == 100


def test_the_pause_passes():
    """How long a start has to wait shrinks with the clock, and never below nothing."""
    clock = Clock()
    restarts = Restarts(clock)
    assert [lived(restarts, clock, 0) for _ in range(3)] == [0, 1, 2]
    clock.now += 1.5
    assert restarts.wait_seconds == 0.5
    clock.now += 1.5
    assert restarts.wait_seconds == 0


def test_a_calm_life_makes_up_for_the_ends_before():
    """A process that lived for a while is followed at once again; one that did not is not."""
    clock = Clock()
    restarts = Restarts(clock)
    for _ in range(6):
        lived(restarts, clock, 1)
    assert lived(restarts, clock, CALM_SECONDS - 1) == 32
    assert lived(restarts, clock, CALM_SECONDS) == 0
    assert restarts.ends == 1
    assert lived(restarts, clock, 1) == 1
