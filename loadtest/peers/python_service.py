"""The small service that is written in Python: aiohttp and redis-py in front of a sorted set.

`python_service.py PORT SOCKET` serves ranks, the top and durable events on the loopback until it
is terminated; `SOCKET` is the Unix socket of its Redis. It knows nothing of ranknode but the form
of its requests and answers.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import redis.asyncio
import uvloop
from aiohttp import web

SCRIPT = Path(__file__).with_name("event.lua").read_text()
LIMIT_MAX = 1_000
REDIS_CONNECTIONS_MAX = 1_000  # the library's own bound would refuse the 101st request at once
VALUE_MAX = 2**53 - 1
NAME_CHARACTERS_MAX = 128


class Service:
    """The routes over one Redis."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._count = client.register_script(SCRIPT)

    def application(self) -> web.Application:
        """Make the application."""
        application = web.Application()
        application.router.add_get("/v1/boards/{board}/members/{member}", self.member)
        application.router.add_get("/v1/boards/{board}/top", self.top)
        application.router.add_post("/v1/boards/{board}/events", self.submit)
        return application

    async def member(self, request: web.Request) -> web.Response:
        """Answer a member's rank and score."""
        board, member = request.match_info["board"], request.match_info["member"]
        async with self._client.pipeline(transaction=False) as pipeline:
            pipeline.zrevrank(board, member)
            pipeline.zscore(board, member)
            index, score = await pipeline.execute()
        if index is None:
            return web.json_response({"code": "member_not_found"}, status=404)
        return web.json_response({"board": board, "entry": _entry(index, member, score)})

    async def top(self, request: web.Request) -> web.Response:
        """Answer the first entries."""
        board, text = request.match_info["board"], request.query.get("limit", "10")
        limit = int(text) if text.isdecimal() else 0
        if not 1 <= limit <= LIMIT_MAX:
            return web.json_response({"code": "invalid_field", "field": "limit"}, status=422)
        rows = await self._client.zrevrange(board, 0, limit - 1, withscores=True)
        entries = [_entry(index, *row) for index, row in enumerate(rows)]
        return web.json_response({"board": board, "entries": entries})

    async def submit(self, request: web.Request) -> web.Response:
        """Count an event once."""
        board, event = request.match_info["board"], await request.json()
        try:
            member, value, key = event["member"], event["value"], event["idempotency_key"]
        except (KeyError, TypeError):
            return web.json_response({"code": "invalid_field"}, status=422)
        if not (_is_name(member) and _is_name(key) and _is_value(value)):
            return web.json_response({"code": "invalid_field"}, status=422)
        keys = [f"{board}:key:{key}", f"{board}:events", board]
        counted, *rest = await self._count(keys=keys, args=[member, value])
        if not counted:
            return web.json_response({"status": "duplicate"})
        sequence, score = rest
        standing = {"period": "all_time", "score": int(float(score))}
        return web.json_response(
            {"status": "applied", "sequence": sequence, "standings": [standing]}
        )


def _entry(index: int, member: str, score: float) -> dict[str, Any]:
    return {"rank": index + 1, "position": index + 1, "member": member, "score": int(score)}


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= NAME_CHARACTERS_MAX


def _is_value(value: Any) -> bool:
    return type(value) is int and abs(value) <= VALUE_MAX


async def _serve(socket: str) -> web.Application:
    client = redis.asyncio.Redis(
        unix_socket_path=socket, decode_responses=True, max_connections=REDIS_CONNECTIONS_MAX
    )
    return Service(client).application()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("port", type=int)
    parser.add_argument("socket")
    options = parser.parse_args()
    web.run_app(
        _serve(options.socket),
        host="127.0.0.1",
        port=options.port,
        access_log=None,
        print=None,
        loop=uvloop.new_event_loop(),
    )


if __name__ == "__main__":
    main()
