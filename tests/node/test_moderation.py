"""The life of moderated boards on a whole node, which is killed in the middle of it."""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.key_samples import add_key
from tests.node.moderated_board import BY, DAY, Board, refused
from tests.node.test_damaged_boards import small_disk
from tests.running_node import RunningNode, clean_up, wait_until

MakeNode = Callable[..., RunningNode]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """Start the node that most tests share; each has boards of its own."""
    made = RunningNode(tmp_path_factory.mktemp("moderated") / "data").start()
    yield made
    clean_up(made)


def test_a_moderated_board_lives_through_a_kill(node: RunningNode) -> None:
    """Rulings change what they should, in open and closed windows, and a kill forgets none."""
    board = Board(node, "life", periods=["all_time", "daily"], mode="backfill")
    first = board.submit(("ada", 30, "a1"), ("bob", 20, "b1"), ("cyd", 10, "c1"), ("ada", 5, "a2"),
                         ("dan", 1, "d1"), occurred_at="2020-03-02T10:00:00Z")[0]  # fmt: skip
    assert board.rule("PATCH", "", {"mode": "live"})["mode"] == "live"
    published = board.ask(f"digest?period={DAY}")
    assert published["period"]["revision"] == 1
    at_closing = [("ada", 35), ("bob", 20), ("cyd", 10), ("dan", 1)]
    assert board.scores(f"?period={DAY}") == at_closing

    void = board.rule("POST", f"/events/{first}/void")
    assert board.rule("POST", f"/events/{first}/void", {"actor": "x", "reason": "y"}) == void
    assert void["sequence"] == board.ask("top")["sequence"], "what holds already is no new record"
    after_void = [("bob", 20), ("cyd", 10), ("ada", 5), ("dan", 1)]
    for query in ("", f"?period={DAY}", f"?period={DAY}&revision=2"):
        assert board.scores(query) == after_void
    assert board.scores(f"?period={DAY}&revision=1") == at_closing
    assert board.ask(f"digest?period={DAY}&revision=1")["digest"] == published["digest"]
    revised = board.ask(f"digest?period={DAY}")
    assert (revised["period"]["revision"], revised["digest"] != published["digest"]) == (2, True)

    hide = board.rule("PUT", "/members/bob/hidden")
    assert board.rule("PUT", "/members/bob/hidden") == hide
    for query in ("", f"?period={DAY}"):
        assert board.scores(query) == [pair for pair in after_void if pair[0] != "bob"]
    assert board.scores(f"?period={DAY}&revision=1") == [
        pair for pair in at_closing if pair[0] != "bob"
    ]
    hidden = board.ask(f"digest?period={DAY}")
    assert (hidden["digest"], hidden["members"]) == (revised["digest"], 3)
    refused(board.call("GET", "/members/bob"), 404, "member_not_found")
    board.submit(("bob", 100, "b2"), ("eve", 40, "e1"))
    assert board.scores()[0] == ("eve", 40)

    profile = {"display_name": "Zoë", "extra": {"guild": ["Owls", 7, None, 0.1]}}
    board.rule("PUT", "/members/cyd/profile", profile)
    assert board.ask("members/cyd")["entry"]["profile"] == profile
    refused(board.call("PUT", "/members/cyd/profile", {"display_name": "x" * 1_100}), 422,
            "invalid_field")  # fmt: skip
    board.rule("POST", "/disputes", {"sequence": first + 1, "reason": "r", "opened_by": "dan"}, 201)
    removed = board.rule("DELETE", "/members/ada")
    assert board.rule("DELETE", "/members/ada") == removed
    assert board.scores() == [("eve", 40), ("cyd", 10), ("dan", 1)]
    assert board.ask(f"top?period={DAY}")["period"]["revision"] == 3

    before = board.seen()
    assert before["members/bob False"] == "member_not_found"
    board.killed()
    assert board.seen() == before

    status, again = board.call("POST", "/events", {
        "member": "ada", "value": 5, "idempotency_key": "a2", "occurred_at": "2020-03-02T10:00:00Z",
    })  # fmt: skip
    assert (status, again["status"]) == (200, "duplicate"), "a removed member's keys stay used"
    board.submit(("ada", 2, "a3"))
    board.rule("DELETE", "/members/bob/hidden")
    assert board.scores() == [("bob", 120), ("eve", 40), ("cyd", 10), ("ada", 2), ("dan", 1)]
    assert board.scores(f"?period={DAY}") == [("bob", 20), ("cyd", 10), ("dan", 1)]
    assert board.scores(f"?period={DAY}&revision=1") == at_closing
    assert board.ask(f"digest?period={DAY}&revision=1")["digest"] == published["digest"]
    shown = board.ask("members/cyd")["entry"]["profile"]
    assert shown == profile
    board.rule("PUT", "/members/cyd/profile", {})
    assert board.ask("members/cyd")["entry"]["profile"] == {}, "a profile replaces the one before"


