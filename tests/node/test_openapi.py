from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from actors.definition import apply_changes, parse_definition
from actors.errors import Refusal
from actors.questions import Submit
from actors.submission import parse_submission
from node import openapi, problems, wire
from node.examples import ANSWER_EXAMPLES, REQUEST_EXAMPLES
from node.keys import Scope
from node.router import Router
from node.routes import ROUTES, Route
from tests.node.fake_boards import FakeBoards, call, serving


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    async def fetch() -> bytes:
        async with serving(FakeBoards()) as gateway:
            return (await call(gateway.port, "GET", "/openapi.json")).body

    fetched: dict[str, Any] = json.loads(asyncio.run(fetch()))
    return fetched


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        operation["operationId"]: operation
        for path in document["paths"].values()
        for operation in path.values()
    }


def test_the_document_is_valid_openapi(document: dict[str, Any]) -> None:
    """GET /openapi.json answers a document that is valid OpenAPI 3.1."""
    assert document["openapi"].startswith("3.1")
    OpenAPIV31SpecValidator(document).validate()


def test_the_document_lists_exactly_the_routes(document: dict[str, Any]) -> None:
    """Every call is documented and nothing else is."""
    documented = {
        (method.upper(), path) for path, item in document["paths"].items() for method in item
    }
    assert documented == {(route.method, route.path) for route in ROUTES}
    assert len(operations(document)) == len(ROUTES)


def test_every_parameter_has_its_bounds(document: dict[str, Any]) -> None:
    """Every parameter is named with what it may be, and required where a path holds it."""
    for route in ROUTES:
        parameters = operations(document)[route.name]["parameters"]
        names = [parameter["name"] for parameter in parameters]
        in_path = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
        assert names == in_path + [parameter.name for parameter in route.query]
        for parameter in parameters:
            assert parameter["description"]
            assert parameter["required"] or parameter["in"] == "query"
            bounds = {"minimum", "maxLength", "enum", "pattern"}
            assert bounds & parameter["schema"].keys(), parameter


def test_every_code_stands_under_its_status(document: dict[str, Any]) -> None:
    """Every problem of a call is documented under its status, with its codes."""
    for route in ROUTES:
        responses = operations(document)[route.name]["responses"]
        documented = {
            code: int(status)
            for status, response in responses.items()
            if int(status) >= 400
            for code in response["content"][problems.CONTENT_TYPE]["schema"]["allOf"][1][
                "properties"
            ]["code"]["enum"]
        }
        codes = openapi.codes_of(route)
        assert documented == {code: problems.TABLE[code][0] for code in codes}
        assert set(route.codes) <= set(codes)
        assert {int(status) for status in responses} >= set(route.answers)


def test_request_examples_are_accepted_by_the_board() -> None:
    """What the document shows as a request is what a board takes."""
    for example in REQUEST_EXAMPLES["submitEvents"].values():
        submission = parse_submission(Submit(False, 0, json.dumps(example).encode(), False))
        assert not [event for event in submission.events if isinstance(event, Exception)]
    for example in REQUEST_EXAMPLES["createBoard"].values():
        definition = parse_definition(json.dumps(example).encode(), False)
    changes = json.dumps(REQUEST_EXAMPLES["changeBoard"]["import"]).encode()
    assert apply_changes(definition, changes, False).mode == "backfill"


def test_answer_examples_have_the_types_of_the_answers() -> None:
    """What the document shows as an answer has the shape that it declares."""
    routes = {route.name: route for route in ROUTES}
    for name, examples in ANSWER_EXAMPLES.items():
        types = [type_ for types in routes[name].answers.values() for type_ in types]
        for example in examples.values():
            assert any(fits(example, type_) for type_ in types), (name, example)


def test_every_call_has_examples(document: dict[str, Any]) -> None:
    """Every body, and every answer about a board, is shown by examples that its schema takes."""
    schemas = {"components": document["components"]}
    shown = 0
    for route in ROUTES:
        operation = operations(document)[route.name]
        contents = [operation["requestBody"]["content"]] if route.body else []
        if route.scope is not Scope.OPEN and not route.media_type:
            responses = operation["responses"]
            contents += [
                responses[str(s)]["content"] for s, types in route.answers.items() if types
            ]
        for content in contents:
            media = content["application/json"]
            validator = OAS31Validator(schemas | media["schema"])
            assert media["examples"], route.name
            for example in media["examples"].values():
                validator.validate(example["value"])
                shown += 1
    assert shown > len(ROUTES)


def fits(example: Any, type_: Any) -> bool:
    try:
        msgspec.convert(example, type_)
    except msgspec.ValidationError:
        return False
    return True


