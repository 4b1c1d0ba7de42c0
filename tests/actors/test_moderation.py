"""What moderation does to members and their scores, by the contract."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from actors.errors import Refusal
from actors.moderation import Log, plan_ruling
from actors.queries import answer
from actors.questions import (
    Around,
    Disputes,
    Lookup,
    Member,
    Range,
    Top,
    Void,
)
from tests.actors.board_harness import score_keys
from tests.actors.clocked_board import ClockedBoard
from tests.actors.conftest import FORMS
from tests.actors.naive import seeded
from tests.actors.verdicts import ACTOR, dispute, hide, profile, remove, settle, show, void

NOON = "2026-11-30T12:00:00Z"
NEXT_NOON = "2026-12-01T12:00:00Z"
DAY, NEXT_DAY = "daily:2026-11-30", "daily:2026-12-01"
PERIODS = ["all_time", "daily"]
MEMBERS = ("ada", "bob", "cy", "dan")


def code_of(call: Callable[..., int], *arguments: Any) -> str:
    """Give a verdict that is refused, and return the code."""
    with pytest.raises(Refusal) as refused:
        call(*arguments)
    return refused.value.code


def places(board: ClockedBoard, period: str) -> list[Any]:
    """List the entries of a window as they are answered."""
    entries: list[Any] = board.top(period)["entries"]
    return entries


# What no longer counts


def played(board: ClockedBoard, events: list[Any]) -> list[int]:
    """Play events of two days, those of the second after the first has closed."""
    sequences = []
    for member, value, occurred_at in events:
        if occurred_at.startswith("2026-12-01"):
            board.at(NEXT_NOON)
        sequences.append(board.send(value, occurred_at, member=member)["sequence"])
    return sequences


def some_events(seed: int, keys: list[str]) -> list[Any]:
    """Draw events whose values and instants are often equal."""
    rng = seeded(seed)
    events = []
    for number in range(28):
        value = [rng.choice([-1, 0, 0, 1, 2, Decimal(3)]) for _ in keys]
        day = "2026-11-30" if number < 14 else "2026-12-01"
        occurred_at = f"{day}T11:00:0{rng.randrange(5)}Z"
        scored = [int(cell) for cell in value]
        events.append((rng.choice(MEMBERS), scored if len(keys) > 1 else scored[0], occurred_at))
    return events


@pytest.mark.parametrize("seed", range(3))
@FORMS
def test_what_is_left_is_as_if_the_rest_had_never_come(
    aggregation, keys, tie_rule, rank_method, seed, moderated
):
    """After voiding and removing, every window, open or closed, is that of the other events."""
    events, rng = some_events(seed, keys), seeded(seed)
    fields = {
        "aggregation": aggregation, "tie_rule": tie_rule, "rank_method": rank_method,
        "score": score_keys(*keys),
    }  # fmt: skip
    board, twin = moderated(**fields), moderated(**fields)
    sequences = played(board, events)
    hide(board, "bob")
    gone = set(rng.sample(range(len(events)), 9))
    gone |= {number for number, event in enumerate(events) if event[0] == "dan"}
    for number in rng.sample(sorted(gone), len(gone)):
        if events[number][0] != "dan" or number % 2:
            void(board, sequences[number])
    remove(board, "dan")
    for value in (1, 2):
        board.send([value] * len(keys) if len(keys) > 1 else value, NEXT_NOON, member="dan")
    show(board, "bob")
    played(twin, [event for number, event in enumerate(events) if number not in gone])
    twin.at(NEXT_NOON)
    for value in (1, 2):
        twin.send([value] * len(keys) if len(keys) > 1 else value, NEXT_NOON, member="dan")
    for period in ("all_time", DAY, NEXT_DAY):
        assert places(board, period) == places(twin, period)
        assert board.digest(period) == twin.digest(period)


def test_a_void_is_given_once(moderated):
    """Voiding again is answered with the first record's sequence, and writes nothing."""
    board = moderated()
    board.send(5)
    event = board.send(7)["sequence"]
    first = void(board, event)
    assert first == event + 1
    for lost in ((), ("snapshots",)):
        assert void(board, event) == first
        assert board.host.board.sequence == first
        board.reopen(*lost)
    assert board.scores() == {"ada": 5}