def test_revisions_that_are_none_are_refused(node: RunningNode) -> None:
    """Only a closed window has revisions, from 1 to its newest, in every call about windows."""
    board = Board(node, "revisions", periods=["all_time", "daily"], mode="backfill")
    (first,) = board.submit(("ada", 30, "a1"), occurred_at="2020-03-02T10:00:00Z")
    board.rule("PATCH", "", {"mode": "live"})
    board.rule("POST", f"/events/{first}/void")
    calls = ("top?", "members/ada?", "around?rank=1&", "rank?score=1&", "range?", "digest?",
             "bands?percentiles=1&")  # fmt: skip
    for call in calls:
        window = f"/{call}period={DAY}&revision="
        assert board.call("GET", f"{window}1")[0] == 200
        assert board.call("GET", f"{window}2")[0] == (404 if call == "members/ada?" else 200)
        refused(board.call("GET", f"{window}3"), 404, "period_not_found")
        refused(board.call("GET", f"{window}0"), 422, "invalid_field")
        refused(board.call("GET", f"/{call}revision=1"), 404, "period_not_found")
    lookup = {"members": ["ada"]}
    found = board.call("POST", f"/members/lookup?period={DAY}&revision=1", lookup)[1]
    assert [entry["score"] for entry in found["entries"]] == [30]
    assert board.call("POST", f"/members/lookup?period={DAY}", lookup)[1]["missing"] == ["ada"]


def test_every_profile_is_answered_in_both_forms(node: RunningNode) -> None:
    """Whatever profile was taken, from either form, every answer about its member can show it."""
    deep: Any = []
    for _ in range(490):
        deep = [deep]
    extras = {
        "deep": {"a": deep},
        "lookup": {"a": [2**64 - 1, -(2**63), 5e-324, None, True, "é\x00"]},
        "events": {},
    }
    board = Board(node, "profiles")
    board.submit(*((member, 1, member) for member in extras))
    for packed in (False, True):
        for member, extra in extras.items():
            how = {"packed": packed}
            path = f"/members/{member}"
            assert board.call("PUT", f"{path}/profile", {"extra": extra}, **how)[0] == 200
            for form in (False, True):
                status, answer = board.call("GET", path, packed=form)
                assert (status, answer["entry"]["profile"]) == (200, {"extra": extra})
    names = {"members": list(extras)}
    for form in (False, True):
        tops = board.call("GET", "/top", packed=form)[1]["entries"]
        found = board.call("POST", "/members/lookup", names, packed=form)[1]["entries"]
        for entries in (tops, found):
            assert {e["member"]: e["profile"]["extra"] for e in entries} == extras


