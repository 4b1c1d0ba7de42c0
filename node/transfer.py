"""The file formats of import and export: NDJSON and CSV, line by line, in bounded memory.

Owns which lines there are and how an event is written; rulings are in `node.ruling_lines`. A number
keeps its exact text: it is spliced from the file into the request and never becomes a float. It
must not know HTTP or the disk.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias

import msgspec

from actors.definition import Definition
from actors.exact import format_decimal, format_time
from actors.histories import key_text
from node.ruling_lines import RulingLine, read_ruling, write_ruling
from persistence.errors import RanknodeError
from persistence.records import Event

if TYPE_CHECKING:
    from actors.exporting import Ruled

LINE_BYTES_MAX = 64 * 1024

CSV_REQUIRED = ("member", "value", "idempotency_key")
CSV_OPTIONAL = ("occurred_at", "source")

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class FileFormatError(RanknodeError):
    """Raised for a file that cannot be read as events at all; says where and why."""


class Header(NamedTuple):
    """The first line of an export: the definition of the board, its numbers as raw text."""

    definition: dict[str, msgspec.Raw]


class Row(NamedTuple):
    """An event of a file: the number of its line and its JSON."""

    line: int
    event: bytes


class RulingRow(NamedTuple):
    """A ruling of a file: the number of its line and what it says."""

    line: int
    ruling: RulingLine


class BadRow(NamedTuple):
    """A line that is neither an event nor a ruling, and why."""

    line: int
    reason: str


Item: TypeAlias = Header | Row | RulingRow | BadRow


class Lines:
    """The lines of a file, each bounded, so that any file is read in little memory.

    bytes_read: how far the lines given out so far reach, for a progress bar.

    Errors: FileFormatError for a line longer than LINE_BYTES_MAX.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.bytes_read = 0

    def __iter__(self) -> Iterator[bytes]:
        number = 0
        while line := self._file.readline(LINE_BYTES_MAX + 1):
            number += 1
            if len(line) > LINE_BYTES_MAX:
                raise FileFormatError(f"line {number} is longer than {LINE_BYTES_MAX} bytes")
            self.bytes_read += len(line)
            yield line


def read_ndjson(lines: Iterable[bytes]) -> Iterator[Item]:
    """Read an event or a ruling per line; an export's first line is its header.

    Of an event only what would harm the request around it is checked: a line must be one JSON
    object. Empty lines are passed over. Where the header promises a last line, which says how many
    lines are between the two, a file that lacks it or others ends with a BadRow.
    """
    promised = False
    between, number = 0, 0
    for number, line in enumerate(lines, 1):
        text = line.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else line.strip()
        if not text:
            continue
        try:
            text.decode("utf-8")
            fields = _OBJECT.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            yield BadRow(number, f"not one JSON object: {error}")
            continue
        if number == 1 and "definition" in fields:
            promised = bytes(fields.get("end", b"")) == b"true"
            yield Header(_header(fields["definition"]))
            continue
        if promised and fields.keys() == {"end"}:
            promised = bytes(fields["end"]) != b"%d" % between
            continue
        between += 1
        if "moderation" in fields:
            yield _ruling(number, fields)
        else:
            yield Row(number, text)
    if promised:
        yield BadRow(
            number, "no last line counts the others: the file was cut, or lines are missing"
        )


def _header(raw: msgspec.Raw) -> dict[str, msgspec.Raw]:
    try:
        return _OBJECT.decode(raw)
    except msgspec.DecodeError as error:
        raise FileFormatError(f"line 1: the definition is no JSON object: {error}") from None


def _ruling(number: int, fields: dict[str, msgspec.Raw]) -> RulingRow | BadRow:
    if len(fields) > 1:
        return BadRow(number, "moderation: nothing else stands in its line")
    try:
        return RulingRow(number, read_ruling(fields["moderation"]))
    except (ValueError, RecursionError) as error:
        return BadRow(number, f"moderation: {error}")