def test_the_documented_definition_has_the_boards_fields_and_defaults() -> None:
    """A definition of nothing but defaults means the same to the document and to the board."""
    documented = wire.Definition(aggregation="sum")
    written_out = parse_definition(msgspec.json.encode(documented), False)
    assert written_out == parse_definition(b'{"aggregation":"sum"}', False)
    shown = json.loads(msgspec.json.encode(written_out.to_answer(False)))
    assert shown == msgspec.to_builtins(documented)
    info = wire.BoardInfo.__struct_fields__
    assert set(info) - set(shown) == {"board", "created_at", "sequence", "members"}


def test_every_call_says_how_it_is_authenticated(document: dict[str, Any]) -> None:
    """Each call names the schemes and the scope it takes, and its answers without a good key."""
    schemes = document["components"]["securitySchemes"]
    assert {scheme["type"] for scheme in schemes.values()} == {"http", "apiKey"}
    for route in ROUTES:
        operation = operations(document)[route.name]
        refusals = {"401", "403", "429"}
        if route.scope is Scope.OPEN:
            assert operation["security"] == []
            assert not refusals & operation["responses"].keys()
            continue
        assert refusals <= operation["responses"].keys()
        assert "WWW-Authenticate" in operation["responses"]["401"]["headers"]
        assert "Retry-After" in operation["responses"]["429"]["headers"]
        names = {name for way in operation["security"] for name in way}
        assert names == ({"bearer"} if route.scope is Scope.ADMIN else {"bearer", "signature"})
        assert names <= schemes.keys()
        scopes = [
            scope for way in operation["security"] for scopes in way.values() for scope in scopes
        ]
        assert set(scopes) == {route.scope.value}


CUP = {"name": "cup", "start": "2026-01-01T00:00:00+01:00", "end": "2026-01-02T00:00:00Z"}


@pytest.mark.parametrize(
    ("periods", "accepted"),
    [
        (["all_time"], True),
        (["daily", "weekly", "monthly", "yearly", "all_time", CUP], True),
        ([CUP | {"name": f"cup-{number}"} for number in range(64)], True),
        ([CUP | {"name": f"cup-{number}"} for number in range(65)], False),
        ([], False),
        (["hourly"], False),
        ([CUP | {"name": "Cup"}], False),
        ([CUP | {"name": "c" * 33}], False),
        ([CUP | {"venue": "here"}], False),
        ([{"name": "cup", "start": "2026-01-01T00:00:00Z"}], False),
    ],
)
def test_the_documented_periods_are_the_boards(periods: list[Any], accepted: bool) -> None:
    """The document and the board take and refuse the same lists of periods."""
    body = {"aggregation": "sum", "periods": periods}
    try:
        parse_definition(json.dumps(body).encode(), False)
        taken = True
    except Refusal:
        taken = False
    assert (fits(body, wire.Definition), taken) == (accepted, accepted)


def test_the_document_explains_what_a_window_is(document: dict[str, Any]) -> None:
    """Every field that decides when windows begin, close and are forgotten says so."""
    fields = document["components"]["schemas"]["Definition"]["properties"]
    for name in ("periods", "timezone", "day_starts_at", "week_starts_on", "grace_seconds",
                 "keep_closed_periods", "mode"):  # fmt: skip
        assert "description" in json.dumps(fields[name]), name


def test_every_query_about_a_window_may_name_a_revision(document: dict[str, Any]) -> None:
    """A call that takes `period` takes `revision`, and can say that a window is not kept."""
    about_windows = {"top", "member", "around", "rank", "range", "bands", "lookup", "digest"}
    for name, operation in operations(document).items():
        parameters = {parameter["name"] for parameter in operation["parameters"]}
        takes_windows = name in about_windows or name == "disputes"
        assert ("period" in parameters) == takes_windows
        assert ("revision" in parameters) == (name in about_windows)
        assert ("410" in operation["responses"]) == takes_windows


def test_the_documented_changes_are_the_boards() -> None:
    """Every field that the document lets a PATCH change can be changed, each by itself."""
    definition = parse_definition(b'{"aggregation":"sum"}', False)
    values = {"mode": "backfill", "sources": ["a"], "min_value": -1, "max_value": 1}
    for field in wire.Changes.__struct_fields__:
        body = json.dumps({field: values.get(field, 7)}).encode()
        changed = apply_changes(definition, body, False)
        assert getattr(changed, field) != getattr(definition, field)


@pytest.mark.parametrize(
    "paths", [("/a/{b}", "/a/{c}/d"), ("/a/{b}", "/a/{b}")], ids=["two names", "twice"]
)
def test_an_ambiguous_route_table_is_refused(paths: tuple[str, str]) -> None:
    """A table in which a path could mean two calls does not start."""
    original = ROUTES[0]
    table: list[Route] = [msgspec.structs.replace(original, path=path) for path in paths]
    with pytest.raises(ValueError, match=r"two parameters|twice"):
        Router(table)
