"""Every call of the OpenAPI document, with what it describes and what it does not.

Whatever is sent, a node answers with a documented status and what the document says of it.
"""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openapi_schema_validator import OAS31Validator

from node.openapi import document
from tests.node.schema_values import Schemas, spoiled
from tests.running_node import (
    RANKNODE,
    READY_SECONDS_MAX,
    RunningNode,
    clean_up,
    wait_until,
)

DOCUMENT = document()
SCHEMAS = Schemas(DOCUMENT)
REQUESTS_PER_CALL = 80
FAILURES = {503, 504, 507}  # a node that is asked too much or too early, or has no room
DAY = "daily:2020-03-02"
OPTIONS = """
min_sequence_wait_seconds = 0.01
snapshot_events = 200
"""


class Operation(NamedTuple):
    """One call as the document describes it."""

    method: str
    path: str
    described: dict[str, Any]


OPERATIONS = {
    described["operationId"]: Operation(method.upper(), path, described)
    for path, item in DOCUMENT["paths"].items()
    for method, described in item.items()
}
SAMPLES: dict[str, list[str]] = {
    "board": ["points", "laps", "seasons"],
    "member": ["mary1934", "ada", "lookup", "é/%", "nobody"],
    "sequence": [str(number) for number in range(1, 40)],
    "dispute": [str(number) for number in range(25, 100)],
    "period": ["all_time", "daily", DAY, "daily:previous", "weekly", "cup", "daily:2020-02-30"],
    "revision": ["1", "2", "3"],
    "limit": ["1", "2", "1000"],
    "min_sequence": ["0", "1", "20"],
    "score": ["1", "10.5", "-1", "10,95.5", "1e3", "x"],
    "min": ["-5", "0", "10.5"],
    "max": ["0", "100", "99999999999999999999"],
    "percentiles": ["1", "100", "0.5,50", "0", "1,,2"],
    "boards": ["points", "points,laps,nowhere", "points,UPPER"],
    "rank": ["1", "3", "9007199254740991"],
    "kind": ["daily", "all_time", "cup", "hourly"],
}
# What changes all that boards answer comes last.
LAST = ("eraseMember", "eraseMemberEverywhere", "changeBoard", "deleteBoard")
ORDER = sorted(OPERATIONS, key=lambda name: name in LAST)
OWN_BOARDS = ["fuzz-0", "fuzz-1"]  # which come and go
NEEDED = {"around": {"rank": "1"}, "rank": {"score": "1"}, "bands": {"percentiles": "1,50"},
          "memberPlaces": {"boards": "points,laps,nowhere"}}  # fmt: skip


class Request(NamedTuple):
    """One request, not encoded yet; the last `cut` bytes of its body are not sent."""

    operation: Operation
    names: dict[str, str]
    query: dict[str, str]
    body: Any = None
    packed: bool = False
    cut: int = 0

    @property
    def target(self) -> str:
        path = self.operation.path
        for name, text in self.names.items():
            path = path.replace(f"{{{name}}}", quote(text, safe=""))
        return path + ("?" + urlencode(self.query) if self.query else "")


@functools.cache
def validator_of(name: str, status: int) -> OAS31Validator | None:
    """Make what checks the answers of a call with a status; None where they have no body."""
    response = OPERATIONS[name].described["responses"][str(status)]
    if "content" not in response:
        return None
    media = response["content"].get("application/json") or next(iter(response["content"].values()))
    return OAS31Validator(media["schema"] | {"components": DOCUMENT["components"]})


def check(node: RunningNode, request: Request) -> tuple[int, Any]:
    """Make a request; its answer must be documented, and lead on where it says so."""
    operation, body = request.operation, None
    if "requestBody" in operation.described:
        encode = msgpack.packb if request.packed else lambda value: json.dumps(value).encode()
        body = encode(request.body)
        body = body[: max(len(body) - request.cut, 0)]
    status, answer = node.call(operation.method, request.target, body, packed=request.packed)
    described = operation.described
    assert str(status) in described["responses"], (status, answer)
    assert status < 500 or status in FAILURES, answer
    validator = validator_of(described["operationId"], status)
    if validator is None:
        assert answer is None
    else:
        validator.validate(answer)
    paged = status == 200 and isinstance(answer, dict)
    following = answer.get("next") if paged else None
    if following is not None and "after" not in request.query:
        check_next(node, request, following)
    return status, answer


def check_next(node: RunningNode, request: Request, following: str) -> None:
    """Follow a page to the next one: a cursor that was given out is taken back."""
    status, answer = check(node, request._replace(query=request.query | {"after": following}))
    assert status == 200, answer


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """Start a node with boards of several kinds, moderated already."""
    directory = tmp_path_factory.mktemp("fuzzed")
    config = directory / "node.toml"
    config.write_text(OPTIONS)
    made = RunningNode(directory / "data", "--config", str(config)).start()
    prepare(made)
    yield made
    clean_up(made)


