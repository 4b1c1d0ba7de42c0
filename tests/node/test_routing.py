from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.questions import (
    Around,
    Audit,
    Bands,
    Change,
    Describe,
    Digest,
    Disputes,
    Erase,
    Hide,
    History,
    Lookup,
    Member,
    Periods,
    Range,
    Rank,
    Remove,
    SetProfile,
    Submit,
    Top,
)
from node.routes import ROUTES
from tests.node.fake_boards import (
    ANSWER,
    NOW_US,
    FakeBoards,
    Raw,
    ask_once,
    call,
    check_problem,
    serving,
)

HEAD = (False, NOW_US)
NEWEST = (*HEAD, None, None)  # the board's first window, in its newest revision

QUESTIONS = [
    ("/v1/boards/b", Describe(*HEAD), None),
    ("/v1/boards/b/top", Top(*NEWEST, 10, None), None),
    (
        "/v1/boards/b/top?limit=1000&after=x-Y_z&period=all_time&min_sequence=7&read=actor",
        Top(*HEAD, "all_time", None, 1000, "x-Y_z"),
        7,
    ),
    (
        "/v1/boards/b/top?period=daily:2026-11-30&revision=2",
        Top(*HEAD, "daily:2026-11-30", 2, 10, None),
        None,
    ),
    ("/v1/boards/b/members/ada", Member(*NEWEST, "ada"), None),
    (
        "/v1/boards/b/members/ada?period=cup&revision=1",
        Member(*HEAD, "cup", 1, "ada"),
        None,
    ),
    ("/v1/boards/b/around?member=ada", Around(*NEWEST, "ada", None, None, 4, 4), None),
    (
        "/v1/boards/b/around?rank=3&above=0&below=500",
        Around(*NEWEST, None, 3, None, 0, 500),
        None,
    ),
    (
        "/v1/boards/b/around?score=10,95.5&period=weekly&revision=3",
        Around(*HEAD, "weekly", 3, None, None, "10,95.5", 4, 4),
        None,
    ),
    ("/v1/boards/b/rank?score=-1.50", Rank(*NEWEST, "-1.50"), None),
    (
        "/v1/boards/b/rank?score=10%2C95.5&period=cup&revision=1",
        Rank(*HEAD, "cup", 1, "10,95.5"),
        None,
    ),
    (
        "/v1/boards/b/digest?period=daily%3Aprevious&revision=1",
        Digest(*HEAD, "daily:previous", 1),
        None,
    ),
    ("/v1/boards/b/periods", Periods(*HEAD, None, 100, None), None),
    (
        "/v1/boards/b/periods?kind=yearly&limit=1000&after=x-Y_z&min_sequence=9&read=actor",
        Periods(*HEAD, "yearly", 1000, "x-Y_z"),
        9,
    ),
    ("/v1/boards/b/range", Range(*NEWEST, None, None, 10, None), None),
    (
        "/v1/boards/b/range?min=-1.5&max=60&limit=1000&after=x&period=cup&revision=2",
        Range(*HEAD, "cup", 2, "-1.5", "60", 1000, "x"),
        None,
    ),
    ("/v1/boards/b/bands?percentiles=1,5.5,100", Bands(*NEWEST, "1,5.5,100"), None),
    (
        "/v1/boards/b/bands?percentiles=50&period=daily&revision=1",
        Bands(*HEAD, "daily", 1, "50"),
        None,
    ),
    ("/v1/boards/b/members/ada/events", History(*HEAD, 100, None, "ada"), None),
    (
        "/v1/boards/b/members/a%2Fb/events?limit=1&after=x-Y_z&min_sequence=9&read=actor",
        History(*HEAD, 1, "x-Y_z", "a/b"),
        9,
    ),
    ("/v1/boards/b/disputes", Disputes(*HEAD, None, None, 100, None), None),
    (
        "/v1/boards/b/disputes?status=upheld&period=cup&limit=1&after=x",
        Disputes(*HEAD, "upheld", "cup", 1, "x"),
        None,
    ),
    ("/v1/boards/b/audit", Audit(*HEAD, 100, None), None),
    ("/v1/boards/b/audit?limit=1000&after=x&min_sequence=3", Audit(*HEAD, 1000, "x"), 3),
]