def test_disputes_are_settled_once(node: RunningNode) -> None:
    """A dispute is open, upheld or rejected; upheld it voids its event; a kill forgets none."""
    board = Board(node, "disputed", periods=["all_time", "daily", "monthly"])
    sequences = board.submit(*((f"m{i}", 10 + i, f"k{i}") for i in range(4)))
    opening = {"reason": "nobody is that fast", "opened_by": "bob"}
    opened = [
        board.rule("POST", "/disputes", opening | {"sequence": sequence, "opened_by": name}, 201)
        for sequence, name in zip((*sequences, sequences[0]), ("bob",) * 4 + ("cy",), strict=True)
    ]
    again = board.rule("POST", "/disputes", opening | {"sequence": sequences[1]}, 201)
    assert again["id"] == opened[1]["id"], "sent again it is the one that is open"
    ids = [dispute["id"] for dispute in opened]
    assert len(set(ids)) == 5
    first = opened[0]
    assert first | opening == first
    assert (first["status"], first["member"], first["event_sequence"]) == ("open", "m0",
                                                                          sequences[0])  # fmt: skip
    assert [first[name] for name in ("note", "actor", "settled_at")] == [None] * 3
    assert [window.partition(":")[0] for window in sorted(first["windows"])] == [
        "all_time", "daily", "monthly",
    ]  # fmt: skip

    uphold = {"status": "upheld", "note": "the replay shows it", "actor": "mod-1"}
    reject = {"status": "rejected", "note": "a fair run", "actor": "mod-2"}
    upheld = board.rule("PATCH", f"/disputes/{ids[0]}", uphold)
    assert (upheld["status"], upheld["note"], upheld["actor"]) == (*uphold.values(),)
    assert upheld["settled_at"] >= upheld["opened_at"]
    refused(board.call("GET", "/members/m0"), 404, "member_not_found")
    board.rule("PATCH", f"/disputes/{ids[1]}", reject)
    assert board.scores() == [("m3", 13), ("m2", 12), ("m1", 11)]
    again = board.rule("PATCH", f"/disputes/{ids[0]}", uphold | {"note": "twice"})
    assert again | {"sequence": upheld["sequence"]} == upheld, "the first note stays"
    for dispute, other in ((ids[0], reject), (ids[1], uphold)):
        problem = refused(board.call("PATCH", f"/disputes/{dispute}", other), 422, "invalid_field")
        assert problem["field"] == "status"
    board.rule("PATCH", f"/disputes/{ids[4]}", uphold)
    assert board.scores() == [("m3", 13), ("m2", 12), ("m1", 11)], "its event was void already"

    unknown = ("999999", "abc", f"0{ids[0]}", "-1", " 1", "1.0", "１", str(sequences[0]))  # noqa: RUF001
    for dispute in unknown:
        path = f"/disputes/{urllib.parse.quote(dispute)}"
        refused(board.call("PATCH", path, uphold), 404, "dispute_not_found")
    refused(board.call("PATCH", f"/disputes/{'9' * 21}", uphold), 422, "invalid_field")
    for sequence in (1, 999_999, 2**53 - 1):
        body = opening | {"sequence": sequence}
        refused(board.call("POST", "/disputes", body), 404, "event_not_found")
        refused(board.call("POST", f"/events/{sequence}/void", BY), 404, "event_not_found")

    def listed(query: str) -> tuple[list[str], int]:
        answer = board.ask(f"disputes?{query}")
        return [dispute["id"] for dispute in answer["disputes"]], answer["count"]

    for killed in (False, True):
        if killed:
            board.killed()
        assert listed("") == (ids[::-1], 5)
        assert listed("status=open") == ([ids[3], ids[2]], 2)
        assert listed("status=upheld&period=daily") == ([ids[4], ids[0]], 2)
        assert listed("status=rejected&period=monthly") == ([ids[1]], 1)
        assert listed("period=daily:2020-03-02") == ([], 0)
        refused(board.call("GET", "/disputes?period=weekly"), 404, "period_not_found")
        page = board.ask("disputes?limit=2")
        assert [dispute["id"] for dispute in page["disputes"]] == [ids[4], ids[3]]
        rest = board.ask(f"disputes?limit=3&after={page['next']}")
        assert [dispute["id"] for dispute in rest["disputes"]] == ids[2::-1]
        assert (rest["next"], rest["count"]) == (None, 5)
        other = f"/disputes?status=open&limit=2&after={page['next']}"
        refused(board.call("GET", other), 422, "invalid_cursor")