def prepare(node: RunningNode) -> None:
    points = {"aggregation": "sum", "score": [{"name": "points", "decimals": 1}],
              "rank_method": "competition"}  # fmt: skip
    laps = {"aggregation": "best", "score": [{"name": "s", "direction": "asc", "decimals": 3},
                                             {"name": "tries"}]}  # fmt: skip
    cup = {"name": "cup", "start": "2020-03-01T00:00:00Z", "end": "2020-04-01T00:00:00Z"}
    seasons = {"aggregation": "latest", "rank_method": "dense", "mode": "backfill",
               "periods": ["daily", "all_time", cup]}  # fmt: skip
    definitions = {"points": points, "laps": laps, "seasons": seasons, "fuzz-0": points}
    for board, definition in definitions.items():
        assert node.call("PUT", f"/v1/boards/{board}", definition)[0] == 201
        path = f"/v1/boards/{board}/top"
        wait_until(lambda: node.call("GET", path)[0] == 200, READY_SECONDS_MAX, board)  # noqa: B023
    members = ["mary1934", "ada", "lookup", "é/%", "gone", "shy"]
    for board in ("points", "laps", "seasons"):
        for number in range(4):
            events = [
                {"member": member, "idempotency_key": f"{number}-{member}",
                 "value": [number, place] if board == "laps" else number + place}
                | ({"occurred_at": "2020-03-02T10:00:00Z"} if board == "seasons" else {})
                for place, member in enumerate(members)
            ]  # fmt: skip
            status, answer = node.call("POST", f"/v1/boards/{board}/events", {"events": events})
            assert (status, answer["applied"]) == (200, len(members))
        by = {"actor": "m", "reason": "r"}
        assert node.call("PUT", f"/v1/boards/{board}/members/shy/hidden", by)[0] == 200
        profile = {"display_name": "Ada", "extra": {"a": [1, 0.5, None]}}
        assert node.call("PUT", f"/v1/boards/{board}/members/ada/profile", profile)[0] == 200
    assert node.call("PATCH", "/v1/boards/seasons", {"mode": "live"})[0] == 200
    sequence = node.ask("/v1/boards/seasons/members/ada/events")["events"][0]["sequence"]
    for board in ("points", "seasons"):
        opening = {"sequence": sequence, "reason": "r", "opened_by": "o"}
        assert node.call("POST", f"/v1/boards/{board}/disputes", opening)[0] == 201
    void = f"/v1/boards/seasons/events/{sequence}/void"
    assert node.call("POST", void, {"actor": "m", "reason": "r"})[0] == 200


@pytest.mark.parametrize("packed", [False, True], ids=["json", "msgpack"])
@pytest.mark.parametrize("name", ORDER)
def test_the_documented_example_is_answered_well(
    node: RunningNode, name: str, packed: bool
) -> None:
    """Each call, made as the document shows it, gets a good answer of the documented form."""
    operation = OPERATIONS[name]
    names = {"board": "points", "member": "ada", "sequence": "17", "dispute": ""}
    if name in ("createBoard", "deleteBoard"):
        names["board"] = OWN_BOARDS[packed]
    if name == "removeMember":
        names["member"] = "gone"
    if name == "settleDispute":
        names["dispute"] = node.ask("/v1/boards/points/disputes")["disputes"][-1]["id"]
    body = None
    if "requestBody" in operation.described:
        examples = operation.described["requestBody"]["content"]["application/json"]["examples"]
        body = next(iter(examples.values()))["value"]
    request = Request(operation, names, NEEDED.get(name, {}), body, packed)
    status, answer = check(node, request)
    assert 200 <= status < 300, answer


def texts_of(parameter: dict[str, Any], name: str) -> st.SearchStrategy[str]:
    """Generate what a parameter may be, what it often is, and what it is not."""
    samples = SAMPLES.get(parameter["name"], [])
    if parameter["name"] == "board" and name in ("createBoard", "deleteBoard"):
        return st.sampled_from(OWN_BOARDS)
    described = SCHEMAS.values(parameter["schema"]).map(str)
    rubbish = st.text(min_size=1, max_size=6)
    often = st.sampled_from(samples) if samples else described
    return st.integers(0, 9).flatmap(
        lambda way: rubbish if way == 0 else described if way == 1 else often
    )


def requests_of(name: str) -> st.SearchStrategy[Request]:
    """Generate requests for one call."""
    operation = OPERATIONS[name]
    described = operation.described
    names: dict[str, Any] = {}
    needed: dict[str, Any] = {}
    optional: dict[str, Any] = {}
    for parameter in described["parameters"]:
        texts = texts_of(parameter, name)
        if parameter["in"] == "path":
            names[parameter["name"]] = texts
        elif parameter["name"] in NEEDED.get(name, {}):
            needed[parameter["name"]] = texts
        else:
            optional[parameter["name"]] = texts
    query = st.fixed_dictionaries(needed) | st.fixed_dictionaries(needed, optional=optional)
    body: st.SearchStrategy[Any] = st.none()
    if "requestBody" in described:
        media = described["requestBody"]["content"]["application/json"]
        shown = st.sampled_from([example["value"] for example in media["examples"].values()])
        good = shown | SCHEMAS.values(media["schema"])
        body = good | good.flatmap(spoiled)
    return st.builds(
        Request,
        st.just(operation),
        st.fixed_dictionaries(names),
        query,
        body,
        packed=st.booleans(),
        cut=st.sampled_from((*(0,) * 9, 1, 2, 20)),
    )


@pytest.mark.parametrize("name", ORDER)
def test_whatever_is_sent_the_answer_is_documented(node: RunningNode, name: str) -> None:
    """No request to any call gets a status or an answer that the document does not know of."""
    sent = 0

    @settings(
        max_examples=REQUESTS_PER_CALL,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(request=requests_of(name))
    def send(request: Request) -> None:
        nonlocal sent
        sent += 1
        check(node, request)

    send()
    varied = OPERATIONS[name].described["parameters"] and name != "deleteBoard"
    assert sent >= (REQUESTS_PER_CALL if varied else 1)


def test_what_was_sent_did_no_harm(node: RunningNode) -> None:
    """After all of it the node answers, its log holds no failure, and every board is sound."""
    assert node.ask("/readyz") == {"status": "ready"}
    for board in SAMPLES["board"]:
        assert node.ask(f"/v1/boards/{board}/top?limit=1000")["board"] == board
    assert node.stop() == 0
    log = node.output.read_text()
    assert "Traceback" not in log
    assert " ERROR " not in log
    ran = subprocess.run(
        [RANKNODE, "verify", node.data], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
