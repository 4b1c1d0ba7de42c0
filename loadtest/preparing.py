"""The boards of a run, made and filled on a node over HTTP, before its load begins."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any
from urllib.parse import urlsplit

from loadtest.profiles import Board, Profile, Traffic, seed_event

LEAD_SECONDS = 3.0  # from when all is ready until the first call: for users to be made
LEADS_SECONDS_MAX = (5.0, 20.0, 60.0)  # tried in turn where boards say when the run begins
BATCH_EVENTS = 5_000  # the most that one request may hold
ANSWER_SECONDS_MAX = 30.0


def prepare(url: str, profile: Profile, factor: float, seconds: float) -> Traffic:
    """Create the boards of a new run, and have every player play once; says when it begins.

    A cup ends within the run, so when it begins is known beforehand: where making the boards takes
    longer, they are left, and others made. Errors: SystemExit where the node cannot be reached, or
    refuses.
    """
    for lead_seconds in LEADS_SECONDS_MAX:
        begins_at = time.time() + lead_seconds
        traffic = Traffic(profile, factor, seconds, f"{int(begins_at):x}", begins_at)
        try:
            _make_boards(url, traffic)
        except (OSError, http.client.HTTPException) as error:
            raise SystemExit(f"{url} cannot be reached: {error}") from error
        ready_at = time.time() + LEAD_SECONDS
        if profile.cup_share is None:
            traffic.begins_at = ready_at
        if ready_at <= traffic.begins_at:
            return traffic
    raise SystemExit(f"the boards were not ready within {LEADS_SECONDS_MAX[-1]:.0f} s")


def _make_boards(url: str, traffic: Traffic) -> None:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_SECONDS_MAX)
    try:
        for board in traffic.boards:
            _call(connection, "PUT", f"/v1/boards/{board.name}", traffic.definition())
            _seed(connection, board)
    finally:
        connection.close()


def _seed(connection: http.client.HTTPConnection, board: Board) -> None:
    for first in range(0, board.players, BATCH_EVENTS):
        players = range(first, min(first + BATCH_EVENTS, board.players))
        batch = {"events": [seed_event(player) for player in players]}
        answer = _call(connection, "POST", f"/v1/boards/{board.name}/events", batch)
        if answer["applied"] != len(players):
            raise SystemExit(f"the players of {board.name} had played before, or were refused")


def _call(connection: http.client.HTTPConnection, method: str, path: str, body: Any) -> Any:
    connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status not in (200, 201):
        raise SystemExit(f"{method} {path} was answered with {answer.status}: {text.decode()}")
    return json.loads(text)
