"""Members who are erased: out of every answer at once, off the disk when the audit says so."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

import pytest

from actors import histories
from actors.errors import Refusal
from actors.questions import Audit, Disputes, History, Lookup, Member, SettleDispute, Top
from tests.actors.board_harness import refusal_of, replayed, score_keys
from tests.actors.clocked_board import ClockedBoard
from tests.actors.conftest import FORMS
from tests.actors.verdicts import dispute, erase, hide, profile, remove, settle, show, void

NOON = "2026-11-30T12:00:00Z"
NEXT_NOON = "2026-12-01T12:00:00Z"
DAY = "daily:2026-11-30"
NAME = "Žofia Nováková"
OTHERS = ("ada", "bob", "cy")
SECRETS = (NAME, "Žofia", "key-of-hers", "what she did", "her avatar")  # never of anyone else


def found_on_disk(board: ClockedBoard) -> dict[str, list[str]]:
    """Search every byte of the board's directory; names the files that hold each secret."""
    found: dict[str, list[str]] = {}
    for path in board.directory.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        for secret in SECRETS:
            if secret.encode() in content:
                found.setdefault(secret, []).append(str(path.relative_to(board.directory)))
    return found


def history(board: ClockedBoard, member: str) -> list[Any]:
    question = History(False, board.now_us, 100, None, member)
    walk = histories.begin_history(board.host.board, question)
    events = list(board.host.shown_log.events_of(member.encode(), walk.limit, walk.sequence))
    return histories.answer_history(board.host.board, question, events).events


def audited(board: ClockedBoard) -> list[Any]:
    question = Audit(False, board.now_us, 1_000, None)
    sequences = histories.begin_audit(board.host.board, question)
    records = [board.host.shown_log.ruling_at(sequence) for sequence in sequences]
    return histories.answer_audit(board.host.board, records).records


def everything(board: ClockedBoard) -> str:
    """Ask all that could name a member, as one text."""
    pseudonyms = [name.decode() for name in board.host.board.rulings.erased]
    periods = [item["id"] for item in board.periods()["periods"]]
    lookup = Lookup(False, board.now_us, None, None, [*OTHERS, *pseudonyms])
    answers = [
        *(board.top(period) for period in periods),
        board.ask(lookup),
        board.ask(Disputes(False, board.now_us, None, None, 100, None)),
        *(
            history(board, member)
            for member in (*OTHERS, *pseudonyms)
            if board.host.board.members.find(member.encode()) >= 0
        ),
        audited(board),
    ]
    return repr(answers)


def played(board: ClockedBoard, *, rounds: int = 12) -> list[int]:
    """Play two days, moderated, each member with as many events; gives the sequences of hers."""
    sequences = []
    for day, now in enumerate((NOON, NEXT_NOON)):
        board.at(now)
        for number in range(rounds):
            for member in (*OTHERS, NAME):
                key = f"key-of-hers-{day}-{number}" if member == NAME else None
                answer = board.send(number % 5, member=member, key=key)
                if member == NAME:
                    sequences.append(answer["sequence"])
        board.seal()
    profile(board, NAME, b'{"avatar_url":"https://her avatar"}')
    profile(board, "ada", b"{}")
    opened = dispute(board, sequences[3], opened_by=NAME)
    settle(board, opened, "upheld", note=f"what she did, {NAME}, is impossible")
    dispute(board, sequences[0] - 1, opened_by=NAME)
    hide(board, "bob")
    board.snapshot()
    return sequences


def places(board: ClockedBoard, period: str) -> dict[str, tuple[Any, ...]]:
    """Give rank, position and score of the others."""
    entries = board.top(period)["entries"]
    return {
        entry["member"]: (entry["rank"], entry["position"], entry["score"])
        for entry in entries
        if entry["member"] in OTHERS
    }


@FORMS
def test_an_erased_member_is_gone_and_leaves_the_others_where_they_were(
    aggregation, keys, tie_rule, rank_method, moderated
):
    """No answer holds the name from then on; others keep their places, exact equals aside.

    The numbers of those who stand stay, in open and closed windows, before and after the name has
    left the disk, and after restarts with losses.
    """
    board = moderated(
        aggregation=aggregation, tie_rule=tie_rule, rank_method=rank_method,
        score=score_keys(*keys),
    )  # fmt: skip
    wide = len(keys) > 1
    for now in (NOON, NEXT_NOON):
        board.at(now)
        for number, member in enumerate((*OTHERS, NAME) * 3):
            value = [number] * len(keys) if wide else number
            board.send(value, now.replace("12:00:00", f"11:00:{number:02d}"), member=member)
        board.seal()
    before = {period: places(board, period) for period in ("all_time", DAY, "daily")}
    counts = {period: board.top(period)["members"] for period in before}
    erase(board, NAME)

    def unchanged() -> None:
        assert {period: places(board, period) for period in before} == before
        assert {period: board.top(period)["members"] for period in before} == counts
        assert NAME not in everything(board)
        for period in before:
            assert board.refusal(Member, period, NAME) == "member_not_found"

    unchanged()
    board.host.erase_names(board.now_us)
    unchanged()
    for lost in (), ("archives",), ("snapshots",), ("archives", "snapshots"):
        board.reopen(*lost)
        unchanged()


