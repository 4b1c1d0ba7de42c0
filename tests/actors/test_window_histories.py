"""A simulated year: windows on disk against a naive model, over boundaries, crashes and losses."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from actors.definition import KINDS
from actors.errors import Refusal
from actors.logged_board import BoardOptions, PlannedRuling
from actors.offline import verify
from actors.periods import WEEKDAYS, Bounds
from actors.questions import Digest, Disputes, Top
from persistence.event_log import LogOptions
from tests.actors.board_harness import (
    DAY_US,
    at,
    entry_of,
    event,
    instant,
    read,
    refusal_of,
    replayed,
    submit_all,
)
from tests.actors.clocked_board import ClockedBoard
from tests.actors.naive_board import Place, Sent
from tests.actors.naive_rulings import NaiveDispute
from tests.actors.naive_windows import SECOND_US, NaiveSeason, NaiveWindow
from tests.actors.verdicts import (
    drawn_verdicts,
    outcome_of,
    pseudonym_of,
    settled_verdict,
    some_verdicts,
)

# A few events a segment and no room for archives in memory, so that a short history meets both.
OPTIONS = BoardOptions(
    log=LogOptions(segment_events_max=25, segment_bytes_max=1 << 20, reserved_free_bytes=0),
    snapshot_events=1_000,
    archive_cache_bytes_max=1,
)
HOUR_US = DAY_US // 24
MEMBERS = ("a", "b", "é")
PERIODIC = KINDS[1:]
STEPS_US = [HOUR_US, -HOUR_US, 1, *(days * DAY_US for days in (1, 2, 8, 40, 400, -1, -30))]

zones = st.sampled_from(
    ["America/New_York", "Pacific/Apia", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC"]
)
# Around clock changes of these zones, a day that Apia skipped, a leap day and a turn of the year.
beginnings = st.sampled_from(
    ["2011-12-29T09:00:00Z", "2024-02-28T22:00:00Z", "2026-03-08T06:30:00Z",
     "2026-10-03T14:00:00Z", "2026-12-31T20:00:00Z"]
).map(instant)  # fmt: skip
fixed_windows = {"cup": (-DAY_US, 2 * DAY_US), "final": (5 * DAY_US, 9 * DAY_US),
                 "past": (-30 * DAY_US, -9 * DAY_US)}  # fmt: skip
rules_that_change = {
    "grace_seconds": st.sampled_from([0, 300, 86_400, 5 * 86_400]),
    "future_tolerance_seconds": st.sampled_from([0, 60, 86_400]),
    "keep_closed_periods": st.sampled_from([None, None, None, 0, 1, 4]),
    "mode": st.sampled_from(["live", "live", "live", "backfill"]),
}
definitions = st.fixed_dictionaries(
    {
        "aggregation": st.sampled_from(["best", "sum", "latest"]),
        "tie_rule": st.sampled_from(["earliest", "latest", "member"]),
        "rank_method": st.sampled_from(["ordinal", "competition", "dense"]),
        "timezone": zones,
        "day_starts_at": st.sampled_from(["00:00", "02:30", "05:00", "23:00"]),
        "week_starts_on": st.sampled_from(WEEKDAYS),
        "key_retention_days": st.none(),
        "periods": st.lists(
            st.sampled_from([*KINDS, *PERIODIC, *fixed_windows]),
            min_size=1, max_size=5, unique=True,
        ),
    }
    | rules_that_change
)  # fmt: skip
# When an event occurred: left out, by the clock, or at the start of the window of some period.
occasions = [
    *[None] * 6,
    *[("clock", days * DAY_US) for days in (1, -1, -2, -8, -40, -400)],
    *[("clock", offset_us) for offset_us in (0, 60 * SECOND_US, 60 * SECOND_US + 1, -HOUR_US)],
    *[(kind, offset_us) for kind in PERIODIC for offset_us in (-DAY_US, -1, 0)],
]
# An event is few choices, so that a history can hold many. The last number says which of the
# earlier ones it repeats, if any.
drawn_events = st.tuples(
    st.sampled_from([(member, value) for member in MEMBERS for value in range(-1, 4)]),
    st.sampled_from(occasions),
    st.integers(0, 99).map(lambda number: number if number < 12 else None),
)
submissions = st.lists(drawn_events, min_size=1, max_size=4)


@contextlib.contextmanager
def elsewhere() -> Iterator[None]:
    """Change the system's zone and move its clock by years, which no log may notice."""
    real = time.time_ns
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo" if os.environ.get("TZ") != "Asia/Tokyo" else "UTC")
        patch.setattr(time, "time_ns", lambda: real() + 3 * 366 * DAY_US * 1_000)
        patch.setattr(time, "time", lambda: time.time_ns() / 1e9)
        time.tzset()
        yield
    time.tzset()


