"""The OpenAPI 3.1 document, made from the route table and the types: nothing is written twice."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import msgspec

from node import problems, wire
from node.examples import ANSWER_EXAMPLES, REQUEST_EXAMPLES
from node.keys import Scope
from node.negotiation import JSON, PACKED
from node.parameters import PATH_PARAMETERS, Parameter
from node.route import Route
from node.routes import ROUTES

SCOPES = {
    Scope.OPEN: "Open to everyone.",
    Scope.READ: "Needs the scope `read`, once there are keys.",
    Scope.SUBMIT: "Needs the scope `submit`, once there are keys.",
    Scope.ADMIN: "Needs the scope `admin`, once there are keys. Such a key cannot sign.",
}
SECURITY_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "rnk_ID_SECRET",
        "description": "A key as `ranknode key create` printed it. Its scope, `read`, `submit` or"
        " `admin`, each of which includes those before it, says what it may do, and patterns may"
        " limit it to some boards. A node without keys only listens on its own machine and lets"
        " everyone do everything.",
    },
    "signature": {
        "type": "apiKey",
        "in": "header",
        "name": "Signature",
        "description": "HTTP Message Signatures (RFC 9421) with Ed25519 in one form, for keys made"
        " with `ranknode key create --sign`: `Signature: sig=:BASE64:` beside `Signature-Input:"
        ' sig=("@method" "@request-target" "content-digest");created=SECONDS;keyid="ID"'
        ';alg="ed25519"` and `Content-Digest: sha-256=:BASE64:` (RFC 9530). A call that takes no'
        " body leaves the digest out, header and component. `created` must be within"
        " `signature_seconds_max` (300 s) of the node's time; until then a request can be sent"
        " again by whoever overheard it, which its events' keys make a duplicate.",
    },
}
DESCRIPTION = (
    "Durable score events in, exact ranks out. Numbers are exact decimals; every answer about a"
    " board carries `sequence`, its log position; every error is a problem (RFC 9457) with a"
    " `code`. A request that is not HTTP at all gets `malformed_request` (400) or"
    " `headers_too_large` (431)."
)
GOOD = {
    200: "The answer.",
    201: "Created.",
    202: "It holds from now on, and has work to do that goes on.",
    204: "Done; there is no body.",
}


def codes_of(route: Route) -> list[str]:
    """List the codes that a call can answer with: its own and those that its shape implies."""
    codes = {*route.codes, "not_acceptable", "internal_error"}
    if route.scope is not Scope.OPEN:
        codes |= {"unauthenticated", "forbidden", "rate_limited", "board_unavailable"}
    if "{" in route.path or route.query or route.body:
        codes.add("invalid_field")
    if any(parameter.name == "after" for parameter in route.query):
        codes.add("invalid_cursor")
    if route.media_type:
        codes.discard("not_acceptable")
    if route.body:
        codes |= {"malformed_body", "request_timeout", "body_too_large", "unsupported_media_type"}
    return [code for code in problems.TABLE if code in codes]


def document() -> dict[str, Any]:
    """Make the document."""
    types = _types()
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ranknode",
            "version": importlib.metadata.version("ranknode"),
            "description": DESCRIPTION,
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "headers": _headers(),
            "securitySchemes": SECURITY_SCHEMES,
        },
    }


def _types() -> list[Any]:
    """List every type of a body or an answer once."""
    types = [
        type_
        for route in ROUTES
        for types in (route.body, *route.answers.values())
        for type_ in types
    ]
    return list(dict.fromkeys([*types, wire.Problem]))


def _headers() -> dict[str, Any]:
    return {
        "X-Request-Id": {
            "description": "The request's own id, or a new one.",
            "schema": {"type": "string"},
        },
        "Retry-After": {
            "description": "Seconds to wait before the next try.",
            "schema": {"type": "integer", "minimum": 1},
        },
        "WWW-Authenticate": {
            "description": "How to present a key.",
            "schema": {"type": "string", "const": "Bearer"},
        },
        "Allow": {"description": "The methods of the path.", "schema": {"type": "string"}},
    }


def _operation(route: Route, schema_of: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "description": SCOPES[route.scope],
        "security": _security(route),
        "parameters": [
            *(_path_parameter(part[1:-1]) for part in route.segments if part.startswith("{")),
            *map(_query_parameter, route.query),
        ],
        "responses": {
            **{
                str(status): _good(route, status, [schema_of[type_] for type_ in types])
                for status, types in route.answers.items()
            },
            **_problems(route),
        },
    }
    if route.body:
        schemas = [schema_of[type_] for type_ in route.body]
        content = _content(schemas, REQUEST_EXAMPLES.get(route.name))
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _security(route: Route) -> list[dict[str, list[str]]]:
    """List the ways to call: with one of these, each with the scope that it must have."""
    if route.scope is Scope.OPEN:
        return []
    signs = route.scope is not Scope.ADMIN
    schemes = ["bearer", "signature"] if signs else ["bearer"]
    return [{scheme: [route.scope.value]} for scheme in schemes]


def _path_parameter(name: str) -> dict[str, Any]:
    kind, description = PATH_PARAMETERS[name]
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": kind.schema(),
    }


def _query_parameter(parameter: Parameter) -> dict[str, Any]:
    schema = parameter.kind.schema()
    if parameter.default is not None:
        schema["default"] = parameter.default
    return {
        "name": parameter.name,
        "in": "query",
        "required": parameter.required,
        "description": parameter.description,
        "schema": schema,
    }


def _content(schemas: list[dict[str, Any]], examples: dict[str, Any] | None) -> dict[str, Any]:
    schema = schemas[0] if len(schemas) == 1 else {"oneOf": schemas}
    media: dict[str, Any] = {"schema": schema}
    if examples:
        media["examples"] = {name: {"value": value} for name, value in examples.items()}
    return {JSON: media, PACKED: {"schema": schema}}


def _good(route: Route, status: int, schemas: list[dict[str, Any]]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": GOOD[status], "headers": _header_refs(status)}
    if route.media_type:
        response["content"] = {route.media_type: {"schema": schemas[0]}}
    elif schemas:
        response["content"] = _content(schemas, ANSWER_EXAMPLES.get(route.name))
    return response


def _problems(route: Route) -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for code in codes_of(route):
        by_status.setdefault(problems.TABLE[code][0], []).append(code)
    return {
        str(status): {
            "description": ", ".join(f"`{code}`: {problems.TABLE[code][1]}" for code in codes),
            "headers": _header_refs(status),
            "content": {
                problems.CONTENT_TYPE: {
                    "schema": {
                        "allOf": [
                            {"$ref": "#/components/schemas/Problem"},
                            {"properties": {"code": {"enum": codes}}},
                        ]
                    }
                }
            },
        }
        for status, codes in sorted(by_status.items())
    }


def _header_refs(status: int) -> dict[str, Any]:
    names = ["X-Request-Id"]
    if status == 401:
        names.append("WWW-Authenticate")
    if status in (429, 503):
        names.append("Retry-After")
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
