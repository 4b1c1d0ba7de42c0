"""One match on many boards, one member's places on many: each board by itself, results in order."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from actors.answers import BatchAnswer
from actors.errors import Refusal
from actors.questions import Member, Submit
from node import many_boards
from node.many_boards import BOARDS_MAX
from tests.node.fake_boards import (
    ANSWER,
    NOW_US,
    AcceptingBoards,
    FakeBoards,
    Raw,
    ask_once,
    call,
    check_problem,
    serving,
)
from tests.node.key_samples import add_key
from tests.running_node import READY_SECONDS_MAX, RunningNode, wait_until

MakeNode = Callable[..., RunningNode]
EVENTS_MAX = 5_000


def event(board: Any, member: Any = "ada", value: Any = 1, key: Any = "k", **rest: Any) -> Any:
    return {"board": board, "member": member, "value": value, "idempotency_key": key} | rest


def submit(body: Any, boards: FakeBoards | None = None, *, packed: bool = False) -> Raw:
    """Send a body, or what is not one."""
    encode = msgspec.msgpack.encode if packed else msgspec.json.encode
    content_type = "application/msgpack" if packed else "application/json"
    sent = body if isinstance(body, bytes) else encode(body)
    return ask_once(
        "POST", "/v1/events", sent, boards or AcceptingBoards(), Content_Type=content_type
    )[0]


def statuses(answer: Raw) -> list[str]:
    assert answer.status == 200, answer.body
    return [result.get("code", result["status"]) for result in answer.json()["results"]]


# A batch


@pytest.mark.parametrize("packed", [False, True])
def test_results_stand_in_the_order_of_their_events(packed: bool) -> None:
    """Each event's result is in its place, however boards alternate; each is asked once."""
    boards = AcceptingBoards()
    names = ["b", "a", "c", "b", "b", "a", "c", "b"]
    events = [event(name, f"m{i}", i, f"k{i}") for i, name in enumerate(names)]
    answer = submit({"events": events}, boards, packed=packed)
    assert statuses(answer) == ["applied"] * len(names)
    body = answer.json()
    assert [result["sequence"] for result in body["results"]] == [2, 2, 2, 3, 4, 3, 3, 5]
    assert (body["applied"], body["duplicates"], body["rejected"]) == (8, 0, 0)
    assert body["sequences"] == {"a": 3, "b": 5, "c": 3}
    assert [board for _, board, _ in boards.calls] == ["b", "a", "c"]
    decode = msgspec.msgpack.decode if packed else msgspec.json.decode
    for _, board, question in boards.calls:
        assert question.body_packed is packed
        own = [{k: v for k, v in e.items() if k != "board"} for e in events if e["board"] == board]
        assert decode(question.body) == {"events": own}


BAD_EVENTS: list[tuple[bytes, str]] = [
    (b"7", "body"),
    (b"null", "body"),
    (b"[]", "body"),
    (b"{}", "board"),
    (b'{"board":"b"}', "member"),
    (b'{"board":7,"member":"m","value":1,"idempotency_key":"k"}', "board"),
    (b'{"board":null,"member":"m","value":1,"idempotency_key":"k"}', "board"),
    (b'{"board":"UPPER","member":"m","value":1,"idempotency_key":"k"}', "board"),
    (b'{"board":"","member":"m","value":1,"idempotency_key":"k"}', "board"),
    (b'{"board":"b\\n","member":"m","value":1,"idempotency_key":"k"}', "board"),
    (b'{"board":"\\ud800","member":"m","value":1,"idempotency_key":"k"}', "board"),
    (b'{"board":"b","member":"m","value":1,"idempotency_key":"k","x":1}', "x"),
    (b'{"board":"b","member":7,"value":1,"idempotency_key":"k"}', "member"),
    (b'{"board":"b","member":"m","value":1}', "idempotency_key"),
    (b'{"board":"b","member":"m","value":1,"idempotency_key":"k","source":null}', "source"),
    (b'{"board":"b","member":"m","value":1,"idempotency_key":"k","occurred_at":1}', "occurred_at"),
]


