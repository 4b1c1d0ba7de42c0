"""A board's definition: what may stand in it, what may change later, how it is written and shown.

Owns the checks of PUT and PATCH. A definition is kept with its bounds as scaled integers, so that
two texts of one number are one definition. It must not know how boards are stored or asked.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from typing import Annotated, Any, Literal

import msgspec

from actors.errors import Refusal, invalid_field
from actors.exact import check_name, format_decimal, parse_decimal, parse_time
from actors.submission import (
    MALFORMED,
    SCORE_KEYS_MAX,
    SOURCE_BYTES_MAX,
    field_of,
    number_text,
    numbers,
)

BOARD_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
FIXED_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
DAY_START = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
KINDS = ("all_time", "daily", "weekly", "monthly", "yearly")

Aggregation = Literal["best", "sum", "latest"]
TieRule = Literal["earliest", "latest", "member"]
RankMethod = Literal["ordinal", "competition", "dense"]
Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
Mode = Literal["live", "backfill"]

GraceSeconds = Annotated[int, msgspec.Meta(ge=0, le=31 * 86_400)]
# At most a day, so that one day beyond the retention is enough to keep the keys of early events.
ToleranceSeconds = Annotated[int, msgspec.Meta(ge=0, le=86_400)]
RetentionDays = Annotated[int, msgspec.Meta(ge=1, le=36_500)]
ClosedPeriods = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Sources = Annotated[list[str], msgspec.Meta(min_length=1, max_length=256)]


class ScoreKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the numbers that make a score; keys are compared in order."""

    name: str
    direction: Literal["asc", "desc"] = "desc"
    decimals: Annotated[int, msgspec.Meta(ge=0, le=9)] = 0


class FixedWindow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A window with a name and bounds of its own."""

    name: str
    start: str
    end: str


DEFAULT_SCORE = (ScoreKey("score"),)


class _Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of PUT as a client writes it, defaults filled in."""

    aggregation: Aggregation
    score: Annotated[
        tuple[ScoreKey, ...], msgspec.Meta(min_length=1, max_length=SCORE_KEYS_MAX)
    ] = DEFAULT_SCORE
    tie_rule: TieRule = "earliest"
    rank_method: RankMethod = "ordinal"
    periods: Annotated[tuple[str | FixedWindow, ...], msgspec.Meta(min_length=1, max_length=64)] = (
        "all_time",
    )
    timezone: str = "UTC"
    day_starts_at: str = "00:00"
    week_starts_on: Weekday = "monday"
    grace_seconds: GraceSeconds = 300
    future_tolerance_seconds: ToleranceSeconds = 60
    key_retention_days: RetentionDays | None = 30
    keep_closed_periods: ClosedPeriods | None = None
    min_value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    max_value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    sources: Sources | None = None
    mode: Mode = "live"


class _ChangesForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of PATCH: what is left out stays."""

    grace_seconds: GraceSeconds | msgspec.UnsetType = msgspec.UNSET
    future_tolerance_seconds: ToleranceSeconds | msgspec.UnsetType = msgspec.UNSET
    key_retention_days: RetentionDays | msgspec.UnsetType | None = msgspec.UNSET
    keep_closed_periods: ClosedPeriods | msgspec.UnsetType | None = msgspec.UNSET
    min_value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    max_value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    sources: Sources | msgspec.UnsetType | None = msgspec.UNSET
    mode: Mode | msgspec.UnsetType = msgspec.UNSET


class Definition(msgspec.Struct, frozen=True):
    """A checked definition.

    min_value and max_value: one scaled integer per score key (value x 10^decimals), or None.
    """

    aggregation: Aggregation
    score: tuple[ScoreKey, ...]
    tie_rule: TieRule
    rank_method: RankMethod
    periods: tuple[str | FixedWindow, ...]
    timezone: str
    day_starts_at: str
    week_starts_on: Weekday
    grace_seconds: int
    future_tolerance_seconds: int
    key_retention_days: int | None
    keep_closed_periods: int | None
    min_value: tuple[int, ...] | None
    max_value: tuple[int, ...] | None
    sources: tuple[str, ...] | None
    mode: Mode

    @property
    def decimals(self) -> tuple[int, ...]:
        """The declared decimals, one number per score key."""
        return tuple(key.decimals for key in self.score)

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions, "asc" or "desc", one per score key."""
        return tuple(key.direction for key in self.score)

    def to_record(self) -> dict[str, Any]:
        """Make the plain values that the log keeps."""
        record: dict[str, Any] = msgspec.to_builtins(self)
        return record

    def to_answer(self, packed: bool) -> dict[str, Any]:
        """Make the fields of an answer, with the bounds as exact numbers."""
        answer = self.to_record()
        for field in ("min_value", "max_value"):
            bound = getattr(self, field)
            if bound is not None:
                shown = [
                    render_number(scaled, decimals, packed)
                    for scaled, decimals in zip(bound, self.decimals, strict=True)
                ]
                answer[field] = shown if len(shown) > 1 else shown[0]
        return answer


def from_record(record: dict[str, Any]) -> Definition:
    """Read a definition back from the log. Errors: msgspec.ValidationError."""
    return msgspec.convert(record, Definition)


def render_number(scaled: int, decimals: int, packed: bool) -> int | float | msgspec.Raw:
    """Make the shortest exact number of `scaled` x 10^-decimals for an answer.

    JSON takes the text itself. MessagePack takes an int where the value is whole, else the double
    nearest to it, which within the contract's bounds stands for no other decimal.
    """
    if decimals == 0:
        return scaled
    if not packed:
        return msgspec.Raw(format_decimal(scaled, decimals))
    scale: int = 10**decimals
    return scaled // scale if scaled % scale == 0 else scaled / scale


