from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.definition import parse_definition
from node.transfer import (
    LINE_BYTES_MAX,
    BadRow,
    FileFormatError,
    Header,
    Lines,
    Row,
    batch_body,
    end_line,
    event_line,
    header_line,
    read_csv,
    read_ndjson,
)
from persistence.records import Event


def lines_of(text: str | bytes) -> Lines:
    return Lines(io.BytesIO(text.encode() if isinstance(text, str) else text))


def logged(**changes: Any) -> Event:
    event = Event(
        sequence=3,
        previous_sequence=0,
        member="élodie/1".encode(),
        values=(10, -955),
        idempotency_key=b'k"1',
        occurred_at_us=1_764_500_000_250_000,
        received_at_us=1_764_500_001_000_000,
        source="a,b",
        occurred_at_given=True,
    )
    return event._replace(**changes)


DEFINITION = (
    b'{"aggregation":"best","min_value":[0,-1.5],"score":['
    b'{"name":"a","direction":"desc","decimals":0},{"name":"b","direction":"asc","decimals":1}]}'
)


def test_a_number_keeps_its_exact_text() -> None:
    """What a file says goes into the request byte by byte, never through a float."""
    line = b'{"member":"a","value":0.10000000000000000001,"idempotency_key":"k"}'
    (row,) = read_ndjson(lines_of(line + b"\n"))
    assert row == Row(1, line)
    (csv_row,) = read_csv(lines_of("member,value,idempotency_key\na,1.10,k\n"))
    assert isinstance(csv_row, Row)
    assert b'"value":1.10,' in csv_row.event


def test_an_export_reads_back_as_it_was_written() -> None:
    """The lines of an export are a header and events with all that a client may give."""
    definition = parse_definition(DEFINITION, False)
    written = header_line("b", definition, ends=False) + event_line(logged(), definition.decimals)
    header, row = read_ndjson(lines_of(written))
    assert isinstance(header, Header)
    assert isinstance(row, Row)
    again = parse_definition(msgspec.json.encode(header.definition), False)
    assert again == definition
    assert json.loads(row.event) == {
        "member": "élodie/1",
        "value": [10, -95.5],
        "idempotency_key": 'k"1',
        "occurred_at": "2025-11-30T10:53:20.25Z",
        "source": "a,b",
    }


@pytest.mark.parametrize("lost", range(6))
def test_an_export_that_lacks_a_line_is_known(lost: int) -> None:
    """Its last line counts the others: of a file that was cut, no end is made."""
    definition = parse_definition(DEFINITION, False)
    event = event_line(logged(), definition.decimals)
    lines = [header_line("b", definition, ends=True), event, event, event, end_line(3)]
    whole = list(read_ndjson(iter(lines)))
    assert [type(item) for item in whole] == [Header, Row, Row, Row]
    if 0 < lost < len(lines):
        *_, last = read_ndjson(iter(lines[:lost] + lines[lost + 1 :]))
        assert isinstance(last, BadRow)
        *_, last = read_ndjson(iter(lines[:lost]))
        assert isinstance(last, BadRow)
    events = read_ndjson(iter(lines[1:4]))
    assert [type(item) for item in events] == [Row] * 3, "nothing is promised without a header"