def test_a_history_is_paged_across_a_kill(node: RunningNode) -> None:
    """A member's events come newest first, each once, past new ones and a kill, by cursors."""
    board, other = Board(node, "paged"), Board(node, "unpaged")
    for batch in range(5):
        rows = [(member, i, f"{member}-{batch}-{i}") for i in range(10) for member in ("a/b", "é")]
        board.submit(*rows, source=f"server-{batch}")
        other.submit(*rows)
    (last,) = board.submit(("a/b", 5, "last"))
    board.rule("POST", f"/events/{last}/void")
    pages, after, path = [], None, "members/a%2Fb/events?limit=7"
    while not pages or after is not None:
        page = board.ask(path + (f"&after={after}" if after else ""))
        assert (page["member"], page["board"]) == ("a/b", "paged")
        pages.append(page["events"])
        after = page["next"]
        if len(pages) == 2:
            for wrong in ("/members/%C3%A9/events", "/audit", "/disputes", "/top", "/range"):
                refused(board.call("GET", f"{wrong}?after={after}"), 422, "invalid_cursor")
            refused(other.call("GET", f"/{path}&after={after}"), 422, "invalid_cursor")
            refused(board.call("GET", f"/{path}&after={after[:-1]}"), 422, "invalid_cursor")
        if len(pages) == 3:
            board.submit(("a/b", 1, "while it is read"))
            board.killed()
    events = [event for page in pages for event in page]
    assert [len(page) for page in pages] == [7] * 7 + [2]
    sequences = [event["sequence"] for event in events]
    assert sequences == sorted(set(sequences), reverse=True)
    keys = [event["idempotency_key"] for event in events]
    assert keys == ["last", *(f"a/b-{batch}-{i}" for batch in range(4, -1, -1)
                              for i in range(9, -1, -1))]  # fmt: skip
    assert [event["voided"] for event in events] == [True] + [False] * 50
    assert [event["value"] for event in events] == [5, *list(range(9, -1, -1)) * 5]
    assert [event["source"] for event in events] == [
        None, *(f"server-{batch}" for batch in range(4, -1, -1) for _ in range(10)),
    ]  # fmt: skip
    assert all(event["occurred_at"] == event["received_at"] for event in events)

    board.rule("PUT", "/members/%C3%A9/hidden")
    assert len(board.ask("members/%C3%A9/events?limit=1000")["events"]) == 50
    board.rule("DELETE", "/members/%C3%A9")
    assert all(event["voided"] for event in board.ask("members/%C3%A9/events")["events"])
    refused(board.call("GET", "/members/nobody/events"), 404, "member_not_found")
    refused(board.call("GET", "/members/nobody/events?min_sequence=99999"), 503, "not_yet")
    refused(board.call("DELETE", "/members/nobody", BY), 404, "member_not_found")
    board.rule("PUT", "/members/nobody/hidden")
    board.submit(("nobody", 1_000, "unseen"))
    assert board.scores() == [("a/b", 226)], "a name may be hidden before it ever plays"


def test_the_audit_names_the_keys(make_node: MakeNode) -> None:
    """Every ruling stands in the audit, newest first, with who decided, why, and by which key."""
    node = make_node()
    node.data.mkdir()
    submitter, *admins = (add_key(node.data, scope) for scope in ("submit", "admin", "admin"))
    node.start()
    board = Board(node, "audited", admins[0])
    first, second = board.submit(("ada", 30, "a1"), ("bob", 20, "b1"))
    opening = {"sequence": second, "reason": "no", "opened_by": "ada"}
    expected = []

    def rule(action: str, method: str, rest: str, body: Any, key: str, **more: Any) -> Any:
        status, answer = board.call(method, rest, body, key=key)
        assert status in (200, 201), answer
        assert board.call(method, rest, body, key=submitter)[0] == (
            201 if action == "dispute" else 403
        )
        actor = body.get("actor", body.get("opened_by", ""))
        reason = body.get("reason", body.get("note", ""))
        found = {"action": action, "actor": actor, "reason": reason, "key": key.split("_")[1]}
        found |= {"sequence": answer["sequence"], "event_sequence": None, "dispute": None}
        expected.append(found | more)
        return answer

    rule("void", "POST", f"/events/{first}/void", BY, admins[0], member="ada",
         event_sequence=first)  # fmt: skip
    rule("hide", "PUT", "/members/bob/hidden", BY | {"actor": "m2"}, admins[1], member="bob")
    rule("unhide", "DELETE", "/members/bob/hidden", BY, admins[1], member="bob")
    rule("profile", "PUT", "/members/new/profile", {"display_name": "N"}, admins[0], member="new")
    dispute = rule("dispute", "POST", "/disputes", opening, submitter, member="bob",
                   event_sequence=second)  # fmt: skip
    expected[-1]["dispute"] = dispute["id"]
    twice = rule("dispute", "POST", "/disputes", opening | {"opened_by": "cy"}, submitter,
                 member="bob", event_sequence=second)["id"]  # fmt: skip
    expected[-1]["dispute"] = twice
    settling = {"status": "upheld", "note": "seen", "actor": "m1"}
    rule("uphold", "PATCH", f"/disputes/{dispute['id']}", settling, admins[0], member="bob",
         dispute=dispute["id"])  # fmt: skip
    rule("reject", "PATCH", f"/disputes/{twice}", settling | {"status": "rejected"}, admins[1],
         member="bob", dispute=twice)  # fmt: skip
    board.submit(("bob", 1, "b2"))
    rule("remove", "DELETE", "/members/bob", BY, admins[1], member="bob")
    assert board.call("GET", "/audit", key=submitter)[0] == 403
    for killed in (False, True):
        if killed:
            board.killed()
        records, after = [], ""
        while after is not None:
            page = board.ask(f"audit?limit=4{after and '&after=' + after}")
            records += page["records"]
            after = page["next"]
        assert [record.pop("at")[-1] for record in records] == ["Z"] * len(expected)
        assert records == expected[::-1]
    assert node.stop() == 0