class SeasonMachine(RuleBasedStateMachine):
    """A LoggedBoard and a NaiveSeason that are told the same."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="ranknode-test-"))
        self.board: ClockedBoard | None = None
        self.sent: list[Sent] = []
        self.digests: dict[tuple[str, int], str] = {}
        self.standings: dict[str, frozenset[Any]] = {}  # by published digest

    @initialize(definition=definitions, now_us=beginnings)
    def create(self, definition: dict[str, Any], now_us: int) -> None:
        fixed = [
            Bounds(name, name, now_us + start_us, now_us + end_us)
            for name, (start_us, end_us) in fixed_windows.items()
            if name in definition["periods"]
        ]
        written = {
            bounds.id: {"name": bounds.id, "start": at(bounds.start_us), "end": at(bounds.end_us)}
            for bounds in fixed
        }
        definition["periods"] = [written.get(period, period) for period in definition["periods"]]
        definition["score"] = [{"name": "score", "direction": "desc", "decimals": 0}]
        self.board = ClockedBoard(self.root, now_us, OPTIONS, **definition)
        self.model = NaiveSeason(definition, fixed, self.board.host.board.sequence)

    def teardown(self) -> None:
        try:
            if self.board is not None:
                self.board.seal()
                self.board.rebuild()
                self._replay_elsewhere()
                self.board.close()
                report = verify(self.board.directory)
                assert report.is_sound, report.findings
        finally:
            shutil.rmtree(self.root)

    def _replay_elsewhere(self) -> None:
        with elsewhere():
            board = replayed(self.board.host.log)
        assert board.state_digest() == self.board.host.board.state_digest()

    # Time

    def _closed(self) -> None:
        self.model.close_due(self.board.now_us)
        assert self.board.host.closings(self.board.now_us) == []

    @rule(step_us=st.sampled_from(STEPS_US))
    def wait(self, step_us: int) -> None:
        self.board.now_us += step_us

    @rule(which=st.integers(0, 5), graced=st.booleans(), offset_us=st.sampled_from([-1, 0, 0, 1]))
    def wait_for_boundary(self, which: int, graced: bool, offset_us: int) -> None:
        """Move to about where an open window ends, or may close, and close what is due."""
        ends = sorted(
            window.end_us
            for window in self.model.windows.values()
            if window.closed_at_us is None and window.end_us is not None
        )
        if ends:
            grace_us = self.model.grace_us if graced else 0
            self.board.now_us = ends[which % len(ends)] + offset_us + grace_us
        self.tick()

    def tick(self) -> None:
        """Close what is due, as the board's process does by itself."""
        self.board.close_due()
        self._closed()

    # Writing

    def _meant(self, drawn: Any) -> Sent:
        """Settle what a drawn event is: its instant, or which earlier one it repeats."""
        (member, value), occasion, repeats = drawn
        if repeats is not None and self.sent:
            return self.sent[-1 - repeats % len(self.sent)]
        occurred_at_us = None
        if occasion is not None:
            kind, offset_us = occasion
            occurred_at_us = self.board.now_us + offset_us
            if kind != "clock":
                bounds = self.model.calendar.window_at(kind, self.board.now_us)
                occurred_at_us = bounds.start_us + offset_us
        key = f"key-{len(self.sent)}"
        sent = Sent(member, (Decimal(value),), key, occurred_at_us)
        self.sent.append(sent)
        return sent

    @rule(drawn=submissions, batch=st.booleans())
    def submit_more(self, drawn: list[Any], batch: bool) -> None:
        # A second rule, for rules are drawn alike and submissions are what matters most.
        self.submit(drawn, batch, closes=True)

    @rule(drawn=submissions, batch=st.booleans(), closes=st.booleans())
    def submit(self, drawn: list[Any], batch: bool, closes: bool) -> None:
        """Submit events, mostly after closing what is due: else they are before it in the log."""
        if closes:
            self.tick()
        now_us = self.board.now_us
        sent = [self._meant(each) for each in drawn]
        events = [
            event(
                each.member,
                int(each.value[0]),
                each.key,
                **({} if each.occurred_at_us is None else {"occurred_at": each.occurred_at_us}),
            )
            for each in sent
        ]
        replies = submit_all(self.board.host, [{"events": events}] if batch else events, now_us)
        answers = list(map(read, replies))
        counted = []
        for each, result in zip(sent, answers[0]["results"] if batch else answers, strict=True):
            expected = self.model.expected(each, now_us)
            note(f"{each.key}: {expected}")
            found = (result["status"], result.get("sequence"), result.get("code"))
            assert found == tuple(expected)
            applied = expected.status == "applied"
            counted.append(self.model.count(each, now_us) if applied else None)
        if not batch:
            for each, answer, windows in zip(sent, answers, counted, strict=True):
                if windows is not None:
                    self._check_standings(each.member, answer["standings"], windows)

    def _check_standings(
        self, member: str, standings: list[dict[str, Any]], windows: list[tuple[str, bool]]
    ) -> None:
        """Compare with the state after the commit, of each window the event counted in."""
        if member in self.model.rulings.hidden:
            assert standings == []
            return
        assert [(each["period"], each["improved"]) for each in standings] == windows
        for each in standings:
            naive = self.model.windows[each["period"]].standings
            place = naive.standing(member)
            assert (each["score"],) == place.score
            assert each["rank"] == naive.rank(naive.index_of(member), place.score)

    @rule(changes=st.fixed_dictionaries({}, optional=rules_that_change))
    def change(self, changes: dict[str, Any]) -> None:
        self.board.patch(**changes)
        self.model.change(changes)
        self._closed()

    # Moderation

    @rule(drawn=some_verdicts(MEMBERS), which=st.integers(0, 5))
    def moderate_the_past(self, drawn: list[Any], which: int) -> None:
        """Rule on what was played as soon as a window has closed."""
        self.wait_for_boundary(which, graced=True, offset_us=0)
        self.moderate(drawn)

    @rule(drawn=some_verdicts(MEMBERS))
    def moderate(self, drawn: list[Any]) -> None:
        self.tick()
        for each in drawn:
            verdict = settled_verdict(each, self.model.rulings, self.board.now_us)
            planned = self.board.tried(verdict)
            expected = self.model.rule(verdict, pseudonym_of(planned))
            note(f"{verdict}: {expected}")
            assert outcome_of(planned) == expected

    @rule()
    def finish_erasing(self) -> None:
        """Take the names of who was erased off the disk."""
        self.tick()
        self.model.sequence += len(self.board.host.board.rulings.erasing)
        if self.board.host.shown_log.erasing:
            self.board.host.erase_names(self.board.now_us)
            assert not self.board.host.shown_log.erasing

    # Keeping

    @rule(seals=st.booleans(), copies=st.booleans())
    def keep(self, seals: bool, copies: bool) -> None:
        if seals:
            self.board.seal()
            self.board.rebuild()
        if copies:
            self.board.snapshot()

    @rule(
        lost=st.sets(st.sampled_from(["snapshots", "archives"])),
        moved=st.booleans(),
        closes=st.booleans(),
    )
    def crash(self, lost: set[str], moved: bool, closes: bool) -> None:
        """End without a word, perhaps between closing and sealing, and come back with losses."""
        if closes:
            self.tick()
        digest = self.board.host.board.state_digest()
        with elsewhere() if moved else contextlib.nullcontext():
            self.board.reopen(*lost)
        assert self.board.host.report.snapshots_skipped == ()
        assert self.board.host.board.state_digest() == digest

    @rule(drawn=drawn_verdicts(MEMBERS), lost=st.sets(st.sampled_from(["snapshots", "archives"])))
    def crash_while_ruling(self, drawn: Any, lost: set[str]) -> None:
        """End after a ruling was committed and before it is applied, and come back with losses."""
        self.tick()
        verdict = settled_verdict(drawn, self.model.rulings, self.board.now_us)
        try:
            planned: PlannedRuling | Refusal = self.board.rule(verdict, *lost, crashes=True)
        except Refusal as refusal:
            planned = refusal
        assert outcome_of(planned) == self.model.rule(verdict, pseudonym_of(planned))

    # Asking

    @rule(kind=st.sampled_from(PERIODIC))
    def ask_by_kind(self, kind: str) -> None:
        """Ask for the window of now and the one before, whether or not they were played."""
        now_us, board = self.board.now_us, self.board
        if kind not in self.model.kinds:
            assert board.refusal(Top, kind, 1, None) == "period_not_found"
            return
        current = self.model.calendar.window_at(kind, now_us)
        previous = self.model.calendar.previous(current)
        for period, bounds in ((kind, current), (f"{kind}:previous", previous)):
            if self.model.is_expired(bounds):
                assert board.refusal(Top, period, 1, None) == "period_expired"
                continue
            answer, window = board.top(period), self.model.windows.get(bounds.id)
            shown = answer["period"]
            assert (shown["id"], instant(shown["start"]), instant(shown["end"])) == (
                bounds.id, bounds.start_us, bounds.end_us,
            )  # fmt: skip
            over = self.model.is_over(bounds, now_us)
            assert shown["closed"] == (over if window is None else window.closed_at_us is not None)
            assert answer["members"] == (0 if window is None else window.members)

    @invariant()
    @precondition(lambda self: self.board is not None)
    def agree(self) -> None:
        """Every window, open or closed, and the list of them are what the model says."""
        board = self.board
        assert board.host.board.sequence == self.model.sequence
        for window in self.model.windows.values():
            self._check_window(window)
        for name in self.model.expired:
            assert self.board.refusal(Digest, name) == "period_expired"
        listed = self.board.periods(limit=1_000)["periods"]
        assert [item["id"] for item in listed] == [each.id for each in self.model.listed()]
        for item, window in zip(listed, self.model.listed(), strict=True):
            assert item["members"] == window.members
            assert item["closed"] == (window.closed_at_us is not None)
            if window.closed_at_us is not None:
                assert instant(item["closed_at"]) == window.closed_at_us
                assert item["revision"] == len(window.revisions)
                assert self.digests[window.id, item["revision"]] == item["digest"]
        self._check_disputes()
        assert replayed(board.host.log).state_digest() == board.host.board.state_digest()

    def _check_window(self, window: NaiveWindow) -> None:
        closed = window.closed_at_us is not None
        answer = self.board.top(window.id)
        entries = window.standings.entries_of(window.order)
        assert list(map(entry_of, answer["entries"])) == entries
        shown = answer["period"]
        assert (shown["id"], shown["closed"]) == (window.id, closed)
        assert shown["revision"] == (len(window.revisions) if closed else None)
        bounds = [None if shown[end] is None else instant(shown[end]) for end in ("start", "end")]
        assert bounds == [window.start_us, window.end_us]
        for revision, places in enumerate(window.revisions, 1):
            self._check_revision(window, revision, places)

    def _check_revision(
        self, window: NaiveWindow, revision: int, places: list[Place] | None
    ) -> None:
        """Its digest is for ever, and of all that stood; who is hidden now is not shown."""
        if places is None:
            gone = Digest(False, self.board.now_us, window.id, revision)
            assert refusal_of(self.board.host, gone).code == "period_expired"
            return
        digest = self.board.digest(window.id, revision)
        assert self.digests.setdefault((window.id, revision), digest) == digest
        everyone = frozenset(places)
        assert self.standings.setdefault(digest, everyone) == everyone
        if revision < len(window.revisions):
            answer = self.board.top(window.id, revision=revision)
            entries = window.standings.entries_of(window.standings.shown(places))
            assert list(map(entry_of, answer["entries"])) == entries
            assert answer["period"]["revision"] == revision

    def _check_disputes(self) -> None:
        disputes = self.model.rulings.disputes
        answer = self.board.ask(Disputes(False, self.board.now_us, None, None, 100, None))
        assert answer["count"] == len(disputes)
        found = {
            int(each["id"]): NaiveDispute(
                each["event_sequence"],
                set(each["windows"]),
                each["opened_by"],
                each["reason"],
                each["status"],
            )
            for each in answer["disputes"]
        }
        assert found == disputes


def test_windows_are_what_the_contract_says_whatever_happens():
    """Any year of events, clocks, changes, crashes and losses leaves each window as it must be."""
    run_state_machine_as_test(
        SeasonMachine,
        settings=settings(
            max_examples=80,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