def test_an_exported_event_always_says_when() -> None:
    """An event without its own time is exported with its receipt's, so it counts alike anew."""
    given = event_line(logged(occurred_at_given=False, source=None, values=(7,)), (0,))
    fields = json.loads(given)
    assert fields["occurred_at"]
    assert "source" not in fields
    assert fields["value"] == 7


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"{", "cut off"),
        (b'{"a":1},{"b":2}', "two objects would become two events"),
        (b'{"a":1}]}', "would end the batch"),
        (b"[1]", "a list"),
        (b'"text"', "a text"),
        (b'{"a":"\xff"}', "not UTF-8"),
        (b"[" * 5000, "nested too deep"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_line_that_would_harm_the_batch_is_kept_out(line: bytes, what: str) -> None:
    """A line that is not one JSON object is reported with its number; the others are read."""
    good = b'{"member":"a"}'
    rows = list(read_ndjson(lines_of(good + b"\n\n" + line + b"\r\n" + good)))
    assert [row.line for row in rows if isinstance(row, Row)] == [1, 4]
    (bad,) = [row for row in rows if isinstance(row, BadRow)]
    assert bad.line == 3


def test_a_batch_is_one_json_array() -> None:
    """Events are joined into the body that the contract asks for."""
    assert json.loads(batch_body([b'{"a":1}', b'{"a":2}'])) == {"events": [{"a": 1}, {"a": 2}]}


def test_csv_cells_become_fields() -> None:
    """Quoted cells, several score keys, empty optional cells, a BOM and CRLF are read."""
    text = (
        "\ufeffsource,member,value,idempotency_key,occurred_at\r\n"
        's1,"a,""b""","10, 95.50",k1,2026-01-01T00:00:00Z\r\n'
        ",名前,-0.5,k2,\r\n"
    )
    rows = list(read_csv(lines_of(text)))
    events = [json.loads(row.event) for row in rows if isinstance(row, Row)]
    assert events == [
        {
            "source": "s1",
            "member": 'a,"b"',
            "value": [10, 95.5],
            "idempotency_key": "k1",
            "occurred_at": "2026-01-01T00:00:00Z",
        },
        {"member": "名前", "value": -0.5, "idempotency_key": "k2"},
    ]
    assert [row.line for row in rows if isinstance(row, Row)] == [2, 3]


@pytest.mark.parametrize("value", ["", "x", "+1", "01", "1,", "NaN", "Infinity", "1]", "0x1", ".5"])
def test_a_csv_value_that_is_no_number_is_kept_out(value: str) -> None:
    """Only JSON's numbers are spliced into a request."""
    rows = list(read_csv(lines_of(f'member,value,idempotency_key\na,"{value}",k\nb,1,l\n')))
    assert isinstance(rows[0], BadRow)
    assert rows[0].line == 2
    assert isinstance(rows[1], Row)


def test_a_csv_row_of_another_width_is_kept_out() -> None:
    """A row with too few or too many cells is reported, not guessed at."""
    text = "member,value,idempotency_key\na,1\na,1,k,z\nb,1,l\n"
    kinds = [type(row) for row in read_csv(lines_of(text))]
    assert kinds == [BadRow, BadRow, Row]


@pytest.mark.parametrize(
    ("reader", "text", "message"),
    [
        (read_csv, b"", "no column member"),
        (read_csv, b"member,value\na,1\n", "no column idempotency_key"),
        (read_csv, b"member,value,idempotency_key,score\n", "unknown column 'score'"),
        (read_csv, b"member,member,value,idempotency_key\n", "more than once"),
        (read_csv, b"member,value,idempotency_key\n\xff,1,k\n", "line 2 is not UTF-8"),
        (read_csv, b'member,value,idempotency_key\n"a"b,1,k\n', "line 2"),
        (read_ndjson, b'{"board":"b","definition":7}\n', "line 1"),
        (read_ndjson, b"x" * (LINE_BYTES_MAX + 1), "longer than"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(
    reader: Callable[[Lines], Any], text: bytes, message: str
) -> None:
    """A file of another shape ends the import with the place and the reason."""
    with pytest.raises(FileFormatError, match=message):
        list(reader(lines_of(text)))


def test_progress_counts_the_bytes_of_the_lines_read(tmp_path: Path) -> None:
    """The bar of an import moves by bytes, so that it ends at the file's size."""
    file = tmp_path / "events.ndjson"
    file.write_bytes(b'{"a":1}\n{"a":2}\n')
    with file.open("rb") as source:
        lines = Lines(source)
        reading = read_ndjson(lines)
        next(reading)
        assert lines.bytes_read == 8
        next(reading)
        assert lines.bytes_read == 16
