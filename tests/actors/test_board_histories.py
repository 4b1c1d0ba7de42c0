"""A board on disk against a naive model of the contract, whatever is done to it in what order."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
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

from actors.errors import Refusal
from actors.logged_board import BoardOptions, LoggedBoard, PlannedRuling
from actors.offline import verify
from actors.questions import (
    Around,
    Bands,
    Change,
    Digest,
    Lookup,
    Member,
    Range,
    Rank,
    Submit,
    Top,
    Verdict,
)
from actors.submission import parse_submission
from persistence.event_log import LogOptions
from tests.actors.board_harness import (
    DAY_US,
    NOW_US,
    ask,
    at,
    committed,
    entry_of,
    on_disk,
    read,
    refusal_of,
    replayed,
    score_of,
    settled,
)
from tests.actors.naive_board import NaiveBoard, Sent
from tests.actors.naive_rulings import Outcome
from tests.actors.verdicts import outcome_of, pseudonym_of, settled_verdict, some_verdicts

# Few events a segment, so that a short history crosses several.
OPTIONS = BoardOptions(
    log=LogOptions(segment_events_max=12, segment_bytes_max=1 << 20, reserved_free_bytes=0),
    snapshot_events=1_000,
)
HOUR_US = DAY_US // 24
MEMBERS = ("a", "b", "é")
ALL = 1_000  # more than the members and the pseudonyms that there can be
KEYS = tuple(f"key-{number}" for number in range(9))
# The last ones are the largest magnitudes for 0 and 2 decimals, and beyond.
VALUES = (
    "0", "-0.0", "1", "1.0", "2", "-1", "20e-1", "0.5", "0.25", "3", "-3", "0.001",
    "9007199254740991", "-9007199254740991", "9007199254740992",
    "9999999999999.99", "-9999999999999.99",
)  # fmt: skip

score_definitions = st.lists(
    st.fixed_dictionaries(
        {"direction": st.sampled_from(["desc", "asc"]), "decimals": st.sampled_from([0, 0, 2])}
    ),
    min_size=1,
    max_size=2,
)
rules_that_change = {
    "future_tolerance_seconds": st.sampled_from([0, 60, 86_400]),
    "key_retention_days": st.sampled_from([1, 2, 5, None]),
    "min_value": st.sampled_from([None] * 6 + [-1]),
    "max_value": st.sampled_from([None] * 6 + [2]),
    "sources": st.sampled_from([None] * 6 + [["s"], ["s", "t"]]),
    "mode": st.sampled_from(["live", "live", "live", "backfill"]),
}
definitions = st.fixed_dictionaries(
    {
        "aggregation": st.sampled_from(["best", "sum", "latest"]),
        "score": score_definitions,
        "tie_rule": st.sampled_from(["earliest", "latest", "member"]),
        "rank_method": st.sampled_from(["ordinal", "competition", "dense"]),
    }
    | rules_that_change
)
# When an event occurred: microseconds from the first instant of the test, or from now, or left out.
occasions = st.one_of(
    st.none(),
    st.tuples(st.just("start"), st.sampled_from([0, 1, HOUR_US, -HOUR_US])),
    st.tuples(
        st.just("now"),
        st.sampled_from(
            [0, -HOUR_US, 60_000_000, 60_000_001, DAY_US, DAY_US + 1, -DAY_US, -2 * DAY_US - 1]
        ),
    ),
)
# Mostly small ones, so that members tie.
values = st.one_of(st.sampled_from(["0", "1", "1.0", "2"]), st.sampled_from(VALUES))
drawn_events = st.fixed_dictionaries(
    {
        "member": st.sampled_from(MEMBERS),
        "values": st.lists(values, min_size=2, max_size=2),
        "key": st.sampled_from(KEYS),
        "occasion": occasions,
        "source": st.sampled_from([None, None, "s", "t"]),
        "well_formed": st.sampled_from([True] * 12 + [False]),
        # Which of the earlier events this one repeats, if any, and in which field it differs.
        "repeats": st.one_of(st.none(), st.integers(0, 30)),
        "but": st.sampled_from(["nothing", "nothing", "member", "values", "source", "occasion"]),
    }
)
drawn_requests = st.fixed_dictionaries(
    {
        "events": st.lists(drawn_events, min_size=1, max_size=5),
        "batch": st.booleans(),
        "packed": st.booleans(),
    }
)


class BoardMachine(RuleBasedStateMachine):
    """A LoggedBoard and a NaiveBoard that are told the same."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="ranknode-test-"))
        self.directory = self.root / "b"
        self.now_us = NOW_US
        self.host: LoggedBoard | None = None
        self.digests: dict[str, frozenset[Any]] = {}
        self.sent: list[dict[str, Any]] = []

    @initialize(definition=definitions)
    def create(self, definition: dict[str, Any]) -> None:
        score = [{"name": f"key{n}"} | key for n, key in enumerate(definition["score"])]
        self.host = on_disk(self.directory, OPTIONS, **(definition | {"score": score}))
        self.model = NaiveBoard(definition, self.host.board.sequence)

    def teardown(self) -> None:
        try:
            if self.host is not None:
                self.host.close()
                report = verify(self.directory)
                assert report.is_sound, report.findings
        finally:
            shutil.rmtree(self.root)

    # Writing

    def _drawn(self, drawn: dict[str, Any]) -> dict[str, Any]:
        """Settle what a drawn event is: its instant, and what it repeats."""
        if drawn["occasion"] is not None:
            origin, offset_us = drawn["occasion"]
            occurred_at_us = (NOW_US if origin == "start" else self.now_us) + offset_us
            drawn = drawn | {"occasion": occurred_at_us}
        if drawn["repeats"] is not None and self.sent:
            earlier = self.sent[-1 - drawn["repeats"] % len(self.sent)]
            drawn = earlier | {name: drawn[name] for name in {drawn["but"]} & set(drawn)}
        self.sent.append(drawn)
        return drawn

    def _meant(self, drawn: dict[str, Any]) -> Sent:
        return Sent(
            drawn["member"],
            tuple(Decimal(text) for text in drawn["values"][: len(self.model.definition["score"])]),
            drawn["key"],
            drawn["occasion"],
            drawn["source"],
            drawn["well_formed"],
        )

    def _written(self, drawn: dict[str, Any], packed: bool) -> dict[str, Any]:
        """Write an event for an encoder; a number keeps its text in JSON."""
        sent = self._meant(drawn)
        numbers: list[Any] = [msgspec.Raw(text.encode()) for text in drawn["values"]]
        if packed:
            numbers = [int(v) if v == v.to_integral_value() else float(v) for v in sent.value]
        value = numbers[: len(sent.value)] if len(sent.value) > 1 else numbers[0]
        written = {"member": sent.member, "value": value, "idempotency_key": sent.key}
        if sent.occurred_at_us is not None:
            written["occurred_at"] = at(sent.occurred_at_us)
        if sent.source is not None:
            written["source"] = sent.source
        return written if sent.well_formed else written | {"value": True}

    def _submission(self, request: dict[str, Any]) -> Any:
        packed = request["packed"]
        events = [self._written(drawn, packed) for drawn in request["events"]]
        body = {"events": events} if request["batch"] else events[0]
        encode = msgspec.msgpack.encode if packed else msgspec.json.encode
        return parse_submission(Submit(False, self.now_us, encode(body), packed))

    @rule(requests=st.lists(drawn_requests, min_size=1, max_size=3))
    def submit_more(self, requests: list[dict[str, Any]]) -> None:
        # A second rule, for rules are drawn alike and submissions are what matters most.
        self.submit(requests)

    @rule(requests=st.lists(drawn_requests, min_size=1, max_size=3))
    def submit(self, requests: list[dict[str, Any]]) -> None:
        requests = [
            request | {"events": list(map(self._drawn, request["events"]))} for request in requests
        ]
        submissions = [self._submission(request) for request in requests]
        replies = settled(self.host, submissions, self.now_us)
        self.model.clock(self.now_us)
        answers = list(map(read, replies))
        improved = [
            self._follow(request, answer) for request, answer in zip(requests, answers, strict=True)
        ]
        for request, answer, better in zip(requests, answers, improved, strict=True):
            if not request["batch"] and answer["status"] != "rejected":
                self._check_standing(request["events"][0]["member"], answer, better)

    def _follow(self, request: dict[str, Any], answer: dict[str, Any]) -> bool:
        """Check each event's result and let the model do likewise."""
        events = request["events"] if request["batch"] else request["events"][:1]
        results = answer["results"] if request["batch"] else [answer]
        improved, counted = False, []
        for drawn, result in zip(events, results, strict=True):
            sent = self._meant(drawn)
            outcome = Outcome(result["status"], result.get("sequence"), result.get("code"))
            possible = self.model.possible(sent, self.now_us)
            assert outcome in possible, (sent, outcome, possible)
            if outcome.status == "applied":
                improved = self.model.count(sent, self.now_us)
                counted.append(outcome.sequence)
            note(f"{sent.key}: {outcome}")
        if request["batch"]:
            kinds = [result["status"] for result in results]
            assert answer["applied"] == kinds.count("applied")
            assert answer["duplicates"] == kinds.count("duplicate")
            assert answer["rejected"] == kinds.count("rejected")
            assert not counted or answer["sequence"] == counted[-1]
        return improved

    def _check_standing(self, member: str, answer: dict[str, Any], improved: bool) -> None:
        if self.model.index_of(member) is None:  # hidden, or a repetition of what no longer counts
            assert answer["standings"] == []
            return
        place = self.model.standing(member)
        (standing,) = answer["standings"]
        assert standing["period"] == "all_time"
        assert score_of(standing["score"]) == place.score
        index = self.model.index_of(member)
        assert standing["rank"] == self.model.rank(index, place.score)
        assert standing["improved"] == improved

    @rule(step_us=st.sampled_from([1, HOUR_US, DAY_US, 2 * DAY_US, 3 * DAY_US, 8 * DAY_US]))
    def wait(self, step_us: int) -> None:
        self.now_us += step_us

    @rule(changes=st.fixed_dictionaries({}, optional=rules_that_change))
    def change(self, changes: dict[str, Any]) -> None:
        body = json.dumps(changes).encode()
        record = self.host.changed_definition(Change(False, self.now_us, body, False))
        self.model.clock(self.now_us)
        self.model.change(changes)
        if record is not None:
            self.host.commit([record])
            self.host.apply_all([record])
        self.model.clock(self.now_us)

    @rule(drawn=some_verdicts(MEMBERS))
    def moderate_more(self, drawn: list[Any]) -> None:
        self.moderate(drawn, crashes=False)

    @rule(drawn=some_verdicts(MEMBERS), crashes=st.booleans())
    def moderate(self, drawn: list[Any], crashes: bool) -> None:
        """Let verdicts hold; crashes: end between each one's commit and its change."""
        for each in drawn:
            verdict = settled_verdict(each, self.model.rulings, self.now_us)
            planned = self._committed(verdict)
            expected = self.model.rule(verdict, pseudonym_of(planned))
            note(f"{verdict}: {expected}")
            assert outcome_of(planned) == expected
            if crashes:
                self.host.close()
                self.host = LoggedBoard.open(self.directory, OPTIONS)
            elif isinstance(planned, PlannedRuling):
                self.host.rule(planned)

    @rule()
    def finish_erasing(self) -> None:
        """Take the names of who was erased off the disk."""
        erased = len(self.host.board.rulings.erasing)
        digest = self.host.board.members.digest
        if erased:
            self.host.erase_names(self.now_us)
            assert not self.host.shown_log.erasing
            assert self.host.board.members.digest == digest
        self.model.sequence += erased

    def _committed(self, verdict: Verdict) -> PlannedRuling | Refusal:
        try:
            return committed(self.host, verdict)
        except Refusal as refusal:
            return refusal

    # Keeping

    @rule(snapshot=st.booleans(), with_snapshots=st.booleans())
    def reopen(self, snapshot: bool, with_snapshots: bool) -> None:
        if snapshot:
            self._snapshot()
        self._reopen(with_snapshots)

    def _snapshot(self) -> None:
        self.host.write_copy(self.host.copy_state())
        assert self.host.snapshot_current

    def _reopen(self, with_snapshots: bool) -> None:
        digest = self.host.board.state_digest()
        self.host.close()
        if not with_snapshots:
            for path in (self.directory / "snapshots").glob("*"):
                path.unlink()
        self.host = LoggedBoard.open(self.directory, OPTIONS)
        assert self.host.report.snapshots_skipped == ()
        assert with_snapshots or self.host.report.snapshot_sequence == 0
        assert self.host.board.state_digest() == digest

    # Asking

    @rule(
        member=st.sampled_from(MEMBERS),
        count=st.integers(1, 5),
        above=st.integers(0, 3),
        below=st.integers(0, 3),
        texts=st.lists(st.sampled_from(["0", "1", "2.0", "-1", "3"]), min_size=2, max_size=2),
    )
    def ask(self, member: str, count: int, above: int, below: int, texts: list[str]) -> None:
        self._page_through(count)
        self._ask_about_member(member, above, below)
        self._ask_around_position(count, above, below)
        self._ask_about_score(texts)
        self._ask_about_range(texts, count)
        self._ask_about_bands()
        self._ask_about_friends()

    def _page_through(self, limit: int) -> None:
        entries, after = [], None
        while True:
            page = ask(self.host, Top(False, self.now_us, "all_time", None, limit, after))
            entries += map(entry_of, page["entries"])
            after = page["next"]
            if after is None:
                break
            assert len(page["entries"]) == limit
        assert entries == self.model.entries(0, ALL)

    def _ask_about_member(self, member: str, above: int, below: int) -> None:
        index = self.model.index_of(member)
        alone = Member(False, self.now_us, None, None, member)
        around = Around(False, self.now_us, None, None, member, None, None, above, below)
        if index is None:
            assert refusal_of(self.host, alone).code == "member_not_found"
            assert refusal_of(self.host, around).code == "member_not_found"
            return
        answer, members = ask(self.host, alone), len(self.model.order())
        assert [entry_of(answer["entry"])] == self.model.entries(index, 1)
        assert float(answer["percentile"]) == 100 * (members - index) / members
        entries = list(map(entry_of, ask(self.host, around)["entries"]))
        assert entries == self.model.around(index, above, below)

    def _ask_around_position(self, position: int, above: int, below: int) -> None:
        question = Around(False, self.now_us, None, None, None, position, None, above, below)
        entries = list(map(entry_of, ask(self.host, question)["entries"]))
        assert entries == self.model.around(position - 1, above, below)

    def _ask_about_score(self, texts: list[str]) -> None:
        texts = texts[: len(self.model.definition["score"])]
        score = tuple(map(Decimal, texts))
        index = self.model.index_of_newcomer(score)
        answer = ask(self.host, Rank(False, self.now_us, None, None, ",".join(texts)))
        assert (answer["position"], answer["rank"]) == (index + 1, self.model.rank(index, score))
        around = Around(False, self.now_us, None, None, None, None, ",".join(texts), 1, 1)
        entries = list(map(entry_of, ask(self.host, around)["entries"]))
        assert entries == self.model.around(index, 1, 1)

    def _ask_about_range(self, bounds: list[str], limit: int) -> None:
        low, high = map(Decimal, bounds)
        within = [entry for entry in self.model.entries(0, ALL) if low <= entry[3][0] <= high]
        entries, after = [], None
        while True:
            question = Range(False, self.now_us, "all_time", None, *bounds, limit, after)
            page = ask(self.host, question)
            assert page["count"] == len(within)
            entries += map(entry_of, page["entries"])
            after = page["next"]
            if after is None:
                break
            assert len(page["entries"]) == limit
        assert entries == within

    def _ask_about_bands(self) -> None:
        answer = ask(self.host, Bands(False, self.now_us, None, None, "0.1,34,50,100"))
        order = self.model.order()
        for band in answer["bands"]:
            inside = math.ceil(Fraction(band["percentile"]) * len(order) / 100)
            if not order:
                assert (band["position"], band["score"]) == (None, None)
                continue
            assert band["position"] == inside
            assert score_of(band["score"]) == order[inside - 1].score

    def _ask_about_friends(self) -> None:
        friends = [*MEMBERS[::2], "nobody"]
        answer = ask(self.host, Lookup(False, self.now_us, None, None, friends))
        standing = [e for e in self.model.entries(0, ALL) if e[2] in friends]
        assert list(map(entry_of, answer["entries"])) == standing
        assert answer["missing"] == [f for f in friends if f not in {e[2] for e in standing}]
        scores = [entry[3] for entry in standing]
        for place, (entry, score) in enumerate(zip(answer["entries"], scores, strict=True)):
            better = scores[: scores.index(score)]
            ranks = {"competition": len(better) + 1, "dense": len(set(better)) + 1}
            method = self.model.definition["rank_method"]
            assert entry["local_rank"] == ranks.get(method, place + 1)

    @invariant()
    @precondition(lambda self: self.host is not None)
    def agree(self) -> None:
        """Live state, replayed state and the model are one; equal standings, equal digests."""
        answer = ask(self.host, Top(False, self.now_us, None, None, 1_000, None))
        assert list(map(entry_of, answer["entries"])) == self.model.entries(0, ALL)
        assert [entry.get("profile") for entry in answer["entries"]] == [
            json.loads(self.model.rulings.profiles.get(place.member, b"null"))
            for place in self.model.order()
        ]
        assert (answer["next"], answer["members"]) == (None, len(self.model.order()))
        assert answer["sequence"] == self.model.sequence
        digest = ask(self.host, Digest(False, self.now_us, None, None))["digest"]
        places = frozenset(self.model.everyone())
        assert self.digests.setdefault(digest, places) == places
        assert len(set(self.digests.values())) == len(self.digests)
        assert replayed(self.host.log).state_digest() == self.host.board.state_digest()


def test_a_board_is_what_the_contract_says_whatever_happens():
    """Any history of events, changes, restarts and clock moves is answered by the contract."""
    run_state_machine_as_test(
        BoardMachine,
        settings=settings(
            max_examples=250,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
