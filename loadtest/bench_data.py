"""What the systems side by side hold, and what they are asked.

One board of `members` members, each with one event to begin with. Values are a permutation, so
that no two members stand equal and every system must give the same ranks. Ids and keys have 24
bytes. Requests are the same bytes for all.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from loadtest.http_clients import MakeRequest, Request

BOARD = "b"
STRIDE = 7_368_787  # a prime, so that multiples of it modulo a smaller number are a permutation
READS_PER_SECOND_MAX = 40_000  # prepared so many: more than are sent, so that none is met twice
BATCH_EVENTS = 1_000
BATCHES_PER_SECOND_MAX = 200  # prepared so many; what is sent beyond them is made on the way
TOP_LIMIT = 10
READ_HEAD = "HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def member_id(number: int) -> str:
    """Name a member by its number, in 24 bytes."""
    return f"member-{number:017d}"


def first_value(number: int, members: int) -> int:
    """Give the value of a member's first event: 0 to members - 1, each once."""
    return number * STRIDE % members


def first_rank(number: int, members: int) -> int:
    """Give the rank of a member as long as its first event is its only one, like everyone's."""
    return members - first_value(number, members)


def event_key(run: int, number: int) -> str:
    """Name an event by the run that sends it and its number there, in 24 bytes."""
    return f"load-{run:04d}-{number:014d}"


def draw_numbers(draw: random.Random, members: int, skewed: bool) -> Iterator[int]:
    """Draw members without end: each alike, or by Zipf's law with exponent 1.

    The latter by inverting its distribution: the logarithm of a place is uniform. Places are spread
    over the numbers, so that popular members do not lie side by side in memory.
    """
    while True:
        if skewed:
            yield int(members ** draw.random()) * STRIDE % members
        else:
            yield draw.randrange(members)


def read_request(path: str) -> bytes:
    """Make the bytes of a read of the board."""
    return f"GET /v1/boards/{BOARD}{path} {READ_HEAD}".encode()


def member_request(number: int) -> bytes:
    """Make the bytes of a read of a member's rank, past caches."""
    return read_request(f"/members/{member_id(number)}?read=actor")


def events_request(board: str, body: str) -> bytes:
    """Make the bytes that submit a body."""
    return (
        f"POST /v1/boards/{board}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


def event_body(member: int, value: int, key: str) -> str:
    """Make the JSON of an event."""
    return f'{{"member":"{member_id(member)}","value":{value},"idempotency_key":"{key}"}}'


def rank_requests(members: int, skewed: bool, seconds: float, run: int) -> MakeRequest:
    """Prepare reads of members' ranks for a run of some seconds."""
    numbers = draw_numbers(random.Random(run), members, skewed)
    count = int(seconds * READS_PER_SECOND_MAX)
    pool = [Request(member_request(each), None) for each in itertools.islice(numbers, count)]
    return lambda number: pool[number % count]


def top_requests() -> MakeRequest:
    """Prepare reads of the top."""
    request = Request(read_request(f"/top?limit={TOP_LIMIT}"), None)
    return lambda _number: request


def event_requests(members: int, run: int) -> MakeRequest:
    """Make single events of random members, each with a key of its own."""
    draw = random.Random(run)

    def make(number: int) -> Request:
        body = event_body(
            draw.randrange(members), draw.randrange(100, 1000), event_key(run, number)
        )
        return Request(events_request(BOARD, body), number)

    return make


def batch_requests(board: str, members: int, run: int, seconds: float) -> MakeRequest:
    """Prepare batches of events for a run of some seconds."""
    draw = random.Random(run)

    def batch(number: int) -> Request:
        first = number * BATCH_EVENTS
        events = ",".join(
            event_body(draw.randrange(members), draw.randrange(100, 1000), event_key(run, each))
            for each in range(first, first + BATCH_EVENTS)
        )
        return Request(events_request(board, f'{{"events":[{events}]}}'), number)

    pool = [batch(number) for number in range(int(seconds * BATCHES_PER_SECOND_MAX))]
    return lambda number: pool[number] if number < len(pool) else batch(number)
