"""What a rank and an event cost in a board's process, by how many members the board has.

Members are drawn at random, so that nothing but luck has them in the processor's caches. Boards of
all sizes are measured in turn, round after round; a figure is the median of its rounds, and growth
the median of the rounds' ratios, since what disturbs a round disturbs all of its boards.
"""

from __future__ import annotations

import random
import statistics
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from time import perf_counter

import msgspec

from actors.logged_board import BoardOptions, LoggedBoard
from actors.questions import Ask, Member, Submit, decode_asks, encode
from actors.replies import reply_at_once
from actors.submission import parse_submission
from loadtest.board_marks import BYTES_A_MEMBER, GROWTH, Figure, shown
from loadtest.filled_boards import ASKED_US, VALUE_MAX, create, fill_with_numbered, numbered_name

SIZES = 4
SIZE_STEP = 10
CALLS = 1_000  # of each operation in a round
BATCH_EVENTS = 1_000


class SizedBoard:
    """A board of `size` members that adds up scores, so that every event moves its member."""

    def __init__(self, host: LoggedBoard, size: int) -> None:
        self.size = size
        self._host = host
        self._draw = random.Random(size)
        self._submitted = 0
        fill_with_numbered(host, self._draw, size)

    @property
    def bytes_a_member(self) -> float:
        """Bytes of members and standings, of keys none."""
        board = self._host.board
        return (board.members.nbytes + board.windows["all_time"].nbytes) / self.size

    def rank(self) -> float:
        """Return the seconds of a call that finds a name and the index of its member."""
        find = self._host.board.members.find
        index = self._host.board.windows["all_time"].standings.index
        names = [self._name() for _ in range(CALLS)]
        begun = perf_counter()
        for name in names:
            index(find(name))
        return (perf_counter() - begun) / CALLS

    def update(self) -> float:
        """Return the seconds of a call that counts an event."""
        apply = self._host.board.windows["all_time"].standings.apply
        slots = [array("i", [self._draw.randrange(self.size)]) for _ in range(CALLS)]
        values = [array("q", [self._value()]) for _ in range(CALLS)]
        at = array("q", [ASKED_US])
        begun = perf_counter()
        for slot, value in zip(slots, values, strict=True):
            apply(slot, value, at)
        return (perf_counter() - begun) / CALLS

    def answer(self) -> float:
        """Return the seconds that a question for a member's rank takes, decoded to encoded."""
        payload = encode(
            [
                Ask(0, Member(False, ASKED_US, "all_time", None, self._name().decode()))
                for _ in range(CALLS)
            ]
        )
        begun = perf_counter()
        encode([reply_at_once(self._host, ask) for ask in decode_asks(payload)])
        return (perf_counter() - begun) / CALLS

    def batch(self) -> float:
        """Return the seconds an event of a batch takes to be parsed, planned and applied.

        Its record is not written: the disk's part does not depend on the members.
        """
        body = msgspec.json.encode({"events": [self._event() for _ in range(BATCH_EVENTS)]})
        begun = perf_counter()
        submission = parse_submission(Submit(False, ASKED_US, body, body_packed=False))
        record = self._host.plan([submission], ASKED_US).record
        if record is None:
            raise SystemExit("a batch was refused")
        self._host.board.apply(record)
        return (perf_counter() - begun) / BATCH_EVENTS

    def _event(self) -> dict[str, object]:
        self._submitted += 1
        key = f"submitted-{self._submitted:014d}"
        return {"member": self._name().decode(), "value": self._value(), "idempotency_key": key}

    def _name(self) -> bytes:
        return numbered_name(self._draw.randrange(self.size))

    def _value(self) -> int:
        return self._draw.randrange(1, VALUE_MAX)


OPERATIONS: dict[str, Callable[[SizedBoard], float]] = {
    "rank: find a member and its index": SizedBoard.rank,
    "update: count one event": SizedBoard.update,
    "a rank as it is asked for and answered": SizedBoard.answer,
    "an event of a batch of 1,000, from body to standings": SizedBoard.batch,
}


def size_figures(
    directory: Path, options: BoardOptions, members: int, rounds: int
) -> Iterator[Figure]:
    """Time each operation on boards of up to `members`, each of SIZES a tenth of the next."""
    sizes = [members // SIZE_STEP**power for power in reversed(range(SIZES))]
    with ExitStack() as stack:
        boards = [
            SizedBoard(
                stack.enter_context(
                    closing(create(directory / f"members-{size}", options, aggregation="sum"))
                ),
                size,
            )
            for size in sizes
        ]
        largest = boards[-1]
        yield Figure(
            f"{BYTES_A_MEMBER}, {members:,} of them", largest.bytes_a_member, "B a member",
            BYTES_A_MEMBER,
        )  # fmt: skip
        seconds: dict[str, list[Sequence[float]]] = {name: [] for name in OPERATIONS}
        for _ in range(rounds):
            for name, operation in OPERATIONS.items():
                seconds[name].append([operation(board) for board in boards])
        for name, each in seconds.items():
            medians = [1e6 * statistics.median(column) for column in zip(*each, strict=True)]
            for size, median in zip(sizes, medians, strict=True):
                yield Figure(f"{name}, {size:,} members", median, "µs")
            growth = statistics.median(of_round[-1] / of_round[0] for of_round in each)
            note = f"{shown(medians[0])} → {shown(medians[-1])} µs"
            yield Figure(f"{name}: {GROWTH}", growth, "x", GROWTH, note)