@pytest.mark.parametrize(("target", "question", "min_sequence"), QUESTIONS)
def test_each_query_asks_the_board_its_question(
    target: str, question: Any, min_sequence: int | None
) -> None:
    """A query reaches the board with its parameters, and the defaults of the contract."""
    answer, boards = ask_once("GET", target)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == ANSWER
    assert boards.calls == [("ask", "b", question, min_sequence)]


def test_boards_are_created_listed_changed_and_deleted() -> None:
    """The calls about boards pass on what they were given: 201, 200, 200, 200 and 204."""
    definition = b'{"aggregation":"sum"}'

    async def run() -> list[Raw]:
        async with serving(boards) as gateway:
            port = gateway.port
            return [
                await call(port, "PUT", "/v1/boards/new", definition),
                await call(port, "PUT", "/v1/boards/old", definition),
                await call(port, "GET", "/v1/boards?limit=5&after=c"),
                await call(port, "GET", "/v1/boards"),
                await call(port, "PATCH", "/v1/boards/old", b'{"mode":"live"}'),
                await call(port, "DELETE", "/v1/boards/old"),
                await call(port, "POST", "/v1/boards/old/events", b'{"events":[]}'),
            ]

    boards = FakeBoards()
    answers = asyncio.run(run())
    assert [answer.status for answer in answers] == [201, 200, 200, 200, 200, 204, 200]
    assert answers[5].body == b""
    assert boards.calls == [
        ("create", "new", definition, False, False, NOW_US),
        ("create", "old", definition, False, False, NOW_US),
        ("list", 5, "c", False),
        ("list", 100, None, False),
        ("submit", "old", Change(False, NOW_US, b'{"mode":"live"}', False)),
        ("delete", "old"),
        ("submit", "old", Submit(False, NOW_US, b'{"events":[]}', False)),
    ]


def test_a_lookup_asks_for_its_members() -> None:
    """The names of a lookup reach the board as they were sent, with the window of the query."""
    target = "/v1/boards/b/members/lookup?period=cup&revision=2&min_sequence=4"
    body = '{"members":["a/b","lookup","名前"]}'.encode()
    answer, boards = ask_once("POST", target, body)
    assert answer.status == 200
    question = Lookup(*HEAD, "cup", 2, ["a/b", "lookup", "名前"])
    assert boards.calls == [("ask", "b", question, 4)]


BY = b'{"actor":"mod-1","reason":"it was seen"}'
WORDS = sorted({word for route in ROUTES for word in route.segments if word[:1] not in ("", "{")})


@pytest.mark.parametrize("member", WORDS)
def test_a_member_called_like_a_word_is_reached_by_every_call(member: str) -> None:
    """Whatever word of a path a member is called like, the calls about members mean it."""
    calls = [
        ("GET", f"/v1/boards/b/members/{member}", None),
        ("GET", f"/v1/boards/b/members/{member}/events", None),
        ("PUT", f"/v1/boards/b/members/{member}/hidden", BY),
        ("DELETE", f"/v1/boards/b/members/{member}/hidden", BY),
        ("DELETE", f"/v1/boards/b/members/{member}", BY),
        ("PUT", f"/v1/boards/b/members/{member}/profile", b"{}"),
        ("POST", f"/v1/boards/b/members/{member}/erase", BY),
        ("GET", f"/v1/members/{member}?boards=b", None),
        ("POST", f"/v1/members/{member}/erase?boards=b", BY),
    ]
    about_members = [route for route in ROUTES if "{member}" in route.path]
    assert len(calls) == len(about_members), "a call about members is missing here"
    boards = FakeBoards()

    async def run() -> list[int]:
        async with serving(boards) as gateway:
            return [(await call(gateway.port, *each)).status for each in calls]

    assert set(asyncio.run(run())) == {200, 202}
    asked = [question for _, _, question, *_ in boards.calls]
    assert [type(question) for question in asked] == [
        Member, History, Hide, Hide, Remove, SetProfile, Erase, Member, Erase,
    ]  # fmt: skip
    assert {question.member for question in asked} == {member}