def test_only_events_are_voided(moderated):
    """The sequence of a definition, a closing, a ruling, or of nothing is refused."""
    board = moderated()
    event = board.send(5)["sequence"]
    board.at(NEXT_NOON)
    ruling = hide(board, "bob")
    last = board.host.board.sequence
    for sequence in (-1, 0, 1, 2, event + 1, ruling, last + 1, 2**62):
        assert code_of(void, board, sequence) == "event_not_found"
        assert code_of(dispute, board, sequence) == "event_not_found"
    assert board.host.board.sequence == last
    assert board.scores() == {"ada": 5}


def test_the_last_event_takes_its_member_along(moderated):
    """Who has no event that counts stands nowhere, and comes back with the next one."""
    board = moderated()
    event = board.send(5)["sequence"]
    void(board, event)
    for period in PERIODS:
        assert board.scores(period) == {}
        assert board.refusal(Member, period, "ada") == "member_not_found"
    assert board.digest("all_time") == board.digest("daily:2026-11-29")
    assert board.send(2)["standings"] == [
        {"period": period, "score": 2, "rank": 1, "improved": True} for period in ("all_time", DAY)
    ]


def test_a_removed_member_stays_removed(moderated):
    """No replay brings its events back, in any window; its keys stay used; it may start afresh."""
    board = moderated()
    occurred_at = "2026-11-30T11:00:00Z"
    first = board.send(5, occurred_at, key="one")["sequence"]
    board.send(1, member="bob")
    board.at(NEXT_NOON)
    board.send(7)
    ruling = remove(board, "ada")
    for lost in ((), ("snapshots",), ("archives",), ("snapshots", "archives")):
        board.snapshot()
        board.reopen(*lost)
        assert board.scores() == board.scores(DAY) == {"bob": 1}
        assert board.scores("daily") == {}
    assert remove(board, "ada") == ruling
    again = board.send(5, occurred_at, key="one")
    assert (again["status"], again["sequence"], again["standings"]) == ("duplicate", first, [])
    assert board.send(6, occurred_at, key="one")["code"] == "idempotency_conflict"
    assert void(board, first) > ruling
    board.send(2)
    assert board.scores() == {"ada": 2, "bob": 1}
    assert board.scores(DAY) == {"bob": 1}
    assert remove(board, "ada") == board.host.board.sequence
    assert board.scores() == {"bob": 1}


def test_only_who_played_is_removed(moderated):
    """A name without events is not found; one whose events are void already needs no record."""
    board = moderated()
    hide(board, "nobody")
    assert code_of(remove, board, "nobody") == "member_not_found"
    void(board, board.send(1)["sequence"])
    last = board.host.board.sequence
    assert remove(board, "ada") == last
    assert board.host.board.sequence == last


@pytest.mark.parametrize("name", ["", " a", "a\u0000", ".", "x" * 129])
def test_a_name_that_no_member_has_is_refused(name, moderated):
    """What cannot be a member's name is invalid, whatever is asked for it."""
    board = moderated()
    for call, rest in ((hide, ()), (show, ()), (remove, ()), (profile, (b"{}",))):
        assert code_of(call, board, name, *rest) == "invalid_field"
    assert board.host.board.sequence == 2