@pytest.mark.parametrize(("bad", "field"), BAD_EVENTS)
def test_a_bad_event_spoils_no_other(bad: bytes, field: str) -> None:
    """One bad event of a batch is rejected in its place, with its field; alone it is 422."""
    good = msgspec.json.encode(event("b"))
    answer = submit(b'{"events":[%s,%s,%s]}' % (good, bad, good))
    assert statuses(answer) == ["applied", "invalid_field", "applied"]
    assert answer.json()["results"][1]["field"] == field
    assert answer.json()["rejected"] == 1
    alone = AcceptingBoards()
    answer = submit(bad, alone)
    if alone.calls == []:  # else it is for the board to refuse it
        assert check_problem(answer, 422, "invalid_field")["field"] == field


@pytest.mark.parametrize(
    "member", [b'"\\ud800"', b'"\\udc00x"', b'"\xff"', b'"\xc3"', b'"\\u0000"', b'"a\\ud83c"']
)
def test_a_text_that_is_none_spoils_no_other(member: bytes) -> None:
    """Lone surrogates and bytes that are not UTF-8 in one event leave the others alone."""
    bad = b'{"board":"b","member":%s,"value":1,"idempotency_key":"k"}' % member
    good = msgspec.json.encode(event("b"))
    boards = AcceptingBoards()
    answer = submit(b'{"events":[%s,%s,%s]}' % (good, bad, good), boards)
    results = statuses(answer)
    assert (results[0], results[2]) == ("applied", "applied")
    ((_, _, question),) = boards.calls
    assert b"\\ud800" not in question.body


MALFORMED = [
    b"", b"{", b'{"events":[', b'{"events":[]', b'{"events":[{}', b'{"events":[1,]}', b"\xff",
    b'{"events":[]}x', b'{"events":' + b"[" * 50_000, b'{"board":"b"',
]  # fmt: skip
WRONG = [
    (b"7", "body"), (b"[" * 50_000, "body"), (b"null", "body"), (b'{"events":7}', "events"),
    (b'{"events":[],"x":1}', "x"), (b'{"x":1,"events":[]}', "x"), (b"{}", "board"),
]  # fmt: skip


@pytest.mark.parametrize("body", MALFORMED)
def test_a_body_that_cannot_be_read_is_malformed(body: bytes) -> None:
    """What is no JSON as a whole is 400, and no board hears of it."""
    boards = FakeBoards()
    check_problem(submit(body, boards), 400, "malformed_body")
    assert boards.calls == []


@pytest.mark.parametrize("body", [b"\xc1", b"\x81\xa6events\x93\x01", b"\xdd\xff\xff\xff\xff"])
def test_messagepack_that_cannot_be_read_is_refused(body: bytes) -> None:
    """What is no MessagePack, or no map, is refused, and no board hears of it."""
    boards = FakeBoards()
    assert submit(body, boards, packed=True).status in (400, 422)
    assert boards.calls == []


@pytest.mark.parametrize(("body", "field"), WRONG)
def test_a_body_of_another_shape_is_refused(body: bytes, field: str) -> None:
    """What is neither an event nor a batch is 422 with the field, and no board hears of it."""
    boards = FakeBoards()
    assert check_problem(submit(body, boards), 422, "invalid_field")["field"] == field
    assert boards.calls == []


def test_an_empty_batch_is_answered() -> None:
    """A batch of nothing asks no board and is answered with nothing."""
    boards = FakeBoards()
    answer = submit({"events": []}, boards)
    assert answer.json() == {
        "results": [], "applied": 0, "duplicates": 0, "rejected": 0, "sequences": {},
    }  # fmt: skip
    assert boards.calls == []


def test_boards_fail_alone() -> None:
    """Of a batch, whatever befalls one board befalls its events only, each in its place."""
    boards = AcceptingBoards()
    for code in ("board_not_found", "board_unavailable", "overloaded", "storage_full",
                 "outcome_unknown"):  # fmt: skip
        boards.refusals[code.replace("_", "-")] = Refusal(code, f"because of {code}")
    names = ["good", *boards.refusals, "good", *boards.refusals]
    answer = submit({"events": [event(name, key=f"k{i}") for i, name in enumerate(names)]}, boards)
    codes = [refusal.code for refusal in boards.refusals.values()]
    assert statuses(answer) == ["applied", *codes, "applied", *codes]
    assert answer.json()["sequences"] == {"good": 3}
    for result in answer.json()["results"]:
        assert result["status"] == "applied" or result["detail"] == f"because of {result['code']}"