def test_among_exact_equals_whoever_was_erased_stands_last(moderated):
    """The pseudonym sorts behind every other name, whatever its first letter."""
    board = moderated(tie_rule="member")
    for member in ("\U0010fffd", NAME, "a", "zz", "ž"):
        board.send(5, member=member)
    erase(board, NAME)
    members = [entry["member"] for entry in board.top()["entries"]]
    assert members[:4] == ["a", "zz", "ž", "\U0010fffd"]
    assert members[4].startswith("\U0010ffff")


@pytest.mark.parametrize("lost", [(), ("archives", "snapshots")], ids=str)
def test_nothing_on_disk_holds_the_name_once_the_audit_says_so(lost, moderated):
    """Not the log, snapshots, archives, profiles, keys or audit texts: every byte is searched."""
    board = moderated()
    played(board)
    before = found_on_disk(board)
    assert set(before) == set(SECRETS), "the search finds what is there"
    assert {path.partition("/")[0] for path in before[NAME]} == {"log", "snapshots", "archives"}
    erase(board, NAME, reason=f"a request of {NAME}")
    assert found_on_disk(board), "it is not gone before it is said to be"
    assert audited(board)[0].action == "erase"
    shown = everything(board)
    assert not any(secret in shown for secret in SECRETS)
    board.reopen(*lost)
    board.host.erase_names(board.now_us)
    assert [record.action for record in audited(board)][:2] == ["erased", "erase"]
    assert found_on_disk(board) == {}
    assert not any(secret in everything(board) for secret in SECRETS)


def test_the_log_written_again_makes_the_same_board(moderated):
    """Its replay, with and without snapshots, ends in the state that was live, bit for bit."""
    board = moderated(keep_closed_periods=1)
    played(board)
    board.at("2026-12-02T12:00:00Z")  # the first day expires: its closing is in the log only
    board.send(1, member="ada")
    erase(board, NAME)
    members = board.host.board.members.digest
    board.host.erase_names(board.now_us)
    live = board.host.board.state_digest()
    assert board.host.board.members.digest == members
    assert replayed(board.host.log).state_digest() == live
    assert len(board.host.log.segments) > 3
    for lost in (), ("snapshots",), ("archives",):
        board.reopen(*lost)
        assert board.host.board.state_digest() == live
    board.send(2, member="ada")
    board.snapshot()
    board.reopen()
    assert board.host.report.snapshots_skipped == ()


def test_later_events_under_the_name_are_a_new_member_s(moderated):
    """The score begins anew, also while the name is being taken off the disk; keys stay used."""
    board = moderated(aggregation="sum")
    sequences = played(board)
    before = board.member("ada")["members"]
    erase(board, NAME)

    def played_on(value: int) -> Any:
        again = board.send(0, member=NAME, key="key-of-hers-0-0")
        assert (again["status"], again["sequence"]) == ("duplicate", sequences[0])
        other = board.send(3, member=NAME, key="key-of-hers-0-0")
        assert other["code"] == "idempotency_conflict"
        board.send(value, member=NAME, key=f"new {value}")
        return board.member(NAME)["entry"]["score"]

    assert played_on(7) == 7
    assert board.member("ada")["members"] == before + 1
    board.host.erase_names(board.now_us)
    assert played_on(8) == 15
    assert [event.value for event in history(board, NAME)] == [8, 7]
    erase(board, NAME)
    board.reopen("snapshots")
    assert played_on(9) == 9
    board.host.erase_names(board.now_us)
    assert played_on(10) == 19
    assert len(board.host.board.rulings.erased) == 2


