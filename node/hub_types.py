"""What the gateways of a node tell each other, as MessagePack."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from node.metrics import GatewayFigures

SOCKET = "gateways.calls"  # in the node's own directory


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a board's process takes calls; created_at_us tells it from others of its name."""

    path: str
    created_at_us: int


class Creation(NamedTuple):
    """What `Boards.create` takes."""

    board: str
    definition: bytes
    definition_packed: bool
    packed: bool
    now_us: int


class Listing(NamedTuple):
    """What `Boards.list` takes."""

    limit: int
    after: str | None
    patterns: tuple[str, ...]
    packed: bool


class Told(NamedTuple):
    """What a gateway tells of itself, now and then."""

    gateway: str
    figures: GatewayFigures