@pytest.mark.parametrize("number", [BOARDS_MAX, BOARDS_MAX + 1])
def test_a_batch_names_at_most_a_hundred_boards(number: int) -> None:
    """A hundred boards are asked at once; with one more, none is."""
    boards = AcceptingBoards()
    answer = submit({"events": [event(f"b{i}") for i in range(number)]}, boards)
    if number <= BOARDS_MAX:
        assert statuses(answer) == ["applied"] * number
    else:
        assert check_problem(answer, 422, "invalid_field")["field"] == "events"
    assert len(boards.calls) == (number if number <= BOARDS_MAX else 0)


@pytest.mark.parametrize("number", [EVENTS_MAX, EVENTS_MAX + 1])
def test_a_batch_holds_at_most_five_thousand_events(number: int) -> None:
    """Five thousand events are taken; with one more, none is."""
    boards = AcceptingBoards()
    answer = submit({"events": [event(f"b{i % 3}", key=f"k{i}") for i in range(number)]}, boards)
    if number <= EVENTS_MAX:
        assert Counter(statuses(answer)) == {"applied": number}
    else:
        assert check_problem(answer, 422, "invalid_field")["field"] == "events"
    assert len(boards.calls) == (3 if number <= EVENTS_MAX else 0)


# A single event


@pytest.mark.parametrize("packed", [False, True])
def test_a_single_event_is_its_boards(packed: bool) -> None:
    """One event goes to its board as by the board's own path, and its answer comes back."""
    boards = FakeBoards()
    answer = submit(event("arena", "名", 12.5, occurred_at="2026-01-01T00:00:00Z"), boards,
                    packed=packed)  # fmt: skip
    assert (answer.status, answer.json()) == (200, ANSWER)
    ((_, board, question),) = boards.calls
    decode = msgspec.msgpack.decode if packed else msgspec.json.decode
    assert (board, question.packed, question.body_packed) == ("arena", False, packed)
    assert decode(question.body) == {
        "member": "名",
        "value": 12.5,
        "idempotency_key": "k",
        "occurred_at": "2026-01-01T00:00:00Z",
    }


def test_a_value_reaches_its_board_as_it_was_written() -> None:
    """No number passes through binary floating point on the way to its board."""
    boards = FakeBoards()
    text = b'{"board":"b","member":"m","value":%s,"idempotency_key":"k"}'
    number = b"123456789.1000000000000000000001"
    assert submit(text % number, boards).status == 200
    batch = AcceptingBoards()
    assert submit(b'{"events":[%s]}' % (text % number), batch).status == 200
    for _, _, question in (*boards.calls, *batch.calls):
        assert b'"value":%s,' % number in question.body


def test_a_single_event_is_refused_as_its_board_refuses() -> None:
    """What the board says of a single event is the answer, with its status."""
    boards = AcceptingBoards()
    boards.refusals["b"] = Refusal("idempotency_conflict", "used", sequence=7)
    assert check_problem(submit(event("b"), boards), 409, "idempotency_conflict")["sequence"] == 7


@pytest.mark.parametrize("single", [True, False])
def test_a_keys_source_goes_to_every_board(single: bool, tmp_path: Any) -> None:
    """Events of a key that is tied to a source reach each board with that tie."""
    boards = AcceptingBoards()
    key = add_key(tmp_path, "submit", source="match-server-3")
    body = event("a") if single else {"events": [event("a"), event("b")]}

    async def run() -> Raw:
        async with serving(boards, tmp_path) as gateway:
            content = msgspec.json.encode(body)
            headers = {"Authorization": f"Bearer {key}"}
            return await call(gateway.port, "POST", "/v1/events", content, **headers)

    assert asyncio.run(run()).status == 200
    assert [(board, question.source) for _, board, question in boards.calls] == [
        (board, "match-server-3") for board in ("a", "b")[: 1 if single else 2]
    ]


def test_a_board_that_does_not_answer_fails_alone() -> None:
    """Of a batch or of places, a board that takes too long is given up, and the others answer."""
    boards = AcceptingBoards()
    boards.waits["stuck"] = lambda: asyncio.Event().wait()
    settings = {"request_seconds_max": 2.0}
    body = msgspec.json.encode({"events": [event("a"), event("stuck"), event("b")]})
    answer, _ = ask_once("POST", "/v1/events", body, boards, settings)
    assert statuses(answer) == ["applied", "outcome_unknown", "applied"]
    answer, _ = ask_once("GET", "/v1/members/ada?boards=a,stuck,b", None, boards, settings)
    first, stuck, last = answer.json()["boards"]
    assert (first["board"], last["board"]) == ("a", "b")
    assert (stuck["entry"], stuck["code"]) == (None, "board_unavailable")


