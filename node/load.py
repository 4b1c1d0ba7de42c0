"""What a node carries at once: requests being answered, and bytes of their bodies.

Requests are bounded for each lane (the reads or the changes of one board), so that one stuck board
leaves room for the others, and for the whole node; bytes of bodies for the whole node. What exceeds
a bound is refused at once: a longer queue would only make every answer late. A client that is slow
to send holds no place, only the bytes it has sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from actors.errors import Refusal


class LaneName(NamedTuple):
    """A board and the kind of request; board is empty for requests about no single board."""

    board: str
    changes: bool


class Load:
    """The node's present load, and its bounds. requests and body_bytes are what there is now."""

    def __init__(self, requests_max: int, lane_requests_max: int, body_bytes_max: int) -> None:
        self.requests = 0
        self.body_bytes = 0
        self._requests_max = requests_max
        self._lane_requests_max = lane_requests_max
        self._body_bytes_max = body_bytes_max
        self._lanes: dict[LaneName, int] = {}
        self._full_lanes: set[LaneName] = set()

    def is_full(self, lane: LaneName) -> bool:
        """Say whether a request of this lane would find no place. Complexity: O(1)."""
        return self.requests >= self._requests_max or lane in self._full_lanes

    def check_room(self, lane: LaneName) -> None:
        """Refuse a request that would find no place. Errors: Refusal `overloaded`."""
        if self.is_full(lane):
            raise too_busy()

    def enter(self, lane: LaneName) -> None:
        """Count one more request of a lane. Errors: Refusal `overloaded`."""
        self.check_room(lane)
        self.requests += 1
        count = self._lanes[lane] = self._lanes.get(lane, 0) + 1
        if count >= self._lane_requests_max:
            self._full_lanes.add(lane)

    def leave(self, lane: LaneName) -> None:
        """Count one request of a lane less."""
        self.requests -= 1
        self._full_lanes.discard(lane)
        self._lanes[lane] -= 1
        if not self._lanes[lane]:
            del self._lanes[lane]

    @property
    def lanes(self) -> Mapping[LaneName, int]:
        """How many requests of each lane there are now, of those that have any."""
        return self._lanes

    def add_body_bytes(self, count: int) -> None:
        """Count bytes that have arrived. Errors: Refusal `overloaded`; they are counted even so."""
        self.body_bytes += count
        if self.body_bytes > self._body_bytes_max:
            raise Refusal("overloaded", "The bodies of other requests take the memory for bodies.")


def too_busy() -> Refusal:
    """Make the refusal of a request that finds no place."""
    return Refusal("overloaded", "As many requests as may be are being answered.")


class Share:
    """One request's share of the load, which its end gives back."""

    __slots__ = ("_body_bytes", "_lane", "_load")

    def __init__(self, load: Load) -> None:
        self._load = load
        self._lane: LaneName | None = None
        self._body_bytes = 0

    @property
    def entered(self) -> bool:
        """Whether this is one of the requests being answered."""
        return self._lane is not None

    def enter(self, lane: LaneName) -> None:
        """Become one of the requests being answered, if it is not. Errors: Refusal `overloaded`."""
        if self._lane is None:
            self._load.enter(lane)
            self._lane = lane

    def check_room(self, lane: LaneName) -> None:
        """Refuse a request that has no place and would find none. Errors: Refusal `overloaded`."""
        if self._lane is None:
            self._load.check_room(lane)

    def add_body_bytes(self, count: int) -> None:
        """Count bytes that have arrived. Errors: Refusal `overloaded`."""
        self._body_bytes += count
        self._load.add_body_bytes(count)

    def give_back(self) -> None:
        """End the request's share."""
        if self._lane is not None:
            self._load.leave(self._lane)
        self._load.body_bytes -= self._body_bytes