MEMBERS = [
    ("a%2Fb", "a/b"),
    ("100%25", "100%"),
    ("a+b", "a+b"),
    ("a%20b", "a b"),
    ("a%252Fb", "a%2Fb"),
    ("a%3Fb%23c", "a?b#c"),
    ("%C3%A9", "é"),
    ("%e5%90%8d%E5%89%8D", "名前"),
    ("%F0%9F%8F%81", "🏁"),
    ("a;b=c,d&e", "a;b=c,d&e"),
    ("~%7E", "~~"),
    ("top", "top"),
    ("x" * 128, "x" * 128),
]


@pytest.mark.parametrize(("encoded", "member"), MEMBERS)
def test_a_member_in_a_path_comes_back_exactly(encoded: str, member: str) -> None:
    """A percent-encoded member is decoded once, whatever it holds; a plus is a plus."""
    answer, boards = ask_once("GET", f"/v1/boards/b/members/{encoded}")
    assert answer.status == 200, answer.body
    assert boards.calls[0][2].member == member


def test_a_member_in_a_query_is_form_decoded() -> None:
    """In a query a plus is a space and %2B a plus, as in every form."""
    _, boards = ask_once("GET", "/v1/boards/b/around?member=a+b%2Bc")
    assert boards.calls[0][2].member == "a b+c"


BAD_MEMBERS = ["%", "%2", "%zz", "%FF", "%C3", "%ED%A0%80", "%00", "%20ada", "ada%0A", "e%CC%81",
               ".", "..", "%2E%2e", "x" * 129]  # fmt: skip


@pytest.mark.parametrize("encoded", BAD_MEMBERS)
def test_a_member_that_is_none_is_refused_by_name(encoded: str) -> None:
    """Broken escapes, bytes that are not UTF-8 and names against the rules are 422."""
    for target in (f"/v1/boards/b/members/{encoded}", f"/v1/boards/b/around?member={encoded}"):
        answer, boards = ask_once("GET", target)
        assert check_problem(answer, 422, "invalid_field")["field"] == "member"
        assert boards.calls == []


@pytest.mark.parametrize(
    "board", ["UPPER", "a.b", "%2e%2e", "-x", "x" * 65, "a%2Fb", "b%0A", "%C3%A9", "%D9%A3"]
)
def test_a_board_id_that_is_none_is_refused(board: str) -> None:
    """A board id outside the contract's pattern is 422 with the field's name, in every call."""
    for method, target, body in (
        ("GET", f"/v1/boards/{board}/top", None),
        ("PUT", f"/v1/boards/{board}", b"{}"),
        ("DELETE", f"/v1/boards/{board}", None),
    ):
        answer, boards = ask_once(method, target, body)
        assert check_problem(answer, 422, "invalid_field")["field"] == "board"
        assert boards.calls == []


BAD_QUERIES = [
    *((f"top?limit={text}", "limit") for text in ("0", "-1", "abc", "", "1001", "1.0", "+1",
                                                   "%201", "1e2", "%D9%A1", "9" * 5000)),
    ("top?surprise=1", "surprise"),
    ("top?limit=1&limit=1", "limit"),
    ("top?limit=%zz", "limit"),
    ("top?%ff=1", "query"),
    ("top?min_sequence=-1", "min_sequence"),
    ("top?read=cache", "read"),
    ("top?period=", "period"),
    *((f"{call}revision={text}", "revision") for text in ("0", "-1", "one", "1.0")
      for call in ("top?", "members/ada?", "around?rank=1&", "rank?score=1&", "digest?")),
    ("periods?kind=", "kind"),
    ("periods?kind=" + "x" * 33, "kind"),
    *((f"periods?limit={text}", "limit") for text in ("0", "-1", "1001")),
    ("periods?revision=1", "revision"),
    ("around?rank=0", "rank"),
    ("around?rank=1&above=501", "above"),
    ("around?rank=1&below=-1", "below"),
    ("around", "member"),
    ("around?member=a&rank=3", "member"),
    ("around?score=1&rank=3", "member"),
    ("rank", "score"),
    ("rank?score=", "score"),
    ("members/ada?limit=1", "limit"),
    ("bands", "percentiles"),
    ("bands?percentiles=", "percentiles"),
    ("bands?percentiles=" + "1," * 600, "percentiles"),
    *((f"range?{name}={text}", name) for name in ("min", "max") for text in ("", "1" * 33)),
    *((f"{call}?limit={text}", "limit") for text in ("0", "-1", "abc", "1001")
      for call in ("range", "members/ada/events", "disputes", "audit")),
    ("disputes?status=closed", "status"),
    ("disputes?revision=1", "revision"),
    ("audit?period=all_time", "period"),
    ("members/ada/events?period=all_time", "period"),
]  # fmt: skip