@functools.cache
def _zones() -> frozenset[str]:
    """Read the names of the IANA database, from the tzdata package so that every machine agrees."""
    return frozenset(
        importlib.resources.files("tzdata").joinpath("zones").read_text("utf-8").split()
    )


def _decode(body: bytes, packed: bool, form: type[Any]) -> Any:
    decode = msgspec.msgpack.decode if packed else msgspec.json.decode
    try:
        return decode(body, type=form)
    except msgspec.ValidationError as error:
        raise invalid_field(field_of(error), str(error)) from None
    except MALFORMED as error:
        raise Refusal("malformed_body", f"the body cannot be read: {error}") from None


def _bound(
    raw: msgspec.Raw | msgspec.UnsetType,
    packed: bool,
    field: str,
    score: tuple[ScoreKey, ...],
) -> tuple[int, ...] | None:
    """Scale a bound: left out or null, one number for every key, or a list of one per key."""
    if raw is msgspec.UNSET:
        return None
    parts = numbers(raw, packed)
    if parts is None:
        text = number_text(raw, packed)
        if text == b"null":
            return None
        parts = [text] * len(score)
    if len(parts) != len(score):
        raise invalid_field(field, f"give one number, or {len(score)}: one per score key")
    try:
        return tuple(
            parse_decimal(text, key.decimals) for text, key in zip(parts, score, strict=True)
        )
    except ValueError as error:
        raise invalid_field(field, str(error)) from None


def _sources(sources: list[str] | None) -> tuple[str, ...] | None:
    if sources is None:
        return None
    for source in sources:
        try:
            check_name(source, SOURCE_BYTES_MAX)
        except ValueError as error:
            raise invalid_field("sources", str(error)) from None
    if len(set(sources)) != len(sources):
        raise invalid_field("sources", "each source once")
    return tuple(sorted(sources))  # a set: its order means nothing


def _check_score(score: tuple[ScoreKey, ...]) -> tuple[ScoreKey, ...]:
    for key in score:
        try:
            check_name(key.name, 64)
        except ValueError as error:
            raise invalid_field("score", f"name: {error}") from None
    if len({key.name for key in score}) != len(score):
        raise invalid_field("score", "each name once")
    return score


def _check_periods(periods: tuple[str | FixedWindow, ...]) -> tuple[str | FixedWindow, ...]:
    names = []
    for period in periods:
        if isinstance(period, str):
            if period not in KINDS:
                raise invalid_field("periods", f"{period!r} is not one of {', '.join(KINDS)}")
            names.append(period)
            continue
        if FIXED_NAME.fullmatch(period.name) is None or period.name in KINDS:
            raise invalid_field(
                "periods", f"a window's name is {FIXED_NAME.pattern} and no kind's name"
            )
        try:
            begins, ends = parse_time(period.start), parse_time(period.end)
        except ValueError as error:
            raise invalid_field("periods", f"{period.name}: {error}") from None
        if begins >= ends:
            raise invalid_field("periods", f"{period.name}: its end is not after its start")
        names.append(period.name)
    if len(set(names)) != len(names):
        raise invalid_field("periods", "each window once")
    return periods


def _check_bounds(definition: Definition) -> Definition:
    low, high = definition.min_value, definition.max_value
    if low and high and any(a > b for a, b in zip(low, high, strict=True)):
        raise invalid_field("min_value", "it is above max_value")
    return definition


def parse_definition(body: bytes, packed: bool) -> Definition:
    """Check the body of PUT and fill in the defaults.

    Errors: Refusal malformed_body or invalid_field, with the field's name.
    """
    form: _Form = _decode(body, packed, _Form)
    score = _check_score(form.score)
    if form.timezone not in _zones():
        raise invalid_field("timezone", f"{form.timezone!r} is not in the IANA database")
    if DAY_START.fullmatch(form.day_starts_at) is None:
        raise invalid_field("day_starts_at", "it is written HH:MM, 00:00 to 23:59")
    fields = msgspec.structs.asdict(form) | {
        "score": score,
        "periods": _check_periods(form.periods),
        "min_value": _bound(form.min_value, packed, "min_value", score),
        "max_value": _bound(form.max_value, packed, "max_value", score),
        "sources": _sources(form.sources),
    }
    return _check_bounds(Definition(**fields))


def apply_changes(definition: Definition, body: bytes, packed: bool) -> Definition:
    """Check the body of PATCH and make the changed definition.

    Errors: Refusal malformed_body, invalid_field, or definition_immutable for a field that exists
    and may not change.
    """
    try:
        form: _ChangesForm = _decode(body, packed, _ChangesForm)
    except Refusal as refusal:
        field = refusal.extra.get("field")
        if field in Definition.__struct_fields__ and field not in _ChangesForm.__struct_fields__:
            raise Refusal(
                "definition_immutable", f"{field} cannot change", field=str(field)
            ) from None
        raise
    changes = {
        name: value
        for name, value in msgspec.structs.asdict(form).items()
        if value is not msgspec.UNSET
    }
    for field in ("min_value", "max_value"):
        if field in changes:
            changes[field] = _bound(changes[field], packed, field, definition.score)
    if "sources" in changes:
        changes["sources"] = _sources(changes["sources"])
    return _check_bounds(msgspec.structs.replace(definition, **changes))
