"""The further gateways of a node, as its first process sees them: started, replaced, stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

import msgspec

from node.config import Config
from node.extra_gateway import Orders
from node.restarts import Restarts

STOP_SECONDS = 1.0  # on top of what requests under way get

_LOG = logging.getLogger("ranknode")


class ExtraGateways:
    """All gateways but the first. config: with the port that all of them share."""

    def __init__(self, config: Config, node_directory: Path) -> None:
        self._config = config
        self._node_directory = str(node_directory)
        self._stopping = False
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._lives = [
            asyncio.create_task(self._live(number)) for number in range(1, config.gateways)
        ]

    async def _live(self, number: int) -> None:
        """Start a gateway, and another one whenever it ended, after a pause if that recurs."""
        restarts = Restarts()
        while not self._stopping:
            await asyncio.sleep(restarts.wait_seconds)
            restarts.started()
            try:
                process = self._processes[number] = await self._start(number)
                reason = f"ended with {await process.wait()}"
            except OSError as error:
                reason = f"could not be started: {error}"
            restarts.ended()
            if not self._stopping:
                _LOG.error("gateway %d %s; it is started again", number, reason)

    async def _start(self, number: int) -> asyncio.subprocess.Process:
        # Ray's settings, its token among them, are for the first process alone.
        environment = {
            name: text for name, text in os.environ.items() if not name.startswith("RAY_")
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # no modules from the directory it stands in
            "-m",
            "node.extra_gateway",
            stdin=asyncio.subprocess.PIPE,
            env=environment,
        )
        assert process.stdin is not None
        orders = Orders(number, self._config, self._node_directory)
        process.stdin.write(msgspec.msgpack.encode(orders))
        process.stdin.close()
        return process

    async def stop(self) -> None:
        """Let each finish what it is answering, and end it."""
        self._stopping = True
        running = [each for each in self._processes.values() if each.returncode is None]
        for process in running:
            process.terminate()
        if self._lives:
            await asyncio.wait(self._lives, timeout=self._config.drain_seconds + STOP_SECONDS)
        for process in running:
            if process.returncode is None:
                process.kill()
        for life in self._lives:
            life.cancel()
        await asyncio.gather(*self._lives, return_exceptions=True)