def test_two_erasures_of_one_name_may_wait_together(moderated):
    """Each part of the log gets the pseudonym of its time."""
    board = moderated()
    for value in (3, 4):
        board.send(value, member=NAME, key=f"key-of-hers-{value}")
        hide(board, NAME)
        erase(board, NAME)
    board.send(9, member="ada")
    board.host.erase_names(board.now_us)
    assert found_on_disk(board) == {}
    board.reopen("snapshots")
    pseudonyms = [name.decode() for name in board.host.board.rulings.erased]
    values = [[event.value for event in history(board, each)] for each in pseudonyms]
    assert values == [[3], [4]]
    assert board.scores() == {"ada": 9}
    assert [show(board, each) > 0 for each in pseudonyms] == [True, True]
    assert list(board.scores().values()) == [9, 4, 3]


def test_a_ruling_of_before_is_of_whoever_had_the_name_then(moderated):
    """Where one name was erased twice, what was ruled before the first counts for that one only."""
    board = moderated()
    void(board, board.send(3, member=NAME, key="key-of-hers-1")["sequence"])
    erase(board, NAME)
    board.send(4, member=NAME, key="key-of-hers-2")
    erase(board, NAME)
    board.at(NEXT_NOON)
    board.host.erase_names(board.now_us)
    assert found_on_disk(board) == {}
    board.reopen("snapshots", "archives")
    assert list(board.scores(DAY).values()) == [4]


@pytest.mark.parametrize("finished", [False, True])
def test_the_events_of_who_was_erased_can_still_be_moderated(finished, moderated):
    """They are voided and disputed by their sequences; rows, revisions and digests follow."""
    board = moderated(aggregation="sum")
    sequences = played(board)
    erase(board, NAME)
    (pseudonym,) = (name.decode() for name in board.host.board.rulings.erased)
    before = board.member(pseudonym)["entry"]["score"]
    board.send(50, member=NAME)  # a new member's, which no ruling about the old one touches
    if finished:
        board.host.erase_names(board.now_us)
    void(board, sequences[1])
    assert board.member(pseudonym)["entry"]["score"] == before - 1
    settle(board, dispute(board, sequences[2]), "upheld")
    assert board.member(pseudonym)["entry"]["score"] == before - 3
    assert (
        board.member(pseudonym, DAY)["entry"]["score"]
        == before - 3 - board.member(pseudonym, "daily")["entry"]["score"]
    )
    events = {event.sequence: event for event in history(board, pseudonym)}
    assert [events[each].voided for each in sequences[:5]] == [False, True, True, True, False]
    remove(board, pseudonym)
    assert board.scores()[NAME] == 50
    assert pseudonym not in board.scores()
    board.reopen("archives", "snapshots")
    assert pseudonym not in board.scores(DAY)
    board.host.erase_names(board.now_us) if not finished else None
    assert replayed(board.host.log).state_digest() == board.host.board.state_digest()


def test_former_revisions_that_named_the_member_are_gone(moderated):
    """They are refused as expired and their files removed, also where she no longer stood."""
    board = moderated()
    played(board)
    remove(board, NAME)
    named = board.top(DAY)["period"]["revision"]
    assert named > 1
    erase(board, NAME)
    assert board.top(DAY)["period"]["revision"] == named, "the newest did not name her"
    board.host.erase_names(board.now_us)
    for revision in range(1, named):
        question = Top(False, board.now_us, DAY, revision, 10, None)
        assert refusal_of(board.host, question).code == "period_expired"
    assert board.archives == {f"{DAY}.{named}.archive"}
    assert found_on_disk(board) == {}


def test_a_name_that_never_played_is_erased_as_well(moderated):
    """Hidden in advance or given a profile, it leaves the audit, memory and disk."""
    board = moderated()
    board.send(1, member="ada")
    hide(board, NAME)
    profile(board, NAME, b'{"avatar_url":"https://her avatar"}')
    board.snapshot()
    erased = erase(board, NAME)
    assert not any(secret in everything(board) for secret in SECRETS)
    board.reopen("snapshots")
    assert not any(secret in everything(board) for secret in SECRETS)
    board.host.erase_names(board.now_us)
    assert found_on_disk(board) == {}
    assert erased < board.host.board.sequence
    board.send(4, member=NAME, key="played now")
    assert board.scores()[NAME] == 4, "it is not hidden any more"


def test_erasing_is_idempotent(moderated):
    """Who is not known, or is erased already, makes no record; a pseudonym names its ruling."""
    board = moderated()
    board.send(1, member=NAME)
    nobody = board.host.board.sequence
    assert erase(board, "nobody") == nobody
    erased = erase(board, NAME)
    assert erase(board, NAME) == erased == board.host.board.sequence
    (pseudonym,) = board.host.board.rulings.erased
    assert erase(board, pseudonym.decode()) == erased
    board.host.erase_names(board.now_us)
    with pytest.raises(Refusal):
        erase(board, "..")
    assert board.host.board.sequence == erased + 1