def test_what_a_board_answers_to_a_batch_is_taken_whole() -> None:
    """A board that gives another number of results than it got events is a fault, not an answer."""

    class Short(AcceptingBoards):
        async def submit(self, board: str, question: Any) -> bytes:
            assert isinstance(question, Submit)
            return msgspec.msgpack.encode(BatchAnswer([], 0, 0, 0, 1))

    check_problem(submit({"events": [event("b")]}, Short()), 500, "internal_error")


# A member's places


def test_places_are_asked_in_the_order_of_their_boards() -> None:
    """Each board that a query names is asked once for the member's entry in its first window."""
    boards = AcceptingBoards()
    boards.refusals["c"] = Refusal("member_not_found", "not there")
    answer, _ = ask_once("GET", "/v1/members/a%2Fb?boards=b,a,c,b", None, boards)
    assert answer.json() == {
        "member": "a/b",
        "boards": [
            ANSWER | {"board": "b"},
            ANSWER | {"board": "a"},
            {"board": "c", "entry": None, "code": "member_not_found", "detail": "not there"},
        ],
    }
    question = Member(False, NOW_US, None, None, "a/b")
    assert boards.calls == [("ask", board, question, None) for board in ("b", "a", "c")]


@pytest.mark.parametrize(
    "boards", ["", "UPPER", "a,,b", "a,", ",", "a,+b", "a,b%2Fc", "x" * 65,
               ",".join(f"b{i}" for i in range(BOARDS_MAX + 1))],
)  # fmt: skip
def test_boards_that_are_none_are_refused(boards: str) -> None:
    """A list with anything in it that is no board's id, or that is too long, is 422."""
    answer, asked = ask_once("GET", f"/v1/members/ada?boards={boards}")
    assert check_problem(answer, 422, "invalid_field")["field"] == "boards"
    assert asked.calls == []


def test_a_hundred_boards_of_the_longest_names_fit_into_a_request() -> None:
    """As many boards as one call may name fit into a request line, however long their names."""
    named = ",".join(f"{i:03}" + "x" * 61 for i in range(BOARDS_MAX))
    answer, boards = ask_once("GET", f"/v1/members/ada?boards={named}", None, AcceptingBoards())
    assert answer.status == 200, answer.body
    assert len(boards.calls) == BOARDS_MAX


# A node


