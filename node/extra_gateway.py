"""A further gateway of a node: a process that shares the first one's port, and asks it for boards.

It is started by the first and ends with it, however that ends. Its bounds and rates are its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from pathlib import Path

import msgspec
import uvloop

from actors.calls import connect_calls
from actors.errors import Refusal
from actors.garbage import spare_what_is_loaded
from node.access import Access
from node.config import Config
from node.gateway import Gateway
from node.hub_types import SOCKET, Told
from node.key_file import KeyFile
from node.metrics import Metrics
from node.shared_boards import Hub, SharedBoards
from node.stop_signals import STOP_SIGNALS

TELL_SECONDS = 5.0


class Orders(msgspec.Struct, frozen=True):
    """What a gateway is started with.

    number: among those of the node. node_directory: of the node, for its sockets.
    """

    number: int
    config: Config
    node_directory: str


async def _run(orders: Orders) -> None:
    config, node_directory = orders.config, Path(orders.node_directory)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stopping.set)
    calls = await connect_calls(str(node_directory / SOCKET))
    orphaned = asyncio.create_task(_end_with_node(calls.ended))
    metrics, hub = Metrics(str(orders.number)), Hub(calls)
    gateway = Gateway(
        SharedBoards(config, hub, metrics),
        config,
        Access(KeyFile(Path(config.data_directory)), config),
        metrics=metrics,
    )
    spare_what_is_loaded()
    await gateway.start()
    telling = asyncio.create_task(_tell(hub, metrics))
    await stopping.wait()
    telling.cancel()
    await gateway.stop()
    orphaned.cancel()


async def _tell(hub: Hub, metrics: Metrics) -> None:
    """Tell the first process what this one counts, for whichever of all is asked."""
    while True:
        await asyncio.sleep(TELL_SECONDS)
        with contextlib.suppress(Refusal):
            await hub.ask("count", Told(metrics.gateway, metrics.figures()))


async def _end_with_node(ended: asyncio.Event) -> None:
    """End at once when the first process has: it took all boards with it."""
    await ended.wait()
    os._exit(1)


def main() -> None:
    """Serve as the orders on standard input say, until told to stop."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    orders = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Orders)
    # The guard of the node ends whatever has a file of its directory open.
    with open(f"{orders.node_directory}/{os.getpid()}.gateway", "wb"):
        uvloop.run(_run(orders))


if __name__ == "__main__":
    main()