def test_a_ruling_on_a_full_disk_changes_nothing(make_node: MakeNode, tmp_path: Path) -> None:
    """Where there is no room for its record a ruling is 507, and changes nothing."""
    config = tmp_path / "full.toml"
    config.write_text("reserved_free_bytes = 2000000\nsegment_bytes_max = 8000000\n")
    with small_disk(tmp_path / "disk"):
        node = make_node("disk/data", "--config", str(config)).start()
        board = Board(node, "full")
        first, second = board.submit(("ada", 30, "a1"), ("bob", 20, "b1"))
        opening = {"sequence": second, "reason": "no", "opened_by": "ada"}
        dispute = board.rule("POST", "/disputes", opening, 201)["id"]
        seen = ("top", "digest", "members/ada", "members/ada/events", "audit", "disputes")
        before = [board.ask(rest) for rest in seen]
        filler = tmp_path / "disk" / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        rulings = (
            ("POST", f"/events/{first}/void", BY),
            ("PUT", "/members/ada/hidden", BY),
            ("DELETE", "/members/ada", BY),
            ("PUT", "/members/ada/profile", {"display_name": "A"}),
            ("POST", "/disputes", opening | {"opened_by": "cy"}),
            ("POST", "/members/bob/erase", BY),
            ("PATCH", f"/disputes/{dispute}", {"status": "upheld", "note": "n", "actor": "m"}),
        )
        for ruling in rulings:
            refused(board.call(*ruling), 507, "storage_full")
        assert [board.ask(rest) for rest in seen] == before
        filler.unlink()
        for ruling in rulings:
            assert board.call(*ruling)[0] in (200, 201, 202)
        assert board.scores() == []
        actions = [record["action"] for record in board.ask("audit")["records"]]
        assert {"void", "hide", "profile", "dispute", "erase", "uphold"} <= {*actions}
        assert node.stop() == 0


@pytest.mark.parametrize("damaged", ["member", "key"])
def test_a_damaged_log_is_no_history(node: RunningNode, damaged: str) -> None:
    """Where a member's events cannot be read from the log it is 503, and the rest is answered."""
    board = Board(node, f"damaged-{damaged}")
    for number in range(3):
        board.submit((f"member-{damaged}", number, f"key-{damaged}-{number}"))
    sound = board.ask("top")
    assert len(board.ask(f"members/member-{damaged}/events")["events"]) == 3
    text = f"member-{damaged}" if damaged == "member" else f"key-{damaged}-1"
    log = node.data / "boards" / board.name / "log" / "00000001" / "data.mdb"
    content = log.read_bytes()
    places, start = [], content.find(text.encode())
    while start >= 0:
        places.append(start)
        start = content.find(text.encode(), start + 1)
    assert places, "the text stands in the log"
    with log.open("r+b") as file:
        for place in places:
            file.seek(place)
            file.write(b"\xff")
    refused(board.call("GET", f"/members/member-{damaged}/events"), 503, "board_unavailable")
    refused(board.call("DELETE", f"/members/member-{damaged}", BY), 503, "board_unavailable")
    assert board.ask("top") == sound
    told = f"{board.name}: is damaged"
    wait_until(lambda: told in node.output.read_text(), 10, "the node's log says so")
    assert board.call("DELETE", "")[0] == 204