def test_a_match_counts_on_many_boards_of_a_node(make_node: MakeNode) -> None:
    """Events count once each, in either form, past boards missing, damaged and stuck."""
    node = make_node().start()
    bounded = {"aggregation": "sum", "max_value": 100, "sources": ["s"]}
    sums, bests = {"aggregation": "sum"}, {"aggregation": "best"}
    definitions = {"sums": sums, "bests": bests, "bounded": bounded, "broken": sums}
    for board, definition in definitions.items():
        assert node.call("PUT", f"/v1/boards/{board}", definition)[0] == 201
        await_up(node, board)
    batch = {
        "events": [
            event("sums", "ada", 5, "m1/ada"),
            event("bests", "ada", 5, "m1/ada"),
            event("nowhere", "ada", 5, "m1/ada"),
            event("sums", "bob", 7, "m1/bob"),
            event("bounded", "ada", 5, "m1/no source"),
            event("bounded", "ada", 500, "m1/big", source="s"),
            event("bounded", "ada", 50, "m1/ada", source="s"),
            event("sums", "ada", 6, "m1/ada"),
            event("sums", "ada", 5, "m1/ada"),
            event("sums", "ada", 1.5, "m1/fine"),
            event("bests", "..", 5, "m1/dots"),
        ]
    }
    expected = [
        "applied", "applied", "board_not_found", "applied", "source_not_allowed",
        "value_not_allowed", "applied", "idempotency_conflict", "duplicate", "value_precision",
        "invalid_field",
    ]  # fmt: skip
    status, answer = node.call("POST", "/v1/events", batch)
    assert status == 200
    results = answer["results"]
    assert [result.get("code", result["status"]) for result in results] == expected
    assert (answer["applied"], answer["duplicates"], answer["rejected"]) == (4, 1, 6)
    assert results[8]["sequence"] == results[0]["sequence"]
    assert answer["sequences"] == {
        board: node.ask(f"/v1/boards/{board}/top")["sequence"]
        for board in ("sums", "bests", "bounded")
    }
    again = [status if status != "applied" else "duplicate" for status in expected]
    for packed in (False, True):
        status, repeated = node.call("POST", "/v1/events", batch, packed=packed)
        assert status == 200
        codes = [result.get("code", result["status"]) for result in repeated["results"]]
        assert codes == again, "sent again, in whichever form, nothing counts twice"
        assert repeated["sequences"] == answer["sequences"]

    single = event("sums", "ada", 10, "m2/ada")
    status, applied = node.call("POST", "/v1/events", single, packed=True)
    assert (status, applied["status"]) == (200, "applied")
    assert applied["standings"] == [
        {"period": "all_time", "score": 15, "rank": 1, "improved": True}
    ]
    own = {name: value for name, value in single.items() if name != "board"}
    status, repeated = node.call("POST", "/v1/boards/sums/events", own)
    assert (status, repeated["status"]) == (200, "duplicate"), "it is one event by both paths"
    status, problem = node.call("POST", "/v1/events", event("nowhere"))
    assert (status, problem["code"]) == (404, "board_not_found")

    path = "/v1/members/ada?boards=bests,nowhere,sums,bounded"
    _, places = node.call("GET", path)
    in_bests, nowhere, in_sums, _ = places["boards"]
    assert in_bests["entry"]["score"] == 5
    assert nowhere == {"board": "nowhere", "entry": None, "code": "board_not_found",
                       "detail": nowhere["detail"]}  # fmt: skip
    assert in_sums == node.ask("/v1/boards/sums/members/ada")
    assert node.call("GET", path, packed=True)[1] == places
    assert node.call("GET", "/v1/members/bob?boards=bests")[1]["boards"][0]["code"] == (
        "member_not_found"
    )

    assert node.stop() == 0
    shutil.rmtree(node.data / "boards" / "broken" / "log")
    node.start()
    for board in ("sums", "bests"):
        await_up(node, board)
    fresh = {"events": [event(board, "cyd", 1, "m3/cyd") for board in ("sums", "broken", "bests")]}
    status, answer = node.call("POST", "/v1/events", fresh)
    codes = [result.get("code", result["status"]) for result in answer["results"]]
    assert (status, codes) == (200, ["applied", "board_unavailable", "applied"])
    places = node.call("GET", "/v1/members/cyd?boards=sums,broken,bests")[1]["boards"]
    assert [place.get("code") for place in places] == [None, "board_unavailable", None]

    (stuck,) = [process for process in node.named("ray::BoardActor") if holds(process, "bests")]
    os.kill(stuck, signal.SIGSTOP)
    try:
        fresh = {"events": [event(board, "dan", 1, "m4/dan") for board in ("bests", "sums")]}
        status, answer = node.call("POST", "/v1/events", fresh)
    finally:
        os.kill(stuck, signal.SIGCONT)
    codes = [result.get("code", result["status"]) for result in answer["results"]]
    assert (status, codes) == (200, ["outcome_unknown", "applied"])
    status, answer = node.call("POST", "/v1/events", fresh)
    assert answer["results"][1]["status"] == "duplicate"
    assert answer["results"][0]["status"] in ("applied", "duplicate")
    assert node.stop() == 0


def await_up(node: RunningNode, board: str) -> None:
    """Wait until a board's process is up, which takes its time on a busy machine."""
    path = f"/v1/boards/{board}/top"
    wait_until(lambda: node.call("GET", path)[0] == 200, READY_SECONDS_MAX, f"{board} is up")


def holds(process: int, board: str) -> bool:
    """Tell whether a process has files of a board open."""
    descriptors = f"/proc/{process}/fd"
    links = [os.readlink(f"{descriptors}/{name}") for name in os.listdir(descriptors)]
    return any(f"/boards/{board}/" in link for link in links)


def test_the_bounds_are_the_documented_ones() -> None:
    """As many boards and events as the document names may stand in one call."""
    assert (many_boards.BOARDS_MAX, many_boards.EVENTS_PER_BATCH_MAX) == (100, EVENTS_MAX)
