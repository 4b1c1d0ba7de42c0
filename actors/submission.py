"""Submitted events from a request's bytes to texts: which fields an event has, and of what types.

A body is one event or {"events": [...]}; one bad event of a batch never spoils the others. What the
texts must look like, which is the rest of an event's shape, is in `actors.event_rows`.
"""

from __future__ import annotations

import contextlib
import re
import struct
from typing import Annotated, NamedTuple

import msgspec

from actors.errors import Refusal, invalid_field
from actors.exact import check_name
from actors.questions import Submit

EVENTS_PER_BATCH_MAX = 5_000
NAME_BYTES_MAX = 128
SOURCE_BYTES_MAX = 64
SCORE_KEYS_MAX = 4
PACKED_NUMBER_BYTES_MAX = 9  # a tag and 64 bits

# What decoders raise for a body that is not JSON or MessagePack at all, nested too deep included.
MALFORMED = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)

_FLOAT32 = b"\xca"  # MessagePack's tag
_FIELD = re.compile(r"field `([^`]*)`|at `\$(?:\[[^]]*\])*\.?([^`.\[]*)")
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One event as a client writes it; value is kept as text until its decimals are known."""

    member: str
    value: msgspec.Raw
    idempotency_key: str
    occurred_at: str | msgspec.UnsetType = msgspec.UNSET
    source: str | msgspec.UnsetType = msgspec.UNSET


# Bounds are the decoders': whatever follows would be work for items that are refused anyway.
_BATCH_LENGTH = msgspec.Meta(max_length=EVENTS_PER_BATCH_MAX)


class _Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    events: Annotated[list[Event], _BATCH_LENGTH]


class _RawBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    events: Annotated[list[msgspec.Raw], _BATCH_LENGTH]


_Numbers = Annotated[list[msgspec.Raw], msgspec.Meta(max_length=SCORE_KEYS_MAX)]
_EVENT = (msgspec.json.Decoder(Event), msgspec.msgpack.Decoder(Event))
_BATCH = (msgspec.json.Decoder(_Batch), msgspec.msgpack.Decoder(_Batch))
_RAW_BATCH = (msgspec.json.Decoder(_RawBatch), msgspec.msgpack.Decoder(_RawBatch))
_NUMBERS = (msgspec.json.Decoder(_Numbers), msgspec.msgpack.Decoder(_Numbers))


class Submission(msgspec.Struct, frozen=True):
    """One request's events, in order; a Refusal stands in the place of an event without shape."""

    events: list[Event | Refusal]
    batch: bool
    packed: bool
    answer_packed: bool
    received_at_us: int


class Cells(NamedTuple):
    """One event ready for the columns.

    values: scaled integers, one per score key, or the refusal that the rules will give; the
    idempotency key is looked at before the rules. occurred_at_us: None where the client left it
    out.
    """

    member: bytes
    key: bytes
    values: tuple[int, ...] | Refusal
    occurred_at_us: int | None
    source: str | None


def field_of(error: msgspec.ValidationError) -> str:
    """Find the field that a decoder's message names; the body itself is "body"."""
    found = _FIELD.search(str(error))
    return (found.group(1) or found.group(2) or "body") if found else "body"


def is_too_long(error: msgspec.ValidationError) -> bool:
    """Say whether a decoder met a list above its bound."""
    return "`array` of length" in str(error)


def number_text(raw: msgspec.Raw, packed: bool) -> bytes:
    """Return a number's text; of a MessagePack float, the shortest decimal that means it."""
    if not packed:
        return bytes(raw)
    content = bytes(raw)
    if content[:1] == _FLOAT32:
        return _float32_text(content[1:])
    if len(content) > PACKED_NUMBER_BYTES_MAX:
        return b"not a number"
    try:
        value = msgspec.msgpack.decode(content)
    except MALFORMED:
        # Around a raw value only the framing was looked at: a text may be no UTF-8, a map's keys
        # may be maps, an extension may be no timestamp.
        return b"not a number"
    if value is None:
        return b"null"
    # bool is an int to Python, but no number to a client.
    return repr(value).encode() if type(value) in (int, float) else b"not a number"


