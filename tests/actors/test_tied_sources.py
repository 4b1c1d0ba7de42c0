"""Events of a submitter that is tied to a source: filled in, refused, and compared after that."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest

from actors.questions import Ask, Submit, decode_asks, encode
from actors.submission import parse_submission
from tests.actors.board_harness import NOW_US, MemoryBoard, event, in_memory, read, settled


def submit(
    host: MemoryBoard, body: Any, source: str | None = "server-3", packed: bool = False
) -> dict[str, Any]:
    """Submit a body as a caller who is tied to a source."""
    sent = msgpack.packb(body) if packed else json.dumps(body).encode()
    (reply,) = settled(
        host, [parse_submission(Submit(False, NOW_US, sent, packed, source))], NOW_US
    )
    return read(reply)


def sources(host: MemoryBoard, *keys: str) -> list[str | None]:
    """Read the sources in the log of the events with these keys."""
    first = host.board.sequence - len(keys) + 1
    events = [host.log.event(first + row) for row in range(len(keys))]
    assert [logged.idempotency_key.decode() for logged in events] == list(keys)
    return [logged.source for logged in events]


@pytest.mark.parametrize("packed", [False, True])
def test_an_event_gets_its_submitters_source(packed: bool) -> None:
    """Without a source an event gets the submitter's in the log; its own name for it is fine."""
    host = in_memory()
    assert submit(host, event(key="a"), packed=packed)["status"] == "applied"
    assert submit(host, event(key="b", source="server-3"), packed=packed)["status"] == "applied"
    assert sources(host, "a", "b") == ["server-3"] * 2


def test_another_source_is_refused() -> None:
    """A single event that claims another source is refused by name, and leaves no trace."""
    host = in_memory()
    before = host.board.sequence
    for claimed in ("server-4", "", "server-3 ", "Server-3"):
        answer = submit(host, event(source=claimed))
        assert (answer["code"], answer["field"]) == ("source_not_allowed", "source")
    assert host.board.sequence == before
    assert submit(host, event())["status"] == "applied", "its key was not used up"


@pytest.mark.parametrize("packed", [False, True])
def test_in_a_batch_each_event_is_refused_alone(packed: bool) -> None:
    """Of a batch those of another source are refused in their places; the others count."""
    host = in_memory()
    events = [
        event(key="a"), event(key="b", source="other"), event(key="c", source="server-3"),
        event(key="d", value="x"),
    ]  # fmt: skip
    answer = submit(host, {"events": events}, packed=packed)
    assert [result.get("code", result["status"]) for result in answer["results"]] == [
        "applied", "source_not_allowed", "applied", "invalid_field",
    ]  # fmt: skip
    assert sources(host, "a", "c") == ["server-3"] * 2


def test_a_repetition_is_compared_with_its_source_filled_in() -> None:
    """The same event with the source written out, or left to the key, is one and the same."""
    host = in_memory()
    first = submit(host, event())
    written_out = submit(host, event(source="server-3"))
    untied = submit(host, event(source="server-3"), source=None)
    for again in (written_out, untied):
        assert (again["status"], again["sequence"]) == ("duplicate", first["sequence"])
    assert submit(host, event(), source="server-4")["code"] == "idempotency_conflict"
    assert submit(host, event(), source=None)["code"] == "idempotency_conflict"


def test_another_source_is_refused_whatever_its_key_would_say() -> None:
    """Whose event it is comes first: a used key neither confirms it nor tells its sequence."""
    host = in_memory()
    assert submit(host, event(source="server-4"), source=None)["status"] == "applied"
    answer = submit(host, event(source="server-4"))
    assert answer["code"] == "source_not_allowed"
    assert "sequence" not in answer


def test_the_boards_own_list_still_counts() -> None:
    """A board that takes some sources only looks at the one that was filled in."""
    host = in_memory(sources=["server-3"])
    assert submit(host, event(key="a"))["status"] == "applied"
    assert submit(host, event(key="b"), source="server-4")["code"] == "source_not_allowed"
    assert submit(host, event(key="c"), source=None)["code"] == "source_not_allowed"


def test_a_submission_crosses_processes_with_its_source() -> None:
    """What the gateway sends is what the board's process reads, with and without a source."""
    for submission in (Submit(True, 1, b"{}", False, "s"), Submit(False, 2, b"{}", True)):
        (ask,) = decode_asks(encode([Ask(0, submission)]))
        assert ask.question == submission
