from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.errors import Refusal
from node.negotiation import decode, parse_query, read_authority, split_target, wants_packed
from node.router import Router
from node.routes import ROUTES

ROUTER = Router(ROUTES)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


def refusal_of(read: Callable[[], object]) -> str:
    """Return the code of the refusal that a reading ends with, or nothing."""
    try:
        read()
    except Refusal as refusal:
        return refusal.code
    return ""


@settings(database=None)
@given(TEXT)
def test_any_member_survives_a_path(member: str) -> None:
    """Whatever a member holds, a percent-encoded path brings it back exactly, and only once."""
    target = f"/v1/boards/b/members/{quote(member, safe='')}?limit=1"
    path, query = split_target(target)
    route, parameters = ROUTER.match("GET", path)
    assert route.name == "member"
    assert parameters == {"board": "b", "member": member}
    assert query == "limit=1"


@pytest.mark.parametrize(
    ("target", "authority", "path", "query"),
    [
        ("http://b/v1/boards?x=1", "b", "/v1/boards", "x=1"),
        ("a://b?/v1/boards", "b", "/", "/v1/boards"),
        ("a://b#/v1/boards", "b", "/#/v1/boards", ""),
        ("a://b", "b", "/", ""),
        ("a:///v1/boards", "", "/v1/boards", ""),
        ("://b/v1/boards", None, "://b/v1/boards", ""),
        ("/a://b/c", None, "/a://b/c", ""),
    ],
)
def test_a_target_that_is_a_url_is_read_as_one(
    target: str, authority: str | None, path: str, query: str
) -> None:
    """A URL's host ends at the first of `/`, `?` and `#`, so no query passes for a path."""
    assert read_authority(target) == authority
    assert split_target(target) == (path, query)


@settings(database=None)
@given(st.dictionaries(TEXT, TEXT, max_size=5))
def test_any_query_survives_form_encoding(query: dict[str, str]) -> None:
    """A form-encoded query is decoded to exactly what was encoded."""
    assert parse_query(urlencode(query)) == query


@settings(database=None)
@given(st.text(st.characters(max_codepoint=0x7F), max_size=60))
def test_no_target_breaks_the_router(target: str) -> None:
    """Whatever stands in a request line, the answer is a route or a refusal."""
    path, query = split_target(target)
    expected = {"", "not_found", "method_not_allowed", "invalid_field"}
    assert refusal_of(lambda: ROUTER.match("GET", path)) in expected
    assert refusal_of(lambda: parse_query(query)) in expected


@settings(database=None)
@given(st.text(max_size=60))
def test_no_accept_header_breaks_the_negotiation(accept: str) -> None:
    """Whatever Accept says, there is a form of answer or a refusal."""
    assert refusal_of(lambda: wants_packed(accept)) in {"", "not_acceptable"}


@pytest.mark.parametrize("text", ["%", "%4", "%g0", "%ff", "%c3%28", "\udcff"])
def test_what_is_not_utf8_is_refused(text: str) -> None:
    """Escapes and bytes that spell no UTF-8 are refused with the name of their field."""
    with pytest.raises(Refusal) as caught:
        decode(text, "member")
    assert caught.value.code == "invalid_field"
    assert caught.value.extra["field"] == "member"