def test_others_rulings_keep_their_texts_but_for_the_name(moderated):
    """As a word it becomes an ellipsis wherever a moderator wrote it; parts of words stay."""
    board = moderated()
    board.send(1, member="ann")
    sequence = board.send(1, member="ada")["sequence"]
    dispute(board, sequence, opened_by="ann")
    opened = dispute(board, sequence, opened_by="joanna")
    settle(board, opened, "rejected", note="ann saw it: annoying, ann_x and joanna too")
    erase(board, "ann")
    (pseudonym,) = (name.decode() for name in board.host.board.rulings.erased)

    def checked() -> None:
        reasons = [record.reason for record in audited(board)]
        assert "… saw it: annoying, …_x and joanna too" in reasons
        answer = board.ask(Disputes(False, board.now_us, None, None, 100, None))
        assert [each["opened_by"] for each in answer["disputes"]] == ["joanna", pseudonym]
        assert answer["disputes"][0]["note"] == "… saw it: annoying, …_x and joanna too"

    checked()
    board.host.erase_names(board.now_us)
    checked()
    board.reopen("snapshots")
    checked()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("田中太郎", "田中太郎が不正をした"),
        ("สมชาย", "คุณสมชายโกง"),
        ("Müller", unicodedata.normalize("NFD", "it was Müller")),
        ("Müller", "Müller"),
        ("a b", "that a b, again"),
        ("x1", "(x1)"),
    ],
)
def test_a_name_in_a_text_is_found_in_every_script(name, text, moderated):
    """Where words are not divided by spaces any place counts; a text's form does not matter."""
    board = moderated()
    board.send(1, member=name)
    sequence = board.send(1, member="somebody")["sequence"]
    settle(board, dispute(board, sequence), "rejected", note=text)
    erase(board, name)
    board.host.erase_names(board.now_us)
    written = [unicodedata.normalize("NFC", record.reason) for record in audited(board)]
    assert not any(name in reason for reason in written)
    contents = [path.read_bytes() for path in board.directory.rglob("*") if path.is_file()]
    assert not any(text.encode() in content for content in contents)


@pytest.mark.parametrize("mention", ["shown again", "disputes", "decides", "is written of"])
def test_a_name_that_only_rulings_hold_is_erased_as_well(mention, moderated):
    """Nobody with that name ever played, or not since the last erasure: the audit loses it too."""
    board = moderated()
    sequence = board.send(1, member="ada")["sequence"]
    opened = dispute(board, sequence)
    if mention == "shown again":
        hide(board, NAME)
        show(board, NAME)
    elif mention == "disputes":
        dispute(board, sequence, opened_by=NAME)
    elif mention == "decides":
        told = (False, board.now_us, NAME, "so be it", None)
        board.rule(SettleDispute(*told, str(opened), "upheld"))
    else:
        settle(board, opened, "rejected", note=f"what she did, {NAME} knows")
    before = board.host.board.sequence
    assert found_on_disk(board)
    assert erase(board, NAME) == before + 1
    assert NAME not in everything(board)
    board.reopen("snapshots")
    assert NAME not in everything(board)
    board.host.erase_names(board.now_us)
    assert NAME not in found_on_disk(board)
    assert erase(board, NAME) == board.host.board.sequence, "nothing is left to be erased"


STEPS: list[Callable[[Any], Any]] = [
    lambda host: host.seal_all(),
    lambda host: host.make_archives(host.archives.sealed),
    lambda host: host.archives.remove_expired(),
    lambda host: host.log.seal_live(),
    lambda host: host.shown_log.write_again(host.board.rulings.erasing, lambda: None),
    lambda host: host.put_log_in_place(),
    lambda host: host.shown_log.remove_former(),
    lambda host: host.write_copy(host.copy_state()),
]


@pytest.mark.parametrize("steps", range(len(STEPS) + 1))
def test_erasing_goes_on_after_a_crash_between_any_two_steps(steps, moderated):
    """The board comes back as it was, shows no name, and the erasure can be finished."""
    board = moderated()
    played(board)
    erase(board, NAME)
    digest = board.host.board.state_digest()
    for step in STEPS[:steps]:
        step(board.host)
    board.reopen()
    assert board.host.board.state_digest() == digest
    assert not any(secret in everything(board) for secret in SECRETS)
    board.send(3, member="ada")
    board.host.erase_names(board.now_us)
    assert found_on_disk(board) == {}
    assert not (board.directory / "erasing").exists()
