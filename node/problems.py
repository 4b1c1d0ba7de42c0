"""Every refusal's way to the client: code to status and title, in one table.

The only place that knows which HTTP status a code has. A problem is RFC 9457
`application/problem+json`, whatever the client accepts.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import msgspec

from actors.errors import Refusal

logger = logging.getLogger("ranknode.gateway")

CONTENT_TYPE = "application/problem+json"

TABLE: dict[str, tuple[int, str]] = {
    "malformed_request": (400, "The request is not HTTP"),
    "malformed_body": (400, "The body cannot be read"),
    "unauthenticated": (401, "A key is needed"),
    "forbidden": (403, "The key does not allow this"),
    "board_not_found": (404, "There is no such board"),
    "member_not_found": (404, "The member does not stand in this window"),
    "period_not_found": (404, "The board has no such window"),
    "event_not_found": (404, "The board has no such event"),
    "dispute_not_found": (404, "The board has no such dispute"),
    "not_found": (404, "There is nothing at this path"),
    "method_not_allowed": (405, "The path does not take this method"),
    "not_acceptable": (406, "No acceptable form of answer"),
    "request_timeout": (408, "The body took too long to arrive"),
    "board_exists": (409, "The board exists with another definition"),
    "definition_immutable": (409, "This part of the definition cannot change"),
    "idempotency_conflict": (409, "The key was used for another event"),
    "period_closed": (409, "Every window of the event is closed"),
    "event_too_old": (409, "The event is older than keys are remembered"),
    "period_expired": (410, "The window is no longer kept"),
    "body_too_large": (413, "The body is too large"),
    "unsupported_media_type": (415, "The body is in no known form"),
    "invalid_field": (422, "A field is not valid"),
    "value_precision": (422, "The value has more digits than the board"),
    "value_out_of_range": (422, "The value or the total is out of range"),
    "value_not_allowed": (422, "The value is outside the board's bounds"),
    "source_not_allowed": (422, "The board does not accept this source"),
    "occurred_in_future": (422, "The event lies in the future"),
    "invalid_cursor": (422, "The cursor is not valid here"),
    "rate_limited": (429, "Too many requests"),
    "headers_too_large": (431, "The request line or a header is too long"),
    "internal_error": (500, "The server failed"),
    "overloaded": (503, "The server is busy"),
    "board_unavailable": (503, "The board cannot answer now"),
    "not_yet": (503, "The board has not reached this sequence"),
    "outcome_unknown": (504, "The event may have been applied"),
    "storage_full": (507, "There is no room to write"),
}

RETRY_AFTER_SECONDS = 1  # what 429 and 503 ask for where the refusal names no time of its own


class Problem(NamedTuple):
    """A problem ready to send: its status, its body, the headers that belong to it, its code."""

    status: int
    body: bytes
    headers: dict[str, str]
    code: str


def problem(refusal: Refusal) -> Problem:
    """Make the problem of a refusal; its extras `allow` and `retry_after_seconds` become headers.

    Raises KeyError for a code that is not in the table: a mistake of the program.
    """
    status, title = TABLE[refusal.code]
    extra = dict(refusal.extra)
    headers: dict[str, str] = {}
    allow = extra.pop("allow", None)
    if allow is not None:
        headers["Allow"] = str(allow)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    retry_after = extra.pop("retry_after_seconds", RETRY_AFTER_SECONDS)
    if status in (429, 503):
        headers["Retry-After"] = str(retry_after)
    fields: dict[str, str | int] = {
        "type": f"urn:ranknode:problem:{refusal.code}",
        "title": title,
        "status": status,
        "detail": refusal.detail,
        "code": refusal.code,
    }
    return Problem(status, msgspec.json.encode(extra | fields), headers, refusal.code)


def deadline_passed(*, changes: bool) -> Refusal:
    """Make the refusal of a request whose deadline passed; a change may have been applied."""
    if changes:
        return Refusal(
            "outcome_unknown",
            "The deadline passed before the outcome was known; send it again with the same key.",
        )
    return Refusal("board_unavailable", "The board did not answer within the deadline.")


def of_exception(error: Exception, request_id: str, *, changes: bool) -> Problem:
    """Turn whatever a handler raised into a problem.

    What nobody foresaw is logged once, with the request's id, and tells the client nothing of the
    server's insides.
    """
    if isinstance(error, TimeoutError):
        error = deadline_passed(changes=changes)
    if isinstance(error, Refusal):
        if error.code in TABLE:
            return problem(error)
        logger.error("request %s was refused with the unknown code %r", request_id, error.code)
    else:
        logger.error("request %s failed", request_id, exc_info=error)
    return problem(Refusal("internal_error", "The request failed; the log has it by its id."))