@pytest.mark.parametrize(("decimals", "most"), [(0, 2**53 - 1), (2, Decimal("9999999999999.99"))])
def test_a_total_outside_the_exact_range_is_kept(decimals, most, moderated):
    """What moderation moves outside is answered exactly; then only what leads back is accepted."""
    board = moderated(score=[{"name": "score", "decimals": decimals}])
    number = float(most) if decimals else most
    board.send(number, member="bob")
    board.send(number)
    down = [board.send(-number)["sequence"], board.send(-number)["sequence"]]
    board.send(number)
    board.at(NEXT_NOON)
    for event in down:
        void(board, event)
    for lost in ((), ("snapshots",), ("archives", "snapshots")):
        board.reopen(*lost)
        assert board.scores() == board.scores(DAY) == {"ada": 2 * most, "bob": most}
        assert list(board.scores()) == ["ada", "bob"]
        assert board.send(1)["code"] == "value_out_of_range"
        assert board.batch(board.event(number), board.event(1)) == ["value_out_of_range"] * 2
        board.snapshot()
    assert board.send(-number)["status"] == "applied"
    assert board.scores() == {"bob": most, "ada": most}
    assert board.send(1)["code"] == "value_out_of_range"
    assert board.scores(DAY) == {"ada": 2 * most, "bob": most}


def test_a_total_beyond_64_bits_is_refused(moderated):
    """A ruling whose total nothing could hold is refused, and nothing is written."""
    board = moderated()
    sequence = board.send(2**53 - 1)["sequence"]
    event = board.host.log.event(sequence)
    many = [event._replace(sequence=sequence + number) for number in range(1_026)]
    log = Log(board.host.log.event, lambda member: iter(many[::-1]), lambda _: False)
    verdict = Void(False, board.now_us, *ACTOR, sequence)
    with pytest.raises(Refusal) as refused:
        plan_ruling(board.host.board, log, verdict)
    assert refused.value.code == "value_out_of_range"
    log = Log(board.host.log.event, lambda member: iter(many[:1_000][::-1]), lambda _: False)
    record = plan_ruling(board.host.board, log, verdict)
    assert record.ruling.changes[0].after.score == (999 * (2**53 - 1),)


# Profiles


def test_a_profile_comes_with_every_entry(moderated):
    """It is in each answer that has the member's entry, in either encoding, and nowhere else."""
    board = moderated()
    for member in ("ada", "bob"):
        board.send(1, member=member)
    profile(board, "ada", b'{"display_name":"Ada \xc3\xa9","extra":{"level":1.50}}')
    shown = {"display_name": "Ada é", "extra": {"level": Decimal("1.50")}}
    window = (None, None)
    for lost in ((), ("snapshots",)):
        for question, field in (
            (Top(False, board.now_us, *window, 9, None), "entries"),
            (Around(False, board.now_us, *window, "bob", None, None, 1, 1), "entries"),
            (Range(False, board.now_us, *window, None, None, 9, None), "entries"),
            (Lookup(False, board.now_us, *window, ["bob", "ada"]), "entries"),
            (Member(False, board.now_us, *window, "ada"), "entry"),
        ):
            found = board.ask(question)[field]
            found = found if isinstance(found, list) else [found]
            profiles = {entry["member"]: entry.get("profile") for entry in found}
            assert profiles == {member: {"ada": shown}.get(member) for member in profiles}
            assert "ada" in profiles
        board.snapshot()
        board.reopen(*lost)
    packed = answer(board.host.board, board.host.archives, Top(True, 0, *window, 1, None))
    (entry,) = msgspec.msgpack.decode(packed)["entries"]
    assert entry["profile"] == {"display_name": "Ada é", "extra": {"level": 1.5}}


def test_a_profile_is_set_before_playing_and_again(moderated):
    """The newest one holds; the same one again writes nothing; scores are not concerned."""
    board = moderated()
    first = profile(board, "ada", b'{"display_name":"A"}')
    board.send(1)
    state = board.digest("all_time")
    assert board.top()["entries"][0]["profile"] == {"display_name": "A"}
    assert profile(board, "ada", b'{"display_name":"A"}') == first + 1  # the event's
    assert profile(board, "ada", b'{"display_name":"B"}') == first + 2
    assert board.top()["entries"][0]["profile"] == {"display_name": "B"}
    assert board.digest("all_time") == state


# Disputes


def listed(board: ClockedBoard, status: str | None = None, period: str | None = None) -> Any:
    """List disputes as id and status, newest first, through pages of two."""
    found: list[Any] = []
    after = None
    while True:
        page = board.ask(Disputes(False, board.now_us, status, period, 2, after))
        found += [(int(each["id"]), each["status"]) for each in page["disputes"]]
        after = page["next"]
        if after is None:
            assert page["count"] == len(found)
            return found