def _float32_text(packed: bytes) -> bytes:
    """Write the shortest decimal that means a float of 32 bits, given big-endian."""
    (value,) = struct.unpack(">f", packed)
    for digits in range(1, 9):
        text = f"{value:.{digits}g}"
        with contextlib.suppress(OverflowError):  # rounded up, the largest ones are none any more
            if struct.pack(">f", float(text)) == packed:
                return text.encode()
    return f"{value:.9g}".encode()  # nine digits tell every float of 32 bits from the others


def numbers(raw: msgspec.Raw, packed: bool) -> list[bytes] | None:
    """Return the texts of a list of numbers, or None where `raw` is no list.

    A list with more numbers than any board takes counts as empty, which none takes either.
    """
    try:
        return [number_text(item, packed) for item in _NUMBERS[packed].decode(raw)]
    except msgspec.ValidationError as error:
        return [] if is_too_long(error) else None
    except MALFORMED:
        return None


def without_lone_surrogates(body: bytes) -> bytes:
    """Turn escaped lone surrogates into NUL, which every text field refuses by name.

    JSON's grammar allows them, so they must not spoil the other events of a batch.
    """
    if b"\\u" not in body:
        return body
    return _ESCAPE.sub(lambda m: rb"\u0000" if m.group("lone") else m.group(), body)


def parse_submission(question: Submit) -> Submission:
    """Decode a request's body: one event, or up to 5,000 under "events".

    Where the question is tied to a source, every event that comes out of it has that one. Whose
    events they are is decided before anything else about them: one that claims another source is
    refused in its place, whatever its key would say.
    Complexity: O(bytes). Errors: Refusal malformed_body; invalid_field for a single event without
    shape, for an unknown field, and for a batch that is too long. Events of a batch are refused
    one by one, in their places.
    """
    body, packed = question.body, question.body_packed
    if not packed:
        body = without_lone_surrogates(body)
    try:
        event = _EVENT[packed].decode(body)
        events: list[Event | Refusal] = _tied([event], question.source)
        return Submission(events, False, packed, question.packed, question.now_us)
    except msgspec.ValidationError as error:
        # The first thing a batch meets as a single event is that it has no field `events`.
        if field_of(error) != "events" or "unknown field" not in str(error):
            raise invalid_field(field_of(error), str(error)) from None
    except MALFORMED as error:
        raise Refusal("malformed_body", f"the body cannot be read: {error}") from None
    try:
        events = _decode_batch(body, packed)
    except msgspec.ValidationError as error:
        if is_too_long(error) and field_of(error) == "events":
            raise invalid_field("events", f"at most {EVENTS_PER_BATCH_MAX} at once") from None
        raise invalid_field(field_of(error), str(error)) from None
    except MALFORMED as error:
        raise Refusal("malformed_body", f"the body cannot be read: {error}") from None
    events = _tied(events, question.source)
    return Submission(events, True, packed, question.packed, question.now_us)


def _tied(events: list[Event | Refusal], source: str | None) -> list[Event | Refusal]:
    """Give events their submitter's source, and refuse those that claim another one."""
    if source is None:
        return events
    return [_with_source(event, source) if isinstance(event, Event) else event for event in events]


def _with_source(event: Event, source: str) -> Event | Refusal:
    if event.source is msgspec.UNSET:
        return Event(event.member, event.value, event.idempotency_key, event.occurred_at, source)
    if event.source != source:
        return Refusal("source_not_allowed", "the key is tied to another source", field="source")
    return event


def _decode_batch(body: bytes, packed: bool) -> list[Event | Refusal]:
    try:
        return list(_BATCH[packed].decode(body).events)
    except MALFORMED:
        # Something is wrong with one event, or with the framing of all of them, which this tells.
        raws = _RAW_BATCH[packed].decode(body).events
    decode = _EVENT[packed].decode
    events: list[Event | Refusal] = []
    for raw in raws:
        try:
            events.append(decode(raw))
        except MALFORMED as error:
            field = field_of(error) if isinstance(error, msgspec.ValidationError) else "body"
            events.append(invalid_field(field, str(error)))
    return events


def check_member(text: str, field: str = "member") -> bytes:
    """Check a member's name and return its UTF-8. Errors: Refusal invalid_field."""
    if text in {".", ".."}:
        raise invalid_field(field, "'.' and '..' cannot stand in a path")
    try:
        return check_name(text, NAME_BYTES_MAX)
    except ValueError as error:
        raise invalid_field(field, str(error)) from None