def read_csv(lines: Iterable[bytes]) -> Iterator[Item]:
    """Read events under a header row `member,value,idempotency_key[,occurred_at][,source]`.

    Several score keys stand in one cell, as `10,95.5`. An empty `occurred_at` or `source` is left
    out. Errors: FileFormatError for a header row that lacks a column or has an unknown one, and
    for text that is not UTF-8.
    """
    reader = csv.reader(_decoded(lines), strict=True)
    try:
        columns = next(reader, [])
        _check_columns(columns)
        for cells in reader:
            if cells:
                yield _csv_row(reader.line_num, columns, cells)
    except csv.Error as error:
        raise FileFormatError(f"line {reader.line_num}: {error}") from None


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise FileFormatError(f"line {number} is not UTF-8: {error}") from None


def _check_columns(columns: list[str]) -> None:
    for column in CSV_REQUIRED:
        if column not in columns:
            raise FileFormatError(f"the header row has no column {column}")
    for column in columns:
        if column not in CSV_REQUIRED + CSV_OPTIONAL:
            raise FileFormatError(f"the header row has an unknown column {column!r}")
        if columns.count(column) > 1:
            raise FileFormatError(f"the header row has the column {column} more than once")


def _csv_row(line: int, columns: list[str], cells: list[str]) -> Item:
    if len(cells) != len(columns):
        return BadRow(line, f"{len(cells)} cells instead of {len(columns)}")
    fields: dict[str, Any] = dict(zip(columns, cells, strict=True))
    for column in CSV_OPTIONAL:
        if not fields.get(column):
            fields.pop(column, None)
    numbers = [text.strip() for text in fields["value"].split(",")]
    for text in numbers:
        if not _NUMBER.fullmatch(text):
            return BadRow(line, f"value: {text!r} is not a number")
    value = ",".join(numbers)
    fields["value"] = msgspec.Raw((value if len(numbers) == 1 else f"[{value}]").encode())
    return Row(line, msgspec.json.encode(fields))


def batch_body(events: Iterable[bytes]) -> bytes:
    """Make the body of a batch from events that are JSON already."""
    return b'{"events":[' + b",".join(events) + b"]}"


def header_line(board: str, definition: Definition, *, ends: bool) -> bytes:
    """Write the first line of an export: the definition as a client would write it.

    ends: whether `end_line` follows as the last line, so that a file that was cut is known.
    """
    shown = definition.to_answer(packed=False)
    promise = {"end": True} if ends else {}
    return msgspec.json.encode({"board": board, "definition": shown} | promise) + b"\n"


def end_line(lines: int) -> bytes:
    """Write the last line of an export; lines: how many are between the first and this one."""
    return msgspec.json.encode({"end": lines}) + b"\n"


def item_line(item: Event | Ruled, decimals: tuple[int, ...]) -> bytes:
    """Write an event or a ruling of a log as a line of an export."""
    if isinstance(item, Event):
        return event_line(item, decimals)
    event = None if item.event is None else _event_json(item.event, decimals)
    return write_ruling(item.record, event)


def event_line(event: Event, decimals: tuple[int, ...]) -> bytes:
    """Write an event of a log as a line of an export, with its exact numbers and its instant."""
    return _event_json(event, decimals) + b"\n"


def _event_json(event: Event, decimals: tuple[int, ...]) -> bytes:
    numbers = [
        format_decimal(scaled, places)
        for scaled, places in zip(event.values, decimals, strict=True)
    ]
    value = numbers[0] if len(numbers) == 1 else b"[" + b",".join(numbers) + b"]"
    fields: dict[str, Any] = {
        "member": event.member.decode("utf-8"),
        "value": msgspec.Raw(value),
        "idempotency_key": key_text(event),
        "occurred_at": format_time(event.occurred_at_us),
    }
    if event.source is not None:
        fields["source"] = event.source
    return msgspec.json.encode(fields)
