"""How long a board of many members takes to answer queries: open windows, and one from its archive.

Each call is one as a board's process answers it: the ask is decoded, answered from memory and
the reply encoded. Arguments are random, and never name anyone who is hidden.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter

from actors.logged_board import BoardOptions, LoggedBoard
from actors.questions import (
    AnyQuestion,
    Around,
    Ask,
    Bands,
    Hide,
    Lookup,
    Member,
    Range,
    Rank,
    Top,
    decode_asks,
    encode,
)
from actors.replies import reply_at_once
from loadtest.figures import ENCODINGS, Figure, of_calls
from loadtest.filled_boards import (
    ASKED_US,
    CUP,
    VALUE_MAX,
    create,
    draw_names,
    fill_with_members,
    with_cup,
)

RANK_METHODS = ("ordinal", "competition", "dense")
MARK_MS = 0.5
PERCENTILES = 20
EACH_SIDE = 10
PAGE = 100
FILL_EVENTS = 10_000  # a commit; nothing of the log is measured here
WARM_UP_CALLS = 20


class Drawn:
    """Questions with random arguments about one window, in one encoding."""

    def __init__(self, names: Sequence[bytes], period: str, packed: bool) -> None:
        self._names = names
        self._draw = random.Random(len(names))
        self._about = (packed, ASKED_US, period, None)

    def bands(self) -> AnyQuestion:
        """Ask for bands at as many percentiles as a chart would show."""
        hundredths = (self._draw.randint(1, 10_000) for _ in range(PERCENTILES))
        return Bands(*self._about, ",".join(f"{each / 100:.2f}" for each in hundredths))

    def rank(self) -> AnyQuestion:
        """Ask for the rank of a score."""
        return Rank(*self._about, str(self._draw.randrange(VALUE_MAX)))

    def around_member(self) -> AnyQuestion:
        """Ask for the entries around a member."""
        return Around(*self._about, self._name(), None, None, EACH_SIDE, EACH_SIDE)

    def around_score(self) -> AnyQuestion:
        """Ask for the entries around a score."""
        score = str(self._draw.randrange(VALUE_MAX))
        return Around(*self._about, None, None, score, EACH_SIDE, EACH_SIDE)

    def lookup(self) -> AnyQuestion:
        """Ask for friends."""
        friends = self._draw.sample(self._names, PAGE)
        return Lookup(*self._about, [name.decode() for name in friends])

    def range(self) -> AnyQuestion:
        """Ask for a page of the entries up to a score."""
        return Range(*self._about, None, str(self._draw.randrange(VALUE_MAX)), PAGE, None)

    def member(self) -> AnyQuestion:
        """Ask for a member's entry."""
        return Member(*self._about, self._name())

    def top(self) -> AnyQuestion:
        """Ask for the first page."""
        return Top(*self._about, PAGE, None)

    def _name(self) -> str:
        return self._draw.choice(self._names).decode()


KINDS: dict[str, tuple[float | None, Callable[[Drawn], AnyQuestion]]] = {
    f"bands, {PERCENTILES} percentiles": (MARK_MS, Drawn.bands),
    "rank": (MARK_MS, Drawn.rank),
    f"around a member, {EACH_SIDE} each side": (MARK_MS, Drawn.around_member),
    f"around a score, {EACH_SIDE} each side": (MARK_MS, Drawn.around_score),
    f"lookup of {PAGE}": (MARK_MS, Drawn.lookup),
    f"range, {PAGE} entries": (None, Drawn.range),
    "member": (None, Drawn.member),
    f"top {PAGE}": (None, Drawn.top),
}


def query_figures(
    directory: Path, options: BoardOptions, members: int, hidden: int, calls: int
) -> Iterator[Figure]:
    """Time every query with every rank method: open and closed, with nobody hidden and some.

    directory: where each board lies as long as it is measured. Errors: SystemExit for a refusal.
    """
    for method in RANK_METHODS:
        draw = random.Random(members)
        names = draw_names(draw, members)
        path = directory / method
        fields = {"rank_method": method, "periods": with_cup("all_time")}
        with closing(create(path, options, **fields)) as host:
            fill_with_members(host, draw, names, FILL_EVENTS)
            yield from _figures(host, names, "all_time", f"{method} ranks, open", calls)
            _close_cup(host)
            yield from _figures(host, names, CUP, f"{method} ranks, archive", calls)
            draw.shuffle(names)
            _hide(host, names[:hidden])
            shown = names[hidden:]
            also = f"{hidden:,} hidden"
            yield from _figures(host, shown, "all_time", f"{method} ranks, open, {also}", calls)
            yield from _figures(host, shown, CUP, f"{method} ranks, archive, {also}", calls)
        shutil.rmtree(path)


def _close_cup(host: LoggedBoard) -> None:
    """Close the cup, and bring its standings to memory from its archive, as a first query does."""
    host.close_due(ASKED_US)
    host.seal_all()
    closed = host.board.closed[CUP]
    host.archives.keep(closed.revision, *host.archives.read(closed, closed.revision))


def _hide(host: LoggedBoard, names: Sequence[bytes]) -> None:
    for name in names:
        verdict = Hide(False, ASKED_US, "moderator", "", None, name.decode(), hidden=True)
        planned = host.plan_ruling(verdict)
        assert planned.record is not None
        host.commit([planned.record])
        host.rule(planned)


def _figures(
    host: LoggedBoard, names: Sequence[bytes], period: str, where: str, calls: int
) -> Iterator[Figure]:
    for kind, (mark_ms, make) in KINDS.items():
        seconds = {}
        for packed in ENCODINGS:
            drawn = Drawn(names, period, packed)
            each = [_ask_seconds(host, make(drawn)) for _ in range(WARM_UP_CALLS + calls)]
            seconds[packed] = each[WARM_UP_CALLS:]
        yield of_calls(f"{where}: {kind}", mark_ms, seconds)


def _ask_seconds(host: LoggedBoard, question: AnyQuestion) -> float:
    payload = encode([Ask(0, question)])
    begun = perf_counter()
    replies = [reply_at_once(host, ask) for ask in decode_asks(payload)]
    encode(replies)
    seconds = perf_counter() - begun
    if replies[0].code:
        raise SystemExit(f"{question} was refused: {replies[0].detail}")
    return seconds