@pytest.mark.parametrize(("rest", "field"), BAD_QUERIES)
def test_a_bad_parameter_is_refused_by_name(rest: str, field: str) -> None:
    """An unknown, repeated or wrong parameter is 422 and never becomes "everything"."""
    answer, boards = ask_once("GET", f"/v1/boards/b/{rest}")
    assert check_problem(answer, 422, "invalid_field")["field"] == field
    assert boards.calls == []


@pytest.mark.parametrize(
    "call", ["top", "periods", "range", "members/ada/events", "disputes", "audit"]
)
@pytest.mark.parametrize("text", ["", "x" * 1025])
def test_an_impossible_cursor_is_an_invalid_cursor(call: str, text: str) -> None:
    """A cursor that no answer can have held is invalid_cursor, like any other wrong one."""
    answer, _ = ask_once("GET", f"/v1/boards/b/{call}?after={text}")
    check_problem(answer, 422, "invalid_cursor")


@pytest.mark.parametrize(
    "target",
    ["/", "/v1", "/v1/nothing", "/v1/boards/", "/v1/boards/b/", "/v1/boards//top",
     "/v1/boards/b/members", "/v1/boards/b/members/", "/v1/boards/b/members/a/b", "/healthz/x",
     "/v1/members", "/v1/members/", "/v1/boards/b/members/lookup/x", "/v1/boards/b/events/1",
     "//healthz", "/V1/boards"],
)  # fmt: skip
def test_an_unknown_path_is_not_found(target: str) -> None:
    """A path that is not in the table is a 404 problem; empty segments name nothing."""
    answer, boards = ask_once("GET", target)
    check_problem(answer, 404, "not_found")
    assert boards.calls == []


@pytest.mark.parametrize(
    ("method", "target", "allow"),
    [
        ("DELETE", "/v1/boards/b/top", "GET, HEAD"),
        ("POST", "/v1/boards/b", "DELETE, GET, HEAD, PATCH, PUT"),
        ("GET", "/v1/boards/b/events", "POST"),
        ("OPTIONS", "/v1/boards", "GET, HEAD"),
        ("PUT", "/healthz", "GET, HEAD"),
        ("PATCH", "/v1/boards/b/members/lookup", "DELETE, GET, HEAD, POST"),
        ("POST", "/v1/boards/b/members/ada", "DELETE, GET, HEAD"),
        ("GET", "/v1/boards/b/members/lookup/hidden", "DELETE, PUT"),
        ("GET", "/v1/events", "POST"),
    ],
)
def test_another_method_is_not_allowed(method: str, target: str, allow: str) -> None:
    """A known path with another method is 405 and says which methods it takes."""
    answer, _ = ask_once(method, target)
    check_problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == allow


def test_head_is_get_without_a_body() -> None:
    """HEAD has the status and headers of GET, the length included, and no body."""
    got, _ = ask_once("GET", "/v1/boards/b/top")
    head, boards = ask_once("HEAD", "/v1/boards/b/top")
    assert head.status == 200
    assert head.body == b""
    assert head.headers["content-length"] == got.headers["content-length"]
    assert len(boards.calls) == 1


def test_a_target_may_be_a_whole_url() -> None:
    """The absolute form of a target, which every server must take, means the same path."""
    answer, boards = ask_once("GET", "http://localhost:81/v1/boards/b/top?limit=2")
    assert answer.status == 200
    assert boards.calls[0][2].limit == 2