def test_an_upheld_dispute_voids_its_event(moderated):
    """Upheld, the event no longer counts in any window, open or closed; rejected, it does."""
    board = moderated()
    cheated, fair = board.send(90)["sequence"], board.send(5)["sequence"]
    board.at(NEXT_NOON)
    one, other = dispute(board, cheated), dispute(board, fair, "bob")
    assert board.scores() == board.scores(DAY) == {"ada": 95}
    settled = settle(board, one, "upheld", "too fast")
    settle(board, other, "rejected")
    for lost in ((), ("snapshots",), ("snapshots", "archives")):
        assert board.scores() == board.scores(DAY) == {"ada": 5}
        assert void(board, cheated) == settled
        board.snapshot()
        board.reopen(*lost)
    page = board.ask(Disputes(False, board.now_us, "upheld", None, 9, None))
    assert page["disputes"] == [
        {
            "id": str(one), "status": "upheld", "event_sequence": cheated, "member": "ada",
            "windows": ["all_time", DAY], "reason": "impossible", "opened_by": "ref",
            "opened_at": NEXT_NOON, "note": "too fast", "actor": "judge", "settled_at": NEXT_NOON,
        }
    ]  # fmt: skip


def test_disputes_are_counted_by_window(moderated):
    """A dispute belongs to the windows that its event counted in, whatever becomes of them."""
    board = moderated()
    early = board.send(1)["sequence"]
    board.at(NEXT_NOON)
    late = board.send(2)["sequence"]
    first, second = dispute(board, early), dispute(board, early, "bob")
    third = dispute(board, late)
    settle(board, second, "upheld")
    everything = [(third, "open"), (second, "upheld"), (first, "open")]
    for lost in ((), ("snapshots",)):
        assert listed(board) == listed(board, period="all_time") == everything
        assert listed(board, period=DAY) == everything[1:]
        assert listed(board, period="daily") == everything[:1]
        assert listed(board, "open", DAY) == [(first, "open")]
        assert listed(board, "rejected") == []
        board.snapshot()
        board.reopen(*lost)


def test_a_dispute_that_is_sent_again_is_the_one_that_is_open(moderated):
    """The same dispute by the same opener is one while it is open; after that it is another."""
    board = moderated()
    event = board.send(1)["sequence"]
    opened = dispute(board, event)
    last = board.host.board.sequence
    assert dispute(board, event) == opened
    assert board.host.board.sequence == last
    settle(board, opened, "rejected")
    assert dispute(board, event) > opened


def test_a_dispute_is_settled_once(moderated):
    """The same settlement again writes nothing; another one, and unknown disputes, are refused."""
    board = moderated()
    event = board.send(1)["sequence"]
    opened = dispute(board, event)
    settled = settle(board, opened, "rejected")
    board.send(2)
    last = board.host.board.sequence
    assert settle(board, opened, "rejected") == settled
    assert code_of(settle, board, opened, "upheld") == "invalid_field"
    for unknown in ("0", f"0{opened}", str(event), "-1", "one", "", "9" * 25, "\u0663"):
        assert code_of(settle, board, unknown, "upheld") == "dispute_not_found"
    assert board.host.board.sequence == last
    assert board.scores() == {"ada": 3}


def test_what_is_void_already_is_not_voided_again(moderated):
    """Upholding a dispute about a voided event, or one of a removed member, changes no score."""
    board = moderated()
    event, other = board.send(1)["sequence"], board.send(2, member="bob")["sequence"]
    one, two = dispute(board, event), dispute(board, other)
    voided = void(board, event)
    remove(board, "bob")
    digest = board.digest("all_time")
    settle(board, one, "upheld")
    settled = settle(board, two, "upheld")
    assert (void(board, event), void(board, other)) == (voided, settled)
    assert board.digest("all_time") == digest
    assert board.scores() == {}
